"""Conformance of ended: one look at many jobs, for whoever waits for them.

Called by run_case.
"""

from __future__ import annotations

from ...lifecycle import State
from .compare import same
from .registry import case, case_for_each
from .world import DAY, World


@case_for_each(sorted(State))
async def ended_answers_a_finished_job_as_get_does_and_leaves_out_a_live_one(world: World, state: State) -> None:
    start = await world.put(state)
    async with world.unchanged("looking"):
        found = await world.backend.ended([start.id])
    same(dict(found), {start.id: await world.get(start.id)} if state.finished else {}, "what ended answers")


@case
async def ended_answers_none_for_a_job_nobody_knows(world: World) -> None:
    done = await world.put(State.SUCCEEDED)
    live = await world.enqueue()
    found = await world.backend.ended(["nobody", live, done.id, "nobody", done.id])
    same(dict(found), {"nobody": None, done.id: await world.get(done.id)}, "what ended answers")
    same(dict(await world.backend.ended([])), {}, "asked for none")


@case
async def ended_answers_none_for_a_job_that_was_pruned(world: World) -> None:
    done = await world.put(State.SUCCEEDED)
    world.advance(400 * DAY)
    await world.backend.prune(now=world.now)
    same(dict(await world.backend.ended([done.id])), {done.id: None}, "what ended answers")


@case
async def ended_leaves_out_a_job_that_was_brought_back(world: World) -> None:
    done = await world.put(State.DEAD)
    await world.backend.revive(done.id, now=world.now)
    same(dict(await world.backend.ended([done.id])), {}, "what ended answers")


@case
async def ended_takes_a_thousand_at_once(world: World) -> None:
    ids = await world.enqueue_many(world.sized(1000))
    for job_id in ids[::2]:
        await world.backend.cancel(job_id, now=world.now)
    found = await world.backend.ended(ids)
    same(sorted(found), sorted(ids[::2]), "those that have ended")
    same({job.state for job in found.values() if job is not None}, {State.CANCELLED}, "their states")
