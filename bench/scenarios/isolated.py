"""Jobs that each run alone in a process, four processes at once; a process takes the next job after one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..driving import drained, ours, turn
from ..scenario import Case, Scenario, Setting

JOBS, JOBS_QUICK = 1000, 200


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    jobs = JOBS_QUICK if setting.quick else JOBS
    contender = ours("holdfast, isolation=process", BENCH_SLOTS="4", HOLDFAST_ISOLATED="1")

    def measure() -> dict[str, float]:
        with setting.place.area() as area, turn(contender, area) as one:
            return drained(one, jobs, shape="alone")

    yield [Case(contender.name, "ours", measure)]


SCENARIO = Scenario(
    "isolated", "Jobs alone in their process, 4 at once", "jobs_per_second", "jobs/s", cases,
    ("sqlite", "postgres", "redis"), columns=("worker_us",), weight=20.0,
)  # fmt: skip
