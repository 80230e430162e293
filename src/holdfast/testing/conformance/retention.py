"""Conformance of prune: finished jobs go when their retention is over, and nothing else ever does.

Called by run_case. Retention counts from the end of the job, never below ten minutes.
"""

from __future__ import annotations

from ...lifecycle import FINISHED, LIVE, Ending, State
from ...records import REMEMBER_SECONDS_MIN
from .compare import mentions, same
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World

ENDINGS = {State.SUCCEEDED: Ending.SUCCEEDED, State.CANCELLED: Ending.CANCELLED}


async def _finished(world: World, retain: float, state: State = State.SUCCEEDED) -> str:
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id, lease=FOREVER)
    await world.report(lease, progress=0.5, lines=("a line",))
    await world.end(lease, ENDINGS[state], retain=retain)
    return job_id


@case_for_each(sorted(ENDINGS))
async def a_finished_job_is_pruned_when_its_retention_is_over(world: World, state: State) -> None:
    job_id = await _finished(world, 5000.0, state)
    world.advance(4999.0)
    async with world.unchanged("prune before the time"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")
    same(await world.backend.logs(job_id), [], "its log lines")
    tables = await world.tables()
    same(mentions(tables, job_id), [], "tables that still know it")
    same(tables["logs"], [], "log lines in the store")


@case
async def a_job_with_no_retention_is_remembered_ten_minutes(world: World) -> None:
    job_id = await _finished(world, 0.0)
    world.advance(REMEMBER_SECONDS_MIN - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned")
    same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")
    await world.is_in(job_id, State.SUCCEEDED)
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")


@case
async def older_than_overrides_retention(world: World) -> None:
    old = await _finished(world, 400 * DAY)
    world.advance(2 * HOUR)
    young = await _finished(world, 400 * DAY)
    world.advance(HOUR / 2)
    same(await world.backend.prune(now=world.now), 0, "pruned by retention")
    same(await world.backend.prune(older_than=HOUR, now=world.now), 1, "pruned by age")
    same(await world.backend.get(old), None, "the old one")
    await world.is_in(young, State.SUCCEEDED)


@case
async def prune_is_bounded(world: World) -> None:
    ids = await world.enqueue_many(7)
    for lease in await world.claim(7):
        await world.end(lease, retain=0.0)
    world.advance(HOUR)
    same([await world.backend.prune(limit=3, now=world.now) for _ in range(4)], [3, 3, 1, 0], "pruned per pass")
    same([await world.backend.get(job_id) for job_id in ids], [None] * 7, "jobs left")


@case_for_each(sorted(LIVE))
async def a_live_job_is_never_pruned(world: World, state: State) -> None:
    await world.put(state)
    world.advance(4000 * DAY)
    async with world.unchanged(f"prune of a {state} job"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")


@case
async def a_dead_job_that_holds_its_letter_is_never_pruned(world: World) -> None:
    start = await world.put(State.DEAD)
    world.advance(4000 * DAY)
    async with world.unchanged("prune of a dead job with its letter"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")
    await world.backend.revive(start.id, now=world.now)
    await world.claim_one(start.id)


@case_for_each(sorted(FINISHED))
async def a_job_brought_back_is_live_again_and_safe_from_prune(world: World, state: State) -> None:
    start = await world.put(state)
    await world.backend.retry(start.id, now=world.now)
    world.advance(4000 * DAY)
    for older_than in (None, 0.0):
        same(await world.backend.prune(older_than=older_than, now=world.now), 0, "pruned")
    lease = await world.claim_one(start.id)
    await world.end(lease, value=b'"again"', retain=5000.0)
    same((await world.get(start.id)).value, b'"again"', "value of its second life")
    world.advance(4999.0)
    same(await world.backend.prune(now=world.now), 0, "pruned before its new retention is over")
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")


@case
async def a_job_cancelled_before_its_start_is_pruned_in_the_end(world: World) -> None:
    job_id = await world.enqueue()
    await world.backend.cancel(job_id, now=world.now)
    world.advance(REMEMBER_SECONDS_MIN - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned")
    world.advance(400 * DAY)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")


@case
async def pruning_leaves_the_neighbours_alone(world: World) -> None:
    gone = await _finished(world, 0.0)
    kept = await _finished(world, 400 * DAY)
    live = await world.enqueue()
    dead = await world.put(State.DEAD, queue="other")
    world.advance(DAY)
    before = [await world.get(job_id) for job_id in (kept, live, dead.id)]
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(gone), None, "the pruned job")
    same([await world.get(job_id) for job_id in (kept, live, dead.id)], before, "the others")
    same(len(await world.backend.logs(kept)), 1, "log lines of a kept job")
