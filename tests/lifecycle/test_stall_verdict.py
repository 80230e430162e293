"""stall_verdict over every combination that can differ: who pays for a stall, and when it is one too many."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.lifecycle import StallVerdict, stall_verdict

FREE, AGAIN, BURY, CANCEL = StallVerdict.FREE, StallVerdict.AGAIN, StallVerdict.BURY, StallVerdict.CANCEL

TABLE = [
    # stalls, max_stalls, begun, cancel_requested, verdict
    (0, 0, False, False, FREE),  # at-most-once, the handler never started: nothing happened
    (0, 0, False, True, CANCEL),
    (0, 0, True, False, BURY),  # at-most-once, the handler may have run: never again
    (0, 0, True, True, CANCEL),
    (0, 1, False, False, AGAIN),  # others count whether begun or not
    (0, 1, True, False, AGAIN),
    (0, 1, True, True, CANCEL),
    (1, 1, False, False, BURY),
    (1, 1, True, False, BURY),
    (1, 1, False, True, CANCEL),
    (2, 3, True, False, AGAIN),
    (3, 3, True, False, BURY),
    (9, 3, True, False, BURY),  # the limit was lowered meanwhile
    (9, 0, False, False, FREE),
]


@pytest.mark.parametrize(("stalls", "max_stalls", "begun", "cancel", "verdict"), TABLE)
def test_verdict(stalls: int, max_stalls: int, begun: bool, cancel: bool, verdict: StallVerdict) -> None:
    assert stall_verdict(stalls=stalls, max_stalls=max_stalls, begun=begun, cancel_requested=cancel) is verdict


ALL = list(product(range(6), range(5), (False, True), (False, True)))


@pytest.mark.parametrize(("stalls", "max_stalls", "begun", "cancel"), ALL)
def test_rules_that_hold_for_every_stall(stalls: int, max_stalls: int, begun: bool, cancel: bool) -> None:
    verdict = stall_verdict(stalls=stalls, max_stalls=max_stalls, begun=begun, cancel_requested=cancel)
    assert (verdict is CANCEL) is cancel, "a cancel that was asked for always wins, and nothing else cancels"
    if verdict is FREE:
        assert max_stalls == 0 and not begun
    if verdict is AGAIN:
        assert stalls + 1 <= max_stalls
    if verdict is BURY:
        assert stalls + 1 > max_stalls
        assert begun or max_stalls > 0


@pytest.mark.parametrize("max_stalls", range(6))
def test_a_job_survives_exactly_max_stalls(max_stalls: int) -> None:
    stalls = 0
    while stall_verdict(stalls=stalls, max_stalls=max_stalls, begun=True, cancel_requested=False) is AGAIN:
        stalls += 1
    assert stalls == max_stalls
