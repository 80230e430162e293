"""Where the time of a job goes in `holdfast work`: during exchanges with the store, and between them.

If there are many jobs, the runner works during an exchange; the time between two exchanges is time in which the store
is idle. One hot group, and a single job on an idle worker, show the steps one after the other.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ..driving import LOOK_SECONDS, Failed, Turn, drained, floor, ours, turn
from ..scenario import Case, Scenario, Setting
from .groups import HOT_SHARE, SHAPES, SHARE
from .latency import GAP_MS, JOBS, JOBS_QUICK, WAIT_SECONDS_MAX

RULED = (
    "none",
    "round-100",
)  # shapes measured again with a rule on another task, so that a claim has more to check
Moments = dict[str, dict[str, float]]  # by the job's id


class Exchange(NamedTuple):
    sent: float
    answered: float
    settled: int
    leased: list[str]  # ids of jobs


def exchanges(one: Turn) -> list[Exchange]:
    """The exchanges that settled or claimed anything. Ends the worker, which writes them at its end."""
    one.end()
    path = one.folder / "exchanges"
    if not path.exists():
        raise Failed(f"the worker noted no exchange: {one.said()}")
    return [Exchange(*line) for line in json.loads(path.read_text())]


def split(noted: list[Exchange]) -> dict[str, float]:
    """Microseconds per job during and between exchanges, from the first that settled jobs to the last."""
    first, *rest = [one for one in noted if one.settled]
    jobs = sum(one.settled for one in rest)
    if not jobs:
        raise Failed("all jobs were settled at once: too few to be watched")
    within = sum(one.answered - one.sent for one in rest)
    between = rest[-1].answered - first.answered - within
    return {"jobs_per_exchange": jobs / len(rest), "within_us": within / jobs * 1e6, "between_us": between / jobs * 1e6}


def worked(setting: Setting, shape: str, jobs: int, **settings: str) -> dict[str, float]:
    with setting.place.area() as area, turn(ours(BENCH_TRACE="1", **settings), area) as one:
        figures = drained(one, jobs, shape=shape)
        found = split(exchanges(one))
    return {"us": 1e6 / figures["jobs_per_second"], **found, **figures}


def tripped(setting: Setting, jobs: int, **settings: str) -> dict[str, float]:
    """The bare store: one durable round trip that deletes a job and leases the next, and nothing else."""
    contender = floor(setting.store, BARE_BATCH="1", **settings)
    with setting.place.area() as area, turn(contender, area) as one:
        figures = drained(one, jobs)
    return {"us": 1e6 / figures["jobs_per_second"], "jobs_per_exchange": 1.0, **figures}


def _moments(one: Turn, jobs: int) -> Moments:
    path, deadline = one.folder / "steps", time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found: Moments = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            job, what, at = line.split()
            found.setdefault(job, {})[what] = float(at)
        done = {job: moments for job, moments in found.items() if len(moments) == 3}
        if len(done) >= jobs:
            path.unlink()
            return done
        if time.monotonic() > deadline:
            raise Failed(f"{len(done)} of {jobs} jobs began: {one.said()}")
        time.sleep(LOOK_SECONDS)


def steps(noted: list[Exchange], moments: Moments) -> dict[str, float]:
    """The medians of a job's steps. The worker may learn of a job before its enqueue has returned."""
    leased = {job: one for one in noted for job in one.leased}
    rows = [(leased[job], at["called"], at["returned"], at["started"]) for job, at in moments.items()]
    return {
        "us": statistics.median(started - called for _, called, _, started in rows) * 1e6,
        "enqueue_us": statistics.median(returned - called for _, called, returned, _ in rows) * 1e6,
        "heard_us": statistics.median(one.sent - called for one, called, _, _ in rows) * 1e6,
        "within_us": statistics.median(one.answered - one.sent for one, _, _, _ in rows) * 1e6,
        "start_us": statistics.median(started - one.answered for one, _, _, started in rows) * 1e6,
    }


def stepped(setting: Setting) -> dict[str, float]:
    jobs = JOBS_QUICK if setting.quick else JOBS
    with setting.place.area() as area, turn(ours(BENCH_TRACE="1", BENCH_SLOTS="10"), area) as one:
        one.start()
        one.call("steps", 5, GAP_MS)  # until these began, the worker is still starting
        _moments(one, 5)
        one.call("steps", jobs, GAP_MS)
        moments = _moments(one, jobs)
        return steps(exchanges(one), moments)


def bare_steps(setting: Setting, jobs: int) -> dict[str, float]:
    """The time of the store alone for both writes: one enqueue, and one round trip."""
    with setting.place.area() as area, turn(floor(setting.store, BARE_BATCH="1"), area) as one:
        enqueue = 1e6 / one.call("one", jobs)
    trip = tripped(setting, jobs)["us"]
    return {"us": enqueue + trip, "enqueue_us": enqueue, "within_us": trip}


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    jobs = max(1000, int(setting.jobs * SHARE))
    hot = max(100, int(setting.jobs * HOT_SHARE))
    found = []
    for name, shape in SHAPES.items():
        plain, ruled = (partial(worked, setting, shape, jobs, **more) for more in ({}, {"HOLDFAST_ISOLATED": "1"}))
        found.append(Case(name, "ours", plain, name, baseline=True))
        if shape in RULED:
            found.append(Case(f"{name}, an isolated task beside it", "ours", ruled, name))
    yield [
        *found,
        Case("one hot group", "ours", partial(worked, setting, "hot", hot), "hot"),
        Case("bare store, a durable trip per job", "floor", partial(tripped, setting, hot), "hot", baseline=True),
        Case("bare store, handlers apart", "floor", partial(tripped, setting, hot, BARE_APART="1"), "hot"),
        Case("one job, idle worker", "ours", partial(stepped, setting), "idle"),
        Case("bare store, an enqueue and a trip", "floor", partial(bare_steps, setting, hot), "idle", baseline=True),
    ]


COLUMNS = (
    "jobs_per_exchange", "enqueue_us", "heard_us", "within_us", "between_us", "start_us", "worker_us", "server_us",
    "bytes",
)  # fmt: skip
SCENARIO = Scenario(
    "parts", "Where the time of a job goes", "us", "µs a job", cases, ("sqlite", "postgres", "redis"), weight=60.0,
    more_is_better=False, columns=COLUMNS,
)  # fmt: skip
