"""Conformance of slow_down: nothing of a queue starts for a while; whatever runs is left alone.

Called by run_case.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
from ...rates import Rate
from ...records import Answer, Pause
from .compare import same
from .flow import answer, queue_shown, rule
from .registry import case, case_for_each
from .world import DAY, FOREVER, World


async def _slow(world: World, seconds: float, queue: str = "default") -> float:
    return await world.backend.slow_down(queue, seconds, now=world.now)


@case
async def nothing_of_a_slowed_queue_starts_for_so_long(world: World) -> None:
    ids = await world.enqueue_many(2)
    grouped = await world.enqueue(group="g")
    same(await _slow(world, 30.0), world.now + 30.0, "until when")
    await world.claim_none(lease=FOREVER)
    world.advance(29.0)
    await world.claim_none()
    world.advance(1.0)
    same(sorted(await world.claim_ids(9)), sorted([*ids, grouped]), "started")


@case_for_each([1.0, 29.0, 30.0])
async def a_second_slow_down_never_shortens_the_first(world: World, seconds: float) -> None:
    await world.enqueue()
    until = await _slow(world, 30.0)
    async with world.unchanged("a shorter slow-down"):
        same(await _slow(world, seconds), until, "until when")
    world.advance(seconds)
    same(len(await world.claim(9, lease=FOREVER)), int(seconds >= 30.0), "started")


@case
async def a_second_slow_down_may_prolong_the_first(world: World) -> None:
    await world.enqueue()
    await _slow(world, 30.0)
    world.advance(20.0)
    same(await _slow(world, 30.0), world.now + 30.0, "until when")
    world.advance(29.0)
    await world.claim_none(lease=FOREVER)
    world.advance(1.0)
    await world.claim_one()


@case
async def a_slow_down_touches_no_lease_and_no_job(world: World) -> None:
    lease, other = await world.leased(2)
    await world.enqueue_many(2)
    before = (await world.tables())["jobs"]
    await _slow(world, 30.0)
    same((await world.tables())["jobs"], before, "jobs")
    same((await world.renew("w1", [lease, other])).lost, (), "lost")
    await world.end(lease)
    await world.give_back(other)
    await world.is_in(other.id, State.READY)
    await world.claim_none()


@case
async def an_exchange_with_a_slowed_queue_carries_out_the_outcomes(world: World) -> None:
    [lease] = await world.leased(1)
    await world.enqueue()
    await _slow(world, 30.0)
    found = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], [], world.request("w1", 5))
    same((found.answers, found.leases, found.opens_in), ((Answer.OK,), (), 30.0), "answer")


@case
async def the_next_job_of_a_group_does_not_follow_in_a_slowed_queue(world: World) -> None:
    _, waiting = await world.enqueue_many(2, group="g")
    lease = await world.claim_one(lease=FOREVER)
    await _slow(world, 30.0)
    found = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], [], world.request("w1", 5))
    same((found.answers, found.leases), ((Answer.OK,), ()), "answer")
    await world.is_in(waiting, State.READY)
    world.advance(30.0)
    await world.claim_one(waiting)


@case
async def other_queues_go_on(world: World) -> None:
    await world.enqueue_many(2)
    other = await world.enqueue_many(2, queue="other")
    await _slow(world, 30.0)
    same(await world.claim_ids(9, queues=("default", "other")), other, "started")


@case
async def a_claim_says_when_the_slow_down_ends(world: World) -> None:
    await world.enqueue_many(2)
    await world.enqueue_many(2, queue="other")
    await _slow(world, 32.0)
    same((await answer(world)).opens_in, 32.0, "at once")
    world.advance(8.0)
    same((await answer(world)).opens_in, 24.0, "later")
    await _slow(world, 16.0, "other")
    same((await answer(world, queues=("default", "other"))).opens_in, 16.0, "the first of two")
    world.advance(24.0)
    found = await answer(world)
    same((len(found.leases), found.opens_in), (2, None), "once it is over")


@case
async def a_slow_down_is_shown_and_forgotten_once_it_is_over(world: World) -> None:
    until = await _slow(world, 30.0, "quiet")
    shown = await queue_shown(world, "quiet")
    assert shown.flow is not None, "a slow-down is shown"
    same((shown.declared, shown.flow.shut_until), (False, until), "shown")
    await world.backend.prune(now=world.now)
    same((await queue_shown(world, "quiet")).flow, shown.flow, "prune while it lasts")
    world.advance(DAY)
    await world.backend.prune(now=world.now)
    same(await world.backend.queues(), [], "queues once it is over")


@case
async def a_slow_down_and_a_rate_are_kept_side_by_side(world: World) -> None:
    await rule(world, rate=Rate(1, 100.0, 2))
    await world.enqueue_many(5)
    await world.claim(1, lease=FOREVER)
    flow = (await queue_shown(world)).flow
    assert flow is not None, "the bucket is shown"
    until = await _slow(world, 30.0)
    slowed = (await queue_shown(world)).flow
    assert slowed is not None, "the bucket is shown"
    same((slowed.spent_until, slowed.shut_until), (flow.spent_until, until), "both times")
    world.advance(30.0)
    same(len(await world.claim(9)), 1, "what was left of the burst")
    after = (await queue_shown(world)).flow
    assert after is not None, "the bucket is shown"
    same(after.shut_until, until, "a charge leaves the slow-down as it was")


@case
async def a_slowed_queue_still_promotes_recovers_and_takes_jobs_in(world: World) -> None:
    stalled = await world.put(State.RUNNING)
    due = await world.enqueue(delay=5.0)
    expired = await world.enqueue(expires=5.0)
    await _slow(world, 100.0)
    await world.expire_worker("holder")
    await world.claim_none("w2", lease=FOREVER)
    same(await world.states([stalled.id, due, expired]), [State.READY, State.READY, State.DEAD], "states")
    await world.enqueue()


@case
async def a_slow_down_survives_a_declaration_of_its_queue(world: World) -> None:
    await world.enqueue()
    await _slow(world, 30.0)
    await rule(world, limit=5)
    await world.claim_none()


@case_for_each([False, True])
async def resume_ends_a_slow_down(world: World, paused: bool) -> None:
    await rule(world, rate=Rate(1, 100.0, 2))
    await world.enqueue_many(5)
    await world.claim(1, lease=FOREVER)
    flow = (await queue_shown(world)).flow
    await _slow(world, 30.0)
    await _slow(world, 30.0, "other")
    pause = Pause(queue="default")
    if paused:
        await world.backend.pause(pause, now=world.now)
    same(await world.backend.resume(pause, now=world.now), True, "there was something to end")
    same((await queue_shown(world)).flow, flow, "its bucket is as it was")
    same((await queue_shown(world, "other")).flow is not None, True, "another queue's slow-down goes on")
    same(len(await world.claim(9)), 1, "what was left of the burst")
    async with world.unchanged("a second resume"):
        same(await world.backend.resume(pause, now=world.now), False, "nothing is left to end")


@case_for_each(["group", "task"])
async def resume_of_a_part_leaves_the_slow_down_of_its_queue(world: World, kind: str) -> None:
    await world.enqueue(group="g")
    await _slow(world, 30.0)
    pause = Pause(queue="default", group="g") if kind == "group" else Pause(task="work")
    async with world.unchanged("a resume of what is not paused"):
        same(await world.backend.resume(pause, now=world.now), False, "not paused")
    await world.backend.pause(pause, now=world.now)
    same(await world.backend.resume(pause, now=world.now), True, "paused")
    await world.claim_none()


@case
async def resume_after_a_slow_down_is_over_has_nothing_to_end(world: World) -> None:
    await _slow(world, 30.0)
    world.advance(30.0)
    async with world.unchanged("a resume"):
        same(await world.backend.resume(Pause(queue="default"), now=world.now), False, "it is over")
