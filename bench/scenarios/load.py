"""Producer and worker at once, at half of what the slots can do: jobs of 20 ms, 500 a second, for ten minutes or
--seconds.

A worker with 20 slots could start 1,000 such jobs a second. The figure is the time from the call of enqueue to the
start of the handler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import Contender, ours, turn
from ..figures import percentile
from ..scenario import Case, Scenario, Setting
from .latency import delays
from .real import THREADED

GAP_MS = 2
JOB_MS = 20
SLOTS = 20
SECONDS, SECONDS_QUICK = 600.0, 2.0


def measured(setting: Setting, contender: Contender) -> dict[str, float]:
    seconds = setting.seconds or (SECONDS_QUICK if setting.quick else SECONDS)
    jobs = int(seconds * 1000 / GAP_MS)
    with setting.place.area() as area, turn(contender, area) as one:
        one.start()
        one.call("pace", 5, GAP_MS)  # until these began, the worker is still starting
        delays(one, 5)
        one.call("pace", jobs, GAP_MS, seconds_max=60.0 + 4.0 * seconds)
        found = delays(one, jobs)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {f"{name}_ms": percentile(found, share) * 1000 for name, share in shares.items()} | {
        "max_ms": max(found) * 1000
    }


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    settings = {"BENCH_TIMED_MS": str(JOB_MS)}
    mine = [ours("holdfast work", **settings, BENCH_SLOTS=str(SLOTS), HOLDFAST_RUNNERS="2")]
    theirs = [
        one.like(one.name, 1, **settings, BENCH_SLOTS=str(SLOTS), BENCH_THREADS=str(SLOTS))
        for one in setting.peers()
        if one.name in THREADED
    ]
    yield [
        Case(one.name, one.kind, partial(measured, setting, one), baseline=one.kind == "peer")
        for one in (*mine, *theirs)
    ]


SCENARIO = Scenario(
    "load", "Enqueue to handler start at half load", "p50_ms", "ms", cases, ("sqlite", "postgres", "redis"),
    factor=0.2, more_is_better=False, columns=("p99_ms", "p999_ms", "max_ms"), weight=1200.0, asked_only=True,
)  # fmt: skip
