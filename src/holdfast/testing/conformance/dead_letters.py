"""Conformance of dead letters: one per logical job, merged in the step that ends the lease, closed by success.

Called by run_case. Automatic revival is in revival.
"""

from __future__ import annotations

import asyncio

from ...errors import JobNotFound, StateConflict
from ...lifecycle import LIVE, Ending, Failure, State
from ...records import HISTORY_KEPT_MAX, DeadLetter, LetterQuery, Revival
from .compare import same
from .move import moved
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World


async def die(world: World, job_id: str, text: str = "no", reason: str = "failed") -> None:
    """Claim that job and let it die."""
    lease = await world.claim_one(job_id, lease=FOREVER)
    failure = Failure(type="builtins.ValueError", text=text)
    await world.end(lease, Ending.BURIED, reason=reason, failure=failure)


async def _only(world: World) -> DeadLetter:
    letters = await world.backend.letters(LetterQuery())
    same(len(letters), 1, "dead letters")
    return letters[0]


@case
async def a_death_makes_a_letter_that_says_all(world: World) -> None:
    job_id = await world.enqueue(task="mail", queue="default", key="k", group="g", args=b"[1]")
    world.advance(9.0)
    await die(world, job_id, "boom", reason="timeout")
    letter = await _only(world)
    same((letter.id, letter.task, letter.queue, letter.key), (job_id, "mail", "default", "k"), "whose it is")
    same((letter.group, letter.args, letter.reason), ("g", b"[1]", "timeout"), "what it keeps")
    same((letter.failure_count, letter.history, letter.cycles), (1, (), 0), "the first death")
    same((letter.first_failed_at, letter.failed_at), (world.now, world.now), "times")
    same((letter.revive_at, letter.revived_at), (None, None), "revival")
    assert letter.error is not None, "a letter keeps the latest error"
    same((letter.error.text, letter.error.at), ("boom", world.now), "its error")
    same(await world.letter(job_id), letter, "letter by job id")


@case
async def a_letter_is_read_with_the_options_of_its_job_also_after_a_move(world: World) -> None:
    options = b'{"headers":{"tags":"vip"}}'
    tagged = await world.enqueue(options=options, args=b"[1]")
    await die(world, tagged)
    plain = await world.enqueue()
    await die(world, plain)
    for place in (world, await moved(world)):
        found = {letter.id: letter.options for letter in await place.backend.letters(LetterQuery())}
        same(found, {tagged: options, plain: None}, "options")
        letter = await place.letter(tagged)
        assert letter is not None
        same((letter.options, letter.args), (options, b"[1]"), "letter by job id")


@case
async def a_retry_makes_no_letter(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.RETRY)
    same(await world.backend.letters(LetterQuery()), [], "dead letters")


@case_for_each([None, "k"], name=lambda key: f"key {key}")
async def five_revivals_leave_one_letter_that_counts_six(world: World, key: str | None) -> None:
    job_id = await world.enqueue(key=key)
    await die(world, job_id, "death 0")
    first = await _only(world)
    for cycle in range(1, 6):
        world.advance(HOUR)
        await world.backend.revive(job_id, now=world.now)
        await die(world, job_id, f"death {cycle}")
    letter = await _only(world)
    same((letter.failure_count, letter.id), (6, job_id), "count and job")
    same((letter.first_failed_at, letter.failed_at), (first.first_failed_at, world.now), "times")
    same([past.job_id for past in letter.history], [job_id] * 5, "history")
    assert [past.at for past in letter.history] == sorted(past.at for past in letter.history), "oldest first"
    same((letter.revived_at, letter.cycles), (None, 0), "revived by hand, and dead again")
    same(len((await world.tables())["jobs"]), 1, "jobs in all")


@case
async def a_letters_history_is_bounded(world: World) -> None:
    job_id = await world.enqueue()
    total = HISTORY_KEPT_MAX + 4
    for n in range(total):
        await die(world, job_id, f"death {n}")
        if n < total - 1:
            await world.backend.revive(job_id, now=world.now)
        world.advance(1.0)
    letter = await _only(world)
    same((letter.failure_count, len(letter.history)), (total, HISTORY_KEPT_MAX), "count and history")
    same(letter.history[-1].at, letter.failed_at - 1.0, "the newest of the history")


@case
async def revive_restores_budgets_and_keeps_the_history(world: World) -> None:
    job_id = await world.enqueue(expires=100.0, max_stalls=1)
    await world.end(await world.claim_one(job_id), Ending.RETRY, delay=0.0)
    await world.claim_one(job_id)
    await world.backend.recover(dead=["w1"], now=world.now)
    await world.register("w1", lease=FOREVER)
    await die(world, job_id)
    dead = await world.get(job_id)
    world.advance(HOUR)
    job = await world.backend.revive(job_id, now=world.now)
    same(job, await world.get(job_id), "revive answers the job as it is now")
    same((job.state, job.due_at, job.expires_at), (State.READY, world.now, None), "the job in play")
    same((job.reason, job.finished_at, job.seq), (None, None, dead.seq), "the job in play")
    await world.counters(job_id, 0, 0, 0)
    same(job.errors, dead.errors, "errors are kept")
    letter = await world.letter(job_id)
    same((letter.failure_count, letter.revived_at, letter.revive_at), (1, world.now, None), "the letter")
    same((await world.claim_one(job_id)).attempt, 1, "the first attempt of a new life")


@case
async def reviving_twice_is_reviving_once(world: World) -> None:
    start = await world.put(State.DEAD, key="k")
    await world.backend.revive(start.id, now=world.now)
    world.advance(5.0)
    async with world.unchanged("a second revive while it is ready"):
        await world.backend.revive(start.id, now=world.now)
    await world.claim_one(start.id)
    async with world.unchanged("a second revive while it runs"):
        await world.backend.revive(start.id, now=world.now)
    await world.claim_none()


@case
async def two_revives_at_once_make_one_live_job(world: World) -> None:
    ids = [await world.enqueue(key=f"k{n}") for n in range(5)]
    for job_id in ids:
        await die(world, job_id)
    await asyncio.gather(*(world.backend.revive(job_id, now=world.now) for job_id in ids for _ in range(2)))
    same(sorted(await world.claim_ids(20)), ids, "claimable")
    same(len(await world.backend.letters(LetterQuery())), 5, "letters")
    for job_id in ids:
        same((await world.letter(job_id)).failure_count, 1, "failure_count")


@case_for_each(["revive", "retry"])
async def a_dead_job_whose_key_is_live_is_not_revived(world: World, verb: str) -> None:
    dead = await world.enqueue(key="k")
    await die(world, dead)
    live = await world.enqueue(key="k")
    back = world.backend.revive if verb == "revive" else world.backend.retry
    async with world.refused(StateConflict, f"{verb} while the key is live") as raised:
        await back(dead, now=world.now)
    [error] = raised
    assert isinstance(error, StateConflict), "the error"
    same((error.job_id, error.live_id), (dead, live), "what the error carries")


@case
async def retry_of_a_finished_job_whose_key_is_live_is_refused(world: World) -> None:
    done = await world.enqueue(key="k")
    await world.end(await world.claim_one(done))
    live = await world.enqueue(key="k")
    async with world.refused(StateConflict, "retry while the key is live") as raised:
        await world.backend.retry(done, now=world.now)
    [error] = raised
    assert isinstance(error, StateConflict), "the error"
    same(error.live_id, live, "the live job")


@case_for_each([Ending.SUCCEEDED, Ending.CANCELLED])
async def a_good_end_after_a_revive_closes_the_letter(world: World, ending: Ending) -> None:
    job_id = await world.enqueue()
    await die(world, job_id)
    await world.backend.revive(job_id, now=world.now)
    await world.end(await world.claim_one(job_id), ending)
    same(await world.backend.letters(LetterQuery()), [], "dead letters")
    same(await world.backend.letter(job_id), None, "its letter")


@case
async def cancelling_a_revived_job_before_it_starts_closes_the_letter(world: World) -> None:
    start = await world.put(State.DEAD)
    await world.backend.revive(start.id, now=world.now)
    await world.backend.cancel(start.id, now=world.now)
    same(await world.backend.letters(LetterQuery()), [], "dead letters")


@case_for_each(["succeeded", "cancelled", "cancelled before its start"])
async def a_good_end_of_another_job_of_the_key_closes_the_letter(world: World, how: str) -> None:
    dead = await world.enqueue(key="k")
    await die(world, dead)
    other = await world.enqueue(key="k")
    if how == "cancelled before its start":
        await world.backend.cancel(other, now=world.now)
    else:
        await world.end(await world.claim_one(other), Ending(how))
    same(await world.backend.letters(LetterQuery()), [], "dead letters")
    await world.is_in(dead, State.DEAD)
    world.advance(400 * DAY)
    await world.backend.prune(now=world.now)
    same(await world.backend.get(dead), None, "the dead job holds no letter any more, so it is pruned")


@case
async def a_new_job_of_the_key_that_dies_takes_the_letter_over(world: World) -> None:
    old = await world.enqueue(key="k", args=b"[1]")
    await die(world, old, "first")
    first = await _only(world)
    world.advance(HOUR)
    new = await world.enqueue(key="k", args=b"[2]")
    await die(world, new, "second")
    letter = await _only(world)
    same((letter.id, letter.args, letter.failure_count), (new, b"[2]", 2), "the letter")
    same((letter.first_failed_at, letter.failed_at), (first.first_failed_at, world.now), "times")
    [past] = letter.history
    same((past.job_id, past.at, past.args), (old, first.failed_at, b"[1]"), "the earlier death")
    job = await world.get(old)
    same((job.state, job.reason), (State.DEAD, "superseded"), "the older job")
    same(await world.backend.letter(old), None, "the older job's letter")


@case
async def a_superseded_job_is_not_revived_and_may_be_pruned(world: World) -> None:
    old = await world.enqueue(key="k")
    await die(world, old)
    new = await world.enqueue(key="k")
    await die(world, new)
    async with world.refused(StateConflict, "revive of a superseded job"):
        await world.backend.revive(old, now=world.now)
    world.advance(400 * DAY)
    await world.backend.prune(now=world.now)
    same(await world.backend.get(old), None, "the superseded job")
    await world.is_in(new, State.DEAD)
    same((await _only(world)).failure_count, 2, "failure_count")


@case
async def equal_arguments_are_not_kept_twice(world: World) -> None:
    job_id = await world.enqueue(args=b"[1]")
    await die(world, job_id)
    await world.backend.revive(job_id, now=world.now)
    await die(world, job_id)
    [past] = (await _only(world)).history
    same(past.args, None, "arguments in the history")


@case
async def letters_belong_to_queue_task_and_key(world: World) -> None:
    for fields in ({}, {"key": "k"}, {"key": "k", "task": "other"}, {"key": "l"}, {}):
        await die(world, await world.enqueue(**fields))
    letters = await world.backend.letters(LetterQuery())
    same((len(letters), {letter.failure_count for letter in letters}), (5, {1}), "letters and counts")


@case_for_each(["bury", "expire", "stall", "settle"])
async def every_way_to_die_merges_into_the_same_letter(world: World, way: str) -> None:
    job_id = await world.enqueue(key="k", max_stalls=0)
    await die(world, job_id)
    if way == "expire":
        job_id = await world.enqueue(key="k", expires=5.0)
        world.advance(6.0)
        await world.promote_all()
    else:
        await world.backend.revive(job_id, now=world.now)
    if way == "bury":
        await world.backend.bury(job_id, "enough", now=world.now)
    elif way == "stall":
        await world.begin(await world.claim_one(job_id))
        await world.backend.recover(dead=["w1"], now=world.now)
    elif way == "settle":
        await die(world, job_id)
    letter = await _only(world)
    same((letter.id, letter.failure_count), (job_id, 2), "the letter")
    reasons = {"bury": "bury", "expire": "expired", "stall": "stalled", "settle": "failed"}
    same(letter.reason, reasons[way], "its reason")


@case
async def bury_keeps_the_reason_given(world: World) -> None:
    job_id = await world.enqueue()
    job = await world.backend.bury(job_id, "customer left", now=world.now)
    same((job.state, job.reason, job.finished_at), (State.DEAD, "bury", world.now), "the job")
    await world.counters(job_id, 0, 0, 0)
    letter = await world.letter(job_id)
    assert letter.error is not None, "a letter keeps the latest error"
    same((letter.reason, letter.error.text), ("bury", "customer left"), "the letter")


@case
async def discard_removes_the_letter_and_leaves_the_job_to_prune(world: World) -> None:
    start = await world.put(State.DEAD)
    letter = await world.letter(start.id)
    same(await world.backend.discard(start.id, now=world.now), letter, "answer")
    same(await world.backend.letters(LetterQuery()), [], "dead letters")
    job = await world.get(start.id)
    same((job.state, job.reason), (State.DEAD, "discarded"), "the job")
    world.advance(400 * DAY)
    await world.backend.prune(now=world.now)
    same(await world.backend.get(start.id), None, "the job, later")


@case
async def discard_of_a_revived_live_job_is_refused(world: World) -> None:
    start = await world.put(State.DEAD)
    await world.backend.revive(start.id, now=world.now)
    async with world.refused(StateConflict, "discard of a revived job"):
        await world.backend.discard(start.id, now=world.now)


@case
async def discard_of_an_unknown_job_is_not_found(world: World) -> None:
    async with world.refused(JobNotFound, "discard"):
        await world.backend.discard("nobody", now=world.now)


@case
async def a_death_after_a_discard_starts_a_new_count(world: World) -> None:
    old = await world.enqueue(key="k")
    await die(world, old)
    await world.backend.discard(old, now=world.now)
    world.advance(HOUR)
    new = await world.enqueue(key="k")
    await die(world, new)
    letter = await _only(world)
    same((letter.id, letter.failure_count, letter.first_failed_at), (new, 1, world.now), "the letter")


# ----------------------------------------------------------------------------------------------------------------------
# Automatic revival: a cooldown that grows from the latest failure, a cap of cycles, no multiplying.


POLICY = Revival(after=100.0, factor=2.0, cap=300.0, cycles=4)


@case
async def the_cooldown_counts_from_the_latest_failure_and_grows(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    for cycle in range(POLICY.cycles):
        await die(world, job_id)
        cooldown = POLICY.cooldown(cycle)
        assert cooldown is not None
        letter = await world.letter(job_id)
        same((letter.cycles, letter.revive_at), (cycle, world.now + cooldown), "cycles and next revival")
        world.advance(cooldown - 1.0)
        same((await world.backend.promote(now=world.now)).revived, 0, "revived before its time")
        await world.is_in(job_id, State.DEAD)
        world.advance(2.0)
        same((await world.backend.promote(now=world.now)).revived, 1, "revived")
        letter = await world.letter(job_id)
        same((letter.cycles, letter.revive_at, letter.revived_at), (cycle + 1, None, world.now), "the letter")
        await world.counters(job_id, 0, 0, 0)
        await world.is_in(job_id, State.READY)
    await die(world, job_id)
    letter = await world.letter(job_id)
    same((letter.revive_at, letter.failure_count), (None, POLICY.cycles + 1), "after the last cycle")
    world.advance(400 * DAY)
    await world.promote_all()
    await world.is_in(job_id, State.DEAD)


@case
async def promote_revives_only_once_per_cooldown(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.backend.promote(now=world.now)
    async with world.unchanged("a second pass"):
        same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    world.advance(HOUR)
    async with world.unchanged("a later pass while it is live"):
        same((await world.backend.promote(now=world.now)).revived, 0, "revived")


@case
async def claim_revives_inline_as_it_promotes(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.claim_one(job_id)


@case
async def a_job_without_a_policy_stays_dead(world: World) -> None:
    start = await world.put(State.DEAD)
    world.advance(400 * DAY)
    await world.promote_all()
    await world.is_in(start.id, State.DEAD)


@case
async def reviving_by_hand_takes_the_automatic_one_back(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    await world.backend.revive(job_id, now=world.now)
    letter = await world.letter(job_id)
    same((letter.revive_at, letter.cycles), (None, 0), "the letter")
    await world.claim_one(job_id, lease=FOREVER)
    world.advance(HOUR)
    same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    await world.is_in(job_id, State.RUNNING)


@case
async def nothing_is_revived_while_the_key_is_live(world: World) -> None:
    dead = await world.enqueue(key="k", revival=POLICY)
    await die(world, dead)
    live = await world.enqueue(key="k", revival=POLICY)
    world.advance(HOUR)
    await world.promote_all()
    same(await world.states([dead, live]), [State.DEAD, State.READY], "states")
    await world.claim_one(live)
    await world.claim_none()


@case
async def success_ends_the_cycles(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.backend.promote(now=world.now)
    await world.end(await world.claim_one(job_id))
    world.advance(400 * DAY)
    same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    same(await world.backend.letters(LetterQuery()), [], "letters")


@case
async def a_discarded_letter_is_never_revived(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    await world.backend.discard(job_id, now=world.now)
    world.advance(HOUR)
    await world.promote_all()
    await world.is_in(job_id, State.DEAD)


@case
async def an_automatic_revival_obeys_the_group(world: World) -> None:
    job_id = await world.enqueue(group="g", revival=POLICY)
    await die(world, job_id)
    await world.claim_one(await world.enqueue(group="g"), lease=FOREVER)
    world.advance(HOUR)
    await world.promote_all()
    await world.is_in(job_id, State.WAITING)


@case
async def ten_cycles_of_a_hundred_poison_jobs_are_never_more_than_a_hundred(world: World) -> None:
    number, cycles = world.sized(100), 10
    policy = Revival(after=10.0, factor=1.0, cap=10.0, cycles=cycles)
    ids = await world.enqueue_many(number, revival=policy)
    for cycle in range(cycles + 1):
        leases = await world.claim(number * 2, lease=FOREVER)
        same(sorted(lease.id for lease in leases), ids, f"jobs that run in cycle {cycle}")
        batch = [world.settlement(lease, Ending.BURIED) for lease in leases]
        await world.backend.settle(batch, now=world.now)
        counts = (await world.backend.count())["default"]
        same(dict(counts), {State.DEAD: number}, f"all jobs there are after cycle {cycle}")
        world.advance(11.0)
        await world.promote_all()
        live = sum(found for state, found in (await world.backend.count())["default"].items() if state in LIVE)
        same(live, number if cycle < cycles else 0, "live again")
    letters = await world.backend.letters(LetterQuery(limit=number * 2))
    same((len(letters), {letter.failure_count for letter in letters}), (number, {cycles + 1}), "letters and counts")
