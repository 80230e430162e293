"""A worker whose store is sealed: it finishes what runs, starts nothing more, says so and ends with the error."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context
from holdfast.errors import StoreSealed
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, Seal, WorkerRecord

SEAL = Seal(move="m", role="source", other="store://there")


async def test_running_jobs_end_and_no_other_starts(app: WorkerApp, caplog: pytest.LogCaptureFixture) -> None:
    go, begun = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @app.task(name="slow")
    async def slow(ctx: Context) -> str:
        runs.append(ctx.id)
        begun.set()
        await go.wait()
        return "done"

    told = app.listen("store_sealed")
    first, second = await app.put(slow.bind(), slow.bind())
    running = asyncio.create_task(app.worker(slots=1, sweep_every=0.05).run(signals=False))
    await soon(begun)
    assert await (await app.store()).seal(SEAL, instead_of=None)
    event = await told.next()
    assert (event.role, event.stage, event.other) == ("source", "moving", "store://there")
    assert not running.done()  # it lets what runs end
    with caplog.at_level(logging.ERROR, "holdfast"):
        go.set()
        with pytest.raises(StoreSealed, match="store://there"):
            await asyncio.wait_for(running, WAIT_SECONDS)
    assert len(runs) == 1
    left = {first, second} - set(runs)
    assert (await app.job(runs[0])).state is State.SUCCEEDED
    assert (await app.job(left.pop())).state is State.READY
    assert [worker.id for worker in await (await app.store()).workers()] == []  # it signed off


async def test_an_idle_worker_ends_by_its_next_claim(app: WorkerApp) -> None:
    @app.task(name="any")
    async def any_job() -> None: ...

    started = app.listen("worker_started")
    running = asyncio.create_task(app.worker(sweep_every=None).run(signals=False))
    await started.next()
    assert await (await app.store()).seal(SEAL, instead_of=None)
    with pytest.raises(StoreSealed):
        await asyncio.wait_for(running, WAIT_SECONDS)


async def test_a_drain_that_waits_for_another_worker_learns_it_too(app: WorkerApp) -> None:
    @app.task(name="any")
    async def any_job() -> None: ...

    store = await app.store()
    await app.put(any_job.bind())
    await store.register(WorkerRecord(id="other"))
    await store.claim(ClaimRequest(worker="other", call=1, queues=("default",), most=1))
    looking, loop = asyncio.Event(), asyncio.get_running_loop()

    class Calls(list[str]):
        def append(self, verb: str) -> None:
            super().append(verb)
            if verb == "count":  # the drain asks what is left: its first claim is behind it
                loop.call_soon_threadsafe(looking.set)

    app.break_store().calls = Calls()
    running = asyncio.create_task(app.worker(drain=True, sweep_every=None).run(signals=False))
    await soon(looking)
    assert await store.seal(SEAL, instead_of=None)
    with pytest.raises(StoreSealed):
        await asyncio.wait_for(running, WAIT_SECONDS)


@pytest.mark.parametrize("drain", [True, False])
async def test_a_worker_that_starts_on_a_sealed_store_ends_at_once(app: WorkerApp, drain: bool) -> None:
    @app.task(name="any")
    async def any_job() -> None: ...

    (job_id,) = await app.put(any_job.bind())
    assert await (await app.store()).seal(SEAL, instead_of=None)
    with pytest.raises(StoreSealed):
        await asyncio.wait_for(app.worker(drain=drain).run(signals=False), WAIT_SECONDS)
    assert (await app.job(job_id)).state is State.READY


async def test_a_worker_in_the_background_says_so_when_its_block_ends(memory_app: WorkerApp) -> None:
    @memory_app.task(name="any")
    async def any_job() -> None: ...

    told = memory_app.listen("store_sealed")
    worker = memory_app.worker(sweep_every=0.05)
    await worker.__aenter__()
    assert await (await memory_app.store()).seal(SEAL, instead_of=None)
    await told.next()
    with pytest.raises(StoreSealed):
        await worker.__aexit__(None, None, None)


async def test_a_failed_attempt_keeps_its_back_off_on_a_sealed_store(app: WorkerApp) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    @app.task(name="fails", retry=3)
    async def fails() -> None:
        begun.set()
        await go.wait()
        raise ValueError

    (job_id,) = await app.put(fails.bind())
    running = asyncio.create_task(app.worker().run(signals=False))
    await soon(begun)
    assert await (await app.store()).seal(SEAL, instead_of=None)
    go.set()
    with pytest.raises(StoreSealed):
        await asyncio.wait_for(running, WAIT_SECONDS)
    job = await app.job(job_id)
    assert (job.state, job.attempts, job.failures) == (State.SCHEDULED, 1, 1)
