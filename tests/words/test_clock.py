"""Clocks and durations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import (
    SECONDS_MAX,
    TICK_SECONDS,
    Clock,
    ManualClock,
    SystemClock,
    boot_id,
    moment,
    to_seconds,
    until_tick,
)
from holdfast.errors import ConfigurationError


def test_both_clocks_are_clocks() -> None:
    assert isinstance(SystemClock(), Clock)
    assert isinstance(ManualClock(), Clock)


def test_the_steady_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.steady() for _ in range(1000)]
    assert readings == sorted(readings)


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000.0)
    steady = clock.steady()
    assert clock.wall() == 1000.0
    assert clock.advance(1, minutes=1, hours=1, days=1) == 1000.0 + 90061
    assert clock.steady() - steady == 90061
    with pytest.raises(ConfigurationError):
        clock.advance(-1)


def test_the_boot_id_is_stable_within_a_process() -> None:
    assert boot_id() == boot_id()


def test_moments_are_aware() -> None:
    assert moment(0.0).isoformat() == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("value", "seconds"), [(1, 1.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (0, 0.0)])
def test_durations_become_seconds(value: float | timedelta, seconds: float) -> None:
    assert to_seconds(value, "delay=") == seconds


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), SECONDS_MAX * 2, "5", True, None, timedelta(-1)])
def test_what_is_no_duration_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match="delay="):
        to_seconds(value, "delay=")  # type: ignore[arg-type]


@given(st.floats(min_value=0.5, max_value=100.0), st.floats(min_value=0.0, max_value=1e7))
def test_checks_share_ticks_and_none_comes_later_than_without(seconds: float, now: float) -> None:
    wait = until_tick(seconds, now)
    assert seconds - TICK_SECONDS - 1e-6 <= wait <= seconds + 1e-3
    again = now + wait
    assert until_tick(2 * TICK_SECONDS, again) == pytest.approx(2 * TICK_SECONDS, abs=1e-6), "it is a tick"
    assert until_tick(TICK_SECONDS, again - 1e-9) == pytest.approx(TICK_SECONDS, abs=1e-6), (
        "a timer fires a little early"
    )


def test_a_pause_below_a_tick_stays() -> None:
    assert until_tick(0.01, 123.4) == 0.01
