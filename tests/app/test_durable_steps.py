"""Durable steps as users write them: what is done once, sleeps, signals, versions, the job's own state."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Bury, Context, Holdfast, RetryPolicy, SignalTimedOut, State, names, step_replay
from holdfast.errors import ConfigurationError, InvalidArguments, JobNotFound, LeaseLost, StateConflict, StepsChanged
from holdfast.job import Job
from holdfast.steps import STEPS_MAX
from holdfast.testing import Sandbox, sandbox

AGAIN = RetryPolicy(limit=5, base=0.0, jitter=0.0)


@dataclasses.dataclass
class Receipt:
    amount: int


def last_error(job: Job[Any]) -> str:
    error = job.refresh().error
    return "" if error is None else error.text


def test_a_finished_step_is_not_done_again(app: Holdfast) -> None:
    seen: list[str] = []

    def charge(amount: int) -> Receipt:
        seen.append("charge")
        return Receipt(amount)

    def ship() -> str:
        seen.append("ship")
        if seen.count("ship") < 3:
            raise OSError("no carrier")
        return "shipped"

    @app.task(name="order", retry=AGAIN)
    def order(ctx: Context, amount: int) -> str:
        receipt = ctx.step("charge", charge, amount=amount)
        assert type(receipt) is Receipt  # rebuilt from the annotation, in every attempt
        return f"{ctx.step('ship', ship)} for {receipt.amount}"

    job = order.enqueue(7)
    app.work(drain=True)
    assert job.result(timeout=10) == "shipped for 7"
    assert seen == ["charge", "ship", "ship", "ship"]


def test_the_same_in_an_async_handler(app: Holdfast) -> None:
    seen: list[str] = []

    async def note(what: str) -> str:
        seen.append(what)
        return what

    def blocking(what: str) -> str:
        seen.append(what)
        assert Context.current().id  # it runs in a thread, with the context
        return what

    @app.task(name="aorder", retry=AGAIN)
    async def aorder(ctx: Context) -> list[str]:
        first = await ctx.step("a", note, "a")
        second = await ctx.astep("b", blocking, "b")
        both = await asyncio.gather(ctx.step("c", note, "c"), ctx.astep("d", note, "d"))
        if ctx.attempt < 3:
            raise OSError
        return [first, second, *both]

    job = aorder.enqueue()
    app.work(drain=True)
    assert job.result(timeout=10) == ["a", "b", "c", "d"]
    assert sorted(seen) == ["a", "b", "c", "d"]


def test_steps_in_a_loop_and_after_a_revival(app: Holdfast) -> None:
    seen: list[int] = []
    broken = [True]

    def add(number: int) -> int:
        seen.append(number)
        return number

    @app.task(name="loop", retry=0)
    def loop(ctx: Context) -> int:
        total = 0
        for number in range(4):
            total += ctx.step(f"item-{number}", add, number)
            if number == 2 and broken:
                raise Bury("stop here")
        return total

    job = loop.enqueue()
    app.work(drain=True)
    assert job.refresh().state is State.DEAD
    broken.clear()
    app.dead.revive(job.id)
    app.work(drain=True)
    assert job.result(timeout=10) == 6
    assert seen == [0, 1, 2, 3]
    app.retry(job)  # it succeeded: this is a new run, from the beginning
    app.work(drain=True)
    assert seen == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.fixture
def box(memory_app: Holdfast) -> Any:
    with sandbox(memory_app) as made:
        yield made


def test_a_sleep_gives_the_slot_back_and_is_over_after_its_time(box: Sandbox) -> None:
    tops: list[int] = []

    @box.app.task(name="nap", retry=0)
    def nap(ctx: Context) -> str:
        tops.append(ctx.attempt)
        ctx.sleep(days=3)
        ctx.sleep(60, name="short")
        return "woken"

    @box.app.task(name="anap", retry=0)
    async def anap(ctx: Context) -> str:
        await ctx.sleep(hours=72.0, minutes=1)
        return "woken"

    jobs = [nap.enqueue(), anap.enqueue()]
    box.drain()
    assert [job.refresh().state for job in jobs] == [State.SCHEDULED] * 2
    box.clock.advance(days=2)
    box.app.run_now(jobs[0])  # too early: it goes on sleeping
    box.drain()
    assert jobs[0].refresh().state is State.SCHEDULED
    box.clock.advance(days=1, seconds=1)
    box.drain()
    assert jobs[0].refresh().state is State.SCHEDULED
    box.clock.advance(60)
    box.drain()
    assert [job.result(timeout=1) for job in jobs] == ["woken"] * 2
    assert jobs[0].refresh().failures == 0
    assert tops == [1, 2, 3, 4]


def test_a_signal_wakes_its_job(box: Sandbox) -> None:
    @box.app.task(name="pay")
    def pay(ctx: Context) -> Any:
        return ctx.wait_for("paid")

    @box.app.task(name="apay")
    async def apay(ctx: Context) -> Any:
        return await ctx.wait_for("paid", timeout=60)

    jobs = [pay.enqueue(), apay.enqueue()]
    early = pay.enqueue()
    box.app.signal(early, "paid", "early")
    box.drain()
    assert early.result(timeout=1) == "early"
    assert [job.refresh().state for job in jobs] == [State.SCHEDULED] * 2
    for job in jobs:
        assert box.app.signal(job, "paid", {"by": [1, None]}, by="ann").state is State.READY
        box.app.signal(job.id, "paid", "a second one does not count")
    box.drain()
    assert [job.result(timeout=1) for job in jobs] == [{"by": [1, None]}] * 2


def test_a_wait_ends_with_its_timeout_for_good(box: Sandbox) -> None:
    late = [True]

    @box.app.task(name="pay", retry=AGAIN)
    def pay(ctx: Context) -> list[Any]:
        given = ctx.wait_for("paid", timeout=60, default="nothing")
        try:
            ctx.wait_for("shipped", timeout=1)
        except SignalTimedOut as fault:
            if late:
                late.clear()
                box.app.signal(ctx.id, "shipped", "too late")
                raise OSError from fault
            return [given, str(fault)]
        return [given]

    job = pay.enqueue()
    box.drain()
    box.clock.advance(61)
    box.drain()
    box.clock.advance(2)
    box.drain()
    assert job.result(timeout=1) == [
        "nothing",
        "signal 'shipped' did not come within 1 s. Catch this, or give wait_for(default=…).",
    ]


def test_signals_to_jobs_that_cannot_take_them(app: Holdfast) -> None:
    @app.task(name="done")
    def done() -> None: ...

    job = done.enqueue()
    with pytest.raises(InvalidArguments, match="signal paid"):
        app.signal(job, "paid", object())
    with pytest.raises(InvalidArguments, match="bytes"):
        app.signal(job, "paid", "x" * (app.result_bytes_max + 1))
    with pytest.raises(ConfigurationError, match="name of a signal"):
        app.signal(job, "", 1)
    app.work(drain=True)
    with pytest.raises(StateConflict, match="succeeded"):
        app.signal(job, "paid", 1)
    with pytest.raises(JobNotFound):
        app.signal("nobody", "paid", 1)


CHANGES = {
    "renamed": ("a x c", "number 2: an earlier attempt stored step 'b', but the handler called step 'x'"),
    "in another order": ("a c b", "number 2: an earlier attempt stored step 'b', but the handler called step 'c'"),
    "removed": ("a b", "number 3: an earlier attempt stored step 'c', but the handler returned without it"),
    "inserted": ("a x b c", "number 2: an earlier attempt stored step 'b', but the handler called step 'x'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_handler_gets_an_error_that_names_the_difference(memory_app: Holdfast, change: str) -> None:
    names = ["a", "b", "c"]

    @memory_app.task(name="changing", retry=0)
    def changing(ctx: Context) -> None:
        for name in names:
            ctx.step(name, int)
        if names == ["a", "b", "c"]:
            raise Bury

    job = changing.enqueue()
    memory_app.work(drain=True)
    changed, told = CHANGES[change]
    names[:] = changed.split()
    memory_app.dead.revive(job.id)
    memory_app.work(drain=True)
    assert told in last_error(job)
    assert job.error is not None and job.error.type == "holdfast.errors.StepsChanged"
    assert StepsChanged("j", 2, "step 'b'", None).stored == "step 'b'"


def test_a_version_lets_old_jobs_follow_the_old_way(memory_app: Holdfast) -> None:
    is_new: list[bool] = []
    seen: list[str] = []

    @memory_app.task(name="versioned", retry=0)
    def versioned(ctx: Context) -> list[int]:
        ctx.step("a", seen.append, "a")
        version = ctx.version("check", 2) if is_new else 1
        if version >= 2:
            ctx.step("check", seen.append, "check")
        ctx.step("b", seen.append, "b")
        if not is_new:
            raise Bury
        return [version, ctx.version("check", 3)]

    @memory_app.task(name="aversioned")
    async def aversioned(ctx: Context) -> int:
        return await ctx.aversion("check", 5)

    old = versioned.enqueue()
    memory_app.work(drain=True)
    is_new.append(True)
    memory_app.dead.revive(old.id)
    new, another = versioned.enqueue(), aversioned.enqueue()
    memory_app.work(drain=True)
    assert (old.result(timeout=1), new.result(timeout=1), another.result(timeout=1)) == ([1, 3], [2, 2], 5)
    assert seen == ["a", "b", "a", "check", "b"]


def test_a_job_has_a_state_of_its_own(app: Holdfast) -> None:
    @app.task(name="count", retry=AGAIN)
    def count(ctx: Context) -> Any:
        ctx.save({"seen": [*(ctx.state or {"seen": []})["seen"], ctx.attempt]})
        if ctx.attempt < 3:
            raise OSError
        return ctx.state

    @app.task(name="acount", retry=AGAIN)
    async def acount(ctx: Context) -> Any:
        await ctx.asave((await ctx.astate() or 0) + 1)
        if ctx.attempt < 3:
            raise OSError
        return await ctx.astate()

    jobs = [count.enqueue(), acount.enqueue()]
    app.work(drain=True)
    assert [job.result(timeout=10) for job in jobs] == [{"seen": [1, 2, 3]}, 3]


def test_a_step_of_a_lost_lease_raises_and_stores_nothing(memory_app: Holdfast) -> None:
    seen: list[str] = []

    @memory_app.task(name="loser", retry=0)
    def loser(ctx: Context) -> None:
        def lose() -> None:  # as if its worker were taken for dead
            worker = memory_app.job(ctx.id).worker or ""
            memory_app._store.call(lambda backend: backend.retire(worker))

        if seen:
            return
        try:
            ctx.step("lose", lose)
        except LeaseLost as fault:
            seen.append(fault.job_id)
            raise

    job = loser.enqueue()
    memory_app.work(drain=True)
    assert seen == [job.id]
    steps = memory_app._store.call(lambda backend: backend.steps(job.id))
    assert steps.steps == ()


def mistakes(app: Holdfast) -> dict[str, tuple[Any, str]]:
    """Handlers that use steps wrongly, and what their failure says."""

    def twice(ctx: Context) -> None:
        ctx.step("a", int)
        ctx.step("a", int)

    def nested(ctx: Context) -> None:
        ctx.step("outer", lambda: ctx.step("inner", int))

    def too_many(ctx: Context) -> None:
        ctx._durable()._begun.update((f"step {n}", n) for n in range(STEPS_MAX))
        ctx.step("one more", int)

    def not_json(ctx: Context) -> None:
        ctx.step("odd", object)

    def nameless(ctx: Context) -> None:
        ctx.step("", int)

    def async_in_sync(ctx: Context) -> None:
        _ = ctx.step("a", asyncio.sleep, 0)

    def astep_in_sync(ctx: Context) -> None:
        _ = ctx.astep("a", int)

    async def sync_in_async(ctx: Context) -> None:
        ctx.step("a", int)

    async def state_in_async(ctx: Context) -> None:
        ctx.save(1)

    async def not_awaited(ctx: Context) -> None:
        sleeping = ctx.sleep(5)
        await asyncio.sleep(0)
        sleeping.close()  # type: ignore[attr-defined]

    return {
        "twice": (twice, "step 'a' was called twice in one attempt"),
        "nested": (nested, "a step cannot contain another: step 'outer' is running"),
        "too many": (too_many, f"a job has at most {STEPS_MAX} steps"),
        "not JSON": (not_json, "step 'odd' of bad"),
        "nameless": (nameless, "name of a step"),
        "async in sync": (async_in_sync, "is async, but the handler is not"),
        "astep in sync": (astep_in_sync, "ctx.astep() is for async handlers"),
        "sync in async": (sync_in_async, "Use `await ctx.astep('a', …)`"),
        "state in async": (state_in_async, "Use `await ctx.asave(…)`"),
        "not awaited": (not_awaited, "returned before 'sleep-1' was over"),
    }


@pytest.mark.parametrize("what", mistakes(Holdfast("memory://")))
def test_a_mistake_in_a_handler_is_named_in_its_error(memory_app: Holdfast, what: str) -> None:
    handler, told = mistakes(memory_app)[what]
    job = memory_app.task(name="bad", retry=0)(handler).enqueue()
    memory_app.work(drain=True)
    assert told in last_error(job)


def test_steps_that_threads_begin_at_once_have_numbers_of_their_own(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, check = memory_app, names.check_name

    @app.task(name="both", retry=0)
    def both(ctx: Context) -> list[str]:
        def another_thread_comes_first(name: str, what: str) -> str:
            if name == "a":
                found.append(ctx.step("b", str, "b"))
            return check(name, what)

        monkeypatch.setattr(step_replay, "check_name", another_thread_comes_first)
        return [ctx.step("a", str, "a"), *found]

    found = list[str]()
    job = both.enqueue()
    app.work(drain=True)
    assert job.result(timeout=10) == ["a", "b"]
    assert {step.name: step.number for step in app.steps(job)} == {"b": 1, "a": 2}


def test_threads_that_make_the_first_calls_share_one_order(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find that there is no order yet, if nothing keeps them apart."""
    app, begin, met = memory_app, step_replay.Replay.__init__, threading.Barrier(2)

    def slowly(self: step_replay.Replay, context: Context) -> None:
        with suppress(threading.BrokenBarrierError):
            met.wait(timeout=0.5)
        begin(self, context)

    @app.task(name="both", retry=0)
    def both(ctx: Context) -> list[str]:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda name: ctx.step(name, str, name), ["a", "b"]))

    monkeypatch.setattr(step_replay.Replay, "__init__", slowly)
    job = both.enqueue()
    app.work(drain=True)
    assert job.result(timeout=10) == ["a", "b"]
    assert sorted(step.number for step in app.steps(job)) == [1, 2]


def test_eager_and_plain_calls_skip_time(memory_app: Holdfast) -> None:
    @memory_app.task(name="nap")
    def nap(ctx: Context) -> list[Any]:
        ctx.sleep(days=3)
        return [ctx.step("a", int, "7"), ctx.wait_for("paid", timeout=5, default="no")]

    @memory_app.task(name="stuck")
    def stuck(ctx: Context) -> None:
        ctx.wait_for("paid")

    with memory_app.eager():
        assert nap.enqueue().value == [7, "no"]
        with pytest.raises(ConfigurationError, match="signal 'paid' has not been sent"):
            stuck.enqueue()
    assert nap() == [7, "no"]


def test_steps_work_inline(box: Sandbox) -> None:
    @box.app.task(name="here")
    def here(ctx: Context) -> int:
        ctx.sleep(60)
        return ctx.step("a", int, "7")

    @box.app.task(name="ahere")
    async def ahere(ctx: Context) -> int:
        return await ctx.astep("a", int, "8")

    jobs = [here.enqueue(), ahere.enqueue()]
    box.drain(inline=True)
    box.clock.advance(61)
    box.drain(inline=True)
    assert [job.result(timeout=1) for job in jobs] == [7, 8]


def test_a_plain_job_asks_the_store_nothing(memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    backend = memory_app._store.unopened
    monkeypatch.setattr(backend, "steps", lambda job_id: asked.append(job_id))
    monkeypatch.setattr(backend, "checkpoint", lambda held, steps: asked.append(held.id))

    @memory_app.task(name="plain")
    def plain(ctx: Context) -> int:
        return ctx.attempt

    assert plain.enqueue() and memory_app.work(drain=True).succeeded == 1
    assert asked == []


def test_the_log_tells_what_a_job_waits_for(memory_app: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @memory_app.task(name="pay")
    def pay(ctx: Context) -> None:
        ctx.wait_for("paid", timeout=60)

    pay.enqueue()
    with caplog.at_level("INFO"):
        memory_app.work(drain=True)
    assert "again when signal 'paid' arrives, or in 60" in caplog.text
