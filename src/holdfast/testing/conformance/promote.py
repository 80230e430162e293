"""Conformance of promote: due jobs come into play, expired ones go, in bounded passes.

Called by run_case. Automatic revival, the third thing promote does, is in revival.
"""

from __future__ import annotations

from ...lifecycle import State
from .compare import same
from .registry import case, case_for_each
from .world import World


@case
async def promote_says_what_it_did(world: World) -> None:
    due = await world.enqueue(delay=10.0)
    expired = await world.enqueue(expires=5.0)
    later = await world.enqueue(delay=1000.0)
    world.advance(11.0)
    done = await world.backend.promote(now=world.now)
    same((done.due, done.expired, done.revived, done.more), (1, 1, 0, False), "what the pass did")
    expected = [State.READY, State.DEAD, State.SCHEDULED]
    same(await world.states([due, expired, later]), expected, "states")
    async with world.unchanged("a pass with nothing to do"):
        done = await world.backend.promote(now=world.now)
    same((done.due, done.expired, done.more), (0, 0, False), "what the second pass did")


@case_for_each(["due", "expired"])
async def promote_is_bounded_and_says_when_to_call_again(world: World, what: str) -> None:
    fields = {"delay": 10.0} if what == "due" else {"expires": 10.0}
    ids = await world.enqueue_many(7, **fields)
    world.advance(11.0)
    passes = []
    for _ in range(10):
        done = await world.backend.promote(limit=3, now=world.now)
        passes.append(getattr(done, what))
        if not done.more:
            break
    assert max(passes) <= 3, f"a pass went beyond its bound: {passes}"
    same(sum(passes), 7, "jobs handled once no more was said to be left")
    same(set(await world.states(ids)), {State.READY if what == "due" else State.DEAD}, "states")


@case
async def jobs_promoted_earlier_go_first(world: World) -> None:
    third = await world.enqueue(delay=30.0)
    first = await world.enqueue(delay=10.0)
    second = await world.enqueue(delay=20.0)
    for _ in range(3):
        world.advance(10.5)
        await world.promote_all()
    same(await world.claim_ids(5), [first, second, third], "order of claims")


@case
async def a_job_due_long_ago_is_not_lost_when_the_clock_goes_back(world: World) -> None:
    job_id = await world.enqueue(delay=10.0)
    world.advance(11.0)
    await world.promote_all()
    world.advance(-3600.0)
    await world.claim_one(job_id)


@case
async def an_expired_scheduled_job_is_buried_and_never_ready(world: World) -> None:
    job_id = await world.enqueue(delay=10.0, expires=5.0)
    world.advance(16.0)
    await world.claim_none()
    await world.promote_all()
    job = await world.get(job_id)
    same((job.state, job.reason, job.fence), (State.DEAD, "expired", 0), "the job")


@case
async def an_expired_waiting_job_is_buried_behind_its_group(world: World) -> None:
    start = await world.put(State.RUNNING, group="g")
    waiting = await world.enqueue(group="g", expires=5.0)
    last = await world.enqueue(group="g")
    world.advance(6.0)
    await world.promote_all()
    same(await world.states([waiting, last]), [State.DEAD, State.WAITING], "states")
    await world.end(start.held)
    await world.claim_one(last)
