"""Stopping and draining: within a bound, and what did not finish goes back at no cost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import State
from holdfast.records import Pause
from holdfast.retry import RetryPolicy
from holdfast.worker.embedded import Drained


async def test_a_graceful_stop_lets_handlers_finish_and_claims_no_more(app: WorkerApp) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="longish")
    async def longish() -> str:
        begun.set()
        await go.wait()
        return "whole"

    first, second = await app.put(longish.bind(), longish.bind())
    worker = app.worker(slots=1, grace=WAIT_SECONDS)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    worker.request_stop()
    store = await app.store()
    assert len(await store.workers()) == 1
    go.set()
    assert (await running).succeeded == 1
    states = {(await app.job(first)).state, (await app.job(second)).state}
    assert states == {State.SUCCEEDED, State.READY}
    assert await store.workers() == []


async def test_renewals_go_on_during_the_grace(app: WorkerApp) -> None:
    faulty = app.break_store()
    begun, go = asyncio.Event(), threading.Event()

    @app.task(name="slow")
    def slow(ctx: Context) -> bool:
        loop.call_soon_threadsafe(begun.set)
        go.wait(WAIT_SECONDS)
        return ctx.cancelled

    loop = asyncio.get_running_loop()
    [job_id] = await app.put(slow.bind())
    worker = app.worker(**ATTENTIVE, grace=WAIT_SECONDS)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    worker.request_stop()
    renewals = faulty.calls.count("renew")
    while faulty.calls.count("renew") < renewals + 5:
        await (await app.store()).wait_for_work(["none"], 0.02)
    go.set()
    await running
    job = await app.job(job_id)
    assert (job.state, job.value, job.stalls) == (State.SUCCEEDED, b"false", 0)


async def test_what_outlives_the_grace_is_given_back_at_no_cost(app: WorkerApp) -> None:
    begun: list[str] = []
    all_begun = threading.Event()

    def began(job_id: str) -> None:
        begun.append(job_id)
        if len(begun) == 3:
            all_begun.set()

    @app.task(name="endless", retry=0, group="g")
    async def endless(ctx: Context) -> None:
        began(ctx.id)
        await asyncio.Event().wait()

    @app.task(name="angry", retry=0)
    async def angry(ctx: Context) -> None:
        began(ctx.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("told to stop") from None

    @app.task(name="threaded", retry=0)
    def threaded(ctx: Context) -> None:
        began(ctx.id)
        waiter = threading.Event()
        while not ctx.cancelled:
            waiter.wait(0.005)
        ctx.raise_if_cancelled()

    ids = await app.put(endless.bind(), angry.bind(), threaded.bind())
    for round in range(3):
        worker = app.worker(grace=0)
        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.to_thread(all_begun.wait, WAIT_SECONDS)
        worker.request_stop()
        drained = await running
        assert drained == Drained(succeeded=0, failed=0, left=3), round
        for job_id in ids:
            job = await app.job(job_id)
            assert (job.state, job.attempts, job.failures, job.stalls) == (State.READY, 0, 0, 0)
        begun.clear()
        all_begun.clear()


async def test_what_must_run_at_most_once_does_not_run_again_after_it_outlived_the_grace(app: WorkerApp) -> None:
    begun: list[int] = []
    first = asyncio.Event()

    @app.task(name="once", retry=0, max_stalls=0)
    async def once(ctx: Context) -> None:
        begun.append(ctx.attempt)
        first.set()
        await asyncio.Event().wait()

    [job_id] = await app.put(once.bind())
    worker = app.worker(grace=0.0)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(first)
    worker.request_stop()
    await running
    job = await app.job(job_id)
    assert (job.state, job.reason, job.stalls) == (State.DEAD, "stalled", 1)
    assert "must not run twice" in job.errors[-1].text
    await app.drain()
    assert begun == [1]


async def test_a_second_request_ends_the_grace(app: WorkerApp) -> None:
    begun = asyncio.Event()

    @app.task(name="endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    [job_id] = await app.put(endless.bind())
    worker = app.worker(grace=3600)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    worker.request_stop()
    worker.request_stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
    assert (await app.job(job_id)).state is State.READY


async def test_cancelling_run_gives_back_and_stops(app: WorkerApp) -> None:
    begun = asyncio.Event()

    @app.task(name="endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    [job_id] = await app.put(endless.bind())
    running = asyncio.create_task(app.worker(grace=3600).run(signals=False))
    await soon(begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await app.job(job_id)
    assert (job.state, job.attempts) == (State.READY, 0)


async def test_a_thread_that_does_not_stop_keeps_its_lease(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app
    monkeypatch.setattr("holdfast.worker.keeper.shutdown.STOP_WITHIN_SECONDS", 0.05)
    begun, go = threading.Event(), threading.Event()
    stopped = app.listen("worker_stopped")

    @app.task(name="deaf")
    def deaf() -> None:
        begun.set()
        go.wait(WAIT_SECONDS)

    [job_id] = await app.put(deaf.bind())
    worker = app.worker(grace=0)
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.to_thread(begun.wait, WAIT_SECONDS)
    worker.request_stop()
    await running
    job = await app.job(job_id)
    assert (job.state, job.attempts) == (State.RUNNING, 0), "given back, it could run twice at once"
    assert stopped.seen[0].left_running == (job_id,)
    assert "threads cannot be killed" in caplog.text
    go.set()


async def test_drain_leaves_what_is_not_due_paused_or_behind_it(app: WorkerApp) -> None:
    @app.task(name="plain")
    async def plain() -> None:
        return None

    @app.task(name="failing", group="g", retry=RetryPolicy.fixed(3600, limit=1))
    async def failing() -> None:
        raise ValueError

    @app.task(name="parked")
    async def parked() -> None:
        raise AssertionError

    later, now = await app.put(plain.using(delay=3600).bind(), plain.bind())
    head, behind = await app.put(failing.bind(), failing.bind())
    [kept] = await app.put(parked.bind())
    await (await app.store()).pause(Pause(task="parked"))
    assert await app.drain() == Drained(succeeded=1, failed=1, left=4)
    states = [(await app.job(job_id)).state for job_id in (later, now, head, behind, kept)]
    assert states == [State.SCHEDULED, State.SUCCEEDED, State.SCHEDULED, State.WAITING, State.READY]


async def test_drain_of_a_paused_queue_returns(app: WorkerApp) -> None:
    @app.task(name="plain")
    async def plain() -> None:
        raise AssertionError

    await app.put(plain.bind())
    await (await app.store()).pause(Pause(queue="default"))
    assert await app.drain() == Drained(succeeded=0, failed=0, left=1)


async def test_drain_takes_what_its_handlers_enqueue(app: WorkerApp) -> None:
    @app.task(name="parent")
    async def parent(depth: int) -> None:
        if depth:
            await app.put(parent.bind(depth - 1), parent.bind(depth - 1))

    await app.put(parent.bind(4))
    assert await app.drain() == Drained(succeeded=31, failed=0, left=0)


async def test_drain_waits_for_what_another_worker_runs(app: WorkerApp) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="held")
    async def held() -> None:
        begun.set()
        await go.wait()

    await app.put(held.bind())
    async with app.worker():
        await soon(begun)
        draining = asyncio.create_task(app.drain())
        started = app.listen("worker_started")
        await started.next()
        assert not draining.done()
        go.set()
        assert await draining == Drained(succeeded=0, failed=0, left=0)


async def test_drain_of_nothing_returns(app: WorkerApp) -> None:
    @app.task(name="plain")
    async def plain() -> None:
        return None

    assert await app.drain() == Drained(succeeded=0, failed=0, left=0)


async def test_a_worker_without_tasks_or_queues_says_what_to_do(memory_app: WorkerApp) -> None:
    with pytest.raises(ConfigurationError, match="nothing to serve"):
        await memory_app.drain()


async def test_a_worker_runs_once(memory_app: WorkerApp) -> None:
    @memory_app.task(name="plain")
    async def plain() -> None:
        return None

    worker = memory_app.worker(drain=True)
    await worker.run(signals=False)
    with pytest.raises(ConfigurationError, match="has run already"):
        await worker.run(signals=False)


async def test_a_store_that_cannot_be_opened_is_the_callers_error(memory_app: WorkerApp) -> None:
    from holdfast.errors import BackendUnavailable

    @memory_app.task(name="plain")
    async def plain() -> None:
        return None

    memory_app.break_store().cut("register")
    with pytest.raises(BackendUnavailable):
        await memory_app.drain()
    with pytest.raises(BackendUnavailable):
        async with memory_app.worker():
            raise AssertionError("never entered")


SIGNALLED = """
import sys, asyncio
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.task(name="patient")
async def patient() -> None:
    print("begun", flush=True)
    if sys.argv[2] == "finishing":
        await asyncio.to_thread(sys.stdin.readline)
    else:
        await asyncio.Event().wait()
    print("finished", flush=True)

patient.using(id="it").enqueue()
app.work(grace=60)
print("left in order", flush=True)
"""


def _start(tmp_path: Path, manner: str) -> tuple[subprocess.Popen[str], str]:
    script = tmp_path / "signalled.py"
    script.write_text(SIGNALLED)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    command = [sys.executable, str(script), url, manner]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    return worker, url


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_worker_in_order(tmp_path: Path, number: signal.Signals) -> None:
    worker, _ = _start(tmp_path, "finishing")
    worker.send_signal(number)
    out, _ = worker.communicate("go\n", timeout=WAIT_SECONDS)
    assert (out, worker.returncode) == ("finished\nleft in order\n", 0)


@pytest.mark.chaos
def test_a_second_signal_gives_back_at_once(tmp_path: Path) -> None:
    from holdfast import Holdfast

    worker, url = _start(tmp_path, "endless")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    out, _ = worker.communicate(timeout=WAIT_SECONDS)
    assert (out, worker.returncode) == ("left in order\n", 0)
    with Holdfast(url) as app:
        job = app.job("it")
        assert (job.state, job.attempts) == (State.READY, 0)
