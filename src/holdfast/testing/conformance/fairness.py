"""Conformance of fairness between groups: one job does not wait for another group's million; groups keep their order.

Called by run_case. Lanes are in lanes and apart, priorities that age in aging.
"""

from __future__ import annotations

from random import Random

from ...lifecycle import Ending, State
from ...rates import UNLIMITED
from ...records import LIFO, SERIAL_PREFIX, STAGGER_TICKS, Edit, Lease
from .compare import same
from .flow import end_all, group_shown, in_state, rule, turns
from .registry import case, case_for_each
from .world import FOREVER, World

LIMITS = {"limit 1": 1, "limit 10": 10, "no limit": UNLIMITED}
NEAR = 1_000_000  # ticks: how far apart turns are that were issued at one time


async def _tenant_a(world: World, limit: int, jobs: int) -> None:
    number = world.sized(jobs)
    await world.relaxed(limit)
    for start in range(0, number, 1000):
        await world.enqueue_many(min(1000, number - start), group="A")


async def _claims_until(world: World, job_id: str, most: int, open_leases: list[Lease]) -> int:
    """How many claims it takes until that job starts; what ran before ends with each."""
    for number in range(1, 20):
        done = [world.settlement(lease, Ending.SUCCEEDED) for lease in open_leases]
        found = await world.exchange(done, [], world.request("w1", most))
        open_leases[:] = found.leases
        if any(lease.id == job_id for lease in found.leases):
            return number
    raise AssertionError(f"{job_id} did not start within 19 claims")


async def _served_at_once(world: World) -> list[Lease]:
    """B has one job while nothing runs; returns what is open then."""
    open_leases: list[Lease] = []
    only = await world.enqueue(group="B")
    assert await _claims_until(world, only, 1, open_leases) <= 2, "B waits longer than two claims of one slot"
    return open_leases


async def _served_late(world: World, open_leases: list[Lease]) -> list[Lease]:
    """B has one job after A has been served for a while."""
    for _ in range(25):
        done = [world.settlement(lease, Ending.SUCCEEDED) for lease in open_leases]
        open_leases = list((await world.exchange(done, [], world.request("w1", 10))).leases)
    only = await world.enqueue(group="B")
    assert await _claims_until(world, only, 1, open_leases) <= 2, "B waits longer than two claims of one slot"
    return open_leases


async def _served_again(world: World, open_leases: list[Lease]) -> list[Lease]:
    """B has one job, again and again."""
    for _ in range(8):
        only = await world.enqueue(group="B")
        assert await _claims_until(world, only, 2, open_leases) <= 2, "B waits longer than two claims"
    return open_leases


@case_for_each(LIMITS)
async def a_tenant_with_one_job_starts_within_two_claims(world: World, how: str) -> None:
    await _tenant_a(world, LIMITS[how], 1000)
    await world.register("w1", lease=FOREVER)
    await _served_at_once(world)


@case_for_each(LIMITS)
async def a_tenant_that_comes_late_starts_within_two_claims(world: World, how: str) -> None:
    await _tenant_a(world, LIMITS[how], 1000)
    await world.register("w1", lease=FOREVER)
    await _served_late(world, [])


@case
async def a_tenant_comes_first_again_each_time_it_has_one_job(world: World) -> None:
    await _tenant_a(world, UNLIMITED, 1000)
    await world.register("w1", lease=FOREVER)
    await _served_again(world, [])


@case
async def a_tenant_is_served_beside_ten_thousand_jobs_under_any_limit(world: World) -> None:
    """The three above, one after the other, on one backlog: how large it is must not matter."""
    await _tenant_a(world, UNLIMITED, 10_000)
    await world.register("w1", lease=FOREVER)
    for limit in (UNLIMITED, 10, 1):
        await world.relaxed(limit)
        while await world.backend.rearrange(now=world.now):
            pass
        open_leases = await _served_late(world, await _served_at_once(world))
        for lease in await _served_again(world, open_leases):
            await world.end(lease)


@case
async def unlimited_groups_take_turns(world: World) -> None:
    await world.relaxed(UNLIMITED)
    a = await world.enqueue_many(5, group="a")
    b = await world.enqueue_many(3, group="b")
    c = await world.enqueue_many(1, group="c")
    expected = [a[0], b[0], c[0], a[1], b[1], a[2], b[2], a[3], a[4]]
    same(await world.claim_ids(9), expected, "order in one claim")


@case
async def the_turns_of_one_groups_ready_jobs_are_far_apart(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(5, group="g")
    first, *others = await turns(world, ids)
    for k, turn in enumerate(others, start=1):
        gap = turn - first - k * STAGGER_TICKS
        assert 0 <= gap < NEAR, f"the turn of ready job {k} is {gap} ticks off {k} steps behind the first"


@case
async def staggered_turns_do_not_move_the_counter(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(200, group="g")
    alone, other = await world.enqueue(), await world.enqueue(group="h")
    first, second = (await turns(world, ids))[:2]
    for turn in await turns(world, [alone, other]):
        assert first < turn < second, "who comes later comes before the group's second job"


@case
async def a_group_that_lost_its_first_jobs_still_goes_in_order(world: World) -> None:
    """The last of three is left, far behind; who comes now is alone beside it and must not overtake it."""
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(3, group="g")
    await world.claim(2, lease=FOREVER)
    ids += await world.enqueue_many(2, group="g")
    same(await world.claim_ids(9), ids[2:], "order")


@case_for_each(range(6), name=lambda seed: f"seed {seed}")
async def relaxed_groups_start_their_jobs_in_order(world: World, seed: int) -> None:
    dice = Random(seed)
    await world.relaxed(dice.choice([2, 5, UNLIMITED]))
    seqs: dict[str, list[str]] = {name: [] for name in "abc"}
    started: dict[str, list[str]] = {name: [] for name in "abc"}
    open_leases: list[Lease] = []
    for _ in range(60):
        if dice.random() < 0.6:
            name = dice.choice("abc")
            seqs[name] += await world.enqueue_many(dice.choice([1, 2, 6]), group=name)
        if dice.random() < 0.7:
            leases = await world.claim(dice.choice([1, 2, 5]), lease=FOREVER)
            open_leases += leases
            for lease in leases:
                started[lease.group or ""].append(lease.id)
        while open_leases and dice.random() < 0.5:
            await world.end(open_leases.pop(dice.randrange(len(open_leases))))
    for name in "abc":
        same(started[name], seqs[name][: len(started[name])], f"order of {name}")


@case
async def a_job_given_back_to_a_relaxed_group_keeps_its_turn(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(4, group="g")
    lease, _ = await world.claim(2, lease=FOREVER)
    before = await turns(world, ids[:1])
    await world.give_back(lease)
    same(await turns(world, ids[:1]), before, "turn")
    same(await world.claim_ids(9), [ids[0], *ids[2:]], "order")


@case
async def a_higher_priority_goes_first_inside_a_group_and_between_groups(world: World) -> None:
    await world.relaxed(UNLIMITED)
    low = await world.enqueue_many(2, group="g")
    high = await world.enqueue_many(2, group="g", priority=5)
    other = await world.enqueue(group="h", priority=7)
    got = await world.claim_ids(9)
    same(got, [other, *high, *low], "order")


@case
async def withdrawn_jobs_of_a_relaxed_group_come_back_in_order(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(6, group="g")
    before = await turns(world, ids)
    await world.relaxed(2)
    same(await in_state(world, ids, State.READY), ids[:2], "ready")
    await world.relaxed(UNLIMITED)
    same(await turns(world, ids), before, "turns")
    same(await world.claim_ids(9), ids, "order")


# ---------------------------------------------------------------------- serial groups


@case
async def a_serial_group_is_strict_in_a_relaxed_queue(world: World) -> None:
    await world.relaxed(5)
    name = SERIAL_PREFIX + "nightly"
    ids = await world.enqueue_many(3, group=name)
    other = await world.enqueue_many(3, group="g")
    shown = await group_shown(world, name)
    same((shown.order, shown.limit), ("strict", 1), "the group as shown")
    same(sorted(await world.claim_ids(9)), sorted([ids[0], *other]), "claimable")


@case_for_each([Ending.RETRY, Ending.SNOOZED])
async def a_serial_groups_head_blocks_it_while_it_backs_off(world: World, ending: Ending) -> None:
    await world.relaxed(UNLIMITED)
    head, behind = await world.enqueue_many(2, group=SERIAL_PREFIX + "x")
    await world.end(await world.claim_one(head, lease=FOREVER), ending, delay=10.0)
    await world.claim_none()
    world.advance(11.0)
    await world.end(await world.claim_one(head))
    await world.claim_one(behind)


@case
async def a_serial_group_stays_strict_whatever_is_declared(world: World) -> None:
    ids = await world.enqueue_many(4, group=SERIAL_PREFIX + "x")
    for order, number in (("strict", 1), ("relaxed", 3), ("relaxed", UNLIMITED)):
        await rule(world, group_order=order, group_limit=number)
        same(await in_state(world, ids, State.READY), ids[:1], "ready")
    for job_id in ids:
        leases = await world.claim(9, lease=FOREVER)
        same([lease.id for lease in leases], [job_id], "one at a time, in order")
        await end_all(world, leases)


# ----------------------------------------------------------------------------------------------------------------------
# Aging: in a queue that ages its jobs a priority is worth so many seconds, and nobody starves.


TICKS = 1_000_000
TURNS_NEAR = 1000  # ticks: how far apart turns are that were issued in one step


async def _ranks(world: World, ids: list[str]) -> list[int]:
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    return [rows[job_id]["rank"] for job_id in ids]


async def _first_of(world: World, ids: list[str]) -> str:
    """The job a claim would take now."""
    lease = await world.claim_one(worker="w-first", lease=FOREVER)
    assert lease.id in ids, f"{lease.id} was not expected at all"
    await world.give_back(lease)
    return lease.id


@case
async def without_aging_a_priority_never_yields(world: World) -> None:
    low = await world.enqueue(priority=-1)
    world.advance(10_000_000.0)
    high = await world.enqueue()
    same(await _ranks(world, [low, high]), [-1, 0], "ranks")
    same(await world.claim_ids(2), [high, low], "order")


@case
async def with_aging_a_priority_is_worth_so_many_seconds(world: World) -> None:
    await rule(world, aging=10.0)
    ids = [await world.enqueue(), await world.enqueue(priority=3), await world.enqueue(priority=-2)]
    same(await _ranks(world, ids), [0, 0, 0], "ranks")
    plain, high, low = await turns(world, ids)
    assert 0 < high - plain + 30 * TICKS <= TURNS_NEAR, f"priority 3 is {high - plain} ticks off priority 0"
    assert 0 < low - plain - 20 * TICKS <= TURNS_NEAR, f"priority -2 is {low - plain} ticks off priority 0"
    same(await world.claim_ids(9), [ids[1], ids[0], ids[2]], "order")


@case_for_each([(49.0, "the urgent"), (51.0, "the old")], name=lambda p: f"after {p[0]:g} s {p[1]}")
async def a_job_that_has_waited_long_enough_goes_first(world: World, param: tuple[float, str]) -> None:
    after, expected = param
    await rule(world, aging=10.0)
    old = await world.enqueue()
    world.advance(after)
    urgent = await world.enqueue(priority=5)
    same(await _first_of(world, [old, urgent]), urgent if expected == "the urgent" else old, "first")


@case
async def a_stream_of_urgent_jobs_starves_nobody(world: World) -> None:
    await rule(world, aging=2.0)
    low = await world.enqueue(priority=-5)
    started = []
    for _ in range(60):
        await world.enqueue_many(2, priority=5)
        world.advance(1.0)
        lease = await world.claim_one(lease=FOREVER)
        started.append(lease.id)
        await world.end(lease)
    assert low in started, "a low job beside a stream of urgent ones never started"
    assert started.index(low) >= 20, f"it started after {started.index(low)} s: its priority must count for something"


@case
async def a_changed_aging_holds_for_jobs_that_become_ready_from_then_on(world: World) -> None:
    before = await world.enqueue(priority=5)
    await rule(world, aging=10.0)
    after = await world.enqueue(priority=9)
    same(await _ranks(world, [before, after]), [5, 0], "ranks")
    same(await world.claim_ids(9), [before, after], "order")
    await rule(world)
    last = await world.enqueue(priority=2)
    same(await _ranks(world, [last]), [2], "rank once it is off")


@case
async def a_job_given_back_keeps_its_aged_turn(world: World) -> None:
    await rule(world, aging=10.0)
    ids = [await world.enqueue(), await world.enqueue(priority=1)]
    before = await turns(world, ids)
    for lease in await world.claim(9, lease=FOREVER):
        await world.give_back(lease)
    same((await turns(world, ids), await _ranks(world, ids)), (before, [0, 0]), "turns and ranks")


@case
async def a_retried_job_ages_anew(world: World) -> None:
    await rule(world, aging=10.0)
    failed = await world.enqueue()
    await world.end(await world.claim_one(failed, lease=FOREVER), Ending.RETRY, delay=5.0)
    fresh = await world.enqueue(priority=1)
    world.advance(11.0)
    await world.promote_all()
    later = await world.enqueue(priority=2)
    same(await world.claim_ids(9), [fresh, later, failed], "order: 10 s ahead, 20 s ahead of now, now")


@case
async def aging_is_shown_with_its_queue(world: World) -> None:
    await rule(world, aging=2.5)
    [queue] = await world.backend.queues()
    same(queue.aging, 2.5, "aging")


@case
async def one_queue_ages_and_another_does_not(world: World) -> None:
    await rule(world, "aging", aging=1.0)
    ids = [await world.enqueue(queue="aging", priority=4), await world.enqueue(priority=4)]
    same(await _ranks(world, ids), [0, 4], "ranks")


@case
async def with_lifo_the_newest_goes_first_within_a_priority(world: World) -> None:
    await rule(world, aging=LIFO)
    first, second = await world.enqueue(), await world.enqueue()
    low = await world.enqueue(priority=-1)
    high = await world.enqueue(priority=1)
    third, fourth = await world.enqueue_many(2)
    same(await _ranks(world, [first, low, high]), [0, -1, 1], "ranks")
    same(await world.claim_ids(9), [high, fourth, third, second, first, low], "order")
    [queue] = await world.backend.queues()
    same(queue.order, "lifo", "order")


@case_for_each(("promote", "run_now", "revive", "retry", "edit", "replace"))
async def with_lifo_what_became_ready_last_is_the_newest(world: World, how: str) -> None:
    await rule(world, aging=LIFO)
    delayed = how in ("promote", "run_now", "edit", "replace")
    job_id = await world.enqueue(delay=10.0 if delayed else None, key="k" if how == "replace" else None)
    if not delayed:
        lease = await world.claim_one(job_id, lease=FOREVER)
        await world.end(lease, Ending.BURIED if how == "revive" else Ending.SUCCEEDED)
    before = await world.enqueue()
    if how == "promote":
        world.advance(11.0)
        await world.promote_all()
    elif how == "edit":
        await world.backend.edit(job_id, Edit(due_at=world.now), now=world.now)
    elif how == "replace":
        await world.backend.enqueue([world.job(key="k", on_conflict="replace")], now=world.now)
    else:
        await getattr(world.backend, how)(job_id, now=world.now)
    after = await world.enqueue()
    same(await world.claim_ids(9, lease=FOREVER), [after, job_id, before], "order")


@case
async def with_lifo_a_job_given_back_keeps_its_place(world: World) -> None:
    await rule(world, aging=LIFO)
    first, second = await world.enqueue(), await world.enqueue()
    lease = await world.claim_one(second)
    third = await world.enqueue()
    await world.give_back(lease)
    same(await world.claim_ids(9), [third, second, first], "order")


@case
async def with_lifo_groups_keep_their_order(world: World) -> None:
    await rule(world, aging=LIFO)
    ids = await world.enqueue_many(3, group="g")
    other = await world.enqueue(group="h")
    same(await world.claim_ids(1), [ids[0]], "the group that was ready first")
    same(await world.claim_ids(9), [other], "the other group")
    same(await world.states(ids[1:]), [State.WAITING] * 2, "the rest of the group")


@case
async def a_changed_order_holds_for_jobs_that_become_ready_from_then_on(world: World) -> None:
    first, second = await world.enqueue(), await world.enqueue()
    await rule(world, aging=LIFO)
    third, fourth = await world.enqueue(), await world.enqueue()
    same(await world.claim_ids(3), [fourth, third, first], "newest first, then what was there before, in its order")
    await rule(world)
    fifth = await world.enqueue()
    same(await world.claim_ids(9), [second, fifth], "order")


@case
async def running_jobs_have_no_rank(world: World) -> None:
    job_id = await world.enqueue(priority=4)
    await world.claim_one(job_id)
    same(await _ranks(world, [job_id]), [0], "rank")
