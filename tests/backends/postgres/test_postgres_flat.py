"""The cost of reading and refilling groups, and of an operator's verb, does not grow with the backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import State
from holdfast.records import READY_PER_GROUP_MAX, NewJob, Override, Pause, QueueRule

from ...servers.postgres import Server
from .counting import counted, flush

Make = Callable[..., PostgresBackend]
_FILL = """
INSERT INTO {schema}.jobs (id, task, queue, state, priority, grp, lane, turn, max_stalls, created_at, due_at, args)
SELECT 'j' || n, 't', 'default', CASE WHEN n <= 20 THEN 'ready' ELSE 'waiting' END, 0,
       CASE WHEN n <= 200 THEN 'g' || n %% 20 ELSE 'huge' END, 1, n, 3, 0, 0, ''
FROM generate_series(1, %s) n
"""
_FILL_SCHEDULED = """
INSERT INTO {schema}.jobs (id, task, queue, state, priority, grp, lane, max_stalls, created_at, due_at, args)
SELECT 's' || n, 't', 'later', 'scheduled', 0, 'huge', 1, 3, 0, 9e9, '' FROM generate_series(1, %s) n
"""
CALLS: dict[str, Callable[[PostgresBackend], Awaitable[object]]] = {
    "groups": lambda backend: backend.groups("default", limit=15),
    "group": lambda backend: backend.group("default", "g1"),
    "group that has most jobs": lambda backend: backend.group("default", "huge"),
    "group whose jobs are all scheduled": lambda backend: backend.group("later", "huge"),
    "refill": lambda backend: backend.refill(limit=15),
    "cancel": lambda backend: backend.cancel("j100"),
    "run_now": lambda backend: backend.run_now("later"),
    "bury": lambda backend: backend.bury("j100", "x"),
    "promote": lambda backend: backend.promote(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_a_backlog_nobody_analysed_reads_what_it_needs(
    make: Make, server: Server, schema: str, call: str
) -> None:
    async def cost(backlog: int) -> int:
        backend = make(connections=1, call_timeout=60.0)
        await backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
        await backend.enqueue([NewJob(id="later", task="t", delay=3600.0, group="g1")])
        await backend.group("default", "g1")
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(_FILL.format(schema=schema), (backlog,))
            connection.execute(_FILL_SCHEDULED.format(schema=schema), (backlog,))
            connection.execute(f"INSERT INTO {schema}.ids SELECT id, seq FROM {schema}.jobs ON CONFLICT DO NOTHING")
            connection.execute("SELECT pg_stat_force_next_flush()")  # include this session's own reads
        before = await counted(server, schema, backend)
        await CALLS[call](backend)
        after = await counted(server, schema, backend)
        await backend.close()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
        return after.read - before.read

    small, large = asyncio.run(cost(1_500)), asyncio.run(cost(20_000))
    assert large <= 1.3 * small + 50


def test_groups_of_every_kind_are_listed_with_counts_and_head(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.declare([QueueRule(name="default", group_limit=2, group_order="relaxed")])
        await backend.enqueue([NewJob(id=f"a{n}", task="t", group="a") for n in range(4)])
        await backend.enqueue([NewJob(id="b0", task="t", group="b", delay=60.0)])
        await backend.enqueue([NewJob(id="z", task="t", group="z", queue="other")])
        await backend.limit(Override(queue="default", group="c", limit=5))
        await backend.pause(Pause(queue="default", group="d"))
        found = [(group.queue, group.name, dict(group.counts), group.head) for group in await backend.groups()]
        assert found == [
            ("default", "a", {State.WAITING: 2, State.READY: 2}, "a0"),
            ("default", "b", {State.SCHEDULED: 1}, "b0"),
            ("default", "c", {}, None),
            ("default", "d", {}, None),
            ("other", "z", {State.READY: 1}, "z"),
        ]
        assert [group.name for group in await backend.groups("default", limit=2)] == ["a", "b"]
        assert [group.name for group in await backend.groups("other")] == ["z"]
        await backend.close()

    asyncio.run(run())


def test_a_group_with_many_due_jobs_is_refilled_a_step_at_a_time(make: Make, server: Server, schema: str) -> None:
    """As after a caller's transaction that enqueued a thousand jobs of one group. Those that are due join the waiting
    ones, a bounded number at a time, so that the right one comes first."""

    async def run() -> int:
        backend = make(connections=1, call_timeout=60.0)
        await backend.open()
        await backend.enqueue([NewJob(id=f"{n}", task="t", group="g", due_at=5.0) for n in range(1000)], now=1.0)
        before = await counted(server, schema, backend)
        assert (await backend.promote(limit=10)).due == 10
        after = await counted(server, schema, backend)
        await backend.close()
        return after.updated - before.updated

    assert asyncio.run(run()) <= READY_PER_GROUP_MAX + 12


_FLOWS = """
INSERT INTO {schema}.flows (kind, queue, name, spent_until, shut_until)
SELECT 'group', 'q', 'g' || n, %s, 0 FROM generate_series(1, %s) n
"""
_FLOWS_READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'flows'"


def test_a_prune_looks_at_a_bounded_part_of_the_rate_state_and_removes_it_all_in_time(
    make: Make, server: Server, schema: str
) -> None:
    async def run() -> None:
        backend = make(connections=1, call_timeout=60.0)
        await backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:

            def number(text: str, *values: object) -> int:
                row = connection.execute(text, values).fetchone()
                assert row is not None
                return int(row[0])

            connection.execute(f"ALTER TABLE {schema}.flows SET (autovacuum_enabled = off)")
            connection.execute(_FLOWS.format(schema=schema), (1.0, 60_000))
            connection.execute("SELECT pg_stat_force_next_flush()")
            before = number(_FLOWS_READ, schema)
            await backend.prune()
            await flush(backend)
            left = number(f"SELECT count(*) FROM {schema}.flows")
            assert 60_000 - 10_000 <= left < 60_000
            assert number(_FLOWS_READ, schema) - before <= 40_000 + 60_000  # 60,000 by the count here
            for _ in range(1000):
                await backend.prune()
                if not number(f"SELECT count(*) FROM {schema}.flows"):
                    break
            else:
                raise AssertionError("some are never removed")
        await backend.close()

    asyncio.run(run())


def test_pruning_what_is_older_reads_what_it_removes(make: Make, server: Server, schema: str) -> None:
    fill = f"""
        INSERT INTO {schema}.jobs (id, task, queue, state, priority, lane, max_stalls, created_at, due_at, finished_at,
                                   prune_at, args)
        SELECT 'j' || n, 't', 'default', 'succeeded', 0, 0, 3, 0, 0, CASE WHEN n <= 500 THEN 1000 ELSE 1e6 END,
               CASE WHEN n <= 500 THEN 2e6 ELSE 3e6 END, ''
        FROM generate_series(%s, 1, -1) n"""

    async def cost(jobs: int) -> int:
        backend = make(connections=1, call_timeout=60.0)
        await backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
            connection.execute(fill, (jobs,))
            connection.execute("SELECT pg_stat_force_next_flush()")
        before = await counted(server, schema, backend)
        assert await backend.prune(limit=100, older_than=600.0, now=1e6) == 100
        after = await counted(server, schema, backend)
        await backend.close()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
        return after.read - before.read

    small, large = asyncio.run(cost(1_000)), asyncio.run(cost(10_000))
    assert large <= 1.3 * small + 50
