"""Jobs that wait for others: a fan-in compared with as many plain jobs, a chain compared with one hot group, whose jobs
also run one after the other, and plain jobs in a store where others wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import drained, ours, turn
from ..scenario import Case, Scenario, Setting
from .groups import HOT_SHARE

JOBS, JOBS_QUICK = 10_000, 1000  # a fan-in has as many parents as a job may have


def measured(setting: Setting, shape: str, jobs: int) -> dict[str, float]:
    with setting.place.area() as area, turn(ours(), area) as one:
        return drained(one, jobs, shape=shape)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    jobs = JOBS_QUICK if setting.quick else JOBS
    chained = max(100, int(setting.jobs * HOT_SHARE / 2))
    yield [
        Case("plain jobs", "ours", partial(measured, setting, "none", jobs), baseline=True),
        Case("fan-in", "ours", partial(measured, setting, "fan-in", jobs)),
        Case("plain jobs, others wait", "ours", partial(measured, setting, "beside-waiting", jobs)),
        Case("one hot group", "ours", partial(measured, setting, "hot", chained), "hop", baseline=True),
        Case("chain", "ours", partial(measured, setting, "chain", chained), "hop"),
    ]


SCENARIO = Scenario(
    "flows", "Jobs that wait for others", "jobs_per_second", "jobs/s", cases, ("sqlite", "postgres", "redis"),
    weight=40.0, columns=("enqueued_per_second", "worker_us", "server_us", "bytes"),
)  # fmt: skip
