"""Jobs leased by hand: every outcome, the lost and the cancelled lease, and what a block leaves, on every store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.moving.stage import fresh_url

from holdfast import (
    BackendUnavailable,
    ConfigurationError,
    Holdfast,
    InvalidResult,
    JobCancelled,
    LeaseLost,
    OutcomeUnknown,
    RetryPolicy,
    Snooze,
    State,
)
from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, Exchanged, Held
from holdfast.worker.keeper.identity import new_worker

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]
WITHIN_SECONDS = 60.0
DYING = {"fatal": 0, "patient": 3}  # task: how many stalls it may have


@pytest.fixture(params=KINDS)
def leased_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else fresh_url(request.param, tmp_path)
    with Holdfast(url) as made:
        made.queue("mail")

        @made.task(name="send", queue="mail", retry=RetryPolicy.fixed(60, limit=1))
        def send(to: str) -> str:
            raise AssertionError("nobody runs the handler")

        yield made


def send(app: Holdfast, to: str, **options: Any) -> Any:
    return app.task_by_name("send", queue="mail", **options).enqueue(to=to)


def test_each_outcome_has_its_effect_and_its_count(leased_app: Holdfast) -> None:
    app = leased_app
    jobs = {name: send(app, name) for name in ("done", "failed", "again", "later", "buried", "back", "left")}
    with app.lease("mail", most=10) as leased:
        by_name = {job.args["to"]: job for job in leased}
        assert set(by_name) == set(jobs)
        assert {job.refresh().state for job in jobs.values()} == {State.RUNNING}
        by_name["done"].succeed({"sent": 1})
        by_name["failed"].fail(ValueError("no such mailbox"))
        by_name["again"].retry(after=500, reason="busy")
        by_name["later"].snooze(500)
        by_name["buried"].bury("not our customer")
        by_name["back"].release()
        assert jobs["done"].refresh().state is State.SUCCEEDED, "the outcome is stored when succeed() returns"
    seen = {name: job.refresh() for name, job in jobs.items()}
    assert seen["done"].value == {"sent": 1}
    assert {name: job.state for name, job in seen.items()} == {
        "done": State.SUCCEEDED,
        "failed": State.SCHEDULED,
        "again": State.SCHEDULED,
        "later": State.SCHEDULED,
        "buried": State.DEAD,
        "back": State.READY,
        "left": State.READY,
    }
    counted = {name: (job.attempts, job.failures, job.stalls) for name, job in seen.items()}
    assert counted == {
        "done": (1, 0, 0),
        "failed": (1, 1, 0),
        "again": (1, 1, 0),
        "later": (1, 0, 0),
        "buried": (1, 0, 0),
        "back": (0, 0, 0),
        "left": (0, 0, 0),
    }
    assert "no such mailbox" in seen["failed"].error.text
    assert not app.workers() and not app.audit().violations


def test_a_failure_with_no_retry_left_is_a_dead_letter(leased_app: Holdfast) -> None:
    app = leased_app
    job = send(app, "ann")
    for _ in range(2):
        with app.lease("mail") as (leased,):
            assert leased.id == job.id and leased.failures == job.refresh().failures
            leased.fail("the mail server said no")
        if job.refresh().state is State.SCHEDULED:
            app.run_now(job)
    assert job.refresh().state is State.DEAD and job.failures == 2
    assert [letter.id for letter in app.dead.list()] == [job.id]


def test_async_blocks_wait_for_work_and_settle(leased_app: Holdfast) -> None:
    app = leased_app

    async def both() -> None:
        async with app.lease("mail") as nothing:
            assert nothing == []
        waiting = asyncio.create_task(take(app))
        job = await app.task_by_name("send", queue="mail").aenqueue(to="ann")
        assert await asyncio.wait_for(waiting, WITHIN_SECONDS) == job.id
        assert (await job.arefresh()).value == "sent to ann"

    asyncio.run(both())


async def take(app: Holdfast) -> str:
    async with app.lease(["mail", "other"], most=5, wait=WITHIN_SECONDS) as jobs:
        (job,) = jobs
        await job.asucceed(f"sent to {job.args['to']}")
        return job.id


def test_a_lost_lease_settles_nothing(leased_app: Holdfast) -> None:
    app = leased_app
    job = send(app, "ann")
    with app.lease("mail") as (mine,):
        dead = [worker.id for worker in app.workers()]
        app._store.call(lambda backend: backend.recover(dead=dead))
        assert job.refresh().state is State.READY
        with app.lease("mail") as (theirs,):
            assert theirs.fence > mine.fence
            with pytest.raises(LeaseLost):
                mine.succeed("too late")
            assert mine.lost and not theirs.lost
            theirs.succeed("in time")
    assert job.refresh().value == "in time" and job.stalls == 1


def test_a_job_is_settled_once(leased_app: Holdfast) -> None:
    app = leased_app
    job = send(app, "ann")
    with app.lease("mail") as (leased,):
        leased.succeed(1)
        with pytest.raises(LeaseLost):
            leased.fail("second thoughts")
    assert job.refresh().value == 1 and job.attempts == 1


def test_a_cancelled_job_ends_as_cancelled(leased_app: Holdfast) -> None:
    app = leased_app
    job = send(app, "ann")
    with app.lease("mail") as (leased,):
        app.cancel(job)
        with pytest.raises(JobCancelled):
            leased.succeed("too late")
    assert job.refresh().state is State.CANCELLED and job.value is None


def test_a_result_that_cannot_be_stored_leaves_the_lease_as_it_is(leased_app: Holdfast) -> None:
    job = send(leased_app, "ann")
    with leased_app.lease("mail") as (leased,):
        with pytest.raises(InvalidResult):
            leased.succeed(object())
        leased.succeed("text")
    assert job.refresh().value == "text"


def test_an_exception_in_the_block_gives_the_jobs_back(leased_app: Holdfast) -> None:
    jobs = [send(leased_app, str(number)) for number in range(3)]

    def one_of_three() -> None:
        with leased_app.lease("mail", most=3) as leased:
            leased[0].succeed()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one_of_three()
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED, State.READY, State.READY]


def test_an_at_most_once_job_that_the_block_leaves_does_not_run_again(leased_app: Holdfast) -> None:
    job = send(leased_app, "ann", max_stalls=0, retry=0)
    with leased_app.lease("mail"):
        pass
    assert job.refresh().state is State.DEAD and job.reason == "stalled"


def test_a_renewal_while_at_most_once_jobs_are_marked_names_their_leases(leased_app: Holdfast) -> None:
    """A lease that is not named is given back, and another program would start the job beside this one."""
    app = leased_app
    job = send(app, "ann", max_stalls=0, retry=0)
    block, backend = app.lease("mail"), app._store.open()
    mark = backend.begin

    async def renewed_meanwhile(held: Sequence[Held], now: float | None = None) -> list[Answer]:
        assert await block._pull._renew()
        return await mark(held, now)

    backend.begin = renewed_meanwhile  # type: ignore[method-assign]
    with block as (leased,):
        assert job.refresh().state is State.RUNNING
        leased.succeed("once")
    assert job.refresh().value == "once" and job.attempts == 1


def test_a_claim_that_times_out_is_repeated_with_less(memory_app: Holdfast) -> None:
    """Ten jobs with large arguments over a slow line: asked for again unchanged, they would never come."""
    app, asked = memory_app, list[ClaimRequest]()
    app.queue("mail")
    for to in "abcdefghij":
        send(app, to)
    block, backend = app.lease("mail", most=10), app._store.open()
    exchange = backend.exchange

    async def slowly(settlements: Any, releases: Any, request: ClaimRequest, now: float | None = None) -> Exchanged:
        asked.append(request)
        if request.most > 2 and len(asked) < 10:
            raise OutcomeUnknown("exchange")
        return await exchange(settlements, releases, request, now)

    backend.exchange = slowly  # type: ignore[method-assign, assignment]
    with block as jobs:
        assert len(jobs) == 2
    tries = [request for request in asked if request.call == 1]
    assert [request.most for request in tries] == [10, 5, 2]
    assert [request.sweep_max for request in tries] == [200, 100, 50]
    assert tries[-1].bytes_max == tries[0].bytes_max // 4


def test_a_success_of_the_next_lease_is_not_taken_for_ours(memory_app: Holdfast) -> None:
    """The call that settles with jobs got no answer, the lease was lost, and another program finished the job."""
    app, backend = memory_app, memory_app._store.open()
    app.queue("mail")
    send(app, "ann")
    settle_with = backend.settle_with

    async def unanswered(settlement: Settlement, jobs: Any, now: float | None = None) -> Answer:
        if not lost:
            lost.append(settlement.id)
            [worker] = await backend.workers()
            await backend.recover(dead=[worker.id])
            other = new_worker(lease=30.0, queues=("mail",), slots=1)
            await backend.register(other)
            [lease] = (await backend.claim(ClaimRequest(worker=other.id, call=1, queues=("mail",), most=1))).leases
            await backend.settle([Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)])
            raise OutcomeUnknown("settle_with")
        return await settle_with(settlement, jobs, now)

    lost = list[str]()
    backend.settle_with = unanswered  # type: ignore[method-assign]
    with app.lease("mail") as [job]:
        job.enqueue(app.task_by_name("next").bind())
        with pytest.raises(LeaseLost):
            job.succeed()
    assert lost == [job.id]
    assert list(app.jobs("task:next")) == []


@pytest.mark.parametrize("children", [False, True], ids=["alone", "with jobs"])
@pytest.mark.parametrize("remove", [False, True], ids=["kept", "removed"])
def test_a_success_whose_answer_was_lost_is_not_called_lost(memory_app: Holdfast, remove: bool, children: bool) -> None:
    """The store carried it out, and by the time of the repeat it knows the worker no longer. What became of the job is
    read, again if that fails; where nothing is left to read, the outcome is unknown."""
    app, backend = memory_app, memory_app._store.open()
    app.queue("mail")
    sent = send(app, "ann", remove=remove)
    done: dict[str, list[str]] = {"settle_with": [], "exchange": [], "ended": []}

    def unanswered(verb: str) -> Any:
        real = getattr(backend, verb)

        async def call(*given: Any, **named: Any) -> Any:
            asks = verb == "exchange" and not given[0]
            if not asks and not done[verb]:
                done[verb].append(verb)
                if verb == "ended":
                    raise BackendUnavailable("not now")
                await real(*given, **named)
                [worker] = await backend.workers()
                await backend.recover(dead=[worker.id])
                raise OutcomeUnknown(verb)
            return await real(*given, **named)

        return call

    with app.lease("mail") as [job]:
        for verb in done:
            setattr(backend, verb, unanswered(verb))
        if children:
            job.enqueue(app.task_by_name("next").bind())
        if remove:
            with pytest.raises(OutcomeUnknown, match="removed"):
                job.succeed("sent")
        else:
            job.succeed("sent")
    assert [verb for verb, times in done.items() if times] == ["settle_with" if children else "exchange", "ended"]
    assert len(list(app.jobs("task:next"))) == children
    if not remove:
        assert sent.refresh().value == "sent"


@pytest.mark.parametrize("verb", ["fail", "retry", "bury"])
def test_a_failure_whose_answer_was_lost_is_unknown(memory_app: Holdfast, verb: str) -> None:
    app, backend, lost = memory_app, memory_app._store.open(), list[str]()
    app.queue("mail")
    send(app, "ann")
    exchange = backend.exchange

    async def unanswered(settlements: Any, releases: Any, request: Any, now: float | None = None) -> Exchanged:
        answer = await exchange(settlements, releases, request, now)
        if settlements and not lost:
            lost.append(request.worker)
            await backend.recover(dead=lost)
            raise OutcomeUnknown("exchange")
        return answer

    with app.lease("mail") as [job]:
        backend.exchange = unanswered  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            getattr(job, verb)(**{"error" if verb == "fail" else "reason": "no"})
    assert lost


def test_a_job_to_be_removed_goes_with_its_success(leased_app: Holdfast) -> None:
    """By the task's option, by the call's, and with the jobs that its holder enqueues; not if it fails."""
    app = leased_app

    @app.task(name="ping", queue="mail", remove=True, retry=0)
    def ping(to: str) -> None: ...

    gone = [ping.enqueue("a"), send(app, "b", remove=True), ping.enqueue("c")]
    dead, kept = ping.enqueue("d"), send(app, "e")
    with app.lease("mail", most=5) as leased:
        for job in leased:
            if job.args["to"] == "d":
                job.fail("no")
                continue
            if job.args["to"] == "c":
                job.enqueue(app.task_by_name("next").bind())
            job.succeed()
    left = {job.id: job.state for job in app.jobs() if job.task != "next"}
    assert left == {dead.id: State.DEAD, kept.id: State.SUCCEEDED}
    assert len(gone) == 3 and len(list(app.jobs("task:next"))) == 1
    assert app.audit().violations == []


def test_leases_are_renewed_while_the_caller_works(leased_app: Holdfast) -> None:
    """The caller waits longer than a lease lasts: the renewals that keep the job are what it waits for."""
    app = leased_app
    job = send(app, "ann")
    with app.lease("mail", lease=1.5) as (leased,):
        first = [worker.renewed_at for worker in app.workers()]
        renewed = threading.Event()
        while not renewed.wait(0.05):
            (worker,) = app.workers()
            if worker.renewed_at > first[0] + 2.0:
                renewed.set()
        assert not leased.lost and not app.recover()
        leased.succeed()
    assert job.refresh().state is State.SUCCEEDED and job.stalls == 0


def test_strict_groups_and_limits_hold(leased_app: Holdfast) -> None:
    app = leased_app
    for number in range(3):
        send(app, str(number), group="ann")
    with app.lease("mail", most=3) as leased:
        assert [job.args["to"] for job in leased] == ["0"], "a strict group has one job in play"
        leased[0].succeed()
    with app.lease("mail", most=3) as (leased_next,):
        assert leased_next.args["to"] == "1" and leased_next.group == "ann"


def test_roll_ups_and_history_know_the_attempt(leased_app: Holdfast) -> None:
    app = leased_app
    job = send(app, "ann")
    with app.lease("mail") as (leased,):
        leased.succeed()
    assert [(line.name, line.counts) for line in app.stats(by="task").lines] == [("send", {"succeeded": 1})]
    assert [entry.kind for entry in app.history(job)] == ["enqueued", "claimed", "succeeded"]


def test_a_death_of_an_at_most_once_job_that_the_block_leaves_is_counted(leased_app: Holdfast) -> None:
    app = leased_app
    send(app, "ann", max_stalls=0)
    with app.lease("mail"):
        pass
    assert app.stats(by="task").total.counts == {"dead": 1}


def die(app: Holdfast) -> None:
    """A worker leases two jobs, begins them and is gone at once."""

    async def lease(backend: Backend) -> None:
        worker = new_worker(lease=0.5, queues=("mail",), slots=2)  # it claims within that on a busy machine, too
        await backend.register(worker)
        answer = await backend.claim(ClaimRequest(worker=worker.id, call=1, queues=worker.queues, most=2))
        assert await backend.begin([Held(one.id, one.token) for one in answer.leases]) == [Answer.OK] * 2

    app._store.call(lease)


def test_what_an_operator_recovers_is_counted_once_with_its_events(leased_app: Holdfast) -> None:
    app = leased_app
    dead, again = (app.task_by_name(name, queue="mail", max_stalls=most).enqueue() for name, most in DYING.items())
    die(app)
    deadline = time.monotonic() + WITHIN_SECONDS
    while not (found := app.recover()) and time.monotonic() < deadline:
        assert again.refresh().state is State.RUNNING
    assert {one.id: one.state for one in found} == {dead.id: State.DEAD, again.id: State.READY}
    assert app.recover() == []
    assert {line.name: line.counts for line in app.stats(by="task").lines} == {
        "fatal": {"dead": 1},
        "patient": {"stalled": 1},
    }
    page = app._store.call(lambda backend: backend.events(0))
    assert sorted(event.name for event in page.events) == ["dead", "stalled", "stalled"]


def test_what_a_lease_recovers_is_counted_once(leased_app: Holdfast) -> None:
    app = leased_app
    _, again = (app.task_by_name(name, queue="mail", max_stalls=most).enqueue() for name, most in DYING.items())
    die(app)
    with app.lease("mail", wait=WITHIN_SECONDS) as (leased,):
        assert leased.id == again.id
        leased.succeed()
    assert {line.name: line.counts for line in app.stats(by="task").lines} == {
        "fatal": {"dead": 1},
        "patient": {"succeeded": 1, "stalled": 1},
    }


def test_wrong_uses_are_refused(memory_app: Holdfast) -> None:
    app = memory_app
    with pytest.raises(ConfigurationError, match="needs a queue"):
        app.lease([])
    with pytest.raises(ConfigurationError, match="most="):
        app.lease("mail", most=0)
    block = app.lease("mail")
    with block:
        pass
    with pytest.raises(ConfigurationError, match="used already"), block:
        pass

    async def on_a_loop() -> None:
        with pytest.raises(ConfigurationError, match="async with"), app.lease("mail"):
            pass
        async with app.lease("mail") as jobs:
            assert jobs == []

    asyncio.run(on_a_loop())


def test_a_verdict_may_be_given_as_the_failure(memory_app: Holdfast) -> None:
    job = memory_app.task_by_name("send", queue="mail").enqueue(to="ann")
    with memory_app.lease("mail") as (leased,):
        leased.fail(Snooze(500))
    assert job.refresh().state is State.SCHEDULED and job.failures == 0
