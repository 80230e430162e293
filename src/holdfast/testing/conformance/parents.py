"""Conformance of what the end of a parent does to the jobs that wait for it, and what its revival does (R84, R85).

Called by run_case. The other half of `dependencies`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...dependencies import ON_PARENT_FAILURE, OnParentFailure
from ...lifecycle import Ending, State
from ...rollups import RollupQuery
from .compare import same
from .dependencies import has_failed, is_buried, is_waiting, pending_of, runs_now, stored_child
from .registry import case, case_for_each
from .world import HOUR, World

# ----------------------------------------------------------------------------------------------------------------------
# What a parent's end does


End = Callable[[World, str], Awaitable[None]]


async def _bury(world: World, job_id: str) -> None:
    await world.backend.bury(job_id, "no use", now=world.now)


async def _cancel(world: World, job_id: str) -> None:
    await world.backend.cancel(job_id, now=world.now)


async def _settle_buried(world: World, job_id: str) -> None:
    await world.end(await world.claim_one(job_id), Ending.BURIED)


async def _settle_cancelled(world: World, job_id: str) -> None:
    await world.end(await world.claim_one(job_id), Ending.CANCELLED)


async def _stall_too_often(world: World, job_id: str) -> None:
    lease = await world.claim_one(job_id, "doomed")
    await world.begin(lease)
    await world.backend.recover(dead=["doomed"], now=world.now)


async def _settle_stalled(world: World, job_id: str) -> None:
    await world.end(await world.claim_one(job_id), Ending.STALLED, alone=True)


async def _release_cancelled(world: World, job_id: str) -> None:
    lease = await world.claim_one(job_id)
    await world.backend.cancel(job_id, now=world.now)
    await world.give_back(lease)


async def _expire(world: World, job_id: str) -> None:
    world.advance(HOUR)
    await world.backend.promote(now=world.now)


_ENDS: dict[str, End] = {
    "bury": _bury,
    "cancel": _cancel,
    "settle buried": _settle_buried,
    "settle cancelled": _settle_cancelled,
    "recover": _stall_too_often,
    "settle stalled": _settle_stalled,
    "release": _release_cancelled,
    "expire": _expire,
}


@case_for_each([(end, policy) for end in _ENDS for policy in ON_PARENT_FAILURE], name=lambda one: f"{one[0]}, {one[1]}")
async def a_parent_that_does_not_succeed_decides_its_child(world: World, one: tuple[str, OnParentFailure]) -> None:
    end, policy = one
    parent = await world.enqueue(max_stalls=0, expires=1000.0)
    child = await stored_child(world, parent, on_parent_failure=policy)
    await _ENDS[end](world, parent)
    await world.promote_all()
    await has_failed(world, child, parent, policy)
    await world.claim_none()


@case_for_each(
    [(state, policy) for state in State for policy in ON_PARENT_FAILURE], name=lambda one: f"{one[0]}, {one[1]}"
)
async def a_parent_counts_as_what_it_is_when_the_child_is_stored(
    world: World, one: tuple[State, OnParentFailure]
) -> None:
    state, policy = one
    start = await world.put(state)
    child = await stored_child(world, start.id, on_parent_failure=policy)
    if state in (State.DEAD, State.CANCELLED):
        await has_failed(world, child, start.id, policy)
    elif state is State.SUCCEEDED:
        same((await world.get(child)).due_at, world.now, "due")
        await runs_now(world, child)
    else:
        await is_waiting(world, child)


@case
async def a_dead_parent_beside_a_live_one_buries_the_child_at_once(world: World) -> None:
    live, doomed = await world.enqueue_many(2)
    child = await stored_child(world, live, doomed)
    await _bury(world, doomed)
    await world.promote_all()
    await is_buried(world, child, doomed)
    same(await pending_of(world, child), 2, "parents that have not succeeded")
    await runs_now(world, live)
    await world.is_in(child, State.DEAD)
    await world.claim_none()


@case
async def the_death_of_a_parent_reaches_its_grandchildren(world: World) -> None:
    top = await world.enqueue()
    middle = await stored_child(world, top)
    cancelled = await stored_child(world, middle, on_parent_failure="cancel")
    anyway = await stored_child(world, cancelled, on_parent_failure="run")
    await _settle_buried(world, top)
    await world.promote_all()
    await is_buried(world, middle, top)
    await world.is_in(cancelled, State.CANCELLED)
    await runs_now(world, anyway)


@case
async def a_child_that_ends_because_of_its_parent_is_counted(world: World) -> None:
    parent = await world.enqueue()
    await stored_child(world, parent, task="buried")
    await stored_child(world, parent, task="cancelled", on_parent_failure="cancel")
    await _bury(world, parent)
    await world.promote_all()
    query = RollupQuery(span="minute", since=world.now - HOUR, until=world.now + HOUR)
    found = {(one.task, one.outcome): one.count for one in await world.backend.rollups(query)}
    same((found["buried", "dead"], found["cancelled", "cancelled"]), (1, 1), "counted once each")


# ----------------------------------------------------------------------------------------------------------------------
# Coming back


@case_for_each(ON_PARENT_FAILURE[:2])
async def the_revival_of_a_parent_brings_back_what_waited_for_it(world: World, policy: OnParentFailure) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent, on_parent_failure=policy, key="k")
    grandchild = await stored_child(world, child)
    await _settle_buried(world, parent)
    await world.promote_all()
    await has_failed(world, child, parent, policy)
    await world.is_in(grandchild, State.DEAD)
    world.advance(10.0)
    await world.backend.revive(parent, now=world.now)
    await world.promote_all()
    for one in (child, grandchild):
        await is_waiting(world, one)
        job = await world.get(one)
        same((job.reason, job.finished_at), (None, None), "nothing is left of its end")
        [mark] = await world.backend.marks(one)
        same((mark.kind, mark.text, mark.at), ("revive", "parent", world.now), "its timeline")
    for one in (parent, child, grandchild):
        await runs_now(world, one)
    same(await world.backend.letter(grandchild), None, "the letter is closed")


@case
async def a_cancelled_parent_that_is_retried_brings_back_what_waited_for_it(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await _cancel(world, parent)
    await world.promote_all()
    await is_buried(world, child, parent)
    await world.backend.retry(parent, now=world.now)
    await world.promote_all()
    await is_waiting(world, child)
    await runs_now(world, parent)
    await runs_now(world, child)


@case
async def a_child_comes_back_when_none_of_its_parents_is_dead_any_more(world: World) -> None:
    parents = await world.enqueue_many(2)
    child = await stored_child(world, *parents)
    for parent in parents:
        await _bury(world, parent)
    await world.promote_all()
    await world.backend.revive(parents[0], now=world.now)
    await world.promote_all()
    await world.is_in(child, State.DEAD)
    await runs_now(world, parents[0])
    await world.is_in(child, State.DEAD)
    await world.backend.revive(parents[1], now=world.now)
    await world.promote_all()
    await is_waiting(world, child)
    await runs_now(world, parents[1])
    await runs_now(world, child)


@case
async def a_parent_that_succeeded_before_its_revival_was_told_lets_the_child_go(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await _bury(world, parent)
    await world.promote_all()
    await world.backend.revive(parent, now=world.now)
    await runs_now(world, parent)
    await runs_now(world, child)


@case
async def a_child_whose_key_is_taken_stays_dead(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent, key="k")
    await _bury(world, parent)
    await world.promote_all()
    other = await world.enqueue(key="k")
    await world.backend.revive(parent, now=world.now)
    await world.promote_all()
    await world.is_in(child, State.DEAD)
    leases = await world.claim(10)
    same({lease.id for lease in leases}, {parent, other}, "what is claimable")


@case
async def a_child_that_died_of_its_own_stays_dead(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await runs_now(world, parent)
    await _settle_buried(world, child)
    await world.backend.retry(parent, now=world.now)
    await world.promote_all()
    same((await world.get(child)).reason, "failed", "why the child is dead")
    await _settle_buried(world, parent)
    await world.promote_all()
    same((await world.get(child)).reason, "failed", "why the child is dead")


@case
async def a_parent_that_succeeded_once_counts_for_ever(world: World) -> None:
    parent = await world.enqueue()
    slow = await world.enqueue(delay=HOUR)
    child = await stored_child(world, parent, slow)
    await runs_now(world, parent)
    await world.backend.retry(parent, now=world.now)
    await _settle_buried(world, parent)
    await world.promote_all()
    await is_waiting(world, child)
    await world.backend.run_now(slow, now=world.now)
    await runs_now(world, slow)
    await runs_now(world, child)
