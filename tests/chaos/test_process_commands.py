"""Commands to `holdfast work` from elsewhere, and a bulk command that is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from holdfast.lifecycle import State
from holdfast.worker_status import read
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos


def worker_of(app: Any) -> str:
    """The id of the only worker, once it is registered."""
    until(lambda: bool(app.workers()), what="the worker is registered")
    worker: str = app.workers()[0].id
    return worker


def shows_paused(app: Any) -> bool:
    status = read(app.workers()[0].portrait)
    return status is not None and status.paused


def test_a_worker_shows_the_stacks_of_all_runners_even_of_one_that_holds_the_gil(stage: ProcessScene) -> None:
    with stage.app() as app:
        stage.start("--runners", "2", "--slots", "4", "--lease", "6")
        worker = worker_of(app)
        app.named("holds_the_gil").enqueue(seconds=30)
        until(lambda: bool(stage.lines("start")), what="the handler runs")
        found = app.worker_stacks(worker)
        assert found.count("runner ") == 2
        assert "in holds_the_gil" in found


def test_a_worker_is_paused_resized_resumed_and_stopped(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start("--runners", "2", "--slots", "4", "--lease", "6")
        worker = worker_of(app)
        assert app.pause_worker(worker, by="ann").startswith("paused")
        job = app.named("quick").enqueue(n=1)
        until(lambda: shows_paused(app), what="it shows as paused")
        assert app.job(job.id).state is State.READY
        assert app.set_worker_slots(worker, 2) == "2 slots"
        until(lambda: app.workers()[0].slots == 2, what="its row shows the slots")
        assert app.resume_worker(worker) == "resumed"
        until(lambda: app.job(job.id).state is State.SUCCEEDED, what="it works again")
        assert app.stop_worker(worker).startswith("stop")
        assert family.keeper.wait(60) == 0


def test_a_bulk_command_that_is_killed_is_repeated_and_takes_no_job_twice(stage: ProcessScene) -> None:
    with stage.app() as app:
        app.enqueue_many(app.named("quick").bind(n=n) for n in range(3000))
        as_of = app.now()
        words = ["-m", "holdfast.cli", "bury", "--query", "task:quick", "--yes", "--as-of", as_of.isoformat()]
        environment = {**os.environ, "HOLDFAST_URL": app.url}
        first = subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.DEVNULL)
        until(lambda: app.counts()["default"][State.DEAD] > 100, what="it is in the middle")
        first.send_signal(signal.SIGKILL)
        first.wait()
        done = app.counts()["default"][State.DEAD]
        assert done < 3000
        subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True)
        assert app.counts()["default"][State.DEAD] == 3000
        assert {letter.failure_count for letter in app.dead.list(limit=5000)} == {1}
        assert app.audit().violations == []
