"""Eight connections at once, by the server's clock: no limit and no rate is exceeded, and a tick is fired by one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.rates import UNLIMITED, Rate
from holdfast.records import (
    Answer,
    ClaimRequest,
    CronEntry,
    Lease,
    NewJob,
    Override,
    QueueRule,
    TaskRule,
    Tick,
    WorkerRecord,
)

Make = Callable[..., PostgresBackend]
RIVALS = 8
PATIENCE_SECONDS = 120.0
QUEUES = ("a", "b")


async def together(make: Make, part: Callable[[PostgresBackend, int], Awaitable[None]]) -> None:
    """The part eight times at once, each with a connection of its own."""
    backends = [make(connections=1, call_timeout=PATIENCE_SECONDS) for _ in range(RIVALS)]
    try:
        for backend in backends:
            await backend.open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(part(backend, number) for number, backend in enumerate(backends)))
    finally:
        for backend in backends:
            await backend.close()


class Scene:
    """Workers that claim, run nothing and settle until all jobs are done; they themselves see what runs."""

    def __init__(self, make: Make, jobs: Sequence[NewJob]) -> None:
        self._make, self._jobs = make, jobs
        self._running: Counter[tuple[str, str]] = Counter()
        self.most: Counter[tuple[str, str]] = Counter()
        self.done = 0

    async def run(self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule]) -> None:
        backend = self._make()
        await backend.open()
        await backend.declare(rules, tasks)
        await backend.enqueue(self._jobs)
        await together(self._make, self._work)
        await backend.close()

    async def _work(self, backend: PostgresBackend, number: int) -> None:
        await backend.register(WorkerRecord(id=f"w{number}", lease_seconds=600.0))
        call, settled = 0, list[Settlement]()
        while self.done < len(self._jobs) or settled:
            call += 1
            queues = QUEUES if (call + number) % 2 else QUEUES[::-1]
            request = ClaimRequest(worker=f"w{number}", call=call, queues=queues, most=4)
            answer = await backend.exchange(settled, [], request)
            assert set(answer.answers) <= {Answer.OK}
            self._begin(answer.leases)
            await asyncio.sleep(0)
            self._end(answer.leases)
            settled = [Settlement(id=x.id, token=x.token, ending=Ending.SUCCEEDED) for x in answer.leases]
            if not answer.leases and self.done < len(self._jobs):
                await backend.wait_for_work(QUEUES, 0.05)

    def _begin(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            for scope in (("queue", lease.queue), ("task", lease.task)):
                self._running[scope] += 1
                self.most[scope] = max(self.most[scope], self._running[scope])

    def _end(self, leases: Sequence[Lease]) -> None:
        self.done += len(leases)
        for lease in leases:
            self._running.subtract((("queue", lease.queue), ("task", lease.task)))


def jobs(number: int, task: str = "t") -> list[NewJob]:
    return [NewJob(id=f"{task}{n}", task=task, queue=QUEUES[n % 2]) for n in range(number)]


def starts(session: psycopg.Connection, schema: str, where: str) -> list[float]:
    found = session.execute(f"SELECT started_at FROM {schema}.jobs WHERE {where} ORDER BY started_at").fetchall()
    return [row[0] for row in found]


def most_in_any_window(times: Sequence[float], seconds: float) -> int:
    return max(sum(start <= other < start + seconds for other in times) for start in times)


def test_a_queues_limit_holds_over_eight_connections(make: Make) -> None:
    scene = Scene(make, jobs(300))
    asyncio.run(scene.run([QueueRule(name="a", limit=3)], []))
    assert scene.most["queue", "a"] <= 3
    assert scene.most["queue", "b"] > 3, "where there is no limit, more ran at once"


def test_a_tasks_limit_holds_over_two_queues(make: Make) -> None:
    scene = Scene(make, [*jobs(200), *jobs(200, "free")])
    asyncio.run(scene.run([QueueRule(name="b", limit=2)], [TaskRule(name="t", limit=3)]))
    assert scene.most["task", "t"] <= 3
    assert scene.most["queue", "b"] <= 2


@pytest.mark.parametrize("kind", ["queue", "task", "group"])
def test_no_window_sees_more_starts_than_a_rate_says(
    make: Make, session: psycopg.Connection, schema: str, kind: str
) -> None:
    rate = Rate(30, 0.5)
    waiting = [NewJob(id=f"t{n}", task="t", queue="a", group="g" if kind == "group" else None) for n in range(100)]
    rule = QueueRule(
        name="a",
        rate=rate if kind == "queue" else None,
        group_rate=rate if kind == "group" else None,
        group_limit=UNLIMITED if kind == "group" else 1,
        group_order="relaxed" if kind == "group" else "strict",
    )
    scene = Scene(make, waiting)
    asyncio.run(scene.run([rule], [TaskRule(name="t", rate=rate)] if kind == "task" else []))
    times = starts(session, schema, "queue = 'a'")
    assert len(times) == 100
    assert most_in_any_window(times, rate.seconds) <= rate.count


def test_a_tick_is_fired_by_one_of_eight(make: Make, session: psycopg.Connection, schema: str) -> None:
    ticks = 40
    done: Counter[int] = Counter()

    async def fire(backend: PostgresBackend, number: int) -> None:
        version = 0
        while version < ticks:
            entry = CronEntry(name="e", fired=version + 1)
            job = NewJob(id=f"tick-{version}-by-{number}", task="t", key=f"{version}", group=f"g{version % 3}")
            answer = await backend.tick(Tick(name="e", version=version, entry=entry, jobs=(job,)))
            assert answer.entry is not None
            done[version] += answer.done
            version = answer.entry.version

    asyncio.run(together(make, fire))
    assert done == dict.fromkeys(range(ticks), 1)
    found = session.execute(f"SELECT key, count(*) FROM {schema}.jobs GROUP BY key").fetchall()
    assert dict(found) == {f"{version}": 1 for version in range(ticks)}


_COUNTED = """
SELECT count(*) FROM {schema}.jobs j WHERE j.state = 'running' AND j.limited <> (
    EXISTS (SELECT 1 FROM {schema}.bounds b WHERE b.kind = 'queue' AND b.name = j.queue AND b.job_limit IS NOT NULL)
    OR EXISTS (SELECT 1 FROM {schema}.bounds b WHERE b.kind = 'task' AND b.name = j.task AND b.job_limit IS NOT NULL))
"""


def test_what_a_limit_counts_is_what_runs_however_limits_change(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    """A mark on a running job and a small table stand for the rules, and may never say something else than they."""
    dice = Random(7)
    wrong: list[int] = []

    async def change(backend: PostgresBackend) -> None:
        queue, task = dice.choice(QUEUES), dice.choice(("t", "u"))
        limit = dice.choice([None, 1, 5, UNLIMITED])
        step = dice.randrange(4)
        if step == 0:
            await backend.declare([QueueRule(name=queue, limit=limit)])
        elif step == 1:
            await backend.declare([], [TaskRule(name=task, limit=limit, apart=dice.random() < 0.3)])
        elif step == 2:
            await backend.limit(Override(queue=queue, limit=limit))
        else:
            await backend.limit(Override(task=task, limit=limit))

    async def part(backend: PostgresBackend, number: int) -> None:
        await backend.register(WorkerRecord(id=f"w{number}", lease_seconds=600.0))
        held: list[Lease] = []
        for call in range(1, 40):
            if number < 2:
                await change(backend)
            settled = [Settlement(id=x.id, token=x.token, ending=Ending.SUCCEEDED) for x in held[:2]]
            request = ClaimRequest(worker=f"w{number}", call=call, queues=QUEUES, most=2)
            held = held[2:] + list((await backend.exchange(settled, [], request)).leases)
            if number == 0:
                row = session.execute(_COUNTED.format(schema=schema)).fetchone()
                session.rollback()
                wrong.append(0 if row is None else row[0])

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([*jobs(400), *jobs(400, "u")])
        await backend.close()
        await together(make, part)

    asyncio.run(run())
    assert set(wrong) == {0}
