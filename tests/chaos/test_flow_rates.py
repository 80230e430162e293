"""Rates held exactly by four worker processes, one of them killed: counted in every window of the store's clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import Holdfast
from holdfast.records import JobRecord
from tests.chaos.flow_scene import Crew, all_succeeded, spans
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

COUNT, GROUP_COUNT, SECONDS = 40, 20, 2.0  # as flow_app.py declares them
JOBS, GROUP_JOBS = 180, 90
ROUNDING = 1e-5  # of times stored to the microsecond, and what a sum of floats is off
QUEUES = ["rated", "loose", "rated_groups"]
ROUNDS_MAX = 4  # a machine too busy to start as many as the rate allows gets more time; a place that is lost stays lost


def fill(app: Holdfast) -> None:
    """One round of jobs."""
    app.enqueue_many(app.named("plain", queue="rated").bind(label="queue", n=n) for n in range(JOBS))
    app.enqueue_many(app.named("rated_task", queue="loose").bind(label="task", n=n) for n in range(JOBS))
    for group in ("a", "b"):
        in_group = app.named("plain", queue="rated_groups", group=group)
        app.enqueue_many(in_group.bind(label=f"group {group}", n=n) for n in range(GROUP_JOBS))


def too_close(starts: Sequence[float], count: int) -> list[float]:
    """The spans in which more than `count` started although they are shorter than the window."""
    lasted = [later - earlier for earlier, later in zip(starts, starts[count:], strict=False)]
    return [seconds for seconds in lasted if seconds < SECONDS - ROUNDING]


def fullest(starts: Sequence[float]) -> int:
    """How many started in the fullest window."""
    return max((sum(begin <= start < begin + SECONDS for start in starts) for begin in starts), default=0)


def rated(jobs: Sequence[JobRecord]) -> dict[str, tuple[int, list[JobRecord]]]:
    """How many may start in a window, and the jobs it is about."""
    return {
        "queue": (COUNT, [job for job in jobs if job.queue == "rated"]),
        "task": (COUNT, [job for job in jobs if job.task == "rated_task"]),
        "group a": (GROUP_COUNT, [job for job in jobs if job.group == "a"]),
        "group b": (GROUP_COUNT, [job for job in jobs if job.group == "b"]),
    }


def starts_of(jobs: Sequence[JobRecord]) -> list[float]:
    return [start for start, _, _ in spans(jobs)]


def unused(jobs: Sequence[JobRecord], since: float) -> list[str]:
    """Whose rate was not used to the full in any window, or in none that began after that moment."""
    found: list[str] = []
    for name, (count, made) in rated(jobs).items():
        starts = starts_of(made)
        after = [start for start in starts if start > since]
        found += [f"{name}: {fullest(some)} of {count}" for some in (starts, after) if fullest(some) < 0.9 * count]
    return found


def test_no_window_sees_more_starts_than_the_rate_and_the_rate_is_used_to_the_full(crew: Crew) -> None:
    with crew.app() as app:
        workers = [crew.start("work", queues=QUEUES, slots=8) for _ in range(4)]
        until(lambda: len(app.workers()) == 4, what="four workers are registered")
        fill(app)
        until(lambda: len(crew.lines("start", label="queue")) > JOBS // 4, what="a quarter has begun")
        killed_at = crew.asked(lambda backend: backend.clock())
        crew.kill(workers[0])
        for rounds in range(1, ROUNDS_MAX + 1):
            until(lambda: all_succeeded(app), what="all succeed")
            jobs = crew.jobs()
            if not unused(jobs, killed_at) or rounds == ROUNDS_MAX:
                break
            fill(app)
        assert app.audit().violations == []
    assert len(jobs) == rounds * 2 * (JOBS + GROUP_JOBS)
    for name, (count, made) in rated(jobs).items():
        starts = starts_of(made)
        assert len(starts) >= len(made), name
        assert too_close(starts, count) == [], name
    assert unused(jobs, killed_at) == []
    assert crew.lines("crashed") == []
