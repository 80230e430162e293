"""Jobs that do something: compute, block, await, carry large arguments, fail; and no-op jobs, also over 1,000 queues.

Every contender runs as its documentation first starts it, and with the settings that fit the row. Where the handler
rather than the queue can be the limit, the limit is measured in the same rounds: the handler alone, called by as many
processes, threads or coroutines. For jobs that do nothing the limit is the bare store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ..driving import Contender, floor, limit, ours, sampled, turn
from ..peers import PEERS
from ..scenario import Case, Scenario, Setting
from ..table import DEFAULTS

SECONDS, SECONDS_QUICK = 3.0, 1.0
WARM_SECONDS = 0.5
NOOP_PER_SECOND = 20_000  # more than we run in a second here: determines how many jobs are enqueued
AWAITING = ("arq", "saq", "taskiq", "procrastinate", "pgqueuer", "bullmq")
THREADED = ("celery", "dramatiq", "huey", *AWAITING)
ALL = ("rq", *THREADED)
ALL_PYTHON = tuple(name for name in ALL if PEERS[name].language == "python")
MANY_QUEUES = ("celery", "dramatiq", "rq", "procrastinate", "pgqueuer", "bullmq")  # one of their workers can serve many
ONE_PROCESS = ("rq", "arq", "saq", "procrastinate", "pgqueuer")  # two processes means two of their workers
QUEUES = 1000
NEAR = 0.5  # peers below this share of ours are measured once: with five rounds they would take most of the time


class Row(NamedTuple):
    """One kind of jobs, with the settings that fit it."""

    name: str
    per_second: int  # a rate that no contender reaches
    by: tuple[str, ...]  # the contenders that can do it at all
    handler: str = ""
    slots: str = "400"  # of ours
    runners: str = "1"
    settings: Mapping[str, str] = {}  # of all contenders
    peers: Mapping[str, str] = {}  # of peers, in addition to their own for no-op jobs
    limit: Mapping[str, str] | None = None  # the handler's; None: that of the store
    defaults: bool = False  # also measure all contenders as installed
    slots_installed: Mapping[str, str] | None = None  # what our runner has then: for the limit of these rows
    bare: int = 5  # times as many jobs for the bare store


NOOP = Row("no-op", NOOP_PER_SECOND, ALL, defaults=True)
ROWS = (
    NOOP,
    Row(
        "5 ms of Python, 2 at once", 500, ALL_PYTHON, "cpu-5", "2", "2",
        peers={"BENCH_PROCESSES": "2", "BENCH_THREADS": "1"},
        limit={"BENCH_PROCESSES": "2", "BENCH_THREADS": "1"}, defaults=True, slots_installed={"BENCH_THREADS": "10"},
    ),
    Row(
        "20 ms of blocking I/O, 100 at once", 6000, THREADED, "block-20", "100", "2",
        peers={"BENCH_THREADS": "100", "BENCH_SLOTS": "100"}, limit={"BENCH_THREADS": "100"}, defaults=True,
        slots_installed={"BENCH_THREADS": "10"},
    ),
    Row(
        "50 ms of awaiting, 1,000 at once", 20_000, AWAITING, "wait-50", "1000", "2",
        peers={"BENCH_SLOTS": "1000"}, limit={"BENCH_SLOTS": "1000"}, defaults=True,
        slots_installed={"BENCH_SLOTS": "100"},
    ),
    Row("10 KB of arguments", 25_000, ALL, settings={"BENCH_PAYLOAD": "10000"}),
    Row("100 KB of arguments", 6000, ALL, slots="100", settings={"BENCH_PAYLOAD": "100000"}, bare=1),
    Row("5 % of attempts fail", NOOP_PER_SECOND, ALL, "fail-5"),
    Row(f"{QUEUES:,} queues", NOOP_PER_SECOND, MANY_QUEUES, settings={"BENCH_QUEUES": str(QUEUES)}),
)  # fmt: skip


def _seconds(setting: Setting) -> float:
    return setting.seconds or (SECONDS_QUICK if setting.quick else SECONDS)


def measured(setting: Setting, contender: Contender, jobs: int) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        return sampled(one, jobs, seconds=_seconds(setting), warm=WARM_SECONDS)


def at_best(setting: Setting, row: Row) -> Iterator[Contender]:
    settings = {**row.settings, "BENCH_HANDLER": row.handler}
    yield ours("holdfast", **settings | {"BENCH_SLOTS": row.slots, "HOLDFAST_RUNNERS": row.runners})
    for one in setting.peers():
        if one.name in row.by:
            workers = int(row.peers.get("BENCH_PROCESSES", "1")) if one.name in ONE_PROCESS else 1
            yield one.like(one.name, workers, **settings, **row.peers)
    if row.limit is not None:
        yield limit(**settings, **row.limit)
    elif not row.handler and "BENCH_QUEUES" not in row.settings:
        yield floor(setting.store, **row.settings).like("limit")


def at_defaults(setting: Setting, row: Row) -> Iterator[Contender]:
    settings = {**row.settings, "BENCH_HANDLER": row.handler, "BENCH_DEFAULTS": "1"}
    yield ours("holdfast", **settings)
    for one in setting.peers():
        if one.name in row.by:
            yield one.like(one.name, 1, **settings)
    if row.slots_installed is not None:
        runners = {"BENCH_PROCESSES": str(os.cpu_count() or 1)}
        yield limit(**settings, **runners, **row.slots_installed)


def jobs_for(row: Row, contender: Contender, seconds: float) -> int:
    """Enough jobs to keep it busy, but no more than it can enqueue in acceptable time."""
    rate = min(row.per_second, NOOP_PER_SECOND * contender.share)
    return max(200, int(rate * (WARM_SECONDS + seconds)))


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    families = [(row, row.name, at_best) for row in ROWS]
    families += [(row, row.name + DEFAULTS, at_defaults) for row in ROWS if row.defaults]
    found = []
    for row, family, contenders in families:
        for one in contenders(setting, row):
            jobs = jobs_for(row, one, _seconds(setting)) * (row.bare if one.kind == "floor" and not row.handler else 1)
            measure = partial(measured, setting, one, jobs)
            is_baseline = one.kind != "ours"
            found.append(
                Case(f"{family}: {one.name}", one.kind, measure, family=family, baseline=is_baseline, label=one.name)
            )
    yield found


SCENARIO = Scenario(
    "real", "Jobs that do something", "jobs_per_second", "jobs/s", cases, ("sqlite", "postgres", "redis"),
    columns=("worker_us", "server_us"), weight=900.0, near=NEAR,
)  # fmt: skip
