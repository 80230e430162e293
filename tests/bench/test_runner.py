"""Rounds of cases, and a run that is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import pytest
from bench.runner import run
from bench.scenario import Case, Scenario, Setting


def test_a_run_that_is_stopped_keeps_what_it_measured() -> None:
    rates = iter([10.0, 20.0, 30.0])

    def measure() -> dict[str, float]:
        try:
            return {"jobs_per_second": next(rates)}
        except StopIteration:
            raise KeyboardInterrupt from None

    @contextlib.contextmanager
    def cases(setting: Setting) -> Iterator[list[Case]]:
        yield [Case("ours", "ours", measure), Case("theirs", "peer", measure, baseline=True)]

    scenario = Scenario("some", "Some", "jobs_per_second", "jobs/s", cases, ("sqlite",))
    found = run(scenario, "sqlite", against="none", rounds=5, jobs=1, quick=False)
    assert found["stopped"]
    assert found["rounds"] == 2
    assert found["cases"]["ours"]["figures"]["jobs_per_second"] == {"median": 20.0, "min": 10.0, "max": 30.0}
    assert found["cases"]["ours"]["ratios"]["theirs"]["median"] == 0.5


def test_a_peer_that_is_far_behind_in_the_first_round_is_measured_once() -> None:
    calls: list[str] = []

    def measure(name: str, rate: float) -> dict[str, float]:
        calls.append(name)
        return {"jobs_per_second": rate}

    @contextlib.contextmanager
    def cases(setting: Setting) -> Iterator[list[Case]]:
        rates = {"holdfast": ("ours", 10.0), "far": ("peer", 4.9), "near": ("peer", 5.1), "limit": ("floor", 1.0)}
        yield [Case(name, kind, partial(measure, name, rate), "row") for name, (kind, rate) in rates.items()]

    scenario = Scenario("some", "Some", "jobs_per_second", "jobs/s", cases, ("sqlite",), near=0.5)
    found = run(scenario, "sqlite", against="none", rounds=3, jobs=1, quick=False)
    assert {name: calls.count(name) for name in calls} == {"holdfast": 3, "far": 1, "near": 3, "limit": 3}
    assert found["cases"]["far"]["figures"]["jobs_per_second"]["median"] == 4.9


def test_the_time_for_a_round_is_judged_by_the_cases_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def measure(rate: float, seconds: float) -> dict[str, float]:
        clock[0] += seconds
        return {"jobs_per_second": rate}

    @contextlib.contextmanager
    def cases(setting: Setting) -> Iterator[list[Case]]:
        yield [
            Case("holdfast", "ours", partial(measure, 10.0, 1.0), "row"),
            Case("far", "peer", partial(measure, 1.0, 10.0), "row"),
        ]

    scenario = Scenario("some", "Some", "jobs_per_second", "jobs/s", cases, ("sqlite",), near=0.5)
    found = run(scenario, "sqlite", against="none", rounds=5, jobs=1, quick=False, seconds_max=13.0)
    assert found["rounds"] == 3, "the first takes 11 s, the others one"
