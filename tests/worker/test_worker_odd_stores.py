"""A store that forgets a worker at the worst moment, or hands out no jobs for a while.

The worker still ends, starts nothing it no longer holds, and leaves nothing it could do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context
from holdfast.lifecycle import Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Release


async def test_a_worker_forgotten_by_a_store_that_then_goes_away_can_still_be_stopped(app: WorkerApp) -> None:
    @app.task(name="any")
    async def any_job() -> None: ...

    faulty = app.break_store()
    started, failed = app.listen("worker_started"), app.listen("renewal_failed")
    worker = app.worker(lease=3.0, grace=0.2)
    running = asyncio.create_task(worker.run(signals=False))
    name = (await started.next()).worker
    faulty.cut("register", "renew")
    assert await (await app.store()).recover(dead=[name]) == []  # its row is gone
    await app.put(any_job.bind())  # the claim for it is what tells
    while (await failed.next()).worker == name:
        pass  # not yet learnt; then it cannot register again
    worker.request_stop()
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)


async def test_a_new_name_that_is_yet_to_be_stored_does_not_count_as_forgotten(
    app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    """The store forgot the worker and does not take its new row for a while: one new name is enough.

    What is asked meanwhile must not be answered with "unknown", or the leases claimed under the new name would be given
    up again and their jobs run twice.
    """
    runs: list[str] = []

    @app.task(name="any")
    async def any_job(ctx: Context) -> None:
        runs.append(ctx.id)

    faulty = app.break_store()
    failed, done = app.listen("renewal_failed"), app.listen("succeeded")
    async with app.worker(**ATTENTIVE) as worker:
        assert worker._keeper is not None
        name = worker._keeper._renewal.worker.id
        faulty.cut("register")
        assert await (await app.store()).recover(dead=[name]) == []  # its row is gone
        ids = await app.put(any_job.bind())  # the claim for it, or a renewal, is what tells
        while (await failed.next()).worker == name:
            pass
        asked = len(faulty.calls)
        while not {"renew", "exchange"} & set(faulty.calls[asked:]):  # the one of the two that did not learn it first
            await failed.next()
        await failed.next()  # ... and has had its answer
        faulty.mend()
        ids += await app.put(any_job.bind())
        assert {(await done.next()).job_id for _ in ids} == set(ids)
        renewals = faulty.calls.count("renew")
        while faulty.calls.count("renew") < renewals + 2:
            ids += await app.put(any_job.bind())
            await done.next()
    assert sorted(runs) == sorted(ids)
    assert caplog.text.count("no longer knows worker") == 1


async def test_an_at_most_once_job_lost_while_its_begin_mark_was_on_the_way_is_not_started(app: WorkerApp) -> None:
    """The mark was stored, its answer is slow, and meanwhile the lease is ended: the answer is worth nothing."""
    runs: list[str] = []

    @app.task(name="once", retry=0, max_stalls=0)
    async def once(ctx: Context) -> None:
        runs.append(ctx.id)

    @app.task(name="other")
    async def other() -> None: ...

    faulty = app.break_store()
    marked, answered, answer = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    plain = type(faulty).__getattr__

    def slow(self: Any, verb: str) -> Any:
        real = plain(self, verb)
        if verb != "begin":
            return real

        async def begin(*args: Any, **kwargs: Any) -> Any:
            answers = await real(*args, **kwargs)
            loop.call_soon_threadsafe(marked.set)
            await asyncio.to_thread(answer.wait, WAIT_SECONDS)
            loop.call_soon_threadsafe(answered.set)
            return answers

        return begin

    faulty.__class__ = type("Slow", (type(faulty),), {"__getattr__": slow})
    started, lost = app.listen("worker_started"), app.listen("lease_lost")
    (job_id,) = await app.put(once.bind())
    worker = app.worker()
    running = asyncio.create_task(worker.run(signals=False))
    name = (await started.next()).worker
    await soon(marked)
    (ended,) = await (await app.store()).recover(dead=[name])
    assert ended.state is State.DEAD  # it had begun, as far as anybody could know
    succeeded = app.listen("succeeded")
    await app.put(other.bind())  # the claim for it tells the worker that it was forgotten
    assert (await lost.next()).job_id == job_id
    answer.set()
    await soon(answered)
    await app.put(other.bind())
    for _ in range(2):
        assert (await succeeded.next()).task == "other"  # the slots are free and the worker goes on
    worker.request_stop()
    await running
    assert runs == []
    assert (await app.job(job_id)).state is State.DEAD


async def test_an_attempt_cancelled_by_others_before_its_first_step_is_given_back(app: WorkerApp) -> None:
    """A handler that takes down the tasks it finds on the loop: what had not even begun runs again, at no cost."""
    runs: list[str] = []

    @app.task(name="rude")
    async def rude(ctx: Context) -> None:
        runs.append(ctx.id)
        if len(runs) == 1:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task() and getattr(task.get_coro(), "__name__", "") == "_attempt":
                    task.cancel()

    ids = await app.put(*(rude.bind() for _ in range(4)))
    drained = await asyncio.wait_for(app.drain(slots=4), WAIT_SECONDS)
    assert (drained.succeeded, drained.failed, drained.left) == (4, 0, 0)
    for job_id in ids:
        job = await app.job(job_id)
        assert (job.state, job.attempts, job.failures, job.stalls) == (State.SUCCEEDED, 1, 0, 0)


async def test_a_drain_waits_until_a_quiet_store_gives_out_again_and_says_so_once(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    store = await memory_app.store()
    plain = store.exchange
    over = asyncio.get_running_loop().time() + 0.5

    async def exchange(
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        assert request is not None
        left = over - asyncio.get_running_loop().time()
        if left <= 0:
            return await plain(settlements, releases, request, now)
        return replace(await plain(settlements, releases, replace(request, most=0), now), quiet_seconds=left)

    store.exchange = exchange  # type: ignore[method-assign]

    @memory_app.task(name="any")
    async def any_job() -> None: ...

    await memory_app.put(any_job.bind(), any_job.bind())
    assert (await memory_app.drain()).succeeded == 2
    assert sum("may have lost its latest writes" in record.message for record in caplog.records) == 1
