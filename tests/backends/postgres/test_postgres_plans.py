"""What a call reads does not grow with the backlog, even before the server has gathered statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, NewJob, QueueRule, TaskRule, WorkerRecord

from ...servers.postgres import Server
from .counting import flush

Make = Callable[..., PostgresBackend]
BACKLOG = 200_000
ROUNDS, BATCH = 10, 50
_FILL = """
INSERT INTO {schema}.jobs (id, task, queue, state, priority, grp, lane, turn, max_stalls, created_at, due_at, args)
SELECT 'old-' || n, 't', 'default', CASE WHEN n %% 2 = 0 THEN 'ready' ELSE 'waiting' END, 0,
       CASE WHEN n %% 2 = 0 THEN NULL ELSE 'blocked' END, n %% 2, n, 3, 0, 0, ''
FROM generate_series(1, %s) n
"""
_READ = """
SELECT seq_scan, seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'jobs'
"""


def reads(server: Server, schema: str) -> tuple[int, int, int]:
    """Sequential scans and rows read so far, once every session has reported."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        row = connection.execute(_READ, (schema,)).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


LIMITED = [QueueRule(name="default", limit=1000)], [TaskRule(name="t", limit=500), TaskRule(name="u", apart=True)]


@pytest.mark.parametrize("store", ["plain", "limited", "chained"])
def test_a_fresh_backlog_makes_no_call_read_more(make: Make, server: Server, schema: str, store: str) -> None:
    chains: dict[str, Any] = {"chain_by_queue": {"default": 16}, "chained_max": 400} if store == "chained" else {}

    async def run() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        backend = make(call_timeout=60.0, connections=1)
        await backend.open()
        if store == "limited":
            await backend.declare(*LIMITED)
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
            connection.execute(_FILL.format(schema=schema), (BACKLOG,))
            connection.execute(f"UPDATE {schema}.jobs SET lane = 3 WHERE {store == 'limited'} AND state = 'ready'")
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        await flush(backend)  # else the scans that made the indexes may be told later than what is counted here
        before = reads(server, schema)
        done: list[Settlement] = []
        for call in range(1, ROUNDS + 1):
            jobs = [NewJob(id=f"{call}-{n}", task="t", group=f"g{n % 5}" if n % 2 else None) for n in range(BATCH)]
            if store == "chained":  # the group of all the old jobs gets one that is ready, with 100,000 behind it
                jobs.append(NewJob(id=f"{call}-head", task="t", group="blocked"))
            await backend.enqueue(jobs)
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=BATCH, **chains)
            answer = await backend.exchange(done, [], request)
            assert answer.leases
            assert any(one.chained and one.group == "blocked" for one in answer.leases) == (store == "chained")
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
        await backend.promote()
        await backend.recover()
        await backend.close()  # a session that ends tells what it read
        return before, reads_when_told(server, schema, before)

    before, after = asyncio.run(run())
    assert after[0] == before[0], "a call looked through the whole table"
    assert after[2] - before[2] < ROUNDS * BATCH * 60


def test_plans_that_were_made_on_a_small_store_do_for_a_large_one(make: Make, server: Server, schema: str) -> None:
    """A worker's session plans once, and its plans stay. What waits behind other groups is none of its business."""

    async def exchanges(backend: PostgresBackend, first: int, rounds: int) -> None:
        done: list[Settlement] = []
        for call in range(first, first + rounds):
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=BATCH)
            answer = await backend.exchange(done, [], request)
            assert answer.leases
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
        await backend.settle(done)

    async def run() -> int:
        backend = make(call_timeout=60.0, connections=1)
        await backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:  # a table that is altered is planned anew
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        for batch in range(5):
            await backend.enqueue([NewJob(id=f"{batch}-{n}", task="t", group=f"g{n % 100}") for n in range(1000)])
        await exchanges(backend, 1, ROUNDS)
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(_FILL.format(schema=schema), (BACKLOG,))
            connection.execute(f"UPDATE {schema}.jobs SET lane = 2 WHERE state = 'ready' AND starts_with(id, 'old-')")
        before = await counted(backend)
        await exchanges(backend, ROUNDS + 1, ROUNDS)
        read = await counted(backend) - before
        await backend.close()
        return read

    async def counted(backend: PostgresBackend) -> int:
        """Rows read by indexes so far; the session that is looked at tells at once."""
        await flush(backend)
        return reads(server, schema)[2]

    assert asyncio.run(run()) < ROUNDS * BATCH * 60


def reads_when_told(server: Server, schema: str, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """The figures once the ended session's have arrived."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        alive = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast' AND query LIKE %s"
        while connection.execute(alive, (f'%"{schema}"%',)).fetchone():
            pass
    found = reads(server, schema)
    assert found[2] > before[2], "the server counts nothing: is track_counts off?"
    return found
