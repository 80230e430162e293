"""Conformance of groups: order inside a group, strict and relaxed, and how a head in trouble holds or steps aside.

Called by run_case. Limits, overrides and pauses are in group_limits and pausing.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
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
