"""Leases: renewed from outside the handlers' loop, lost, fenced, begun."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.halts import Halts
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.clock import SystemClock
from holdfast.context import Context
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, Release, WorkerRecord
from holdfast.worker.keeper import identity
from holdfast.worker.keeper.lease_renewal import EXIT_CODE

UNHURRIED = 6.0  # seconds; renewed every second: on a busy machine, too, the next comes before the lease could pass
BLOCKED_LEASE = 3.0  # renewed every half second; the handler blocks for longer than that lasts


async def test_a_handler_that_blocks_the_loop_for_longer_than_a_lease_runs_once(app: WorkerApp) -> None:
    runs: list[int] = []
    faulty = app.break_store()

    @app.task(name="blocker", group="g")
    async def blocker() -> None:
        runs.append(1)
        renewals = faulty.calls.count("renew")
        until = time.monotonic() + 1.5 * BLOCKED_LEASE
        while time.monotonic() < until or faulty.calls.count("renew") < renewals + 5:
            threading.Event().wait(0.005)  # blocks the loop, and leaves the processor to whoever renews

    lost, stalled = app.listen("lease_lost"), app.listen("stalled")
    [job_id] = await app.put(blocker.bind())
    done = threading.Event()
    rival = threading.Thread(target=lambda: asyncio.run(_recover_until(app, done)))
    rival.start()
    await app.drain(lease=BLOCKED_LEASE)
    done.set()
    rival.join(WAIT_SECONDS)
    job = await app.job(job_id)
    assert runs == [1]
    assert (job.state, job.stalls, job.attempts) == (State.SUCCEEDED, 0, 1)
    assert not lost.seen and not stalled.seen


async def test_a_job_that_comes_back_to_its_own_worker_ends_the_lost_attempt_and_no_other(app: WorkerApp) -> None:
    """The worker holds two leases of one job until it notices, and the store's answers name jobs, not leases."""
    attempts: list[Context] = []
    first = asyncio.Event()

    @app.task(name="returns")
    async def returns(ctx: Context) -> None:
        attempts.append(ctx)
        if len(attempts) == 1:
            first.set()
            await asyncio.Event().wait()  # until it is told to stop

    lost, done = app.listen("lease_lost"), app.listen("succeeded")
    [job_id] = await app.put(returns.bind())
    async with app.worker(slots=2, lease=UNHURRIED):
        await soon(first)
        await (await app.store()).release([Release(id=job_id, token=attempts[0]._lease.token)])
        assert (await done.next()).job_id == job_id
    assert [event.job_id for event in lost.seen] == [job_id]
    assert len(attempts) == 2
    job = await app.job(job_id)
    assert (job.attempts, job.failures, job.stalls) == (1, 0, 0)


async def _recover_until(app: WorkerApp, done: threading.Event) -> None:
    """A rival, in a thread of its own, that takes every lease that lapses."""
    store = app.make_store()
    await store.open()
    while not done.is_set():
        await store.recover()
        await store.wait_for_work(["none"], 0.02)
    await store.close()


async def test_a_lost_lease_cancels_the_handler_and_drops_its_outcome(app: WorkerApp) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @app.task(name="victim")
    async def victim(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if len(runs) > 1:
            return "second"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    [job_id] = await app.put(victim.bind())
    lost, succeeded = app.listen("lease_lost"), app.listen("succeeded")
    store = await app.store()
    async with app.worker(**ATTENTIVE, sweep_every=None):
        await soon(begun)
        [me] = await store.workers()
        await store.recover(dead=[me.id])
        assert (await lost.next()).job_id == job_id
        await soon(stopped)
        assert (await succeeded.next()).worker != me.id, "it goes on under a new id"
    job = await app.job(job_id)
    assert (job.state, job.value, job.stalls, job.failures) == (State.SUCCEEDED, b'"second"', 1, 0)
    assert runs == [1, 2]


async def test_a_job_lost_and_claimed_again_never_overlaps_with_its_own_thread(memory_app: WorkerApp) -> None:
    app = memory_app
    begun, go = threading.Event(), threading.Event()
    running: list[str] = []
    overlaps: list[str] = []

    @app.task(name="slow", max_stalls=10)
    def slow(ctx: Context) -> int:
        overlaps.extend(running)
        running.append(ctx.id)
        begun.set()
        go.wait(WAIT_SECONDS)
        running.remove(ctx.id)
        return ctx.attempt

    [job_id] = await app.put(slow.bind())
    lost, succeeded = app.listen("lease_lost"), app.listen("succeeded")
    store = await app.store()
    async with app.worker(**ATTENTIVE, sweep_every=None, poll_every=0.01):
        await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        [me] = await store.workers()
        await store.recover(dead=[me.id])
        await lost.next()
        while (await app.job(job_id)).attempts + 1 < 2 or (await app.job(job_id)).state is not State.RUNNING:
            await store.wait_for_work(["default"], 0.01)
        go.set()
        await succeeded.next()
    assert not overlaps
    assert (await app.job(job_id)).value == b"2"


async def test_without_renewals_handlers_are_stopped_before_the_lease_can_pass_on(app: WorkerApp) -> None:
    faulty = app.break_store()
    clock = SystemClock()
    begun, stopped = asyncio.Event(), asyncio.Event()
    times: dict[str, float] = {}
    runs: list[int] = []
    flagged = threading.Event()

    @app.task(name="held")
    async def held() -> str:
        runs.append(1)
        if len(runs) > 1:
            return "again"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            times["stopped"] = clock.steady()
            stopped.set()
        return "never"

    @app.task(name="threaded")
    def threaded(ctx: Context) -> None:
        waiter = threading.Event()
        while not ctx.cancelled and not flagged.is_set():
            waiter.wait(0.005)
        flagged.set()

    failing, fenced, done = app.listen("renewal_failed"), app.listen("fence_passed"), app.listen("succeeded")
    one, two = await app.put(held.bind(), threaded.bind())
    async with app.worker(lease=2.0, sweep_every=None):
        await soon(begun)
        with Halts() as halts:
            times["cut"] = clock.steady()
            faulty.cut("renew", "exchange")
            await failing.next()
            passed = await fenced.next()
            assert set(passed.jobs) == {one, two}
            await soon(stopped)
            await asyncio.to_thread(flagged.wait, WAIT_SECONDS)
        # The last renewal was sent before the cut, so its lease ended at the latest one lease after it.
        assert times["stopped"] < times["cut"] + 2.0 + halts.seconds
        faulty.mend()
        assert {(await done.next()).job_id, (await done.next()).job_id} == {one, two}
    for job_id in (one, two):
        job = await app.job(job_id)
        assert (job.state, job.failures) == (State.SUCCEEDED, 0)
    assert failing.seen[0].error == "BackendUnavailable"


async def test_what_waits_behind_a_blocked_loop_does_not_start_after_the_fence(memory_app: WorkerApp) -> None:
    app = memory_app
    faulty = app.break_store()
    ran: list[str] = []

    @app.task(name="blocker")
    async def blocker() -> None:
        if not ran:
            ran.append("blocker")
            faulty.cut("renew", "register")
            attempts, until = faulty.calls.count("renew"), time.monotonic() + 1.5
            while time.monotonic() < until or faulty.calls.count("renew") < attempts + 3:
                pass

    @app.task(name="behind")
    async def behind() -> None:
        ran.append("behind")

    fenced, done = app.listen("fence_passed"), app.listen("succeeded")
    ids = await app.put(blocker.bind(), behind.bind())
    async with app.worker(lease=1.0, sweep_every=None):
        passed = await fenced.next()
        assert set(passed.jobs) == set(ids)
        assert ran == ["blocker"]
        faulty.mend()
        assert {(await done.next()).job_id for _ in ids} == set(ids)
    assert (ran[0], set(ran[1:])) == ("blocker", {"behind"})  # a machine that halts for a second costs another run


EXITING = """
import asyncio, sys, threading
from holdfast import Holdfast
from holdfast.errors import BackendUnavailable

app = Holdfast(sys.argv[1])

@app.task(name="stuck")
def stuck() -> None:
    print("begun", flush=True)
    threading.Event().wait(60)

make = app._open_backend
def cut():
    backend = make()
    renewals = 0
    async def renew(*args, **kwargs):
        raise BackendUnavailable("cut by the test")
    backend.renew = renew
    return backend
app._open_backend = cut
stuck.enqueue()
app.work(lease=1.0, on_fence="exit", grace=1)
"""


@pytest.mark.chaos
def test_on_fence_exit_ends_the_process(tmp_path: Path) -> None:
    script = tmp_path / "exiting.py"
    script.write_text(EXITING)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    done = subprocess.run([sys.executable, str(script), url], capture_output=True, text=True, timeout=60, check=False)
    assert "begun" in done.stdout
    assert done.returncode == EXIT_CODE, done.stderr
    assert "ends this process" in done.stderr


async def test_at_most_once_jobs_are_marked_begun_before_their_handler_starts(app: WorkerApp) -> None:
    seen: list[bool] = []
    faulty = app.break_store()
    faulty.lose_reply("begin")
    loop = asyncio.get_running_loop()

    @app.task(name="once", retry=0, max_stalls=0)
    def once(ctx: Context) -> None:
        seen.append(asyncio.run_coroutine_threadsafe(app.job(ctx.id), loop).result(WAIT_SECONDS).begun)

    @app.task(name="plain")
    def plain(ctx: Context) -> None:
        seen.append(asyncio.run_coroutine_threadsafe(app.job(ctx.id), loop).result(WAIT_SECONDS).begun)

    [job_id] = await app.put(once.bind())
    await app.drain()
    assert seen == [True]
    assert (await app.job(job_id)).state is State.SUCCEEDED
    await app.put(plain.bind())
    calls = faulty.calls.count("begin")
    await app.drain()
    assert faulty.calls.count("begin") == calls, "only at-most-once tasks pay for the mark"


async def test_a_cancel_before_the_begin_mark_keeps_the_handler_from_starting(memory_app: WorkerApp) -> None:
    app = memory_app
    faulty = app.break_store()
    faulty.cut("begin")
    ran: list[bool] = []

    @app.task(name="once", retry=0, max_stalls=0)
    async def once() -> None:
        ran.append(True)

    [job_id] = await app.put(once.bind())
    store = await app.store()
    async with app.worker(poll_every=0.01):
        while (await app.job(job_id)).state is not State.RUNNING:
            await store.wait_for_work(["default"], 0.01)
        await store.cancel(job_id)
        faulty.mend()
        while (await app.job(job_id)).state is State.RUNNING:
            await store.wait_for_work(["default"], 0.01)
    assert (await app.job(job_id)).state is State.CANCELLED
    assert not ran


async def test_a_starting_worker_recovers_what_a_dead_one_of_this_host_left(app: WorkerApp) -> None:
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    store = await app.store()
    me = identity.new_worker(lease=3600, queues=("default",), slots=1)
    here: dict[str, Any] = {
        "host": me.host,
        "boot_id": me.boot_id,
        "pid_namespace": me.pid_namespace,
        "lease_seconds": 3600.0,
    }
    await store.register(WorkerRecord(id="dead", pid=gone.pid, **here))
    await store.register(WorkerRecord(id="elsewhere", pid=gone.pid, **{**here, "host": "other"}))
    await store.register(WorkerRecord(id="other-boot", pid=gone.pid, **{**here, "boot_id": "other"}))
    await store.register(WorkerRecord(id="alive", pid=me.pid, **here))

    @app.task(name="left")
    async def left() -> None:
        return None

    holders = ("dead", "elsewhere", "other-boot", "alive")
    for holder in holders:
        await app.put(left.using(id=f"of-{holder}").bind())
        await store.claim(ClaimRequest(worker=holder, call=1, queues=("default",), most=1))
    stalled, done = app.listen("stalled"), app.listen("succeeded")
    async with app.worker(sweep_every=None):
        assert (await done.next()).job_id == "of-dead"
    assert [(event.job_id, event.holder, event.stalls) for event in stalled.seen] == [("of-dead", "dead", 1)]
    for holder in holders[1:]:
        assert (await app.job(f"of-{holder}")).state is State.RUNNING


async def test_a_failing_clean_up_does_not_prevent_the_start(memory_app: WorkerApp) -> None:
    memory_app.break_store().cut("workers", "recover")

    @memory_app.task(name="fine")
    async def fine() -> None:
        return None

    await memory_app.put(fine.bind())
    assert (await memory_app.drain()).succeeded == 1


def test_a_reused_pid_is_proof_of_death_and_ones_own_is_not() -> None:
    me = identity.new_worker(lease=30, queues=(), slots=1)
    if not me.boot_id or not Path("/proc/self/stat").exists():
        pytest.skip("this system cannot prove it")
    random, _, ticks = me.id.rpartition("-")
    same = structs.replace(me, id=f"other-{ticks}")
    reused = structs.replace(me, id=f"{random}-{int(ticks, 16) - 5:x}")
    unknown = structs.replace(me, id="plain")
    assert identity.provably_dead([me, same, reused, unknown], me) == [reused.id]


async def test_a_job_leased_by_a_worker_that_lapsed_is_found_by_the_sweep_alone(app: WorkerApp) -> None:
    """slots are full, so no claim can find it: only the sweep does."""
    store = await app.store()
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="busy")
    async def busy() -> None:
        begun.set()
        await go.wait()

    stalled = app.listen("stalled")
    await store.enqueue([NewJob(id="lapsed", task="busy", queue="elsewhere")])
    for number in range(1000):  # on a slow machine it may lapse before it has claimed anything
        worker = f"brief{number}"
        await store.register(WorkerRecord(id=worker, lease_seconds=0.05, pid=0))
        if (await store.claim(ClaimRequest(worker=worker, call=1, queues=("elsewhere",), most=1))).leases:
            break
    await app.put(busy.bind())
    async with app.worker(slots=1, sweep_every=0.05, queues=["default"]):
        await soon(begun)
        assert (await stalled.next()).job_id == "lapsed"
        go.set()
    assert (await app.job("lapsed")).state is State.READY
