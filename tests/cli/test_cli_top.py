"""holdfast top: what it shows fits the terminal, and its keys do what they say, on a real pseudo-terminal, too."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.cli.shells import Shell

from holdfast import Holdfast
from holdfast.cli.operate import me
from holdfast.cli.top import SECTIONS, Scene, View, draw, look, rows_of, split_keys, steer
from holdfast.lifecycle import State
from holdfast.records import QueueRecord, WorkerRecord
from holdfast.worker_status import draw as draw_status

WAIT_SECONDS = 60.0


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    app = Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="fail", queue="mail", retry=0)
    def fail() -> None:
        raise ValueError("no such address")

    @app.task(name="render", queue="pdf", group="g")
    def render(n: int) -> None: ...

    for _ in range(12):
        fail.enqueue()
    app.work(["mail"], drain=True)
    for n in range(5):
        render.enqueue(n)
    return app


def shown(scene: Scene, view: View, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(draw(scene, view, width, height))
    return capture.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60), (20, 7)])
@pytest.mark.parametrize("section", range(len(SECTIONS)))
def test_a_frame_fits_its_terminal(app: Holdfast, section: int, width: int, height: int) -> None:
    lines = shown(look(app), View(section=section), width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width


def test_everything_that_is_there_is_shown(app: Holdfast) -> None:
    text = "\n".join(shown(look(app), View(), 100, 60))
    assert text.count("ValueError") == 12
    for word in ("mail", "pdf", "0 workers"):
        assert word in text


def test_the_selected_section_gets_the_room_and_scrolls_to_the_selected_row(app: Holdfast) -> None:
    scene = look(app)
    last = scene.failures[-1].id[-8:]
    assert last not in "\n".join(shown(scene, View(section=2), 80, 18))
    assert last in "\n".join(shown(scene, View(section=2, row=11), 80, 18))


def test_hostile_names_stay_text(app: Holdfast) -> None:
    scene = Scene(url="sqlite:///x", now=0.0, queues=[QueueRecord(name="[red]\x1b[31mevil\u202e")])
    text = "\n".join(shown(scene, View(), 80, 24))
    assert "[red]" in text and "\x1b" not in text and "\u202e" not in text


def test_keys_pause_and_resume_the_selected_queue(app: Holdfast) -> None:
    view = steer(app, look(app), View(), "j")
    view = steer(app, look(app), view, "p")
    assert view.message == "paused queue pdf."
    assert [queue.name for queue in app.queues.list() if queue.pause] == ["pdf"]
    assert steer(app, look(app), view, "p").message == "resumed queue pdf."
    assert not [queue.name for queue in app.queues.list() if queue.pause]


def test_r_revives_and_a_capital_letter_asks_first(app: Holdfast) -> None:
    scene, view = look(app), View(section=2)
    first, second = scene.failures[:2]
    assert steer(app, scene, view, "r").message.startswith("revived fail ")
    assert app.job(first.id).state is State.READY
    asking = steer(app, scene, steer(app, scene, view, "j"), "D")
    assert "cannot be undone" in asking.message and asking.frozen
    assert steer(app, scene, asking, "n").message == "nothing was changed."
    assert app.dead.get(second.id)
    assert steer(app, scene, asking, "y").message.startswith("discarded fail ")
    assert second.id not in [letter.id for letter in app.dead.list()]
    assert steer(app, scene, asking, "y").message.startswith(f"no dead letter {second.id!r}")


def test_changes_are_recorded_with_the_operator_s_name(app: Holdfast) -> None:
    scene = look(app)
    first = scene.failures[0]
    steer(app, scene, View(section=SECTIONS.index("failures")), "r")
    assert [(entry.kind, entry.by) for entry in app.history(first.id) if entry.by][1:] == [("revive", me())]


def test_a_worker_is_paused_resumed_and_stopped(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def ask(what: str) -> Any:
        def answer(id: str, by: str, timeout: float) -> str:
            asked.append((what, id, by))
            return f"{what}d"

        return answer

    for what in ("pause", "resume", "stop"):
        monkeypatch.setattr(app, f"{what}_worker", ask(what))
    worker = WorkerRecord(id="0123456789abcdef", host="vm", slots=2)
    scene = Scene(url="", now=0.0, workers=[worker])
    view = View(section=SECTIONS.index("workers"))
    assert steer(app, scene, view, "p").message == "worker 89abcdef: paused."
    paused = replace(scene, workers=[replace(worker, portrait=draw_status([], paused=True))])
    assert rows_of(paused, "workers")[1][0][-1] == "paused"
    assert steer(app, paused, view, "p").message == "worker 89abcdef: resumed."
    asking = steer(app, scene, view, "S")
    assert asking.message.startswith("stop worker 89abcdef?")
    steer(app, scene, asking, "y")
    assert asked == [(what, worker.id, me()) for what in ("pause", "resume", "stop")]


def test_keys_that_arrive_together_are_told_apart() -> None:
    assert split_keys("j\x1b[A\tC\x1b[Z") == ["j", "k", "\t", "C", "backtab"]


def test_without_a_terminal_it_prints_one_frame(app: Holdfast, shell: Shell) -> None:
    assert "ValueError" in shell("top", "--url", app.url).stdout
    document = shell.json("top", "--url", app.url)
    assert len(document["failures"]) == 12 and [queue["name"] for queue in document["queues"]] == ["mail", "pdf"]


def test_on_a_terminal_it_answers_keys_and_q_ends_it(app: Holdfast) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "top", "--url", app.url, "--every", "0.2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = b""

    def wait_for(text: bytes) -> None:
        nonlocal seen
        ends = time.monotonic() + WAIT_SECONDS
        while text not in seen:
            assert select.select([master], [], [], max(0.0, ends - time.monotonic()))[0], seen
            seen += os.read(master, 1 << 16)

    try:
        wait_for(b"ValueError")
        os.write(master, b"p")
        wait_for(b"paused queue mail.")
        os.write(master, b"q")
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert next(queue for queue in app.queues.list() if queue.name == "mail").pause is not None
