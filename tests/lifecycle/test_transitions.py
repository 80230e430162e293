"""TRANSITIONS is data that others derive from; here it is checked to be whole and sane."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import FINISHED, LIVE, SETTLES, TRANSITIONS, UNSTARTED, Ending, State, Verb, allowed

# Verbs about a lease: they start from running and nowhere else.
LEASE_VERBS = {Verb.BEGIN, Verb.RENEW, Verb.REPORT, Verb.RELEASE, Verb.RECOVER, *SETTLES.values()}
REMOVES = {Verb.PRUNE, Verb.DELETE}
COMES_BACK = {Verb.REVIVE, Verb.RETRY}


def test_every_verb_is_listed_once() -> None:
    assert set(TRANSITIONS) == set(Verb)


def test_the_states_divide_into_unstarted_running_and_finished() -> None:
    assert set(State) == LIVE | FINISHED
    assert not LIVE & FINISHED
    assert UNSTARTED | {State.RUNNING} == LIVE
    for state in State:
        assert state.finished is (state in FINISHED)
        assert state.live is (state in LIVE)


@pytest.mark.parametrize("verb", Verb)
def test_a_verb_leads_somewhere_from_somewhere(verb: Verb) -> None:
    assert TRANSITIONS[verb], f"{verb} starts nowhere"
    for start, goals in TRANSITIONS[verb].items():
        assert start is None or isinstance(start, State)
        assert goals or verb in REMOVES, f"{verb} from {start} leads nowhere"
        assert goals <= set(State)


def test_only_enqueue_makes_a_job_and_it_makes_nothing_else() -> None:
    assert [verb for verb in Verb if None in TRANSITIONS[verb]] == [Verb.ENQUEUE]
    assert set(TRANSITIONS[Verb.ENQUEUE]) == {None}
    assert TRANSITIONS[Verb.ENQUEUE][None] == UNSTARTED


def test_prune_removes_finished_jobs_and_delete_all_that_do_not_run() -> None:
    assert {verb for verb in Verb if frozenset() in TRANSITIONS[verb].values()} == REMOVES
    assert set(TRANSITIONS[Verb.PRUNE]) == FINISHED
    assert set(TRANSITIONS[Verb.DELETE]) == FINISHED | UNSTARTED


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_finished_job_is_left_only_by_coming_back_or_being_pruned(state: State) -> None:
    leaving = {verb for verb in Verb if (goals := allowed(verb, state)) is not None and (goals - {state} or not goals)}
    assert leaving <= COMES_BACK | REMOVES
    assert {Verb.RETRY, Verb.PRUNE} <= leaving
    for verb in COMES_BACK & leaving:
        assert allowed(verb, state) == frozenset({State.READY, State.WAITING})


def test_only_a_dead_job_is_revived() -> None:
    assert set(TRANSITIONS[Verb.REVIVE]) == {State.DEAD}


def test_only_claim_starts_a_lease_and_only_from_ready() -> None:
    entering = {
        (verb, start)
        for verb in Verb
        for start, goals in TRANSITIONS[verb].items()
        if State.RUNNING in goals and start is not State.RUNNING
    }
    assert entering == {(Verb.CLAIM, State.READY)}


@pytest.mark.parametrize("verb", sorted(LEASE_VERBS))
def test_a_verb_about_a_lease_starts_only_from_running(verb: Verb) -> None:
    assert set(TRANSITIONS[verb]) == {State.RUNNING}


def test_a_running_job_is_left_only_by_ending_its_lease() -> None:
    leaving = {verb for verb in Verb if (allowed(verb, State.RUNNING) or frozenset()) - {State.RUNNING}}
    assert leaving == {Verb.RELEASE, Verb.RECOVER, *SETTLES.values()}


def test_cancel_of_a_running_job_only_marks_it() -> None:
    assert allowed(Verb.CANCEL, State.RUNNING) == frozenset({State.RUNNING})
    assert allowed(Verb.CANCEL, State.CANCELLED) == frozenset({State.CANCELLED})
    for state in UNSTARTED:
        assert allowed(Verb.CANCEL, state) == frozenset({State.CANCELLED})
    for state in (State.SUCCEEDED, State.DEAD):
        assert allowed(Verb.CANCEL, state) is None


def test_only_refill_and_an_edit_move_between_waiting_and_ready() -> None:
    moving = {
        verb
        for verb in Verb
        for start, goals in TRANSITIONS[verb].items()
        if (start, *sorted(goals & {State.READY, State.WAITING} - {start}))
        in ((State.WAITING, State.READY), (State.READY, State.WAITING))
    }
    assert moving == {Verb.REFILL, Verb.EDIT}


def test_an_edit_keeps_a_job_unstarted() -> None:
    assert TRANSITIONS[Verb.EDIT] == dict.fromkeys(UNSTARTED, UNSTARTED)


@pytest.mark.parametrize("state", sorted(UNSTARTED))
def test_an_unstarted_job_can_be_ended_by_expiry_bury_and_cancel(state: State) -> None:
    assert allowed(Verb.EXPIRE, state) == frozenset({State.DEAD, State.CANCELLED})
    assert allowed(Verb.BURY, state) == frozenset({State.DEAD})
    assert allowed(Verb.CANCEL, state) == frozenset({State.CANCELLED})


def test_only_a_settled_success_succeeds() -> None:
    assert [verb for verb in Verb if any(State.SUCCEEDED in goals for goals in TRANSITIONS[verb].values())] == [
        Verb.SETTLE_SUCCEEDED
    ]


def test_every_ending_has_its_verb_and_leads_to_its_state() -> None:
    assert set(SETTLES) == set(Ending)
    goals = {ending: allowed(verb, State.RUNNING) for ending, verb in SETTLES.items()}
    assert goals == {
        Ending.SUCCEEDED: frozenset({State.SUCCEEDED}),
        Ending.RETRY: frozenset({State.SCHEDULED}),
        Ending.SNOOZED: frozenset({State.SCHEDULED}),
        Ending.BURIED: frozenset({State.DEAD}),
        Ending.CANCELLED: frozenset({State.CANCELLED}),
        Ending.STALLED: frozenset({State.READY, State.WAITING, State.DEAD, State.CANCELLED}),
    }


def test_every_live_state_can_reach_an_end() -> None:
    def onward(state: State) -> set[State]:
        return set().union(*(allowed(verb, state) or frozenset() for verb in Verb))

    for start in LIVE:
        seen, edge = {start}, {start}
        while edge:
            edge = set().union(*(onward(state) for state in edge)) - seen
            seen |= edge
        assert seen >= FINISHED, f"{start} cannot reach {FINISHED - seen}"


def test_allowed_reads_the_table_and_nothing_else() -> None:
    for verb in Verb:
        for state in (None, *State):
            assert allowed(verb, state) == TRANSITIONS[verb].get(state)


def test_the_table_cannot_be_altered() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Verb.CLAIM] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        SETTLES[Ending.RETRY] = Verb.CLAIM  # type: ignore[index]
