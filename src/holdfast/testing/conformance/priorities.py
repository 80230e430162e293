"""Conformance of a worker that takes only some priorities (R107): what it leases, what it leaves, and to whom.

Called by run_case.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
from ...rates import UNLIMITED
from ...records import GROUP_LOOKS_MAX, LIFO, QueueRule, TaskRule
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World


@case_for_each([(0, 5), (5, 5), (-5, 4), (6, 100), (-100, 100)])
async def a_claim_of_some_priorities_leases_those_and_no_others(world: World, wanted: tuple[int, int]) -> None:
    ids = {priority: await world.enqueue(priority=priority) for priority in (-6, -5, 0, 4, 5, 6)}
    inside = [ids[priority] for priority in sorted(ids, reverse=True) if wanted[0] <= priority <= wanted[1]]
    left = [ids[priority] for priority in sorted(ids, reverse=True) if ids[priority] not in inside]
    same(sorted(await world.claim_ids(9, "w1", priorities=wanted)), sorted(inside), "of these priorities")
    rows = [row for row in (await world.tables())["jobs"] if row["id"] in left]
    await world.claim_none("w1", priorities=wanted)
    same([row for row in (await world.tables())["jobs"] if row["id"] in left], rows, "the others stay as they are")
    same(sorted(await world.claim_ids(9, "w2")), sorted(left), "a worker that takes all")


@case_for_each([None, 2.5, LIFO])
async def it_takes_them_in_the_order_of_the_queue(world: World, aging: float | None) -> None:
    await world.backend.declare([QueueRule(name="default", aging=aging)], now=world.now)
    ids = [await world.enqueue(priority=priority) for priority in (1, 9, 2, 1, 3, 2)]
    everything = [lease.id for lease in await world.claim(9, "w1")]
    await world.backend.retire("w1", now=world.now)
    same(sorted(everything), sorted(ids), "all of them")
    inside = [one for one in everything if one not in (ids[1], ids[4])]
    same(await world.claim_ids(9, "w2", priorities=(1, 2)), inside, "the same order")


@case
async def a_backlog_of_other_priorities_is_not_in_the_way(world: World) -> None:
    for priority in (0, 9):
        await world.enqueue_many(3 * GROUP_LOOKS_MAX, priority=priority)
        for n in range(GROUP_LOOKS_MAX + 6):
            await world.enqueue(group=f"{priority}-{n}", priority=priority)
    ids = [await world.enqueue(priority=5), await world.enqueue(priority=5, group="g")]
    same(sorted(await world.claim_ids(9, "w1", priorities=(4, 6))), sorted(ids), "those between them")


@case
async def the_head_of_a_strict_group_blocks_it_for_this_worker_alone(world: World) -> None:
    high = await world.enqueue(group="g", priority=9)
    low = await world.enqueue(group="g", priority=1)
    other = await world.enqueue(group="h", priority=1)
    same(await world.claim_ids(9, "w1", priorities=(0, 5)), [other], "the other group")
    lease = await world.claim_one(high, "w2")
    await world.claim_none("w1", priorities=(0, 5))
    await world.end(lease)
    same(await world.claim_ids(9, "w1", priorities=(0, 5)), [low], "once the head has ended")


@case
async def the_next_of_a_group_that_it_does_not_take_is_left_ready(world: World) -> None:
    """Settle and claim in one call, where the group's next job is usually leased without becoming ready first."""
    first = await world.enqueue(group="g", priority=5)
    second = await world.enqueue(group="g", priority=1)
    [lease] = await world.claim(9, "w1", priorities=(5, 9))
    same(lease.id, first, "the head")
    got = await world.exchange(
        [world.settlement(lease, Ending.SUCCEEDED)], [], world.request("w1", 9, priorities=(5, 9))
    )
    same([one.id for one in got.leases], [], "leases")
    same((await world.get(second)).state, State.READY, "the next one")
    await world.claim_one(second, "w2")


@case
async def it_passes_jobs_of_a_relaxed_group(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = {priority: await world.enqueue(group="g", priority=priority) for priority in (3, 2, 1)}
    same(await world.claim_ids(9, "w1", priorities=(1, 2), most_by_group=1), [ids[2]], "one of its priorities")
    same(await world.claim_ids(9, "w1", priorities=(1, 2), most_by_group=1), [], "it has its share")
    same(await world.claim_ids(9, "w1", priorities=(1, 3)), [ids[3], ids[1]], "the rest")


@case
async def tasks_with_a_lane_of_their_own_obey_it(world: World) -> None:
    await world.backend.declare([], [TaskRule(name="pdf", limit=2)], now=world.now)
    await world.enqueue_many(GROUP_LOOKS_MAX + 6, task="pdf", priority=9)
    ids = [await world.enqueue(task="pdf", priority=5) for _ in range(3)]
    same(await world.claim_ids(9, "w1", lease=FOREVER, priorities=(4, 6)), ids[:2], "up to the limit")
    await world.claim_none("w2")


@case
async def where_jobs_age_it_looks_past_a_bounded_number(world: World) -> None:
    await world.backend.declare([QueueRule(name="default", aging=1.0)], now=world.now)
    await world.enqueue_many(GROUP_LOOKS_MAX - 4, priority=9)
    behind = await world.enqueue(priority=5)
    same(await world.claim_ids(3, "w1", lease=FOREVER, priorities=(0, 5)), [behind], "behind a few")
    await world.enqueue_many(10, priority=9)
    further = await world.enqueue(priority=5)
    await world.claim_none("w1", priorities=(0, 5))
    assert further in await world.claim_ids(200, "w2"), "a worker that takes all reaches it"


@case
async def a_repeated_call_of_some_priorities_returns_the_same_leases(world: World) -> None:
    await world.enqueue_many(3, priority=9)
    ids = await world.enqueue_many(2, priority=1)
    await world.register("w1")
    request = world.request("w1", 9, priorities=(1, 1))
    first = await world.exchange([], [], request)
    same([lease.id for lease in first.leases], ids, "leases")
    same(await world.exchange([], [], request), first, "the repeat")
