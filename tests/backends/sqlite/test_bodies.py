"""Large arguments lie beside their job: what changes the job does not write them, and they go where it goes.

That every verb treats them as it treats small ones is shown by walks in tests/conformance/test_stores_walk_alike.py.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.records import ClaimRequest, Edit, JobQuery, Lease, LetterQuery, NewJob, Part, Seal, WorkerRecord

from .test_upgrading import AT, BEFORE_BODIES, JOB, file_of_version

BIG = b'{"text":"' + b"x" * 100_000 + b'"}'
FRAME_BYTES = 4096 + 24


def run(path: Path, work: Callable[[SqliteBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        backend = SqliteBackend(str(path), synchronous="NORMAL")
        await backend.open()
        try:
            await work(backend)
        finally:
            await backend.close()

    asyncio.run(main())


def changed(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def bodies(path: Path) -> int:
    return len(changed(path, "SELECT seq FROM holdfast_bodies"))


async def leased(backend: SqliteBackend, call: int = 1) -> list[Lease]:
    await backend.register(WorkerRecord(id="w"))
    return list((await backend.claim(ClaimRequest(worker="w", call=call, queues=("default",), most=10))).leases)


def test_what_changes_a_job_does_not_write_its_body(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    def frames() -> int:
        return (tmp_path / "jobs.db-wal").stat().st_size // FRAME_BYTES

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id=f"j{number}", task="t", args=BIG) for number in range(10)])
        assert frames() > 10 * len(BIG) // 4096
        before = frames()
        leases = await leased(backend)
        assert [lease.args for lease in leases] == [BIG] * 10
        failure = Failure(reason="failed", text="boom")
        ends = [
            Settlement(id=one.id, token=one.token, ending=Ending.RETRY, failed=True, failure=failure) for one in leases
        ]
        assert await backend.settle(ends) == ["ok"] * 10
        ends = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in await leased(backend, 2)]
        assert await backend.settle(ends) == ["ok"] * 10
        assert frames() - before < 60, "as for small arguments"

    run(path, work)


def test_an_edit_stores_arguments_of_any_size_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id="j", task="t", args=b'{"a":1}')])
        for args, count in ((BIG, 1), (BIG[:-2] + b'y"}', 1), (b"{}", 0), (BIG, 1)):
            assert (await backend.edit("j", Edit(args=args))).args == args
            assert bodies(path) == count
        assert [lease.args for lease in await leased(backend)] == [BIG]

    run(path, work)


def test_a_job_of_the_callers_transaction_is_stored_by_one_statement(tmp_path: Path) -> None:
    """After an error in the second of two statements the caller might commit the first."""
    path = tmp_path / "jobs.db"

    async def work(backend: SqliteBackend) -> None:
        mine, statements = sqlite3.connect(path), list[str]()
        mine.set_trace_callback(statements.append)
        assert backend.enqueue_on(mine, [NewJob(id="j", task="t", args=BIG)])[0].created
        mine.commit()
        mine.close()
        assert len([text for text in statements if "INSERT" in text]) == 1
        assert bodies(path) == 0
        assert [lease.args for lease in await leased(backend)] == [BIG]

    run(path, work)


def test_a_body_goes_with_its_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id=name, task="t", args=BIG) for name in ("deleted", "pruned", "stays")])
        await backend.delete("deleted")
        await backend.cancel("pruned")
        assert bodies(path) == 2
        assert await backend.prune(older_than=0.0, now=AT * 2) == 1
        assert bodies(path) == 1
        job = await backend.get("stays")
        assert job is not None
        assert job.args == BIG

    run(path, work)


def test_large_arguments_are_moved_to_another_file(tmp_path: Path) -> None:
    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id=name, task="t", args=args) for name, args in (("big", BIG), ("small", b"{}"))])
        await backend.bury("big", "x")
        target = SqliteBackend(str(tmp_path / "other.db"))
        await target.open()
        assert await target.seal(Seal(move="move", role="target", other=""), instead_of=None)
        parts: tuple[Part, ...] = ("rules", "jobs", "letters")
        for part in parts:
            await target.carry("move", await backend.export(part))
        assert {job.id: job.args for job in await target.find(JobQuery())} == {"big": BIG, "small": b"{}"}
        assert [letter.args for letter in await target.letters(LetterQuery())] == [BIG]
        await target.close()
        assert bodies(tmp_path / "other.db") == 1

    run(tmp_path / "jobs.db", work)


def test_jobs_of_an_older_version_keep_their_large_arguments(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    values = ("old", "ready", 0, None, None, 0, 1, AT, AT, None, None, None, None)
    file_of_version(path, BEFORE_BODIES, [(JOB.replace("x'7b7d'", f"CAST('{BIG.decode()}' AS BLOB)"), values)])

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id="new", task="t", args=BIG)])
        assert {lease.id: lease.args for lease in await leased(backend)} == {"old": BIG, "new": BIG}
        assert bodies(path) == 1

    asyncio.run(SqliteBackend(str(path)).migrate())
    run(path, work)


def test_a_job_whose_body_is_gone_is_shown_as_such_and_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id=name, task="t", args=BIG) for name in ("victim", "good")])
        changed(path, "DELETE FROM holdfast_bodies WHERE seq = 1")
        assert {job.id: job.unreadable for job in await backend.find(JobQuery())} == {"victim": ("args",), "good": ()}
        assert [(flaw.place, flaw.id, flaw.field) for flaw in await backend.flaws()] == [("jobs", "victim", "args")]
        with pytest.raises(ConfigurationError, match=r"'victim' cannot be read .*args"):
            await backend.export("jobs")
        leases = await leased(backend)
        assert [(lease.id, lease.args) for lease in leases] == [("victim", b""), ("good", BIG)]
        ends = [Settlement(id=one.id, token=one.token, ending=Ending.BURIED, reason="failed") for one in leases]
        assert await backend.settle(ends) == ["ok", "ok"]
        assert sorted(letter.args for letter in await backend.letters(LetterQuery())) == [b"", BIG]

    run(path, work)


def test_a_row_that_is_set_aside_keeps_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def work(backend: SqliteBackend) -> None:
        await backend.enqueue([NewJob(id=name, task="t", args=BIG) for name in ("victim", "good")])
        changed(path, "UPDATE holdfast_jobs SET task = CAST(x'ff61' AS TEXT) WHERE id = 'victim'")
        assert [lease.id for lease in await leased(backend)] == ["good"]
        [(record,)] = changed(path, "SELECT record FROM holdfast_quarantine")
        assert json.loads(str(record))["args"] == {"hex": BIG.hex()}
        assert bodies(path) == 1

    run(path, work)
