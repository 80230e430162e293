"""The next job of a freed group is leased in one write, and it is the one that refill and claim would have chosen."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, Lease, NewJob, Pause, QueueRule, TaskRule, WorkerRecord

from ...servers.postgres import Server, WarmBackend, empty, shared_session

Make = Callable[..., PostgresBackend]
STEPS = 60
# As if nothing could follow, and whatever is said of a task could matter to every call.
NEVER = """
CREATE OR REPLACE FUNCTION {schema}.may_follow(named text, freed {schema}.place[], apart boolean, floors jsonb,
    at double precision) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN false; END';
CREATE OR REPLACE FUNCTION {schema}.follow_one(freed {schema}.place, named text, claimer text, number bigint,
    nonce text, floored boolean, free bigint, at double precision, given double precision) RETURNS {schema}.taken
LANGUAGE plpgsql
AS 'BEGIN RETURN NULL; END';
CREATE OR REPLACE FUNCTION {schema}.tasks_bound(request jsonb, claims boolean) RETURNS boolean
LANGUAGE sql AS 'SELECT true'
"""
# As if what makes a task's rule matter always turned up after the call looked for it: a rival's commit in between.
TOO_SOON = """
CREATE OR REPLACE FUNCTION {schema}.tasks_bound(request jsonb, claims boolean) RETURNS boolean
LANGUAGE sql AS 'SELECT false'
"""
FUNCTIONS = {"never": NEVER, "too_soon": TOO_SOON}
RULES = {
    "no task has a rule": [],
    "a task is apart": [TaskRule(name="u", apart=True)],
    "a task is limited": [TaskRule(name="u", limit=2)],
    "a task has a rate": [TaskRule(name="u", rate=Rate(1, 3.0))],
    "a task that has no jobs": [TaskRule(name="other", limit=1)],
}
# Turns and fences are numbers of one sequence: their order counts, not their distance.
PICTURE = """
SELECT id, state, lane, rank, worker, attempts, held,
       rank() OVER (PARTITION BY state = 'ready', queue, lane ORDER BY turn)
FROM {schema}.jobs ORDER BY id
"""


def picture(schema: str) -> list[Any]:
    return shared_session().execute(PICTURE.format(schema=schema)).fetchall()


@functools.cache
def made(conninfo: str, kind: str) -> str:
    """The schema of a store whose functions are of that kind; one for all tests here, which empty it."""

    async def go() -> None:
        backend = PostgresBackend(conninfo, schema=schema)
        await backend.open()
        await backend.close()

    schema = f"follow_{kind}"
    asyncio.run(go())
    if kind in FUNCTIONS:
        shared_session().execute(FUNCTIONS[kind].format(schema=schema))
    return schema


class Going:
    """The same random way, whichever store it is gone in: only the seed decides."""

    def __init__(self, backend: PostgresBackend, seed: int, rules: list[TaskRule]) -> None:
        self.backend, self.by, self.rules = backend, random.Random(seed), rules
        self.now, self.call, self.number = 1_000.0, 0, 0
        self.leases: list[Lease] = []

    async def open(self) -> None:
        await self.backend.open()
        await self.backend.declare(
            [
                QueueRule(name="one"),
                QueueRule(name="two"),
                QueueRule(name="wide", group_order="relaxed", group_limit=2),
            ],
            self.rules,
            now=self.now,
        )
        await self.backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=self.now)

    async def step(self) -> object:
        self.now += 1.0
        kind = self.by.choices(["enqueue", "exchange", "pause", "resume"], [3, 6, 1, 1])[0]
        if kind == "enqueue":
            return await self.backend.enqueue([self._job() for _ in range(self.by.randint(1, 8))], now=self.now)
        if kind == "exchange":
            return await self._exchange()
        pause = self.by.choice(
            [Pause(task="u"), Pause(queue="one", group="g0"), Pause(queue="two", group="g1"), Pause(queue="two")]
        )
        change = self.backend.pause if kind == "pause" else self.backend.resume
        return await change(pause, now=self.now)

    async def _exchange(self) -> object:
        self.by.shuffle(self.leases)
        number = self.by.randint(0, len(self.leases))
        done, self.leases = self.leases[:number], self.leases[number:]
        self.call += 1
        queues = tuple(self.by.sample(["one", "two", "wide"], self.by.randint(1, 3)))
        most, by_task = self.by.choice([0, 1, 2, 3, 8, 50]), self.by.choice([{}, {}, {"u": 1}, {"u": 0}])
        request = ClaimRequest(worker="w", call=self.call, queues=queues, most=most, most_by_task=by_task)
        settlements = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in done]
        told = await self.backend.exchange(settlements, (), request, now=self.now)
        self.leases += sorted(told.leases, key=lambda lease: lease.id)
        opens = None if told.opens_in is None else round(told.opens_in, 6)
        return told.answers, opens, [(one.id, one.group, one.started_at, one.attempt) for one in told.leases]

    def _job(self) -> NewJob:
        self.number += 1
        return NewJob(
            id=f"{self.number:05}",
            task=self.by.choice(["t", "t", "u"]),
            queue=self.by.choice(["one", "one", "two", "wide"]),
            group=self.by.choice([None, "g0", "g1", "g2", "g3"]),
            priority=self.by.choice([0, 0, 0, 1, -1]),
            expires=self.by.choice([None, None, None, 3.0]),
            delay=self.by.choice([0.0, 0.0, 0.0, 0.0, 2.0]),
        )


def leased_alike(ways: list[Going]) -> None:
    """Each way leads to where the last one does."""

    async def go() -> None:
        for way in ways:
            await way.open()
        for number in range(STEPS):
            answers = [await way.step() for way in ways]
            pictures = [picture(way.backend.schema) for way in ways]
            for way, answer, seen in zip(ways, answers, pictures, strict=True):
                assert answer == answers[-1], f"step {number}, {way.backend.schema}"
                assert seen == pictures[-1], f"step {number}, {way.backend.schema}"
        for way in ways:
            await way.backend.close()

    asyncio.run(go())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rules", RULES)
def test_the_short_way_chooses_the_same_jobs(server: Server, rules: str, seed: int) -> None:
    """Also where a call looked too soon for what makes a task's rule matter."""
    schemas = [made(server.conninfo, kind) for kind in ("plain", "too_soon", "never")]
    for schema in schemas:
        empty(schema)
    leased_alike([Going(WarmBackend(server.conninfo, schema=schema), seed, RULES[rules]) for schema in schemas])


def test_what_there_is_no_room_for_becomes_ready(make: Make, schema: str) -> None:
    backend = make()

    async def exchange(call: int, leases: tuple[Lease, ...], most: int) -> tuple[Lease, ...]:
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        request = ClaimRequest(worker="w", call=call, queues=("default",), most=most)
        return (await backend.exchange(done, (), request)).leases

    async def go() -> None:
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6))
        await backend.enqueue([NewJob(id=f"{n}", task="t", group=f"g{n % 3}") for n in range(9)])
        first = await exchange(1, (), 3)
        assert [one.id for one in first] == ["0", "1", "2"]
        second = await exchange(2, first, 2)
        assert [one.id for one in second] == ["3", "4"]
        states = {row[0]: row[1] for row in picture(schema)}
        assert [states[f"{n}"] for n in range(9)] == ["succeeded"] * 3 + ["running"] * 2 + ["ready"] + ["waiting"] * 3
        third = await exchange(3, second, 3)
        assert [one.id for one in third] == ["5", "6", "7"]
        await backend.close()

    asyncio.run(go())


def test_followers_whose_arguments_do_not_fit_become_ready(make: Make, schema: str) -> None:
    """The one that comes first is taken although it alone is too large; of the others as many as fit, in order."""
    backend = make()

    async def exchange(call: int, leases: tuple[Lease, ...], bytes_max: int) -> tuple[Lease, ...]:
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        request = ClaimRequest(worker="w", call=call, queues=("default",), most=3, bytes_max=bytes_max)
        return (await backend.exchange(done, (), request)).leases

    async def go() -> None:
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6))
        jobs = [NewJob(id=f"{n}", task="t", group=f"g{n % 3}", args=b"x" * 100) for n in range(9)]
        await backend.enqueue(jobs)
        first = await exchange(1, (), 300)
        assert [one.id for one in first] == ["0", "1", "2"]
        second = await exchange(2, first, 299)
        assert [one.id for one in second] == ["3", "4"]
        states = {row[0]: row[1] for row in picture(schema)}
        assert [states[f"{n}"] for n in range(9)] == ["succeeded"] * 3 + ["running"] * 2 + ["ready"] + ["waiting"] * 3
        third = await exchange(3, second, 99)
        assert [(one.id, one.args) for one in third] == [("5", b"x" * 100)]
        fourth = await exchange(4, third, 300)
        assert sorted(one.id for one in fourth) == ["6", "7", "8"]
        await backend.close()

    asyncio.run(go())


def test_the_successor_of_a_locked_job_is_not_taken_instead(server: Server, make: Make, schema: str) -> None:
    backend = make()

    async def exchange(call: int, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        return (
            await backend.exchange(done, (), ClaimRequest(worker="w", call=call, queues=("default",), most=9))
        ).leases

    async def go() -> None:
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6))
        await backend.enqueue([NewJob(id=f"{n}", task="t", group="g") for n in range(4)])
        first = await exchange(1, ())
        with psycopg.connect(server.conninfo) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = '1' FOR UPDATE")
            assert await exchange(2, first) == ()
        await backend.refill()
        assert [one.id for one in await exchange(3, ())] == ["1"]
        await backend.close()

    asyncio.run(go())


@pytest.mark.parametrize("rules", ["no task has a rule", "a task is apart", "a task that has no jobs"])
def test_it_is_written_once(server: Server, make: Make, schema: str, rules: str) -> None:
    """Its index of ready jobs has nothing of it: it never was one. What is said of other tasks does not change that."""
    backend = make()

    async def go() -> None:
        await backend.open()
        await backend.declare([QueueRule(name="default")], RULES[rules])
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6))
        await backend.enqueue([NewJob(id=f"{n}", task="t", group="g") for n in range(3)])
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=1)
        [one] = (await backend.exchange((), (), request)).leases
        done = Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED)
        before = written(server, schema)
        request = ClaimRequest(worker="w", call=2, queues=("default",), most=1)
        [two] = (await backend.exchange([done], (), request)).leases
        assert two.id == "1"
        assert written(server, schema) - before == 2, "the job that ended and the one that follows"
        await backend.close()

    asyncio.run(go())


def test_the_end_of_a_counted_job_is_told_also_by_who_asks_for_other_queues(make: Make) -> None:
    backend = make()
    told: list[str] = []

    async def go() -> None:
        await backend.open()
        await backend.declare([QueueRule(name="one"), QueueRule(name="two")], [TaskRule(name="u", limit=1)])
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6))
        await backend.enqueue([NewJob(id=f"{n}", task="u", queue="two") for n in range(2)])
        request = ClaimRequest(worker="w", call=1, queues=("two",), most=9)
        [one] = (await backend.exchange((), (), request)).leases
        backend._watching().tell = told.extend  # type: ignore[method-assign, assignment]
        done = Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED)
        await backend.exchange([done], (), ClaimRequest(worker="w", call=2, queues=("one",), most=9))
        await backend.close()

    asyncio.run(go())
    assert told == ["two"]


def written(server: Server, schema: str) -> int:
    """How many versions of rows the table of jobs has had, dead ones too: nothing is vacuumed here."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
        row = connection.execute(f"SELECT max((ctid::text::point)[1]) FROM {schema}.jobs").fetchone()
    assert row is not None
    return int(row[0])
