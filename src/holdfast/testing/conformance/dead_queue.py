"""Conformance of dead_queue (R120): a job that dies leaves a copy in another queue, one for each death.

Called by run_case. Every way to die, what a copy is, what it is not, and where copies of copies end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...dead_copies import Death, deaths_of, is_copy
from ...errors import ConfigurationError
from ...headers import headers_of
from ...lifecycle import Ending, State
from ...records import Answer, Edit, JobQuery, JobRecord, QueueRule, Revival
from .compare import same
from .concurrency import PATIENCE_SECONDS
from .dead_letters import die
from .move import carried, moved
from .registry import case, case_for_each
from .seal import close
from .world import DAY, FOREVER, World

WAYS = ("settle", "stall", "recover", "expire", "bury", "parent")
REASONS = {"settle": "failed", "stall": "crash", "recover": "stalled", "expire": "expired"}


async def _declare(world: World, queue: str = "default", to: str | None = "morgue") -> None:
    await world.backend.declare([QueueRule(name=queue, dead_queue=to)], now=world.now)


async def _copies(world: World, queue: str = "morgue") -> list[JobRecord]:
    """The jobs of that queue, oldest first; all of them are in play."""
    await world.promote_all()
    found = await world.backend.find(JobQuery(queue=queue))
    return sorted(found, key=lambda job: job.seq)


async def _copy(world: World, queue: str = "morgue") -> JobRecord:
    copies = await _copies(world, queue)
    same(len(copies), 1, f"jobs in {queue}")
    return copies[0]


async def _die(world: World, way: str, **fields: Any) -> str:
    """Store a job and let it die."""
    if way == "expire":
        job_id = await world.enqueue(expires=5.0, **fields)
        world.advance(6.0)
        await world.promote_all()
    elif way == "bury":
        job_id = await world.enqueue(**fields)
        await world.backend.bury(job_id, "no more", now=world.now)
    elif way == "parent":
        parent = await world.enqueue(queue="parents")
        job_id = await world.enqueue(after=(parent,), **fields)
        await world.backend.bury(parent, "", now=world.now)
        await world.promote_all()
    else:
        job_id = await world.enqueue(max_stalls=0, **fields)
        worker = f"worker of {job_id}"
        lease = await world.claim_one(job_id, worker, lease=30.0 if way == "recover" else FOREVER)
        await world.begin(lease)
        if way == "recover":
            await world.expire_worker(worker)
            await world.backend.recover(now=world.now)
        else:
            await world.end(lease, Ending.BURIED if way == "settle" else Ending.STALLED)
    await world.is_in(job_id, State.DEAD)
    return job_id


@case_for_each(WAYS)
async def every_way_to_die_leaves_one_copy(world: World, way: str) -> None:
    await _declare(world)
    dead = await _die(world, way, task="mail", args=b"[1]", key="k", group="g", priority=4)
    copy = await _copy(world)
    same((copy.task, copy.args, copy.priority, copy.group), ("mail", b"[1]", 4, "g"), "what the copy has of the job")
    same((copy.key, copy.holds_key, copy.revival, copy.expires_at), (None, False, None, None), "what it has not")
    same((copy.attempts, copy.failures, copy.stalls, copy.errors), (0, 0, 0, ()), "its budgets")
    same(copy.state, State.READY, "its state")
    reason = REASONS.get(way, way)
    same(deaths_of(copy.options), (Death("default", dead, reason),), "what it is a copy of")
    same(copy.id, f"{dead}.1.{int(world.now * 1_000_000)}", "its id")
    letter = await world.letter(dead)
    same((letter.failure_count, letter.reason, letter.queue), (1, reason, "default"), "the dead letter")
    lease = await world.claim_one(copy.id, "w9", queues=("morgue",), lease=FOREVER)
    told = {"dead-id": dead, "dead-queue": "default", "dead-reason": reason}
    same(headers_of(lease.options), told, "headers of its lease")
    await world.end(lease)
    await world.is_in(dead, State.DEAD)


@case_for_each(WAYS)
async def without_a_dead_queue_no_copy_is_made(world: World, way: str) -> None:
    await _declare(world, "other")
    await _die(world, way)
    same(await _copies(world), [], "copies")
    await _declare(world)
    await _declare(world, to=None)
    await _die(world, way)
    same(await _copies(world), [], "copies after the rule was taken back")


OPTIONS = {
    "none": None,
    "empty": b"{}",
    "by": b'{"by":"app"}',
    "headers": b'{"by":"app","headers":{"tags":"vip","note":"\\"dead\\":[{\\"queue\\":\\"morgue\\","}}',
    "more": b'{"timeout":5.0,"retry":{"attempts":3}}',
}


@case_for_each(list(OPTIONS))
async def a_copy_has_the_options_of_the_job_and_says_whose_it_is(world: World, which: str) -> None:
    options = OPTIONS[which]
    await _declare(world)
    dead = await world.enqueue(options=options)
    await die(world, dead)
    copy = await _copy(world)
    assert copy.options is not None, "a copy has options"
    same(deaths_of(copy.options), (Death("default", dead, "failed"),), "whose copy it is")
    begins = b"{" if options is None or options == b"{}" else options[:-1] + b","
    same(copy.options[: len(begins)], begins, "the job's own options")
    same((await world.get(dead)).options, options, "options of the dead job")
    own = {name: text for name, text in headers_of(copy.options).items() if not name.startswith("dead-")}
    same(own, headers_of(options), "headers")


@case
async def names_are_escaped_in_what_a_copy_says(world: World) -> None:
    queue = 'a"b\\c/é'
    await _declare(world, queue)
    await _declare(world, "morgue", queue)
    await world.backend.enqueue([world.job(queue=queue, id='x"\\y')], now=world.now)
    await world.backend.bury('x"\\y', "", now=world.now)
    copy = await _copy(world)
    same(deaths_of(copy.options), (Death(queue, 'x"\\y', "bury"),), "whose copy it is")
    await world.backend.bury(copy.id, "", now=world.now)
    same([job.id for job in await _copies(world, queue)], ['x"\\y'], "the loop ends")


@case
async def a_settlement_that_is_repeated_makes_no_second_copy(world: World) -> None:
    await _declare(world)
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id, lease=FOREVER)
    request = world.request("w1", 1)
    settlement = world.settlement(lease, Ending.BURIED)
    for _ in range(2):  # the reply was lost, and the call is repeated
        await world.backend.exchange([settlement], [], request, now=world.now)
    same(await world.settle(lease, Ending.BURIED), Answer.LOST, "a stale settlement")
    world.advance(1.0)
    same(await world.settle(lease, Ending.BURIED), Answer.LOST, "a late settlement")
    await _copy(world)


@case
async def every_death_leaves_a_copy_of_its_own(world: World) -> None:
    await _declare(world)
    job_id = await world.enqueue(args=b"[1]")
    for number in range(1, 4):
        await die(world, job_id)
        same(len(await _copies(world)), number, "copies")
        await world.backend.revive(job_id, now=world.now)
    same({copy.args for copy in await _copies(world)}, {b"[1]"}, "arguments")


@case
async def a_death_after_a_success_leaves_a_copy_too(world: World) -> None:
    await _declare(world)
    job_id = await world.enqueue()
    await die(world, job_id)
    await world.backend.revive(job_id, now=world.now)
    await world.end(await world.claim_one(job_id))
    same(len(await _copies(world)), 1, "the success of a revived job leaves the copy alone")
    world.advance(0.5)
    await world.backend.retry(job_id, now=world.now)
    await die(world, job_id)
    same((await world.letter(job_id)).failure_count, 1, "the letter is a new one")
    same(len(await _copies(world)), 2, "copies")


@case
async def an_automatic_revival_that_fails_leaves_another_copy(world: World) -> None:
    await _declare(world)
    job_id = await world.enqueue(revival=Revival(after=10.0))
    await die(world, job_id)
    world.advance(11.0)
    await world.promote_all()
    await die(world, job_id)
    same([copy.revival for copy in await _copies(world)], [None, None], "copies")


@case
async def copies_of_a_group_keep_their_order_and_their_turns(world: World) -> None:
    await _declare(world)
    ids = [await world.enqueue(group="g") for _ in range(3)]
    for job_id in ids:
        await die(world, job_id)
        world.advance(1.0)
    for job_id in ids:
        [lease] = await world.claim(5, "w9", queues=("morgue",), lease=FOREVER)
        same([death.id for death in deaths_of(lease.options)], [job_id], "whose turn it is")
        await world.end(lease)


@case
async def a_copy_keeps_the_order_that_its_caller_gave(world: World) -> None:
    await _declare(world)
    await world.backend.declare([QueueRule(name="morgue", order_window=60.0)], now=world.now)
    job_id = await world.enqueue(group="g", order=7)
    await die(world, job_id)
    copy = await _copy(world)
    same((copy.order, copy.due_at, copy.state), (7, world.now, State.READY), "order, due time and state")


@case
async def a_copy_takes_no_key(world: World) -> None:
    await _declare(world)
    await die(world, await world.enqueue(key="k", key_window=DAY))
    same((await _copy(world)).key, None, "key")
    there = await world.enqueue(queue="morgue", key="k")
    same((await world.get(there)).holds_key, True, "the key in the other queue is free")


@case
async def copies_go_on_from_queue_to_queue(world: World) -> None:
    await _declare(world)
    await _declare(world, "morgue", "archive")
    dead = await world.enqueue(options=b'{"by":"app"}')
    await die(world, dead)
    first = await _copy(world)
    world.advance(1.0)
    await world.backend.bury(first.id, "", now=world.now)
    second = await _copy(world, "archive")
    deaths = (Death("morgue", first.id, "bury"), Death("default", dead, "failed"))
    same(deaths_of(second.options), deaths, "the way it came")
    await world.backend.bury(second.id, "", now=world.now)
    same((await world.letter(second.id)).queue, "archive", "a death at the end is a dead letter there")


@case
async def a_loop_of_queues_ends(world: World) -> None:
    await _declare(world)
    await _declare(world, "morgue", "default")
    dead = await world.enqueue()
    await die(world, dead)
    copy = await _copy(world)
    await world.backend.bury(copy.id, "", now=world.now)
    same([job.id for job in await _copies(world, "default")], [dead], "jobs of the first queue")
    await world.backend.revive(copy.id, now=world.now)
    await world.backend.bury(copy.id, "", now=world.now)
    same([job.id for job in await _copies(world, "default")], [dead], "after one more death")


@case
async def a_copy_that_is_put_back_may_die_again(world: World) -> None:
    await _declare(world)
    dead = await world.enqueue()
    await die(world, dead)
    copy = await _copy(world)
    if world.backend.sharded:  # there a job stays in the shards of its queue
        return
    await world.backend.edit(copy.id, Edit(queue="default"), now=world.now)
    await die(world, copy.id)
    again = await _copy(world)
    same([death.id for death in deaths_of(again.options)], [copy.id, dead], "the way it came")


@case
async def deaths_of_one_call_leave_a_copy_each(world: World) -> None:
    await _declare(world)
    ids = await world.enqueue_many(5)
    leases = await world.claim(5, lease=FOREVER)
    ends = [world.settlement(lease, Ending.BURIED if place else Ending.SUCCEEDED) for place, lease in enumerate(leases)]
    same(await world.backend.settle(ends, now=world.now), [Answer.OK] * 5, "answers")
    copies = await _copies(world)
    same({deaths_of(copy.options)[0].id for copy in copies}, set(ids) - {leases[0].id}, "copies")
    same(len(await world.claim(9, "w9", queues=("morgue",), lease=FOREVER)), 4, "copies that are claimed")


@case
async def a_deleted_or_discarded_dead_job_leaves_its_copy_alone(world: World) -> None:
    await _declare(world)
    for verb in ("discard", "delete"):
        job_id = await world.enqueue()
        await die(world, job_id)
        await getattr(world.backend, verb)(job_id, now=world.now)
    world.advance(DAY)
    await world.backend.prune(now=world.now)
    same([copy.state for copy in await _copies(world)], [State.READY] * 2, "copies")


@case
async def a_job_that_is_dropped_or_cancelled_leaves_no_copy(world: World) -> None:
    await _declare(world)
    await world.enqueue(expires=5.0, on_expire="drop")
    world.advance(6.0)
    await world.promote_all()
    await world.backend.cancel(await world.enqueue(), now=world.now)
    await world.end(await world.claim_one(await world.enqueue(), lease=FOREVER), Ending.CANCELLED)
    same(await _copies(world), [], "copies")


@case
async def the_rule_is_shown_and_moves_with_the_copies(world: World) -> None:
    await _declare(world)
    dead = await world.enqueue()
    await die(world, dead)
    for place in (world, await moved(world)):
        [queue] = [queue for queue in await place.backend.queues() if queue.name == "default"]
        same(queue.dead_queue, "morgue", "dead_queue")
        if place is not world:
            same(len(await _copies(place)), 1, "copies that moved")
            await place.backend.revive(dead, now=place.now)
            await place.backend.bury(dead, "", now=place.now)
            same(len(await _copies(place)), 2, "copies there")


@case
async def a_job_that_dies_in_a_sealed_store_leaves_a_copy_that_moves(world: World) -> None:
    await _declare(world)
    dead = await world.enqueue()
    lease = await world.claim_one(dead, lease=FOREVER)
    await close(world)
    await world.end(lease, Ending.BURIED)
    target = await carried(world)
    copy = await _copy(target)
    assert is_copy(copy.options), "the copy moved"


@case
async def a_queue_does_not_name_itself(world: World) -> None:
    async with world.refused(ConfigurationError, "a queue that names itself"):
        await _declare(world, "default", "default")


@case
async def who_waits_for_work_in_the_other_queue_is_woken(world: World) -> None:
    await _declare(world)
    waiting = asyncio.create_task(world.backend.wait_for_work(("morgue",), 10 * PATIENCE_SECONDS))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not waiting.done():  # the first deaths may come before it listens
            job = world.job()
            await world.backend.enqueue([job])
            await world.backend.bury(job.id, "")
            await asyncio.wait([waiting], timeout=0.05)


@case
async def a_header_that_names_the_other_queue_changes_nothing(world: World) -> None:
    await _declare(world)
    headers = b'{"headers":{"queue":"morgue","tenant":"a"}}'
    dead = await _die(world, "settle", options=headers)
    copy = await _copy(world)
    same([death.id for death in deaths_of(copy.options)], [dead], "whose copy it is")
