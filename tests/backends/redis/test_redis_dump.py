"""A dump of a large store is read in pages, each one bounded; its audit raises no alarm about work that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from holdfast.backends.redis import dump as dumping
from holdfast.backends.redis import read
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.connection import Connections
from holdfast.inspection.audit import audit, judge
from holdfast.lifecycle import Ending, Settlement
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, Dump, Lease, LetterQuery, NewJob, Override, QueueRule, Report, WorkerRecord

Make = Callable[..., RedisBackend]
NOW = 2_000_000_000.0
KIB = 1024


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "PAGE", 5)
    monkeypatch.setattr(dumping, "LETTERS_PAGE", 2)
    monkeypatch.setattr(dumping, "BYTES_MAX", 1500)


class Worker:
    """Ends what it holds, in all ways, and takes the next jobs."""

    def __init__(self, backend: RedisBackend) -> None:
        self.backend, self._call = backend, 0
        self.held: tuple[Lease, ...] = ()

    async def step(self, most: int = 6) -> None:
        self._call += 1
        endings = (Ending.SUCCEEDED, Ending.BURIED, Ending.RETRY, Ending.SUCCEEDED)
        ends = [
            Settlement(id=one.id, token=one.token, ending=endings[n % 4], reason="failed", delay=5.0, value=b"[1]")
            for n, one in enumerate(self.held)
        ]
        request = ClaimRequest(worker="w", call=self._call, queues=("rated", "default"), most=most)
        exchanged = await self.backend.exchange(ends, (), request, now=NOW + 10 * self._call)
        self.held = exchanged.leases


async def filled(backend: RedisBackend, jobs: int = 400) -> Worker:
    """Grouped and keyed jobs in all states, with values, log lines, letters and rates of groups."""
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e9), now=NOW)
    rated = QueueRule(name="rated", group_order="relaxed", group_limit=2, group_rate=Rate(1, 60.0))
    await backend.declare([rated], now=NOW)
    await backend.limit(Override(queue="default", group="g1", limit=1), now=NOW)
    new = [
        NewJob(
            id=f"{n:04d}",
            task="t",
            queue="rated" if n % 3 == 0 else "default",
            group=f"g{n % 7}",
            key=f"k{n}" if n % 2 else None,
            delay=1000.0 if n % 50 == 0 else None,
        )
        for n in range(jobs)
    ]
    await backend.enqueue(new, now=NOW)
    worker = Worker(backend)
    for _ in range(6):
        await worker.step()
    held = worker.held
    await backend.report([Report(id=one.id, token=one.token, lines=("a line",)) for one in held], now=NOW)
    return worker


def test_a_store_read_in_pages_is_dumped_as_one_that_is_read_at_once(
    make: Make, request: pytest.FixtureRequest
) -> None:
    async def run() -> None:
        backend = make()
        await filled(backend)
        at_once = await backend.dump()
        request.getfixturevalue("small_pages")
        assert await backend.dump() == at_once
        assert [name for name in ("letters", "workers", "flows", "overrides", "logs") if not at_once.tables[name]] == []
        await backend.close()

    asyncio.run(run())


def sized(reply: Any) -> int:
    return sum(map(sized, reply)) if isinstance(reply, list) else len(reply) if isinstance(reply, bytes) else 0


def test_no_call_of_a_dump_grows_with_the_store(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    called = Connections.call

    async def call(self: Connections, verb: str, *args: Any, **how: Any) -> Any:
        reply = await called(self, verb, *args, **how)
        if verb.startswith("dump"):
            sizes.append(sized(reply))
        return reply

    monkeypatch.setattr(Connections, "call", call)

    async def largest(backend: RedisBackend, jobs: int) -> tuple[int, int]:
        sizes.clear()
        new = [NewJob(id=f"{jobs}-{n}", task="t", args=bytes(100 * KIB)) for n in range(jobs)]
        for start in range(0, jobs, 10):
            await backend.enqueue(new[start : start + 10], now=NOW)
        assert len((await backend.dump()).tables["jobs"]) >= jobs
        return max(sizes), len(sizes)

    async def run() -> None:
        backend = make()
        await backend.open()
        few, many = await largest(backend, 30), await largest(backend, 90)
        assert max(few[0], many[0]) < dumping.BYTES_MAX + 110 * KIB
        assert few[1] < many[1]
        await backend.close()

    asyncio.run(run())


def test_no_call_for_letters_grows_with_their_arguments(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    called = Connections.call

    async def call(self: Connections, *args: Any, **how: Any) -> Any:
        reply = await called(self, *args, **how)
        sizes.append(sized(reply))
        return reply

    async def run() -> None:
        backend = make()
        await backend.open()
        ids = [f"{n:02d}" for n in range(30)]
        for n, job_id in enumerate(ids):
            await backend.enqueue([NewJob(id=job_id, task="t", args=bytes(100 * KIB))], now=NOW)
            await backend.bury(job_id, "failed", now=NOW + n // 2)
        monkeypatch.setattr(Connections, "call", call)
        for limit in (1, 4, 25, 1000):
            wanted = sorted(ids, key=lambda one: (-(int(one) // 2), one))[:limit]
            assert [one.id for one in await backend.letters(LetterQuery(limit=limit))] == wanted
        assert max(sizes) < read.BYTES_MAX + 110 * KIB
        await backend.close()

    asyncio.run(run())


def between_pages(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """Have work done before every call of a dump."""
    called = Connections.call

    async def call(self: Connections, verb: str, *args: Any, **how: Any) -> Any:
        if verb.startswith("dump"):
            await work()
        return await called(self, verb, *args, **how)

    monkeypatch.setattr(Connections, "call", call)


def alarms(dump: Dump) -> Sequence[object]:
    return judge(dump).violations


@pytest.mark.usefixtures("small_pages")
def test_an_audit_beside_a_busy_worker_raises_no_alarm(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        backend, beside = make(), make()
        await beside.open()
        worker = await filled(backend)
        worker.backend = beside
        between_pages(monkeypatch, worker.step)
        dump = await backend.dump()
        assert dump.moving
        assert alarms(replace(dump, moving=())), "the pages contradict each other: nothing is shown here otherwise"
        assert alarms(dump) == []
        assert judge(dump).checked["rows in motion"] == len(dump.moving)
        assert (await audit(backend)).violations == []
        monkeypatch.undo()
        quiet = await audit(backend)
        assert (quiet.violations, "rows in motion" in quiet.checked) == ([], False)
        for store in (backend, beside):
            await store.close()

    asyncio.run(run())


@pytest.mark.usefixtures("small_pages")
def test_an_audit_beside_a_busy_worker_reports_what_is_wrong_elsewhere(
    make: Make, prefix: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        backend, beside = make(), make()
        await beside.open()
        worker = await filled(backend)
        worker.backend = beside
        await backend.register(WorkerRecord(id="lost", lease_seconds=1e9), now=NOW)
        await backend.enqueue([NewJob(id="alone", task="t", queue="other")], now=NOW)
        await backend.claim(ClaimRequest(worker="lost", call=1, queues=("other",), most=1), now=NOW)
        client.hdel(f"{{{prefix}}}:workers", "lost")
        between_pages(monkeypatch, worker.step)
        dump = await backend.dump()
        assert [found.job_id for found in judge(dump).violations] == ["alone"]
        for store in (backend, beside):
            await store.close()

    asyncio.run(run())


@pytest.mark.usefixtures("small_pages")
def test_jobs_that_come_and_go_between_two_pages_are_in_motion(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        backend, beside = make(), make()
        await beside.open()
        await filled(backend)
        steps = iter(range(10**6))

        async def come_and_go() -> None:
            step = next(steps)
            await beside.enqueue([NewJob(id=f"new{step}", task="t", queue="other", group="new")], now=NOW)
            if step == 40:  # in the midst of the first pass
                await beside.prune(older_than=0.0, now=NOW + 1e7)

        before = {row["id"] for row in (await backend.dump()).tables["jobs"]}
        between_pages(monkeypatch, come_and_go)
        dump = await backend.dump()
        monkeypatch.undo()
        after = {row["id"] for row in (await backend.dump()).tables["jobs"]}
        moving, there = {row["id"] for row in dump.moving}, {row["id"] for row in dump.tables["jobs"]}
        assert before - after and before & after <= there <= after, "some were pruned, none has stayed in the dump"
        assert moving & (before - after) and moving & (after - before)
        assert alarms(dump) == []
        for store in (backend, beside):
            await store.close()

    asyncio.run(run())
