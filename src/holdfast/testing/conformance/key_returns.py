"""Conformance of coming back with a key: revive, retry and automatic revival ask for it, and letters follow the key.

Called by run_case. Where a key is held until its job has finished, see dead_letters and revival.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...errors import StateConflict
from ...lifecycle import FINISHED, Ending, State
from ...records import DeadLetter, LetterQuery, Revival
from .compare import changed_columns, same
from .keys import WINDOW, holders, kept, rival
from .registry import case, case_for_each
from .world import FOREVER, HOUR, Start, World

POLICY = Revival(after=100.0, factor=2.0, cap=300.0, cycles=4)
KINDS: dict[str, dict[str, Any]] = {"finished": {}, "started": {"key_until": "started"}, "window": {"key_window": 50.0}}


async def _only(world: World) -> DeadLetter:
    letters = await world.backend.letters(LetterQuery())
    same(len(letters), 1, "dead letters")
    return letters[0]


async def _bring_back(world: World, start: Start) -> None:
    verb = world.backend.revive if start.state is State.DEAD else world.backend.retry
    await verb(start.id, now=world.now)


@case_for_each(product(sorted(FINISHED), KINDS), name=lambda p: f"{p[0]}, until {p[1]}")
async def a_job_brought_back_takes_its_key_again(world: World, param: tuple[State, str]) -> None:
    state, kind = param
    start = await world.put(state, key="k", **KINDS[kind])
    world.advance(60.0)
    await _bring_back(world, start)
    same((await world.get(start.id)).holds_key, True, "the flag")
    if kind != "window":  # that one has passed
        await kept(world, start.id)
    await world.claim_one(start.id)
    same((await world.get(start.id)).holds_key, kind != "started", "the flag while it runs again")


@case_for_each(product(sorted(FINISHED), ("waits", "finished within its window")), name=lambda p: f"{p[0]}, who {p[1]}")
async def no_job_is_brought_back_while_another_holds_its_key(world: World, param: tuple[State, str]) -> None:
    state, how = param
    start = await world.put(state, key="k")
    if how == "waits":
        other = await world.enqueue(key="k", key_until="started")
    else:
        other = await world.enqueue(key="k", key_window=WINDOW)
        await world.end(await world.claim_one(other, lease=FOREVER))
    async with world.refused(StateConflict, "coming back while another holds the key") as raised:
        await _bring_back(world, start)
    [error] = raised
    assert isinstance(error, StateConflict), "the error"
    same((error.job_id, error.live_id), (start.id, other), "what the error carries")


@case_for_each(sorted(FINISHED))
async def a_job_comes_back_within_its_own_window(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_window=WINDOW)
    await _bring_back(world, start)
    same(await holders(world), [start.id], "holders")
    await kept(world, start.id)


@case
async def coming_back_takes_the_key_from_a_window_that_has_passed(world: World) -> None:
    first = await world.put(State.SUCCEEDED, key="k")
    second = await world.put(State.SUCCEEDED, key="k", key_window=50.0)
    world.advance(50.0)
    before = await world.row(second.id)
    await world.backend.retry(first.id, now=world.now)
    same(await holders(world), [first.id], "holders")
    same(changed_columns(before, await world.row(second.id)), {"holds_key"}, "what changed of the other")


@case
async def coming_back_with_a_window_that_has_passed_keeps_nobody_out(world: World) -> None:
    start = await world.put(State.SUCCEEDED, key="k", key_window=50.0)
    world.advance(50.0)
    await world.backend.retry(start.id, now=world.now)
    second = await world.enqueue(key="k")
    same(await holders(world), [second], "holders")
    same(sorted(await world.claim_ids(5, "w2")), [start.id, second], "both run")


@case
async def a_job_may_come_back_beside_one_that_holds_the_key_no_longer(world: World) -> None:
    first = await world.put(State.SUCCEEDED, key="k", key_until="started")
    await world.claim_one(await world.enqueue(key="k", key_until="started"))
    await world.backend.retry(first.id, now=world.now)
    same(await holders(world), [first.id], "holders")
    await kept(world, first.id)


@case
async def a_job_may_come_back_beside_one_of_the_other_scope(world: World) -> None:
    first = await world.put(State.DEAD, key="k")
    wide = await world.enqueue(key="k", key_scope="global")
    await world.backend.revive(first.id, now=world.now)
    same(sorted(await holders(world)), [first.id, wide], "holders")


@case
async def a_global_key_held_in_another_queue_keeps_a_job_from_coming_back(world: World) -> None:
    first = await world.put(State.SUCCEEDED, key="k", key_scope="global")
    await world.enqueue(key="k", key_scope="global", queue="other")
    async with world.refused(StateConflict, "retry while the global key is held"):
        await world.backend.retry(first.id, now=world.now)


# ---------------------------------------------------------------------- automatic revival


@case
async def automatic_revival_takes_the_key_and_is_given_up_where_it_is_held(world: World) -> None:
    dead = await world.put(State.DEAD, key="k", revival=POLICY)
    other = await world.enqueue(key="k", key_until="started")
    world.advance(101.0)
    same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    same((await world.letter(dead.id)).revive_at, None, "revive_at")
    same(await holders(world), [other], "holders")


@case
async def automatic_revival_comes_although_another_job_of_the_key_runs_without_holding_it(world: World) -> None:
    dead = await world.put(State.DEAD, key="k", revival=POLICY)
    await world.claim_one(await world.enqueue(key="k", key_until="started"), lease=FOREVER)
    world.advance(101.0)
    same((await world.backend.promote(now=world.now)).revived, 1, "revived")
    same(await holders(world), [dead.id], "holders")


# ---------------------------------------------------------------------- letters


@case
async def letters_merge_by_queue_task_and_key_whatever_the_scope(world: World) -> None:
    first = await world.put(State.DEAD, key="k")
    second = await world.put(State.DEAD, key="k", key_scope="global")
    letter = await _only(world)
    same((letter.id, letter.failure_count), (second.id, 2), "the letter")
    same((await world.get(first.id)).reason, "superseded", "reason of the first")
    await world.put(State.DEAD, key="k", key_scope="global", queue="other")
    letters = await world.backend.letters(LetterQuery())
    same(sorted((x.queue, x.failure_count) for x in letters), [("default", 2), ("other", 1)], "letters by queue")


@case
async def deaths_in_two_windows_are_one_letter(world: World) -> None:
    first = await world.put(State.DEAD, key="k", key_window=50.0)
    world.advance(50.0)
    second = await world.put(State.DEAD, key="k", key_window=50.0)
    letter = await _only(world)
    same((letter.id, letter.failure_count, letter.history[0].job_id), (second.id, 2, first.id), "the letter")
    same((await world.get(first.id)).reason, "superseded", "reason of the first")
    same(await holders(world), [second.id], "holders")


@case
async def a_discarded_job_holds_its_window_on(world: World) -> None:
    start = await world.put(State.DEAD, key="k", key_window=WINDOW)
    await world.backend.discard(start.id, now=world.now)
    await kept(world, start.id)


async def _two_live(world: World) -> tuple[Start, Start]:
    """A revived job that holds its letter and its key, and an older lease of the same key that runs on."""
    running = await world.put(State.RUNNING, worker="beside", key="k", key_until="started")
    revived = await world.put(State.DEAD, key="k", key_until="started")
    await world.backend.revive(revived.id, now=world.now)
    same((await world.letter(revived.id)).revived_at, world.now, "the letter of the revived job")
    world.advance(5.0)
    return running, revived


@case_for_each([Ending.SUCCEEDED, Ending.CANCELLED])
async def a_good_end_beside_a_revived_job_closes_the_letter_and_leaves_the_job_alone(
    world: World, ending: Ending
) -> None:
    running, revived = await _two_live(world)
    before = await world.row(revived.id)
    await world.end(running.held, ending)
    same(await world.backend.letters(LetterQuery()), [], "letters")
    same(await world.row(revived.id), before, "the revived job")
    async with world.refused(StateConflict, "revive of a live job that has no letter"):
        await world.backend.revive(revived.id, now=world.now)
    await world.end(await world.claim_one(revived.id), Ending.BURIED)
    letter = await _only(world)
    same((letter.id, letter.failure_count, letter.history), (revived.id, 1, ()), "a new letter")


@case
async def a_death_beside_a_revived_job_takes_the_letter_over_and_leaves_the_job_alone(world: World) -> None:
    running, revived = await _two_live(world)
    before = await world.row(revived.id)
    await world.end(running.held, Ending.BURIED)
    letter = await _only(world)
    same((letter.id, letter.failure_count, letter.revived_at), (running.id, 2, None), "the letter")
    same(await world.row(revived.id), before, "the revived job")
    async with world.refused(StateConflict, "revive while the other holds the key"):
        await world.backend.revive(running.id, now=world.now)
    await world.end(await world.claim_one(revived.id))
    same(await world.backend.letters(LetterQuery()), [], "letters")
    same((await world.get(running.id)).reason, "superseded", "reason of the dead one")


@case
async def two_jobs_of_a_key_that_die_side_by_side_leave_one_letter(world: World) -> None:
    running, revived = await _two_live(world)
    lease = await world.claim_one(revived.id, lease=FOREVER)
    await world.end(running.held, Ending.BURIED)
    world.advance(HOUR)
    await world.end(lease, Ending.BURIED)
    letter = await _only(world)
    same((letter.id, letter.failure_count), (revived.id, 3), "the letter")
    same([past.job_id for past in letter.history], [revived.id, running.id], "its history")
    same((await world.get(running.id)).reason, "superseded", "reason of the other")


@case
async def a_letter_of_a_key_until_started_is_merged_and_closed_like_any_other(world: World) -> None:
    first = await world.put(State.DEAD, key="k", key_until="started")
    second = await world.put(State.DEAD, key="k", key_until="started")
    same((await _only(world)).failure_count, 2, "failure_count")
    await world.put(State.SUCCEEDED, key="k", key_until="started")
    same(await world.backend.letters(LetterQuery()), [], "letters")
    reasons = [(await world.get(start.id)).reason for start in (first, second)]
    same(reasons, ["superseded"] * 2, "reasons")
    assert (await rival(world, key_until="started")).created, "the key is free"
