"""A part of the store that is silent: its jobs are put off or given up in time, all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.backends.sharded.shelves import Shelf
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp, soon

from holdfast.lifecycle import State

LEASE = 1.2  # seconds; renewed every 0.2, fenced after 0.96


class Parts:
    """An app on a store of two queues, each a part of its own that can fall silent."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.app = WorkerApp(self.shelf.router)

    def silence(self, queue: str, mood: str) -> None:
        self.shelf.shards[f"{queue}:0"].mood = mood


@pytest.fixture
def parts() -> Parts:
    return Parts()


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not true():
            await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=0.01)


async def test_an_outcome_is_sent_again_until_its_part_of_the_store_accepts_it(parts: Parts) -> None:
    app = parts.app
    ran: list[str] = []

    @app.task(name="left", queue="left")
    async def left() -> None:
        ran.append("left")
        parts.silence("left", "mute")

    @app.task(name="right", queue="right")
    async def right() -> None:
        ran.append("right")
        if ran.count("right") == 3:
            parts.silence("left", "well")

    [first, *others] = await app.put(left.bind(), right.bind(), right.bind())
    lost, succeeded = app.listen("lease_lost"), app.listen("succeeded")
    worker = app.worker(lease=30.0)
    running = asyncio.create_task(worker.run(signals=False))
    while {event.job_id for event in succeeded.seen} != set(others):
        await succeeded.next()
    [third] = await app.put(right.bind())  # the other part goes on, and its last job lets the silent one speak
    while {event.job_id for event in succeeded.seen} != {first, third, *others}:
        await succeeded.next()
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
    job = await app.job(first)
    assert (job.state, job.attempts, lost.seen) == (State.SUCCEEDED, 1, [])
    assert sorted(ran) == ["left", "right", "right", "right"]


async def test_a_handler_in_a_silent_part_stops_in_time_and_the_others_do_not(parts: Parts) -> None:
    app = parts.app
    begun, stopped, enough = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task(name="left", queue="left")
    async def left() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @app.task(name="right", queue="right")
    async def right() -> None:
        await enough.wait()

    lost, fenced = app.listen("lease_lost"), app.listen("fence_passed")
    [quiet, loud] = await app.put(left.bind(), right.bind())
    worker = app.worker(lease=LEASE)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    parts.silence("left", "down")
    await soon(stopped)
    assert [event.job_id for event in [await lost.next()]] == [quiet]
    renewals = parts.shelf.shards["right:0"].calls
    seen = renewals.count("renew")
    await _until(lambda: renewals.count("renew") >= seen + 10)  # well past the fence of the silent part
    assert fenced.seen == []
    enough.set()
    parts.silence("left", "well")
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
    assert (await app.job(loud)).state is State.SUCCEEDED
    assert (await app.job(loud)).attempts == 1


async def test_a_handler_that_will_not_stop_holds_back_the_fence_of_all(parts: Parts) -> None:
    """Its lease may go to another: only the fence, and whatever it does, is left."""
    app = parts.app
    begun, over = asyncio.Event(), asyncio.Event()

    @app.task(name="left", queue="left")
    async def left() -> None:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    fenced = app.listen("fence_passed")
    await app.put(left.bind())
    worker = app.worker(lease=LEASE)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    parts.silence("left", "down")
    await fenced.next()
    over.set()
    parts.silence("left", "well")
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)


async def test_a_part_that_speaks_again_does_not_give_a_job_away_whose_handler_still_stops(parts: Parts) -> None:
    app = parts.app
    begun, over = asyncio.Event(), asyncio.Event()

    @app.task(name="left", queue="left")
    async def left() -> None:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    lost = app.listen("lease_lost")
    [quiet] = await app.put(left.bind())
    worker = app.worker(lease=4.0)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    parts.silence("left", "down")
    await lost.next()
    shard = parts.shelf.shards["left:0"]
    renewals = shard.calls.count("renew")
    parts.silence("left", "well")
    await _until(lambda: shard.calls.count("renew") >= renewals + 3)
    assert (await app.job(quiet)).state is State.RUNNING
    over.set()
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
    assert len(lost.seen) == 1


async def test_a_job_that_must_run_at_most_once_and_was_given_up_does_not_start_again(parts: Parts) -> None:
    app = parts.app
    begun, stopped, starts = asyncio.Event(), asyncio.Event(), list[int]()

    @app.task(name="left", queue="left", max_stalls=0, retry=0)
    async def left() -> None:
        starts.append(1)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    dead = app.listen("dead")
    [quiet] = await app.put(left.bind())
    worker = app.worker(lease=4.0)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    parts.silence("left", "down")
    await soon(stopped)
    parts.silence("left", "well")  # before the lease is over: it would give back what is not named
    assert [event.job_id for event in [await dead.next()]] == [quiet]
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
    job = await app.job(quiet)
    assert (job.state, job.reason, starts) == (State.DEAD, "stalled", [1])


async def test_a_worker_stops_although_an_outcome_cannot_be_told(parts: Parts) -> None:
    app = parts.app
    ran = asyncio.Event()

    @app.task(name="left", queue="left")
    async def left() -> None:
        parts.silence("left", "down")
        ran.set()

    @app.task(name="right", queue="right")
    async def right() -> None: ...

    await app.put(left.bind())
    worker = app.worker(lease=30.0, grace=0.2)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(ran)
    worker.request_stop()
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
