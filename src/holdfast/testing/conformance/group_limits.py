"""Conformance of group limits: the queue's rule, overrides per group, and what raising and lowering does at once.

Called by run_case. The pause of a group, a limit of nothing, is in pausing.
"""

from __future__ import annotations

from ...errors import ConfigurationError
from ...lifecycle import State
from ...records import Override, QueueRule
from .compare import same
from .registry import case, case_for_each
from .world import World


async def _ready(world: World, ids: list[str]) -> list[str]:
    return [job_id for job_id in ids if await world.state(job_id) is State.READY]


@case_for_each([1, 2, 3, 7])
async def a_group_has_its_limit_in_play(world: World, limit: int) -> None:
    await world.relaxed(limit)
    ids = await world.enqueue_many(10, group="g")
    leases = await world.claim(10)
    same([lease.id for lease in leases], ids[:limit], "claimable at once")
    for position, lease in enumerate(leases):
        await world.end(lease)
        following = ids[limit + position : limit + position + 1]
        same(await world.claim_ids(10), following, "each end brings one")


@case
async def a_strict_queue_has_limit_one_whatever_it_declares(world: World) -> None:
    await world.backend.declare([QueueRule(name="default", group_limit=5, group_order="strict")], now=world.now)
    ids = await world.enqueue_many(3, group="g")
    same(await world.claim_ids(5), ids[:1], "claimable")


@case
async def an_undeclared_queue_is_strict(world: World) -> None:
    ids = await world.enqueue_many(3, group="g")
    same(await world.claim_ids(5), ids[:1], "claimable")
    record = await world.backend.group("default", "g")
    same((record.limit, record.order, record.override), (1, "strict", None), "the group as shown")


@case
async def limits_bind_each_group_apart_and_ungrouped_jobs_not_at_all(world: World) -> None:
    await world.relaxed(2)
    a = await world.enqueue_many(3, group="a")
    b = await world.enqueue_many(3, group="b")
    alone = await world.enqueue_many(3)
    got = await world.claim_ids(20)
    same(sorted(got), sorted([*a[:2], *b[:2], *alone]), "claimable")


@case
async def raising_a_queues_limit_fills_its_groups_at_once(world: World) -> None:
    await world.relaxed(1)
    ids = await world.enqueue_many(4, group="g")
    await world.relaxed(3)
    same(await _ready(world, ids), ids[:3], "ready")
    same(await world.claim_ids(9), ids[:3], "claimable")


@case
async def lowering_a_queues_limit_withdraws_ready_jobs(world: World) -> None:
    await world.relaxed(4)
    ids = await world.enqueue_many(5, group="g")
    await world.relaxed(2)
    same(await _ready(world, ids), ids[:2], "ready: the first stay")
    same(await world.claim_ids(9), ids[:2], "claimable")


@case
async def lowering_below_what_runs_stops_nobody_and_starts_nobody(world: World) -> None:
    await world.relaxed(3)
    ids = await world.enqueue_many(6, group="g")
    a, b, c = await world.claim(3)
    await world.relaxed(1)
    same(await world.states(ids[:3]), [State.RUNNING] * 3, "those who run")
    for lease in (a, b):
        await world.end(lease)
        await world.claim_none()
    await world.end(c)
    same(await world.claim_ids(9), [ids[3]], "one came once all had ended")


@case
async def a_rule_changed_to_strict_holds_for_jobs_already_there(world: World) -> None:
    await world.relaxed(3)
    ids = await world.enqueue_many(4, group="g")
    await world.strict()
    for job_id in ids:
        [lease] = await world.claim(9)
        same(lease.id, job_id, "one at a time, in order")
        await world.end(lease)


@case
async def declaring_the_same_again_changes_nothing(world: World) -> None:
    await world.relaxed(2)
    await world.enqueue_many(4, group="g")
    async with world.unchanged("the same declaration"):
        await world.relaxed(2)


@case
async def a_rule_touches_only_its_own_queue(world: World) -> None:
    other = await world.enqueue_many(3, group="g", queue="other")
    await world.relaxed(3)
    same(await _ready(world, other), other[:1], "the other queue")


@case
async def an_override_goes_before_the_queues_limit(world: World) -> None:
    await world.relaxed(2)
    ids = await world.enqueue_many(5, group="g")
    other = await world.enqueue_many(3, group="other")
    await world.backend.limit(Override(queue="default", group="g", limit=4), now=world.now)
    same(await _ready(world, ids), ids[:4], "ready under a raised override")
    same(await _ready(world, other), other[:2], "another group")
    await world.backend.limit(Override(queue="default", group="g", limit=1), now=world.now)
    same(await _ready(world, ids), ids[:1], "ready under a lowered override")
    record = await world.backend.group("default", "g")
    same((record.limit, record.override), (1, 1), "limit and override shown")
    await world.backend.limit(Override(queue="default", group="g", limit=None), now=world.now)
    same(await _ready(world, ids), ids[:2], "ready once the override is gone")
    same((await world.backend.group("default", "g")).override, None, "override shown")


@case
async def an_override_outlives_a_new_declaration_and_an_empty_group(world: World) -> None:
    await world.relaxed(2)
    await world.backend.limit(Override(queue="default", group="g", limit=3), now=world.now)
    await world.relaxed(5)
    ids = await world.enqueue_many(5, group="g")
    same(await _ready(world, ids), ids[:3], "ready")


@case_for_each([0, -1])
async def a_limit_below_one_is_refused(world: World, limit: int) -> None:
    await world.relaxed(2)
    await world.enqueue_many(2, group="g")
    async with world.refused(ConfigurationError, f"limit {limit}"):
        await world.backend.limit(Override(queue="default", group="g", limit=limit), now=world.now)


@case_for_each(["declared", "undeclared"])
async def a_limit_above_one_is_refused_on_a_strict_queue(world: World, how: str) -> None:
    if how == "declared":
        await world.strict()
    await world.enqueue_many(2, group="g")
    async with world.refused(ConfigurationError, "limit 2 on strict"):
        await world.backend.limit(Override(queue="default", group="g", limit=2), now=world.now)


@case
async def withdrawn_jobs_come_back_in_order(world: World) -> None:
    await world.relaxed(4)
    ids = await world.enqueue_many(4, group="g")
    await world.relaxed(1)
    await world.relaxed(4)
    same(await _ready(world, ids), ids, "ready again")
    same(sorted(await world.claim_ids(9)), ids, "claimable")
