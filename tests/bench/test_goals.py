"""Whether a report reaches the goals."""

from __future__ import annotations

from typing import Any

from bench.goals import GOALS, First, firsts, reached
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


def contender(label: str, *rates: float, kind: str = "peer", family: str = "no-op") -> dict[str, Any]:
    rounds = [{"jobs_per_second": rate, "worker_us": 30.0, "server_us": 12.0} for rate in rates]
    found = case(figures=rounds[0])
    return {**found, "kind": kind, "family": family, "label": label, "rounds": rounds}


def standing(*contenders: dict[str, Any], scenario: str = "real") -> First:
    (one,) = firsts({scenario: {"cases": dict(enumerate(contenders))}})
    return one


def test_a_row_is_compared_with_the_python_peer_that_comes_nearest() -> None:
    mine = contender("holdfast", 300.0, 400.0, kind="ours")
    one = standing(mine, contender("celery", 100.0, 100.0), contender("arq", 200.0, 200.0), contender("bullmq", 900.0))
    assert (one.best, one.ratio, one.cost) == ("arq", {"median": 1.75, "min": 1.5, "max": 2.0}, 42.0)
    assert one.yes
    assert not standing(mine, contender("arq", 210.0, 290.0)).yes


def test_near_the_limit_nobody_must_be_beaten() -> None:
    mine = contender("holdfast", 95.0, kind="ours")
    assert standing(mine, contender("celery", 94.0), contender("limit", 100.0, kind="floor")).yes
    assert not standing(mine, contender("celery", 94.0), contender("limit", 110.0, kind="floor")).yes


def test_a_share_above_the_limit_is_noise_and_who_is_behind_a_peer_is_not_first() -> None:
    mine = contender("holdfast", 95.0, kind="ours")
    assert not standing(mine, contender("celery", 94.0), contender("limit", 80.0, kind="floor")).yes
    assert not standing(mine, contender("celery", 110.0), contender("limit", 100.0, kind="floor")).yes


def test_without_a_peer_and_without_a_limit_there_is_nothing_to_judge() -> None:
    one = standing(contender("holdfast", 95.0, kind="ours"))
    assert not one.compared and not one.yes


def test_at_half_load_less_is_better() -> None:
    def delayed(label: str, kind: str, *rounds: float) -> dict[str, Any]:
        found = [dict.fromkeys(("p50_ms", "p99_ms", "p999_ms"), value) for value in rounds]
        return {**case(figures=found[0]), "kind": kind, "family": "", "label": label, "rounds": found}

    cases = {"holdfast work": delayed("holdfast work", "ours", 2.0), "arq": delayed("arq", "peer", 4.0)}
    lines = firsts({"load": {"cases": cases}})
    assert [(one.row, one.ratio and one.ratio["median"], one.yes) for one in lines] == [
        ("half load, p50 ms", 2.0, True),
        ("half load, p99 ms", 2.0, True),
        ("half load, p99.9 ms", 2.0, True),
    ]


def test_the_better_group_prefetch_counts() -> None:
    hot = "holdfast, one hot group"
    cases = {
        f"{hot}, group_prefetch=16": case(ratios={hot: 6.0}),
        f"{hot}, group_prefetch=64": case(ratios={hot: 11.0}),
        "holdfast, 10,000 groups, group_prefetch=16": case(ratios={"holdfast, ungrouped": 0.6}),
    }
    assert found(cases, "one hot group, group_prefetch, ÷ without", "groups") == (11.0, True)
    assert found(cases, "10,000 groups, group_prefetch, ÷ ungrouped", "groups") == (0.6, False)
