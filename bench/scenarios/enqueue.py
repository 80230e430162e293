"""Enqueueing from one process: one call per job, and many jobs per call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import Contender, floor, ours, turn
from ..peers import PEERS
from ..places import STORES
from ..scenario import Case, Scenario, Setting

SINGLE_SHARE = 0.2  # a second or two: with fewer calls one checkpoint or the first call would decide


def measured(setting: Setting, contender: Contender, *words: object) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        return {"per_second": one.call(*words)}


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    single = max(100, int(setting.jobs * SINGLE_SHARE))
    found = []
    for one in (ours("holdfast"), *setting.peers(), floor(setting.store)):
        for family, words in (("one by one", ("one", single)), ("bulk of 1,000", ("bulk", setting.jobs, "none"))):
            if words[0] == "bulk" and one.kind == "peer" and not PEERS[one.name].bulk:
                continue
            measure = partial(measured, setting, one, *words)
            found.append(Case(f"{one.name}, {family}", one.kind, measure, family, one.kind != "ours"))
    yield found


SCENARIO = Scenario("enqueue", "Enqueue", "per_second", "jobs/s", cases, STORES, weight=30.0)
