"""Every way an attempt can end, and what it does to the counters."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast.context import Bury, Retry, Snooze
from holdfast.lifecycle import State
from holdfast.records import NewJob
from holdfast.retry import RetryPolicy
from holdfast.worker.embedded import Drained

AT_ONCE = RetryPolicy.fixed(0, limit=2)


async def test_a_return_is_a_success_with_its_value(app: WorkerApp) -> None:
    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    @app.task(name="triple")
    def triple(n: int) -> int:
        return 3 * n

    first, second = await app.put(double.bind(4), triple.bind(5))
    assert await app.drain() == Drained(succeeded=2, failed=0, left=0)
    job = await app.job(first)
    assert (job.state, job.value, job.attempts, job.failures, job.stalls) == (State.SUCCEEDED, b"8", 1, 0, 0)
    assert (await app.job(second)).value == b"15"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_raise_is_a_failure_until_the_retries_are_spent(app: WorkerApp, is_async: bool) -> None:
    attempts: list[int] = []

    if is_async:

        @app.task(name="poison", retry=AT_ONCE)
        async def poison() -> None:
            attempts.append(1)
            raise ValueError("no good")
    else:

        @app.task(name="poison", retry=AT_ONCE)
        def poison() -> None:
            attempts.append(1)
            raise ValueError("no good")

    [job_id] = await app.put(poison.bind())
    assert await app.drain() == Drained(succeeded=0, failed=3, left=0)
    job = await app.job(job_id)
    assert len(attempts) == 3
    assert (job.state, job.attempts, job.failures, job.stalls, job.reason) == (State.DEAD, 3, 3, 0, "failed")
    assert [error.text for error in job.errors] == ["no good"] * 3
    assert job.errors[-1].type == "ValueError"
    assert "raise ValueError" in job.errors[-1].traceback
    assert "_attempt" not in job.errors[-1].traceback


async def test_a_retry_due_later_is_left(app: WorkerApp) -> None:
    @app.task(name="later", retry=RetryPolicy.fixed(3600, limit=1))
    async def later() -> None:
        raise RuntimeError

    [job_id] = await app.put(later.bind())
    assert await app.drain() == Drained(succeeded=0, failed=1, left=1)
    assert (await app.job(job_id)).state is State.SCHEDULED


async def test_options_given_for_one_call_hold_for_that_call(app: WorkerApp) -> None:
    @app.task(name="patient", retry=RetryPolicy.fixed(0, limit=3), timeout=600)
    async def patient() -> None:
        await asyncio.Event().wait()

    [job_id] = await app.put(patient.using(retry=0, timeout=0.05).bind())
    assert await app.drain() == Drained(succeeded=0, failed=1, left=0)
    job = await app.job(job_id)
    assert (job.state, job.reason, job.failures) == (State.DEAD, "timeout", 1)


async def test_an_error_that_is_not_to_be_retried_is_final(app: WorkerApp) -> None:
    @app.task(name="never", retry=RetryPolicy.fixed(0, limit=5, never=(KeyError,)))
    async def never() -> None:
        raise KeyError("x")

    [job_id] = await app.put(never.bind())
    await app.drain()
    job = await app.job(job_id)
    assert (job.state, job.failures) == (State.DEAD, 1)


async def test_retry_asks_for_its_own_delay_and_spends_a_retry(app: WorkerApp) -> None:
    @app.task(name="again", retry=RetryPolicy.fixed(0, limit=5))
    async def again() -> None:
        try:
            raise ConnectionError("gone")
        except ConnectionError as error:
            raise Retry(after=1000) from error

    [job_id] = await app.put(again.bind())
    await app.drain()
    job = await app.job(job_id)
    assert (job.state, job.failures) == (State.SCHEDULED, 1)
    assert job.due_at - job.errors[0].at == pytest.approx(1000, abs=5)
    assert job.errors[0].type == "ConnectionError"


async def test_snooze_spends_nothing(app: WorkerApp) -> None:
    snoozes = iter([True, True, False])

    @app.task(name="tired", retry=0)
    async def tired() -> str:
        if next(snoozes):
            raise Snooze(0)
        return "up"

    [job_id] = await app.put(tired.bind())
    assert await app.drain() == Drained(succeeded=1, failed=0, left=0)
    job = await app.job(job_id)
    assert (job.state, job.attempts, job.failures, job.errors) == (State.SUCCEEDED, 3, 0, ())


async def test_bury_is_final_and_spends_no_retry(app: WorkerApp) -> None:
    @app.task(name="hopeless", retry=AT_ONCE)
    def hopeless() -> None:
        raise Bury("the account is closed")

    [job_id] = await app.put(hopeless.bind())
    assert await app.drain() == Drained(succeeded=0, failed=1, left=0)
    job = await app.job(job_id)
    assert (job.state, job.reason, job.failures, job.attempts) == (State.DEAD, "bury", 0, 1)
    assert job.errors[-1].text == "the account is closed"


async def test_a_verdict_survives_a_task_group(app: WorkerApp) -> None:
    @app.task(name="grouped", retry=0)
    async def grouped() -> None:
        async def inner() -> None:
            raise Snooze(500)

        async with asyncio.TaskGroup() as group:
            group.create_task(inner())

    [job_id] = await app.put(grouped.bind())
    await app.drain()
    assert (await app.job(job_id)).state is State.SCHEDULED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_would_end_a_program_ends_only_the_job(
    memory_app: WorkerApp, error: BaseException, is_async: bool
) -> None:
    app = memory_app
    if is_async:

        @app.task(name="fatal", retry=0)
        async def fatal() -> None:
            raise error
    else:

        @app.task(name="fatal", retry=0)
        def fatal() -> None:
            raise error

    @app.task(name="fine")
    async def fine() -> None:
        return None

    dead, well = await app.put(fatal.bind(), fine.bind())
    await app.drain()
    assert (await app.job(well)).state is State.SUCCEEDED
    job = await app.job(dead)
    assert (job.state, job.failures, job.errors[-1].type.rpartition(".")[2]) == (State.DEAD, 1, type(error).__name__)


async def test_an_exception_that_cannot_be_printed_is_recorded(memory_app: WorkerApp) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @memory_app.task(name="mute", retry=0)
    async def mute() -> None:
        raise Mute

    [job_id] = await memory_app.put(mute.bind())
    await memory_app.drain()
    assert "cannot be printed" in (await memory_app.job(job_id)).errors[-1].text


async def test_failure_texts_and_tracebacks_are_bounded(memory_app: WorkerApp) -> None:
    @memory_app.task(name="verbose", retry=0)
    async def verbose(depth: int = 400) -> None:
        if depth:
            await verbose.fn(depth - 1)
        raise ValueError("x" * 100_000)

    [job_id] = await memory_app.put(verbose.bind())
    await memory_app.drain()
    error = (await memory_app.job(job_id)).errors[-1]
    assert len(error.text) < 3_000
    assert len(error.traceback) < 12_000


async def test_arguments_that_no_longer_fit_bury_the_job(app: WorkerApp) -> None:
    @app.task(name="typed", retry=AT_ONCE)
    async def typed(n: int) -> None:
        raise AssertionError("must not be called")

    store = await app.store()
    await store.enqueue(
        [NewJob(id="old", task="typed", args=b'{"gone": 1}'), NewJob(id="odd", task="typed", args=b"{")]
    )
    await app.drain()
    for job_id in ("old", "odd"):
        job = await app.job(job_id)
        assert (job.state, job.reason, job.failures) == (State.DEAD, "undecodable", 0)
        assert job.errors[-1].reason == "undecodable"


async def test_a_result_that_cannot_be_stored_is_a_failure_that_says_so(app: WorkerApp) -> None:
    @app.task(name="opaque", retry=0)
    async def opaque() -> object:
        return object()

    [job_id] = await app.put(opaque.bind())
    assert (await app.drain()).failed == 1
    job = await app.job(job_id)
    assert (job.state, job.failures) == (State.DEAD, 1)
    assert "its result cannot be stored" in job.errors[-1].text


async def test_an_unknown_task_is_given_back_with_an_alarm_and_costs_nothing(app: WorkerApp) -> None:
    @app.task(name="known")
    async def known() -> None:
        return None

    alarm = app.listen("unknown_task")
    store = await app.store()
    await store.enqueue([NewJob(id="alien", task="not.here")])
    [other] = await app.put(known.bind())
    assert await app.drain() == Drained(succeeded=1, failed=0, left=1)
    job = await app.job("alien")
    assert (job.state, job.attempts, job.failures, job.stalls, job.errors) == (State.READY, 0, 0, 0, ())
    assert [(event.job_id, event.task) for event in alarm.seen] == [("alien", "not.here")]
    assert (await app.job(other)).state is State.SUCCEEDED


async def test_an_async_timeout_cancels_the_handler_and_counts_as_a_failure(app: WorkerApp) -> None:
    stopped = []

    @app.task(name="slow", timeout=0.05, retry=RetryPolicy.fixed(0, limit=1))
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    [job_id] = await app.put(slow.bind())
    assert await app.drain() == Drained(succeeded=0, failed=2, left=0)
    job = await app.job(job_id)
    assert (job.state, job.reason, job.failures) == (State.DEAD, "timeout", 2)
    assert stopped == [True, True]
    assert "0.05 s" in job.errors[-1].text


async def test_a_sync_timeout_settles_only_when_the_thread_has_stopped(app: WorkerApp) -> None:
    go, overrun = threading.Event(), threading.Event()
    states: list[bool] = []

    @app.task(name="stuck", timeout=0.05, retry=0)
    def stuck() -> str:
        from holdfast.context import Context

        ctx = Context.current()
        while not ctx.cancelled:
            go.wait(0.01)
        overrun.set()
        go.wait(WAIT_SECONDS)
        states.append(True)
        return "late"

    [job_id] = await app.put(stuck.bind())
    draining = asyncio.create_task(app.drain())
    await asyncio.to_thread(overrun.wait, WAIT_SECONDS)
    assert (await app.job(job_id)).state is State.RUNNING
    assert not states
    go.set()
    await draining
    job = await app.job(job_id)
    assert (job.state, job.reason) == (State.DEAD, "timeout")


async def test_a_job_past_its_retries_keeps_its_counters_through_a_revival(app: WorkerApp) -> None:
    broken = True

    @app.task(name="mended", retry=0)
    async def mended() -> str:
        if broken:
            raise OSError
        return "ok"

    [job_id] = await app.put(mended.bind())
    await app.drain()
    store = await app.store()
    assert (await store.letter(job_id)) is not None
    broken = False
    await store.revive(job_id)
    await app.drain()
    job = await app.job(job_id)
    assert (job.state, job.attempts, job.failures) == (State.SUCCEEDED, 1, 0)
    assert await store.letter(job_id) is None
