"""Jobs that do something: compute, block, await, carry large arguments, fail; and jobs spread over many queues.

Ours as installed, and with the slots that fit the jobs; Python peers with as many processes or threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ..driving import Contender, drained, ours, turn
from ..scenario import Case, Scenario, Setting

SECONDS, SECONDS_QUICK = 5, 1  # about how long a run lasts at a rate that is easily reached
SYNC = ("celery", "dramatiq", "huey")
ASYNC = ("arq",)
PEERS = (*SYNC, *ASYNC)  # those whose scripts heed BENCH_HANDLER


class Row(NamedTuple):
    """One kind of jobs, with the settings it needs."""

    name: str
    per_second: int  # a rate that is easily reached: how many jobs are enqueued depends on it
    handler: str
    slots: str  # of ours, beside its defaults
    runners: str
    peers: Mapping[str, str]  # settings of sync peers
    by: tuple[str, ...] = PEERS
    settings: Mapping[str, str] = {}


ROWS = (
    Row("5 ms of Python, 2 at once", 200, "cpu-5", "2", "2", {"BENCH_PROCESSES": "2", "BENCH_THREADS": "1"}, SYNC[:2]),
    Row("20 ms of blocking I/O, 100 at once", 2000, "block-20", "100", "2", {"BENCH_THREADS": "100"}, SYNC),
    Row("50 ms of awaiting, 1,000 at once", 4000, "wait-50", "1000", "2", {}, ASYNC, {"BENCH_SLOTS": "1000"}),
    Row("10 KB of arguments", 1000, "", "100", "2", {}, PEERS, {"BENCH_PAYLOAD": "10000"}),
    Row("100 KB of arguments", 150, "", "100", "2", {}, PEERS, {"BENCH_PAYLOAD": "100000"}),
    Row("5 % of attempts fail", 1000, "fail-5", "100", "2", {}, PEERS),
)
QUEUES = 1000


def measured(setting: Setting, contender: Contender, jobs: int) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        return drained(one, jobs, seconds_max=600.0, partly=contender.kind == "peer")


def contenders(setting: Setting, row: Row) -> Iterator[Contender]:
    settings = {**row.settings, "BENCH_HANDLER": row.handler}
    work = ours("holdfast work, defaults", **settings, HOLDFAST_DEFAULTS="1")
    yield work
    yield ours("holdfast work", **settings | {"BENCH_SLOTS": row.slots, "HOLDFAST_RUNNERS": row.runners})
    for one in setting.peers():
        if one.name in row.by:
            yield one.like(one.name, 1, **settings, **row.peers)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    seconds = SECONDS_QUICK if setting.quick else SECONDS
    found = []
    for row in ROWS:
        for one in contenders(setting, row):
            share = one.share if one.kind == "peer" and row.handler in ("", "fail-5") else 1.0
            jobs = max(100, int(row.per_second * seconds * share))
            measure = partial(measured, setting, one, jobs)
            name = f"{row.name}: {one.name}"
            is_peer = one.kind == "peer"
            found.append(Case(name, one.kind, measure, family=row.name, baseline=is_peer, label=one.name))
    jobs = 2000 * seconds
    for name, settings in (("one queue", {}), (f"{QUEUES:,} queues", {"HOLDFAST_QUEUES": str(QUEUES)})):
        one = ours(name, **settings, HOLDFAST_DEFAULTS="1")
        measure = partial(measured, setting, one, jobs)
        found.append(Case(f"no-op: {name}", "ours", measure, family="queues", baseline=not settings))
    yield found


SCENARIO = Scenario(
    "real", "Jobs that do something", "jobs_per_second", "jobs/s", cases, ("sqlite", "postgres", "redis"),
    columns=("worker_us", "server_us"), weight=200.0,
)  # fmt: skip
