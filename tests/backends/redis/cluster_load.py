"""Load on a cluster that goes on through faults: producers and workers who repeat what was not answered.

Used by the cluster's tests. The workers keep the books: who ran what, how often, and what was acknowledged when.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.backends.redis.cluster import ClusterBackend
from holdfast.backends.sharded.places import place_of_job
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, NewJob, QueueRule, WorkerRecord

from ...servers.valkey_cluster import Cluster

PATIENCE_SECONDS = 90.0
CALL_SECONDS = 3.0  # as a keeper gives up a call
SHARDS = 6
QUEUE, PREFIX = "mail", "holdfast"
NAMES = [f"{QUEUE}:{place}" for place in range(SHARDS)]


async def a_moment() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.02)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something that is bound to happen."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                await a_moment()
    except TimeoutError:
        raise AssertionError(f"waited too long for {what}") from None


class Worker:
    """Repeats a call whose fate is unknown, and what was unheard, until it is answered."""

    def __init__(self, backend: ClusterBackend, name: str) -> None:
        self.backend, self.name, self.call = backend, name, 0
        self.ran: list[str] = []
        self.order: dict[str, list[str]] = {}
        self.lost: list[str] = []

    async def exchange(self, done: list[Settlement]) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker=self.name, call=self.call, queues=(QUEUE,), most=8)
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    return await self.backend.exchange(done, [], request)
            except (OutcomeUnknown, BackendError, TimeoutError):
                await a_moment()

    async def run(self, over: Callable[[], bool]) -> None:
        await self.backend.open()
        await self.backend.register(WorkerRecord(id=self.name, lease_seconds=600.0, queues=(QUEUE,)))
        done: list[Settlement] = []
        while done or not over():
            answer = await self.exchange(done)
            assert answer.known
            by_answer = list(zip(done, answer.answers, strict=True))
            self.lost += [one.id for one, word in by_answer if word is Answer.LOST]
            done = [one for one, word in by_answer if word is Answer.UNHEARD]
            self.ran += [lease.id for lease in answer.leases]
            for lease in answer.leases:
                self.order.setdefault(lease.group or "", []).append(lease.id)
            done += [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
            if not answer.leases:
                await a_moment()


class Load:
    """A producer and some workers on one queue of six shards."""

    def __init__(self, cluster: Cluster, *, total: int, workers: int = 3) -> None:
        self.cluster, self.total = cluster, total
        self.producer = self._backend()
        self.workers = [Worker(self._backend(), f"w{n}") for n in range(workers)]
        self.acknowledged: list[str] = []

    def _backend(self) -> ClusterBackend:
        return ClusterBackend(self.cluster.plain_url, prefix=PREFIX, call_timeout=2.0)

    @property
    def ran(self) -> list[str]:
        return [job_id for worker in self.workers for job_id in worker.ran]

    def over(self) -> bool:
        return len(set(self.ran)) >= self.total

    async def produce(self) -> None:
        """One after the other for each shard, so that a shard that is away holds up its own jobs only."""
        lanes: dict[int, list[NewJob]] = {}
        for number in range(self.total):
            group = None if number % 3 == 0 else f"g{number % 17}"
            job = NewJob(id=f"{number:06}", task="t", queue=QUEUE, group=group)
            lanes.setdefault(place_of_job(job, SHARDS), []).append(job)

        async def put(jobs: list[NewJob]) -> None:
            for job in jobs:
                await self.enqueue([job])

        await asyncio.gather(*map(put, lanes.values()))

    async def enqueue(self, jobs: list[NewJob]) -> None:
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await self.producer.enqueue(jobs)
                break
            except (OutcomeUnknown, BackendError, TimeoutError):
                await a_moment()
        self.acknowledged += [job.id for job in jobs]

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """The load runs while what is inside happens, and then to its end."""
        await self.producer.open()
        await self.producer.declare([QueueRule(name=QUEUE, shards=SHARDS)])
        everyone = asyncio.gather(self.produce(), *(worker.run(self.over) for worker in self.workers))
        try:
            yield
            await asyncio.wait_for(everyone, PATIENCE_SECONDS)
        finally:
            everyone.cancel()
            await asyncio.gather(everyone, return_exceptions=True)

    async def judge(self) -> None:
        """Nothing was lost, nothing ran twice, counters are exact, every group ran in its order."""
        assert sorted(self.acknowledged) == sorted(self.ran)
        assert [worker.lost for worker in self.workers] == [[]] * len(self.workers)
        assert (await self.producer.count())[QUEUE] == {State.SUCCEEDED: self.total}
        rows = (await self.producer.dump()).tables["jobs"]
        assert Counter((row["attempts"], row["stalls"]) for row in rows) == {(1, 0): self.total}
        groups: dict[str, list[tuple[int, str]]] = {}
        for row in rows:
            if row["group"] is not None:
                groups.setdefault(row["group"], []).append((row["fence"], row["id"]))
        for members in groups.values():
            ids = [job_id for _, job_id in sorted(members)]
            assert ids == sorted(ids)

    async def close(self) -> None:
        for backend in (self.producer, *(worker.backend for worker in self.workers)):
            await backend.close()
