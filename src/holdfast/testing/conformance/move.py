"""Conformance of export and carry: another store becomes exactly like this one, and continues as it would have.

Called by run_case. What happens between two stores is played through the contract alone, piece by piece.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...errors import ConfigurationError, StateConflict, StoreSealed
from ...lifecycle import Ending, State
from ...rates import Rate
from ...records import (
    PARTS,
    CronEntry,
    Enqueued,
    Override,
    Part,
    Pause,
    QueueRule,
    Revival,
    Shipment,
    StoredJob,
    TaskRule,
    Tick,
)
from .compare import Tables, same, same_tables
from .cron import FULL, PLAIN, tick
from .keys import holders, kept, rival
from .registry import case, case_for_each
from .seal import SOURCE, TARGET, close, open_target
from .world import DAY, FOREVER, HOUR, World


async def pieces(world: World, limit: int = 500) -> list[Shipment]:
    """The whole store, piece by piece."""
    found: list[Shipment] = []
    for part in PARTS:
        after: str | None = ""
        while after is not None:
            found.append(await world.backend.export(part, after, limit=limit))
            assert len(found[-1].jobs) <= limit and len(found[-1].letters) <= limit, "a piece is bounded"
            after = found[-1].after
    return found


async def moved(world: World, limit: int = 500) -> World:
    """A second world whose store was filled by a move from this one's, and is open."""
    await close(world)
    return await carried(world, limit)


async def carried(world: World, limit: int = 500) -> World:
    """The same, of a store that is sealed already."""
    target = await world.another()
    target.now, target._jobs = world.now, world._jobs
    await close(target, TARGET)
    for piece in await pieces(world, limit):
        await target.backend.carry("m1", piece)
    await open_target(target)
    return target


async def content(world: World) -> Tables:
    """Everything but workers; letters by id, as stores order them by names of their own; lanes of ready jobs only."""
    tables = await world.tables()
    for job in tables["jobs"]:
        if job["state"] != State.READY:
            job["lane"] = None
    tables["letters"].sort(key=lambda letter: letter["id"])
    tables["pauses"].sort(key=repr)
    return {name: rows for name, rows in tables.items() if name != "workers"}


async def furnish(world: World) -> None:
    """A store with a bit of everything and no live lease."""
    await world.relaxed(3, "bulk")
    await world.strict("mail")
    await world.backend.limit(Override(queue="bulk", group="big", limit=2), now=world.now)
    options = b'{"timeout":3,"headers":{"tenant":"acme"}}'
    lease = await world.claim_one(await world.enqueue(args=b'{"x":1}', options=options), lease=FOREVER)
    await world.report(lease, progress=0.5, text="half", lines=("one", "two"))
    await world.end(lease, value=b'"done"', retain=5000.0)
    for _ in range(2):  # a letter with a history
        lease = await world.claim_one(await world.enqueue(key="k", revival=Revival(after=HOUR), args=b'{"n":2}'))
        await world.report(lease, lines=("it went wrong",))
        await world.end(lease, Ending.BURIED)
        world.advance(1.0)
    cancelled = await world.enqueue(priority=7)
    await world.backend.cancel(cancelled, now=world.now)
    lease = await world.claim_one(await world.enqueue(queue="mail", group="ann"), queues=("mail",))
    await world.enqueue(queue="mail", group="ann", priority=3)
    await world.end(lease, Ending.RETRY, delay=50.0)  # the head keeps its place while it backs off
    await world.enqueue_many(4, queue="bulk", group="big", priority=-2)
    await world.enqueue_many(2, queue="bulk", group="small", expires=DAY)
    lease = await world.claim_one(await world.enqueue(queue="stall", max_stalls=9), queues=("stall",), worker="gone")
    await world.backend.recover(dead=["gone"], now=world.now)
    suspect = await world.enqueue(queue="stall", priority=1)
    await world.end(await world.claim_one(suspect, queues=("stall",)), Ending.STALLED)
    revived = await world.put(State.DEAD, queue="again")
    await world.backend.revive(revived.id, now=world.now)
    await world.enqueue(delay=100.0, key="later", priority=-5)
    await world.enqueue(task="parked")
    await world.backend.pause(Pause(task="parked", reason="why", by="who"), now=world.now)
    await world.backend.pause(Pause(queue="bulk", group="small"), now=world.now)
    await world.backend.pause(Pause(queue="elsewhere", reason="x"), now=world.now)
    await _furnish_rules(world)
    await world.enqueue_many(3)


async def _furnish_rules(world: World) -> None:
    """Rules, overrides, buckets, cron entries, and keys held in every way."""
    rules = [QueueRule(name="slow", limit=5, rate=Rate(10, 60.0), group_rate=Rate(2, 1.0, 3), aging=4.5)]
    tasks = [TaskRule(name="apart", limit=4, rate=Rate(5, 60.0, 2)), TaskRule(name="kept", retain_count=3)]
    await world.backend.declare(rules, tasks, now=world.now)
    for said in (
        Override(queue="slow", limit=3),
        Override(task="apart", rate=Rate(1, 60.0)),
        Override(task="t", limit=9),
    ):
        await world.backend.limit(said, now=world.now)
    await world.backend.slow_down("bulk", 100.0, now=world.now)
    await world.enqueue_many(3, queue="slow", task="apart", priority=2)
    await world.end(await world.claim_one(queues=("slow",)))
    for entry in (CronEntry(name="nightly", cron="0 3 * * *", tz="Europe/Berlin", call=CALL, declared=True), HOURLY):
        await world.backend.tick(Tick(name=entry.name, version=0, entry=entry), now=world.now)
    await world.backend.tick(Tick(name="hourly", version=1, entry=replace(HOURLY, fired=1)), now=world.now)
    await world.claim_one(await world.enqueue(key="s", key_until="started"), worker="leaving")
    await world.backend.retire("leaving", now=world.now)  # it no longer holds its key
    await world.enqueue(key="s", key_until="started", delay=DAY)
    done = await world.claim_one(await world.enqueue(key="w", key_window=DAY, queue="keys"), queues=("keys",))
    await world.end(done, retain=0.0)
    wide = {"key": "v"} if world.backend.sharded else {"key": "w", "key_scope": "global"}  # which many shards refuse
    await world.enqueue(**wide, queue="keys", delay=50.0, wait_max=80.0)
    await world.enqueue(key="x", delay=50.0, expires=10.0, on_expire="drop")


CALL = b'{"task":"work"}'
HOURLY = CronEntry(name="hourly", call=CALL, every=3600.0, anchor=7.5, overlap="skip", next_at=9.5, last_job="x")


# ---------------------------------------------------------------------- export and carry


@case_for_each([1, 2, 3, 500])
async def a_store_is_carried_whole_in_pieces_of_any_size(world: World, limit: int) -> None:
    await furnish(world)
    before = await content(world)
    target = await moved(world, limit)
    same_tables(before, await content(target), f"moved in pieces of {limit}")
    same_tables(before, await content(world), "the source after the move")
    async with world.refused(StoreSealed, "enqueue on the source"):
        await world.enqueue()


@case
async def carrying_a_piece_again_changes_nothing(world: World) -> None:
    await furnish(world)
    target = await world.another()
    await close(world)
    await close(target, TARGET)
    for piece in await pieces(world, 2):
        await target.backend.carry("m1", piece)
        seal = await target.backend.sealed()
        async with target.unchanged("the same piece again"):
            await target.backend.carry("m1", piece)
        same(await target.backend.sealed(), seal, "the place that is remembered")
    same_tables(await content(world), await content(target), "each piece carried twice")


@case
async def the_target_remembers_how_far_it_is(world: World) -> None:
    await furnish(world)
    target = await world.another()
    await close(world)
    await close(target, TARGET)
    while True:  # every piece is asked for from the place the target remembers, as after a crash
        seal = await target.backend.sealed()
        assert seal is not None, "a target has a seal"
        if seal.part is None:
            break
        await target.backend.carry("m1", await world.backend.export(seal.part, seal.after, limit=3))
    same_tables(await content(world), await content(target), "carried from place to place")


@case
async def only_the_target_of_that_move_is_carried_to(world: World) -> None:
    piece = Shipment(part="rules", queues=(QueueRule(name="q"),))
    async with world.refused(ConfigurationError, "carry into a store that is in no move"):
        await world.backend.carry("m1", piece)
    await close(world, TARGET)
    async with world.refused(StoreSealed, "carry of another move"):
        await world.backend.carry("m2", piece)
    await open_target(world)
    async with world.refused(ConfigurationError, "carry into a target that is open"):
        await world.backend.carry("m1", piece)
    source = await world.another()
    await close(source)
    async with source.refused(StoreSealed, "carry into a source"):
        await source.backend.carry("m1", piece)


@case
async def an_abandoned_target_takes_nothing_in_and_never_opens_by_carrying(world: World) -> None:
    await close(world, TARGET)
    same(await world.backend.seal(replace(TARGET, stage="abandoned"), instead_of=TARGET), True, "abandoned")
    async with world.refused(StoreSealed, "carry into an abandoned target"):
        await world.backend.carry("m1", Shipment(part="rules"))


@case
async def a_running_job_is_never_carried(world: World) -> None:
    await world.leased(1)
    piece = await world.backend.export("jobs")
    target = await world.another()
    await close(target, TARGET)
    async with target.refused(ConfigurationError, "carry of a running job"):
        await target.backend.carry("m1", piece)


@case_for_each(["in one piece", "in two"])
async def two_live_jobs_of_one_key_are_not_carried_into_one_store(world: World, how: str) -> None:
    await world.enqueue(key="k")
    [job] = (await world.backend.export("jobs")).jobs
    target = await world.another()
    await close(target, TARGET)
    if how == "in two":
        await target.backend.carry("m1", Shipment(part="jobs", jobs=(job,), after=str(job.seq)))
    twin = replace(job, id="twin", seq=job.seq + 1)
    async with target.refused(ConfigurationError, "carry of a second live job of a key"):
        await target.backend.carry("m1", Shipment(part="jobs", jobs=(job, twin)))
    ended = {"state": State.CANCELLED, "finished_at": world.now, "prune_at": world.now + DAY, "turn": None}
    finished = replace(twin, holds_key=False, **ended)
    await target.backend.carry("m1", Shipment(part="jobs", jobs=(job, finished)))
    same(await target.states([job.id, "twin"]), [State.READY, State.CANCELLED], "one live, one ended")


@case
async def a_group_is_not_refilled_before_it_is_whole(world: World) -> None:
    """The job in play came last, by its priority: what came before it must not slip in while it is on its way."""
    first = await world.enqueue(group="g")
    lease = await world.claim_one(first)
    behind = await world.enqueue_many(3, group="g")
    urgent = await world.enqueue(group="g", priority=9)
    await world.end(lease)
    await world.is_in(urgent, State.READY)
    target = await world.another()
    await close(world)
    await close(target, TARGET)
    for piece in await pieces(world, 1):
        await target.backend.carry("m1", piece)
        await target.register("early")  # somebody who cannot wait for the move to end
        same(await target.claim(5, "early"), [], "claimed meanwhile")
    await open_target(target)
    await target.is_in(urgent, State.READY)
    same(await target.states(behind), [State.WAITING] * 3, "those behind it")
    same(await target.claim_ids(5, lease=FOREVER), [urgent], "what is claimed")


@case_for_each([1, 500])
async def claims_come_in_the_order_the_source_would_have_given(world: World, limit: int) -> None:
    twin = await world.another()
    for one in (world, twin):
        await furnish(one)
    target = await moved(world, limit)
    for one in (target, twin):
        one.advance(200.0)
    queues = ("default", "mail", "bulk", "stall", "again", "slow", "keys")
    orders: list[list[str]] = []
    for one in (target, twin):
        order: list[str] = []
        for _ in range(12):
            leases = await one.claim(2, worker="mover", lease=FOREVER, queues=queues)
            order += [lease.id for lease in leases]
            for lease in leases:
                await one.end(lease)
        orders.append(order)
    same(orders[0], orders[1], "order of claims after the move")
    assert len(orders[0]) > 8, "there was something to compare"


@case
async def fences_go_on_growing_although_the_clock_went_back(world: World) -> None:
    job = await world.enqueue(group="g")
    lease = await world.claim_one(job)
    await world.give_back(lease)
    target = await moved(world)
    target.now -= 30 * DAY
    again = await target.claim_one(job, lease=FOREVER)
    assert again.fence > lease.fence, "the fence of a job grows across a move"
    await target.end(again)
    later = await target.claim_one(await target.enqueue(group="g"))
    assert later.fence > again.fence, "and so does that of its group"


@case
async def new_jobs_queue_behind_the_carried_ones(world: World) -> None:
    old = await world.enqueue_many(15, group="g")
    loose = await world.enqueue_many(15)
    target = await moved(world)
    new = [await target.enqueue(group="g"), await target.enqueue()]
    seqs = [(await target.get(job_id)).seq for job_id in (*old, *loose, *new)]
    same(seqs, sorted(set(seqs)), "seqs in order of enqueue")
    got: list[str] = []
    for _ in range(40):
        for lease in await target.claim(1, lease=FOREVER):
            got.append(lease.id)
            await target.end(lease)
    same([job for job in got if job in (*old, new[0])], [*old, new[0]], "the group's order")
    same([job for job in got if job in (*loose, new[1])], [*loose, new[1]], "the others' order")


@case
async def a_repeated_enqueue_of_a_carried_id_makes_no_second_job(world: World) -> None:
    lease = (await world.leased(1))[0]
    await world.end(lease)
    target = await moved(world)
    [answer] = await target.backend.enqueue([target.job(id=lease.id)], now=target.now)
    same((answer.id, answer.created), (lease.id, False), "enqueue of a carried id")


@case
async def a_carried_key_is_still_taken(world: World) -> None:
    live = await world.enqueue(key="k")
    target = await moved(world)
    [answer] = await target.backend.enqueue([target.job(id="other", key="k")], now=target.now)
    same((answer.id, answer.created), (live, False), "enqueue with a carried key")


@case
async def a_carried_letter_is_merged_when_its_job_dies_again(world: World) -> None:
    first = await world.enqueue(key="k", args=b'{"n":1}')
    await world.end(await world.claim_one(first), Ending.BURIED)
    target = await moved(world)
    target.advance(60.0)
    await target.backend.revive(first, now=target.now)
    await target.end(await target.claim_one(first, lease=FOREVER), Ending.BURIED)
    letter = await target.letter(first)
    same((letter.failure_count, len(letter.history)), (2, 1), "deaths and history of the letter")
    assert letter.first_failed_at < letter.failed_at, "the first failure is the source's"


@case
async def an_automatic_revival_comes_when_the_source_would_have_made_it(world: World) -> None:
    job = await world.enqueue(revival=Revival(after=HOUR))
    await world.end(await world.claim_one(job), Ending.BURIED)
    target = await moved(world)
    target.advance(HOUR + 1.0)
    same((await target.backend.promote(now=target.now)).revived, 1, "letters revived")


@case
async def retention_goes_on_in_the_target(world: World) -> None:
    [lease] = await world.leased(1)
    await world.end(lease, retain=5000.0)
    target = await moved(world)
    target.advance(4999.0)
    same(await target.backend.prune(now=target.now), 0, "pruned too early")
    target.advance(2.0)
    same(await target.backend.prune(now=target.now), 1, "pruned in time")


@case
async def a_target_can_be_the_source_of_the_next_move(world: World) -> None:
    await furnish(world)
    before = await content(world)
    second = await moved(world)
    seal = await second.backend.sealed()
    third = await second.another()
    same(await second.backend.seal(replace(SOURCE, move="m2"), instead_of=seal), True, "sealed as a source")
    await close(third, replace(TARGET, move="m2"))
    for piece in await pieces(second, 4):
        await third.backend.carry("m2", piece)
    same_tables(before, await content(third), "after two moves")


@case
async def an_empty_store_can_be_moved(world: World) -> None:
    target = await moved(world)
    await target.claim_one(await target.enqueue())


@case_for_each(sorted(PARTS))
async def export_changes_nothing(world: World, part: Part) -> None:
    await furnish(world)
    async with world.unchanged(f"export of {part}"):
        piece = await world.backend.export(part, limit=2)
    assert all(isinstance(job, StoredJob) for job in piece.jobs), "jobs as they are carried"


# ----------------------------------------------------------------------------------------------------------------------
# A move: rules, overrides, buckets, cron entries and keys go on in the target as in the source.


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
