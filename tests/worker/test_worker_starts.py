"""max_starts: how often a job starts in all, whatever ended its attempts; final timeouts; why a job was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, RetryPolicy, Snooze
from holdfast.clock import SystemClock
from holdfast.context import Outcome, OutcomeKind, settlement_of, timed_out, unstartable
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Settlement
from holdfast.options import TaskOptions
from holdfast.records import Lease
from holdfast.testing import sandbox
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.processes.pool import Pool, _KilledJob
from holdfast.worker.processes.runner_endpoint import hello
from holdfast.worker.processes.spawner import Plan


def lease(attempt: int) -> Lease:
    return Lease("j", "token", 1, "t", "default", b"{}", attempt=attempt)


def test_a_job_that_snoozes_for_ever_is_buried_after_its_last_start() -> None:
    app, started = Holdfast("memory://"), []

    @app.task(name="poll", max_starts=3)
    def poll() -> None:
        started.append(1)
        raise Snooze(60)

    with sandbox(app) as box:
        job = poll.enqueue()
        other = poll.options(max_starts=1).enqueue()
        for _ in range(5):
            box.drain()
            box.clock.advance(minutes=2)
        assert len(started) == 4
        found = app.job(job.id)
        assert (found.state, found.reason, found.attempts) == ("dead", "starts", 3)
        assert "3 times" in found.errors[-1].text and app.job(other.id).attempts == 1
        assert "max_starts" in app.explain(job.id).summary
        app.dead.revive(job.id)
        box.drain()
        assert app.job(job.id).attempts == 1, "a revival gives fresh starts"


def test_a_failure_in_the_last_start_is_final_with_its_own_reason() -> None:
    options = TaskOptions.make(max_starts=2, retry=RetryPolicy(limit=None))
    failed = Outcome(kind=OutcomeKind.FAILED)
    assert settlement_of(lease(1), options, failed, None).ending is Ending.RETRY
    last = settlement_of(lease(2), options, failed, None)
    assert (last.ending, last.reason) == (Ending.BURIED, "failed")
    assert settlement_of(lease(2), options, Outcome(kind=OutcomeKind.RETURNED), None).ending is Ending.SUCCEEDED


def test_starts_that_stalls_have_spent_are_not_repeated() -> None:
    options = TaskOptions.make(max_starts=2)
    assert unstartable(lease(2), options) is None
    end = unstartable(lease(3), options)
    assert end is not None and (end.ending, end.reason) == (Ending.BURIED, "starts")


def test_a_cap_is_a_positive_number() -> None:
    with pytest.raises(ConfigurationError):
        TaskOptions.make(max_starts=0)


def test_a_final_timeout_buries_whatever_retries_are_left_and_other_failures_are_retried() -> None:
    late, failed = timed_out(1.0), Outcome(kind=OutcomeKind.FAILED)
    final = TaskOptions.make(timeout=1.0, on_timeout="bury", retry=RetryPolicy(limit=None))
    end = settlement_of(lease(1), final, late, None)
    assert (end.ending, end.reason, end.failed) == (Ending.BURIED, "timeout", True)
    assert settlement_of(lease(1), final, failed, None).ending is Ending.RETRY
    assert settlement_of(lease(1), TaskOptions.make(timeout=1.0), late, None).ending is Ending.RETRY
    with pytest.raises(ConfigurationError, match="on_timeout="):
        TaskOptions.make(on_timeout="final")


def test_one_call_decides_what_its_timeout_means() -> None:
    app = Holdfast("memory://")

    @app.task(name="slow", timeout=0.05, on_timeout="bury", retry=RetryPolicy.fixed(0, limit=1))
    async def slow() -> None:
        await asyncio.Event().wait()

    with sandbox(app) as box:
        once, twice = slow.enqueue(), slow.options(on_timeout="retry").enqueue()
        box.drain()
        ends = [(job.state, job.reason, job.failures) for job in (app.job(once.id), app.job(twice.id))]
        assert ends == [("dead", "timeout", 1), ("dead", "timeout", 2)]


async def test_a_killed_attempt_ends_the_same_way_if_no_runner_is_there_to_decide() -> None:
    pool = Pool(Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    app = Holdfast("memory://")

    @app.task(name="t", timeout=1.0, on_timeout="bury", retry=5)
    def task() -> None: ...

    [facts] = hello(app, "memory://", 1, 10, "option").tasks
    pool.facts = {"t": facts}
    ended: list[object] = []
    pool.signals.post = ended.extend  # type: ignore[method-assign, assignment]
    case = _KilledJob(lease(1), timed_out(1.0), 0.0)
    pool._failed_by_kill[case.lease.token] = case
    pool._apply_retry_limits([case])
    [end] = ended
    assert isinstance(end, Settlement) and (end.ending, end.reason) == (Ending.BURIED, "timeout")


def test_explain_and_history_say_who_cancelled_a_job_and_why() -> None:
    app = Holdfast("memory://")

    @app.task(name="t")
    def task() -> None: ...

    with sandbox(app):
        job = task.enqueue()
        app.cancel(job, reason="wrong address", by="ann")
        assert 'by ann ("wrong address")' in app.explain(job.id).summary
        again = task.enqueue().cancel(reason="me too")
        third = task.enqueue()
        app.bulk("cancel", "task:t", reason="all")
        told = [
            (one.by, one.text) for id in (job.id, again.id, third.id) for one in app.history(id) if one.kind == "cancel"
        ]
        assert told == [("ann", "wrong address"), ("", "me too"), ("", "all")]
