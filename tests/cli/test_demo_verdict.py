"""The demo's verdict finds every kind of broken promise in doctored inputs, and makes the command fail."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from holdfast.cli.demo import screen
from holdfast.cli.demo.journal import Entry, Journal
from holdfast.cli.demo.screen import Frame, Happening, StepView, WorkerView
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.verdict import Plan, Verdict, verdict_of
from holdfast.cli.main import cli
from holdfast.lifecycle import State
from holdfast.records import Dump

PLAN = Plan(ships={"Aurora": ("a1", "a2"), "Bounty": ("b1",)}, repeated="r1", poison="p1", deaths=2)


def row(number: int, id: str, task: str = "handle", **fields: Any) -> dict[str, Any]:
    start = 100.0 + number
    return {
        "id": id, "seq": number, "task": task, "queue": "harbour", "state": "succeeded", "group": None, "attempts": 1,
        "fence": number, "created_at": 50.0, "due_at": 50.0, "started_at": start, "finished_at": start + 0.5, **fields,
    }  # fmt: skip


def tables() -> dict[str, list[dict[str, Any]]]:
    dead = row(5, "p1", "read_chart", state="dead", reason="failed", failures=1)
    letter = {"id": "p1", "task": "read_chart", "queue": "harbour", "failure_count": 2, "failed_at": 9.0}
    ships = [row(1, "a1", group="Aurora"), row(2, "a2", group="Aurora"), row(3, "b1", group="Bounty")]
    return {"jobs": [*ships, row(4, "r1", "roll_call"), dead], "letters": [letter]}


def run(job: str, start: float, end: float | None, fence: int, pid: int = 1) -> list[Entry]:
    entries = [Entry(event="start", at=start, pid=pid, job=job, fence=fence)]
    return entries if end is None else [*entries, Entry(event="end", at=end, pid=pid, job=job, fence=fence)]


def journal() -> list[Entry]:
    """a1 was killed once and ran again; the rest ran once."""
    killed = Entry(event="killed", at=2.0, pid=9)
    runs = [*run("a1", 1.0, None, 10, pid=9), killed, *run("a1", 3.0, 4.0, 11), *run("a2", 4.0, 5.0, 12)]
    return [*runs, *run("b1", 1.0, 4.0, 13), *run("r1", 1.0, 1.1, 14), *run("p1", 1.0, 1.1, 15)]


def broken(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.checks if not check.held]


def judged(entries: list[Entry], rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    ordered = sorted(entries, key=lambda entry: entry.at)
    return broken(verdict_of(Dump(tables={name: tuple(of) for name, of in rows.items()}), ordered, PLAN))


def test_a_good_run_holds() -> None:
    assert judged(journal(), tables()) == []


def without(job: str) -> list[Entry]:
    return [entry for entry in journal() if entry.job != job]


def spoil(change: Callable[[dict[str, list[dict[str, Any]]]], Any]) -> dict[str, list[dict[str, Any]]]:
    rows = tables()
    change(rows)
    return rows


@pytest.mark.parametrize(
    ("entries", "rows", "name"),
    [
        pytest.param(without("a2"), tables(), "nothing lost", id="a handler never ran"),
        pytest.param(
            journal(), spoil(lambda rows: rows["jobs"].pop(2)), "nothing lost", id="a job is gone from the store"
        ),
        pytest.param(
            [*without("a2"), *run("a2", 3.5, 5.0, 12)], tables(), "nothing overlapped", id="two of one ship at once"
        ),
        pytest.param(
            [*journal(), *run("p1", 1.05, 1.2, 99)], tables(), "nothing overlapped", id="two runs of one job at once"
        ),
        pytest.param(
            [entry for entry in journal() if entry.event != "killed"], tables(), "nothing overlapped", id="no end known"
        ),
        pytest.param(
            [*without("a2"), *run("a2", 0.1, 0.5, 9)], tables(), "order kept", id="the second step went first"
        ),
        pytest.param([*without("a2"), *run("a2", 4.0, 5.0, 11)], tables(), "order kept", id="the fence did not grow"),
        pytest.param(
            journal(),
            spoil(lambda rows: rows["jobs"].append(row(6, "r2", "roll_call"))),
            "repeats made one job",
            id="two jobs",
        ),
        pytest.param([*journal(), *run("r1", 2.0, 2.1, 98)], tables(), "repeats made one job", id="it ran twice"),
        pytest.param(
            journal(), spoil(lambda rows: rows["letters"][0].update(failure_count=1)), "one dead letter", id="count"
        ),
    ],
)
def test_each_broken_promise_is_found(entries: list[Entry], rows: dict[str, list[dict[str, Any]]], name: str) -> None:
    assert judged(entries, rows) == [name]


def test_a_second_letter_is_found_by_the_verdict_and_the_audit() -> None:
    rows = spoil(lambda rows: rows["letters"].append({**rows["letters"][0]}))
    assert judged(journal(), rows) == ["one dead letter", "audit holds"]


def test_a_violation_of_the_audit_breaks_the_verdict() -> None:
    rows = spoil(lambda rows: rows["jobs"].append(row(7, "w1", state="waiting", group="Calypso", finished_at=None)))
    assert judged(journal(), rows) == ["audit holds"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose play ends in a broken promise."""
    rows = spoil(lambda rows: rows["letters"].clear())
    verdict = verdict_of(Dump(tables={name: tuple(of) for name, of in rows.items()}), journal(), PLAN)
    monkeypatch.setattr(Stage, "play", lambda self, show: verdict)


@pytest.mark.usefixtures("failing")
def test_the_command_fails_when_the_verdict_does() -> None:
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == 1
    assert "verdict: a promise was broken" in result.stdout
    assert "FAIL  one dead letter: 0 letters, none; died 2×" in result.stdout
    document = json.loads(CliRunner().invoke(cli, ["demo", "--json"]).stdout)
    assert document["held"] is False
    assert document["checks"]["one_dead_letter"]["held"] is False


def test_a_directory_to_keep_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("here")
    result = CliRunner().invoke(cli, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty" in result.stderr


def test_the_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.read() == []
    journal.write("start", job="a1", fence=3)
    journal.write("killed", pid=9)
    first, second = journal.read()
    assert (first.event, first.job, first.fence) == ("start", "a1", 3)
    assert (second.event, second.pid) == ("killed", 9)


def frame() -> Frame:
    steps = [
        StepView(name="moor", state=State.SUCCEEDED),
        StepView(name="unload", state=State.RUNNING, worker="A"),
        StepView(name="inspect", state=State.RUNNING, worker="B", orphaned=True),
        StepView(name="refuel", state=State.RUNNING, worker="A", again=True),
        StepView(name="load", state=State.WAITING),
        StepView(name="sail", state=State.READY),
    ]
    return Frame(
        elapsed=1.0,
        lease=3.0,
        ships={"Aurora": steps},
        workers=[
            WorkerView(letter="A", pid=1, busy=1, slots=2),
            WorkerView(letter="B", pid=2, busy=1, slots=2, killed_ago=1.0),
        ],
        poison="dead: one letter, count 1",
        happenings=[Happening(at=0.5, text="SIGKILL", kind="bad")],
        done=1,
        total=6,
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_picture_fits_the_terminal(width: int) -> None:
    console = Console(width=width, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    console.print(screen.picture(frame(), min(width, screen.WIDTH_MAX)))
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("✔ moor", "▶ unload", "✖ inspect", "↻ refuel", "· load", "○ sail", "its lease runs out in 2.0 s"):
        assert part in text
