"""Conformance of the two lanes of claim: grouped and ungrouped jobs share the slots, neither starves.

Called by run_case. Looks only at which jobs a claim leases.
"""

from __future__ import annotations

from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World


async def _grouped(world: World, number: int) -> list[str]:
    return [await world.enqueue(group=f"g{n}") for n in range(number)]


async def _claimed(world: World, most: int, call: int, alone: list[str], grouped: list[str]) -> tuple[int, int]:
    await world.register("w1", lease=FOREVER)
    got = await world.claim_ids(most, call=call)
    same([i for i in got if i in alone], alone[: len([i for i in got if i in alone])], "order of the ungrouped lane")
    same([i for i in got if i in grouped], grouped[: len([i for i in got if i in grouped])], "order of the grouped")
    return len([i for i in got if i in alone]), len([i for i in got if i in grouped])


@case_for_each([(1, 4), (2, 4), (1, 5), (2, 5), (1, 1), (2, 1)], name=lambda p: f"call {p[0]}, {p[1]} slots")
async def the_lane_of_the_calls_parity_gets_the_larger_half(world: World, param: tuple[int, int]) -> None:
    call, most = param
    alone, grouped = await world.enqueue_many(8), await _grouped(world, 8)
    larger, smaller = most - most // 2, most // 2
    expected = (larger, smaller) if call % 2 == 0 else (smaller, larger)
    same(await _claimed(world, most, call, alone, grouped), expected, "ungrouped and grouped leases")


@case_for_each([(1, 6, 1), (2, 6, 1), (1, 1, 6), (2, 1, 6), (1, 0, 6), (2, 6, 0)], name=lambda p: "-".join(map(str, p)))
async def what_one_lane_cannot_use_the_other_may(world: World, param: tuple[int, int, int]) -> None:
    call, n_alone, n_grouped = param
    alone = await world.enqueue_many(n_alone) if n_alone else []
    grouped = await _grouped(world, n_grouped)
    got = await _claimed(world, 6, call, alone, grouped)
    same(sum(got), 6, "every slot is used while there is work in either lane")
    assert got[0] >= min(n_alone, 1) and got[1] >= min(n_grouped, 1), f"both lanes are served, got {got}"


@case
async def lanes_are_shared_per_queue(world: World) -> None:
    alone_a = await world.enqueue_many(2, queue="a")
    grouped_b = [await world.enqueue(queue="b", group=f"g{n}") for n in range(4)]
    got = await world.claim_ids(6, queues=("a", "b"))
    same(sorted(got), sorted([*alone_a, *grouped_b]), "both queues are served to the full")


@case
async def groups_take_turns(world: World) -> None:
    """A group that was served goes behind the groups that were ready before it: nobody starves."""
    first = {name: await world.enqueue(group=name) for name in "abc"}
    second = {name: await world.enqueue(group=name) for name in "abc"}
    order = []
    for _ in range(6):
        lease = await world.claim_one(lease=FOREVER)
        order.append(lease.id)
        await world.end(lease)
    same(order, [*first.values(), *second.values()], "round of the groups")


@case
async def single_slot_claims_serve_both_lanes_in_turn(world: World) -> None:
    alone, grouped = await world.enqueue_many(4), await _grouped(world, 4)
    got = [(await world.claim_one(lease=FOREVER)).id for _ in range(8)]
    same([job_id in grouped for job_id in got], [True, False] * 4, "odd calls take grouped, even calls ungrouped")
    same(sorted(got), sorted([*alone, *grouped]), "all are served")
