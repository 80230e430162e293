"""Conformance of groups: order inside a group, strict and relaxed, and when a failed head keeps its place or makes way.

Called by run_case. Limits, overrides and pauses are in group_limits and pausing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from ...errors import ConfigurationError
from ...lifecycle import Ending, State
from ...records import Lease, Override, QueueRule, Release
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World


@case
async def only_the_first_of_a_group_is_ready(world: World) -> None:
    ids = await world.enqueue_many(3, group="g")
    same(await world.states(ids), [State.READY, State.WAITING, State.WAITING], "states")
    same(await world.claim_ids(5), ids[:1], "claimable")
    same(await world.states(ids), [State.RUNNING, State.WAITING, State.WAITING], "states while it runs")


@case
async def a_waiting_job_cannot_be_claimed(world: World) -> None:
    start = await world.put(State.WAITING)
    await world.claim_none()
    await world.promote_all()
    same(await world.backend.refill(now=world.now), 0, "refill finds no room")
    await world.claim_none()
    await world.is_in(start.id, State.WAITING)


@case
async def a_group_runs_in_order_of_enqueue(world: World) -> None:
    ids = await world.enqueue_many(6, group="g")
    for job_id in ids:
        await world.end(await world.claim_one(job_id))


@case
async def the_same_name_in_two_queues_is_two_groups(world: World) -> None:
    a, b = await world.enqueue(queue="a", group="g"), await world.enqueue(queue="b", group="g")
    same(await world.states([a, b]), [State.READY, State.READY], "states")
    same(sorted(await world.claim_ids(5, queues=("a", "b"))), [a, b], "claimable")


@case
async def priority_goes_first_among_those_who_wait(world: World) -> None:
    head, low, high, higher = [await world.enqueue(group="g", priority=p) for p in (0, -1, 5, 9)]
    second_high = await world.enqueue(group="g", priority=5)
    for job_id in (head, higher, high, second_high, low):
        await world.end(await world.claim_one(job_id))


@case
async def a_job_that_fell_due_is_not_overtaken_by_a_later_one_that_is_enqueued(world: World) -> None:
    delayed = await world.enqueue(group="g", delay=10.0)
    world.advance(11.0)  # due, and nobody has promoted it yet
    later = await world.enqueue(group="g")
    same(await world.states([delayed, later]), [State.READY, State.WAITING], "states")


@case
async def a_job_that_fell_due_is_not_overtaken_when_the_head_ends(world: World) -> None:
    delayed = await world.enqueue(group="g", delay=10.0)
    head, behind = await world.enqueue_many(2, group="g")
    lease = await world.claim_one(head, lease=FOREVER)
    world.advance(11.0)
    await world.end(lease)
    same(await world.states([delayed, behind]), [State.READY, State.WAITING], "states")


@case
async def a_delayed_job_holds_no_place_and_goes_by_its_seq_when_due(world: World) -> None:
    delayed = await world.enqueue(group="g", delay=10.0)
    head, behind = await world.enqueue_many(2, group="g")
    same(await world.states([delayed, head, behind]), [State.SCHEDULED, State.READY, State.WAITING], "states")
    lease = await world.claim_one(head, lease=FOREVER)
    world.advance(11.0)
    await world.promote_all()
    await world.is_in(delayed, State.WAITING)
    await world.end(lease)
    same(await world.states([delayed, behind]), [State.READY, State.WAITING], "the older one is next")


TROUBLES = ("retry", "snooze", "unknown task")


async def _trouble(world: World, job_id: str, trouble: str, delay: float) -> None:
    lease = await world.claim_one(job_id, lease=FOREVER)
    if trouble == "retry":
        await world.end(lease, Ending.RETRY, delay=delay)
    elif trouble == "snooze":
        await world.end(lease, Ending.SNOOZED, delay=delay)
    else:
        await world.give_back(lease, delay=delay)


@case_for_each(TROUBLES)
async def a_strict_head_in_trouble_blocks_its_group(world: World, trouble: str) -> None:
    head, behind = await world.enqueue_many(2, group="g")
    urgent = await world.enqueue(group="g", priority=100)
    other = await world.enqueue(group="other")
    for _ in range(3):
        await _trouble(world, head, trouble, 10.0)
        job = await world.get(head)
        same((job.state, job.held), (State.SCHEDULED, True), "the head keeps its place")
        same(await world.states([behind, urgent]), [State.WAITING] * 2, "those behind it")
        same(await world.claim_ids(5, "w2", lease=FOREVER), [other] if not _ else [], "other groups go on")
        await world.promote_all()
        await world.claim_none("w2")
        world.advance(11.0)
    for job_id in (head, urgent, behind):
        await world.end(await world.claim_one(job_id))


@case_for_each(TROUBLES)
async def a_relaxed_head_in_trouble_steps_aside(world: World, trouble: str) -> None:
    await world.relaxed(1)
    head, second, third = await world.enqueue_many(3, group="g")
    await _trouble(world, head, trouble, 10.0)
    same((await world.get(head)).held, False, "held")
    lease = await world.claim_one(second)
    world.advance(11.0)
    await world.promote_all()
    same(await world.states([head, third]), [State.WAITING] * 2, "it waits for the one in play")
    await world.end(lease)
    for job_id in (head, third):
        await world.end(await world.claim_one(job_id))


@case_for_each(["release", "recover", "retire"])
async def a_head_given_back_stays_the_head(world: World, way: str) -> None:
    for order in ("strict", "relaxed"):
        queue = f"{order}-queue"
        await (world.strict(queue) if order == "strict" else world.relaxed(1, queue))
        head = await world.enqueue(group="g", queue=queue)
        behind = await world.enqueue(group="g", queue=queue)
        rival = await world.enqueue(group="rival", queue=queue)
        turn = (await world.row(head))["turn"]
        lease = await world.claim_one(head, f"w-{order}", queues=(queue,))
        if way == "release":
            await world.give_back(lease)
        elif way == "recover":
            await world.backend.recover(dead=[f"w-{order}"], now=world.now)
        else:
            await world.backend.retire(f"w-{order}", now=world.now)
        same((await world.row(head))["turn"], turn, f"turn in a {order} group after {way}")
        same(await world.states([head, behind]), [State.READY, State.WAITING], f"{order} group after {way}")
        same(await world.claim_ids(2, f"x-{order}", queues=(queue,)), [head, rival], "order of claims")


@case
async def a_relaxed_group_counts_what_is_in_play(world: World) -> None:
    await world.relaxed(3)
    ids = await world.enqueue_many(5, group="g")
    same(await world.states(ids), [State.READY] * 3 + [State.WAITING] * 2, "states")
    first, _, third = await world.claim(5)
    await world.end(third)
    same(await world.claim_ids(5), [ids[3]], "one ended, one came")
    await world.end(first, Ending.RETRY, delay=60.0)
    same(await world.claim_ids(5), [ids[4]], "one stepped aside, one came")


@case
async def seq_never_changes(world: World) -> None:
    ids = await world.enqueue_many(2, group="g")
    seqs = [(await world.get(job_id)).seq for job_id in ids]
    await world.end(await world.claim_one(ids[0], lease=FOREVER), Ending.RETRY, delay=1.0)
    world.advance(2.0)
    await world.give_back(await world.claim_one(ids[0]))
    await world.end(await world.claim_one(ids[0]), Ending.BURIED)
    await world.backend.revive(ids[0], now=world.now)
    await world.backend.cancel(ids[1], now=world.now)
    same([(await world.get(job_id)).seq for job_id in ids], seqs, "seq after a long life")


@case_for_each(["cancel", "bury"])
async def an_operator_who_ends_a_blocking_head_frees_its_group(world: World, verb: str) -> None:
    head, behind = await world.enqueue_many(2, group="g")
    await _trouble(world, head, "retry", 1000.0)
    if verb == "cancel":
        await world.backend.cancel(head, now=world.now)
    else:
        await world.backend.bury(head, "poison", now=world.now)
    await world.claim_one(behind)


@case
async def run_now_brings_a_blocking_head_back(world: World) -> None:
    head, behind = await world.enqueue_many(2, group="g")
    await _trouble(world, head, "snooze", 1000.0)
    same((await world.backend.run_now(head, now=world.now)).state, State.READY, "state")
    await world.end(await world.claim_one(head))
    await world.claim_one(behind)


@case
async def run_now_obeys_the_group(world: World) -> None:
    await world.put(State.RUNNING, group="g")
    later = await world.enqueue(group="g", delay=1000.0)
    same((await world.backend.run_now(later, now=world.now)).state, State.WAITING, "state")
    await world.claim_none()


@case_for_each(["revive", "retry"])
async def a_job_brought_back_obeys_its_group(world: World, verb: str) -> None:
    job_id = await world.enqueue(group="g")
    await world.end(await world.claim_one(job_id), Ending.BURIED if verb == "revive" else Ending.SUCCEEDED)
    lease = await world.claim_one(await world.enqueue(group="g"))
    back = world.backend.revive if verb == "revive" else world.backend.retry
    same((await back(job_id, now=world.now)).state, State.WAITING, "state while the group is busy")
    await world.claim_none()
    await world.end(lease)
    await world.claim_one(job_id)


@case
async def an_expired_head_lets_the_next_come(world: World) -> None:
    head = await world.enqueue(group="g", expires=5.0)
    behind = await world.enqueue(group="g", expires=5.0)
    last = await world.enqueue(group="g")
    world.advance(6.0)
    await world.promote_all()
    same(await world.states([head, behind, last]), [State.DEAD, State.DEAD, State.READY], "states after the sweep")
    other = await world.another()
    head, last = await other.enqueue(group="g", expires=5.0), await other.enqueue(group="g")
    other.advance(6.0)
    taken = await other.claim_ids(5) + await other.claim_ids(5)
    same(taken, [last], "claimed without a sweep, at the latest by the second claim")
    await other.is_in(head, State.DEAD)


@case
async def the_successor_of_a_cancelled_running_job_waits_for_its_end(world: World) -> None:
    for end in ("settle", "release", "recover", "retire"):
        group = f"g-{end}"
        head, behind = await world.enqueue_many(2, group=group)
        lease = await world.claim_one(head, f"w-{end}")
        await world.backend.cancel(head, now=world.now)
        await world.promote_all()
        await world.backend.refill(now=world.now)
        await world.claim_none("watcher", lease=FOREVER)
        same(await world.states([head, behind]), [State.RUNNING, State.WAITING], "until it ended")
        if end == "settle":
            await world.end(lease, Ending.CANCELLED)
        elif end == "release":
            await world.give_back(lease)
        elif end == "recover":
            await world.expire_worker(f"w-{end}")
            await world.backend.recover(now=world.now)
        else:
            await world.backend.retire(f"w-{end}", now=world.now)
        same(await world.states([head, behind]), [State.CANCELLED, State.READY], f"after {end}")
        await world.end(await world.claim_one(behind, "watcher"))


# ----------------------------------------------------------------------------------------------------------------------
# Group limits: the queue's rule, overrides per group, and what raising and lowering does at once.


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


# ----------------------------------------------------------------------------------------------------------------------
# Refill: however a lease ends, the group's next job comes, and no group is ever left wedged.


Way = Callable[[World, Lease], Awaitable[object]]
DELAY = 40.0


async def _recover(world: World, lease: Lease) -> None:
    await world.expire_worker()
    same(len(await world.backend.recover(now=world.now)), 1, "recovered")


async def _recover_named(world: World, lease: Lease) -> None:
    same(len(await world.backend.recover(dead=["w1"], now=world.now)), 1, "recovered")


async def _expire(world: World, lease: Lease) -> None:
    await world.expire_worker()


async def _unname(world: World, lease: Lease) -> None:
    await world.renew("w1", [])


async def _retire(world: World, lease: Lease) -> None:
    await world.backend.retire("w1", now=world.now)


async def _cancel_then_release(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await world.give_back(lease)


async def _cancel_then_recover(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await _recover(world, lease)


async def _cancel_then_stall(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await world.end(lease, Ending.STALLED)


async def _exchange(world: World, lease: Lease) -> None:
    await world.exchange([], [Release(id=lease.id, token=lease.token)], None)


def _settle(ending: Ending) -> Way:
    async def end(world: World, lease: Lease) -> None:
        await world.end(lease, ending, delay=DELAY if ending in (Ending.RETRY, Ending.SNOOZED) else 0.0)

    return end


def _release(delay: float) -> Way:
    async def end(world: World, lease: Lease) -> None:
        await world.give_back(lease, delay)

    return end


# how it ended → (the step, max_stalls of the job, what becomes of the job: over, back at once, or back later)
WAYS: dict[str, tuple[Way, int, str]] = {
    "succeeded": (_settle(Ending.SUCCEEDED), 3, "over"),
    "retry": (_settle(Ending.RETRY), 3, "later"),
    "snoozed": (_settle(Ending.SNOOZED), 3, "later"),
    "buried": (_settle(Ending.BURIED), 3, "over"),
    "cancelled": (_settle(Ending.CANCELLED), 3, "over"),
    "stalled": (_settle(Ending.STALLED), 3, "back"),
    "stalled, at most once": (_settle(Ending.STALLED), 0, "over"),
    "released": (_release(0.0), 3, "back"),
    "released by exchange": (_exchange, 3, "back"),
    "released for later": (_release(DELAY), 3, "later"),
    "recovered": (_recover, 3, "back"),
    "recovered by name": (_recover_named, 3, "back"),
    "recovered by the next claim": (_expire, 3, "back"),
    "recovered, never begun": (_recover, 0, "back"),
    "given back by renew": (_unname, 3, "back"),
    "retired": (_retire, 3, "back"),
    "cancelled, then released": (_cancel_then_release, 3, "over"),
    "cancelled, then recovered": (_cancel_then_recover, 3, "over"),
    "cancelled, then stalled": (_cancel_then_stall, 3, "over"),
}


async def _drain(world: World, first: list[str], *, worker: str = "w9") -> list[str]:
    """Claim and finish one by one until all are finished; returns the order. Time passes only if nothing is ready."""
    order: list[str] = []
    for _ in range(4 * len(first)):
        leases = await world.claim(1, worker, lease=FOREVER)
        if not leases:
            world.advance(DELAY + 1.0)
            continue
        order.append(leases[0].id)
        await world.end(leases[0])
    left = [job_id for job_id in first if not (await world.state(job_id)).finished]
    same(left, [], "jobs the group never got to")
    return order


@case_for_each(product(("strict", "relaxed"), WAYS), name=lambda p: f"{p[0]}, {p[1]}")
async def the_next_job_comes_however_a_lease_ends(world: World, param: tuple[str, str]) -> None:
    order, ended = param
    way, max_stalls, fate = WAYS[ended]
    await (world.strict() if order == "strict" else world.relaxed(1))
    head = await world.enqueue(group="g", max_stalls=max_stalls)
    second, third = await world.enqueue_many(2, group="g")
    await way(world, await world.claim_one(head))
    if fate == "over":
        assert (await world.state(head)).finished, f"a lease that was {ended} ends its job"
        expected = [second, third]
    elif fate == "back" or order == "strict":
        expected = [head, second, third]
    else:
        expected = [second, third, head]
    same(await _drain(world, [head, second, third]), expected, f"order after the head was {ended}")
    same(await world.backend.refill(now=world.now), 0, "refill, the safety net, finds nothing to do")


@case_for_each([True, False], name=lambda begun: "begun" if begun else "not begun")
async def a_head_stalled_once_too_often_frees_its_group(world: World, begun: bool) -> None:
    head = await world.enqueue(group="g", max_stalls=0 if begun else 1)
    behind = await world.enqueue(group="g")
    for _ in range(1 if begun else 2):
        lease = await world.claim_one(head)
        if begun:
            await world.begin(lease)
        await world.backend.recover(dead=["w1"], now=world.now)
        await world.register("w1")
    await world.is_in(head, State.DEAD)
    await world.claim_one(behind)


@case
async def refill_is_bounded_and_finds_nothing_in_a_sound_store(world: World) -> None:
    await world.relaxed(2)
    for n in range(5):
        await world.enqueue_many(3, group=f"g{n}")
    async with world.unchanged("refill of a sound store"):
        same(await world.backend.refill(limit=1, now=world.now), 0, "made ready")
        same(await world.backend.refill(now=world.now), 0, "made ready")


@case
async def a_strict_group_keeps_its_order_through_every_trouble(world: World) -> None:
    """Every job of a group meets every ending that is not its end, one after the other, and the order stands."""
    troubles = [name for name, (_, _, fate) in WAYS.items() if fate != "over" and "never begun" not in name]
    ids = await world.enqueue_many(3, group="g", max_stalls=50)
    order = []
    for job_id in ids:
        for trouble in troubles:
            await world.register("w1")
            await WAYS[trouble][0](world, await world.claim_one(job_id))
            world.advance(DELAY + 1.0)
            await world.backend.recover(now=world.now)
        lease = await world.claim_one(worker="w9", lease=FOREVER)
        order.append(lease.id)
        await world.end(lease)
    same(order, ids, "order of the group")
