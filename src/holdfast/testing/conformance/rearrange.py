"""Conformance of rearrange: a changed rule applies at once, and a big backlog is moved in steps.

Called by run_case. The step of a rule is lowered to two jobs or groups, so that a handful is a big backlog.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...backends.contract import Backend
from ...lifecycle import State
from ...records import Pause
from .compare import same
from .flow import end_all, lanes, limit, rule, task_rule, turns
from .lanes import APART, GROUPED, PARKED, UNGROUPED
from .registry import case, case_for_each
from .world import World

STEP = 2
Act = Callable[[World], Awaitable[object]]

PAUSE = Pause(task="work")
CHANGES: dict[str, tuple[Act, int]] = {
    "a pause": (lambda w: w.backend.pause(PAUSE, now=w.now), PARKED),
    "a declared limit": (lambda w: task_rule(w, limit=1), APART),
    "an operator's limit": (lambda w: limit(w, task="work", limit=1), APART),
    "an operator's word": (lambda w: limit(w, task="work", apart=True), APART),
}


def piecewise(world: World) -> bool:
    """Does the store leave anything to rearrange? One that holds everything in RAM need not."""
    parts = getattr(world.backend, "_made", {"": world.backend})  # a store of shards leaves what its shards leave
    return any(type(part).rearrange is not Backend.rearrange for part in parts.values())


async def rearranged(world: World, *, limit: int = STEP) -> int:
    """Rearrange to the end; the number of passes that said there was more."""
    for passes in range(1000):
        if not await world.backend.rearrange(limit=limit, now=world.now):
            return passes
    raise AssertionError("rearrange never comes to an end")


@case_for_each(CHANGES)
async def a_changed_rule_moves_a_big_backlog_to_its_lane_piecewise(world: World, what: str) -> None:
    world.backend.rule_step_max = STEP
    ids = [*await world.enqueue_many(5), *[await world.enqueue(group=f"g{number}") for number in range(4)]]
    fine = await world.enqueue(task="fine")
    before = await turns(world, ids)
    change, lane = CHANGES[what]
    await change(world)
    moved, passes = (await lanes(world, ids)).count(lane), await rearranged(world)
    if piecewise(world):
        assert moved <= STEP, "a rule's own step is bounded"
        assert passes, "there was more to do than one pass does"
    same(await lanes(world, [*ids, fine]), [lane] * 9 + [UNGROUPED], "lanes")
    same(await turns(world, ids), before, "turns")
    async with world.unchanged("a pass with nothing to do"):
        same(await world.backend.rearrange(limit=STEP, now=world.now), False, "more")


@case
async def a_pause_holds_at_once_however_big_the_backlog(world: World) -> None:
    world.backend.rule_step_max = STEP
    ids = await world.enqueue_many(9)
    fine = await world.enqueue(task="fine")
    await world.backend.pause(PAUSE, now=world.now)
    found: list[str] = []
    for _ in range(12):
        found += await world.claim_ids(1, sweep_max=1)
    same(found, [fine], "what is not paused is reached, what is paused is not leased")
    same(await world.states(ids), [State.READY] * 9, "states")
    same(await world.backend.resume(PAUSE, now=world.now), True, "resume")
    while batch := await world.claim(4, sweep_max=3):
        found += [lease.id for lease in batch]
        await end_all(world, batch)
    same(found, [fine, *ids], "each once, in order")


@case_for_each(["declared", "operator"])
async def a_limit_of_a_task_holds_at_once_however_big_the_backlog(world: World, whose: str) -> None:
    world.backend.rule_step_max = STEP
    ids = await world.enqueue_many(9)
    await (task_rule(world, limit=2) if whose == "declared" else limit(world, task="work", limit=2))
    done: list[str] = []
    for _ in range(30):
        batch = await world.claim(9, sweep_max=2)
        assert len(batch) <= 2, f"the limit is 2, and {len(batch)} run"
        done += [lease.id for lease in batch]
        await end_all(world, batch)
    same(done, ids, "each once, in order")


@case
async def a_task_let_back_is_claimed_before_all_its_jobs_have_moved(world: World) -> None:
    ids = await world.enqueue_many(9)
    await limit(world, task="work", apart=True)
    world.backend.rule_step_max = STEP
    await limit(world, task="work", apart=None)
    done: list[str] = []
    for _ in range(30):
        batch = await world.claim(3, sweep_max=2)
        done += [lease.id for lease in batch]
        await end_all(world, batch)
    same(sorted(done), ids, "each once")


@case
async def a_further_change_takes_over_what_is_left(world: World) -> None:
    world.backend.rule_step_max = STEP
    ids = await world.enqueue_many(9)
    await task_rule(world, limit=1)
    await world.backend.pause(PAUSE, now=world.now)
    await world.claim_none()
    await world.backend.resume(PAUSE, now=world.now)
    await task_rule(world)
    await rearranged(world)
    same(await lanes(world, ids), [UNGROUPED] * 9, "lanes")
    same(await world.claim_ids(9), ids, "all are claimable, in order")


@case
async def a_lower_group_limit_holds_at_once_however_many_groups(world: World) -> None:
    await world.relaxed(3)
    ids = {name: await world.enqueue_many(4, group=name) for name in "abcdef"}
    world.backend.rule_step_max = STEP
    await world.relaxed(1)
    running: list[str] = []
    for _ in range(20):
        running += [lease.group or "" for lease in await world.claim(9, sweep_max=2)]
    same(sorted(running), list("abcdef"), "groups with a job running: one each")
    await rearranged(world)
    states = [state for name in ids for state in await world.states(ids[name])]
    same((states.count(State.RUNNING), states.count(State.WAITING)), (6, 18), "states")


@case
async def a_higher_group_limit_reaches_every_group(world: World) -> None:
    await rule(world)
    ids = {name: await world.enqueue_many(4, group=name) for name in "abcdef"}
    world.backend.rule_step_max = STEP
    await world.relaxed(3)
    assert await rearranged(world) or not piecewise(world), "there was more to do than one pass does"
    states = [state for name in ids for state in await world.states(ids[name])]
    same((states.count(State.READY), states.count(State.WAITING)), (18, 6), "states")
    same({await _lane(world, name) for name in ids}, {GROUPED}, "lanes")


async def _lane(world: World, group: str) -> int:
    rows = [row for row in (await world.tables())["jobs"] if row["group"] == group and row["state"] == State.READY]
    [lane] = {row["lane"] for row in rows}
    return int(lane)


@case
async def an_enqueue_into_a_rule_being_carried_out_goes_where_the_rule_says(world: World) -> None:
    world.backend.rule_step_max = STEP
    await world.enqueue_many(9)
    await limit(world, task="work", apart=True)
    late = await world.enqueue()
    same(await lanes(world, [late]), [APART], "lane of a new job")


@case
async def an_operators_word_that_a_task_is_apart_outlives_what_code_declares(world: World) -> None:
    ids = await world.enqueue_many(2)
    await limit(world, task="work", apart=True)
    await task_rule(world)
    same(await lanes(world, ids), [APART] * 2, "lanes")
    same(await world.claim_ids(9, most_by_task={"work": 0}), [], "a worker that cannot run it takes none")
    await limit(world, task="work", apart=None)
    same(await lanes(world, ids), [UNGROUPED] * 2, "lanes once reset")


@case
async def a_dump_says_whether_a_changed_rule_is_still_being_carried_out(world: World) -> None:
    world.backend.rule_step_max = STEP
    await world.enqueue_many(9)
    await limit(world, task="work", apart=True)
    same((await world.backend.dump()).rearranging, piecewise(world), "while jobs are left to move")
    await rearranged(world)
    same((await world.backend.dump()).rearranging, False, "once all have moved")
