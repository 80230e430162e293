"""Damaged rows: each is shown and listed, or set aside whole; everything else goes on."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.records import ClaimRequest, JobQuery, LetterQuery, NewJob, WorkerRecord

T = TypeVar("T")
VICTIM = "WHERE id = 'victim'"
NESTED = '[{"more":' + "[" * 3000 + "]" * 3000 + "}]"  # deeper than a decoder of Python goes


def run(path: Path, damage: str, work: Callable[[SqliteBackend], Awaitable[T]]) -> T:
    """A store with two good jobs around a victim, and a dead letter; damaged while nobody looks."""

    async def main() -> T:
        backend = SqliteBackend(str(path), synchronous="NORMAL")
        await backend.open()
        await backend.enqueue([NewJob(id=name, task="t") for name in ("good-1", "victim", "good-2", "dying")])
        await backend.bury("dying", "x")
        await backend.close()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(damage)
        connection.close()
        await backend.open()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


async def claimed(backend: SqliteBackend, call: int = 1) -> list[str]:
    await backend.register(WorkerRecord(id="w"))
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
    return [lease.id for lease in (await backend.claim(request)).leases]


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (f"UPDATE holdfast_jobs SET state = 'limbo' {VICTIM}", "state"),
        (f"UPDATE holdfast_jobs SET errors = x'ff' {VICTIM}", "errors"),
        (f"UPDATE holdfast_jobs SET errors = CAST('{NESTED}' AS BLOB) {VICTIM}", "errors"),
        (f"UPDATE holdfast_jobs SET revival = CAST('[5]' AS BLOB) {VICTIM}", "revival"),
        (f"UPDATE holdfast_jobs SET created_at = 1e300 {VICTIM}", "created_at"),
        (f"UPDATE holdfast_jobs SET started_at = 9e999 {VICTIM}", "started_at"),
        (f"UPDATE holdfast_jobs SET task = CAST(x'ff61' AS TEXT) {VICTIM}", "task"),
        (f"UPDATE holdfast_jobs SET progress_text = CAST(x'ff61' AS TEXT) {VICTIM}", "progress_text"),
    ],
)
def test_a_field_that_cannot_be_read_is_shown_as_such_and_hides_nobody(tmp_path: Path, damage: str, field: str) -> None:
    async def look(backend: SqliteBackend) -> None:
        jobs = {job.id: job for job in await backend.find(JobQuery())}
        assert {name: job.unreadable for name, job in jobs.items() if job.unreadable} == {"victim": (field,)}
        assert len(jobs) == 4
        victim = await backend.get("victim")
        assert victim is not None
        assert victim.unreadable == (field,)
        if field == "state":
            assert victim.state is State.DEAD
        assert len((await backend.dump()).tables["jobs"]) == 4
        assert sum(sum(states.values()) for states in (await backend.count()).values()) == 4 - (field == "state")
        found = await backend.flaws()
        assert ("jobs", "victim", field) in [(flaw.place, flaw.id, flaw.field) for flaw in found]
        with pytest.raises(ConfigurationError, match=f"'victim' cannot be read .*{field}"):
            await backend.export("jobs")

    run(tmp_path / "jobs.db", damage, look)


@pytest.mark.parametrize("column", ["id", "task", "key", "grp"])
def test_a_row_with_text_that_is_not_utf8_is_set_aside_whole(tmp_path: Path, column: str) -> None:
    path = tmp_path / "jobs.db"

    async def look(backend: SqliteBackend) -> None:
        assert await claimed(backend) == ["good-1", "good-2"]
        assert [job.id for job in await backend.find(JobQuery())] == ["dying", "good-2", "good-1"]
        [flaw] = await backend.flaws()
        assert (flaw.place, flaw.field) == ("quarantine", column)

    run(path, f"UPDATE holdfast_jobs SET {column} = CAST(x'ff61' AS TEXT) {VICTIM}", look)
    connection = sqlite3.connect(path)
    [(place, record)] = connection.execute("SELECT place, record FROM holdfast_quarantine").fetchall()
    connection.close()
    kept = json.loads(record)
    assert (place, kept[column], kept["args"]) == ("jobs", {"hex": "ff61"}, {"hex": "7b7d"})


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM sqlite_sequence WHERE name = 'holdfast_ticks'",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'holdfast_ticks'",
        "UPDATE sqlite_sequence SET seq = 'weird' WHERE name = 'holdfast_ticks'",
        "UPDATE holdfast_letters SET job_id = CAST(x'ff' AS TEXT), revive_at = 1.0",
        "INSERT INTO holdfast_pauses VALUES ('task', '', CAST(x'ff' AS TEXT), '', '', 0)",
        "UPDATE holdfast_letters SET error = x'ff', history = x'ff'",
        "INSERT INTO holdfast_queues (name, group_limit, group_order, rate) VALUES ('default', 0, 'weird', 'x')",
    ],
)
def test_nothing_else_that_is_damaged_stops_claims(tmp_path: Path, damage: str) -> None:
    async def look(backend: SqliteBackend) -> None:
        assert await backend.flaws(), "it is listed before anybody meets it"
        assert sorted(await claimed(backend)) == ["good-1", "good-2", "victim"]
        assert (await backend.enqueue([NewJob(id="late", task="t")]))[0].created
        assert await claimed(backend, 2) == ["late"]
        await backend.letters(LetterQuery())
        await backend.workers()
        await backend.queues()
        await backend.dump()

    run(tmp_path / "jobs.db", damage, look)


def test_fences_go_on_growing_once_their_counter_is_gone(tmp_path: Path) -> None:
    async def look(backend: SqliteBackend) -> list[int]:
        await claimed(backend)
        return [job.fence for job in await backend.find(JobQuery(states=(State.RUNNING,)))]

    fences = run(tmp_path / "jobs.db", "DELETE FROM sqlite_sequence WHERE name = 'holdfast_ticks'", look)
    assert len(set(fences)) == 3
    assert min(fences) > 1_000_000_000_000_000, "above the clock in microseconds"


def test_a_job_whose_history_cannot_be_read_still_fails_and_dies(tmp_path: Path) -> None:
    async def look(backend: SqliteBackend) -> None:
        await backend.register(WorkerRecord(id="w"))
        leases = (await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=10))).leases
        [lease] = [lease for lease in leases if lease.id == "victim"]
        failure = Failure(reason="failed", text="boom")
        end = Settlement(id=lease.id, token=lease.token, ending=Ending.BURIED, failure=failure, reason="failed")
        assert await backend.settle([end]) == ["ok"]
        victim = await backend.get("victim")
        assert victim is not None
        assert [error.text for error in victim.errors] == ["boom"]

    run(tmp_path / "jobs.db", f"UPDATE holdfast_jobs SET errors = x'ff', revival = x'ff' {VICTIM}", look)


def test_an_index_that_contradicts_its_rows_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def look(backend: SqliteBackend) -> None:
        assert await backend.flaws() == []

    run(path, "SELECT 1", look)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(  # the index is kept for fewer rows than it says
        "UPDATE sqlite_master SET sql = replace(sql, 'WHERE state = ''ready''', 'WHERE state = ''dead''') "
        "WHERE name = 'holdfast_jobs_ready'"
    )
    connection.close()

    async def again() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        places = {flaw.place for flaw in await backend.flaws()}
        await backend.close()
        assert "holdfast_jobs_ready" in places

    asyncio.run(again())


def test_an_index_that_is_gone_is_listed(tmp_path: Path) -> None:
    async def look(backend: SqliteBackend) -> list[tuple[str, str]]:
        return [(flaw.place, flaw.text) for flaw in await backend.flaws()]

    found = run(tmp_path / "jobs.db", "DROP INDEX holdfast_jobs_expires", look)
    assert found == [("holdfast_jobs_expires", "this index is missing")]
