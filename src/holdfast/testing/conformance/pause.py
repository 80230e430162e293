"""Conformance of pause and resume: of a queue, of a group, of a task.

Called by run_case. A pause starts nothing, stops nothing, and costs nothing.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
from ...records import Pause
from .compare import CALLED, same
from .registry import case, case_for_each
from .world import World

QUEUE = Pause(queue="default")
GROUP = Pause(queue="default", group="g")
TASK = Pause(task="work")
KINDS = {"queue": QUEUE, "group": GROUP, "task": TASK}


@case_for_each(KINDS)
async def a_pause_holds_back_what_it_names_until_resumed(world: World, kind: str) -> None:
    ids = await world.enqueue_many(2, group="g")
    await world.backend.pause(KINDS[kind], now=world.now)
    await world.claim_none()
    ids += await world.enqueue_many(1, group="g")
    await world.promote_all()
    await world.backend.refill(now=world.now)
    await world.claim_none()
    same(await world.backend.resume(KINDS[kind], now=world.now), True, "resume")
    for job_id in ids:
        await world.counters(job_id, 0, 0, 0)
        await world.end(await world.claim_one(job_id))


@case_for_each(KINDS)
async def a_running_job_goes_on_through_a_pause(world: World, kind: str) -> None:
    start = await world.put(State.RUNNING, group="g")
    behind = await world.enqueue(group="g")
    await world.backend.pause(KINDS[kind], now=world.now)
    same((await world.renew("holder", [start.held])).lost, (), "renew")
    await world.end(start.held)
    await world.claim_none()
    await world.backend.resume(KINDS[kind], now=world.now)
    await world.claim_one(behind)


@case_for_each(KINDS)
async def a_job_given_back_into_a_pause_keeps_its_turn(world: World, kind: str) -> None:
    first = await world.enqueue(group="g")
    rival = await world.enqueue(group="rival")
    lease = await world.claim_one(first)
    await world.backend.pause(KINDS[kind], now=world.now)
    await world.give_back(lease)
    if kind == "group":
        await world.is_in(first, State.WAITING)
    await world.backend.resume(KINDS[kind], now=world.now)
    same(await world.claim_ids(2), [first, rival], "order")
    await world.counters(first, 0, 0, 0)


@case_for_each(KINDS)
async def pausing_twice_is_pausing_once(world: World, kind: str) -> None:
    await world.enqueue_many(2, group="g")
    await world.backend.pause(KINDS[kind], now=world.now)
    async with world.unchanged("the same pause at the same time"):
        await world.backend.pause(KINDS[kind], now=world.now)
    same(len(await world.backend.pauses()), 1, "pauses")
    same(await world.backend.resume(KINDS[kind], now=world.now), True, "resume")
    async with world.unchanged("a second resume"):
        same(await world.backend.resume(KINDS[kind], now=world.now), False, "resume again")
    same(await world.backend.pauses(), [], "pauses")


@case
async def a_pause_keeps_who_when_and_why(world: World) -> None:
    pause = Pause(queue="default", reason="bad deploy", by="ann")
    await world.backend.pause(pause, now=world.now)
    [shown] = await world.backend.pauses()
    same((shown.queue, shown.group, shown.task), ("default", None, None), "what")
    same((shown.reason, shown.by, shown.paused_at), ("bad deploy", "ann", world.now), "why, who, when")


@case
async def pauses_of_three_kinds_stand_apart(world: World) -> None:
    for pause in KINDS.values():
        await world.backend.pause(pause, now=world.now)
    same(len(await world.backend.pauses()), 3, "pauses")
    job_id = await world.enqueue(group="g")
    for left, pause in ((2, QUEUE), (1, GROUP), (0, TASK)):
        await world.claim_none()
        same(await world.backend.resume(pause, now=world.now), True, "resume")
        same(len(await world.backend.pauses()), left, "pauses left")
    await world.claim_one(job_id)


@case
async def a_paused_queue_leaves_its_jobs_as_they_are(world: World) -> None:
    await world.enqueue_many(2)
    await world.enqueue_many(2, group="g")
    other = await world.enqueue(queue="other")
    before = await world.tables()
    await world.backend.pause(QUEUE, now=world.now)
    same((await world.tables())["jobs"], before["jobs"], "jobs")
    same(await world.claim_ids(9, queues=("default", "other")), [other], "other queues go on")


@case
async def a_paused_group_withdraws_its_ready_jobs_and_delays_no_other(world: World) -> None:
    await world.relaxed(2)
    ids = await world.enqueue_many(3, group="g")
    other = await world.enqueue(group="other")
    await world.backend.pause(GROUP, now=world.now)
    same(await world.states(ids), [State.WAITING] * 3, "states")
    same((await world.backend.group("default", "g")).limit, 0, "limit shown")
    same(await world.claim_ids(9), [other], "claimable")
    await world.backend.resume(GROUP, now=world.now)
    same(await world.states(ids), [State.READY] * 2 + [State.WAITING], "states once resumed")
    same(await world.claim_ids(9), ids[:2], "claimable once resumed")


@case
async def a_paused_group_of_one_queue_leaves_its_namesake_alone(world: World) -> None:
    await world.backend.pause(GROUP, now=world.now)
    other = await world.enqueue(queue="other", group="g")
    await world.claim_one(other, queues=("other",))


@case
async def a_parked_job_keeps_its_groups_place(world: World) -> None:
    """The head's task is paused: its strict group waits, and nothing behind it runs ahead."""
    head = await world.enqueue(group="g", task="paused")
    behind = await world.enqueue(group="g", task="fine")
    await world.backend.pause(Pause(task="paused"), now=world.now)
    same(await world.states([head, behind]), [State.READY, State.WAITING], "states")
    same((await world.row(head))["lane"], 2, "lane of a parked job")
    await world.claim_none()
    await world.backend.resume(Pause(task="paused"), now=world.now)
    same((await world.row(head))["lane"], 1, "lane once resumed")
    for job_id in (head, behind):
        await world.end(await world.claim_one(job_id))


@case
async def a_paused_task_is_parked_in_every_queue_and_keeps_its_turn(world: World) -> None:
    first = await world.enqueue(task="paused")
    second = await world.enqueue(task="fine")
    elsewhere = await world.enqueue(task="paused", queue="other")
    turn = (await world.row(first))["turn"]
    pause = Pause(task="paused")
    await world.backend.pause(pause, now=world.now)
    later = await world.enqueue(task="paused")
    same(await world.claim_ids(9, queues=("default", "other")), [second], "claimable")
    third = await world.enqueue(task="fine")
    await world.backend.resume(pause, now=world.now)
    same((await world.row(first))["turn"], turn, "turn")
    got = await world.claim_ids(9, queues=("default", "other"))
    same(got, [first, later, third, elsewhere], "order once resumed")


@case_for_each(["retry", "recover", "revive", "run_now"])
async def a_job_that_becomes_ready_while_its_task_is_paused_is_parked(world: World, way: str) -> None:
    if way == "run_now":
        start = await world.put(State.SCHEDULED)
    else:
        start = await world.put(State.DEAD if way == "revive" else State.RUNNING)
    await world.backend.pause(TASK, now=world.now)
    if way == "retry":
        await world.end(start.held, Ending.RETRY, delay=1.0)
        world.advance(2.0)
        await world.promote_all()
    elif way == "recover":
        await world.backend.recover(dead=["holder"], now=world.now)
    elif way == "revive":
        await world.backend.revive(start.id, now=world.now)
    else:
        await world.backend.run_now(start.id, now=world.now)
    await world.is_in(start.id, State.READY)
    await world.claim_none()
    await world.backend.resume(TASK, now=world.now)
    await world.claim_one(start.id)


@case
async def a_paused_job_can_be_cancelled_and_expires(world: World) -> None:
    cancelled = await world.enqueue(group="g")
    expired = await world.enqueue(task="other", expires=5.0)
    for pause in (*KINDS.values(), Pause(task="other")):
        await world.backend.pause(pause, now=world.now)
    await world.backend.cancel(cancelled, now=world.now)
    world.advance(6.0)
    await world.promote_all()
    same(await world.states([cancelled, expired]), [State.CANCELLED, State.DEAD], "states")


@case
async def claiming_from_what_is_paused_changes_nothing(world: World) -> None:
    await world.enqueue_many(2, group="g")
    await world.enqueue_many(2)
    await world.register("w1")
    await world.backend.pause(QUEUE, now=world.now)
    async with world.unchanged("claim from a paused queue", besides=CALLED):
        await world.claim_none()
