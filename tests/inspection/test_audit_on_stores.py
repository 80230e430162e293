"""The audit finds nothing in real stores, whatever they went through, and finds what is spoiled behind their back."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers.valkey import empty, shared_server

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.errors import ConfigurationError, DuplicateJob, JobNotFound, StateConflict
from holdfast.inspection import audit, prunable
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.rates import NO_RATE, UNLIMITED, Rate
from holdfast.records import (
    ClaimRequest,
    CronEntry,
    Held,
    JobQuery,
    Lease,
    NewJob,
    Override,
    Pause,
    QueueRule,
    Release,
    TaskRule,
    Tick,
    WorkerRecord,
)

VERBS = {  # and how often each is taken
    "enqueue": 2,
    "claim": 3,
    "settle": 3,
    "operate": 2,
    **dict.fromkeys(("discard", "limit", "pause", "promote", "prune", "recover", "release", "renew", "rule"), 1),
    **dict.fromkeys(("slow_down", "task_rule", "tick"), 1),
}
RATES = (Rate(2, 10.0), Rate(1, 30.0, 3))
EXPECTED = (StateConflict, JobNotFound, DuplicateJob, ConfigurationError)


# The store in memory has its verbs from SQLite's, statement for statement (docs/decisions/0021).
@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.repeat), "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        server = shared_server()
        empty(server, "audit")
        return server.url("audit")
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'walk.db'}"


class Walk:
    """A random walk of all verbs on one store, on a clock of its own."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend = backend
        self.random = random.Random(seed)
        self.now = 1_700_000_000.0
        self.calls = 0
        self.number = 0
        self.worker = "w0"
        self.leases: list[Lease] = []

    async def step(self) -> str:
        self.now += self.random.choice([0.01, 0.5, 2.0, 20.0])
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        try:
            await getattr(self, verb)()
        except EXPECTED as error:
            return f"{verb}: {type(error).__name__}"
        return verb

    async def register(self) -> None:
        self.worker = f"w{self.random.randrange(10_000)}"
        self.calls, self.leases = 0, []
        record = WorkerRecord(id=self.worker, lease_seconds=30.0, queues=("a", "b"), slots=8)
        await self.backend.register(record, now=self.now)

    async def enqueue(self) -> None:
        self.number += 1
        job = NewJob(
            id=f"j{self.number:05}",
            task=self.random.choice(["t", "u"]),
            queue=self.random.choice(["a", "b"]),
            priority=self.random.choice([0, 0, 0, 5]),
            group=self.random.choice([None, "g", "h"]),
            key=self.random.choice([None, None, "k", "l"]),
            on_conflict=self.random.choice(["keep", "replace", "raise", "debounce"]),
            key_scope=self.random.choice(["queue", "queue", "global"]),
            key_until=self.random.choice(["finished", "finished", "started"]),
            key_window=self.random.choice([None, None, 30.0]),
            on_expire=self.random.choice(["bury", "drop"]),
            delay=self.random.choice([None, None, 5.0]),
            expires=self.random.choice([None, None, 40.0]),
            max_stalls=self.random.choice([0, 1, 3]),
        )
        await self.backend.enqueue([job], now=self.now)

    async def claim(self) -> None:
        self.calls += 1
        request = ClaimRequest(worker=self.worker, call=self.calls, queues=("a", "b"), most=2)
        answer = await self.backend.claim(request, now=self.now)
        if not answer.known:
            await self.register()
        self.leases += answer.leases

    async def settle(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            ending = self.random.choice([*Ending, Ending.SUCCEEDED, Ending.SUCCEEDED])
            failed = ending in (Ending.RETRY, Ending.BURIED)
            failure = Failure(reason="failed", type="ValueError", text="no") if failed else None
            reason = "failed" if ending is Ending.BURIED else None
            settlement = Settlement(
                id=lease.id, token=lease.token, ending=ending, failed=failed, delay=3.0, failure=failure, reason=reason
            )
            await self.backend.settle([settlement], now=self.now)

    async def release(self) -> None:
        if self.leases:
            lease = self.leases.pop()
            await self.backend.release([Release(id=lease.id, token=lease.token, delay=0.0)], now=self.now)

    async def operate(self) -> None:
        found = await self.backend.find(JobQuery(limit=50))
        if found:
            job = self.random.choice(found)
            verb: Callable[..., Any] = self.random.choice(
                [self.backend.cancel, self.backend.run_now, self.backend.revive, self.backend.retry]
            )
            if self.random.random() < 0.2:
                await self.backend.bury(job.id, "away", now=self.now)
            else:
                await verb(job.id, now=self.now)

    async def discard(self) -> None:
        found = await self.backend.find(JobQuery(limit=50))
        if found:
            await self.backend.discard(self.random.choice(found).id, now=self.now)

    async def recover(self) -> None:
        await self.backend.recover(dead=[self.worker] if self.random.random() < 0.3 else [], now=self.now)

    async def renew(self) -> None:
        held = [Held(lease.id, lease.token) for lease in self.leases]
        await self.backend.renew(self.worker, held, seen_call=self.calls, now=self.now)

    async def promote(self) -> None:
        await self.backend.promote(now=self.now)

    async def pause(self) -> None:
        pause = self.random.choice([Pause(queue="a"), Pause(queue="b", group="g"), Pause(task="u", reason="why")])
        call = self.backend.pause if self.random.random() < 0.4 else self.backend.resume
        await call(pause, now=self.now)

    async def limit(self) -> None:
        said = self.random.choice(
            [
                Override(queue="b", group="g", limit=self.random.choice([None, 1, 2, 3])),
                Override(queue="b", group="h", rate=self.random.choice([None, NO_RATE, *RATES])),
                Override(queue="a", limit=self.random.choice([None, 1, UNLIMITED])),
                Override(queue="a", rate=self.random.choice([None, NO_RATE, *RATES])),
                Override(task="u", limit=self.random.choice([None, 1, UNLIMITED])),
                Override(task="u", rate=self.random.choice([None, NO_RATE, *RATES])),
            ]
        )
        await self.backend.limit(said, now=self.now)

    async def task_rule(self) -> None:
        rule = TaskRule(
            name=self.random.choice(["t", "u"]),
            limit=self.random.choice([None, 2]),
            rate=self.random.choice([None, *RATES]),
            apart=self.random.choice([True, False]),
        )
        await self.backend.declare([], [rule], now=self.now)

    async def slow_down(self) -> None:
        await self.backend.slow_down("a", self.random.choice([1.0, 30.0]), now=self.now)

    async def tick(self) -> None:
        version = next((entry.version for entry in await self.backend.entries()), 0)
        self.number += 1
        job = NewJob(id=f"j{self.number:05}", task="t", queue="a", key="k", key_window=20.0)
        entry = self.random.choice([CronEntry(name="nightly"), CronEntry(name="nightly"), None])
        await self.backend.tick(Tick(name="nightly", version=version, entry=entry, jobs=(job,)), now=self.now)

    async def rule(self) -> None:
        rule = QueueRule(
            name="b",
            group_limit=3,
            group_order="relaxed",
            group_rate=self.random.choice([None, *RATES]),
            limit=self.random.choice([None, 2]),
            aging=self.random.choice([None, 5.0]),
        )
        await self.backend.declare([rule], now=self.now)

    async def prune(self) -> None:
        await self.backend.prune(now=self.now)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_walk_of_all_verbs_never_breaks_a_rule(url: str, seed: int) -> None:
    async def walk() -> None:
        backend = open_backend(url)
        await backend.open()
        try:
            wanderer = Walk(backend, seed)
            await wanderer.rule()
            await wanderer.register()
            for number in range(250):
                did = await wanderer.step()
                found = (await audit(backend)).violations
                assert found == [], f"step {number} ({did})"
        finally:
            await backend.close()

    asyncio.run(walk())


def test_prunable_counts_what_prune_removes(url: str) -> None:
    async def scene() -> tuple[int, int, int]:
        backend = open_backend(url)
        await backend.open()
        try:
            await backend.enqueue([NewJob(id=f"j{number}", task="t") for number in range(4)], now=1000.0)
            for number in range(3):
                await backend.cancel(f"j{number}", now=1000.0)
            return await prunable(backend), await prunable(backend, 3600.0), await backend.prune()
        finally:
            await backend.close()

    assert asyncio.run(scene()) == (3, 3, 3)


def test_a_store_spoiled_behind_its_back_is_found(tmp_path: Path) -> None:
    path = tmp_path / "spoiled.db"

    async def fill(backend: Backend) -> None:
        await backend.enqueue([NewJob(id=f"j{number}", task="t", group="g") for number in range(3)])

    async def with_backend(work: Callable[[Backend], Any]) -> Any:
        backend = open_backend(f"sqlite:///{path}")
        await backend.open()
        try:
            return await work(backend)
        finally:
            await backend.close()

    asyncio.run(with_backend(fill))
    assert asyncio.run(with_backend(audit)).violations == []
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE holdfast_jobs SET state = 'waiting' WHERE state = 'ready'")
    connection.close()
    [violation] = asyncio.run(with_backend(audit)).violations
    assert violation.rule == "no_group_is_wedged"
    assert violation.group == "g"
