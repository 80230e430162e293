"""A changed rule with concurrent callers: it applies once it is stored, however many jobs are still to be moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.records import ClaimRequest, NewJob, Pause, QueueRule, TaskRule, WorkerRecord

from ...servers.postgres import Server
from .counting import counted

Make = Callable[..., PostgresBackend]
PAUSE = Pause(task="work")
_FILL = """
INSERT INTO {schema}.jobs (id, task, queue, state, priority, lane, turn, max_stalls, created_at, due_at, args)
SELECT 'j' || n, 'work', 'default', 'ready', 0, 0, n, 3, 0, 0, '' FROM generate_series(1, %s) n
"""


async def claim(backend: PostgresBackend, worker: str, call: int, *, most: int = 3) -> list[tuple[str, str | None]]:
    request = ClaimRequest(worker=worker, call=call, queues=("default",), most=most, sweep_max=3)
    return [(lease.task, lease.group) for lease in (await backend.claim(request)).leases]


async def claim_all(backend: PostgresBackend, worker: str, rounds: int = 60) -> list[tuple[str, str | None]]:
    await backend.register(WorkerRecord(id=worker, lease_seconds=600.0))
    return [one for call in range(1, rounds + 1) for one in await claim(backend, worker, call)]


async def rearrange_all(backend: PostgresBackend) -> None:
    while await backend.rearrange(limit=7):
        pass


async def opened(make: Make, number: int) -> list[PostgresBackend]:
    backends = [make(call_timeout=60.0) for _ in range(number)]
    for backend in backends:
        await backend.open()
        backend.rule_step_max = 5
    return backends


def test_claims_and_passes_at_once_lease_nothing_that_is_paused(make: Make) -> None:
    async def run() -> None:
        backends = await opened(make, 4)
        jobs = [NewJob(id=f"{n}", task="fine" if n % 4 == 0 else "work") for n in range(200)]
        await backends[0].enqueue(jobs)
        await backends[0].pause(PAUSE)
        passes = asyncio.create_task(rearrange_all(backends[0]))
        found = await asyncio.gather(*(claim_all(backend, f"w{n}") for n, backend in enumerate(backends[1:])))
        await passes
        assert Counter(task for part in found for task, _ in part) == {"fine": 50}
        assert {job["lane"] for job in (await backends[0].dump()).tables["jobs"] if job["task"] == "work"} == {2}
        for backend in backends:
            await backend.close()

    asyncio.run(run())


def test_claims_and_passes_at_once_keep_to_a_lower_group_limit(make: Make) -> None:
    async def run() -> None:
        backends = await opened(make, 4)
        await backends[0].declare([QueueRule(name="default", group_limit=3, group_order="relaxed")])
        await backends[0].enqueue([NewJob(id=f"{n}", task="t", group=f"g{n % 30}") for n in range(120)])
        await backends[0].declare([QueueRule(name="default", group_limit=1, group_order="relaxed")])
        passes = asyncio.create_task(rearrange_all(backends[0]))
        found = await asyncio.gather(*(claim_all(backend, f"w{n}") for n, backend in enumerate(backends[1:])))
        await passes
        groups = Counter(group for part in found for _, group in part)
        assert set(groups.values()) == {1}
        assert len(groups) == 30
        for backend in backends:
            await backend.close()

    asyncio.run(run())


def test_two_rules_declared_at_once_leave_one_of_them_in_force(make: Make) -> None:
    async def run() -> None:
        backends = await opened(make, 3)
        await backends[0].enqueue([NewJob(id=f"{n}", task="work", group=f"g{n % 20}") for n in range(60)])
        rules = [QueueRule(name="default", group_limit=n, group_order="relaxed") for n in (2, 3)]
        tasks = [TaskRule(name="work", limit=9), TaskRule(name="work")]
        await asyncio.gather(
            *(one.declare([rule], [task]) for one, rule, task in zip(backends[1:], rules, tasks, strict=True))
        )
        await asyncio.gather(*map(rearrange_all, backends))
        [queue], tables = await backends[0].queues(), (await backends[0].dump()).tables
        ready = Counter(job["group"] for job in tables["jobs"] if job["state"] == "ready")
        assert set(ready.values()) == {queue.group_limit}
        lanes = {job["lane"] for job in tables["jobs"] if job["state"] == "ready"}
        assert lanes == ({3} if tables["tasks"] else {1})
        for backend in backends:
            await backend.close()

    asyncio.run(run())


def test_a_job_locked_by_another_session_is_moved_in_a_later_round(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    async def run() -> None:
        [backend] = await opened(make, 1)
        await backend.enqueue([NewJob(id=f"{n}", task="work") for n in range(9)])
        session.execute(f"SELECT 1 FROM \"{schema}\".jobs WHERE id = '3' FOR UPDATE")
        await backend.pause(PAUSE)
        for _ in range(5):
            assert await backend.rearrange(limit=7), "one job is still to be moved"
        session.rollback()
        await rearrange_all(backend)
        assert {job["lane"] for job in (await backend.dump()).tables["jobs"]} == {2}
        await backend.close()

    asyncio.run(run())


def test_a_lane_is_given_to_no_other_task_while_jobs_are_left_in_it(make: Make) -> None:
    async def run() -> None:
        [backend] = await opened(make, 1)
        await backend.declare([], [TaskRule(name="work", apart=True)])
        await backend.enqueue([NewJob(id=f"{n}", task="work") for n in range(20)])
        await backend.declare([], [TaskRule(name="work"), TaskRule(name="other", limit=100)])
        await backend.enqueue([NewJob(id="other", task="other")])
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=30, sweep_max=1, most_by_task={"other": 0})
        assert {lease.task for lease in (await backend.claim(request)).leases} == {"work"}
        await rearrange_all(backend)
        lanes = {job["task"]: job["lane"] for job in (await backend.dump()).tables["jobs"] if job["state"] == "ready"}
        assert lanes == {"work": 0, "other": 3}
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("what", ["pause", "limit", "claim", "rearrange"])
def test_what_a_step_costs_does_not_grow_with_the_backlog(make: Make, server: Server, schema: str, what: str) -> None:
    async def cost(backlog: int) -> tuple[int, int]:
        backend = make(connections=1, call_timeout=60.0)
        await backend.open()
        backend.rule_step_max = 100
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
            connection.execute(_FILL.format(schema=schema), (backlog,))
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        if what in ("claim", "rearrange"):
            await backend.pause(PAUSE)
        before = await counted(server, schema, backend)
        if what == "pause":
            await backend.pause(PAUSE)
        elif what == "limit":
            await backend.declare([], [TaskRule(name="work", limit=3)])
        elif what == "claim":
            await claim(backend, "w", 1)
        else:
            assert await backend.rearrange(limit=100)
        after = await counted(server, schema, backend)
        await backend.close()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
        return after.read - before.read, after.updated - before.updated

    small, large = asyncio.run(cost(1_000)), asyncio.run(cost(20_000))
    assert large[0] <= 1.3 * small[0] + 50
    assert large[1] <= small[1] <= 110
