"""The arithmetic of the benchmarks."""

from __future__ import annotations

import pytest
from bench.figures import percentile, ratios, spread, summary


def test_a_spread_is_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_a_summary_leaves_out_rounds_without_the_figure() -> None:
    assert summary([{"rate": 4.0, "cost": 1.0}, None, {"rate": 6.0}]) == {
        "rate": {"median": 5.0, "min": 4.0, "max": 6.0},
        "cost": {"median": 1.0, "min": 1.0, "max": 1.0},
    }


def test_ratios_are_taken_inside_a_round_so_that_a_slow_round_does_not_tell() -> None:
    mine = [{"rate": 10.0}, {"rate": 1.0}, {"rate": 100.0}]
    theirs = [{"rate": 5.0}, {"rate": 0.5}, {"rate": 50.0}]
    assert ratios(mine, theirs, "rate") == {"median": 2.0, "min": 2.0, "max": 2.0}


def test_a_round_that_one_of_the_two_missed_gives_no_ratio() -> None:
    assert ratios([{"rate": 10.0}, {"rate": 9.0}], [None, {"rate": 3.0}], "rate") == spread([3.0])
    assert ratios([{"rate": 10.0}], [None], "rate") is None
    assert ratios([{"rate": 10.0}], [{"rate": 0.0}], "rate") is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 51.0), (0.99, 100.0), (1.0, 100.0), (0.0, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value
