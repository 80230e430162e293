"""Conformance of prune by task rules: finished jobs by count, dead letters by age and count, and what is never taken.

Called by run_case. Retention by the job's own word is in retention, windows of keys are in keys.
"""

from __future__ import annotations

from typing import Any

from ...lifecycle import FINISHED, LIVE, Ending, State
from ...records import REMEMBER_SECONDS_MIN, LetterQuery, Revival, TaskRule
from .compare import mentions, same
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World

KEPT_LONG = 4000 * DAY


async def declare(world: World, task: str = "work", **fields: Any) -> None:
    await world.backend.declare([], [TaskRule(name=task, **fields)], now=world.now)


async def finished(world: World, ending: Ending = Ending.SUCCEEDED, *, retain: float = KEPT_LONG, **fields: Any) -> str:
    """A job that has just ended that way, a second after the last one."""
    queue = fields.get("queue", "default")
    job_id = await world.enqueue(**fields)
    lease = await world.claim_one(job_id, lease=FOREVER, queues=(queue,))
    await world.report(lease, lines=("a line",))
    world.advance(1.0)
    await world.end(lease, ending, retain=retain)
    return job_id


async def some(world: World, number: int, ending: Ending = Ending.SUCCEEDED, **fields: Any) -> list[str]:
    return [await finished(world, ending, **fields) for _ in range(number)]


async def left(world: World, ids: list[str]) -> list[str]:
    found = {row["id"] for row in (await world.tables())["jobs"]}
    return [job_id for job_id in ids if job_id in found]


async def pruned(world: World, number: int, **how: Any) -> None:
    same(await world.backend.prune(now=world.now, **how), number, "pruned")


# ---------------------------------------------------------------------- by count


@case
async def a_task_keeps_its_newest_finished_jobs(world: World) -> None:
    await declare(world, retain_count=2)
    ids = [await finished(world, (Ending.SUCCEEDED, Ending.CANCELLED)[n % 2]) for n in range(5)]
    world.advance(HOUR)
    await pruned(world, 3)
    same(await left(world, ids), ids[3:], "jobs left")
    tables = await world.tables()
    same([mentions(tables, job_id) for job_id in ids[:3]], [[]] * 3, "tables that know those that went")
    same(len(tables["logs"]), 2, "log lines")
    await pruned(world, 0)


@case
async def the_newest_are_those_that_finished_last(world: World) -> None:
    await declare(world, retain_count=1)
    first, second = await world.enqueue_many(2)
    leases = {lease.id: lease for lease in await world.claim(2, lease=FOREVER)}
    await world.end(leases[second], retain=KEPT_LONG)
    world.advance(1.0)
    await world.end(leases[first], retain=KEPT_LONG)
    world.advance(HOUR)
    await pruned(world, 1)
    same(await left(world, [first, second]), [first], "jobs left")


@case
async def of_those_that_finished_together_the_later_enqueued_stay(world: World) -> None:
    await declare(world, retain_count=2)
    ids = await world.enqueue_many(5)
    for lease in await world.claim(5, lease=FOREVER):
        await world.end(lease, retain=KEPT_LONG)
    world.advance(HOUR)
    await pruned(world, 3)
    same(await left(world, ids), ids[3:], "jobs left")


@case
async def no_rule_takes_a_job_within_ten_minutes(world: World) -> None:
    await declare(world, retain_count=0, retain_dead=1.0, retain_dead_count=0)
    good = await finished(world)
    bad = await finished(world, Ending.BURIED)
    world.now = ((await world.get(good)).finished_at or 0.0) + REMEMBER_SECONDS_MIN - 1.0
    async with world.unchanged("prune within ten minutes"):
        await pruned(world, 0)
        await pruned(world, 0, older_than=0.0)
    world.advance(3.0)
    await pruned(world, 2)
    same(await left(world, [good, bad]), [], "jobs left")


@case
async def jobs_that_just_finished_count_among_the_newest(world: World) -> None:
    await declare(world, retain_count=2)
    old = await some(world, 2)
    world.advance(HOUR)
    new = await some(world, 2)
    await pruned(world, 2)
    same(await left(world, [*old, *new]), new, "jobs left")


@case
async def a_count_is_of_a_task_over_all_its_queues(world: World) -> None:
    await declare(world, retain_count=1)
    mine = [await finished(world), await finished(world, queue="other"), await finished(world)]
    others = await some(world, 3, task="another")
    world.advance(HOUR)
    await pruned(world, 2)
    same(await left(world, [*mine, *others]), [mine[2], *others], "jobs left")


@case_for_each(sorted({*LIVE, State.DEAD}))
async def a_count_takes_only_what_succeeded_or_was_cancelled(world: World, state: State) -> None:
    await declare(world, retain_count=0)
    await world.put(state)
    world.advance(400 * DAY)
    async with world.unchanged(f"prune beside a {state} job"):
        await pruned(world, 0)


@case
async def a_jobs_own_retention_holds_beside_the_count(world: World) -> None:
    await declare(world, retain_count=3)
    short = await finished(world, retain=5000.0)
    await some(world, 2)
    world.advance(4998.0 - 2.0)
    await pruned(world, 0)
    world.advance(10.0)
    await pruned(world, 1)
    same(await left(world, [short]), [], "the one whose retention is over")


@case
async def a_rule_holds_from_when_it_is_declared_until_it_says_nothing(world: World) -> None:
    ids = await some(world, 3)
    world.advance(HOUR)
    await pruned(world, 0)
    await declare(world, retain_count=1)
    await declare(world)
    await pruned(world, 0)
    await declare(world, retain_count=2)
    await pruned(world, 1)
    same(await left(world, ids), ids[1:], "jobs left")


@case_for_each(["count", "dead by age", "dead by count"])
async def no_rule_takes_a_job_whose_window_has_not_passed(world: World, rule: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "count": {"retain_count": 0},
        "dead by age": {"retain_dead": 1.0},
        "dead by count": {"retain_dead_count": 0},
    }
    await declare(world, **fields[rule])
    ending = Ending.SUCCEEDED if rule == "count" else Ending.BURIED
    job_id = await finished(world, ending, key="k", key_window=DAY)
    created = (await world.get(job_id)).created_at
    world.now = created + DAY - 1.0
    async with world.unchanged("prune within the window"):
        await pruned(world, 0)
    world.advance(2.0)
    await pruned(world, 1)
    same(await left(world, [job_id]), [], "jobs left")


# ---------------------------------------------------------------------- dead letters


@case
async def a_dead_letter_goes_with_its_job_when_it_is_old_enough(world: World) -> None:
    await declare(world, retain_dead=5000.0)
    mine = await finished(world, Ending.BURIED)
    other = await finished(world, Ending.BURIED, task="another")
    world.now = (await world.letter(mine)).failed_at + 4999.0
    async with world.unchanged("prune before the time"):
        await pruned(world, 0)
    world.advance(2.0)
    await pruned(world, 1)
    same(await world.backend.letter(mine), None, "its letter")
    tables = await world.tables()
    same((mentions(tables, mine), len(tables["logs"])), ([], 1), "what is left of it, and log lines")
    await world.is_in(other, State.DEAD)
    same((await world.letter(other)).failure_count, 1, "the other's letter")


@case
async def the_age_of_a_letter_counts_from_its_latest_failure(world: World) -> None:
    await declare(world, retain_dead=5000.0)
    job_id = await finished(world, Ending.BURIED)
    world.advance(4000.0)
    await world.backend.revive(job_id, now=world.now)
    await world.end(await world.claim_one(job_id), Ending.BURIED)
    world.advance(4999.0)
    await pruned(world, 0)
    world.advance(2.0)
    await pruned(world, 1)


@case
async def a_task_keeps_its_newest_dead_letters(world: World) -> None:
    await declare(world, retain_dead_count=2)
    ids = await some(world, 4, Ending.BURIED)
    await world.backend.revive(ids[0], now=world.now)
    await world.end(await world.claim_one(ids[0]), Ending.BURIED)  # now the newest
    world.advance(HOUR)
    await pruned(world, 2)
    same(await left(world, ids), [ids[0], ids[3]], "jobs left")
    same({letter.id for letter in await world.backend.letters(LetterQuery())}, {ids[0], ids[3]}, "letters left")


@case
async def of_letters_that_failed_together_the_later_enqueued_stay(world: World) -> None:
    await declare(world, retain_dead_count=1)
    ids = await world.enqueue_many(3)
    for lease in await world.claim(3, lease=FOREVER):
        await world.end(lease, Ending.BURIED)
    world.advance(HOUR)
    await pruned(world, 2)
    same(await left(world, ids), ids[2:], "jobs left")


@case_for_each(["age", "count"])
async def the_letter_of_a_revived_job_is_never_taken(world: World, rule: str) -> None:
    await declare(world, **({"retain_dead": 1.0} if rule == "age" else {"retain_dead_count": 0}))
    revived = await finished(world, Ending.BURIED)
    dead = await finished(world, Ending.BURIED)
    await world.backend.revive(revived, now=world.now)
    world.advance(HOUR)
    await pruned(world, 1)
    same(await left(world, [revived, dead]), [revived], "jobs left")
    same((await world.letter(revived)).failure_count, 1, "its letter")
    await world.end(await world.claim_one(revived), Ending.BURIED)
    same((await world.letter(revived)).failure_count, 2, "its letter, merged")


@case
async def the_letter_of_a_revived_job_counts_among_the_newest(world: World) -> None:
    await declare(world, retain_dead_count=1)
    dead, revived = await some(world, 2, Ending.BURIED)
    await world.backend.revive(revived, now=world.now)
    world.advance(HOUR)
    await pruned(world, 1)
    same(await left(world, [dead, revived]), [revived], "jobs left")


@case
async def dead_jobs_without_a_letter_do_not_count_among_the_letters(world: World) -> None:
    await declare(world, retain_dead_count=1, retain_count=1)
    kept = await finished(world, Ending.BURIED)
    good = await finished(world)
    gone = await finished(world, Ending.BURIED)
    await world.backend.discard(gone, now=world.now)
    world.advance(REMEMBER_SECONDS_MIN + 1.0)
    await pruned(world, 1)
    same(await left(world, [kept, good, gone]), [kept, good], "jobs left")


@case
async def a_letter_that_is_gone_is_not_revived(world: World) -> None:
    await declare(world, retain_dead=1000.0)
    await finished(world, Ending.BURIED, key="k", revival=Revival(after=HOUR))
    world.advance(1001.0)
    await pruned(world, 1)
    world.advance(2 * HOUR)
    done = await world.backend.promote(now=world.now)
    same((done.revived, done.due), (0, 0), "revived")
    await finished(world, Ending.BURIED, key="k")
    [letter] = await world.backend.letters(LetterQuery())
    same((letter.failure_count, letter.history), (1, ()), "the next death starts a new count")


@case
async def what_died_has_no_time_to_be_pruned_at_before_a_rule_takes_it(world: World) -> None:
    await declare(world, retain_dead=5000.0, retain_dead_count=7)
    job_id = await finished(world, Ending.BURIED)
    same((await world.row(job_id))["prune_at"], None, "prune_at")
    await declare(world)
    world.advance(400 * DAY)
    await pruned(world, 0)


# ---------------------------------------------------------------------- within the bound


@case
async def prune_goes_by_retention_first_and_then_from_rule_to_rule(world: World) -> None:
    for task in ("b", "a"):
        await declare(world, task, retain_count=1, retain_dead=5 * HOUR, retain_dead_count=1)
    aged = {task: await finished(world, Ending.BURIED, task=task) for task in ("b", "a")}
    world.advance(5 * HOUR)
    by_rule = {task: await some(world, 2, Ending.BURIED, task=task) for task in ("b", "a")}
    counted = {task: await some(world, 2, task=task) for task in ("b", "a")}
    over = await finished(world, task="plain", retain=0.0)
    ids = [over, *aged.values(), *(i for some_ids in (by_rule, counted) for pair in some_ids.values() for i in pair)]
    world.advance(HOUR)
    gone: list[str] = []
    for _ in range(7):
        before = await left(world, ids)
        await pruned(world, 1, limit=1)
        gone += [job_id for job_id in before if job_id not in await left(world, ids)]
    await pruned(world, 0, limit=1)
    a, b = (counted["a"][0], aged["a"], by_rule["a"][0]), (counted["b"][0], aged["b"], by_rule["b"][0])
    same(gone, [over, *a, *b], "the order in which they went")


@case
async def rules_are_carried_out_within_the_bound_the_oldest_first(world: World) -> None:
    await declare(world, retain_count=1)
    ids = await some(world, 6)
    world.advance(HOUR)
    same([await world.backend.prune(limit=2, now=world.now) for _ in range(4)], [2, 2, 1, 0], "pruned per pass")
    same(await left(world, ids), ids[5:], "jobs left")


@case
async def rules_are_carried_out_when_pruning_by_age_as_well(world: World) -> None:
    await declare(world, retain_count=1, retain_dead_count=0)
    ids = [*await some(world, 2), await finished(world, Ending.BURIED)]
    world.advance(HOUR)
    await pruned(world, 2, older_than=2 * HOUR)
    same(await left(world, ids), ids[1:2], "jobs left")


# ----------------------------------------------------------------------------------------------------------------------
# Prune: finished jobs go when their retention is over, and nothing else ever does.


ENDINGS = {State.SUCCEEDED: Ending.SUCCEEDED, State.CANCELLED: Ending.CANCELLED}


async def _finished(world: World, retain: float, state: State = State.SUCCEEDED) -> str:
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id, lease=FOREVER)
    await world.report(lease, progress=0.5, lines=("a line",))
    await world.end(lease, ENDINGS[state], retain=retain)
    return job_id


@case_for_each(sorted(ENDINGS))
async def a_finished_job_is_pruned_when_its_retention_is_over(world: World, state: State) -> None:
    job_id = await _finished(world, 5000.0, state)
    world.advance(4999.0)
    async with world.unchanged("prune before the time"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")
    same(await world.backend.logs(job_id), [], "its log lines")
    tables = await world.tables()
    same(mentions(tables, job_id), [], "tables that still know it")
    same(tables["logs"], [], "log lines in the store")


@case
async def a_job_with_no_retention_is_remembered_ten_minutes(world: World) -> None:
    job_id = await _finished(world, 0.0)
    world.advance(REMEMBER_SECONDS_MIN - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned")
    same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")
    await world.is_in(job_id, State.SUCCEEDED)
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")


@case
async def older_than_overrides_retention(world: World) -> None:
    old = await _finished(world, 400 * DAY)
    world.advance(2 * HOUR)
    young = await _finished(world, 400 * DAY)
    world.advance(HOUR / 2)
    same(await world.backend.prune(now=world.now), 0, "pruned by retention")
    same(await world.backend.prune(older_than=HOUR, now=world.now), 1, "pruned by age")
    same(await world.backend.get(old), None, "the old one")
    await world.is_in(young, State.SUCCEEDED)


@case
async def prune_is_bounded(world: World) -> None:
    ids = await world.enqueue_many(7)
    for lease in await world.claim(7):
        await world.end(lease, retain=0.0)
    world.advance(HOUR)
    same([await world.backend.prune(limit=3, now=world.now) for _ in range(4)], [3, 3, 1, 0], "pruned per pass")
    same([await world.backend.get(job_id) for job_id in ids], [None] * 7, "jobs left")


@case_for_each(sorted(LIVE))
async def a_live_job_is_never_pruned(world: World, state: State) -> None:
    await world.put(state)
    world.advance(4000 * DAY)
    async with world.unchanged(f"prune of a {state} job"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")


@case
async def a_dead_job_that_holds_its_letter_is_never_pruned(world: World) -> None:
    start = await world.put(State.DEAD)
    world.advance(4000 * DAY)
    async with world.unchanged("prune of a dead job with its letter"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")
    await world.backend.revive(start.id, now=world.now)
    await world.claim_one(start.id)


@case_for_each(sorted(FINISHED))
async def a_job_brought_back_is_live_again_and_safe_from_prune(world: World, state: State) -> None:
    start = await world.put(state)
    await world.backend.retry(start.id, now=world.now)
    world.advance(4000 * DAY)
    for older_than in (None, 0.0):
        same(await world.backend.prune(older_than=older_than, now=world.now), 0, "pruned")
    lease = await world.claim_one(start.id)
    await world.end(lease, value=b'"again"', retain=5000.0)
    same((await world.get(start.id)).value, b'"again"', "value of its second life")
    world.advance(4999.0)
    same(await world.backend.prune(now=world.now), 0, "pruned before its new retention is over")
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")


@case
async def a_job_cancelled_before_its_start_is_pruned_in_the_end(world: World) -> None:
    job_id = await world.enqueue()
    await world.backend.cancel(job_id, now=world.now)
    world.advance(REMEMBER_SECONDS_MIN - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned")
    world.advance(400 * DAY)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")


@case
async def pruning_leaves_the_neighbours_alone(world: World) -> None:
    gone = await _finished(world, 0.0)
    kept = await _finished(world, 400 * DAY)
    live = await world.enqueue()
    dead = await world.put(State.DEAD, queue="other")
    world.advance(DAY)
    before = [await world.get(job_id) for job_id in (kept, live, dead.id)]
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(gone), None, "the pruned job")
    same([await world.get(job_id) for job_id in (kept, live, dead.id)], before, "the others")
    same(len(await world.backend.logs(kept)), 1, "log lines of a kept job")
