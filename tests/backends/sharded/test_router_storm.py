"""Shards that refuse calls and lose answers at random: every job still runs once, and every counter is exact."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.errors import BackendUnavailable, HoldfastError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Held, JobQuery, Lease, NewJob, QueueRule, Release, WorkerRecord

from .shelves import Moody, Shelf

NOW = 2_000_000_000.0
QUEUES = ("mail", "pdf")
ROUNDS_MAX = 3000


class Storm:
    """Makes every call of every shard a matter of luck."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.strength = 0.25

    def over(self, shard: Moody) -> None:
        plain = shard.store
        for verb in ("exchange", "renew", "register", "enqueue", "settle", "release", "workers", "get"):
            setattr(shard, verb, self._unlucky(verb, getattr(plain, verb)))

    def _unlucky(self, verb: str, real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            luck = self.dice.random()
            if luck < self.strength / 2:
                raise BackendUnavailable(f"{verb}: bad luck. Nothing to do.")
            answer = await real(*args, **kwargs)
            if luck < self.strength:
                raise OutcomeUnknown(verb)
            return answer

        return call


class Worker:
    """As the keeper does it: the same call until it is answered, unheard outcomes again, renewals in between."""

    def __init__(self, router: ShardedBackend, name: str, dice: Random) -> None:
        self.router, self.name, self.dice = router, name, dice
        self.call = self.seen = 0
        self.held: dict[str, Lease] = {}
        self.done: list[Settlement] = []
        self.settled: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    async def step(self) -> None:
        if self.dice.random() < 0.2:
            await self.renew()
        self.call += 1
        most = self.dice.choice((0, 1, 3, 8))
        request = ClaimRequest(worker=self.name, call=self.call, queues=QUEUES, most=most)
        back = [lease for lease in self.held.values() if self._idle(lease) and self.dice.random() < 0.1]
        releases = [Release(id=lease.id, token=lease.token) for lease in back]
        done, self.done = self.done, []
        while True:
            try:
                answer = await self.router.exchange(done, releases, request, now=NOW)
                break
            except HoldfastError:
                continue
        assert answer.known
        assert len(answer.leases) <= most
        self.seen = self.call
        for settlement, word in zip(done, answer.answers, strict=False):
            if word is Answer.UNHEARD:
                self.done.append(settlement)
                continue
            assert word is Answer.OK, f"{settlement.id} of {self.name} was answered {word}"
            self.settled[settlement.id] += 1
            del self.held[settlement.token]
        for lease in back:
            self.held.pop(lease.token)
            self.started[lease.id] -= 1
        for lease in answer.leases:
            assert lease.token not in self.held
            self.held[lease.token] = lease
            self.started[lease.id] += 1
        pending = {settlement.token for settlement in self.done}
        for lease in self.held.values():
            if lease.token not in pending and self.dice.random() < 0.6:
                self.done.append(Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED))

    def _idle(self, lease: Lease) -> bool:
        return all(settlement.token != lease.token for settlement in self.done)

    async def renew(self) -> None:
        named = [Held(lease.id, lease.token) for lease in self.held.values()]
        try:
            answer = await self.router.renew(self.name, named, seen_call=self.seen, now=NOW)
        except HoldfastError:
            return
        pending = {settlement.id for settlement in self.done}  # may be settled already, by a call that was not answered
        assert answer.known and set(answer.lost) <= pending


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_doubled_in_a_storm(seed: int) -> None:
    async def whole() -> None:
        shelf, storm = Shelf(), Storm(seed)
        router = shelf.router()
        await router.declare([QueueRule(name="mail", shards=4), QueueRule(name="pdf", shards=2)], now=NOW)
        jobs = [
            NewJob(id=f"j{n:03}", task="t", queue=QUEUES[n % 2], group=None if n % 3 else f"g{n % 7}", max_stalls=0)
            for n in range(120)
        ]
        workers = [Worker(router, f"w{n}", storm.dice) for n in range(3)]
        for worker in workers:
            record = WorkerRecord(id=worker.name, lease_seconds=1e9, queues=QUEUES)
            await router.register(record, now=NOW)
        for shard in shelf.shards.values():
            storm.over(shard)
        while True:
            try:
                await router.enqueue(jobs, now=NOW)
                break
            except HoldfastError:
                continue
        for round in range(ROUNDS_MAX):
            if round == ROUNDS_MAX // 2:
                storm.strength = 0.0  # the storm is over: what is left must come to its end
            await asyncio.gather(*(worker.step() for worker in workers))
            if sum(sum(worker.settled.values()) for worker in workers) == len(jobs):
                break
        storm.strength = 0.0
        settled = sum((worker.settled for worker in workers), Counter())
        started = sum((worker.started for worker in workers), Counter())
        assert settled == started == Counter(job.id for job in jobs)
        found = await router.find(JobQuery(limit=1000))
        assert {(job.state, job.attempts, job.failures, job.stalls) for job in found} == {(State.SUCCEEDED, 1, 0, 0)}
        assert len(found) == len(jobs)

    asyncio.run(whole())
