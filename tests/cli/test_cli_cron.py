"""`holdfast cron`: every word of it, in both forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.shells import Shell

CODE = """
app.cron("0 3 * * *", name="nightly", args={{"word": "fail"}})(fail)
"""


@pytest.fixture
def cron(shell: Shell) -> Shell:
    """A shop with a declared entry, stored by a worker, and one made at run time."""
    path = shell.directory / f"{shell.module}.py"
    path.write_text(path.read_text() + CODE.format())
    shell.drain()
    shell("cron", "add", "hourly", "send", "to=ann", "--cron", "0 * * * *", "--tz", "Europe/Berlin", "--queue", "mail")
    return shell


def test_entries_are_listed_with_where_they_come_from(cron: Shell) -> None:
    hourly, nightly = cron.json("cron", "ls")["entries"]
    assert cron.json("cron")["entries"] == cron.json("cron", "ls")["entries"]
    assert (hourly["name"], hourly["task"], hourly["queue"], hourly["args"]) == (
        "hourly",
        "send",
        "mail",
        {"to": "ann"},
    )
    assert (hourly["cron"], hourly["tz"], hourly["declared"]) == ("0 * * * *", "Europe/Berlin", False)
    assert (nightly["name"], nightly["declared"], nightly["in_code"]) == ("nightly", True, None)
    told = cron("cron", "ls").stdout
    assert "added at run time" in told
    assert "0 * * * * Europe/Berlin" in told
    assert cron.json("cron", "ls", *cron.app)["entries"][1]["in_code"] is True


def test_what_left_the_code_is_marked(cron: Shell) -> None:
    path = cron.directory / f"{cron.module}.py"
    path.write_text(path.read_text().replace('name="nightly"', 'name="daily"'))
    (cron.directory / f"{cron.module}_new.py").write_text(path.read_text())
    newer = ["--app", f"{cron.module}_new:app", "--app-dir", str(cron.directory)]
    assert "not in this code" in cron("cron", "ls", *newer).stdout
    assert cron.json("cron", "show", "nightly", *newer)["entry"]["in_code"] is False


def test_one_entry_is_shown_with_its_next_ticks(cron: Shell) -> None:
    document = cron.json("cron", "show", "hourly")["entry"]
    assert len(document["next"]) == 5
    told = cron("cron", "show", "nightly").stdout
    assert "by code" in told
    assert "03:00:00" in told
    assert cron.error("cron", "show", "weekly", code=3)["code"] == "not_found"


def test_an_entry_is_changed_and_removed(cron: Shell) -> None:
    changed = cron.json("cron", "add", "hourly", "send", "to=bob", "--every", "30s", "--queue", "mail")["entry"]
    assert (changed["every"], changed["args"]) == (30.0, {"to": "bob"})
    assert cron.error("cron", "rm", "hourly", code=2)["hint"].startswith("Add --yes")
    assert "would remove entry 'hourly'" in cron("cron", "rm", "hourly", "--dry-run").stderr
    assert cron("cron", "rm", "hourly", "--yes").stdout == "removed entry 'hourly'.\n"
    assert "stores it again" in cron("cron", "rm", "nightly", "-y").stderr
    assert "no cron entries" in cron("cron", "ls").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("x", "send", "to=ann"),
        ("x", "send", "to=ann", "--cron", "* * *"),
        ("x", "send", "to=ann", "--cron", "* * * * *", "--every", "5s"),
        ("x", "send", "to=ann", "--every", "often"),
        ("x", "send", "to=ann", "--cron", "* * * * *", "--tz", "Mars/Base"),
        ("x", "send", "to=ann", "--every", "5s", "--overlap", "maybe"),
        ("nightly", "fail", "word=x", "--every", "5s"),
    ],
)
def test_a_slip_is_said_and_stores_nothing(cron: Shell, words: tuple[str, ...]) -> None:
    assert cron.error("cron", "add", *words, code=2)["code"] == "usage"
    assert len(cron.json("cron", "ls")["entries"]) == 2


def test_with_code_the_arguments_are_checked(cron: Shell) -> None:
    cron("cron", "add", "x", "send", "colour=red", "--every", "5s", *cron.app, code=2)
    assert cron.json("cron", "add", "x", "send", "to=007", "--every", "5s", *cron.app)["entry"]["args"] == {"to": "007"}
    assert cron.json("cron", "add", "y", "send", "to=a", "--every", "5s", "--dry-run")["dry_run"] is True
    assert [entry["name"] for entry in cron.json("cron", "ls")["entries"]] == ["hourly", "nightly", "x"]


def test_an_entry_is_paused_and_resumed(cron: Shell) -> None:
    assert cron("cron", "pause", "hourly", "--reason", "holidays").stdout == "paused entry 'hourly'.\n"
    assert "holidays" in cron("cron", "ls").stdout
    assert "no next tick" in cron("cron", "next", "hourly").stderr
    assert cron("cron", "resume", "hourly").stdout.startswith("resumed entry 'hourly', next in")
    assert cron.json("cron", "resume", "hourly")["entry"]["paused_at"] is None


def test_a_job_is_made_besides_the_ticks(cron: Shell) -> None:
    job = cron("cron", "run", "hourly").stdout.strip()
    assert cron.json("job", job)["job"]["args"] == {"to": "ann"}
    assert cron.json("cron", "run", "hourly")["created"] is True
    cron.drain()
    assert cron.json("job", job)["job"]["state"] == "succeeded"


def test_the_next_ticks_of_an_entry_or_an_expression(cron: Shell) -> None:
    assert len(cron.json("cron", "next", "hourly", "-n", "3")["next"]) == 3
    days = cron("cron", "next", "30 9 * * MON", "--tz", "Asia/Kolkata", "-n", "2").stdout.splitlines()
    assert [day[11:16] for day in days] == ["04:00", "04:00"]
    assert len(cron.json("cron", "next", "@daily")["next"]) == 5
    assert cron.error("cron", "next", "hourly", "--tz", "UTC", code=2)["code"] == "usage"
    assert cron.error("cron", "next", "61 * * * *", code=2)["code"] == "usage"


def test_past_ticks_are_made_up_for(cron: Shell) -> None:
    end = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
    span = ("--from", (end - timedelta(hours=3)).isoformat(), "--to", end.isoformat())
    plan = cron.json("cron", "backfill", "hourly", *span, "--dry-run")
    assert [tick["created"] for tick in plan["ticks"]] == [True] * 3
    assert cron.error("cron", "backfill", "hourly", *span, code=2)["code"] == "usage"
    assert "enqueued 3 jobs for 3 ticks" in cron("cron", "backfill", "hourly", *span, "--yes").stderr
    assert "enqueued 0 jobs for 3 ticks" in cron("cron", "backfill", "hourly", *span, "--yes").stderr
    assert len(cron.json("jobs", "queue:mail")["jobs"]) == 3
