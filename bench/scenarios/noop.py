"""Jobs that do nothing, run as fast as possible, and what each cost the store and the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import SLOTS, Contender, drained, floor, ours, turn
from ..places import STORES
from ..scenario import Case, Scenario, Setting

ONE_SHARD = ", 1 shard"
FLOOR_FACTOR = 2  # the floor is so fast that measuring it takes more jobs


def measured(setting: Setting, contender: Contender, jobs: int) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        return drained(one, jobs)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    work = ours("holdfast work, 1 runner")
    contenders = [
        work,
        work.like("holdfast work, 2 runners", HOLDFAST_RUNNERS="2"),
        work.like("2 × holdfast work", workers=2),
        work.like("holdfast, embedded", HOLDFAST_FORM="embedded"),
    ]
    if setting.store == "cluster":
        contenders.append(work.like(f"holdfast work, 1 runner{ONE_SHARD}", HOLDFAST_SHARDS="1"))
    for one in setting.peers():
        contenders += [one, one.like(f"2 × {one.name}", workers=2)]
    found = [
        Case(
            one.name,
            one.kind,
            partial(measured, setting, one, max(100, int(setting.jobs * one.share))),
            baseline=one.kind == "peer" or one.name.endswith(ONE_SHARD),
            rounds_max=2 if one.kind == "peer" and one.workers > 1 else 99,
        )
        for one in contenders
    ]
    bare = floor(setting.store)
    larger = bare.like(f"bare store, batches of {SLOTS}", BARE_BATCH=SLOTS)
    for one in (bare, larger):
        measure = partial(measured, setting, one, setting.jobs * FLOOR_FACTOR)
        found.append(Case(one.name, "floor", measure, baseline=True))
    yield found


SCENARIO = Scenario(
    "noop",
    "No-op jobs, end to end",
    "jobs_per_second",
    "jobs/s",
    cases,
    STORES,
    columns=("worker_us", "server_us", "calls", "bytes"),
    weight=100.0,
)
