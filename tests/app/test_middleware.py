"""Code around every attempt: order, threads and tasks, context variables, exceptions, both forms, and misuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Bury, ConfigurationError, Context, Holdfast, Retry, RetryPolicy, Snooze, State

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def run(app: Holdfast, job_id: str) -> Any:
    app.work(drain=True)
    return app.job(job_id)


def test_the_first_registered_is_the_outermost_and_its_return_is_the_result(memory_app: Holdfast) -> None:
    app, seen = memory_app, []

    @app.around
    def outer(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(f"outer {ctx.task} {ctx.attempt}")
        value = call_next()
        seen.append("outer end")
        return value + 1

    @app.around
    def inner(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(f"inner {Context.current() is ctx}")
        return call_next() * 10

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        seen.append("handler")
        return a + b

    assert run(app, add.enqueue(1, 2).id).value == 31
    assert seen == ["outer add 1", "inner True", "handler", "outer end"]


def test_it_runs_in_the_handlers_own_thread_or_task_and_shares_its_context(memory_app: Holdfast) -> None:
    app = memory_app
    places: dict[str, list[object]] = {"sync": [], "async": []}

    def tenant(ctx: Context, call_next: Callable[[], Any]) -> Any:
        TENANT.set(ctx.id)
        places["sync"].append(threading.current_thread())
        return call_next()

    async def atenant(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        TENANT.set(ctx.id)
        places["async"].append(asyncio.current_task())
        return await call_next()

    app.around(tenant, atenant)

    @app.task(name="sync")
    def handler() -> str:
        places["sync"].append(threading.current_thread())
        return TENANT.get()

    @app.task(name="async")
    async def ahandler() -> str:
        places["async"].append(asyncio.current_task())
        return TENANT.get()

    jobs = [handler.enqueue(), ahandler.enqueue()]
    app.work(drain=True)
    assert [job.refresh().value for job in jobs] == [job.id for job in jobs]
    for kind in ("sync", "async"):
        assert len(places[kind]) == 2 and places[kind][0] is places[kind][1]
    assert places["sync"][0] is not threading.main_thread()
    assert TENANT.get() == "nobody"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("verdict", "state", "reason"),
    [(Snooze(50), State.SCHEDULED, None), (Retry(after=50), State.SCHEDULED, None), (Bury("no"), State.DEAD, "bury")],
)
def test_verdicts_pass_through(
    memory_app: Holdfast, is_async: bool, verdict: BaseException, state: State, reason: str | None
) -> None:
    app, passed = memory_app, []

    def watch(ctx: Context, call_next: Callable[[], Any]) -> Any:
        try:
            return call_next()
        except Exception:
            passed.append("Exception")
            raise
        finally:
            passed.append("finally")

    async def awatch(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call_next()
        except Exception:
            passed.append("Exception")
            raise
        finally:
            passed.append("finally")

    app.around(watch, awatch)

    @app.task(name="sync")
    def handler() -> None:
        raise verdict

    @app.task(name="async")
    async def ahandler() -> None:
        raise verdict

    job = run(app, (ahandler if is_async else handler).enqueue().id)
    assert (job.state, job.reason, passed) == (state, reason, ["finally"])


def test_a_middleware_may_translate_an_exception_or_decide_without_the_handler(memory_app: Holdfast) -> None:
    app, calls = memory_app, []

    @app.around
    def decide(ctx: Context, call_next: Callable[[], Any]) -> Any:
        if ctx.key == "later":
            raise Snooze(100)
        try:
            return call_next()
        except KeyError as error:
            raise Bury("there is no such row") from error

    @app.task(name="look", retry=5)
    def look() -> None:
        calls.append(1)
        raise KeyError("row")

    later, dead = look.options(key="later").enqueue(), look.enqueue()
    app.work(drain=True)
    assert later.refresh().state is State.SCHEDULED
    assert (dead.refresh().state, dead.failures, calls) == (State.DEAD, 0, [1])
    assert dead.error is not None and dead.error.text == "there is no such row"


def skips(ctx: Context, call_next: Callable[[], Any]) -> Any:
    return "handled"


async def askips(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return call_next()  # never awaited


def twice(ctx: Context, call_next: Callable[[], Any]) -> Any:
    call_next()
    return call_next()


@pytest.mark.parametrize(
    ("wrong", "told"), [(skips, "without `call_next()`"), (askips, "without `await"), (twice, "a second")]
)
def test_a_handler_that_did_not_run_exactly_once_is_a_failure(
    memory_app: Holdfast, wrong: Callable[..., Any], told: str
) -> None:
    app, calls = memory_app, []
    app.around(wrong)
    if wrong is askips:

        @app.task(name="work", retry=RetryPolicy(limit=0))
        async def awork() -> None:
            calls.append(1)
    else:

        @app.task(name="work", retry=RetryPolicy(limit=0))
        def work() -> None:
            calls.append(1)

    job = run(app, app.task_by_name("work").enqueue().id)
    assert job.state is State.DEAD and job.error is not None
    assert told in job.error.text and calls == ([1] if wrong is twice else [])


def test_a_middleware_that_does_not_fit_a_handler_stops_the_worker_before_it_takes_a_job(memory_app: Holdfast) -> None:
    app = memory_app

    @app.around
    def trace(ctx: Context, call_next: Callable[[], Any]) -> Any:
        return call_next()

    @app.task(name="send", retry=0)
    async def send() -> int:
        return 1

    job = send.enqueue()
    with pytest.raises(ConfigurationError, match=r"trace is written with `def`, and these handlers are async: send"):
        app.work(drain=True)
    assert (job.refresh().state, job.attempts) == (State.READY, 0)


def test_only_leaves_the_others_without_it(memory_app: Holdfast) -> None:
    app, seen = memory_app, []

    @app.around(only="sync")
    def close_connections(ctx: Context, call_next: Callable[[], Any]) -> Any:
        seen.append(ctx.task)
        return call_next()

    @app.task(name="sync")
    def sync_task() -> None: ...

    @app.task(name="async")
    async def async_task() -> None: ...

    for one in (sync_task, async_task):
        one.enqueue()
    assert app.work(drain=True).succeeded == 2
    assert seen == ["sync"]


def test_a_timeout_covers_the_middleware_and_cancels_it(memory_app: Holdfast) -> None:
    app, ended = memory_app, []

    @app.around
    async def slow(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            await asyncio.Event().wait()
            return await call_next()
        finally:
            ended.append(ctx.cancelled)

    @app.task(name="work", retry=0, timeout=0.05)
    async def work() -> None: ...

    job = run(app, work.enqueue().id)
    assert (job.state, job.reason, ended) == (State.DEAD, "timeout", [True])


async def both(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


def generator(ctx: Context, call_next: Callable[[], Any]) -> Any:
    yield call_next()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda app: app.around(7), "takes a function"),
        (lambda app: app.around(generator), "is a generator"),
        (lambda app: app.around(lambda ctx: None), r"must take \(ctx, call_next\)"),
        (lambda app: app.around(twice, skips), "both are sync"),
        (lambda app: app.around(only="sync")(both), "is written with `async def`"),
        (lambda app: app.around(only="every")(twice), "say only="),
        (lambda app: app.on_startup(lambda: None), r"must take \(resources\)"),
        (lambda app: app.on_enqueue(both), "plain `def`"),
    ],
)
def test_misuse_is_refused_where_it_is_registered(
    memory_app: Holdfast, wrong: Callable[[Any], object], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        wrong(memory_app)


def test_a_failure_s_traceback_begins_with_the_users_own_code(memory_app: Holdfast) -> None:
    app = memory_app
    app.around(both_sync)

    @app.task(name="work", retry=0)
    def work() -> None:
        raise ValueError("deep inside")

    job = run(app, work.enqueue().id)
    assert job.error is not None
    frames = [line for line in job.error.traceback.splitlines() if line.startswith("  File")]
    assert "both_sync" in frames[0] and " in work" in frames[-1]


def both_sync(ctx: Context, call_next: Callable[[], Any]) -> Any:
    return call_next()
