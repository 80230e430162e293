"""The conformance cases in which a store of shards differs from a plain one, each under the reason why it must.

A name without brackets stands for all variants of that case. What is listed must fail, unless that is left to CHANCE:
a case that passes although it is listed here fails the run.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.conformance import CASES, MakeBackend, run_case

ORDER = "there is no order among jobs of different shards: ungrouped jobs and groups are in several"
LANES = "the lanes share the slots within a shard, not over the shards of a queue"
KEYS = "a key is unique among the jobs of one shard, and the case gives it to another group"
IDS = "an id is known where its job is, and the case repeats it with another group"
SCOPE = 'a key is unique within a shard, so key_scope="global" is refused'
SMALL = "a limit below the number of shards it is divided among is refused"
LIMITS = "a limit is divided: a shard that has no job for its part leaves it unused"
RATES = "a rate is divided: each shard lets its own part start, from a bucket of its own"
COUNTS = "how many jobs of a task are kept is divided, and counted in each shard"
SWEEPS = "a claim sweeps the shards it visits, and one of no jobs visits none"
SPREAD = "bytes, sweeps and chained leases are divided: a shard that has no job for its part leaves it unused"
CHANCE = "which shard comes first is left to chance or to time, and with it whether the case holds"
BOUNDS = "the bound of a step is that of each shard"
TASKS = "what is said of a task is divided among its queues, and the case has it in two"

# Where every queue is one shard: most of these use more than one queue.
BY_QUEUE: Mapping[str, tuple[str, ...]] = {
    SCOPE: (
        "a_batch_may_hold_one_key_in_both_scopes_and_in_two_queues",
        "a_global_key_held_in_another_queue_keeps_a_job_from_coming_back",
        "a_global_key_is_one_over_all_queues",
        "eight_producers_in_two_queues_make_one_job_of_a_global_key",
        "letters_merge_by_queue_task_and_key_whatever_the_scope",
        "names_that_read_alike_in_a_row_are_different_keys[global]",
        "raise_hears_of_a_global_key_in_another_queue",
        "replace_of_a_global_key_joins_the_group_of_its_own_queue",
        "replace_of_a_global_key_leaves_the_job_in_its_queue",
        "the_two_scopes_know_nothing_of_each_other",
    ),
    SWEEPS: ("a_claim_recovers_no_more_than_it_is_told_to",),
    TASKS: (
        "a_count_is_of_a_task_over_all_its_queues",
        "a_task_shows_how_many_of_it_run_in_all_queues",
        "a_tasks_rate_counts_over_all_queues",
        "eight_claimers_never_exceed_a_limit_of[both, in threads]",
        "eight_claimers_never_exceed_a_limit_of[both, on one loop]",
        "every_lane_charges_the_queue_and_only_its_own_jobs_the_task",
    ),
}

# Where every queue is three shards.
IN_THREE: Mapping[str, tuple[str, ...]] = {
    BOUNDS: ("a_step_lets_a_bounded_number_of_children_go",),
    SWEEPS: ("a_claim_recovers_no_more_than_it_is_told_to",),
    SPREAD: (
        "claim_recovers_a_bounded_number_and_the_next_goes_on",
        "several_groups_share_what_may_be_chained",
    ),
    CHANCE: ("claim_takes_at_most_what_is_asked", "one_pass_of_promote_is_bounded_over_all_it_does"),
    ORDER: (
        "a_group_has_as_many_turns_a_round_as_its_weight[2]",
        "a_group_has_as_many_turns_a_round_as_its_weight[3]",
        "a_group_has_as_many_turns_a_round_as_its_weight[6]",
        "a_group_never_has_more_than_every_second_turn",
        "a_weight_holds_within_a_priority",
        "a_weight_in_a_queue_that_ages_its_jobs",
        "an_idle_group_saves_nothing_up",
        "a_pause_holds_at_once_however_big_the_backlog",
        "a_repeat_that_asks_for_fewer_jobs_gives_the_rest_back_free",
        "a_repeat_that_asks_for_less_gives_the_rest_back_free",
        "a_batch_is_stored_and_numbered_in_order",
        "a_changed_order_holds_for_jobs_that_become_ready_from_then_on",
        "a_claim_numbered_below_the_last_answers_no_leases",
        "a_job_given_back_into_a_pause_keeps_its_turn",
        "a_long_batch_with_known_ids_creates_the_others_in_order[ungrouped]",
        "a_paused_task_is_parked_in_every_queue_and_keeps_its_turn",
        "a_rate_that_is_declared_away_holds_nobody",
        "a_retried_job_ages_anew",
        "a_task_of_which_a_worker_wants_none_takes_no_share",
        "a_tick_makes_its_jobs_as_enqueue_would",
        "claim_takes_at_most_what_a_queue_may_have",
        "dependencies_move_to_another_store",
        "relatives_are_read_with_their_results",
        "find_shows_the_newest_first_page_by_page",
        "higher_priority_goes_first_then_the_older",
        "jobs_promoted_earlier_go_first",
        "new_jobs_queue_behind_the_carried_ones",
        "suspects_are_claimed_in_their_turn_like_others",
        "with_lifo_a_job_given_back_keeps_its_place",
        "with_lifo_the_newest_goes_first_within_a_priority",
        "with_lifo_what_became_ready_last_is_the_newest[replace]",
        "with_lifo_what_became_ready_last_is_the_newest[retry]",
        "with_lifo_what_became_ready_last_is_the_newest[revive]",
        "two_revives_at_once_make_one_live_job",
        "two_workers_never_hold_one_job",
        "unlimited_groups_take_turns",
        "with_aging_a_priority_is_worth_so_many_seconds",
    ),
    LANES: (
        "a_claim_does_not_look_past_more_than_a_bounded_number",
        "where_jobs_age_it_looks_past_a_bounded_number",
        "each_lane_gets_its_share",
        "a_lane_apart_is_ordered_by_priority_and_turn_whatever_the_groups",
        "single_slot_claims_serve_all_lanes_in_turn",
        "single_slot_claims_serve_both_lanes_in_turn",
        "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 1 slots]",
        "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 4 slots]",
        "the_lane_of_the_calls_parity_gets_the_larger_half[call 1, 5 slots]",
        "the_lane_of_the_calls_parity_gets_the_larger_half[call 2, 4 slots]",
        "the_lane_of_the_calls_parity_gets_the_larger_half[call 2, 5 slots]",
        "what_one_lane_cannot_use_the_other_may[1-0-6]",
        "what_one_lane_cannot_use_the_other_may[1-1-6]",
        "what_one_lane_cannot_use_the_other_may[1-6-1]",
        "what_one_lane_cannot_use_the_other_may[2-1-6]",
        "what_one_lane_cannot_use_the_other_may[2-6-1]",
    ),
    KEYS: (
        "a_job_that_replace_puts_into_another_group_or_rank_gets_a_new_turn",
        "keep_answers_the_live_job_of_the_key_and_changes_nothing[waiting]",
        "raise_stores_nothing_of_the_batch[waiting]",
        "replace_that_joins_a_busy_group_waits_behind_it",
    ),
    IDS: (
        "enqueue_of_a_known_id_changes_nothing_in_any_state[cancelled, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[dead, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[ready, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[running, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[scheduled, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[succeeded, in a group]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[waiting, alone]",
        "enqueue_of_a_known_id_changes_nothing_in_any_state[waiting, in a group]",
    ),
    SCOPE: (
        "a_batch_may_hold_one_key_in_both_scopes_and_in_two_queues",
        "a_global_key_belongs_to_its_task",
        "a_global_key_held_in_another_queue_keeps_a_job_from_coming_back",
        "a_global_key_is_one_over_all_queues",
        "a_job_is_not_pruned_before_its_window_has_passed[superseded]",
        "a_job_may_come_back_beside_one_of_the_other_scope",
        "eight_producers_in_two_queues_make_one_job_of_a_global_key",
        "how_a_key_holds_is_stored_with_its_job",
        "jobs_of_one_key_of_which_one_holds_it_are_carried_together",
        "letters_merge_by_queue_task_and_key_whatever_the_scope",
        "names_that_read_alike_in_a_row_are_different_keys[global]",
        "raise_hears_of_a_global_key_in_another_queue",
        "replace_of_a_global_key_joins_the_group_of_its_own_queue",
        "replace_of_a_global_key_leaves_the_job_in_its_queue",
        "the_two_scopes_know_nothing_of_each_other",
        "two_holders_of_one_key_are_not_carried_into_one_store[global]",
    ),
    SMALL: (
        "a_changed_rule_moves_a_big_backlog_to_its_lane_piecewise[a declared limit]",
        "a_changed_rule_moves_a_big_backlog_to_its_lane_piecewise[an operator's limit]",
        "a_further_change_takes_over_what_is_left",
        "a_limit_of_a_task_holds_at_once_however_big_the_backlog",
        "tasks_with_a_lane_of_their_own_obey_it",
        "a_cancelled_job_keeps_its_place_until_it_ends",
        "a_capped_head_keeps_its_strict_groups_place",
        "a_claim_that_nothing_holds_back_says_nothing",
        "a_crowd_of_capped_tasks_hides_nobody",
        "a_full_queue_leaves_the_slots_to_the_next",
        "a_full_task_delays_no_other",
        "a_limit_loses_no_place_to_workers_that_die",
        "a_limit_said_on_one_connection_holds_on_another",
        "a_limit_that_comes_later_counts_what_already_runs",
        "a_limit_that_is_declared_away_binds_nobody",
        "a_paused_queue_keeps_its_limit",
        "a_place_is_free_however_a_lease_ends",
        "a_place_that_comes_free_is_reason_to_return",
        "a_queues_limit_and_rate_set_no_task_apart",
        "a_queues_limit_says_nothing_of_other_queues",
        "a_rate_and_a_limit_bind_together",
        "a_repeated_claim_takes_no_second_place",
        "a_rule_that_comes_or_goes_during_a_pause_holds_afterwards",
        "a_task_apart_by_its_rule_stays_apart_without_limit_and_rate",
        "a_task_is_set_apart_and_let_back_by[a declared limit]",
        "a_task_is_set_apart_and_let_back_by[an operator's limit]",
        "a_task_shows_how_many_of_it_run_in_all_queues",
        "a_task_whose_limit_and_rate_are_lifted_is_not_apart",
        "a_task_without_room_takes_no_part_in_the_shares",
        "a_tasks_limit_counts_over_all_queues",
        "an_expired_job_takes_no_place",
        "an_operator_can_lift_a_limit[queue]",
        "an_operator_can_lift_a_limit[task]",
        "an_operator_can_limit_what_nobody_declared",
        "an_operators_limit_lowered_below_what_runs_stops_nobody[queue]",
        "an_operators_limit_lowered_below_what_runs_stops_nobody[task]",
        "an_operators_limit_outlives_every_declaration[queue]",
        "an_operators_limit_outlives_every_declaration[task]",
        "an_override_that_says_nothing_is_gone[queue]",
        "declaring_the_same_limit_again_changes_nothing",
        "declaring_the_same_tasks_again_changes_nothing",
        "each_queue_has_its_own_lane_for_a_task_apart",
        "eight_claimers_never_exceed_a_limit_of[a task's, in threads]",
        "eight_claimers_never_exceed_a_limit_of[a task's, on one loop]",
        "eight_claimers_never_exceed_a_limit_of[both, in threads]",
        "eight_claimers_never_exceed_a_limit_of[both, on one loop]",
        "jobs_are_no_work_while_they_are_held_back_by[a queue's limit]",
        "jobs_are_no_work_while_they_are_held_back_by[a task's limit]",
        "jobs_in_no_lease_take_no_place",
        "limits_and_what_runs_are_shown",
        "lowering_a_limit_stops_nobody_and_starts_nobody",
        "no_job_is_lost_or_leased_twice_while_lanes_change",
        "no_more_run_at_once_than_the_limit",
        "one_claim_of_several_queues_keeps_a_tasks_limit",
        "other_work_is_reason_to_return_beside_jobs_that_are_held_back",
        "parked_goes_before_apart",
        "raising_a_limit_lets_more_start_at_once",
        "resetting_what_nobody_said_changes_nothing[queue]",
        "resetting_what_nobody_said_changes_nothing[task]",
        "rules_go_in_one_piece_whole",
        "settle_and_claim_in_one_step_use_the_place_that_comes_free",
        "task_rules_and_operators_words_hold_in_the_target",
        "the_limits_of_queue_and_task_bind_together",
        "the_queues_limit_and_the_workers_bind_together[limit 1, worker 3]",
        "the_queues_limit_and_the_workers_bind_together[limit 2, worker 2]",
        "two_limited_tasks_know_nothing_of_each_other",
        "what_is_ready_stays_ready_while_a_limit_is_reached",
        "what_is_unset_leaves_what_was_said[queue]",
        "words_on_queue_group_and_task_stand_apart",
    ),
    LIMITS: (
        "a_limit_counts_over_all_workers",
        "a_queues_limit_binds_groups_beyond_their_own",
        "a_retired_worker_leaves_its_places",
        "an_operators_limit_beats_the_declared_one_until_reset[queue]",
        "an_operators_limit_beats_the_declared_one_until_reset[task]",
        "what_a_worker_asks_and_a_tasks_limit_bind_together",
        "where_there_is_no_rate_nothing_is_written_down",
    ),
    RATES: (
        "a_burst_is_there_again_after_a_rest",
        "a_claim_charges_once_for_all_it_leased",
        "a_claim_that_a_rate_holds_back_says_when_it_opens",
        "a_clock_set_back_does_not_shut_a_bucket",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[queue, 1/16.6667m]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[queue, 100/m burst 20]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[queue, 100/m]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[queue, 1000/10s]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[queue, 9/s burst 1]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[task, 1/16.6667m]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[task, 100/m burst 20]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[task, 100/m]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[task, 1000/10s]",
        "a_fresh_bucket_lets_a_hundredth_start_or_its_burst[task, 9/s burst 1]",
        "a_lowered_rate_holds_from_the_next_start_on",
        "a_raised_rate_does_not_wait_for_the_old_one",
        "a_repeated_claim_is_charged_once",
        "a_spent_bucket_is_spent_in_the_target",
        "a_tasks_rate_counts_over_all_queues",
        "an_empty_bucket_delays_no_other_task_and_no_other_queue",
        "an_expired_job_met_by_a_claim_is_not_charged",
        "an_operator_can_slow_what_nobody_declared",
        "an_operators_rate_beats_the_declared_one_until_reset[queue]",
        "an_operators_rate_beats_the_declared_one_until_reset[task]",
        "an_operators_rate_is_charged_like_a_declared_one",
        "every_lane_charges_the_queue_and_only_its_own_jobs_the_task",
        "jobs_start_exactly_as_the_rate_allows",
        "jobs_that_a_rate_holds_back_stay_as_they_are",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[queue, cancelled, then recovered]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[queue, recovered by name]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[queue, recovered, never begun]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[queue, recovered]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[task, cancelled, then recovered]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[task, recovered by name]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[task, recovered, never begun]",
        "nothing_is_given_back_to_a_bucket_however_a_lease_ends[task, recovered]",
        "the_first_of_several_to_open_is_said",
        "the_highest_priority_starts_first_when_the_bucket_opens",
        "the_rate_and_its_bucket_are_shown",
        "the_rates_of_queue_and_task_bind_together",
    ),
    COUNTS: (
        "a_count_is_of_a_task_over_all_its_queues",
        "a_jobs_own_retention_holds_beside_the_count",
        "jobs_that_just_finished_count_among_the_newest",
        "of_letters_that_failed_together_the_later_enqueued_stay",
        "prune_goes_by_retention_first_and_then_from_rule_to_rule",
        "rules_are_carried_out_within_the_bound_the_oldest_first",
    ),
}


def run_differing(case: str, make: MakeBackend, differing: Mapping[str, tuple[str, ...]]) -> None:
    """Run a case, which must fail where it is listed. (Not by a mark: writing down failures costs more than cases.)"""
    reasons = {name: reason for reason, names in differing.items() for name in names}
    reason = reasons.get(case) or reasons.get(case.partition("[")[0])
    if reason is None:
        run_case(case, make)
        return
    try:
        run_case(case, make)
    except Exception:
        return
    assert reason is CHANCE, f"the case is listed among those that must fail, and it passes: {reason}"


def unknown(differing: Mapping[str, tuple[str, ...]]) -> set[str]:
    """What is listed and is no case."""
    known = {*CASES, *(case.partition("[")[0] for case in CASES)}
    return {name for names in differing.values() for name in names} - known
