"""`holdfast work` without --slots: a hundred for each runner if all tasks are async, ten if one needs a thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from holdfast.worker_status import read
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

APP = """
import asyncio, os
from holdfast import Holdfast

HERE = os.path.dirname(os.path.abspath(__file__))
app = Holdfast(f"sqlite:///{HERE}/jobs.db")
together, running = asyncio.Event(), 0


@app.task(name="meet", retry=0)
async def meet(number: int) -> None:
    global running
    running += 1
    if running >= number:
        together.set()
    await together.wait()
"""
SYNC = """

@app.task(name="plain")
def plain() -> int:
    return 1
"""


def test_async_tasks_run_a_hundred_at_once_until_the_code_needs_threads(stage: ProcessScene) -> None:
    (stage.folder / "scene_app.py").write_text(APP)

    def slots() -> tuple[int, list[int], str]:
        [worker] = app.workers()
        status = read(worker.portrait)
        assert status is not None
        ready = [runner.slots for runner in status.runners if runner.state == "ready"]
        return worker.slots, ready, status.slots_from

    with stage.app() as app:
        jobs = [app.named("meet").enqueue(100) for _ in range(100)]
        family = stage.start()
        for job in jobs:
            job.result(timeout=90)
        until(lambda: slots() == (100, [100], "async"), what="it says how many")
        assert "1 runner, 100 slots: default for async tasks)" in family.text()
        told = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", "workers", "--url", app.url],
            env={**os.environ, "COLUMNS": "240"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "default for async tasks" in told.stdout
        stage.change_code(APP, APP + SYNC)
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: slots() == (10, [10], "threads"), what="the new code has a task that needs threads")
        assert app.named("plain").enqueue().result(timeout=90) == 1
        stage.change_code(SYNC, "")
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: slots() == (100, [100], "async"), what="and has it no more")
        assert family.stop() == 0


@pytest.mark.parametrize(
    ("code", "words", "slots", "why"),
    [
        (APP + SYNC, ("--runners", "2"), "20 slots: default for threads)", "threads"),
        (APP, ("--runners", "2"), "200 slots: default for async tasks)", "async"),
        (APP, ("--slots", "10"), "10 slots)", "option"),
        (APP, ("--concurrency", "300"), "300 slots)", "option"),
    ],
)
def test_it_says_how_many_slots_it_has_and_why(
    stage: ProcessScene, code: str, words: tuple[str, ...], slots: str, why: str
) -> None:
    (stage.folder / "scene_app.py").write_text(code)
    with stage.app() as app:
        family = stage.start(*words)
        until(lambda: [one.portrait for one in app.workers() if one.portrait], what="it has renewed")
        assert f", {slots}" in family.text()
        command = [sys.executable, "-m", "holdfast.cli", "workers", "--json", "--url", app.url]
        [worker] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["workers"]
        assert worker["slots_from"] == why
        assert worker["slots"] == int(slots.split()[0])
        assert family.stop() == 0
