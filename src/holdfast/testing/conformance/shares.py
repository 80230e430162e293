"""Conformance of what a worker asks for: at most so many of a task, at most so many of any one group.

Called by run_case. Also how many jobs of a group are ready at most.
"""

from __future__ import annotations

from collections import Counter

from ...lifecycle import State
from ...rates import UNLIMITED
from ...records import GROUP_LOOKS_MAX, READY_PER_GROUP_MAX, TaskRule
from .compare import same
from .flow import end_all, in_state, task_rule
from .registry import case, case_for_each
from .world import FOREVER, World

# ---------------------------------------------------------------------- most_by_task


@case_for_each([0, 1, 3, 20])
async def a_worker_gets_no_more_of_a_task_than_it_asks_for(world: World, most: int) -> None:
    await task_rule(world, "a", apart=True)
    await world.enqueue_many(5, task="a")
    await world.enqueue_many(5, task="b")
    leases = await world.claim(20, most_by_task={"a": most})
    same(Counter(x.task for x in leases), Counter({"a": min(most, 5), "b": 5}), "leases")


@case
async def what_a_worker_asks_of_a_task_counts_over_all_queues(world: World) -> None:
    await task_rule(world, apart=True)
    for queue in ("a", "b", "c"):
        await world.enqueue_many(2, queue=queue)
    leases = await world.claim(20, queues=("a", "b", "c"), most_by_task={"work": 3})
    same(Counter(x.queue for x in leases), {"a": 2, "b": 1}, "leases")


@case
async def what_a_worker_asks_and_a_tasks_limit_bind_together(world: World) -> None:
    await task_rule(world, limit=3)
    await world.enqueue_many(9)
    same(len(await world.claim(9, "w1", most_by_task={"work": 2})), 2, "what it asks for")
    same(len(await world.claim(9, "w2", most_by_task={"work": 5})), 1, "what the limit has left")


@case
async def what_a_worker_asks_is_heeded_for_tasks_apart_alone(world: World) -> None:
    await world.enqueue_many(4)
    same(len(await world.claim(9, most_by_task={"work": 1})), 4, "a task that is not apart")


@case
async def a_task_of_which_a_worker_wants_none_takes_no_share(world: World) -> None:
    await world.backend.declare([], [TaskRule(name=name, apart=True) for name in ("a", "b")], now=world.now)
    await world.enqueue_many(9, task="a")
    b = await world.enqueue_many(9, task="b")
    same(await world.claim_ids(5, most_by_task={"a": 0}), b[:5], "all slots go to the other")


# ---------------------------------------------------------------------- most_by_group


@case_for_each([1, 2, 4])
async def a_worker_holds_no_more_of_a_group_than_it_says(world: World, most: int) -> None:
    await world.relaxed(UNLIMITED)
    for name in "gh":
        await world.enqueue_many(6, group=name)
    alone = await world.enqueue_many(3)
    leases = await world.claim(30, "w1", most_by_group=most)
    count = Counter(x.group for x in leases)
    same((count["g"], count["h"], count[None]), (most, most, len(alone)), "of g, of h, without a group")
    same(await world.claim_ids(30, "w1", most_by_group=most), [], "it has its share")
    count = Counter(x.group for x in await world.claim(30, "w2", most_by_group=most))
    same((count["g"], count["h"]), (min(most, 6 - most), min(most, 6 - most)), "another worker's share")


@case
async def a_worker_that_ends_a_job_of_a_group_may_have_the_next(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(6, group="g")
    leases = await world.claim(9, most_by_group=2)
    same([x.id for x in leases], ids[:2], "its share")
    await world.end(leases[0])
    same(await world.claim_ids(9, most_by_group=2), ids[2:3], "the next")


@case
async def the_group_of_one_queue_is_not_its_namesake_in_another(world: World) -> None:
    for queue in ("a", "b"):
        await world.relaxed(UNLIMITED, queue)
        await world.enqueue_many(3, queue=queue, group="g")
    leases = await world.claim(9, queues=("a", "b"), most_by_group=2)
    same(Counter(x.queue for x in leases), {"a": 2, "b": 2}, "leases")


@case
async def jobs_passed_over_keep_their_place(world: World) -> None:
    await world.relaxed(UNLIMITED)
    g, h = await world.enqueue_many(4, group="g"), await world.enqueue_many(4, group="h")
    same(await world.claim_ids(9, "w1", most_by_group=1), [g[0], h[0]], "w1")
    rows = (await world.tables())["jobs"]
    await world.claim_none("w1", most_by_group=1)
    same((await world.tables())["jobs"], rows, "jobs")
    same(await world.claim_ids(9, "w2"), [g[1], h[1], g[2], h[2], g[3], h[3]], "w2, in order")


async def _held_groups(world: World, number: int) -> str:
    """w1 holds one job of each of so many groups, each of which has another ready; answers a job behind all these."""
    await world.relaxed(2)
    for n in range(number):
        await world.enqueue(group=f"g{n:03d}")
    same(len(await world.claim(number, "w1", lease=FOREVER)), number, "held")
    for n in range(number):
        await world.enqueue(group=f"g{n:03d}")
    return await world.enqueue(group="other")


@case
async def a_claim_looks_past_groups_that_have_their_share(world: World) -> None:
    other = await _held_groups(world, GROUP_LOOKS_MAX - 4)
    same(await world.claim_ids(5, "w1", most_by_group=1), [other], "the group behind them")


@case
async def a_claim_does_not_look_past_more_than_a_bounded_number(world: World) -> None:
    other = await _held_groups(world, GROUP_LOOKS_MAX + 6)
    alone = await world.enqueue()
    same(await world.claim_ids(5, "w1", most_by_group=1), [alone], "the other lane is served")
    got = await world.claim_ids(200, "w2")
    assert other in got, "a worker that holds none of them gets the job behind them"


# ---------------------------------------------------------------------- ready at once


@case
async def no_group_has_more_than_a_bounded_number_ready(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(READY_PER_GROUP_MAX + 20, group="g")
    same(await in_state(world, ids, State.READY), ids[:READY_PER_GROUP_MAX], "ready")
    leases = await world.claim(30, lease=FOREVER)
    same([lease.id for lease in leases], ids[:30], "claimed")
    same(len(await in_state(world, ids, State.READY)), READY_PER_GROUP_MAX - 10, "ready: all that are left")
    await end_all(world, leases)
    same(await world.claim_ids(500), ids[30:], "and all of them start")


@case
async def a_high_limit_is_no_reason_to_wait(world: World) -> None:
    """What runs does not count against what may be ready: all jobs of an unlimited group run at once."""
    await world.relaxed(UNLIMITED)
    number = 2 * READY_PER_GROUP_MAX + 50
    await world.enqueue_many(number, group="g")
    got = [job_id for _ in range(4) for job_id in await world.claim_ids(READY_PER_GROUP_MAX, lease=FOREVER)]
    same(len(set(got)), number, "running")
