"""Conformance of aging: in a queue that ages its jobs a priority is worth so many seconds, and nobody starves.

Called by run_case. It is off unless a queue's rule says so.
"""

from __future__ import annotations

from ...lifecycle import Ending
from .compare import same
from .flow import rule, turns
from .registry import case, case_for_each
from .world import FOREVER, World

TICKS = 1_000_000
NEAR = 1000  # ticks: how far apart turns are that were issued in one step


async def _ranks(world: World, ids: list[str]) -> list[int]:
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    return [rows[job_id]["rank"] for job_id in ids]


async def _first_of(world: World, ids: list[str]) -> str:
    """The job a claim would take now."""
    lease = await world.claim_one(worker="w-first", lease=FOREVER)
    assert lease.id in ids, f"{lease.id} was not expected at all"
    await world.give_back(lease)
    return lease.id


@case
async def without_aging_a_priority_never_yields(world: World) -> None:
    low = await world.enqueue(priority=-1)
    world.advance(10_000_000.0)
    high = await world.enqueue()
    same(await _ranks(world, [low, high]), [-1, 0], "ranks")
    same(await world.claim_ids(2), [high, low], "order")


@case
async def with_aging_a_priority_is_worth_so_many_seconds(world: World) -> None:
    await rule(world, aging=10.0)
    ids = [await world.enqueue(), await world.enqueue(priority=3), await world.enqueue(priority=-2)]
    same(await _ranks(world, ids), [0, 0, 0], "ranks")
    plain, high, low = await turns(world, ids)
    assert 0 < high - plain + 30 * TICKS <= NEAR, f"priority 3 is {high - plain} ticks off priority 0"
    assert 0 < low - plain - 20 * TICKS <= NEAR, f"priority -2 is {low - plain} ticks off priority 0"
    same(await world.claim_ids(9), [ids[1], ids[0], ids[2]], "order")


@case_for_each([(49.0, "the urgent"), (51.0, "the old")], name=lambda p: f"after {p[0]:g} s {p[1]}")
async def a_job_that_has_waited_long_enough_goes_first(world: World, param: tuple[float, str]) -> None:
    after, expected = param
    await rule(world, aging=10.0)
    old = await world.enqueue()
    world.advance(after)
    urgent = await world.enqueue(priority=5)
    same(await _first_of(world, [old, urgent]), urgent if expected == "the urgent" else old, "first")


@case
async def a_stream_of_urgent_jobs_starves_nobody(world: World) -> None:
    await rule(world, aging=2.0)
    low = await world.enqueue(priority=-5)
    started = []
    for _ in range(60):
        await world.enqueue_many(2, priority=5)
        world.advance(1.0)
        lease = await world.claim_one(lease=FOREVER)
        started.append(lease.id)
        await world.end(lease)
    assert low in started, "a low job beside a stream of urgent ones never started"
    assert started.index(low) >= 20, f"it started after {started.index(low)} s: its priority must count for something"


@case
async def a_changed_aging_holds_for_jobs_that_become_ready_from_then_on(world: World) -> None:
    before = await world.enqueue(priority=5)
    await rule(world, aging=10.0)
    after = await world.enqueue(priority=9)
    same(await _ranks(world, [before, after]), [5, 0], "ranks")
    same(await world.claim_ids(9), [before, after], "order")
    await rule(world)
    last = await world.enqueue(priority=2)
    same(await _ranks(world, [last]), [2], "rank once it is off")


@case
async def a_job_given_back_keeps_its_aged_turn(world: World) -> None:
    await rule(world, aging=10.0)
    ids = [await world.enqueue(), await world.enqueue(priority=1)]
    before = await turns(world, ids)
    for lease in await world.claim(9, lease=FOREVER):
        await world.give_back(lease)
    same((await turns(world, ids), await _ranks(world, ids)), (before, [0, 0]), "turns and ranks")


@case
async def a_retried_job_ages_anew(world: World) -> None:
    await rule(world, aging=10.0)
    failed = await world.enqueue()
    await world.end(await world.claim_one(failed, lease=FOREVER), Ending.RETRY, delay=5.0)
    fresh = await world.enqueue(priority=1)
    world.advance(11.0)
    await world.promote_all()
    later = await world.enqueue(priority=2)
    same(await world.claim_ids(9), [fresh, later, failed], "order: 10 s ahead, 20 s ahead of now, now")


@case
async def aging_is_shown_with_its_queue(world: World) -> None:
    await rule(world, aging=2.5)
    [queue] = await world.backend.queues()
    same(queue.aging, 2.5, "aging")


@case
async def one_queue_ages_and_another_does_not(world: World) -> None:
    await rule(world, "aging", aging=1.0)
    ids = [await world.enqueue(queue="aging", priority=4), await world.enqueue(priority=4)]
    same(await _ranks(world, ids), [0, 4], "ranks")


@case
async def running_jobs_have_no_rank(world: World) -> None:
    job_id = await world.enqueue(priority=4)
    await world.claim_one(job_id)
    same(await _ranks(world, [job_id]), [0], "rank")
