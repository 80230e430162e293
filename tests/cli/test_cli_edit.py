"""Commands that change what a job is: edit, reschedule, delete."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.shells import Shell


def test_edit_changes_arguments_group_and_priority(shell: Shell) -> None:
    shell.job(id="j1")
    shell("edit", "j1", "--args", '{"to": "bob"}', "--group", "g", "--priority", "5")
    job = shell.json("job", "j1")["job"]
    assert (job["args"], job["group"], job["priority"]) == ({"to": "bob"}, "g", 5)
    shell("edit", "j1", "--order", "-4")
    assert shell.json("job", "j1")["job"]["order"] == -4
    shell("edit", "j1", "--no-order")
    assert shell.json("job", "j1")["job"]["order"] is None
    shell("edit", "j1", "--no-group", "--queue", "other")
    job = shell.json("job", "j1")["job"]
    assert (job["group"], job["queue"]) == (None, "other")


def test_edit_without_a_change_or_with_contradicting_ones_is_a_usage_error(shell: Shell) -> None:
    shell.job(id="j1")
    assert "say what to change" in shell("edit", "j1", code=2).stderr
    assert "exclude" in shell("edit", "j1", "--group", "g", "--no-group", code=2).stderr
    assert "exclude" in shell("edit", "j1", "--order", "1", "--no-order", code=2).stderr
    shell("edit", "j1", "--args", "[1]", code=2)


def test_edit_with_the_app_checks_the_arguments_by_the_signature(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "edits.py").write_text(
        "from holdfast import Holdfast\n\napp = Holdfast()\n\n\n"
        "@app.task(name='send')\ndef send(to: str, copies: int = 1) -> None: ...\n"
    )
    shell("enqueue", "send", "to=ann", "--id", "j1")
    words = ("edit", "j1", "--app", "edits:app", "--app-dir", str(tmp_path), "--args")
    assert "copies" in shell(*words, '{"to": "bob", "copies": "many"}', code=2).stderr
    assert "address" in shell(*words, '{"address": "bob"}', code=2).stderr
    assert shell.json("job", "j1")["job"]["args"] == {"to": "ann"}
    shell(*words, '{"to": "bob", "copies": 2}')
    assert shell.json("job", "j1")["job"]["args"] == {"to": "bob", "copies": 2}


def test_reschedule_by_delay_and_by_time(shell: Shell) -> None:
    shell.job(id="j1")
    assert "scheduled" in shell("reschedule", "j1", "--delay", "2h").stdout
    shell("reschedule", "j1", "--at", "2031-01-01T00:00:00+00:00")
    assert shell.json("job", "j1")["job"]["due_at"].startswith("2031-01-01T00:00:00")
    assert "ready" in shell("reschedule", "j1", "--delay", "0").stdout
    shell("reschedule", "j1", code=2)


def test_delete_removes_the_job_and_says_so(shell: Shell) -> None:
    shell.job(id="j1")
    assert shell("delete", "j1").stdout == "j1  deleted\n"
    shell("job", "j1", code=3)
    shell("delete", "j1", code=3)


@pytest.mark.parametrize("words", [["delete"], ["reschedule", "--delay", "1h"], ["edit", "--priority", "1"]])
def test_a_query_counts_first_and_asks(shell: Shell, words: list[str]) -> None:
    for number in range(3):
        shell.job(id=f"j{number}", queue="mail")
    document = shell.json(*words, "--query", "queue:mail", "--dry-run")
    assert document["would_change"] == ["j0", "j1", "j2"]
    shell(*words, "--query", "queue:mail", code=2)  # nobody can be asked
    assert len(shell.json(*words, "--query", "queue:mail", "--yes")["changed"]) == 3


def test_a_finished_job_is_not_edited(shell: Shell) -> None:
    shell.job(id="j1")
    shell("cancel", "j1")
    assert "Only jobs that have not started can be edited" in shell("edit", "j1", "--priority", "1", code=1).stderr


def test_a_queue_is_emptied_after_asking(shell: Shell) -> None:
    for number in range(3):
        shell.job(id=f"j{number}", queue="mail")
    assert shell.json("queues", "empty", "mail", "--dry-run")["jobs"] == 3
    shell("queues", "empty", "mail", code=2)
    assert len(shell.json("queues", "empty", "mail", "--yes")["changed"]) == 3
    shell("queues", "empty", "nosuch", "--yes", code=3)


def test_a_queue_is_obliterated_only_by_its_typed_name(shell: Shell) -> None:
    shell.job(id="j1", queue="mail")
    shell("bury", "j1")
    shell("queues", "obliterate", "mail", code=2)
    shell("queues", "obliterate", "mail", "--confirm", "Mail", code=2)
    assert shell.json("queues", "obliterate", "mail", "--confirm", "mail")["changed"][0]["id"] == "j1"
    assert shell.json("queues")["queues"] == []


def test_a_bulk_run_can_be_repeated_as_of_its_start(shell: Shell) -> None:
    shell.job(id="j1")
    shell("cancel", "j1")
    first = shell.json("retry", "--query", "state:cancelled", "--yes")
    shell("cancel", "j1")
    shell("retry", "--query", "state:cancelled", "--as-of", first["as_of"], "--yes", code=3)
    assert shell.json("job", "j1")["job"]["state"] == "cancelled"


def test_dead_jobs_are_revived_by_query_with_a_rate_and_other_arguments(shell: Shell) -> None:
    for number in range(3):
        shell.job(id=f"j{number}")
        shell("bury", f"j{number}")
    words = ("dead", "revive", "--query", "task:*", "--rate", "1/m", "--args", '{"n": 2}')
    assert len(shell.json(*words, "--dry-run")["would_change"]) == 3
    assert [one["now"] for one in shell.json(*words, "--yes")["changed"]].count("scheduled") == 2
    assert shell.json("job", "j2")["job"]["args"] == {"n": 2}
    shell("dead", "revive", "j1", "--rate", "1/s", code=2)


def test_a_command_to_a_worker_that_does_not_answer_says_so(shell: Shell) -> None:
    shell.worker("w1", None)
    assert "next renewal" in shell("workers", "pause", "w1", "--wait", "0", code=1).stderr
    shell("workers", "slots", "w1", "0", code=2)
    assert shell.error("workers", "stacks", "nobody", code=3)["code"]
