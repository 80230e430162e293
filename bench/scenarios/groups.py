"""Jobs in groups that run one at a time (ours also strictly in order), in four shapes, compared with the same jobs
without groups; and the grouped shapes and one hot group with group_prefetch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import Contender, drained, floor, ours, turn
from ..scenario import Case, Scenario, Setting

SHAPES = {
    "ungrouped": "none",
    "100 groups in turn": "round-100",
    "100 groups, adjacent": "adjacent-100",
    "10,000 groups": "round-10000",
}
SHARE = 0.5
HOT_SHARE = 0.1
PEER_SECONDS_MAX = 6.0
PREFETCHES = (16, 64)
PREFETCHED_FACTOR = 5  # with it, a hot group is so much faster that measuring it takes more jobs


def measured(setting: Setting, contender: Contender, shape: str, jobs: int) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        if contender.kind == "peer":
            return drained(one, jobs, shape=shape, seconds_max=PEER_SECONDS_MAX, partly=True)
        return drained(one, jobs, shape=shape)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    jobs = max(1000, int(setting.jobs * SHARE))
    hot = max(100, int(setting.jobs * HOT_SHARE))
    found = []
    for name, shape in SHAPES.items():
        measure = partial(measured, setting, ours(), shape, jobs)
        found.append(Case(f"holdfast, {name}", "ours", measure, baseline=shape == "none"))
    bare, apart = floor(setting.store, BARE_BATCH="1"), floor(setting.store, BARE_BATCH="1", BARE_APART="1")
    alone = ours(HOLDFAST_FORM="exchange", BARE_APART="1")
    found += [
        Case("holdfast, one hot group", "ours", partial(measured, setting, ours(), "hot", hot), "hot", baseline=True),
        Case(
            "bare store, a durable trip per job", "floor", partial(measured, setting, bare, "none", hot), "hot",
            baseline=True,
        ),
        Case(
            "bare store, handlers apart", "floor", partial(measured, setting, apart, "none", hot), "hot", baseline=True
        ),
        Case(
            "our exchanges alone, handlers apart", "floor", partial(measured, setting, alone, "hot", hot), "hot",
            baseline=True,
        ),
    ]  # fmt: skip
    for number in PREFETCHES:
        ahead = ours(HOLDFAST_GROUP_PREFETCH=str(number))
        for name, shape in SHAPES.items():
            if shape != "none":
                measure = partial(measured, setting, ahead, shape, jobs)
                found.append(Case(f"holdfast, {name}, group_prefetch={number}", "ours", measure))
        measure = partial(measured, setting, ahead, "hot", hot * PREFETCHED_FACTOR)
        found.append(Case(f"holdfast, one hot group, group_prefetch={number}", "ours", measure, "hot"))
    for one in setting.peers(groups=True):
        for name, shape in SHAPES.items():
            measure = partial(measured, setting, one, shape, jobs)
            found.append(Case(f"{one.name}, {name}", "peer", measure, one.name, shape == "none", rounds_max=2))
    yield found


SCENARIO = Scenario(
    "groups", "Groups, one job at a time in each", "jobs_per_second", "jobs/s", cases,
    ("sqlite", "postgres", "redis"), weight=80.0,
)  # fmt: skip
