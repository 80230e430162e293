"""settlement_for over every outcome: the ending, whether a retry is spent, and what travels along."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.context import Outcome, OutcomeKind, settlement_for
from holdfast.lifecycle import Ending, Failure, Settlement

FAILURE = Failure(reason="failed", type="builtins.ValueError", text="no")
RETRYABLE = (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT)

# kind, retry_in → ending, failed, reason
TABLE = [
    (OutcomeKind.RETURNED, None, Ending.SUCCEEDED, False, None),
    (OutcomeKind.RETURNED, 5.0, Ending.SUCCEEDED, False, None),
    (OutcomeKind.FAILED, 5.0, Ending.RETRY, True, None),
    (OutcomeKind.FAILED, 0.0, Ending.RETRY, True, None),
    (OutcomeKind.FAILED, None, Ending.BURIED, True, "failed"),
    (OutcomeKind.TIMED_OUT, 5.0, Ending.RETRY, True, None),
    (OutcomeKind.TIMED_OUT, None, Ending.BURIED, True, "timeout"),
    (OutcomeKind.SNOOZED, None, Ending.SNOOZED, False, None),
    (OutcomeKind.SNOOZED, 5.0, Ending.SNOOZED, False, None),
    (OutcomeKind.BURIED, None, Ending.BURIED, False, "bury"),
    (OutcomeKind.BURIED, 5.0, Ending.BURIED, False, "bury"),
    (OutcomeKind.UNDECODABLE, None, Ending.BURIED, False, "undecodable"),
    (OutcomeKind.UNDECODABLE, 5.0, Ending.BURIED, False, "undecodable"),
    (OutcomeKind.CANCELLED, None, Ending.CANCELLED, False, None),
    (OutcomeKind.CANCELLED, 5.0, Ending.CANCELLED, False, None),
]


def settled(kind: OutcomeKind, retry_in: float | None = None, **fields: object) -> Settlement:
    outcome = Outcome(kind=kind, **fields)  # type: ignore[arg-type]
    return settlement_for("job-1", "token-1", outcome, retry_in=retry_in, retain=123.0)


def test_the_table_has_every_outcome_with_and_without_a_retry_left() -> None:
    covered = {(kind, retry_in is None) for kind, retry_in, *_ in TABLE}
    assert covered == set(product(OutcomeKind, (True, False)))


@pytest.mark.parametrize(("kind", "retry_in", "ending", "failed", "reason"), TABLE)
def test_ending(kind: OutcomeKind, retry_in: float | None, ending: Ending, failed: bool, reason: str | None) -> None:
    settlement = settled(kind, retry_in)
    assert (settlement.ending, settlement.failed, settlement.reason) == (ending, failed, reason)


@pytest.mark.parametrize("reason", ["failed", "memory", "cpu", "file"])
def test_a_limit_that_was_hit_names_the_death_and_spends_a_retry_like_any_failure(reason: str) -> None:
    failure = Failure(reason=reason, text="no")
    dead = settled(OutcomeKind.FAILED, None, failure=failure)
    assert (dead.ending, dead.failed, dead.reason) == (Ending.BURIED, True, reason)
    again = settled(OutcomeKind.FAILED, 5.0, failure=failure)
    assert (again.ending, again.failed, again.reason) == (Ending.RETRY, True, None)


@pytest.mark.parametrize(("kind", "retry_in"), list(product(OutcomeKind, (None, 5.0))))
def test_every_settlement_names_its_lease_and_its_retention(kind: OutcomeKind, retry_in: float | None) -> None:
    settlement = settled(kind, retry_in)
    assert (settlement.id, settlement.token, settlement.retain) == ("job-1", "token-1", 123.0)


@pytest.mark.parametrize(("kind", "retry_in"), list(product(OutcomeKind, (None, 5.0))))
def test_a_retry_is_spent_exactly_by_failures_and_timeouts(kind: OutcomeKind, retry_in: float | None) -> None:
    assert settled(kind, retry_in).failed is (kind in RETRYABLE)


@pytest.mark.parametrize("kind", RETRYABLE)
def test_the_delay_of_a_retry_is_the_policys_unless_the_verdict_asked_for_one(kind: OutcomeKind) -> None:
    assert settled(kind, 5.0).delay == 5.0
    assert settled(kind, 5.0, delay=60.0).delay == 60.0
    assert settled(kind, 5.0, delay=0.0).delay == 0.0


@pytest.mark.parametrize("kind", RETRYABLE)
def test_a_verdict_cannot_ask_for_a_retry_that_is_not_left(kind: OutcomeKind) -> None:
    assert settled(kind, None, delay=60.0).ending is Ending.BURIED


@pytest.mark.parametrize("delay", [None, 0.0, 30.0])
def test_a_snooze_lasts_as_long_as_it_says(delay: float | None) -> None:
    assert settled(OutcomeKind.SNOOZED, 5.0, delay=delay).delay == (delay or 0.0)


def test_a_value_travels_with_success_only() -> None:
    assert settled(OutcomeKind.RETURNED, value=b"[1]").value == b"[1]"
    for kind in set(OutcomeKind) - {OutcomeKind.RETURNED}:
        assert settled(kind, 5.0, value=b"[1]").value is None


def test_a_failure_travels_with_what_did_not_go_well() -> None:
    for kind, retry_in in product((*RETRYABLE, OutcomeKind.BURIED, OutcomeKind.UNDECODABLE), (None, 5.0)):
        assert settled(kind, retry_in, failure=FAILURE).failure == FAILURE
    assert settled(OutcomeKind.RETURNED, failure=FAILURE).failure is None
    assert settled(OutcomeKind.SNOOZED, failure=FAILURE).failure is None
