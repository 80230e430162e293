"""Rounds of cases, and a run that is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
