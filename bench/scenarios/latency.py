"""From the call of enqueue to the start of the handler, in another process, on an idle worker: a job every 10 ms."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from ..driving import LOOK_SECONDS, Contender, Failed, Turn, ours, turn
from ..figures import percentile
from ..scenario import Case, Scenario, Setting

JOBS, JOBS_QUICK = 300, 100
GAP_MS = 10
WAIT_SECONDS_MAX = 30.0


def delays(one: Turn, jobs: int) -> list[float]:
    """The delays of this many timed jobs, once all of them have begun."""
    path, deadline = one.folder / "delays", time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= jobs:
            path.unlink()
            return [float(line) for line in found]
        if time.monotonic() > deadline:
            raise Failed(f"{len(found)} of {jobs} jobs began: {one.said()}")
        time.sleep(LOOK_SECONDS)


def measured(setting: Setting, contender: Contender) -> dict[str, float]:
    jobs = JOBS_QUICK if setting.quick else JOBS
    with setting.place.area() as area, turn(contender, area) as one:
        one.start()
        one.call("pace", 5, GAP_MS)  # until these began, the worker is still starting
        delays(one, 5)
        one.call("pace", jobs, GAP_MS)
        found = delays(one, jobs)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {f"{name}_ms": percentile(found, share) * 1000 for name, share in shares.items()} | {
        "max_ms": max(found) * 1000
    }


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    mine = [ours("holdfast work", BENCH_SLOTS="10"), ours("holdfast, embedded", HOLDFAST_FORM="embedded")]
    yield [
        Case(one.name, one.kind, partial(measured, setting, one), baseline=one.kind == "peer")
        for one in (*mine, *setting.peers())
    ]


SCENARIO = Scenario(
    "latency", "Enqueue to handler start, idle worker", "p50_ms", "ms", cases, ("sqlite", "postgres", "redis"),
    more_is_better=False, columns=("p90_ms", "p99_ms", "max_ms"), weight=90.0,
)  # fmt: skip
