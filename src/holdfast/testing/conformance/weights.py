"""Conformance of weights: a group of weight 3 has three turns a round where one of weight 1 has one (R106).

Called by run_case. Turns are counted, never timed: one job at a time is claimed and settled, the clock stands still.
"""

from __future__ import annotations

from collections import Counter

from ...errors import ConfigurationError
from ...records import GROUP_WEIGHT_MAX, GroupOrder, Override, QueueRule
from .compare import same
from .move import moved
from .registry import case, case_for_each
from .world import FOREVER, World

ORDERS: tuple[GroupOrder, ...] = ("strict", "relaxed")
LIGHT = ("a", "b", "c", "d", "e", "f")


async def _weigh(world: World, weight: int | None, group: str = "heavy") -> None:
    await world.backend.limit(Override(queue="default", group=group, weight=weight), now=world.now)


async def _turns(world: World, number: int) -> Counter[str]:
    """Which groups the next jobs belong to, claimed and settled one by one."""
    found: Counter[str] = Counter()
    for _ in range(number):
        lease = await world.claim_one(lease=FOREVER)
        found[str(lease.group)] += 1
        await world.end(lease)
    return found


async def _line(world: World, each: int = 40, **fields: int) -> None:
    for group in (*LIGHT, "heavy"):
        await world.enqueue_many(each, group=group, **fields)


def _about(found: int, wanted: int, what: str) -> None:
    assert abs(found - wanted) <= 2, f"{what}: expected about {wanted}, got {found}"


@case_for_each((1, 2, 3, 6))
async def a_group_has_as_many_turns_a_round_as_its_weight(world: World, weight: int) -> None:
    await _weigh(world, weight)
    await _line(world)
    await _turns(world, 2 * len(LIGHT))  # until the line has settled
    rounds = 6
    found = await _turns(world, rounds * (len(LIGHT) + weight))
    _about(found["heavy"], rounds * weight, "turns of the group with a weight")
    for group in LIGHT:
        _about(found[group], rounds, f"turns of group {group}")


@case
async def a_group_never_has_more_than_every_second_turn(world: World) -> None:
    await _weigh(world, GROUP_WEIGHT_MAX)
    await _line(world)
    await _turns(world, 2 * len(LIGHT))
    found = await _turns(world, 30)
    _about(found["heavy"], 15, "turns of the group with a weight")


@case
async def a_weight_holds_within_a_priority(world: World) -> None:
    await _weigh(world, 3)
    await _line(world, priority=5)
    low = await world.enqueue(group="low")
    await _turns(world, 2 * len(LIGHT))
    found = await _turns(world, 4 * (len(LIGHT) + 3))
    _about(found["heavy"], 12, "turns of the group with a weight")
    same(found["low"], 0, "a lower priority still waits")
    same((await world.get(low)).state, "ready", "its state")


@case
async def a_weight_in_a_queue_that_ages_its_jobs(world: World) -> None:
    await world.backend.declare([QueueRule(name="default", aging=10.0)], now=world.now)
    await _weigh(world, 3)
    await _line(world)
    await _turns(world, 2 * len(LIGHT))
    _about((await _turns(world, 4 * (len(LIGHT) + 3)))["heavy"], 12, "turns of the group with a weight")


@case_for_each(ORDERS)
async def a_weight_is_no_limit(world: World, order: GroupOrder) -> None:
    rule = QueueRule(name="default", group_order=order, group_limit=2 if order == "relaxed" else 1)
    await world.backend.declare([rule], now=world.now)
    await _weigh(world, 5)
    await world.enqueue_many(6, group="heavy")
    same(len(await world.claim(10)), 2 if order == "relaxed" else 1, "leased at once")


@case
async def an_idle_group_saves_nothing_up(world: World) -> None:
    await _weigh(world, 3)
    for group in LIGHT:
        await world.enqueue_many(40, group=group)
    await _turns(world, 10 * len(LIGHT))
    await world.enqueue_many(40, group="heavy")
    found = await _turns(world, 2 * (len(LIGHT) + 3))
    _about(found["heavy"], 6, "turns of the group with a weight")


@case
async def a_weight_is_shown_kept_and_reset(world: World) -> None:
    await _weigh(world, 3)
    same((await world.backend.group("default", "heavy")).weight, 3, "shown")
    await world.backend.limit(Override(queue="default", group="heavy", limit=1), now=world.now)
    same((await world.backend.group("default", "heavy")).weight, 3, "kept")
    same((await world.backend.group("default", "other")).weight, 1, "of another group")
    same([group.name for group in await world.backend.groups("default")], ["heavy"], "groups")
    await _weigh(world, None)
    group = await world.backend.group("default", "heavy")
    same((group.weight, group.override), (1, 1), "reset")
    await world.backend.limit(Override(queue="default", group="heavy", limit=None), now=world.now)
    same(await world.backend.groups("default"), [], "nothing is left")


@case
async def a_weight_moves_to_another_store(world: World) -> None:
    await _weigh(world, 7)
    there = await moved(world)
    same((await there.backend.group("default", "heavy")).weight, 7, "weight")


@case_for_each((0, -1, GROUP_WEIGHT_MAX + 1))
async def a_weight_out_of_range_is_refused(world: World, weight: int) -> None:
    async with world.refused(ConfigurationError, "a weight out of range"):
        await _weigh(world, weight)


@case
async def only_groups_have_weights(world: World) -> None:
    async with world.refused(ConfigurationError, "the weight of a queue"):
        await world.backend.limit(Override(queue="default", weight=2), now=world.now)
    async with world.refused(ConfigurationError, "the weight of a task"):
        await world.backend.limit(Override(task="work", weight=2), now=world.now)
