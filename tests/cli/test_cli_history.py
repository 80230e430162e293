"""Commands about what happened and what happens: history, job, stats --by, watch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast


def ran(shell: Shell) -> str:
    """A job that failed and one that succeeded, on this test's store; returns the id of the failed one."""
    app = Holdfast(shell.url)

    @app.task(name="send", queue="mail")
    def send() -> None: ...

    @app.task(name="fail", queue="mail", retry=0)
    def fail() -> None:
        raise ValueError("cannot")

    with app:
        send.enqueue()
        failed = fail.enqueue()
        app.work(drain=True)
    return failed.id


def test_history_shows_a_jobs_timeline_and_who_acted(shell: Shell) -> None:
    id = ran(shell)
    shell("retry", id)
    told = shell("history", id).stdout
    assert told.index("enqueued") < told.index("claimed") < told.index("ValueError: cannot") < told.index("revive")
    entries = shell.json("history", id)["history"]
    assert [entry["kind"] for entry in entries] == ["enqueued", "claimed", "failed", "revive"]
    assert "@" in entries[-1]["by"]
    assert shell.json("job", id)["history"] == entries
    assert "claimed" in shell("job", id).stdout
    shell.job(id="later", delay=500.0)
    shell("run-now", "later")
    assert "run-now" in shell("history", "later").stdout
    assert shell.json("history", "later")["history"][-1]["kind"] == "run_now"
    assert shell.error("history", "nobody", code=3)["code"] == "not_found"


def test_stats_by_task_and_queue(shell: Shell) -> None:
    ran(shell)
    document = shell.json("stats", "--by", "task", "--since", "15m")
    assert {line["name"]: line["counts"] for line in document["lines"]} == {
        "send": {"succeeded": 1},
        "fail": {"dead": 1},
    }
    assert document["total"]["failure_rate"] == 0.5
    assert len(document["total"]["series"]) >= 15
    told = shell("stats", "--by", "queue").stdout
    assert "mail" in told and "50.0" in told
    assert "jobs" in shell.json("stats")
    assert shell.error("stats", "--by", "colour", code=2)["code"] == "usage"


def test_stats_of_a_store_where_nothing_ended(shell: Shell) -> None:
    shell.job()
    assert "nothing ended" in shell("stats", "--by", "task").stderr


def first_line_of(*words: str) -> dict[str, Any]:
    """The first JSON line of a command that goes on until it is interrupted, which ends it in order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line: dict[str, Any] = json.loads(process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error
    return line


def test_watch_prints_json_lines_and_ends_with_130_when_interrupted(shell: Shell) -> None:
    ran(shell)
    event = first_line_of("watch", "queue:mail", "-e", "dead", "--since", "1h", "--json", "--url", shell.url)
    assert (event["event"], event["task"], event["error"]["type"]) == ("dead", "fail", "ValueError")


def test_stats_are_watched_by_task_unless_told_otherwise(shell: Shell) -> None:
    ran(shell)
    assert first_line_of("stats", "--watch", "--json", "--url", shell.url)["by"] == "task"


def test_stats_fit_a_terminal_of_80_columns(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(shell)
    monkeypatch.setenv("COLUMNS", "80")
    head, rule, *rows = shell("stats", "--by", "task").stdout.splitlines()
    assert max(map(len, [head, rule, *rows])) <= 80
    assert "RUN P95" in head and "FAIL %" in head and "RUN P99" not in head
    assert not any("…" in row for row in rows)
