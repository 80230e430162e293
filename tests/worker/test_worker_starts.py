"""max_starts: how often a job starts in all, whatever ended its attempts; and why a job was cancelled."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, RetryPolicy, Snooze
from holdfast.context import Outcome, OutcomeKind, settlement_of, unstartable
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending
from holdfast.options import TaskOptions
from holdfast.records import Lease
from holdfast.testing import sandbox


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


def test_who_cancelled_a_job_and_why_is_told() -> None:
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
