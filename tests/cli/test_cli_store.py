"""Commands about the store as a whole, and stores that cannot be reached."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.cli.shells import Shell

READING = [
    ["jobs"],
    ["job", "x"],
    ["explain", "x"],
    ["queues"],
    ["groups"],
    ["group", "q", "g"],
    ["workers"],
    ["stats"],
    ["audit"],
    ["recover"],
    ["prune"],
    ["dead", "ls"],
    ["dead", "show", "x"],
    ["dead", "revive", "x"],
    ["cancel", "x"],
    ["retry", "x"],
    ["run-now", "x"],
    ["bury", "x"],
    ["pause", "-q", "q"],
    ["resume", "-q", "q"],
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_store_that_is_not_there_is_said_and_not_made(empty: Shell, words: list[str]) -> None:
    error = empty.error(*words, code=4)
    assert error["code"] == "store_unreachable"
    assert "does not exist" in error["message"]
    assert not (empty.directory / "jobs.db").exists()


def test_migrate_makes_a_store_and_may_be_repeated(empty: Shell) -> None:
    first = empty.json("migrate")
    assert first["before"] == 0
    assert first["after"] >= 1
    assert "the schema is current" in empty("migrate").stdout


def test_audit_says_what_holds_and_what_does_not(shell: Shell) -> None:
    shell.job(id="j1", queue="mail", group="ann")
    assert shell("audit").stdout.startswith("ok: checked 1 job, 1 group, 0 letters")
    assert shell.json("audit")["violations"] == []
    connection = sqlite3.connect(shell.directory / "jobs.db")
    with connection:
        connection.execute("UPDATE holdfast_jobs SET state = 'waiting'")
    connection.close()
    document = shell.json("audit", code=1)
    assert document["holds"] is False
    assert document["violations"][0]["rule"] == "no_group_is_wedged"
    assert "no_group_is_wedged" in shell("audit", code=1).stdout


def test_recover_with_nothing_to_do(shell: Shell) -> None:
    assert shell.json("recover")["recovered"] == []
    assert "nothing to recover." in shell("recover").stderr


def test_prune_keeps_what_is_promised(shell: Shell) -> None:
    shell.job(id="j1")
    shell("cancel", "j1")
    assert shell.json("prune", "--dry-run")["would_prune"] == 0
    assert shell.json("prune")["pruned"] == 0
    assert "at least 10m" in shell.error("prune", "--older-than", "5m", "--yes", code=2)["message"]
    assert "no terminal to confirm" in shell.error("prune", "--older-than", "7d", code=2)["message"]
    assert shell.json("prune", "--older-than", "7d", "--yes")["pruned"] == 0


def test_prune_removes_what_is_old(shell: Shell) -> None:
    shell.job(id="j1")
    shell("cancel", "j1")
    connection = sqlite3.connect(shell.directory / "jobs.db")
    with connection:
        connection.execute("UPDATE holdfast_jobs SET finished_at = 1000, prune_at = 2000")
    connection.close()
    assert shell.json("prune", "--dry-run", "--older-than", "7d")["would_prune"] == 1
    assert shell.json("prune")["pruned"] == 1


def test_a_newer_schema_is_its_own_exit_code(shell: Shell) -> None:
    connection = sqlite3.connect(shell.directory / "jobs.db")
    with connection:
        connection.execute("UPDATE holdfast_schema SET version = 999")
    connection.close()
    assert shell.error("jobs", code=5)["code"] == "schema"


def test_a_file_that_is_not_a_store_is_reported_without_a_traceback(empty: Shell, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("these are not the bytes you are looking for, by any means" * 50)
    result = empty("jobs", code=2)
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("url", "code"), [("nonsense", 2), ("ftp://x", 2), ("memory://", 2), ("sqlite:////nosuch/dir/x.db", 4)]
)
def test_wrong_urls(empty: Shell, url: str, code: int) -> None:
    empty.error("jobs", "--url", url, code=code)


def test_a_password_in_the_url_is_never_shown(empty: Shell) -> None:
    result = empty("jobs", "--url", "redis://user:hush@host/jobs", code=2)
    assert "hush" not in result.output


def test_url_goes_before_the_apps_own_before_the_environment(
    empty: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'from-environment.db'}")
    empty("enqueue", "send", "to=ann", *empty.app)
    assert (tmp_path / "jobs.db").exists()
    empty("enqueue", "send", "to=ann", *empty.app, "--url", f"sqlite:///{tmp_path / 'said.db'}")
    assert (tmp_path / "said.db").exists()
    empty("enqueue", "send", "to=ann")
    assert (tmp_path / "from-environment.db").exists()
