"""Every conformance case over memory shards.

Where a queue is one shard the router must not differ from a plain store in anything a case can see. Where it is three,
it differs only in what DIFFERS names, and in that it must: a case that passes although it is listed fails the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.conformance import CASES, run_case

from .shelves import memory_stores

ORDER = "there is no order among jobs of different shards: ungrouped jobs and groups are in several"
LANES = "the two lanes share the slots within a shard, not over the shards of a queue"
KEYS = "a key is unique among the jobs of one shard, and the case gives it to another group"
IDS = "an id is known where its job is, and the case repeats it with another group"

DIFFERS = {
    "claim_takes_at_most_what_a_queue_may_have": ORDER,
    "higher_priority_goes_first_then_the_older": ORDER,
    "two_workers_never_hold_one_job": ORDER,
    "two_revives_at_once_make_one_live_job": ORDER,
    "a_batch_is_stored_and_numbered_in_order": ORDER,
    "a_long_batch_with_known_ids_creates_the_others_in_order[ungrouped]": ORDER,
    "a_job_given_back_into_a_pause_keeps_its_turn[queue]": ORDER,
    "a_job_given_back_into_a_pause_keeps_its_turn[group]": ORDER,
    "a_job_given_back_into_a_pause_keeps_its_turn[task]": ORDER,
    "a_paused_task_is_parked_in_every_queue_and_keeps_its_turn": ORDER,
    "jobs_promoted_earlier_go_first": ORDER,
    "find_shows_the_newest_first_page_by_page": ORDER,
    "a_claim_numbered_below_the_last_answers_no_leases": ORDER,
    "suspects_are_claimed_in_their_turn_like_others": ORDER,
    "new_jobs_queue_behind_the_carried_ones": ORDER,
    "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 4 slots]": LANES,
    "the_lane_of_the_calls_parity_gets_the_larger_half[call 2, 4 slots]": LANES,
    "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 5 slots]": LANES,
    "the_lane_of_the_calls_parity_gets_the_larger_half[call 2, 5 slots]": LANES,
    "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 1 slots]": LANES,
    "what_one_lane_cannot_use_the_other_may[1-6-1]": LANES,
    "what_one_lane_cannot_use_the_other_may[2-6-1]": LANES,
    "what_one_lane_cannot_use_the_other_may[1-1-6]": LANES,
    "what_one_lane_cannot_use_the_other_may[2-1-6]": LANES,
    "what_one_lane_cannot_use_the_other_may[1-0-6]": LANES,
    "single_slot_claims_serve_both_lanes_in_turn": LANES,
    "keep_answers_the_live_job_of_the_key_and_changes_nothing[waiting]": KEYS,
    "replace_that_joins_a_busy_group_waits_behind_it": KEYS,
    "raise_stores_nothing_of_the_batch[waiting]": KEYS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[waiting, alone]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[scheduled, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[waiting, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[ready, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[running, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[succeeded, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[cancelled, in a group]": IDS,
    "enqueue_of_a_known_id_changes_nothing_in_any_state[dead, in a group]": IDS,
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    run_case(case, memory_stores())


def _marked() -> Iterator[object]:
    for case in CASES:
        reason = DIFFERS.get(case)
        yield case if reason is None else pytest.param(case, marks=pytest.mark.xfail(reason=reason))


@pytest.mark.parametrize("case", list(_marked()))
def test_case_in_three_shards(case: str) -> None:
    run_case(case, memory_stores(3))


def test_every_difference_is_about_a_case() -> None:
    assert not set(DIFFERS) - set(CASES)
