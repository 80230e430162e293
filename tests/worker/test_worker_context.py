"""What a handler can read and report: Context, progress, log lines."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.context import CancelRequested, Context
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import State
from holdfast.records import Lease
from holdfast.retry import RetryPolicy

LEASE = Lease(id="i", token="", fence=1, task="x", queue="q", args=b"{}")


async def test_the_context_tells_what_the_attempt_is(app: WorkerApp) -> None:
    seen: list[tuple[object, ...]] = []
    fences: list[int] = []

    @app.task(name="told", group="g", key="k", timeout=30, retry=RetryPolicy.fixed(0, limit=1))
    async def told(ctx: Context, n: int) -> None:
        fences.append(ctx.fence)
        seen.append((ctx.id, n, ctx.attempt, ctx.failures, ctx.last_attempt, ctx.group, ctx.key, ctx.cancelled))
        assert ctx.task == "told" and ctx.queue == "default"
        assert ctx.deadline is not None and ctx.remaining is not None and 0 < ctx.remaining <= 30
        raise ValueError

    [job_id] = await app.put(told.bind(7))
    await app.drain()
    assert seen == [(job_id, 7, 1, 0, False, "g", "k", False), (job_id, 7, 2, 1, True, "g", "k", False)]
    assert fences[0] < fences[1]


async def test_current_answers_in_helpers_of_async_and_sync_handlers(memory_app: WorkerApp) -> None:
    seen: dict[str, str] = {}

    def deep(name: str) -> None:
        seen[name] = Context.current().id

    @memory_app.task(name="loop")
    async def loop() -> None:
        deep("loop")
        await asyncio.to_thread(deep, "thread of a loop handler")
        await asyncio.create_task(_call(deep, "task of a loop handler"))

    @memory_app.task(name="thread")
    def thread() -> None:
        deep("thread")
        copied = contextvars.copy_context()
        own = threading.Thread(target=lambda: copied.run(deep, "own thread"))
        own.start()
        own.join(WAIT_SECONDS)

    first, second = await memory_app.put(loop.bind(), thread.bind())
    await memory_app.drain()
    assert seen == {
        "loop": first,
        "thread of a loop handler": first,
        "task of a loop handler": first,
        "thread": second,
        "own thread": second,
    }


async def _call(function: object, *args: object) -> None:
    assert callable(function)
    function(*args)


def test_current_outside_a_handler_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no job is running here"):
        Context.current()


async def test_attempts_in_the_same_thread_do_not_see_each_others_context(memory_app: WorkerApp) -> None:
    ids: list[tuple[str, str]] = []

    @memory_app.task(name="mine")
    def mine(ctx: Context) -> None:
        ids.append((ctx.id, Context.current().id))

    await memory_app.put(*(mine.bind() for _ in range(50)))
    await memory_app.drain(slots=2)
    assert len(ids) == 50 and all(given == current for given, current in ids)
    with pytest.raises(ConfigurationError):
        Context.current()


async def test_progress_and_log_lines_are_stored_before_the_job_ends(app: WorkerApp) -> None:
    told = app.listen("progress")

    @app.task(name="talk")
    async def talk(ctx: Context) -> None:
        for step in range(10):
            ctx.progress(step / 10, f"step {step}")
        ctx.log("halfway", page=3, who="ann")
        ctx.log("done")

    [job_id] = await app.put(talk.bind())
    await app.drain()
    job = await app.job(job_id)
    assert (job.progress, job.progress_text) == (0.9, "step 9")
    assert [line.text for line in await (await app.store()).logs(job_id)] == ['halfway page=3 who="ann"', "done"]
    assert [(event.fraction, event.text) for event in told.seen] == [(0.9, "step 9")]


async def test_progress_is_visible_while_the_job_runs(app: WorkerApp) -> None:
    told = app.listen("progress")
    go = threading.Event()

    @app.task(name="long")
    def long() -> None:
        Context.current().progress(0.25, "quarter")
        go.wait(WAIT_SECONDS)

    [job_id] = await app.put(long.bind())
    async with app.worker():
        await told.next()
        job = await app.job(job_id)
        assert (job.state, job.progress, job.progress_text) == (State.RUNNING, 0.25, "quarter")
        go.set()
    assert (await app.job(job_id)).state is State.SUCCEEDED


async def test_reports_that_cannot_be_stored_do_not_hurt_the_job(memory_app: WorkerApp) -> None:
    faulty = memory_app.break_store()
    faulty.cut("report")

    @memory_app.task(name="talk")
    async def talk(ctx: Context) -> None:
        ctx.progress(0.5)
        ctx.log("lost")

    [job_id] = await memory_app.put(talk.bind())
    await memory_app.drain()
    assert (await memory_app.job(job_id)).state is State.SUCCEEDED
    assert "report" in faulty.calls


async def test_log_lines_survive_a_store_that_was_away(memory_app: WorkerApp) -> None:
    faulty = memory_app.break_store()
    faulty.refuse("report", 2)
    told = memory_app.listen("progress")
    go = asyncio.Event()

    @memory_app.task(name="talk")
    async def talk(ctx: Context) -> None:
        ctx.log("first")
        ctx.progress(0.5)
        await go.wait()

    [job_id] = await memory_app.put(talk.bind())
    async with memory_app.worker():
        await told.next()
        go.set()
    assert [line.text for line in await (await memory_app.store()).logs(job_id)] == ["first"]


def test_progress_refuses_what_is_no_fraction() -> None:
    ctx = Context(LEASE)
    for wrong in (float("nan"), -0.1, 1.1, float("inf")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            ctx.progress(wrong)


def test_log_fields_of_any_kind_become_text() -> None:
    class Sink:
        lines: list[str] = []  # noqa: RUF012

        def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None:
            raise AssertionError

        def slow_down(self, lease: Lease, seconds: float) -> None:
            raise AssertionError

        def settles_itself(self, lease: Lease) -> None:
            raise AssertionError

        def line(self, lease: Lease, line: str) -> None:
            self.lines.append(line)

    class Odd:
        def __repr__(self) -> str:
            return "odd"

    sink = Sink()
    ctx = Context(LEASE, reports=sink)
    ctx.log("a", thing=Odd(), deep={1: [2]})
    ctx.log("b" * 10_000)
    assert sink.lines[0] == 'a thing="odd" deep={"1":[2]}'
    assert len(sink.lines[1]) == 2000


async def test_raise_if_cancelled_ends_the_attempt_as_cancelled(app: WorkerApp) -> None:
    begun, cancelled = asyncio.Event(), app.listen("cancelled")
    loop = asyncio.get_running_loop()
    escaped: list[bool] = []

    @app.task(name="polite", retry=0)
    def polite(ctx: Context) -> None:
        ctx.raise_if_cancelled()
        loop.call_soon_threadsafe(begun.set)
        waiter = threading.Event()
        while True:
            try:
                ctx.raise_if_cancelled()
            except Exception:
                escaped.append(True)
            waiter.wait(0.005)

    [job_id] = await app.put(polite.bind())
    async with app.worker(**ATTENTIVE):
        await soon(begun)
        await (await app.store()).cancel(job_id)
        assert (await cancelled.next()).job_id == job_id
    job = await app.job(job_id)
    assert (job.state, job.failures) == (State.CANCELLED, 0)
    assert not escaped


def test_cancel_requested_is_no_exception() -> None:
    assert not issubclass(CancelRequested, Exception)
