"""Conformance of jobs that are stored with the end of the attempt that enqueued them (R86), and of jobs that a waiting
job waits for from then on (R87).

Called by run_case. All jobs are in one group without order, so that a sharded store has them in one shard.
"""

from __future__ import annotations

from typing import Any

from ...dependencies import DUE_AFTER_PARENTS
from ...errors import JobNotFound, ParentNotFound, StateConflict
from ...lifecycle import Ending, State
from ...records import Answer, Lease, NewJob, Seal
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World

TOGETHER = "g"


async def parent(world: World, **fields: Any) -> Lease:
    """A running job, leased to a worker that lives as long as the case."""
    await world.relaxed(100)
    await world.register("w1", lease=FOREVER)
    await world.enqueue(group=TOGETHER, **fields)
    return await world.claim_one()


def child(world: World, **fields: Any) -> NewJob:
    return world.job(**{"group": TOGETHER, **fields})


async def settle_with(world: World, lease: Lease, *jobs: NewJob, **fields: Any) -> Answer:
    return await world.backend.settle_with(
        world.settlement(lease, Ending.SUCCEEDED, **fields), list(jobs), now=world.now
    )


async def stored_with(world: World, lease: Lease, *jobs: NewJob, **fields: Any) -> None:
    """Settle with these jobs: anything but OK is a fault."""
    same(await settle_with(world, lease, *jobs, **fields), Answer.OK, "settle_with of a live lease")


async def join(world: World, *members: str, **fields: Any) -> str:
    """A job that waits for these, whatever becomes of them."""
    return await world.enqueue(group=TOGETHER, after=members, on_parent_failure="run", **fields)


async def waits(world: World, job_id: str, pending: int) -> None:
    """Assert that a job waits for its parents, and for how many."""
    job = await world.get(job_id)
    same((job.state, job.due_at), (State.SCHEDULED, DUE_AFTER_PARENTS), f"state and due time of {job_id}")
    same((await world.backend.relatives(job_id)).pending, pending, f"parents that {job_id} still waits for")


# ----------------------------------------------------------------------------------------------------------------------
# All or nothing


@case
async def jobs_are_stored_with_the_success_of_their_attempt(world: World) -> None:
    lease = await parent(world)
    now, later = child(world), child(world, delay=60.0, args=b'{"n":1}', key="k")
    await stored_with(world, lease, now, later, value=b'"done"', retain=1000.0)
    ended = await world.get(lease.id)
    same((ended.state, ended.value, ended.attempts), (State.SUCCEEDED, b'"done"', 1), "the job that ended")
    stored = await world.get(later.id)
    same(
        (stored.state, stored.due_at, stored.args, stored.key), (State.SCHEDULED, world.now + 60.0, b'{"n":1}', "k"), ""
    )
    await world.claim_one(now.id)
    await world.claim_none()


@case
async def no_jobs_are_an_ordinary_success(world: World) -> None:
    lease = await parent(world)
    await stored_with(world, lease)
    await world.is_in(lease.id, State.SUCCEEDED)


@case
async def a_lease_that_was_lost_stores_nothing(world: World) -> None:
    lease = await parent(world)
    await world.give_back(lease)
    await world.claim_one(lease.id)
    async with world.unchanged("settle_with of a lost lease"):
        same(await settle_with(world, lease, child(world)), Answer.LOST, "the answer")


@case
async def a_repeated_settlement_stores_nothing_twice(world: World) -> None:
    lease = await parent(world)
    job = child(world)
    await stored_with(world, lease, job)
    async with world.unchanged("a repeat"):
        same(await settle_with(world, lease, job), Answer.LOST, "the answer")
    await world.claim_one(job.id)


@case
async def a_cancelled_attempt_stores_nothing(world: World) -> None:
    lease = await parent(world)
    await world.backend.cancel(lease.id, now=world.now)
    async with world.unchanged("settle_with of a cancelled job"):
        same(await settle_with(world, lease, child(world)), Answer.CANCELLED, "the answer")
    await world.end(lease, Ending.CANCELLED)


@case_for_each([state for state in State if state is not State.RUNNING])
async def only_a_running_job_is_settled_with_others(world: World, state: State) -> None:
    start = await world.put(state, group=TOGETHER)
    lease = start.lease or Lease(start.id, "1.x", 1, "t", "default", b"{}")
    async with world.unchanged(f"settle_with from {state}"):
        jobs = [] if world.backend.sharded else [child(world)]  # a token that nobody gave has no shard
        same(await settle_with(world, lease, *jobs), Answer.LOST, "the answer")


@case
async def an_unknown_parent_refuses_the_settlement_too(world: World) -> None:
    lease = await parent(world)
    async with world.refused(ParentNotFound, "settle_with of an unknown parent"):
        await settle_with(world, lease, child(world), child(world, after=("nobody",)))
    await world.end(lease)


@case
async def a_job_takes_the_key_of_the_one_that_ended(world: World) -> None:
    lease = await parent(world, key="poll")
    job = child(world, key="poll", delay=10.0)
    await stored_with(world, lease, job)
    await world.is_in(job.id, State.SCHEDULED)


@case
async def a_job_whose_key_is_held_elsewhere_is_kept_out(world: World) -> None:
    lease = await parent(world)
    holder = await world.enqueue(group=TOGETHER, key="k")
    job = child(world, key="k", on_conflict="raise")
    await stored_with(world, lease, job)
    same(await world.backend.get(job.id), None, "the job")
    await world.is_in(holder, State.READY)


@case
async def jobs_stored_with_a_settlement_may_wait_for_it_and_for_each_other(world: World) -> None:
    lease = await parent(world)
    first = child(world)
    second = child(world, after=(first.id, lease.id))
    await stored_with(world, lease, first, second)
    await waits(world, second.id, 1)
    await world.end(await world.claim_one(first.id))
    await world.claim_one(second.id)


@case
async def what_waited_for_the_job_is_let_go_with_it(world: World) -> None:
    lease = await parent(world)
    waiting = await world.enqueue(group=TOGETHER, after=(lease.id,))
    job = child(world)
    await stored_with(world, lease, job)
    same(sorted(await world.claim_ids(5)), sorted([waiting, job.id]), "what runs now")


@case
async def a_group_goes_on_when_its_job_ends_with_others(world: World) -> None:
    await world.strict()
    await world.register("w1", lease=FOREVER)
    await world.enqueue(group=TOGETHER)
    following = await world.enqueue(group=TOGETHER)
    lease = await world.claim_one()
    job = child(world)
    await stored_with(world, lease, job)
    await world.end(await world.claim_one(following))
    await world.claim_one(job.id)


@case
async def a_sealed_store_lets_a_running_job_end_with_others(world: World) -> None:
    lease = await parent(world)
    seal = Seal(move="m", role="source", other="memory://")
    assert await world.backend.seal(seal, instead_of=None)
    job = child(world)
    await stored_with(world, lease, job)
    assert await world.backend.seal(None, instead_of=seal)
    await world.claim_one(job.id)


@case
async def jobs_of_another_queue_are_stored_with_the_end(world: World) -> None:
    lease = await parent(world)
    job = world.job(queue="elsewhere", group=TOGETHER)
    await stored_with(world, lease, job)
    await world.claim_one(job.id, queues=("elsewhere",))


@case
async def a_job_of_another_queue_waits_for_the_one_that_ends(world: World) -> None:
    lease = await parent(world)
    job = world.job(queue="elsewhere", after=(lease.id,))
    await stored_with(world, lease, job)
    await world.claim_one(job.id, queues=("elsewhere",))


@case
async def a_member_in_another_queue_adds_members_with_its_end(world: World) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    for number in range(4):  # never is there an instant at which nothing is left to wait for
        queue = f"queue-{number % 2}"
        member = world.job(queue=queue, before=last)
        await stored_with(world, lease, member)
        await waits(world, last, 1)
        lease = await world.claim_one(member.id, queues=(queue,))
    await world.end(lease)
    await world.claim_one(last)


# ----------------------------------------------------------------------------------------------------------------------
# A job that waits for others, and for new ones, too


@case
async def a_waiting_job_waits_for_a_new_one_too(world: World) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    member = child(world, before=last)
    await world.backend.enqueue([member], now=world.now)
    await waits(world, last, 2)
    await world.end(lease)
    await waits(world, last, 1)
    await world.end(await world.claim_one(member.id))
    await world.claim_one(last)


@case
async def a_member_adds_another_with_its_own_end(world: World) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    for _ in range(3):  # never is there an instant at which nothing is left to wait for
        member = child(world, before=last)
        await stored_with(world, lease, member)
        await waits(world, last, 1)
        lease = await world.claim_one(member.id)
    await world.end(lease)
    await world.claim_one(last)


@case_for_each([Ending.BURIED, Ending.CANCELLED])
async def a_member_that_fails_counts_by_the_policy_of_what_waits(world: World, ending: Ending) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    strict = await world.enqueue(group=TOGETHER, after=(lease.id,), on_parent_failure="cancel")
    jobs = [child(world, before=last), child(world, before=strict)]
    await stored_with(world, lease, *jobs)
    for one in await world.claim(2):
        await world.end(one, ending)
    job = await world.get(strict)
    same((job.state, job.reason), (State.CANCELLED, "parent"), "the one that needs its parents")
    await world.claim_one(last)


@case
async def a_member_that_cannot_begin_is_told_at_once(world: World) -> None:
    lease = await parent(world)
    dead = await parent(world)
    await world.end(dead, Ending.BURIED)
    last = await join(world, lease.id)
    member = child(world, before=last, after=(dead.id,))
    await world.backend.enqueue([member], now=world.now)
    await world.promote_all()
    await world.is_in(member.id, State.DEAD)
    await waits(world, last, 1)


@case_for_each(list(State))
async def only_a_waiting_job_can_be_given_more_parents(world: World, state: State) -> None:
    start = await world.put(state, group="g" if state is State.WAITING else None)
    if world.backend.sharded:
        return
    async with world.refused(StateConflict, f"before a job that is {state}") as raised:
        await world.backend.enqueue([world.job(), world.job(before=start.id)], now=world.now)
    [error] = raised
    assert isinstance(error, StateConflict)
    same((error.job_id, error.verb, error.state), (start.id, "join", state.value), "the refusal")


@case
async def nothing_is_stored_before_an_unknown_job(world: World) -> None:
    await world.relaxed(100)
    coming = child(world)
    for name in ("nobody", coming.id):
        async with world.refused(JobNotFound, f"before {name}"):
            await world.backend.enqueue([coming, child(world, before=name)], now=world.now)


@case
async def a_settlement_with_a_job_before_one_that_is_over_is_refused(world: World) -> None:
    lease = await parent(world)
    other = await parent(world)
    last = await join(world, other.id)
    await world.end(other)
    async with world.refused(StateConflict, "settle_with before a job that is over"):
        await settle_with(world, lease, child(world, before=last))
    await world.end(lease)


@case
async def a_known_id_adds_nothing(world: World) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    member = child(world, before=last)
    await world.backend.enqueue([member], now=world.now)
    async with world.unchanged("a repeat"):
        [answer] = await world.backend.enqueue([member], now=world.now)
        same((answer.id, answer.created), (member.id, False), "the answer")
    kept = child(world, key="k")
    await world.backend.enqueue([kept], now=world.now)
    async with world.unchanged("a call for which another job is kept"):
        await world.backend.enqueue([child(world, key="k", before=last)], now=world.now)
    await waits(world, last, 2)


@case
async def relatives_are_read_in_pages(world: World) -> None:
    lease = await parent(world)
    last = await join(world, lease.id)
    members = [child(world, before=last) for _ in range(4)]
    await world.backend.enqueue(members, now=world.now)
    found, beyond = list[str](), ""
    while page := (await world.backend.relatives(last, limit=2, beyond=beyond)).parents:
        found += [one.id for one in page]
        beyond = found[-1]
    same(found, sorted([lease.id, *(one.id for one in members)]), "all parents")
    same([one.id for one in (await world.backend.relatives(lease.id)).children], [last], "the child")
    same((await world.backend.relatives(lease.id, beyond=last)).children, (), "children beyond it")


# ----------------------------------------------------------------------------------------------------------------------
# Waiting again


@case
async def a_cancelled_job_waits_for_its_parents_again(world: World) -> None:
    lease = await parent(world)
    waiting = await world.enqueue(group=TOGETHER, after=(lease.id,))
    await world.backend.cancel(waiting, now=world.now)
    again = await world.backend.rejoin(waiting, now=world.now, by="ann")
    same((again.state, again.due_at), (State.SCHEDULED, DUE_AFTER_PARENTS), "the job")
    await world.end(lease)
    await world.claim_one(waiting)


@case_for_each([State.DEAD, State.CANCELLED])
async def a_job_whose_parents_failed_comes_back_with_them(world: World, ended: State) -> None:
    lease = await parent(world)
    waiting = await world.enqueue(group=TOGETHER, after=(lease.id,))
    if ended is State.DEAD:
        await world.backend.bury(waiting, "no", now=world.now)
    else:
        await world.backend.cancel(waiting, now=world.now)
    await world.end(lease, Ending.BURIED)
    same((await world.backend.rejoin(waiting, now=world.now)).state, ended, "the job, as long as its parent is dead")
    await world.backend.revive(lease.id, now=world.now)
    await waits(world, waiting, 1)
    await world.end(await world.claim_one(lease.id))
    await world.claim_one(waiting)


@case_for_each(list(State))
async def only_a_job_with_parents_waits_again(world: World, state: State) -> None:
    start = await world.put(state)
    async with world.refused(StateConflict, f"rejoin of a job without parents that is {state}"):
        await world.backend.rejoin(start.id, now=world.now)


@case
async def a_job_that_waits_or_may_run_is_not_made_to_wait_again(world: World) -> None:
    lease = await parent(world)
    waiting = await world.enqueue(group=TOGETHER, after=(lease.id,))
    async with world.refused(StateConflict, "rejoin of a job that waits"):
        await world.backend.rejoin(waiting, now=world.now)
    await world.end(lease)
    await world.backend.cancel(waiting, now=world.now)
    async with world.refused(StateConflict, "rejoin of a job whose parents have succeeded"):
        await world.backend.rejoin(waiting, now=world.now)
    async with world.refused(JobNotFound, "rejoin of no job"):
        await world.backend.rejoin("nobody", now=world.now)
