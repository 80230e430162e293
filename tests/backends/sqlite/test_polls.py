"""A poll that needs no claim: the store tells that there is nothing to claim, and is never wrong about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import HoldfastError
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import (
    ClaimRequest,
    NewJob,
    Pause,
    Revival,
    Seal,
    TaskRule,
    WorkerRecord,
)

START = 2_000_000_000.0
QUEUES = ("default", "other")


def run(scene: Callable[[SqliteBackend], Awaitable[None]], path: Path) -> None:
    async def whole() -> None:
        backend = await opened(path)
        await scene(backend)
        await backend.close()

    asyncio.run(whole())


async def opened(path: Path) -> SqliteBackend:
    backend = SqliteBackend(str(path / "jobs.db"))
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e9), now=START)
    return backend


def at(backend: SqliteBackend, now: float = START, worker: str = "w") -> Awaitable[bool]:
    return backend.nothing_to_claim(worker, QUEUES, now=now)


def request(call: int = 1, worker: str = "w") -> ClaimRequest:
    return ClaimRequest(worker=worker, call=call, queues=QUEUES, most=10)


async def nothing(backend: SqliteBackend) -> None: ...


async def a_job_for_later(backend: SqliteBackend) -> None:
    await backend.enqueue([NewJob(id="a", task="t", delay=10.0)], now=START)


async def a_job_of_another_queue(backend: SqliteBackend) -> None:
    await backend.enqueue([NewJob(id="a", task="t", queue="third")], now=START)


async def a_paused_queue(backend: SqliteBackend) -> None:
    await backend.enqueue([NewJob(id="a", task="t")], now=START)
    await backend.pause(Pause(queue="default"), now=START)


async def a_running_job(backend: SqliteBackend) -> None:
    await backend.enqueue([NewJob(id="a", task="t")], now=START)
    await backend.claim(request(), now=START)


@pytest.mark.parametrize("scene", [nothing, a_job_for_later, a_job_of_another_queue, a_paused_queue, a_running_job])
def test_there_is_nothing_to_claim(tmp_path: Path, scene: Callable[[SqliteBackend], Awaitable[None]]) -> None:
    async def whole(backend: SqliteBackend) -> None:
        await scene(backend)
        assert await at(backend)

    run(whole, tmp_path)


async def a_ready_job(backend: SqliteBackend) -> float:
    await backend.enqueue([NewJob(id="a", task="t", queue="other")], now=START)
    return START


async def the_head_of_a_group(backend: SqliteBackend) -> float:
    await backend.enqueue([NewJob(id=name, task="t", group="g") for name in "ab"], now=START)
    return START


async def a_job_in_a_lane_of_its_own(backend: SqliteBackend) -> float:
    await backend.declare([], [TaskRule(name="t", limit=5)], now=START)
    await backend.enqueue([NewJob(id="a", task="t")], now=START)
    return START


async def a_job_that_is_due(backend: SqliteBackend) -> float:
    await backend.enqueue([NewJob(id="a", task="t", delay=10.0, queue="third")], now=START)
    return START + 10.0


async def a_job_that_expired(backend: SqliteBackend) -> float:
    await backend.pause(Pause(queue="third"), now=START)
    await backend.enqueue([NewJob(id="a", task="t", expires=10.0, queue="third")], now=START)
    return START + 10.0


async def a_worker_past_its_deadline(backend: SqliteBackend) -> float:
    await backend.register(WorkerRecord(id="gone", lease_seconds=10.0), now=START)
    return START + 10.0


async def a_queue_that_was_slowed_down(backend: SqliteBackend) -> float:
    await backend.slow_down("default", 10.0, now=START)
    return START + 1.0


async def a_sealed_store(backend: SqliteBackend) -> float:
    await backend.seal(Seal(move="m", role="source", other="x"), instead_of=None)
    return START


async def a_letter_to_be_revived(backend: SqliteBackend) -> float:
    job = NewJob(id="a", task="t", revival=Revival(after=60.0))
    await backend.enqueue([job], now=START)
    [lease] = (await backend.claim(request(), now=START)).leases
    await backend.settle([Settlement(id="a", token=lease.token, ending=Ending.BURIED)], now=START)
    assert await at(backend, START + 1.0)
    return START + 10_000.0


@pytest.mark.parametrize(
    "scene",
    [
        a_ready_job,
        the_head_of_a_group,
        a_job_in_a_lane_of_its_own,
        a_job_that_is_due,
        a_job_that_expired,
        a_worker_past_its_deadline,
        a_queue_that_was_slowed_down,
        a_sealed_store,
        a_letter_to_be_revived,
    ],
)
def test_a_claim_is_needed(tmp_path: Path, scene: Callable[[SqliteBackend], Awaitable[float]]) -> None:
    async def whole(backend: SqliteBackend) -> None:
        assert not await at(backend, await scene(backend))

    run(whole, tmp_path)


def test_an_unknown_worker_must_claim_to_learn_that_it_is(tmp_path: Path) -> None:
    async def whole(backend: SqliteBackend) -> None:
        assert not await at(backend, worker="unknown")

    run(whole, tmp_path)


def test_a_poll_without_a_claim_writes_nothing(tmp_path: Path) -> None:
    async def whole(backend: SqliteBackend) -> None:
        other = await opened(tmp_path)
        assert await at(backend)
        log = tmp_path / "jobs.db-wal"
        before = log.stat().st_size, log.stat().st_mtime_ns
        for _ in range(5):
            assert await at(backend)
        assert (log.stat().st_size, log.stat().st_mtime_ns) == before
        await other.enqueue([NewJob(id="a", task="t")], now=START)
        assert not await at(backend), "what another connection stored is seen, so no snapshot was kept"
        await other.close()

    run(whole, tmp_path)


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    async def whole(backend: SqliteBackend) -> None:
        assert await at(backend)
        os.rename(tmp_path / "jobs.db", tmp_path / "old.db")
        with pytest.raises(HoldfastError):
            await at(backend)
        os.rename(tmp_path / "old.db", tmp_path / "jobs.db")

    run(whole, tmp_path)
