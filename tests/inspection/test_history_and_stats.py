"""app.history and app.stats: what they derive from rows, marks and roll-ups."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, RetryPolicy
from holdfast.clock import moment
from holdfast.errors import ConfigurationError, JobNotFound
from holdfast.inspection.history import timeline
from holdfast.inspection.stats import summed
from holdfast.lifecycle import Failure, State
from holdfast.records import JobRecord, Mark
from holdfast.rollups import BOUNDS, BUCKETS, Recording, Rollup, added, bucket_of, percentile


def test_a_timeline_is_read_off_row_errors_and_marks_in_order() -> None:
    failure = Failure(at=20.0, type="ValueError", text="no", attempt=1, fence=7, worker="w1", started_at=15.0)
    job = JobRecord(
        id="j",
        seq=1,
        task="t",
        queue="mail",
        state=State.DEAD,
        args=b"{}",
        attempts=2,
        created_at=10.0,
        due_at=10.0,
        started_at=40.0,
        finished_at=50.0,
        fence=9,
        reason="failed",
        errors=(failure, Failure(at=50.0, text="again", attempt=2, fence=9, worker="w2", started_at=40.0)),
    )
    marks = [
        Mark(kind="release", at=13.0, worker="w0", fence=5, started_at=12.0),
        Mark(kind="run_now", at=30.0, by="ann"),
    ]
    found = timeline(job, marks)
    assert [(entry.kind, entry.at.timestamp()) for entry in found] == [
        ("enqueued", 10.0),
        ("claimed", 12.0),
        ("release", 13.0),
        ("claimed", 15.0),
        ("failed", 20.0),
        ("run_now", 30.0),
        ("claimed", 40.0),
        ("failed", 50.0),
        ("dead", 50.0),
    ]
    assert (found[3].worker, found[3].fence, found[3].attempt) == ("w1", 7, 1)
    assert (found[4].text, found[5].by, found[-1].text) == ("ValueError: no", "ann", "failed")


def test_progress_and_late_renewals_stand_in_the_timeline_as_sentences() -> None:
    job = JobRecord(id="j", seq=1, task="t", queue="q", state=State.RUNNING, args=b"{}", started_at=1.0, fence=7)
    marks = [
        Mark(kind="progress", at=2.0, fence=7, progress=0.25, text="page 3"),
        Mark(kind="progress", at=3.0, fence=7, progress=0.5, count=4),
        Mark(kind="progress", at=4.0, fence=7, text="nearly"),
        Mark(kind="renewal", at=25.0, fence=7, gap=20.04),
    ]
    found = timeline(job, marks)
    assert [entry.kind for entry in found] == ["enqueued", "claimed", "progress", "progress", "progress", "renewal"]
    said = ["25% page 3", "50% (the latest of 4)", "nearly", "late, after 20.0 s"]
    assert [entry.text for entry in found[2:]] == said
    assert (found[3].progress, found[3].count, found[-1].gap) == (0.5, 4, 20.04)


def test_history_of_jobs_that_ran() -> None:
    app = Holdfast("memory://")
    runs: list[int] = []

    @app.task(name="flaky", retry=RetryPolicy(limit=3, base=0.0, jitter=0.0))
    def flaky() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("once")

    with app:
        job = flaky.enqueue()
        app.work(drain=True)
        app.retry(job, by="ann")
        found = app.history(job)
        assert [entry.kind for entry in found] == ["enqueued", "claimed", "failed", "claimed", "retry"]
        assert found[-1].by == "ann"
        assert asyncio.run(app.ahistory(job.id)) == found
        with pytest.raises(JobNotFound):
            app.history("nobody")


def test_buckets_grow_by_a_third_of_a_doubling_and_percentiles_are_read_off_them() -> None:
    assert bucket_of(0.0) == 0 and bucket_of(BOUNDS[-1] * 2) == BUCKETS - 1
    assert all(bucket_of(bound) == n for n, bound in enumerate(BOUNDS))
    counts = [0] * BUCKETS
    for n in range(1, 1001):
        counts[bucket_of(n / 1000)] += 1
    for share in (0.5, 0.95, 0.99):
        read = percentile(counts, share)
        assert read is not None and abs(read - share) / share < 0.125
    assert percentile([], 0.5) is None
    assert added((1, 2), (1, 2, 3)) == added((1, 2, 3), (1, 2)) == (2, 4, 3)


def test_stats_are_summed_by_name_with_a_point_for_every_minute() -> None:
    rollups = [
        Rollup(at=60.0, queue="a", task="t", outcome="succeeded", count=3, runs=(0, 3)),
        Rollup(at=60.0, queue="b", task="t", outcome="failed", count=1),
        Rollup(at=180.0, queue="a", task="u", outcome="dead", count=1),
    ]
    found = summed(rollups, by="task", step="minute", since=60.0, until=200.0)
    assert [(line.name, dict(line.counts), line.failure_rate) for line in found.lines] == [
        ("t", {"succeeded": 3, "failed": 1}, 0.25),
        ("u", {"dead": 1}, 1.0),
    ]
    assert found.total.counts == {"succeeded": 3, "failed": 1, "dead": 1}
    points = found.lines[0].series
    assert [point.at for point in points] == [moment(60.0), moment(120.0), moment(180.0)]
    assert [sum(point.counts.values()) for point in points] == [4, 0, 0]
    assert found.lines[0].run.p50 is not None and found.lines[1].run.p50 is None


def test_stats_of_a_store() -> None:
    with Holdfast("memory://") as app:
        one = Rollup(outcome="succeeded", count=2, queue="q", task="t", runs=(2,))
        asyncio.run(app._ado(lambda backend: backend.record(Recording(worker="w", number=1, rollups=(one,)))))
        assert app.stats(by="queue").lines[0].counts == {"succeeded": 2}
        assert asyncio.run(app.astats(since=86400)).step == "hour"
        assert app.stats(since=60).step == "minute"
        for wrong in ({"by": "colour"}, {"step": "week"}, {"by": "worker", "step": "hour"}):
            with pytest.raises(ConfigurationError):
                app.stats(**wrong)  # type: ignore[arg-type]
