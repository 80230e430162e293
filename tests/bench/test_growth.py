"""Which calls are compared with which as a store grows, and every one of them for real on small stores."""

from __future__ import annotations

import sys

import pytest
from bench.goals import FLAT_CALLS, FLAT_FLOORS, GOALS
from bench.places import opened
from bench.scenario import Setting
from bench.scenarios.growth import CALLS, FLOORS, Call, cases, listed, sizes


def nothing(store: str, call: Call) -> dict[str, float]:
    return {}


def test_every_call_is_compared_with_itself_in_the_smallest_store_and_rivals_with_one_alone() -> None:
    found = list(listed({10: "small", 1000: "large"}, nothing))
    baselines = {one.family: one.name for one in found if one.baseline}
    compared = {one.name: baselines[one.family] for one in found if not one.baseline}
    assert compared["waking, 1,000 jobs"] == "waking, 10 jobs"
    assert compared["promote 100, four at once, 10 jobs"] == "promote 100, 10 jobs"
    assert compared["promote 100, four at once, 1,000 jobs"] == "promote 100, 10 jobs"
    assert len(found) == 2 * len(CALLS)


def test_every_goal_of_a_flat_cost_names_cases_that_are_measured() -> None:
    found = list(listed(dict.fromkeys(sizes(quick=False), ""), nothing))
    names, families = {one.name for one in found}, {one.name: one.family for one in found}
    goals = [goal for goal in GOALS if goal.scenario == "growth"]
    assert len(goals) == 3 * (len(FLAT_CALLS) + 1)
    for goal in goals:
        (case,), smallest = goal.cases, goal.figure.removeprefix("÷ ")
        assert {case, smallest} <= names
        assert families[case] == families[smallest]


def test_the_floors_of_the_goals_are_measured() -> None:
    largest = max(sizes(quick=False))
    measured = {store: {f"{name}, {largest:,} jobs" for name in floors} for store, floors in FLOORS.items()}
    assert measured == {store: set(floors) for store, floors in FLAT_FLOORS.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")
@pytest.mark.parametrize("store", FLOORS)
def test_every_call_has_a_cost_on_small_stores(store: str) -> None:
    with opened(store) as place:
        setting = Setting(store, place, "none", 0, quick=True)
        with cases(setting) as found:
            costs = {one.name: one.measure()["cpu_us"] for one in found}
    assert len(costs) == (len(CALLS) + len(FLOORS[store])) * len(sizes(quick=True))
    assert [name for name, cost in costs.items() if cost <= 0] == []
