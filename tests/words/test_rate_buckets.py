"""The bucket's arithmetic: never ahead of its rate in any window, a hundredth behind at most, never closed forever."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.rates import NO_RATE, Rate, allowed, bounded, charged, opens_at

NOW = 2_000_000_000.0
NOISE = 1e-6  # seconds: what floats of this size leave in a sum

rates = st.builds(
    Rate,
    st.integers(1, 5000),
    st.sampled_from((0.5, 1.0, 10.0, 60.0, 3600.0)),
    st.sampled_from((None, None, 1, 2, 7, 100)),
)


@settings(max_examples=200, deadline=None)
@given(rates, st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 200)), min_size=1, max_size=60))
def test_no_window_sees_more_starts_than_the_rate_says(rate: Rate, asked: list[tuple[float, int]]) -> None:
    """Steps of up to three times the cost of one start, claims of any size."""
    bucket, now = 0.0, NOW
    starts: list[tuple[float, int]] = []
    for step, most in asked:
        number = min(most, allowed(rate, bucket, now))
        if number:
            bucket = charged(rate, bucket, now, number)
            starts.append((now, number))
        now += step * rate.every
    most = rate.count if rate.burst is None else rate.count + rate.burst - 1
    for begin, _ in starts:
        window = sum(number for time, number in starts if begin <= time < begin + rate.seconds - NOISE)
        assert window <= most


@given(rates.filter(lambda rate: rate.slack > 0))
def test_a_bucket_that_is_asked_often_is_at_most_a_hundredth_behind(rate: Rate) -> None:
    """Asked within its slack each time; `every` is what one start costs, a hundredth more than the rate says."""
    bucket, now, started = 0.0, NOW, 0
    step = rate.slack / 2
    for _ in range(1000):
        number = allowed(rate, bucket, now)
        if number:
            bucket = charged(rate, bucket, now, number)
        started += number
        now += step
    assert started >= math.floor((now - step - NOW) / rate.every)


@given(rates, st.floats(0.0, 1000.0))
def test_one_more_may_start_when_the_bucket_says_so(rate: Rate, later: float) -> None:
    now = NOW + later
    bucket = charged(rate, 0.0, now, allowed(rate, 0.0, now))
    assert allowed(rate, bucket, now) == 0
    assert allowed(rate, bucket, opens_at(rate, bucket)) >= 1


@given(rates, st.integers(1, 300))
def test_what_a_rate_itself_brought_about_is_not_set_back(rate: Rate, most: int) -> None:
    bucket = 0.0
    for _ in range(3):
        number = min(most, allowed(rate, bucket, NOW))
        bucket = charged(rate, bucket, NOW, number) if number else bucket
    assert bounded(rate, bucket, NOW) == bucket


@given(rates, rates)
def test_a_changed_rate_opens_after_one_start_at_the_latest_and_is_never_fuller(old: Rate, new: Rate) -> None:
    bucket = charged(old, 0.0, NOW, allowed(old, 0.0, NOW))
    kept = bounded(new, bucket, NOW)
    assert kept <= bucket
    assert opens_at(new, kept) <= NOW + 2 * new.every + NOISE
    if kept != bucket:
        assert allowed(new, kept, NOW) == 0


@pytest.mark.parametrize("back", [1.0, 3600.0, 86400.0])
def test_a_clock_set_back_leaves_an_empty_bucket_not_a_shut_one(back: float) -> None:
    rate = Rate(10, 1.0)
    bucket = charged(rate, 0.0, NOW, 1)
    kept = bounded(rate, bucket, NOW - back)
    assert allowed(rate, kept, NOW - back) == 0
    assert allowed(rate, kept, NOW - back + 2 * rate.every) >= 1


def test_the_rate_that_lifts_all_rates_says_so() -> None:
    assert NO_RATE.none
    assert str(NO_RATE) == "none"
