"""stall_verdict over every combination that can differ: who pays for a stall, and when it is one too many."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.lifecycle import SHARED_STALLS_MAX, StallVerdict, stall_verdict

FREE, AGAIN, BURY, CANCEL = StallVerdict.FREE, StallVerdict.AGAIN, StallVerdict.BURY, StallVerdict.CANCEL
MOST = SHARED_STALLS_MAX

TABLE = [
    # stalls, shared_stalls, max_stalls, alone, begun, cancel_requested, verdict
    (0, 0, 0, True, False, False, FREE),  # at-most-once, the handler never started: nothing happened
    (0, 0, 0, False, False, False, FREE),
    (0, 0, 0, True, False, True, CANCEL),
    (0, 0, 0, True, True, False, BURY),  # at-most-once, the handler may have run: never again
    (0, 0, 0, False, True, False, BURY),  # whatever else ran in that process
    (0, 0, 0, True, True, True, CANCEL),
    (0, 0, 1, True, False, False, AGAIN),  # others count whether begun or not
    (0, 0, 1, True, True, False, AGAIN),
    (0, 0, 1, True, True, True, CANCEL),
    (1, 0, 1, True, False, False, BURY),
    (1, 0, 1, True, True, False, BURY),
    (1, 0, 1, True, False, True, CANCEL),
    (2, 0, 3, True, True, False, AGAIN),
    (3, 0, 3, True, True, False, BURY),
    (9, 0, 3, True, True, False, BURY),  # the limit was lowered meanwhile
    (9, 0, 0, True, False, False, FREE),
    (1, 0, 1, False, True, False, AGAIN),  # among others: the budget for stalls alone is not touched
    (1, MOST - 1, 1, False, True, False, AGAIN),
    (0, MOST, 1, False, True, False, BURY),
    (0, MOST, 1, True, True, False, AGAIN),  # nor the other way round
    (0, MOST, 1, False, True, True, CANCEL),
]


def verdict_on(
    stalls: int, shared: int, max_stalls: int, alone: bool, begun: bool, cancel: bool = False
) -> StallVerdict:
    return stall_verdict(
        stalls=stalls,
        shared_stalls=shared,
        max_stalls=max_stalls,
        alone=alone,
        begun=begun,
        cancel_requested=cancel,
    )


@pytest.mark.parametrize(("stalls", "shared", "max_stalls", "alone", "begun", "cancel", "verdict"), TABLE)
def test_verdict(
    stalls: int, shared: int, max_stalls: int, alone: bool, begun: bool, cancel: bool, verdict: StallVerdict
) -> None:
    assert verdict_on(stalls, shared, max_stalls, alone, begun, cancel) is verdict


@pytest.mark.parametrize(("stalls", "max_stalls"), list(product(range(6), range(5))))
def test_rules_that_hold_for_every_stall(stalls: int, max_stalls: int) -> None:
    for shared, alone, begun, cancel in product(range(MOST + 2), (False, True), (False, True), (False, True)):
        verdict = verdict_on(stalls, shared, max_stalls, alone, begun, cancel)
        assert (verdict is CANCEL) is cancel, "a cancel that was asked for always wins, and nothing else cancels"
        too_many = stalls + alone > max_stalls or shared + (not alone) > MOST
        if verdict is FREE:
            assert max_stalls == 0 and not begun
        if verdict is AGAIN:
            assert max_stalls > 0 and not too_many
        if verdict is BURY:
            assert (max_stalls == 0 and begun) or (max_stalls > 0 and too_many)


@pytest.mark.parametrize("max_stalls", range(6))
def test_a_job_survives_exactly_max_stalls_alone(max_stalls: int) -> None:
    stalls = 0
    while verdict_on(stalls, 0, max_stalls, alone=True, begun=True) is AGAIN:
        stalls += 1
    assert stalls == max_stalls


@pytest.mark.parametrize("max_stalls", range(1, 6))
def test_a_job_survives_a_fixed_number_of_stalls_among_others(max_stalls: int) -> None:
    shared = 0
    while verdict_on(0, shared, max_stalls, alone=False, begun=True) is AGAIN:
        shared += 1
    assert shared == SHARED_STALLS_MAX
