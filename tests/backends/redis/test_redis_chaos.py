"""Many processes on few groups, and a server that is killed under load: never one too many, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Literal

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, Lease, NewJob, QueueRule, WorkerRecord
from holdfast.testing.conformance.soundness import sound
from tests.servers.valkey import raw

from ...servers.valkey import Server
from . import claimer
from .pair import end_quiet

Make = Callable[..., RedisBackend]
PATIENCE_SECONDS = 90.0

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(("limit", "processes", "total"), [(1, 4, 600), (2, 8, 2000)])
def test_many_processes_never_exceed_a_groups_limit(
    make: Make, server: Server, client: redis.Redis, prefix: str, limit: int, processes: int, total: int
) -> None:
    async def fill() -> None:
        backend = make()
        await backend.open()
        order: Literal["strict", "relaxed"] = "strict" if limit == 1 else "relaxed"
        await backend.declare([QueueRule(name="default", group_limit=limit, group_order=order)])
        groups = [None if n % 4 == 0 else f"g{n % 7}" for n in range(total)]
        await backend.enqueue([NewJob(id=f"{n:05d}", task="t", group=group) for n, group in enumerate(groups)])
        await backend.close()

    async def states() -> list[tuple[str, int]]:
        backend = make()
        await backend.open()
        await sound(backend, "after all claimed")
        jobs = (await backend.dump()).tables["jobs"]
        await backend.close()
        return [(job["state"], job["attempts"]) for job in jobs]

    asyncio.run(fill())
    command = [sys.executable, claimer.__file__, server.plain_url, prefix]
    started = [subprocess.Popen([*command, f"w{n}", str(total)]) for n in range(processes)]
    assert [process.wait(PATIENCE_SECONDS) for process in started] == [0] * processes
    events = [raw(line).decode().split() for line in client.lrange(f"{prefix}:ledger", 0, -1)]
    client.delete(f"{prefix}:ledger", f"{prefix}:begun")
    assert Counter(asyncio.run(states())) == {("succeeded", 1): total}
    assert sorted(job for job, _, step in events if step == "1") == [f"{n:05d}" for n in range(total)]
    running: Counter[str] = Counter()
    began: dict[str, list[str]] = {}
    for job, group, step in events:
        if group != "-":
            running[group] += int(step)
            assert running[group] <= limit, f"group {group} had {running[group]} at once, limit {limit}"
            if step == "1":
                began.setdefault(group, []).append(job)
    if limit == 1:
        assert all(jobs == sorted(jobs) for jobs in began.values())


async def a_moment() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)


class Persistent:
    """A worker that repeats a call whose fate is unknown, and one that could not be made, until it is answered."""

    def __init__(self, backend: RedisBackend, name: str) -> None:
        self.backend, self.name, self.call = backend, name, 0
        self.ran: list[str] = []

    async def exchange(self, done: list[Settlement]) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker=self.name, call=self.call, queues=("default",), most=5)
        while True:
            try:
                return await self.backend.exchange(done, [], request)
            except (OutcomeUnknown, BackendError):
                await a_moment()

    async def run(self, over: Callable[[], bool]) -> None:
        done: list[Settlement] = []
        while done or not over():
            answer = await self.exchange(done)
            assert answer.known
            assert set(answer.answers) <= {Answer.OK}
            leases: tuple[Lease, ...] = answer.leases
            self.ran += [lease.id for lease in leases]
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]


async def enqueue_for_sure(backend: RedisBackend, jobs: list[NewJob]) -> None:
    while True:
        try:
            await backend.enqueue(jobs)
            return
        except (OutcomeUnknown, BackendError):
            await a_moment()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_server_killed_and_started_again_under_load_loses_and_doubles_nothing(
    cautious: Server, trusted: bool
) -> None:
    """It writes to disk before it answers. One that does so every second may put off a write while the disk is busy,
    and a kill takes it along. `trusted`: nobody need be quiet after its restarts."""
    server = cautious
    batches, size = 60, 20

    async def produce(backend: RedisBackend, acknowledged: list[str]) -> None:
        for number in range(batches):
            groups = [None, "g", "h"]
            jobs = [NewJob(id=f"{number:03d}-{n:02d}", task="t", group=groups[n % 3]) for n in range(size)]
            await enqueue_for_sure(backend, jobs)
            acknowledged += [job.id for job in jobs]

    async def run() -> None:
        backends = [RedisBackend(server.plain_url, call_timeout=3.0, trust_restarts=trusted) for _ in range(4)]
        for backend in backends:
            await backend.open()
        workers = [Persistent(backend, f"w{n}") for n, backend in enumerate(backends[1:])]
        for worker in workers:
            await worker.backend.register(WorkerRecord(id=worker.name, lease_seconds=600.0))
        acknowledged: list[str] = []

        def over() -> bool:
            return len({job for worker in workers for job in worker.ran}) >= batches * size

        everyone = asyncio.gather(produce(backends[0], acknowledged), *(worker.run(over) for worker in workers))
        for fraction in (0.2, 0.5, 0.8):
            while len(acknowledged) < fraction * batches * size:
                await asyncio.wait({everyone}, timeout=0.01)
            await asyncio.to_thread(server.end, signal.SIGKILL)
            await asyncio.to_thread(server.start)
            if not trusted:
                await asyncio.to_thread(end_quiet, server)
        await asyncio.wait_for(everyone, PATIENCE_SECONDS)
        assert sorted(acknowledged) == sorted(job for worker in workers for job in worker.ran)
        assert (await backends[0].count())["default"] == {State.SUCCEEDED: batches * size}
        assert {row["attempts"] for row in (await backends[0].dump()).tables["jobs"]} == {1}
        await sound(backends[0], "after three crashes")
        for backend in backends:
            await backend.close()

    asyncio.run(run())
