"""Conformance of on_dead="stop": a strict group stops at a job that dies at the end of its lease.

Called by run_case. What ends a stop, what does not, and what stops nothing.
"""

from __future__ import annotations

from typing import Any

from ...lifecycle import Ending, State
from ...records import SERIAL_PREFIX, Edit, GroupOrder, OnDead, Pause, QueueRule, Revival, TaskRule
from .compare import same
from .move import moved
from .registry import case, case_for_each
from .world import FOREVER, World

GROUP = Pause(queue="default", group="g")


async def _declare(world: World, on_dead: OnDead = "stop", order: GroupOrder = "strict") -> None:
    rule = QueueRule(name="default", on_dead=on_dead, group_order=order)
    await world.backend.declare([rule], now=world.now)


async def _stopped(world: World, **fields: Any) -> tuple[str, str, str]:
    """A group stopped by a dead job, with two that wait behind it; the second has a higher priority."""
    await _declare(world)
    head, behind = await world.enqueue(group="g", **fields), await world.enqueue(group="g")
    urgent = await world.enqueue(group="g", priority=9)
    await world.end(await world.claim_one(head, lease=FOREVER), Ending.BURIED)
    await _is_stopped(world, head, behind, urgent)
    return head, behind, urgent


async def _is_stopped(world: World, dead: str, *waiting: str) -> None:
    job = await world.get(dead)
    same((job.state, job.held), (State.DEAD, True), "the dead job")
    group = await world.backend.group("default", "g")
    same((group.stopped_by, group.head), (dead, dead), "who stops the group")
    same(await world.states(waiting), [State.WAITING] * len(waiting), "those behind it")
    await world.promote_all()
    same(await world.backend.refill(now=world.now), 0, "refill finds no room")
    await world.claim_none("w2", lease=FOREVER)


async def _goes_on(world: World, *order: str) -> None:
    same((await world.backend.group("default", "g")).stopped_by, None, "who stops the group")
    for job_id in order:
        await world.end(await world.claim_one(job_id))


@case
async def a_group_stops_at_a_job_that_is_buried(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    same([group.name for group in await world.backend.groups("default")], ["g"], "groups")
    same((await world.backend.group("default", "g")).counts, {"waiting": 2}, "counts")
    later = await world.enqueue(group="g")
    await _is_stopped(world, head, behind, urgent, later)
    await world.end(await world.claim_one(await world.enqueue(group="other")))
    await world.end(await world.claim_one(await world.enqueue()))


@case
async def a_group_stops_at_a_job_that_stalls_once_too_often(world: World) -> None:
    await _declare(world)
    head, behind = await world.enqueue(group="g", max_stalls=0), await world.enqueue(group="g")
    lease = await world.claim_one(head)
    await world.begin(lease)
    await world.expire_worker()
    await world.backend.recover(now=world.now)
    await _is_stopped(world, head, behind)


@case
async def a_stopped_group_is_shown_although_nothing_waits_in_it(world: World) -> None:
    await _declare(world)
    head = await world.enqueue(group="g")
    await world.end(await world.claim_one(head), Ending.BURIED)
    [group] = await world.backend.groups("default")
    same((group.name, group.stopped_by, group.counts), ("g", head, {}), "the group")
    behind = await world.enqueue(group="g")
    await _is_stopped(world, head, behind)


@case_for_each(("go_on", "relaxed", "cancelled", "bury", "expired"))
async def other_endings_stop_nothing(world: World, ending: str) -> None:
    await _declare(world, "go_on" if ending == "go_on" else "stop", "relaxed" if ending == "relaxed" else "strict")
    head = await world.enqueue(group="g", expires=5.0 if ending == "expired" else None)
    behind = await world.enqueue(group="g")
    if ending == "bury":
        await world.backend.bury(head, "not wanted", now=world.now)
    elif ending == "expired":
        world.advance(10.0)
        await world.promote_all()
    else:
        how = Ending.CANCELLED if ending == "cancelled" else Ending.BURIED
        await world.end(await world.claim_one(head), how)
    same((await world.get(head)).held, False, "held")
    await _goes_on(world, behind)


@case
async def a_group_of_a_serial_task_stops_in_a_relaxed_queue_too(world: World) -> None:
    await _declare(world, order="relaxed")
    head, behind = await world.enqueue_many(2, group=SERIAL_PREFIX + "g")
    await world.end(await world.claim_one(head), Ending.BURIED)
    same((await world.get(head)).held, True, "held")
    await world.claim_none()
    await world.backend.discard(head, now=world.now)
    await world.claim_one(behind)


@case_for_each(("revive", "retry", "edit", "automatic"))
async def a_job_that_comes_back_goes_first(world: World, how: str) -> None:
    head, behind, urgent = await _stopped(world, revival=Revival(after=20.0) if how == "automatic" else None)
    if how == "automatic":
        world.advance(21.0)
        await world.promote_all()
    elif how == "edit":
        await world.backend.edit(head, Edit(args=b"[2]", revive=True), now=world.now)
    else:
        await (world.backend.revive if how == "revive" else world.backend.retry)(head, now=world.now)
    await _goes_on(world, head, urgent, behind)


@case
async def a_job_that_dies_again_stops_its_group_again(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    await world.backend.revive(head, now=world.now)
    await world.end(await world.claim_one(head), Ending.RETRY, delay=5.0)
    world.advance(6.0)
    await world.end(await world.claim_one(head), Ending.BURIED)
    await _is_stopped(world, head, behind, urgent)


@case_for_each(("discard", "delete", "superseded", "pruned", "skip_dead"))
async def a_group_goes_on_without_its_dead_job(world: World, how: str) -> None:
    head, behind, urgent = await _stopped(world, key="k")
    if how == "discard":
        await world.backend.discard(head, now=world.now)
    elif how == "delete":
        await world.backend.delete(head, now=world.now)
    elif how == "superseded":  # a later job of the same key closes its letter
        heir = await world.enqueue(group="g", key="k")
        await world.backend.cancel(heir, now=world.now)
        same((await world.get(head)).reason, "superseded", "reason")
    elif how == "pruned":
        await world.backend.declare([], [TaskRule(name="work", retain_dead=1.0)], now=world.now)
        world.advance(700.0)
        same(await world.backend.prune(now=world.now), 1, "pruned")
    else:
        same(await world.backend.resume(GROUP, now=world.now, skip_dead=True), True, "resume")
        job = await world.get(head)
        same((job.state, job.held, job.reason), (State.DEAD, False, "failed"), "the dead job")
        await world.letter(head)
    await _goes_on(world, urgent, behind)


@case
async def a_job_that_was_skipped_and_comes_back_has_its_old_place_by_priority_and_seq(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    await world.backend.resume(GROUP, now=world.now, skip_dead=True)
    await world.backend.revive(head, now=world.now)
    await _goes_on(world, urgent, head, behind)


@case
async def a_pause_and_a_stop_end_by_themselves(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    async with world.unchanged("resume of a group that is not paused"):
        same(await world.backend.resume(GROUP, now=world.now), False, "resume")
    await world.backend.pause(GROUP, now=world.now)
    same(await world.backend.resume(GROUP, now=world.now), True, "resume")
    await _is_stopped(world, head, behind, urgent)
    await world.backend.pause(GROUP, now=world.now)
    await world.backend.discard(head, now=world.now)
    await world.claim_none()
    same(await world.backend.resume(GROUP, now=world.now, skip_dead=True), True, "resume")
    await _goes_on(world, urgent, behind)
    async with world.unchanged("a second resume"):
        same(await world.backend.resume(GROUP, now=world.now, skip_dead=True), False, "resume again")


@case
async def a_changed_rule_frees_no_group_that_has_stopped(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    await _declare(world, "go_on")
    await _is_stopped(world, head, behind, urgent)
    await world.backend.resume(GROUP, now=world.now, skip_dead=True)
    await world.end(await world.claim_one(urgent), Ending.BURIED)
    await _goes_on(world, behind)


@case
async def a_stopped_group_goes_into_another_store_as_it_is(world: World) -> None:
    head, behind, urgent = await _stopped(world)
    target = await moved(world)
    await _is_stopped(target, head, behind, urgent)
    await target.backend.revive(head, now=target.now)
    await target.end(await target.claim_one(head), Ending.BURIED)
    await _is_stopped(target, head, behind, urgent)
    await target.backend.discard(head, now=target.now)
    await _goes_on(target, urgent, behind)


@case
async def what_was_leased_together_goes_back_and_stays_behind_the_dead_job(world: World) -> None:
    await _declare(world)
    ids = await world.enqueue_many(4, group="g")
    await world.register("w1", lease=FOREVER)
    request = world.request("w1", 1, chain_by_queue={"default": 3}, chained_max=2)
    leases = (await world.backend.claim(request, now=world.now)).leases
    same([lease.id for lease in leases], ids[:3], "leased together")
    dead, *rest = leases
    await world.end(dead, Ending.BURIED)
    for lease in rest:
        await world.give_back(lease)
    await _is_stopped(world, ids[0], *ids[1:])
    await world.backend.revive(ids[0], now=world.now)
    await _goes_on(world, *ids)
