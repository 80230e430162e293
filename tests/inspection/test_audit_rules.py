"""Each rule of the audit finds its own violation in a doctored dump, and nothing in a clean one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.inspection.doctored import NOW, clean, dump, error, job, letter

from holdfast.dependencies import DUE_AFTER_PARENTS
from holdfast.inspection import judge
from holdfast.inspection.audit import RULES
from holdfast.inspection.snapshot import picture_of
from holdfast.records import Dump

PAUSES = ({"queue": None, "group": None, "task": "mail.parked"},)
TASKS = ({"name": "mail.capped", "limit": 2},)
RATE = {"count": 1, "seconds": 60.0, "burst": None}
RELAXED = ({"name": "mail", "group_limit": 2, "group_order": "relaxed"},)


def said(**fields: Any) -> dict[str, Any]:
    return {"queue": None, "group": None, "task": None, "limit": None, "rate": None, **fields}


def flow(**fields: Any) -> dict[str, Any]:
    times = {"spent_until": 0.0, "shut_until": 0.0, "wakes_at": None}
    return {"queue": None, "group": None, "task": None, **times, **fields}


def edge(parent: int, child: int, status: str = "open") -> dict[str, Any]:
    return {"parent": f"job-{parent}", "child": f"job-{child}", "status": status, "on_parent_failure": "bury"}


def counts(child: int, pending: int, failed: int = 0) -> dict[str, Any]:
    return {"child": f"job-{child}", "pending": pending, "failed": failed}


def found(*jobs: dict[str, Any], **tables: Any) -> list[str]:
    return [violation.rule for violation in judge(dump(*jobs, **tables)).violations]


def test_a_clean_store_has_no_violation() -> None:
    audit = judge(dump(*clean(), letters=(letter(9),), pauses=PAUSES, tasks=TASKS))
    assert audit.violations == []
    assert audit.holds
    assert audit.checked == {"jobs": 18, "groups": 4, "letters": 1, "workers": 1, "rules": len(RULES)}


def test_what_rules_look_up_for_each_job_or_edge_is_made_once() -> None:
    """It was made anew for each edge: a store with a fan-in of some thousands took minutes."""
    picture = picture_of(dump(*clean(), tasks=TASKS))
    assert picture.by_id is picture.by_id
    assert picture.tasks_apart is picture.tasks_apart


def test_an_empty_store_has_no_violation() -> None:
    assert judge(dump()).violations == []


DOCTORED: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("ids_and_seqs_are_unique", [job(1, "ready"), job(2, "ready", id="job-1")], {}),
    ("ids_and_seqs_are_unique", [job(1, "ready"), job(2, "ready", seq=1)], {}),
    ("running_jobs_hold_a_lease", [job(1, "running", token=None)], {}),
    ("running_jobs_hold_a_lease", [job(1, "running", worker=None)], {}),
    ("running_jobs_hold_a_lease", [job(1, "running", worker="gone")], {}),
    ("others_hold_no_lease", [job(1, "ready") | {"token": "old"}], {}),
    ("others_hold_no_lease", [job(1, "succeeded", worker="w1")], {}),
    ("finished_at_fits_the_state", [job(1, "succeeded", finished_at=None)], {}),
    ("finished_at_fits_the_state", [job(1, "ready", finished_at=NOW)], {}),
    ("only_grouped_jobs_wait", [job(1, "waiting")], {}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", group="ann", lane=0)], {}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", lane=2)], {}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", task="mail.parked", lane=0)], {"pauses": PAUSES}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", lane=0, task="mail.capped")], {"tasks": TASKS}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", lane=3)], {}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", lane=3, task="mail.parked")], {"pauses": PAUSES}),
    ("ready_jobs_are_in_their_lane", [job(1, "ready", priority=5, rank=3)], {}),
    ("counters_are_sane", [job(1, "ready", attempts=1, failures=1, stalls=1)], {}),
    ("counters_are_sane", [job(1, "ready", attempts=9, stalls=5)], {}),
    ("counters_are_sane", [job(1, "succeeded", attempts=0)], {}),
    ("counters_are_sane", [job(1, "ready", attempts=2, failures=1, stalls=1, shared_stalls=1)], {}),
    ("counters_are_sane", [job(1, "ready", attempts=11, shared_stalls=11)], {}),
    ("counters_are_sane", [job(1, "succeeded", attempts=13, shared_stalls=12)], {}),
    ("counters_are_sane", [job(1, "ready", attempts=1, suspect=True)], {}),
    ("groups_stay_within_their_limit", [job(1, "ready", group="a"), job(2, "ready", group="a")], {}),
    (
        "groups_stay_within_their_limit",
        [job(1, "ready", group="a")],
        {"pauses": ({"queue": "mail", "group": "a", "task": None},)},
    ),
    (
        "groups_stay_within_their_limit",
        [job(number, "ready", group="a") for number in range(1, 258)],
        {"queues": ({"name": "mail", "group_limit": 1_000_000_000, "group_order": "relaxed"},)},
    ),
    (
        "groups_stay_within_their_limit",
        [job(number, "ready", group="one-at-a-time:a") for number in (1, 2)],
        {"queues": RELAXED},
    ),
    ("no_group_is_wedged", [job(1, "succeeded", group="a"), job(2, "waiting", group="a")], {}),
    ("no_group_is_wedged", [job(1, "running", group="a"), job(2, "waiting", group="a")], {"queues": RELAXED}),
    (
        "no_group_is_wedged",
        [job(1, "waiting", group="a")],
        {"overrides": (said(queue="mail", group="a", rate=RATE),)},
    ),
    ("keys_are_held_once", [job(1, "ready", key="k"), job(2, "scheduled", key="k")], {}),
    ("keys_are_held_once", [job(n, "ready", key="k", key_scope="global", queue=f"q{n}") for n in (1, 2)], {}),
    ("keys_are_held_once", [job(1, "ready", key="k", holds_key=False)], {}),
    ("keys_are_held_once", [job(1, "succeeded", key="k", holds_key=True)], {}),
    ("keys_are_held_once", [job(1, "ready", holds_key=True)], {}),
    (
        "windows_keep_their_job_from_prune",
        [job(1, "succeeded", key="k", key_window=90_000.0, holds_key=True, prune_at=NOW + 80_000)],
        {},
    ),
    ("limits_can_be_kept", [], {"queues": ({"name": "mail", "limit": 0},)}),
    ("limits_can_be_kept", [], {"queues": ({"name": "mail", "group_limit": 0},)}),
    ("limits_can_be_kept", [], {"tasks": ({"name": "t", "limit": 0},)}),
    ("limits_can_be_kept", [], {"overrides": (said(task="t", limit=-1),)}),
    ("words_and_buckets_are_one_each", [], {"overrides": (said(task="t", limit=1), said(task="t", limit=2))}),
    ("words_and_buckets_are_one_each", [], {"overrides": (said(task="t"),)}),
    ("words_and_buckets_are_one_each", [], {"flows": (flow(queue="q"), flow(queue="q", shut_until=9.0))}),
    ("buckets_are_not_far_ahead", [job(1, "ready")], {"flows": (flow(queue="mail", spent_until=NOW * 1e6),)}),
    ("buckets_are_not_far_ahead", [], {"flows": (flow(queue="mail", wakes_at=NOW),)}),
    ("entries_are_written_in_order", [], {"entries": ({"name": "nightly", "version": 0},)}),
    ("entries_are_written_in_order", [], {"entries": ({"name": "n", "version": 3}, {"name": "n", "version": 4})}),
    ("dead_jobs_have_their_letter", [job(1, "dead")], {}),
    (
        "letters_are_one_per_logical_job",
        [job(1, "dead", key="k"), job(2, "dead", key="k")],
        {"letters": (letter(1, key="k"), letter(2, key="k"))},
    ),
    ("letters_point_at_dead_or_revived_jobs", [], {"letters": (letter(1),)}),
    ("letters_point_at_dead_or_revived_jobs", [job(1, "ready")], {"letters": (letter(1),)}),
    ("letters_point_at_dead_or_revived_jobs", [job(1, "dead")], {"letters": (letter(1, revived_at=NOW),)}),
    ("letters_count_their_deaths", [job(1, "dead")], {"letters": (letter(1, failure_count=0),)}),
    ("letters_count_their_deaths", [job(1, "dead")], {"letters": (letter(1, first_failed_at=NOW + 1),)}),
    ("letters_keep_their_job_from_prune", [job(1, "dead", prune_at=NOW)], {"letters": (letter(1),)}),
    ("letters_keep_their_job_from_prune", [job(1, "ready", prune_at=NOW)], {}),
    ("fences_are_distinct", [job(1, "succeeded", fence=7), job(2, "succeeded", fence=7)], {}),
    ("leases_end_once", [job(1, "succeeded", attempts=2, failures=1, errors=[error(1, NOW, NOW + 1)])], {}),
    (
        "strict_groups_keep_their_order",
        [
            job(1, "succeeded", group="a", fence=9, started_at=NOW + 9, finished_at=NOW + 10),
            job(2, "succeeded", group="a", fence=5),
        ],
        {},
    ),
    (
        "runs_of_one_job_never_overlap",
        [
            job(
                1,
                "succeeded",
                attempts=2,
                stalls=1,
                started_at=NOW + 5,
                finished_at=NOW + 9,
                errors=[error(50, NOW, NOW + 6, reason="stalled")],
            )
        ],
        {},
    ),
    (
        "runs_of_one_group_never_exceed_its_limit",
        [job(1, "succeeded", group="a", finished_at=NOW + 9), job(2, "succeeded", group="a")],
        {},
    ),
    (
        "runs_of_one_group_never_exceed_its_limit",
        [job(number, "succeeded", group="a", finished_at=NOW + 9) for number in (1, 2, 3)],
        {"queues": RELAXED},
    ),
    ("edges_lead_from_job_to_job", [job(1, "ready")], {"edges": (edge(7, 1),), "dependents": (counts(1, 1),)}),
    ("edges_lead_from_job_to_job", [job(1, "ready")], {"edges": (edge(1, 7),), "dependents": (counts(7, 1),)}),
    (
        "edges_lead_from_job_to_job",
        [job(1, "succeeded"), job(2, "scheduled", due_at=DUE_AFTER_PARENTS)],
        {"edges": (edge(1, 2),), "dependents": (counts(2, 1),)},
    ),
    (
        "waiting_jobs_have_parents_to_wait_for",
        [job(1, "ready"), job(2, "scheduled", due_at=DUE_AFTER_PARENTS)],
        {"edges": (edge(1, 2),), "dependents": (counts(2, 2),)},
    ),
    ("waiting_jobs_have_parents_to_wait_for", [job(1, "scheduled", due_at=DUE_AFTER_PARENTS)], {}),
    ("waiting_jobs_have_parents_to_wait_for", [job(1, "ready")], {"dependents": (counts(1, 1),)}),
    ("steps_belong_to_jobs", [job(1, "ready")], {"steps": ({"job_id": "gone", "kind": "step", "name": "a"},)}),
]


@pytest.mark.parametrize(("rule", "jobs", "tables"), DOCTORED)
def test_a_doctored_store_breaks_exactly_this_rule(
    rule: str, jobs: list[dict[str, Any]], tables: dict[str, Any]
) -> None:
    assert set(found(*jobs, **tables)) == {rule}


def test_an_edge_may_be_about_to_follow_its_parent() -> None:
    jobs = [job(1, "succeeded"), job(2, "scheduled", due_at=DUE_AFTER_PARENTS)]
    tables = {"edges": (edge(1, 2),), "dependents": (counts(2, 1),)}
    assert found(*jobs, **tables, propagating=({"parent": "job-1"},)) == []


def test_two_running_in_a_strict_group_break_the_limit_now_and_in_history() -> None:
    rules = found(job(1, "running", group="a"), job(2, "running", group="a"))
    assert set(rules) == {"groups_stay_within_their_limit", "runs_of_one_group_never_exceed_its_limit"}


def test_every_rule_has_a_doctored_store() -> None:
    assert {rule.__name__ for rule in RULES} == {case[0] for case in DOCTORED}


def test_a_lowered_limit_lets_running_jobs_end() -> None:
    running = [job(1, "running", group="a"), job(2, "running", group="a"), job(3, "waiting", group="a")]
    assert found(*running, queues=RELAXED, overrides=(said(queue="mail", group="a", limit=1),)) == []


def test_an_override_widens_a_relaxed_group() -> None:
    running = [job(number, "running", group="a") for number in (1, 2, 3)]
    assert found(*running, queues=RELAXED, overrides=(said(queue="mail", group="a", limit=3),)) == []


def test_a_paused_group_may_run_out_and_hold_its_waiting_jobs() -> None:
    jobs = [job(1, "running", group="a"), job(2, "waiting", group="a")]
    assert found(*jobs, pauses=({"queue": "mail", "group": "a", "task": None},)) == []


def test_delayed_or_revived_jobs_may_run_later_than_their_seq() -> None:
    late = job(1, "succeeded", group="a", fence=900, due_at=NOW + 50, started_at=NOW + 50, finished_at=NOW + 51)
    assert found(late, job(2, "succeeded", group="a")) == []


def test_priorities_are_compared_apart() -> None:
    low = job(1, "succeeded", group="a", fence=900, started_at=NOW + 50, finished_at=NOW + 51)
    assert found(low, job(2, "succeeded", group="a", priority=5)) == []


def test_a_violation_names_its_job_and_group() -> None:
    [violation] = judge(dump(job(1, "waiting"))).violations
    assert violation.job_id == "job-1"
    assert violation.text == "job job-1 (waiting) waits, but has no group"


def test_a_job_whose_key_was_enqueued_again_may_have_another_group_and_cap() -> None:
    moved = job(
        1,
        "scheduled",
        key="k",
        group="a",
        due_at=NOW + 50,
        attempts=2,
        stalls=2,
        max_stalls=0,
        errors=[error(50, NOW, NOW + 9, reason="stalled")],
    )
    assert found(moved, job(2, "succeeded", group="a")) == []


def test_a_group_may_wait_for_its_rate() -> None:
    rated = {"queues": ({"name": "mail", "group_limit": 9, "group_order": "relaxed", "group_rate": RATE},)}
    ready = [job(1, "ready", group="a"), job(2, "waiting", group="a")]
    assert found(*ready, **rated) == []
    flows = (flow(queue="mail", group="a", spent_until=NOW + 60, wakes_at=NOW + 59),)
    assert found(job(1, "running", group="a"), job(2, "waiting", group="a"), flows=flows, **rated) == []


def test_an_operators_word_sets_a_task_apart_or_lets_it_back() -> None:
    said_of = said(task="mail.send", limit=3)
    assert found(job(1, "ready", lane=3), overrides=(said_of,)) == []
    lifted = said(task="mail.capped", limit=1_000_000_000)
    assert found(job(1, "ready", task="mail.capped", lane=0), tasks=TASKS, overrides=(lifted,)) == []


def test_a_workers_override_for_an_unknown_task_sets_only_its_lane() -> None:
    """Every worker that meets a task it does not know stores one: that is no violation."""
    assert found(job(1, "ready", lane=3), overrides=(said(task="mail.send", apart=True),)) == []


def test_more_may_run_than_a_limit_that_was_lowered() -> None:
    running = [job(number, "running") for number in (1, 2, 3)]
    assert found(*running, queues=({"name": "mail", "limit": 2},), tasks=({"name": "fax", "limit": 1},)) == []


def test_a_bucket_may_be_as_far_ahead_as_a_former_rate_brought_it() -> None:
    flows = (flow(queue="mail", spent_until=NOW + 366 * 86400.0),)
    assert found(job(1, "ready"), flows=flows, queues=({"name": "mail", "rate": RATE},)) == []


def test_shards_keep_their_own_words_and_buckets() -> None:
    twice = Dump(tables={"jobs": (), "flows": (flow(queue="q"), flow(queue="q"))}, sharded=True)
    assert judge(twice).violations == []
