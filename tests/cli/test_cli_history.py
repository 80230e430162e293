"""Commands about what happened and what happens: history, job, stats --by, watch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

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
    assert shell.error("stats", "--watch", code=2)["code"] == "usage"
    assert shell.error("stats", "--by", "colour", code=2)["code"] == "usage"


def test_stats_of_a_store_where_nothing_ended(shell: Shell) -> None:
    shell.job()
    assert "nothing ended" in shell("stats", "--by", "task").stderr


def test_watch_prints_json_lines_and_ends_with_130_when_interrupted(shell: Shell, tmp_path: Path) -> None:
    ran(shell)
    words = ["watch", "queue:mail", "-e", "dead", "--since", "1h", "--json", "--url", shell.url]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        event = json.loads(process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (event["event"], event["task"], event["error"]["type"]) == ("dead", "fail", "ValueError")
    assert process.returncode == 130
    assert "Traceback" not in error
