"""Conformance of a move: rules, overrides, buckets, cron entries and keys go on in the target as in the source.

Called by run_case. That all of it is carried to the letter is shown in moving; here it is used after the move.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...errors import ConfigurationError, StateConflict
from ...lifecycle import Ending, State
from ...rates import Rate
from ...records import Enqueued, Override, QueueRule, Shipment, TaskRule, Tick
from .compare import same
from .cron import FULL, PLAIN, tick
from .keys import holders, kept, rival
from .move import moved
from .registry import case, case_for_each
from .seal import TARGET, close
from .world import DAY, FOREVER, World


@case
async def rules_go_in_one_piece_whole(world: World) -> None:
    rules = [QueueRule(name="q", group_limit=3, group_order="relaxed", limit=4, rate=Rate(9, 60.0, 2), aging=1.5)]
    tasks = [TaskRule(name="a", apart=True), TaskRule(name="b", limit=2, retain_dead=50.0)]
    await world.backend.declare(rules, tasks, now=world.now)
    for said in (Override(queue="q", limit=2), Override(queue="q", group="g", limit=2), Override(task="b", limit=1)):
        await world.backend.limit(said, now=world.now)
    await world.backend.slow_down("q", 60.0, now=world.now)
    await tick(world, 0, FULL)
    piece = await world.backend.export("rules", limit=1)
    same((piece.queues, piece.tasks, piece.after), (tuple(rules), tuple(tasks), None), "rules")
    words = {(x.queue, x.group, x.task): x.limit for x in piece.overrides}
    same(words, {("q", None, None): 2, ("q", "g", None): 2, (None, None, "b"): 1}, "overrides")
    same([(x.queue, x.shut_until) for x in piece.flows], [("q", world.now + 60.0)], "buckets")
    same(piece.entries, (replace(FULL, version=1),), "entries")


@case
async def task_rules_and_operators_words_hold_in_the_target(world: World) -> None:
    await world.backend.declare([], [TaskRule(name="work", limit=5, retain_count=1)], now=world.now)
    await world.backend.limit(Override(task="work", limit=1), now=world.now)
    await world.enqueue_many(3)
    before = await world.backend.tasks()
    target = await moved(world)
    same(await target.backend.tasks(), before, "tasks")
    same(len(await target.claim(3, lease=FOREVER)), 1, "what the operator's limit lets run")


@case
async def a_slow_down_holds_in_the_target(world: World) -> None:
    job_id = await world.enqueue()
    until = await world.backend.slow_down("default", 60.0, now=world.now)
    target = await moved(world)
    await target.claim_none(lease=FOREVER)
    target.now = until
    await target.claim_one(job_id)


@case
async def a_spent_bucket_is_spent_in_the_target(world: World) -> None:
    await world.backend.declare([QueueRule(name="default", rate=Rate(1, 60.0))], now=world.now)
    first, second = await world.enqueue_many(2)
    await world.end(await world.claim_one(first))
    target = await moved(world)
    await target.claim_none(lease=FOREVER)
    target.advance(61.0)
    await target.claim_one(second)


@case
async def a_cron_entry_goes_on_in_the_target_by_its_version(world: World) -> None:
    await tick(world, 0, FULL)
    await tick(world, 1, PLAIN)
    target = await moved(world)
    same(await target.backend.entries(), [replace(PLAIN, version=2)], "entries")
    async with target.unchanged("a write decided on an older version"):
        same((await tick(target, 1, FULL, [target.job()])).done, False, "done")
    job = target.job()
    answer = await tick(target, 2, FULL, [job])
    same((answer.done, answer.enqueued), (True, (Enqueued(job.id, True),)), "the next tick")


@case
async def the_previous_job_of_an_entry_is_known_in_the_target(world: World) -> None:
    job = world.job()
    await tick(world, 0, PLAIN, [job])
    target = await moved(world)
    answer = await tick(target, 1, PLAIN, [target.job()], overlap="skip", previous=job.id, entry_if_skipped=FULL)
    same(answer.skipped, True, "skipped")


@case
async def an_entry_that_was_carried_is_not_carried_over(world: World) -> None:
    entry = replace(PLAIN, version=5, fired=5)
    await close(world, TARGET)
    await world.backend.carry("m1", Shipment(part="rules", entries=(entry,), after="x"))
    async with world.unchanged("another entry of that name"):
        other = replace(entry, version=9, fired=9)
        await world.backend.carry("m1", Shipment(part="rules", entries=(other,), after="x"))
    same(await world.backend.entries(), [entry], "entries")


@case
async def a_window_goes_on_in_the_target(world: World) -> None:
    done = await world.put(State.SUCCEEDED, key="k", key_window=3 * DAY)
    target = await moved(world)
    target.advance(2 * DAY)
    same(await target.backend.prune(now=target.now), 0, "pruned within the window")
    await kept(target, done.id)
    target.advance(DAY)
    second = await target.enqueue(key="k")
    same(await holders(target), [second], "holders")


@case
async def a_key_until_started_is_held_by_the_same_job_in_the_target(world: World) -> None:
    first = await world.enqueue(key="k", key_until="started")
    await world.give_back(await world.claim_one(first))
    second = await world.enqueue(key="k", key_until="started")
    target = await moved(world)
    same(await holders(target), [second], "holders")
    same(sorted(await target.claim_ids(5, lease=FOREVER)), [first, second], "both run")
    assert (await rival(target, key_until="started")).created, "the key is free once both run"


@case
async def a_push_in_the_target_keeps_to_the_maximum(world: World) -> None:
    created = world.now
    job_id = await world.enqueue(key="k", delay=30.0, wait_max=100.0)
    target = await moved(world)
    target.advance(20.0)
    same(await rival(target, on_conflict="debounce", delay=400.0), Enqueued(job_id, False, True), "answer")
    same((await target.get(job_id)).due_at, created + 100.0, "due_at")


@case
async def a_job_to_be_dropped_is_dropped_in_the_target(world: World) -> None:
    job_id = await world.enqueue(expires=30.0, on_expire="drop")
    target = await moved(world)
    target.advance(31.0)
    await target.promote_all()
    await target.is_in(job_id, State.CANCELLED)


@case
async def a_job_comes_back_in_the_target_only_if_nobody_holds_its_key(world: World) -> None:
    dead = await world.put(State.DEAD, key="k")
    live = await world.enqueue(key="k")
    target = await moved(world)
    async with target.refused(StateConflict, "revive while the key is held"):
        await target.backend.revive(dead.id, now=target.now)
    await target.end(await target.claim_one(live, lease=FOREVER), Ending.CANCELLED)
    same(await holders(target), [], "holders")


@case_for_each(["queue", "global"])
async def two_holders_of_one_key_are_not_carried_into_one_store(world: World, scope: str) -> None:
    """Finished or not: within a window both would count."""
    await world.put(State.SUCCEEDED, key="k", key_scope=scope, key_window=DAY)
    [job] = (await world.backend.export("jobs")).jobs
    target = await world.another()
    await close(target, TARGET)
    await target.backend.carry("m1", Shipment(part="jobs", jobs=(job,), after=str(job.seq)))
    twin = replace(job, id="twin", seq=job.seq + 1)
    async with target.refused(ConfigurationError, "carry of a second holder"):
        await target.backend.carry("m1", Shipment(part="jobs", jobs=(twin,)))
    await target.backend.carry("m1", Shipment(part="jobs", jobs=(replace(twin, holds_key=False),)))
    same(await holders(target), [job.id], "holders")


@case
async def jobs_of_one_key_of_which_one_holds_it_are_carried_together(world: World) -> None:
    first = await world.enqueue(key="k", key_window=10.0)
    world.advance(10.0)
    second = await world.enqueue(key="k", key_window=10.0)
    wide = await world.enqueue(key="k", key_scope="global")
    target = await moved(world, 1)
    same(await target.states([first, second, wide]), [State.READY] * 3, "states")
    same(sorted(await holders(target)), [second, wide], "holders")


@case
async def a_declared_entry_does_not_keep_a_store_from_being_a_target(world: World) -> None:
    entry = replace(PLAIN, declared=True)
    await world.backend.tick(Tick(name="e", version=0, entry=entry), now=world.now)
    await close(world, TARGET)
    carried = replace(entry, version=8, fired=7)
    await world.backend.carry("m1", Shipment(part="rules", entries=(carried,), after="x"))
    same(await world.backend.entries(), [carried], "the one that came with the move")
