"""Conformance of jobs that wait for others (R83 to R85): every way a parent and a child can go, on both sides.

Called by run_case. Soundness checks after every case that edges, what is counted of them and both jobs agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dependencies import DUE_AFTER_PARENTS, PROPAGATE_MAX, OnParentFailure
from ...errors import ParentNotFound, StateConflict, StoreSealed
from ...lifecycle import FAILURE_TEXTS, Ending, State
from ...records import DeadLetter, Edit, Lease, QueueRule, Seal
from .compare import same
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World

# ----------------------------------------------------------------------------------------------------------------------
# Words


async def stored_child(world: World, *parents: str, **fields: Any) -> str:
    """Store a job that waits for these; the worker of the case lives as long as the case."""
    await world.register("w1", lease=FOREVER)
    return await world.enqueue(after=parents, **fields)


async def is_waiting(world: World, job_id: str) -> None:
    """Assert that a job waits for its parents."""
    job = await world.get(job_id)
    same((job.state, job.due_at), (State.SCHEDULED, DUE_AFTER_PARENTS), f"state and due time of {job_id}")


async def runs_now(world: World, job_id: str) -> Lease:
    """Claim a job, which must be the only claimable one, and succeed."""
    lease = await world.claim_one(job_id)
    await world.end(lease)
    return lease


async def pending_of(world: World, job_id: str) -> int:
    return (await world.backend.relatives(job_id)).pending


async def is_buried(world: World, job_id: str, parent: str) -> DeadLetter:
    """Assert that a job died because of that parent."""
    job = await world.get(job_id)
    same((job.state, job.reason), (State.DEAD, "parent"), f"state and reason of {job_id}")
    failure = job.errors[-1]
    same((failure.reason, failure.text), ("parent", FAILURE_TEXTS["parent"] % parent), "the failure")
    same((failure.at, job.finished_at), (world.now, world.now), "when")
    letter = await world.letter(job_id)
    same((letter.reason, letter.failed_at), ("parent", world.now), "the letter")
    return letter


async def has_failed(world: World, job_id: str, parent: str, policy: OnParentFailure) -> None:
    """Assert what the policy says about a job whose only parent died or was cancelled."""
    if policy == "bury":
        await is_buried(world, job_id, parent)
    elif policy == "cancel":
        job = await world.get(job_id)
        same((job.state, job.reason, job.finished_at), (State.CANCELLED, "parent", world.now), f"the job {job_id}")
    else:
        await runs_now(world, job_id)


# ----------------------------------------------------------------------------------------------------------------------
# Waiting, and being let go


@case
async def a_job_waits_until_all_its_parents_have_succeeded(world: World) -> None:
    first, second = await world.enqueue_many(2)
    child = await stored_child(world, first, second)
    await is_waiting(world, child)
    same(await pending_of(world, child), 2, "parents that have not succeeded")
    one, two = await world.claim(10)
    same([one.id, two.id], [first, second], "what is claimable")
    await world.end(one)
    await is_waiting(world, child)
    await world.claim_none()
    same(await pending_of(world, child), 1, "parents that have not succeeded")
    await world.end(two)
    job = await world.get(child)
    same((job.due_at, await pending_of(world, child)), (world.now, 0), "due at, and parents left")
    await runs_now(world, child)


@case
async def the_exchange_that_settles_the_last_parent_leases_the_child(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    lease = await world.claim_one(parent)
    answer = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], request=world.request())
    same([lease.id for lease in answer.leases], [child], "leased in the same step")
    again = await world.backend.exchange([], [], world.request(call=world.last_call("w1")), now=world.now)
    same([lease.id for lease in again.leases], [child], "leased by the repeated call")


@case
async def settling_many_parents_at_once_lets_the_child_go_once(world: World) -> None:
    parents = await world.enqueue_many(5)
    child = await stored_child(world, *parents)
    leases = await world.claim(5)
    await world.backend.settle([world.settlement(lease, Ending.SUCCEEDED) for lease in leases], now=world.now)
    await runs_now(world, child)
    await world.claim_none()


@case
async def an_unfinished_attempt_of_a_parent_changes_nothing(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    for ending in (Ending.RETRY, Ending.SNOOZED, Ending.STALLED):
        await world.end(await world.claim_one(parent), ending)
        await is_waiting(world, child)
        world.advance(11.0)
    await world.give_back(await world.claim_one(parent))
    await is_waiting(world, child)
    await runs_now(world, parent)
    await runs_now(world, child)


@case
async def a_chain_runs_in_its_order(world: World) -> None:
    ids = [world.job().id for _ in range(5)]
    jobs = [world.job(id=one, after=(ids[n - 1],) if n else ()) for n, one in enumerate(ids)]
    answers = await world.backend.enqueue(jobs, now=world.now)
    same([answer.created for answer in answers], [True] * 5, "created")
    for one in ids:
        await runs_now(world, one)
    await world.claim_none()


@case
async def a_diamond_joins_once(world: World) -> None:
    top = await world.enqueue()
    sides = [await stored_child(world, top), await stored_child(world, top)]
    bottom = await stored_child(world, *sides)
    await runs_now(world, top)
    left, right = await world.claim(10)
    same({left.id, right.id}, {*sides}, "both sides")
    await world.end(left)
    await world.claim_none()
    await world.end(right)
    await runs_now(world, bottom)


@case
async def a_child_keeps_its_delay_and_expiry_for_later(world: World) -> None:
    parent = await world.enqueue()
    delayed = await stored_child(world, parent, delay=100.0, expires=50.0)
    timed = await stored_child(world, parent, due_at=world.now + HOUR)
    past = await stored_child(world, parent, due_at=world.now - HOUR, expires=10.0)
    world.advance(1000.0)
    await world.promote_all()
    for one in (delayed, timed, past):
        await is_waiting(world, one)
    await runs_now(world, parent)
    job = await world.get(delayed)
    same((job.state, job.due_at, job.expires_at), (State.SCHEDULED, world.now + 100.0, world.now + 150.0), "delayed")
    same((await world.get(timed)).due_at, world.now - 1000.0 + HOUR, "timed")
    job = await world.get(past)
    same((job.due_at, job.expires_at), (world.now, world.now + 10.0), "past")
    await runs_now(world, past)
    await world.claim_none()
    world.advance(100.0)
    await runs_now(world, delayed)
    world.advance(HOUR)
    await runs_now(world, timed)


@case
async def a_child_in_a_group_keeps_the_groups_rules(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent, group="g")
    other = await world.enqueue(group="g")
    leases = await world.claim(10)
    same({lease.id for lease in leases}, {parent, other}, "a waiting child does not hold up its group")
    mine, others = sorted(leases, key=lambda lease: lease.id)
    await world.end(mine)
    await world.claim_none()
    await world.end(others)
    await runs_now(world, child)


@case
async def a_parent_in_a_group_lets_a_child_of_its_group_go(world: World) -> None:
    parent = await world.enqueue(group="g")
    child = await stored_child(world, parent, group="g")
    last = await world.enqueue(group="g")
    lease = await world.claim_one(parent)
    answer = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], request=world.request())
    [following] = answer.leases
    await world.end(following)
    await runs_now(world, last if following.id == child else child)


# ----------------------------------------------------------------------------------------------------------------------
# What is done to a child that waits


@case_for_each(["cancel", "bury"])
async def a_child_that_is_ended_while_it_waits_stays_so(world: World, verb: str) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    grandchild = await stored_child(world, child)
    if verb == "cancel":
        await world.backend.cancel(child, now=world.now)
    else:
        await world.backend.bury(child, "no use", now=world.now)
    await world.promote_all()
    await world.is_in(child, State.CANCELLED if verb == "cancel" else State.DEAD)
    await is_buried(world, grandchild, child)
    await runs_now(world, parent)
    await world.claim_none()


@case
async def run_now_does_not_wait_for_the_parents(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await world.backend.run_now(child, now=world.now)
    one, two = await world.claim(10)
    same({one.id, two.id}, {parent, child}, "what is claimable")
    await world.end(one)
    await world.end(two)
    await world.is_in(child, State.SUCCEEDED)
    await world.claim_none()


@case
async def a_child_that_is_revived_does_not_wait_for_its_parents(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await world.backend.bury(parent, "no use", now=world.now)
    await world.promote_all()
    await world.backend.revive(child, now=world.now)
    await runs_now(world, child)


@case
async def a_new_due_time_replaces_the_parents(world: World) -> None:
    parent = await world.enqueue(delay=DAY)
    child = await stored_child(world, parent, expires=30.0)
    await world.backend.edit(child, Edit(delay=60.0), now=world.now)
    job = await world.get(child)
    same((job.due_at, job.expires_at), (world.now + 60.0, world.now + 90.0), "due and expiry")
    world.advance(60.0)
    await runs_now(world, child)


@case
async def an_edit_of_other_values_leaves_a_child_waiting(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await world.backend.edit(child, Edit(args=b'{"n":2}', priority=5), now=world.now)
    await is_waiting(world, child)
    await runs_now(world, parent)
    same((await runs_now(world, child)).args, b'{"n":2}', "the new arguments")


@case
async def a_waiting_child_holds_its_key_and_is_kept(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent, key="k")
    for on_conflict in ("keep", "replace", "debounce"):
        job = world.job(key="k", on_conflict=on_conflict)
        [answer] = await world.backend.enqueue([job], now=world.now)
        same((answer.id, answer.created, answer.replaced), (child, False, False), f"on_conflict {on_conflict}")
    await is_waiting(world, child)
    await runs_now(world, parent)
    await runs_now(world, child)


# ----------------------------------------------------------------------------------------------------------------------
# Storing


@case
async def an_unknown_parent_is_refused_and_nothing_is_stored(world: World) -> None:
    parent = await world.enqueue()
    plain, child = world.job(), world.job(after=(parent, "nobody"))
    async with world.refused(ParentNotFound, "a parent that is not there") as raised:
        await world.backend.enqueue([plain, child], now=world.now)
    [error] = raised
    same((error.job_id, error.child_id), ("nobody", child.id), "facts of the error")  # type: ignore[attr-defined]
    for jobs in (
        [world.job(id="me", after=("me",))],
        [world.job(id="one", after=("two",)), world.job(id="two", after=("one",))],
    ):
        async with world.refused(ParentNotFound, "a cycle"):
            await world.backend.enqueue(jobs, now=world.now)


@case
async def a_repeated_enqueue_changes_nothing(world: World) -> None:
    parent = world.job()
    child = world.job(after=(parent.id,))
    for created in (True, False):
        answers = await world.backend.enqueue([parent, child], now=world.now)
        same([answer.created for answer in answers], [created] * 2, "created")
    await runs_now(world, parent.id)
    await runs_now(world, child.id)
    async with world.unchanged("a repetition after both have finished"):
        await world.backend.enqueue([parent, child], now=world.now)
    world.advance(2 * DAY)
    await world.backend.prune(now=world.now)
    await world.enqueue(id=child.id)
    async with world.unchanged("a known id, whose parent is gone"):
        await world.backend.enqueue([child], now=world.now)


@case
async def a_parent_named_twice_counts_once(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent, parent)
    same(await pending_of(world, child), 1, "parents")
    await runs_now(world, parent)
    await runs_now(world, child)


@case
async def a_call_that_was_kept_stands_for_the_job_that_holds_its_key(world: World) -> None:
    holder = await world.enqueue(key="k")
    call = world.job(key="k")
    child = world.job(after=(call.id,))
    answers = await world.backend.enqueue([call, child], now=world.now)
    same([(answer.id, answer.created) for answer in answers], [(holder, False), (child.id, True)], "answers")
    await is_waiting(world, child.id)
    await runs_now(world, holder)
    await runs_now(world, child.id)


@case
async def a_child_that_is_not_stored_leaves_no_edge(world: World) -> None:
    parent = await world.enqueue()
    holder = await world.enqueue(key="k")
    child = world.job(key="k", after=(parent,))
    async with world.unchanged("a child whose key is held"):
        [answer] = await world.backend.enqueue([child], now=world.now)
    same(answer.id, holder, "the holder")


@case
async def a_sealed_store_takes_no_child(world: World) -> None:
    parent = await world.enqueue()
    seal = Seal(move="m", role="source", other="elsewhere")
    await world.backend.seal(seal, instead_of=None)
    async with world.refused(StoreSealed, "a child in a sealed store"):
        await world.backend.enqueue([world.job(after=(parent,))], now=world.now)


# ----------------------------------------------------------------------------------------------------------------------
# Sizes


async def _due(world: World, ids: Sequence[str]) -> int:
    """How many of these jobs no longer wait for a parent."""
    jobs = [await world.get(job_id) for job_id in ids]
    return sum(job.due_at != DUE_AFTER_PARENTS for job in jobs)


@case
async def a_step_lets_a_bounded_number_of_children_go(world: World) -> None:
    parent = await world.enqueue()
    children = await world.enqueue_many(2 * PROPAGATE_MAX + 50, after=(parent,))
    await runs_now(world, parent)
    same(await _due(world, children), PROPAGATE_MAX, "children of the first step")
    await world.backend.promote(limit=30, now=world.now)
    same(await _due(world, children), PROPAGATE_MAX + 30, "children after a small promote")
    await world.promote_all()
    same(await _due(world, children), len(children), "children in the end")
    same(len(await world.claim(1000)), len(children), "children claimed")


@case
async def a_child_may_have_many_parents(world: World) -> None:
    parents = await world.enqueue_many(600)
    child = await stored_child(world, *parents)
    for start in range(0, 600, 100):
        await is_waiting(world, child)
        leases = await world.claim(100)
        same(len(leases), 100, f"parents claimed from {start}")
        await world.backend.settle([world.settlement(lease, Ending.SUCCEEDED) for lease in leases], now=world.now)
    await runs_now(world, child)


@case
async def the_end_of_a_long_chain_is_reached_in_bounded_steps(world: World) -> None:
    ids = [world.job().id for _ in range(2 * PROPAGATE_MAX)]
    jobs = [world.job(id=one, after=(ids[n - 1],) if n else ()) for n, one in enumerate(ids)]
    await world.backend.enqueue(jobs, now=world.now)
    await world.backend.bury(ids[0], "no use", now=world.now)
    done = (await world.states(ids)).count(State.DEAD)
    assert done <= PROPAGATE_MAX + 1, f"{done} jobs of a chain died in one step"
    await world.promote_all()
    same((await world.states(ids)).count(State.DEAD), len(ids), "dead in the end")
    await world.backend.revive(ids[0], now=world.now)
    await world.promote_all()
    same((await world.states(ids)).count(State.SCHEDULED), len(ids) - 1, "waiting again")


# ----------------------------------------------------------------------------------------------------------------------
# Removing


@case
async def a_parent_is_kept_until_its_children_have_finished(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    lease = await world.claim_one(parent, lease=FOREVER)
    await world.end(lease, value=b"7", retain=0.0)
    for _ in range(3):
        world.advance(DAY)
        same(await world.backend.prune(now=world.now), 0, "pruned while the child has not finished")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned by age")
    await world.end(await world.claim_one(child), retain=0.0)
    world.advance(DAY)
    same(await world.backend.prune(now=world.now), 2, "pruned in the end")
    tables = await world.tables()
    same([tables[name] for name in ("edges", "dependents", "propagating")], [[], [], []], "what is left")


@case
async def a_child_that_is_pruned_first_takes_its_edges_along(world: World) -> None:
    parent = await world.enqueue(delay=10 * DAY)
    child = await stored_child(world, parent)
    await world.backend.cancel(child, now=world.now)
    world.advance(2 * DAY)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same((await world.tables())["edges"], [], "edges")
    await world.backend.run_now(parent, now=world.now)
    await runs_now(world, parent)


@case
async def a_dead_parent_may_go_before_the_child_it_buried(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    await world.backend.bury(parent, "no use", now=world.now)
    await world.promote_all()
    await world.backend.discard(parent, now=world.now)
    world.advance(HOUR)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(parent), None, "the parent")
    await world.backend.revive(child, now=world.now)
    await runs_now(world, child)


@case
async def a_job_that_another_waits_for_is_not_deleted(world: World) -> None:
    parent = await world.enqueue()
    child = await stored_child(world, parent)
    async with world.refused(StateConflict, "delete of a parent") as raised:
        await world.backend.delete(parent, now=world.now)
    assert child in str(raised[0]), f"the error names the child: {raised[0]}"
    await world.backend.delete(child, now=world.now)
    same((await world.tables())["edges"], [], "edges")
    await world.backend.delete(parent, now=world.now)


@case
async def a_parent_that_nobody_waits_for_is_deleted(world: World) -> None:
    parents = await world.enqueue_many(2)
    child = await stored_child(world, *parents)
    for parent in parents:
        await world.backend.bury(parent, "no use", now=world.now)
    await world.promote_all()
    await world.backend.delete(parents[0], now=world.now)
    same(await pending_of(world, child), 1, "parents left")
    await world.backend.revive(parents[1], now=world.now)
    await world.promote_all()
    await is_waiting(world, child)
    await runs_now(world, parents[1])
    await runs_now(world, child)


# ----------------------------------------------------------------------------------------------------------------------
# Reading and moving


@case
async def relatives_are_read_with_their_results(world: World) -> None:
    parents = await world.enqueue_many(3)
    child = await stored_child(world, *parents)
    leases = await world.claim(2)
    for lease in leases:
        await world.end(lease, value=b'{"from":"%s"}' % lease.id.encode())
    found = await world.backend.relatives(child, values=True)
    values = [b'{"from":"%s"}' % one.encode() for one in parents[:2]]
    same([(one.id, one.value) for one in found.parents], list(zip(parents, [*values, None], strict=True)), "parents")
    same([one.status for one in found.parents], ["met", "met", "open"], "statuses")
    same([one.state for one in found.parents], [State.SUCCEEDED, State.SUCCEEDED, State.READY], "states")
    same((found.pending, found.more, found.children), (1, False, ()), "the rest")
    same([one.value for one in (await world.backend.relatives(child)).parents], [None] * 3, "values not asked for")
    found = await world.backend.relatives(parents[0])
    same([(one.id, one.task, one.status) for one in found.children], [(child, "work", "met")], "children")
    found = await world.backend.relatives(child, limit=2)
    same((len(found.parents), found.more), (2, True), "with a limit")
    same((await world.backend.relatives("nobody")).parents, (), "of an unknown job")


@case
async def dependencies_move_to_another_store(world: World) -> None:
    other = await world.another()
    parents = await world.enqueue_many(3)
    waiting = await stored_child(world, *parents[:2], delay=5.0, on_parent_failure="cancel")
    buried = await stored_child(world, parents[2])
    await runs_now(world, parents[0])
    await world.backend.bury(parents[2], "no use", now=world.now)
    await world.promote_all()
    before = (await world.tables())["edges"]
    await world.backend.seal(Seal(move="m", role="source", other="b"), instead_of=None)
    seal = Seal(move="m", role="target", other="a")
    await other.backend.seal(seal, instead_of=None)
    while seal.part is not None:
        piece = await world.backend.export(seal.part, seal.after, limit=2)
        for _ in range(2):
            await other.backend.carry("m", piece)
        seal = seal.moved_on(piece)
    await other.backend.seal(
        Seal(move="m", role="target", other="a", stage="moved", part=None), instead_of=await other.backend.sealed()
    )
    same((await other.tables())["edges"], before, "edges there")
    await is_waiting(other, waiting)
    await runs_now(other, parents[1])
    other.advance(5.0)
    await runs_now(other, waiting)
    await other.backend.revive(parents[2], now=other.now)
    await runs_now(other, parents[2])
    await runs_now(other, buried)


@case
async def a_job_in_another_queue_may_be_a_parent(world: World) -> None:
    parent = await world.enqueue(queue="first")
    await world.backend.declare([QueueRule(name="second")], now=world.now)
    job = world.job(queue="second", after=(parent,))
    await world.backend.enqueue([job], now=world.now)
    await is_waiting(world, job.id)
    await world.end(await world.claim_one(parent, queues=("first",)))
    await world.end(await world.claim_one(job.id, queues=("second",)))
