"""Back-off arithmetic and verdicts."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Bury, Retry, RetryPolicy, Snooze
from holdfast.context import Verdict
from holdfast.errors import ConfigurationError
from holdfast.retry import as_policy


def exact(limit: int | None = 3, **rest: Any) -> RetryPolicy:
    return RetryPolicy(limit, jitter=0.0, **rest)


def waits(policy: RetryPolicy, failures: int) -> list[float | None]:
    return [policy.delay(count) for count in range(1, failures + 1)]


def test_the_default_is_three_retries_doubling_from_one_second() -> None:
    assert RetryPolicy().limit == 3
    assert waits(exact(), 5) == [1.0, 2.0, 4.0, None, None]


def test_the_cap_holds_however_many_failures() -> None:
    assert waits(exact(None, base=100, cap=300), 4) == [100.0, 200.0, 300.0, 300.0]
    assert exact(None).delay(100_000) == 600.0


def test_zero_never_retries_and_none_does_for_ever() -> None:
    assert exact(0).delay(1) is None
    assert exact(None).delay(10_000) == 600.0


def test_fixed_linear_and_listed_delays() -> None:
    assert waits(RetryPolicy.fixed(10, limit=2), 3) == [10.0, 10.0, None]
    assert waits(RetryPolicy.fixed(timedelta(hours=1), limit=1), 2) == [3600.0, None]
    assert waits(RetryPolicy.linear(5, limit=3, jitter=0), 4) == [5.0, 10.0, 15.0, None]
    assert waits(RetryPolicy.linear(5, 1, limit=None, jitter=0, cap=6), 3) == [5.0, 6.0, 6.0]
    assert waits(RetryPolicy(delays=[10, 60, 300], jitter=0), 4) == [10.0, 60.0, 300.0, None]
    assert waits(RetryPolicy(4, delays=[10, 60], jitter=0), 5) == [10.0, 60.0, 60.0, 60.0, None]


def test_a_callable_decides_on_its_own() -> None:
    policy = RetryPolicy.custom(lambda failures, error: None if isinstance(error, KeyError) else failures * 7)
    assert policy.delay(2, ValueError()) == 14.0
    assert policy.delay(2, KeyError()) is None
    assert RetryPolicy.custom(lambda failures, error: timedelta(seconds=3)).delay(1) == 3.0


@pytest.mark.parametrize("answer", [-1, float("nan"), "soon"])
def test_a_callable_that_answers_nonsense_falls_back_to_the_usual_wait(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert RetryPolicy.custom(lambda failures, error: answer).delay(2) == 2.0
    assert "backoff failed" in caplog.text


def test_a_callable_that_raises_falls_back_without_telling_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def backoff(failures: int, error: BaseException | None) -> float:
        raise RuntimeError("secret argument")

    assert RetryPolicy.custom(backoff).delay(1) == 1.0
    assert "secret" not in caplog.text


def test_only_errors_in_on_and_not_in_never_are_retried() -> None:
    policy = exact(3, on=(OSError, ValueError), never=FileNotFoundError)
    assert policy.delay(1, OSError()) == 1.0
    assert policy.delay(1, FileNotFoundError()) is None
    assert policy.delay(1, KeyError()) is None
    assert policy.delay(1) == 1.0
    assert exact().delay(1, KeyboardInterrupt()) is None


def test_a_retry_verdict_is_always_to_be_retried_within_the_limit() -> None:
    policy = exact(1, on=OSError)
    assert policy.delay(1, Retry()) == 1.0
    assert policy.delay(2, Retry()) is None


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1e6), st.floats(1, 100), st.floats(0, 1e6))
def test_a_wait_is_never_negative_nor_above_the_cap(
    failures: int, jitter: float, base: float, factor: float, cap: float
) -> None:
    wait = RetryPolicy(None, base, factor, cap, jitter).delay(failures)
    assert wait is not None
    assert 0.0 <= wait <= cap


def test_jitter_spreads_by_its_fraction() -> None:
    seen = [RetryPolicy(3, base=100, cap=1000).delay(1) or 0.0 for _ in range(500)]
    assert min(seen) >= 80.0
    assert max(seen) <= 120.0
    assert len(set(seen)) > 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": -1},
        {"limit": True},
        {"limit": 1.5},
        {"base": -1},
        {"base": "1"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": 2},
        {"cap": float("inf")},
        {"on": (int,)},
        {"never": ["OSError"]},
        {"delays": [1, -1]},
        {"backoff": 3},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RetryPolicy"):
        RetryPolicy(**wrong)


def test_a_policy_is_frozen_and_comparable() -> None:
    with pytest.raises(AttributeError):
        RetryPolicy().limit = 5
    assert RetryPolicy(2) == RetryPolicy(2)
    assert hash(RetryPolicy(2)) == hash(RetryPolicy(2))


def test_what_retry_takes() -> None:
    assert as_policy(5) == RetryPolicy(5)
    assert as_policy(None).limit == 0
    assert as_policy(lambda failures, error: 1.0).delay(99) == 1.0
    for wrong in ("3", True, 2.5):
        with pytest.raises(ConfigurationError):
            as_policy(wrong)  # type: ignore[arg-type]


def test_verdicts_pass_by_except_exception() -> None:
    for verdict in (Retry(), Snooze(1), Bury()):
        assert isinstance(verdict, Verdict)
        assert not isinstance(verdict, Exception)


def test_verdicts_carry_their_facts() -> None:
    assert Retry().after is None
    assert Retry(after=timedelta(minutes=1)).after == 60.0
    assert Snooze(seconds=5).seconds == 5.0
    assert Snooze(timedelta(seconds=2)).seconds == 2.0
    assert Bury("no such user").reason == "no such user"
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises(ConfigurationError):
            Snooze(wrong)  # type: ignore[arg-type]
