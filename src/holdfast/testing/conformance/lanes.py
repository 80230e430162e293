"""Conformance of dedicated lanes of tasks: which jobs are in one, their share of a claim, and when jobs change lanes.

Called by run_case. The two lanes every queue has are in lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from ...lifecycle import Ending, State
from ...rates import NO_RATE, UNLIMITED, Rate
from ...records import Pause, TaskRule
from .compare import same
from .flow import lanes, limit, places, rule, task_rule, turns
from .registry import case, case_for_each
from .world import FOREVER, World

UNGROUPED, GROUPED, PARKED, APART = 0, 1, 2, 3
RATE = Rate(100, 1.0)
Act = Callable[[World], Awaitable[object]]

# ---------------------------------------------------------------------- who is apart

MAKE_APART: dict[str, Act] = {
    "a declared limit": lambda w: task_rule(w, limit=5),
    "a declared rate": lambda w: task_rule(w, rate=RATE),
    "its rule": lambda w: task_rule(w, apart=True),
    "an operator's limit": lambda w: limit(w, task="work", limit=5),
    "an operator's rate": lambda w: limit(w, task="work", rate=RATE),
}
LET_BACK: dict[str, Act] = {
    "a declared limit": lambda w: task_rule(w),
    "a declared rate": lambda w: task_rule(w),
    "its rule": lambda w: task_rule(w),
    "an operator's limit": lambda w: limit(w, task="work", limit=None),
    "an operator's rate": lambda w: limit(w, task="work", rate=None),
}


@case_for_each(MAKE_APART)
async def a_task_is_set_apart_and_let_back_by(world: World, what: str) -> None:
    ids = [await world.enqueue(), await world.enqueue(group="g"), await world.enqueue(queue="other")]
    fine = await world.enqueue(task="fine")
    before = await turns(world, ids)
    await MAKE_APART[what](world)
    ids.append(await world.enqueue())
    same(await lanes(world, [*ids, fine]), [APART] * 4 + [UNGROUPED], "lanes")
    await LET_BACK[what](world)
    same(await lanes(world, ids), [UNGROUPED, GROUPED, UNGROUPED, UNGROUPED], "lanes once let back")
    same(await turns(world, ids[:3]), before, "turns")
    same(len(await world.claim(9, queues=("default", "other"))), 5, "all are claimable")


@case
async def a_task_whose_limit_and_rate_are_lifted_is_not_apart(world: World) -> None:
    ids = await world.enqueue_many(2)
    await task_rule(world, limit=1, rate=RATE)
    await limit(world, task="work", limit=UNLIMITED)
    same(await lanes(world, ids), [APART] * 2, "the rate is still in force")
    await limit(world, task="work", rate=NO_RATE)
    same(await lanes(world, ids), [UNGROUPED] * 2, "nothing is in force")
    await limit(world, task="work", limit=None, rate=None)
    same(await lanes(world, ids), [APART] * 2, "what was declared is in force again")


@case
async def a_task_apart_by_its_rule_stays_apart_without_limit_and_rate(world: World) -> None:
    ids = await world.enqueue_many(2)
    await task_rule(world, limit=1, apart=True)
    await limit(world, task="work", limit=UNLIMITED)
    same(await lanes(world, ids), [APART] * 2, "lanes")
    same(await places(world), 2, "and nothing holds them back")


@case
async def a_queues_limit_and_rate_set_no_task_apart(world: World) -> None:
    ids = await world.enqueue_many(2)
    await rule(world, limit=1, rate=RATE)
    same(await lanes(world, ids), [UNGROUPED] * 2, "lanes")


@case
async def parked_goes_before_apart(world: World) -> None:
    ids = [await world.enqueue(), await world.enqueue(group="g")]
    before = await turns(world, ids)
    await task_rule(world, limit=1)
    pause = Pause(task="work")
    await world.backend.pause(pause, now=world.now)
    same(await lanes(world, ids), [PARKED] * 2, "lanes while paused")
    await limit(world, task="work", limit=5)
    same(await lanes(world, ids), [PARKED] * 2, "a new limit moves no parked job")
    await world.claim_none()
    await world.backend.resume(pause, now=world.now)
    same(await lanes(world, ids), [APART] * 2, "lanes once resumed")
    same(await turns(world, ids), before, "turns")


@case
async def a_rule_that_comes_or_goes_during_a_pause_holds_afterwards(world: World) -> None:
    ids = [await world.enqueue(task="a"), await world.enqueue(task="b", group="g")]
    await task_rule(world, "b", limit=1)
    for task in "ab":
        await world.backend.pause(Pause(task=task), now=world.now)
    await task_rule(world, "a", limit=1)
    await task_rule(world, "b")
    for task in "ab":
        await world.backend.resume(Pause(task=task), now=world.now)
    same(await lanes(world, ids), [APART, GROUPED], "lanes")


@case_for_each(["enqueue", "promote", "run_now", "retry", "release", "recover", "revive", "refill"])
async def a_job_of_a_task_apart_becomes_ready_in_its_lane(world: World, way: str) -> None:
    await task_rule(world, apart=True)
    state = {"enqueue": State.READY, "revive": State.DEAD, "promote": State.SCHEDULED, "run_now": State.SCHEDULED}
    start = await world.put(state.get(way, State.WAITING if way == "refill" else State.RUNNING), max_stalls=5)
    if way == "promote":
        world.advance(1001.0)
        await world.promote_all()
    elif way == "retry" and start.lease is not None:
        await world.end(start.lease, Ending.RETRY, delay=1.0)
        world.advance(2.0)
        await world.promote_all()
    elif way == "release":
        await world.give_back(start.held)
    elif way == "recover":
        await world.backend.recover(dead=["holder"], now=world.now)
    elif way in ("revive", "run_now"):
        await getattr(world.backend, way)(start.id, now=world.now)
    elif way == "refill":
        await world.backend.retire("holder-of-the-first", now=world.now)
        first = await world.claim_one(worker="w9", lease=FOREVER)
        await world.end(first)
    same(await lanes(world, [start.id]), [APART], "lane")
    await world.claim_one(start.id)


@case
async def a_rule_that_says_nothing_is_gone(world: World) -> None:
    await task_rule(world, limit=3, rate=RATE, apart=True, retain_count=5)
    same([task.rule.name for task in await world.backend.tasks()], ["work"], "tasks")
    await task_rule(world)
    same(await world.backend.tasks(), [], "tasks")
    same((await world.tables())["tasks"], [], "rules")


@case
async def the_latest_word_of_the_code_wins(world: World) -> None:
    await task_rule(world, limit=3, apart=True)
    await task_rule(world, rate=RATE)
    [task] = await world.backend.tasks()
    same(task.rule, TaskRule(name="work", rate=RATE), "rule")


# ---------------------------------------------------------------------- shares


def shares(call: int, most: int, ready: dict[str, int], room: dict[str, int]) -> dict[str, int]:
    """How many each lane gets, word for word from the contract: "0", "1" and the tasks apart by name."""
    names = ["0", "1", *sorted(name for name in ready if name not in "01" and ready[name] and room.get(name, 1) > 0)]
    first = call % len(names)
    names = names[first:] + names[:first]
    left, got = most, dict.fromkeys(names, 0)
    for i, name in enumerate(names):
        took = min(-(-left // (len(names) - i)), ready[name], room.get(name, most))
        got[name], left = took, left - took
    for name in names:
        more = min(left, ready[name] - got[name], room.get(name, most) - got[name])
        got[name], left = got[name] + more, left - more
    return {name: number for name, number in got.items() if number}


FULL = {"0": 12, "1": 12, "a": 12}
FOUR = {"0": 12, "1": 12, "a": 12, "b": 12}
# call, slots, ready in each lane, limits of the tasks, what each lane gets
SHARES: list[tuple[int, int, dict[str, int], dict[str, int], dict[str, int]]] = [
    (3, 9, FULL, {}, {"0": 3, "1": 3, "a": 3}),
    (1, 10, FULL, {}, {"0": 3, "1": 4, "a": 3}),
    (2, 10, FULL, {}, {"0": 3, "1": 3, "a": 4}),
    (3, 10, FULL, {}, {"0": 4, "1": 3, "a": 3}),
    (1, 1, FULL, {}, {"1": 1}),
    (2, 1, FULL, {}, {"a": 1}),
    (3, 1, FULL, {}, {"0": 1}),
    (1, 10, FULL, {"a": 1}, {"0": 5, "1": 4, "a": 1}),
    (2, 10, FULL, {"a": 1}, {"0": 5, "1": 4, "a": 1}),
    (3, 10, FULL, {"a": 1}, {"0": 6, "1": 3, "a": 1}),
    (3, 9, {"0": 1, "1": 1, "a": 12}, {}, {"0": 1, "1": 1, "a": 7}),
    (2, 9, {"0": 1, "1": 1, "a": 12}, {}, {"0": 1, "1": 1, "a": 7}),
    (2, 9, {"0": 12, "1": 0, "a": 12}, {"a": 2}, {"0": 7, "a": 2}),
    (1, 9, {"0": 0, "1": 0, "a": 12}, {}, {"a": 9}),
    (4, 8, FOUR, {}, {"0": 2, "1": 2, "a": 2, "b": 2}),
    (1, 9, FOUR, {}, {"0": 2, "1": 3, "a": 2, "b": 2}),
    (3, 10, FOUR, {"b": 1}, {"0": 3, "1": 3, "a": 3, "b": 1}),
    (2, 3, FOUR, {}, {"0": 1, "a": 1, "b": 1}),
    (3, 30, FOUR, {"a": 2, "b": 3}, {"0": 12, "1": 12, "a": 2, "b": 3}),
]


@case_for_each(SHARES, name=lambda p: f"call {p[0]}, {p[1]} slots, {p[2]}, limits {p[3]}")
async def each_lane_gets_its_share(
    world: World, param: tuple[int, int, dict[str, int], dict[str, int], dict[str, int]]
) -> None:
    call, most, ready, limits, expected = param
    same(shares(call, most, ready, limits), expected, "the contract's arithmetic")
    ids: dict[str, list[str]] = {}
    for name, number in ready.items():
        if name == "1":
            ids[name] = [await world.enqueue(group=f"g{n}") for n in range(number)]
        else:
            ids[name] = await world.enqueue_many(number, task="work" if name == "0" else name) if number else []
    tasks = [TaskRule(name=name, limit=limits.get(name), apart=True) for name in ready if name not in "01"]
    await world.backend.declare([], tasks, now=world.now)
    got = await world.claim_ids(most, call=call, lease=FOREVER)
    by_lane = {name: [job_id for job_id in got if job_id in members] for name, members in ids.items()}
    same({name: len(found) for name, found in by_lane.items() if found}, expected, "leases of each lane")
    for name, found in by_lane.items():
        same(found, ids[name][: len(found)], f"order in lane {name}")


@case
async def a_task_without_room_takes_no_part_in_the_shares(world: World) -> None:
    await task_rule(world, "full", limit=1)
    running = await world.claim_one(await world.enqueue(task="full"), lease=FOREVER)
    await world.enqueue_many(9, task="full")
    await world.enqueue_many(9)
    for n in range(9):
        await world.enqueue(group=f"g{n}")
    leases = await world.claim(4, call=4)
    same(Counter(lease.group is not None for lease in leases), {False: 2, True: 2}, "two lanes share")
    await world.end(running)
    leases = await world.claim(5, call=6)
    same(Counter(lease.task for lease in leases)["full"], 1, "its lane is open again")


@case
async def single_slot_claims_serve_all_lanes_in_turn(world: World) -> None:
    for task in ("a", "b"):
        await task_rule(world, task, apart=True)
        await world.enqueue_many(3, task=task)
    await world.enqueue_many(3)
    for n in range(3):
        await world.enqueue(group=f"g{n}")
    seen = []
    for _ in range(12):
        [lease] = await world.claim(1, lease=FOREVER)
        seen.append("1" if lease.group is not None else lease.task)
    same(seen[:8], ["1", "a", "b", "work"] * 2, "one lane after the other")
    same(Counter(seen), {"1": 3, "a": 3, "b": 3, "work": 3}, "all are served")


@case
async def a_lane_apart_is_ordered_by_priority_and_turn_whatever_the_groups(world: World) -> None:
    await task_rule(world, apart=True)
    first = await world.enqueue()
    second = await world.enqueue(group="g")
    third = await world.enqueue()
    urgent = await world.enqueue(group="h", priority=5)
    same(await world.claim_ids(9), [urgent, first, second, third], "order")


@case
async def each_queue_has_its_own_lane_for_a_task_apart(world: World) -> None:
    await task_rule(world, limit=3)
    a, b = await world.enqueue_many(2, queue="a"), await world.enqueue_many(4, queue="b")
    same(await world.claim_ids(9, queues=("a", "b")), [*a, b[0]], "the room goes to the first queue first")
    await rule(world, "b", limit=1)
    await world.claim_none(queues=("b", "a"))


@case
async def a_crowd_of_capped_tasks_hides_nobody(world: World) -> None:
    tasks = [TaskRule(name=f"t{n:02d}", limit=1) for n in range(40)]
    await world.backend.declare([], tasks, now=world.now)
    for task in tasks:
        await world.enqueue_many(3, task=task.name, priority=50)
    same(len(await world.claim(60, "w0", lease=FOREVER)), 40, "one of each")
    fine = await world.enqueue()
    same(await world.claim_ids(1), [fine], "another task's job")


# ----------------------------------------------------------------------------------------------------------------------
# The two lanes of claim: grouped and ungrouped jobs share the slots, neither starves.


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
