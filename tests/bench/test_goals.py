"""Whether a report reaches the goals."""

from __future__ import annotations

from typing import Any

from bench.goals import GOALS, reached
from bench.scenarios import ALL


def case(*, figures: dict[str, float] | None = None, ratios: dict[str, float] | None = None) -> dict[str, Any]:
    def spread(value: float) -> dict[str, float]:
        return {"median": value, "min": value, "max": value}

    given = {"figures": figures or {}, "ratios": ratios or {}}
    return {part: {name: spread(value) for name, value in one.items()} for part, one in given.items()}


def found(cases: dict[str, Any], what: str, scenario: str = "noop") -> tuple[float | None, bool]:
    (line,) = [one for one in reached({"sqlite": {scenario: {"cases": cases}}}) if one.goal.what == what]
    return line.value, line.yes


def test_the_better_of_one_and_two_runners_counts() -> None:
    cases = {
        "holdfast work, 1 runner": case(ratios={"huey": 11.0}),
        "holdfast work, 2 runners": case(ratios={"huey": 13.0}),
    }
    assert found(cases, "no-op jobs, one worker, ÷ huey") == (13.0, True)
    cases["holdfast work, 2 runners"] = case(ratios={"huey": 11.9})
    assert found(cases, "no-op jobs, one worker, ÷ huey") == (11.9, False)


def test_a_bound_from_above() -> None:
    what = "enqueue to start, p50 ms"
    assert found({"holdfast work": case(figures={"p50_ms": 1.9})}, what, "latency") == (1.9, True)
    assert found({"holdfast work": case(figures={"p50_ms": 2.1})}, what, "latency") == (2.1, False)


def test_a_cost_that_grows_with_the_bare_stores_own_is_flat() -> None:
    what = "refill: 1,000,000 jobs, ÷ 1,000 jobs, per bare store"
    cases = {"refill, 1,000,000 jobs": case(ratios={"refill, 1,000 jobs": 2.4})}

    def value() -> tuple[float | None, bool]:
        (line,) = [one for one in reached({"redis": {"growth": {"cases": cases}}}) if one.goal.what == what]
        return line.value, line.yes

    assert value() == (2.4, False)
    cases["bare commands on 20 jobs, 1,000,000 jobs"] = case(ratios={"bare commands on 20 jobs, 1,000 jobs": 2.0})
    assert value() == (1.2, True)
    cases["a script that calls no command, 1,000,000 jobs"] = case(ratios={"smallest": 0.5})
    assert value() == (1.2, True)


def test_what_was_not_measured_is_not_reached() -> None:
    assert found({}, "no-op jobs, one worker, ÷ huey") == (None, False)


def test_only_measured_stores_are_asked() -> None:
    assert {one.goal.store for one in reached({"redis": {}})} == {"redis"}


def test_every_goal_names_a_scenario_that_runs_on_its_store() -> None:
    assert [goal for goal in GOALS if goal.store not in ALL[goal.scenario].stores] == []
