"""Batch handlers: jobs gathered into one call, each settled on its own."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs
from tests.worker.test_worker_ahead import begin, pool_of
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast import Bury, Call, Context, Failed, Holdfast, RetryPolicy, Snooze
from holdfast.context import Ended
from holdfast.errors import ConfigurationError, InvalidArguments, JobDied
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Lease, QueueRule, Release, WorkerRecord
from holdfast.testing import sandbox
from holdfast.worker.keeper.batches import BatchPlan, BatchStarter, Gathered, Together, batch_plan
from holdfast.worker.keeper.lease_renewal import Ledger
from holdfast.worker.processes.exit_outcomes import outcomes_after_exit

LONG = 50.0  # nothing here waits for it


@dataclass
class Point:
    x: int
    y: int = 0


def lease(number: int, task: str = "t", queue: str = "q", **facts: Any) -> Lease:
    return Lease(f"j{number}", f"token {number}", number, task, queue, b"{}", **facts)


def points(app: WorkerApp, seen: list[list[int]], kind: str = "async", **options: Any) -> Any:
    """A batch task that notes the x of its calls."""
    settings: dict[str, Any] = {"name": "points", "batch": 5, "batch_within": LONG, "batch_of": Point, **options}

    def note(calls: list[Call[Point]]) -> None:
        seen.append([call.args.x for call in calls])

    async def anote(calls: list[Call[Point]]) -> None:
        note(calls)

    return app.task(**settings)(anote if kind == "async" else note)


async def told_to_stop(call: Call[Any]) -> None:
    while not call.cancelled:  # noqa: ASYNC110 - a flag is all that a handler has
        await asyncio.sleep(0)


async def are(app: WorkerApp, state: State, *ids: str) -> None:
    """Wait until all these jobs are in that state."""
    while {(await app.job(job_id)).state for job_id in ids} != {state}:  # noqa: ASYNC110 - asks the store
        await asyncio.sleep(0)


# ---------------------------------------------------------------------- the calls


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_jobs_come_in_full_batches_and_the_rest_in_time(app: WorkerApp, kind: str) -> None:
    seen: list[list[int]] = []
    task = points(app, seen, kind, batch_within=0.01)
    ids = await app.put(*(task.bind(n) for n in range(12)))
    done = await app.drain(slots=2)
    assert sorted(map(len, seen)) == [2, 5, 5] and sorted(x for batch in seen for x in batch) == list(range(12))
    assert (done.succeeded, done.left) == (12, 0)
    jobs = [await app.job(job_id) for job_id in ids]
    assert {(job.state, job.attempts, job.value) for job in jobs} == {(State.SUCCEEDED, 1, b"null")}


async def test_one_slot_fills_a_batch(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch=50)
    await memory_app.put(*(task.bind(n) for n in range(100)))
    await memory_app.drain(slots=1)
    assert [len(batch) for batch in seen] == [50, 50]


async def test_beside_other_tasks_a_batch_fills_with_the_slots_that_are_free(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch=20)

    @memory_app.task(name="plain")
    async def plain() -> None: ...

    await memory_app.put(*(call for n in range(20) for call in (task.bind(n), plain.bind())))
    done = await memory_app.drain(slots=3)
    assert [len(batch) for batch in seen] == [20] and done.succeeded == 40


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_each_call_gets_its_own_result(app: WorkerApp, kind: str) -> None:
    def double(calls: list[Call[Point]]) -> list[int | BaseException]:
        return [ValueError("odd") if call.args.x % 2 else call.args.x * 2 for call in calls]

    async def adouble(calls: list[Call[Point]]) -> list[int | BaseException]:
        return double(calls)

    settings: dict[str, Any] = {"name": "double", "batch": 4, "batch_of": Point, "retry": 0}
    task: Any = app.task(**settings)(adouble if kind == "async" else double)
    ids = await app.put(*(task.bind(n) for n in range(4)))
    await app.drain()
    jobs = [await app.job(job_id) for job_id in ids]
    assert [job.state.value for job in jobs] == ["succeeded", "dead", "succeeded", "dead"]
    assert [jobs[0].value, jobs[2].value] == [b"0", b"4"]


@pytest.mark.parametrize("by", ["place", "call"])
async def test_failed_names_those_that_failed_and_the_others_succeed(memory_app: WorkerApp, by: str) -> None:
    @memory_app.task(name="some", batch=5, batch_of=Point, retry=RetryPolicy.fixed(100, limit=1))
    def some(calls: list[Call[Point]]) -> None:
        errors = {0: ValueError("no"), 2: Snooze(50), 4: Bury("never")}
        raise Failed(errors if by == "place" else {calls[n]: error for n, error in errors.items()})

    ids = await memory_app.put(*(some.bind(n) for n in range(5)))
    await memory_app.drain()
    jobs = [await memory_app.job(job_id) for job_id in ids]
    assert [job.state.value for job in jobs] == ["scheduled", "succeeded", "scheduled", "succeeded", "dead"]
    assert [job.failures for job in jobs] == [1, 0, 0, 0, 0]
    assert jobs[0].errors[-1].text == "no"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ([1], "returned 1 results"),
        ("ab", "returned a str"),
        (Failed({7: ValueError()}), "names 7, and this batch has 2 calls"),
    ],
)
async def test_what_does_not_name_each_call_fails_all(memory_app: WorkerApp, returned: Any, text: str) -> None:
    @memory_app.task(name="wrong", batch=2, batch_of=Point, retry=0)
    def wrong(calls: list[Call[Point]]) -> Any:
        if isinstance(returned, Failed):
            raise returned
        return returned

    ids = await memory_app.put(wrong.bind(1), wrong.bind(2))
    await memory_app.drain()
    for job_id in ids:
        job = await memory_app.job(job_id)
        assert job.state is State.DEAD and text in job.errors[-1].text


async def test_any_other_exception_fails_all_and_each_spends_its_own_retry(memory_app: WorkerApp) -> None:
    tried: list[list[int]] = []

    @memory_app.task(name="boom", batch=3, batch_of=Point, retry=RetryPolicy.fixed(0, limit=2))
    async def boom(calls: list[Call[Point]]) -> None:
        tried.append(sorted(call.attempt for call in calls))
        raise ValueError("all")

    calls = [boom.bind(1), boom.options(retry=0).bind(2), boom.bind(3)]
    ids = await memory_app.put(*calls)
    await memory_app.drain()
    jobs = [await memory_app.job(job_id) for job_id in ids]
    assert [(job.state.value, job.failures) for job in jobs] == [("dead", 3), ("dead", 1), ("dead", 3)]
    assert tried[0] == [1, 1, 1]


async def test_arguments_that_do_not_fit_end_their_own_job_only(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch=3)
    store = await memory_app.store()
    broken = structs.replace(task.bind(2).new, args=b'{"x":"?"}')
    made = await store.enqueue([task.bind(1).new, broken, task.bind(3).new])
    ids = [one.id for one in made]
    await memory_app.drain()
    assert seen == [[1, 3]]
    states = [(await memory_app.job(job_id)).state for job_id in ids]
    assert states == [State.SUCCEEDED, State.DEAD, State.SUCCEEDED]


async def test_middleware_and_a_context_see_the_batch_once(memory_app: WorkerApp) -> None:
    seen: list[Any] = []

    def around(ctx: Context, call_next: Any) -> Any:
        seen.append(ctx)
        return call_next()

    memory_app._hooks.add_around(around)

    @memory_app.task(name="logs", batch=2, batch_of=Point)
    def logs(ctx: Context, calls: list[Call[Point]]) -> None:
        assert ctx is Context.current() is seen[0]
        ctx.log("for all")
        ctx.progress(0.5)
        calls[1].log("for one")
        with pytest.raises(ConfigurationError, match="settle each by itself"):
            ctx.succeed(connection=None)

    ids = await memory_app.put(logs.bind(1), logs.bind(2))
    await memory_app.drain()
    assert len(seen) == 1 and [call.id for call in seen[0].calls] == ids
    jobs = [await memory_app.job(job_id) for job_id in ids]
    store = await memory_app.store()
    lines = [[line.text for line in await store.logs(job_id)] for job_id in ids]
    assert lines == [["for all"], ["for all", "for one"]]
    assert {job.state for job in jobs} == {State.SUCCEEDED}


# ---------------------------------------------------------------------- stopping


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_timeout_holds_for_the_whole_batch(memory_app: WorkerApp, kind: str) -> None:
    gate = threading.Event()

    def stuck(calls: list[Call[Point]]) -> None:
        while not calls[0].cancelled:
            gate.wait(0.005)

    async def astuck(calls: list[Call[Point]]) -> None:
        await asyncio.Event().wait()

    settings: dict[str, Any] = {"name": "stuck", "batch": 2, "batch_of": Point, "timeout": LONG, "retry": 0}
    task: Any = memory_app.task(**settings)(astuck if kind == "async" else stuck)
    ids = await memory_app.put(task.bind(1), task.options(timeout=0.02).bind(2))
    await memory_app.drain()
    jobs = [await memory_app.job(job_id) for job_id in ids]
    assert [(job.state, job.reason) for job in jobs] == [(State.DEAD, "timeout")] * 2


async def test_a_cancelled_job_is_cancelled_and_the_others_go_on(memory_app: WorkerApp) -> None:
    begun = asyncio.Event()

    @memory_app.task(name="slow", batch=3, batch_of=Point)
    async def slow(calls: list[Call[Point]]) -> list[int | BaseException]:
        begun.set()
        await told_to_stop(calls[1])
        assert not calls[0].cancelled and not Context.current().cancelled
        return [1, 2, 3]

    ids = await memory_app.put(*(slow.bind(n) for n in range(3)))
    running = asyncio.create_task(memory_app.drain(**ATTENTIVE))
    await soon(begun)
    await (await memory_app.store()).cancel(ids[1])
    await asyncio.wait_for(running, WAIT_SECONDS)
    states = [(await memory_app.job(job_id)).state.value for job_id in ids]
    assert states == ["succeeded", "cancelled", "succeeded"]


async def test_a_handler_whose_jobs_are_all_cancelled_is_cancelled(memory_app: WorkerApp) -> None:
    """One job of the batch has arguments that do not fit: the handler does not know of it."""
    begun = asyncio.Event()

    @memory_app.task(name="slow", batch=3, batch_of=Point)
    async def slow(calls: list[Call[Point]]) -> None:
        begun.set()
        await asyncio.Event().wait()

    store = await memory_app.store()
    broken = structs.replace(slow.bind(3).new, args=b'{"x":"?"}')
    ids = [one.id for one in await store.enqueue([slow.bind(1).new, slow.bind(2).new, broken])]
    running = asyncio.create_task(memory_app.drain(**ATTENTIVE))
    await soon(begun)
    for job_id in ids[:2]:
        await store.cancel(job_id)
    await asyncio.wait_for(running, WAIT_SECONDS)
    states = [(await memory_app.job(job_id)).state.value for job_id in ids]
    assert states == ["cancelled", "cancelled", "dead"]


async def test_a_lost_lease_records_nothing_and_the_others_do(memory_app: WorkerApp) -> None:
    begun, lost, tokens = asyncio.Event(), memory_app.listen("lease_lost"), list[str]()

    @memory_app.task(name="slow", batch=2, batch_of=Point)
    async def slow(calls: list[Call[Point]]) -> list[str | BaseException]:
        tokens.extend(call._lease.token for call in calls)
        begun.set()
        await told_to_stop(calls[0])
        return ["batch", "batch"]

    ids = await memory_app.put(slow.bind(1), slow.bind(2))
    running = asyncio.create_task(memory_app.drain(**ATTENTIVE))
    await soon(begun)
    store: Any = await memory_app.store()
    await store.settle([Settlement(id=ids[0], token=tokens[0], ending=Ending.SUCCEEDED, value=b'"other"')])
    assert (await lost.next()).job_id == ids[0]
    await asyncio.wait_for(running, WAIT_SECONDS)
    assert [(await memory_app.job(job_id)).value for job_id in ids] == [b'"other"', b'"batch"']


async def test_a_stop_while_gathering_gives_the_jobs_back_free(app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(app, seen, batch=10)
    ids = await app.put(*(task.bind(n) for n in range(3)))
    async with app.worker():
        await are(app, State.RUNNING, *ids)
    assert not seen
    jobs = [await app.job(job_id) for job_id in ids]
    assert {(job.state, job.attempts, job.stalls, job.shared_stalls) for job in jobs} == {(State.READY, 0, 0, 0)}


async def test_an_immediate_stop_cancels_the_handler_and_releases_its_jobs(memory_app: WorkerApp) -> None:
    begun = asyncio.Event()

    @memory_app.task(name="slow", batch=2, batch_of=Point)
    async def slow(calls: list[Call[Point]]) -> None:
        begun.set()
        await asyncio.Event().wait()

    ids = await memory_app.put(slow.bind(1), slow.bind(2))
    worker = memory_app.worker()
    async with worker:
        await soon(begun)
        worker.request_stop()
    jobs = [await memory_app.job(job_id) for job_id in ids]
    assert [job.state for job in jobs] == [State.READY] * 2


async def test_a_cancel_while_gathering_cancels(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch=3)
    ids = await memory_app.put(task.bind(1), task.bind(2))
    async with memory_app.worker(**ATTENTIVE):
        await are(memory_app, State.RUNNING, *ids)
        await (await memory_app.store()).cancel(ids[1])
        await are(memory_app, State.CANCELLED, ids[1])
        more = await memory_app.put(task.bind(3), task.bind(4))
        await are(memory_app, State.SUCCEEDED, ids[0], *more)
    assert seen == [[1, 3, 4]]


# ---------------------------------------------------------------------- groups, limits, marks


async def test_a_strict_group_has_one_job_in_a_batch_at_a_time(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    memory_app.rules = [QueueRule(name="default", group_prefetch=8)]
    task = points(memory_app, seen, batch_within=0.01, group=lambda y: f"g{y}")
    await memory_app.put(*(task.bind(n, n % 2) for n in range(8)))
    await memory_app.drain()
    assert all(len({x % 2 for x in batch}) == len(batch) for batch in seen)
    for group in (0, 1):
        assert [x for batch in seen for x in batch if x % 2 == group] == list(range(group, 8, 2))


async def test_each_job_counts_against_a_limit(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch_within=0.01, batch=10, limit=3)
    await memory_app.put(*(task.bind(n) for n in range(7)))
    await memory_app.drain()
    assert max(map(len, seen)) == 3 and sum(map(len, seen)) == 7


@pytest.mark.parametrize("caps", [{"queues": {"default": 1}}, {"task_slots": {"points": 1}}])
async def test_caps_of_a_worker_count_calls_not_jobs(memory_app: WorkerApp, caps: dict[str, Any]) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen)
    await memory_app.put(*(task.bind(n) for n in range(10)))
    await memory_app.drain(slots=4, **caps)
    assert [len(batch) for batch in seen] == [5, 5]


async def test_at_most_once_jobs_are_marked_when_their_batch_starts(memory_app: WorkerApp) -> None:
    faulty = memory_app.break_store()
    marks: list[bool] = []

    @memory_app.task(name="once", batch=2, batch_of=Point, max_stalls=0, batch_within=LONG)
    async def once(calls: list[Call[Point]]) -> None:
        marks.append("begin" in faulty.calls)

    ids = await memory_app.put(once.bind(1))
    async with memory_app.worker():
        await are(memory_app, State.RUNNING, *ids)
        assert "begin" not in faulty.calls
        ids += await memory_app.put(once.bind(2))
        await are(memory_app, State.SUCCEEDED, *ids)
    assert marks == [True]


# ---------------------------------------------------------------------- alone


def test_inline_and_eager_give_lists_of_one_and_a_drain_waits_for_nothing() -> None:
    app = Holdfast("memory://")
    seen: list[int] = []

    @app.task(name="sizes", batch=10, batch_of=Point, batch_within=LONG)
    def sizes(calls: list[Call[Point]]) -> list[int | BaseException]:
        seen.append(len(calls))
        return [call.args.x for call in calls]

    with sandbox(app) as box:
        for n in range(3):
            sizes.enqueue(n)
        box.drain()
        sizes.enqueue(1), sizes.enqueue(2)
        box.drain(inline=True)
    with app.eager():
        assert sizes.enqueue(7).result(timeout=0) == 7
    assert seen == [3, 1, 1, 1]


def test_a_failing_batch_of_one_raises_in_eager() -> None:
    app = Holdfast("memory://")

    @app.task(name="no", batch=10, retry=0)
    def no(calls: list[Call[dict[str, Any]]]) -> None:
        raise Failed({calls[0]: ValueError(calls[0].args["why"])})

    with app.eager(), pytest.raises((ValueError, JobDied), match="because"):
        no.enqueue(why="because")


# ---------------------------------------------------------------------- bad input


def test_what_belongs_to_one_job_goes_through_its_call() -> None:
    """The whole has no steps, and what it enqueued would come with nobody's success."""
    app, refused = Holdfast("memory://"), list[str]()

    @app.task(name="other")
    def other() -> None: ...

    @app.task(name="many", batch=2)
    def many(ctx: Context, calls: list[Call[Any]]) -> None:
        refusing = [lambda: ctx.enqueue(other.bind()), lambda: ctx.step("a", int), lambda: calls[0].sleep(days=1)]
        for refuse in refusing:
            with pytest.raises(ConfigurationError) as caught:
                refuse()  # type: ignore[no-untyped-call]
            refused.append(str(caught.value))
        for call in calls:
            call.enqueue(other.bind())
        raise Failed({0: Bury("no child")})

    with sandbox(app) as box:
        app.enqueue_many([many.bind(), many.bind()])
        box.drain()
        assert sorted(job.state for job in app.jobs(task="many")) == ["dead", "succeeded"]
        assert len(refused) == 3 and "call.enqueue" in refused[0] and "belong to one job" in refused[1]
        assert app.count(task="other").total == 1


async def test_a_job_that_may_not_start_again_is_left_out_of_the_batch(memory_app: WorkerApp) -> None:
    seen: list[list[int]] = []
    task = points(memory_app, seen, batch=2, max_starts=1)
    spent, fresh = await memory_app.put(task.bind(x=1), task.bind(x=2))
    store = await memory_app.store()
    await store.register(WorkerRecord(id="dead", lease_seconds=0.001))
    leased = await store.claim(ClaimRequest(worker="dead", call=1, queues=("default",), most=1))
    assert [one.id for one in leased.leases] == [spent]
    await memory_app.drain()
    assert seen == [[2]]
    assert (await memory_app.job(spent)).reason == "starts"
    assert (await memory_app.job(fresh)).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch= must be"),
        ({"batch": 2000}, "batch= must be"),
        ({"batch_within": 1.0}, "Give batch= too"),
        ({"batch_of": Point}, "Give batch= too"),
        ({"batch": 5, "batch_of": "Point"}, "batch_of= takes"),
        ({"batch": 5, "batch_within": 61}, "at most 60 s"),
        ({"batch": 5, "isolation": "process"}, "exclude each other"),
    ],
)
def test_what_a_batch_task_cannot_be(memory_app: WorkerApp, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        points(memory_app, [], **{"batch": None, "batch_within": None, "batch_of": None, **options})


def test_a_batch_handler_takes_one_list(memory_app: WorkerApp) -> None:
    with pytest.raises(ConfigurationError, match="takes one parameter"):

        @memory_app.task(name="bad", batch=5)  # type: ignore[arg-type]
        def bad(x: int, y: int) -> None: ...


def test_arguments_are_checked_at_enqueue(memory_app: WorkerApp) -> None:
    task = points(memory_app, [])
    with pytest.raises(InvalidArguments, match="'x'"):
        task.bind("three")
    with pytest.raises(InvalidArguments, match="missing 'x'"):
        task.bind(y=1)

    @memory_app.task(name="open", batch=5)
    def open_(calls: list[Call[dict[str, Any]]]) -> None: ...

    assert open_.bind(a=1, b=[2]).new.args == b'{"a":1,"b":[2]}'
    with pytest.raises(InvalidArguments, match="pass them by name"):
        open_.bind(1)
    with pytest.raises(InvalidArguments, match="plain JSON only"):
        open_.bind(a=Point(1))
    with pytest.raises(ConfigurationError, match="batch= belongs to the task"):
        task.options(batch=3)
    with pytest.raises(ConfigurationError, match="takes exceptions"):
        Failed({0: "no"})  # type: ignore[dict-item]


# ---------------------------------------------------------------------- bookkeeping


def test_a_batch_takes_one_slot_until_its_last_job_has_ended() -> None:
    ledger, batch = Ledger(4, {"q": 2}, {"t": 3}), dict[str, None]()
    leases = [lease(n) for n in range(3)]
    ledger.add([*leases, lease(9, "u")])
    for one in leases:
        ledger.together.join(one.token, batch)
    assert ledger.spare(0) == 2 and ledger.together.batches == 1
    assert (ledger.free_by_queue(), ledger.free_by_task()) == ({"q": 0}, {"t": 2})
    ledger.ended([Release(id=leases[0].id, token=leases[0].token)])
    assert ledger.spare(0) == 2 and not ledger.together.is_behind("token 1") and ledger.together.is_behind("token 2")
    ledger.ended([Release(id=f"j{n}", token=f"token {n}") for n in (1, 2)])
    assert ledger.spare(0) == 3 and ledger.together.behind == 0 == ledger.together.batches


class Holder:
    """Runners, as far as gathering goes."""

    def __init__(self, plan: BatchPlan) -> None:
        self.batches, self.posted = plan, list[Ended]()
        self.gathered = Gathered(self.posted.extend)


def test_how_many_jobs_fit_where() -> None:
    plan = batch_plan([(("a", "old"), "qa", 10, None), (("b",), "qb", 20, 1.0), (("c",), "qc", None, None)])
    assert plan.queues == {"qa", "qb"} and plan.sizes() == {"a": 10, "b": 20}
    assert plan.unchained({"qa": 8, "qc": 8}) == {"qc": 8}
    holder: Any = Holder(plan)
    starter = BatchStarter(holder, Ledger(5, {}), lambda leases: None)
    assert starter.room(3, ["qa"]) == 30
    assert starter.room(3, ["qa", "qb"]) == 10  # one slot each for a last, small batch
    assert starter.room(1, ["qa", "qb"]) == 1
    assert starter.room(3, ["qa", "qc"]) == 3
    assert starter.widened({"qa": 1, "qc": 2}, {"b": 2, "c": 4}) == ({"qa": 10, "qc": 2}, {"b": 40, "c": 4})


async def test_chained_jobs_do_not_go_into_a_batch_and_suspects_run_alone() -> None:
    holder: Any = Holder(batch_plan([(("t",), "q", 3, LONG), (("u",), "r", None, None)]))
    started: list[list[Lease]] = []
    starter = BatchStarter(holder, Ledger(5, {}), started.append)
    head, behind = lease(1), lease(2, chained=True)
    other, mixed, last = lease(3, "u"), lease(4, chained=True), lease(5, "u", chained=True)
    suspect = lease(6, suspect=True)
    others, strays, taken = starter.gather([head, behind, other, mixed, last, suspect])
    assert others == [other, suspect] and strays == [behind, mixed, last] and taken == 1
    assert holder.gathered.number == 1 and not started
    assert starter.gather([lease(7), lease(8), lease(9)])[2] == 1  # the fourth begins another batch
    assert started == [[head, lease(7), lease(8)]]
    assert holder.gathered.withdraw([other, lease(9)]) == [other]
    assert [end.id for end in holder.posted] == ["j9"] and not holder.gathered.by_task


async def test_a_pool_gives_a_batch_to_one_runner_and_counts_it_once() -> None:
    with pool_of(2, slots=2) as (pool, runners):
        pool.start_batch([lease(n) for n in range(5)])
        held = [runner for runner in runners if runner.jobs]
        assert len(held) == 1 and len(held[0].jobs) == 5 and held[0].room == 1
        pool.start_batch([lease(n) for n in range(5, 8)])
        assert [runner.room for runner in runners] == [1, 1]
        for n in range(8):
            for runner in runners:
                runner.drop(f"token {n}")
        assert [runner.room for runner in runners] == [2, 2] and not held[0].together.of
        assert len(held[0]._batch_flags) == 4000
        for runner in runners:
            runner.blocked = True
        pool.start_batch([lease(1), lease(2)])
        assert [end.id for end in pool.signals.ended] == ["j1", "j2"]


async def test_a_crash_blames_no_job_of_a_batch_alone() -> None:
    with pool_of(1, slots=1) as (pool, (runner,)):
        pool.start_batch([lease(n) for n in range(3)])
        begin(runner, 2)
        ends = outcomes_after_exit(runner, 9, 0, 5.0).ended
        crashed = [end for end in ends if isinstance(end, Settlement)]
        assert [(end.ending, end.alone) for end in crashed] == [(Ending.STALLED, False)] * 2
        assert [end.id for end in ends if isinstance(end, Release)] == ["j2"]


def test_tokens_that_are_not_in_a_batch_are_nobody() -> None:
    together = Together()
    together.drop("unknown")
    assert not together.is_behind("unknown") and together.others("unknown") == 0
