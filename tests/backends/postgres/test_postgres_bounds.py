"""What one call does is bounded: what a claim fetches, what a pass reads, also with concurrent callers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib import resources
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import read
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.records import ClaimRequest, NewJob, Revival, WorkerRecord

from ...servers.postgres import Server
from .counting import counted

Make = Callable[..., PostgresBackend]
CHUNK = 1996  # bytes of a value that is stored outside its row, in one piece
_FILL_DUE = """
INSERT INTO {schema}.jobs (id, task, queue, state, priority, grp, lane, max_stalls, created_at, due_at, args)
SELECT 'due-' || n, 't', 'default', 'scheduled', 0, 'g' || n, 1, 3, 0, n * 1e-6, '' FROM generate_series(1, %s) n
"""


def request(worker: str = "w", *, call: int = 1, most: int = 10, **more: Any) -> ClaimRequest:
    return ClaimRequest(worker=worker, call=call, queues=("default",), most=most, **more)


def test_a_claim_fetches_only_the_arguments_that_it_hands_out(make: Make, server: Server, schema: str) -> None:
    size, number = 200_000, 12

    async def run() -> tuple[int, int]:
        backend = make(connections=1)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        for n in range(number):
            await backend.enqueue([NewJob(id=f"{n}", task="t", args=os.urandom(size))])
        before = await counted(server, schema, backend)
        answer = await backend.claim(request(most=number, bytes_max=2 * size))
        after = await counted(server, schema, backend)
        await backend.close()
        assert [len(lease.args) for lease in answer.leases] == [size, size]
        return after.chunks - before.chunks, 2 * (size // CHUNK + 1)

    fetched, needed = asyncio.run(run())
    assert fetched <= needed


@pytest.mark.parametrize("size", [0, 1, 5000], ids=["empty", "small", "stored apart"])
def test_arguments_arrive_as_they_were_sent(make: Make, size: int) -> None:
    """By the cursor first, and prepared after some calls; a repeat returns the same."""

    async def run() -> None:
        backend = make(connections=1)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        for call in range(1, 9):
            sent = [os.urandom(size) for _ in range(3)]
            await backend.enqueue([NewJob(id=f"{call}-{n}", task="t", args=args) for n, args in enumerate(sent)])
            answer = await backend.claim(request(call=call))
            assert [lease.args for lease in answer.leases] == sent
            again = await backend.claim(request(call=call))
            assert [lease.args for lease in again.leases] == sent
        await backend.close()

    asyncio.run(run())


def test_promoting_together_nobody_reads_more_than_alone(make: Make, server: Server, schema: str) -> None:
    async def run() -> tuple[list[float], float]:
        backends = [make(connections=1, call_timeout=60.0) for _ in range(4)]
        for backend in backends:
            await backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(_FILL_DUE.format(schema=schema), (20_000,))
            connection.execute(f"INSERT INTO {schema}.ids SELECT id, seq FROM {schema}.jobs")
            connection.execute("SELECT pg_stat_force_next_flush()")  # include this session's own reads
        read = [(await counted(server, schema, *backends)).entries]
        for _ in range(2):  # before and after the others: what was promoted leaves entries that are read past
            for _ in range(4):
                assert (await backends[0].promote(limit=100)).due == 100
            read.append((await counted(server, schema, *backends)).entries)
            if len(read) == 2:
                done = await asyncio.gather(*(backend.promote(limit=100) for backend in backends))
                assert [one.due for one in done] == [100] * 4
                read.append((await counted(server, schema, *backends)).entries)
        for backend in backends:
            await backend.close()
        first, together, last = ((after - before) / 4 for before, after in pairwise(read))
        return [first, last], together

    alone, together = asyncio.run(run())
    assert together < 1.3 * max(alone) + 100


def test_a_claim_beside_one_that_promotes_goes_on_without(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run() -> None:
        backend = make(connections=1)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        await backend.enqueue([NewJob(id="due", task="t", due_at=1.0), NewJob(id="ready", task="t")], now=0.5)
        await backend.enqueue([NewJob(id="ready", task="t")])
        session.execute(
            "SELECT pg_advisory_xact_lock(hashtext('holdfast.promote'), 0)".replace("holdfast.", f'"{schema}".')
        )
        answer = await backend.claim(request())
        assert [lease.id for lease in answer.leases] == ["ready"]
        session.rollback()
        answer = await backend.claim(request(call=2))
        assert [lease.id for lease in answer.leases] == ["due"]
        await backend.close()

    asyncio.run(run())


def test_revivals_take_no_step_of_their_own_each(make: Make, server: Server, schema: str) -> None:
    """A sub-transaction a revival made 200 of them, in one claim, take seconds."""

    async def run() -> int:
        backend = make(connections=1)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        await backend.enqueue([NewJob(id=f"{n}", task="t", revival=Revival(after=1.0, cycles=3)) for n in range(200)])
        for n in range(200):
            await backend.bury(f"{n}", "x", now=1000.0)

        async def transactions(cursor: psycopg.AsyncCursor) -> int:
            await cursor.execute("SELECT txid_current()")
            return int((await cursor.fetchone() or (0,))[0])

        before = await backend._call("look", transactions)
        assert len((await backend.claim(request(most=200))).leases) == 200
        used = await backend._call("look", transactions) - before
        await backend.close()
        return used

    assert asyncio.run(run()) < 20


@pytest.mark.parametrize("files", [["0001_initial.sql"], ["0001_initial.sql", "0002_bounds.sql"]])
def test_an_older_store_is_brought_up_keeps_its_jobs_and_no_old_function(
    make: Make, server: Server, schema: str, files: list[str]
) -> None:
    folder = resources.files("holdfast.backends.postgres") / "migrations"
    version = len(files)

    async def run() -> None:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{schema}"')
            for file in files:
                text = folder.joinpath(file).read_text("utf-8").replace("holdfast.", f'"{schema}".')
                connection.execute(text)
            connection.execute(
                f'CREATE FUNCTION "{schema}".exchange(a jsonb, b jsonb, c jsonb, d jsonb, e text, f boolean, '
                "g double precision) RETURNS json LANGUAGE sql AS 'SELECT NULL::json'"
            )
            connection.execute(f'INSERT INTO "{schema}".schema_version (version) VALUES ({version})')
            connection.execute(
                f'INSERT INTO "{schema}".jobs (id, task, queue, state, priority, lane, turn, max_stalls, created_at, '
                "due_at, args) VALUES ('old', 't', 'default', 'ready', 0, 0, 1, 3, 0, 0, '[1]')"
            )
            connection.execute(f'INSERT INTO "{schema}".ids SELECT id, seq FROM "{schema}".jobs')
        backend = make()
        assert (await backend.migrate())[0] == version
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        assert [(lease.id, lease.args) for lease in (await backend.claim(request())).leases] == [("old", b"[1]")]
        await backend.close()
        with psycopg.connect(server.conninfo) as connection:
            named = connection.execute(
                "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
                "WHERE n.nspname = %s AND p.proname = 'exchange'",
                (schema,),
            ).fetchone()
        assert named == (1,)

    asyncio.run(run())


def test_a_dump_is_read_in_pages_that_are_bounded_in_bytes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    size, number, pages = 100_000, 12, dict[str, list[int]]()
    rows = read.rows

    async def watched(cursor: read.Cursor, text: str, values: Any = None) -> list[tuple[Any, ...]]:
        found = await rows(cursor, text, values)
        if values is not None and "bytes_max" in values:
            pages.setdefault(text, []).append(len(found))
        return found

    async def run() -> None:
        backend = make()
        await backend.open()
        for n in range(number):
            await backend.enqueue([NewJob(id=f"{n:02}", task="t", args=os.urandom(size))])
            if n % 2:
                await backend.bury(f"{n:02}", "x")
        monkeypatch.setattr(read, "rows", watched)
        monkeypatch.setattr(read, "DUMP_PAGE_BYTES_MAX", 2 * size)
        dump = await backend.dump()
        await backend.close()
        assert [one["id"] for one in dump.tables["jobs"]] == [f"{n:02}" for n in range(number)]
        assert [one["id"] for one in dump.tables["letters"]] == [f"{n:02}" for n in range(1, number, 2)]

    asyncio.run(run())
    assert sorted(pages.values()) == [[3, 3, 0], [3, 3, 3, 3, 0]]
