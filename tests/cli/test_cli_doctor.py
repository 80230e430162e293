"""`holdfast doctor`: one table of what is fine and what is not, an exit code that says so, and nothing changed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.clock import SystemClock
from holdfast.inspection import machine
from holdfast.records import Seal, WorkerRecord


def findings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["about"]: one for one in document["findings"]}


def serve(shell: Shell, *queues: str) -> None:
    """Let a worker that isolates serve these queues."""

    async def play() -> None:
        backend = open_backend(shell.url)
        await backend.open()
        await backend.register(WorkerRecord(id="w1", queues=queues, slots=10, isolates=True))
        await backend.close()

    asyncio.run(play())


def test_a_store_that_is_served_is_well(shell: Shell) -> None:
    serve(shell, "mail", "default")
    shell.job(queue="mail")
    document = shell.json("doctor", *shell.app)
    assert document["well"] is True
    assert document["wrong"] == document["note"] == 0
    assert document["fine"] == len(document["findings"])
    found = findings(document)
    assert {"python", "packages", "killing", "store", "schema", "clock", "durability", "seal"} <= set(found)
    assert {"app", "workers", "queues", "tasks", "unknown"} <= set(found)
    assert found["schema"]["facts"]["version"] >= 1
    assert abs(found["clock"]["facts"]["difference_seconds"]) < 5
    assert found["app"]["facts"]["tasks"] == ["fail", "send"]


def test_the_table_shows_verdict_finding_and_next_step(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.job(queue="video")
    lines = shell("doctor", code=1).stdout.splitlines()
    assert lines[0].split() == ["verdict", "about", "finding"]
    text = "\n".join(lines)
    assert "queues with due jobs but no live worker: video (1)." in text
    assert "> Start a worker that serves them" in text
    monkeypatch.delenv("COLUMNS")  # piped: one line each, for grep
    piped = shell("doctor", code=1).stdout.splitlines()
    assert piped[0].split() == ["verdict", "about", "finding", "next"]
    (line,) = [line for line in piped if line.startswith("wrong")]
    assert "video (1)" in line and "holdfast work" in line
    assert "1 wrong." in shell("doctor", code=1).stderr


def test_jobs_of_tasks_the_app_does_not_have_are_wrong(shell: Shell) -> None:
    serve(shell, "mail", "default")
    shell.job("vanished", queue="mail")
    assert findings(shell.json("doctor"))["queues"]["verdict"] == "fine"
    found = findings(shell.json("doctor", *shell.app, code=1))
    assert found["unknown"]["verdict"] == "wrong"
    assert found["unknown"]["facts"]["unknown"] == {"vanished": 1}


def test_an_app_that_cannot_be_imported_hides_nothing_else(shell: Shell) -> None:
    (shell.directory / "broken_shop.py").write_text("raise RuntimeError('no licence')\n")
    words = ["--app", "broken_shop:app", "--app-dir", str(shell.directory)]
    found = findings(shell.json("doctor", *words, code=1))
    assert "no licence" in found["app"]["text"]
    assert (found["store"]["verdict"], found["python"]["verdict"]) == ("wrong", "fine")
    found = findings(shell.json("doctor", *words, "--url", shell.url, code=1))
    assert (found["app"]["verdict"], found["store"]["verdict"]) == ("wrong", "fine")


def test_modules_the_app_names_are_imported_too(shell: Shell) -> None:
    path = shell.directory / f"{shell.module}_more.py"
    path.write_text(f"from holdfast import Holdfast\napp = Holdfast({shell.url!r}, imports=['no_such_module_here'])\n")
    found = findings(shell.json("doctor", "--app", f"{path.stem}:app", "--app-dir", str(shell.directory), code=1))
    assert "no_such_module_here" in found["app"]["text"]
    assert found["store"]["verdict"] == "fine"


def test_a_store_that_is_not_there_is_said_and_not_made(empty: Shell) -> None:
    document = empty.json("doctor", code=4)
    assert "does not exist" in findings(document)["store"]["text"]
    assert findings(document)["python"]["verdict"] == "fine"
    assert not (empty.directory / "jobs.db").exists()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/none"])
def test_a_server_that_cannot_be_reached_is_exit_code_4(empty: Shell, url: str) -> None:
    found = findings(empty.json("doctor", "--url", url, code=4))
    assert "cannot be reached" in found["store"]["text"]


@pytest.mark.parametrize("url", ["nonsense://x", "sqlite:///jobs.db?colour=red"])
def test_a_url_that_makes_no_sense_is_a_finding(empty: Shell, url: str) -> None:
    document = empty.json("doctor", "--url", url, code=1)
    assert document["store"] is None
    assert findings(document)["store"]["verdict"] == "wrong"


def test_a_password_is_never_shown(empty: Shell) -> None:
    words = ["doctor", "--url", "redis://ann:secret@127.0.0.1:1/0"]
    assert "secret" not in empty(*words, code=4).output
    assert "secret" not in empty(*words, "--json", code=4).output


def test_a_store_in_memory_has_nothing_to_look_at(empty: Shell) -> None:
    found = findings(empty.json("doctor", "--url", "memory://"))
    assert found["store"]["verdict"] == "note"


def test_a_newer_schema_and_a_file_of_another_kind_are_wrong(shell: Shell, tmp_path: Path) -> None:
    connection = sqlite3.connect(shell.directory / "jobs.db")
    with connection:
        connection.execute("UPDATE holdfast_schema SET version = 999")
    connection.close()
    assert "999" in findings(shell.json("doctor", code=1))["store"]["text"]
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    with connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    found = findings(shell.json("doctor", "--url", f"sqlite:///{other}", code=1))
    assert "theirs" in found["store"]["text"]


def test_settings_of_the_url_and_of_the_file_are_seen(shell: Shell) -> None:
    found = findings(shell.json("doctor", "--url", f"{shell.url}?synchronous=NORMAL"))
    assert found["durability"]["verdict"] == "note"
    connection = sqlite3.connect(shell.directory / "jobs.db")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    assert findings(shell.json("doctor", code=1))["durability"]["facts"]["journal_mode"] == "delete"


def test_a_sealed_store_is_wrong(shell: Shell) -> None:
    async def seal() -> None:
        backend = open_backend(shell.url)
        await backend.open()
        assert await backend.seal(Seal(move="m", role="source", other="redis://h"), instead_of=None)
        await backend.close()

    asyncio.run(seal())
    assert findings(shell.json("doctor", code=1))["seal"]["verdict"] == "wrong"


def test_a_clock_that_is_off_and_a_machine_that_lacks_something_are_wrong(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "wall", lambda self: time.time() + 3600)
        clock = findings(shell.json("doctor", code=1))["clock"]
        assert clock["verdict"] == "wrong"
        assert 3590 < clock["facts"]["difference_seconds"] < 3610
    monkeypatch.setattr(machine, "_settable", lambda get, put: False)
    assert findings(shell.json("doctor", code=1))["killing"]["verdict"] == "wrong"


def test_looking_changes_nothing(shell: Shell) -> None:
    shell.job(queue="mail")
    with Holdfast(shell.url) as app:
        before = app._dump()
    shell("doctor", *shell.app, code=1)
    with Holdfast(shell.url) as app:
        assert app._dump() == before
