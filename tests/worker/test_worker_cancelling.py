"""Cancelling what runs: marked at once, freed only when the handler has stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context
from holdfast.lifecycle import State


async def test_a_cancelled_async_job_frees_its_group_only_when_its_handler_stopped(app: WorkerApp) -> None:
    begun, cleaning, clean, second_began = (asyncio.Event() for _ in range(4))
    order: list[str] = []
    cancelled = app.listen("cancelled")

    @app.task(name="first", group="g")
    async def first() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cancel arrived")
            cleaning.set()
            await clean.wait()
            order.append("first stopped")

    @app.task(name="second", group="g")
    async def second() -> None:
        order.append("second began")
        second_began.set()

    one, two = await app.put(first.bind(), second.bind())
    store = await app.store()
    async with app.worker(**ATTENTIVE):
        await soon(begun)
        marked = await store.cancel(one)
        assert (marked.state, marked.cancel_requested) == (State.RUNNING, True)
        await soon(cleaning)
        assert (await app.job(one)).state is State.RUNNING
        assert (await app.job(two)).state is State.WAITING
        clean.set()
        await soon(second_began)
        await cancelled.next()
    assert order == ["cancel arrived", "first stopped", "second began"]
    job = await app.job(one)
    assert (job.state, job.failures, job.attempts) == (State.CANCELLED, 0, 1)
    assert (await app.job(two)).state is State.SUCCEEDED


async def test_a_cancelled_sync_job_frees_its_group_only_when_its_thread_stopped(app: WorkerApp) -> None:
    begun, told, go = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    @app.task(name="first", group="g")
    def first(ctx: Context) -> str:
        begun.set()
        while not ctx.cancelled:
            go.wait(0.005)
        told.set()
        go.wait(WAIT_SECONDS)
        order.append("first stopped")
        return "finished all the same"

    @app.task(name="second", group="g")
    def second() -> None:
        order.append("second began")

    one, two = await app.put(first.bind(), second.bind())
    store = await app.store()
    succeeded = app.listen("succeeded")
    async with app.worker(**ATTENTIVE):
        await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        await store.cancel(one)
        await asyncio.to_thread(told.wait, WAIT_SECONDS)
        assert (await app.job(two)).state is State.WAITING
        go.set()
        await succeeded.next()
    assert order == ["first stopped", "second began"]
    job = await app.job(one)
    assert (job.state, job.value) == (State.CANCELLED, None)


@pytest.mark.parametrize("ending", ["return", "raise"])
async def test_an_outcome_that_meets_a_cancel_settles_as_cancelled(app: WorkerApp, ending: str) -> None:
    """The handler ends between the cancel and the renewal that would tell it: the store answers CANCELLED."""
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="racing", retry=5)
    async def racing() -> str:
        begun.set()
        await go.wait()
        if ending == "raise":
            raise ValueError
        return "done"

    [job_id] = await app.put(racing.bind())
    cancelled = app.listen("cancelled")
    async with app.worker():  # renews every 5 s: the handler is not told in time
        await soon(begun)
        await (await app.store()).cancel(job_id)
        go.set()
        await cancelled.next()
    job = await app.job(job_id)
    assert (job.state, job.failures, job.attempts, job.value) == (State.CANCELLED, 0, 1, None)


async def test_a_handler_that_swallows_its_cancellation_still_ends_as_cancelled(app: WorkerApp) -> None:
    begun = asyncio.Event()
    cancelled = app.listen("cancelled")

    @app.task(name="stubborn")
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return "never"

    [job_id] = await app.put(stubborn.bind())
    async with app.worker(**ATTENTIVE):
        await soon(begun)
        await (await app.store()).cancel(job_id)
        await cancelled.next()
    assert (await app.job(job_id)).state is State.CANCELLED
