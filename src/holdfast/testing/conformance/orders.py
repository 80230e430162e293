"""Conformance of `order`: the jobs of a group by their caller's own values, and the window in which lower ones may
still arrive (R103 to R105).

Called by run_case. Every case counts which job comes next; time only moves where the case says so.
"""

from __future__ import annotations

from typing import Any

from ...errors import StateConflict
from ...lifecycle import Ending, State
from ...records import ORDER_MAX, Edit, GroupOrder, QueueRule
from .compare import same
from .move import moved
from .registry import case, case_for_each
from .world import FOREVER, World

WINDOW = 5.0


async def _declare(world: World, window: float | None = WINDOW, order: GroupOrder = "strict", limit: int = 1) -> None:
    rule = QueueRule(name="default", order_window=window, group_order=order, group_limit=limit)
    await world.backend.declare([rule], now=world.now)


async def _add(world: World, *orders: int | None, **fields: Any) -> list[str]:
    """New jobs of the group, each enqueued by a call of its own."""
    return [await world.enqueue(group="g", order=order, **fields) for order in orders]


async def _run(world: World, *ids: str) -> None:
    """These come next, in this order, and succeed."""
    for job_id in ids:
        await world.end(await world.claim_one(job_id, lease=FOREVER))


async def _all_run(world: World, *ids: str) -> None:
    await _run(world, *ids)
    await world.claim_none(lease=FOREVER)


# ---------------------------------------------------------------------- the order


@case
async def jobs_of_a_group_run_by_their_order(world: World) -> None:
    batch = [world.job(group="g", order=order) for order in (3, 1, 2)]
    await world.backend.enqueue(batch, now=world.now)
    five, four = await _add(world, 5, 4)
    await _all_run(world, batch[1].id, batch[2].id, batch[0].id, four, five)


@case
async def an_order_is_kept_and_shown(world: World) -> None:
    orders = [-ORDER_MAX, -1, 0, 7, 2_000_000_000_000_000, ORDER_MAX]
    ids = await _add(world, *orders, None)
    same([(await world.get(job_id)).order for job_id in ids], [*orders, None], "orders")
    same([(await world.row(job_id))["order"] for job_id in ids], [*orders, None], "orders in a dump")
    await _all_run(world, ids[0], ids[-1], *ids[1:-1])  # the first was ready when the last one came
    same((await world.get(ids[3])).order, 7, "of a finished job")


@case
async def equal_orders_run_as_they_were_enqueued(world: World) -> None:
    first, second, third = await _add(world, 1, 1, 1)
    await _all_run(world, first, second, third)


@case
async def a_job_without_an_order_goes_before_those_with_one(world: World) -> None:
    [running] = await _add(world, 9)
    lease = await world.claim_one(running, lease=FOREVER)
    low, plain, lower = await _add(world, 2, None, -5)
    await world.end(lease)
    await _all_run(world, plain, lower, low)


@case
async def a_priority_comes_before_an_order(world: World) -> None:
    [running] = await _add(world, 9)
    lease = await world.claim_one(running, lease=FOREVER)
    [low] = await _add(world, 1)
    [urgent] = await _add(world, 8, priority=5)
    await world.end(lease)
    await _all_run(world, urgent, low)


@case
async def a_job_that_comes_late_runs_next(world: World) -> None:
    five, six = await _add(world, 5, 6)
    lease = await world.claim_one(five, lease=FOREVER)
    [one] = await _add(world, 1)
    await world.is_in(five, State.RUNNING)
    await world.end(lease)
    await _all_run(world, one, six)


@case
async def a_job_that_has_not_started_makes_way(world: World) -> None:
    three, one, two = await _add(world, 3, 1, 2)
    same(await world.states([three, one, two]), [State.WAITING, State.READY, State.WAITING], "states")
    same((await world.backend.group("default", "g")).head, one, "the head")
    await _all_run(world, one, two, three)


@case
async def a_job_that_makes_way_keeps_its_turn(world: World) -> None:
    [three] = await _add(world, 3)
    turn = (await world.row(three))["turn"]
    [one] = await _add(world, 1)
    same((await world.row(three))["turn"], turn, "while it waits")
    await _run(world, one)
    same((await world.row(three))["turn"], turn, "when it is ready again")


@case
async def jobs_without_an_order_make_way_for_nobody(world: World) -> None:
    [plain] = await _add(world, None)
    [one] = await _add(world, 1)
    await world.is_in(plain, State.READY)
    await _all_run(world, plain, one)


_LEAVES = {
    "put off": lambda world, job_id: world.backend.edit(job_id, Edit(delay=600.0), now=world.now),
    "less urgent": lambda world, job_id: world.backend.edit(job_id, Edit(priority=-1), now=world.now),
    "in another group": lambda world, job_id: world.backend.edit(job_id, Edit(group="h"), now=world.now),
    "without a group": lambda world, job_id: world.backend.edit(job_id, Edit(group=None), now=world.now),
    "in another queue": lambda world, job_id: world.backend.edit(job_id, Edit(queue="other"), now=world.now),
    "cancelled": lambda world, job_id: world.backend.cancel(job_id, now=world.now),
    "buried": lambda world, job_id: world.backend.bury(job_id, "no", now=world.now),
    "deleted": lambda world, job_id: world.backend.delete(job_id, now=world.now),
    "replaced": lambda world, job_id: world.backend.enqueue(
        [world.job(key="k", group="g", delay=600.0, on_conflict="replace")], now=world.now
    ),
    "expired": lambda world, job_id: world.promote_all(),
}


@case_for_each(_LEAVES)
async def a_ready_job_makes_way_as_soon_as_the_job_between_leaves(world: World, way: str) -> None:
    """A job without an order, which displaces nobody, was the first that waited. In the step in which it leaves, its
    group is refilled, and a lower order comes first."""
    if world.backend.sharded and way in ("in another group", "without a group", "in another queue"):
        return  # R72: it refuses that
    [five] = await _add(world, 5)
    plain = await world.enqueue(group="g", key="k", expires=10.0 if way == "expired" else None)
    [three] = await _add(world, 3)
    await world.is_in(five, State.READY)
    world.advance(60.0)
    await _LEAVES[way](world, plain)
    await world.is_in(three, State.READY)
    await world.is_in(five, State.WAITING)


@case
async def an_order_means_nothing_without_a_group(world: World) -> None:
    await _declare(world)
    ids = [await world.enqueue(order=order) for order in (3, 1, 2)]
    same(await world.states(ids), [State.READY] * 3, "states")
    same(sorted(await world.claim_ids(5)), sorted(ids), "all of them")


@case
async def groups_do_not_share_their_orders(world: World) -> None:
    high = await world.enqueue(group="a", order=100)
    low = await world.enqueue(group="b", order=1)
    same(sorted(await world.claim_ids(5)), sorted([high, low]), "both groups")


@case
async def a_relaxed_group_takes_the_lowest_orders_that_wait(world: World) -> None:
    await _declare(world, None, "relaxed", 2)
    first = await _add(world, 9, 8)
    leases = await world.claim(2, lease=FOREVER)
    same(sorted(lease.id for lease in leases), sorted(first), "the first two")
    five, one, three = await _add(world, 5, 1, 3)
    for lease, job_id in zip(leases, (one, three), strict=True):
        await world.end(lease)
        await world.claim_one(job_id)
    await world.is_in(five, State.WAITING)


@case
async def a_job_that_is_due_later_takes_its_place_then(world: World) -> None:
    two = await world.enqueue(group="g", order=2, delay=10.0)
    three, four = await _add(world, 3, 4)
    await _run(world, three)
    world.advance(10.0)
    await world.promote_all()
    await _all_run(world, two, four)


# ---------------------------------------------------------------------- what keeps its place


@case_for_each((Ending.RETRY, Ending.SNOOZED))
async def a_job_that_comes_back_goes_first_whatever_its_order(world: World, ending: Ending) -> None:
    [five] = await _add(world, 5)
    await world.end(await world.claim_one(five, lease=FOREVER), ending)
    one, six = await _add(world, 1, 6)
    await world.claim_none()
    world.advance(11.0)
    await world.promote_all()
    await _all_run(world, five, one, six)


@case
async def a_released_job_makes_way_for_nobody(world: World) -> None:
    [five] = await _add(world, 5)
    await world.give_back(await world.claim_one(five, lease=FOREVER))
    [one] = await _add(world, 1)
    await world.is_in(five, State.READY)
    await _all_run(world, five, one)


@case_for_each(("revive", "retry"))
async def a_dead_job_comes_back_to_the_place_of_its_order(world: World, verb: str) -> None:
    [two] = await _add(world, 2)
    await world.end(await world.claim_one(two, lease=FOREVER), Ending.BURIED)
    nine, one, three = await _add(world, 9, 1, 3)
    lease = await world.claim_one(one)
    await (world.backend.revive if verb == "revive" else world.backend.retry)(two, now=world.now)
    same((await world.get(two)).order, 2, "its order")
    await world.end(lease)
    await _all_run(world, two, three, nine)


@case
async def an_edited_job_keeps_its_order(world: World) -> None:
    [running] = await _add(world, 0)
    lease = await world.claim_one(running, lease=FOREVER)
    three, two = await _add(world, 3, 2)
    await world.backend.edit(two, Edit(args=b'{"a":1}'), now=world.now)
    later = await world.enqueue(group="g", order=1, delay=100.0)
    await world.backend.edit(later, Edit(delay=0.0), now=world.now)
    await world.end(lease)
    await _all_run(world, later, two, three)


@case
async def an_edited_order_is_the_one_that_counts(world: World) -> None:
    """Of a ready job, of waiting ones, of one that had none, and of one that has none from then on."""
    one, two, three, plain = await _add(world, 1, 2, 3, None)
    for job_id, order in ((one, 9), (plain, 4), (three, None)):
        answer = await world.backend.edit(job_id, Edit(order=order), now=world.now)
        same((answer.order, (await world.get(job_id)).order), (order, order), "its order")
    same([mark.text for mark in await world.backend.marks(one) if mark.kind == "edit"], ["order"], "its timeline")
    await _all_run(world, two, three, plain, one)  # the second is ready, and makes way for orders only


@case
async def an_edited_order_keeps_the_key_and_the_terms(world: World) -> None:
    """A key, with and without more that few jobs set, and then no order again."""
    ids = [await world.enqueue(group="g", key="k"), await world.enqueue(group="g", key="l", key_window=50.0)]
    for order in (5, -7, None):
        for job_id in ids:
            await world.backend.edit(job_id, Edit(order=order), now=world.now)
            same((await world.get(job_id)).order, order, "its order")
    windows = (("k", None), ("l", 50.0))
    kept = [world.job(key=key, group="g", id=f"again-{key}", key_window=window) for key, window in windows]
    same([one.id for one in await world.backend.enqueue(kept, now=world.now)], ids, "the holders")


@case
async def the_same_order_moves_nothing(world: World) -> None:
    first, second = await _add(world, 1, 2)
    before = await world.row(first)
    await world.backend.edit(first, Edit(order=1), now=world.now)
    same((await world.row(first))["turn"], before["turn"], "its turn")
    await _all_run(world, first, second)


@case
async def a_job_in_the_window_can_get_another_order(world: World) -> None:
    await _declare(world)
    one, five = await _add(world, 1, 5)
    await world.backend.edit(one, Edit(order=9), now=world.now)
    await world.is_in(one, State.SCHEDULED)
    world.advance(WINDOW)
    await world.promote_all()
    await _all_run(world, five, one)


@case
async def the_order_of_a_job_that_has_started_cannot_be_edited(world: World) -> None:
    [one] = await _add(world, 1)
    await world.claim_one(one, lease=FOREVER)
    async with world.refused(StateConflict, "edit of a running job"):
        await world.backend.edit(one, Edit(order=2), now=world.now)


@case
async def a_job_whose_call_is_replaced_takes_the_new_order(world: World) -> None:
    [running] = await _add(world, 0)
    lease = await world.claim_one(running, lease=FOREVER)
    keyed = await world.enqueue(group="g", order=9, key="k")
    [five] = await _add(world, 5)
    again = world.job(group="g", order=1, key="k", on_conflict="replace")
    [answer] = await world.backend.enqueue([again], now=world.now)
    same((answer.id, answer.replaced), (keyed, True), "replaced")
    same((await world.get(keyed)).order, 1, "its order")
    await world.end(lease)
    await _all_run(world, keyed, five)


@case
async def orders_and_windows_move_to_another_store(world: World) -> None:
    await _declare(world)
    four, one, three = await _add(world, 4, 1, 3)
    there = await moved(world)
    [rule] = [queue for queue in await there.backend.queues() if queue.name == "default"]
    same(rule.order_window, WINDOW, "the window")
    same([(await there.get(job_id)).order for job_id in (four, one, three)], [4, 1, 3], "orders")
    there.advance(WINDOW)
    await there.promote_all()
    await _all_run(there, one, three, four)


@case
async def a_chain_follows_the_orders(world: World) -> None:
    five, one, three = await _add(world, 5, 1, 3)
    leases = await world.backend.claim(await _chained(world), now=world.now)
    same([lease.id for lease in leases.leases], [one, three, five], "the chain")
    for lease in leases.leases[:0:-1]:
        await world.give_back(lease)
    await world.give_back(leases.leases[0])
    await _all_run(world, one, three, five)


@case
async def a_chain_ends_before_a_lower_order(world: World) -> None:
    [five] = await _add(world, 5)
    lease = await world.claim_one(five, lease=FOREVER)
    one, six = await _add(world, 1, 6)
    await world.give_back(lease)
    answer = await world.backend.claim(await _chained(world), now=world.now)
    same([lease.id for lease in answer.leases], [five], "they would come back in another order")
    await world.end(answer.leases[0])
    await _all_run(world, one, six)


async def _chained(world: World) -> Any:
    await world.register("w2", lease=FOREVER)
    return world.request("w2", chain_by_queue={"default": 5}, chained_max=10)


# ---------------------------------------------------------------------- the window


@case
async def a_job_waits_for_lower_orders(world: World) -> None:
    await _declare(world)
    [three] = await _add(world, 3)
    job = await world.get(three)
    same((job.state, job.due_at), (State.SCHEDULED, world.now + WINDOW), "staged")
    world.advance(WINDOW - 1.0)
    [one] = await _add(world, 1)
    await world.claim_none()
    world.advance(1.0)
    await _all_run(world, one, three)


@case
async def jobs_go_with_a_higher_order_that_is_due(world: World) -> None:
    await _declare(world)
    [nine] = await _add(world, 9)
    world.advance(3.0)
    four, twelve, two = await _add(world, 4, 12, 2)
    world.advance(2.0)  # nine is due, the others are not yet
    await _run(world, two)
    [three] = await _add(world, 3)
    await _run(world, three, four, nine)
    await world.claim_none()
    world.advance(3.0)
    await _all_run(world, twelve)


@case
async def a_job_that_comes_before_one_that_has_not_started_takes_its_slot(world: World) -> None:
    await _declare(world)
    [nine] = await _add(world, 9)
    world.advance(WINDOW)
    await world.promote_all()
    await world.is_in(nine, State.READY)
    four, twelve = await _add(world, 4, 12)
    same(await world.states([four, nine, twelve]), [State.READY, State.WAITING, State.SCHEDULED], "states")
    await _run(world, four, nine)


@case
async def a_settlement_lets_lower_orders_go_first(world: World) -> None:
    await _declare(world)
    [one] = await _add(world, 1)
    world.advance(WINDOW)
    lease = await world.claim_one(one, lease=FOREVER)
    [nine] = await _add(world, 9)
    world.advance(WINDOW - 1.0)
    [four] = await _add(world, 4)
    world.advance(1.0)  # only nine is due; nobody promoted it
    answer = await world.exchange(
        [world.settlement(lease, Ending.SUCCEEDED)], (), world.request("w1", 1, queues=("default",))
    )
    same([lease.id for lease in answer.leases], [four], "the next one")
    await world.end(answer.leases[0])
    await _all_run(world, nine)


@case
async def a_long_line_in_the_window_stays_in_order(world: World) -> None:
    await _declare(world)
    number = 80
    last = await world.enqueue(group="g", order=number)
    world.advance(1.0)
    batch = [world.job(group="g", order=order) for order in range(number - 1, -1, -1)]
    await world.backend.enqueue(batch, now=world.now)
    world.advance(WINDOW - 1.0)  # only the last one is due
    await _all_run(world, *[job.id for job in reversed(batch)], last)


@case
async def due_times_of_their_own_are_kept(world: World) -> None:
    await _declare(world)
    at_once = await world.enqueue(group="g", order=5, delay=0.0)
    later = await world.enqueue(group="g", order=1, delay=100.0)
    plain = await world.enqueue(group="g")
    same(await world.states([at_once, later, plain]), [State.READY, State.SCHEDULED, State.WAITING], "states")
    await _all_run(world, at_once, plain)
    world.advance(100.0)
    await _all_run(world, later)


@case
async def a_job_that_was_leased_waits_for_nobody_else(world: World) -> None:
    await _declare(world, WINDOW, "relaxed", 1)
    [one] = await _add(world, 1)
    world.advance(WINDOW)
    lease = await world.claim_one(one, lease=FOREVER)
    [two] = await _add(world, 2)
    world.advance(WINDOW)
    await world.end(lease, Ending.RETRY, delay=3.0)
    await _all_run(world, two)  # the failed one backs off, and is not fetched before its time
    world.advance(3.0)
    await _all_run(world, one)


@case
async def a_window_that_is_gone_leaves_due_times_as_they_are(world: World) -> None:
    await _declare(world)
    three, one = await _add(world, 3, 1)
    await _declare(world, None)
    [five] = await _add(world, 5)
    await _run(world, five)
    world.advance(WINDOW)
    await _all_run(world, one, three)


@case
async def a_replaced_job_waits_for_lower_orders_again(world: World) -> None:
    await _declare(world)
    keyed = await world.enqueue(group="g", order=9, key="k")
    world.advance(3.0)
    again = world.job(group="g", order=7, key="k", on_conflict="replace")
    await world.backend.enqueue([again], now=world.now)
    same((await world.get(keyed)).due_at, world.now + WINDOW, "due")
    world.advance(WINDOW)
    await _all_run(world, keyed)


@case
async def run_now_ends_the_wait(world: World) -> None:
    await _declare(world)
    one, three = await _add(world, 1, 3)
    await world.backend.run_now(three, now=world.now)
    await _run(world, one, three)  # what comes before it goes with it


@case
async def there_are_no_chains_with_a_window(world: World) -> None:
    await _declare(world)
    one, _ = await _add(world, 1, 2)
    world.advance(WINDOW)
    await world.promote_all()
    answer = await world.backend.claim(await _chained(world), now=world.now)
    same([lease.id for lease in answer.leases], [one], "leases")


@case
async def a_window_delays_no_other_group(world: World) -> None:
    await _declare(world)
    [staged] = await _add(world, 1)
    others = [await world.enqueue(group="other"), await world.enqueue()]
    same(sorted(await world.claim_ids(5)), sorted(others), "the others")
    await world.is_in(staged, State.SCHEDULED)
