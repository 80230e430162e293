"""Conformance of tick and entries: an entry is written and its jobs are made in one step, by one of many that try.

Called by run_case. When a tick is due is the engine's to decide; here an entry is only compared, kept and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ...lifecycle import FINISHED, LIVE, UNSTARTED, Ending, State
from ...records import CronEntry, Enqueued, NewJob, Tick, Ticked
from .compare import same
from .keys import kept
from .registry import case, case_for_each
from .world import DAY, FOREVER, World

CALL = b'{"task":"work","queue":"default"}'
PLAIN = CronEntry(name="e", cron="*/5 * * * *", next_at=100.0, call=CALL)
FULL = CronEntry(
    name="e",
    version=77,  # not the caller's to say
    next_at=2_000_000_060.5,
    call=b'{"task":"work","args":"e30=","options":"w6k="}',
    cron="0 9 * * 1-5",
    every=None,
    anchor=12.25,
    tz="Europe/Berlin",
    overlap="cancel",
    catch_up="all",
    window=7200.5,
    jitter=3.5,
    chooser="tides",
    times=(2_000_000_060.5, 2_000_000_099.125),
    starts_at=1_999_999_000.0,
    ends_at=2_100_000_000.5,
    ticks=99,
    offset=90.5,
    skip=("SAT", "2030-12-25"),
    declared=True,
    created_at=1_999_999_999.5,
    declared_at=2_000_000_000.25,
    last_at=1_999_999_940.0,
    last_job="job-x",
    fired=41,
    skipped=2,
    paused_at=2_000_000_001.0,
    paused_by="ann",
    pause_reason="holiday – see ticket",
)


async def tick(
    world: World, version: int, entry: CronEntry | None = PLAIN, jobs: Sequence[NewJob] = (), **fields: Any
) -> Ticked:
    wanted = Tick(**{"name": "e", "version": version, "entry": entry, "jobs": tuple(jobs), **fields})
    return await world.backend.tick(wanted, now=world.now)


async def made(world: World, entry: CronEntry = PLAIN) -> CronEntry:
    """A new entry, as stored."""
    answer = await tick(world, 0, entry, name=entry.name)
    stored = replace(entry, version=1)
    same(answer, Ticked(done=True, entry=stored), "a new entry")
    return stored


# ---------------------------------------------------------------------- the entry


@case
async def an_entry_is_made_and_shown_whole(world: World) -> None:
    same(await world.backend.entries(), [], "entries of a new store")
    stored = await made(world, FULL)
    same(await world.backend.entries(), [stored], "entries")
    [row] = (await world.tables())["entries"]
    for field in ("name", "version", "next_at", "call", "tz", "overlap", "catch_up", "fired", "paused_by", "declared"):
        same(row[field], getattr(stored, field), f"{field} in the dump")


@case
async def an_interval_entry_is_kept_to_the_last_digit(world: World) -> None:
    entry = CronEntry(name="e", call=CALL, every=0.1 + 0.2, anchor=1_234_567_890.123456, next_at=None, jitter=1e-6)
    await made(world, entry)
    same(await world.backend.entries(), [replace(entry, version=1)], "entries")


@case
async def entries_are_shown_by_name(world: World) -> None:
    for name in ("b", "a.z", "a", "Z"):
        await made(world, replace(PLAIN, name=name))
    same([entry.name for entry in await world.backend.entries()], ["Z", "a", "a.z", "b"], "names")


@case
async def an_entry_is_replaced_as_a_whole_and_its_version_grows(world: World) -> None:
    await made(world, FULL)
    answer = await tick(world, 1, PLAIN)
    same(answer, Ticked(done=True, entry=replace(PLAIN, version=2)), "answer")
    same(await world.backend.entries(), [replace(PLAIN, version=2)], "entries")


@case_for_each([0, 1, 3, 99])
async def a_write_decided_on_another_version_changes_nothing(world: World, version: int) -> None:
    await made(world)
    await tick(world, 1, replace(PLAIN, next_at=200.0))
    there = replace(PLAIN, next_at=200.0, version=2)
    previous = await world.enqueue()
    async with world.unchanged("a tick decided on another version"):
        answer = await tick(world, version, FULL, [world.job()], overlap="cancel", previous=previous)
    same(answer, Ticked(done=False, entry=there), "answer")


@case
async def a_write_about_an_entry_that_is_gone_changes_nothing(world: World) -> None:
    async with world.unchanged("a tick of an entry that is not there"):
        same(await tick(world, 4, FULL, [world.job()]), Ticked(done=False, entry=None), "answer")


@case
async def a_tick_sent_twice_is_carried_out_once(world: World) -> None:
    await made(world)
    job = world.job(id="e@100")
    first = await tick(world, 1, replace(PLAIN, next_at=200.0), [job])
    same((first.done, first.enqueued), (True, (Enqueued("e@100", True),)), "the first time")
    async with world.unchanged("the same tick again"):
        again = await tick(world, 1, replace(PLAIN, next_at=200.0), [job])
    same(again, Ticked(done=False, entry=first.entry), "the second time")


@case
async def an_entry_is_removed_and_can_be_made_anew(world: World) -> None:
    await made(world)
    await made(world, replace(PLAIN, name="other"))
    same(await tick(world, 1, None), Ticked(done=True, entry=None), "answer")
    same([entry.name for entry in await world.backend.entries()], ["other"], "entries")
    async with world.unchanged("a write decided on the removed entry"):
        same((await tick(world, 1)).done, False, "done")
    await made(world)


@case
async def removing_an_entry_that_is_not_there_is_done_already(world: World) -> None:
    async with world.unchanged("removal of nothing"):
        same(await tick(world, 0, None), Ticked(done=True, entry=None), "answer")


@case
async def an_entry_may_be_removed_with_a_last_job(world: World) -> None:
    await made(world)
    job = world.job()
    answer = await tick(world, 1, None, [job])
    same((answer.done, answer.entry, answer.enqueued), (True, None, (Enqueued(job.id, True),)), "answer")
    await world.claim_one(job.id)


@case
async def entries_know_nothing_of_each_other(world: World) -> None:
    await made(world)
    other = await made(world, replace(FULL, name="other"))
    await tick(world, 1, replace(PLAIN, fired=1), [world.job()])
    same((await world.backend.entries())[1], other, "the other entry")


@case_for_each(["past", "now", "to come"])
async def a_tick_is_refused_while_the_clock_is_before_its_time(world: World, when: str) -> None:
    await made(world)
    not_before = world.now + {"past": -5.0, "now": 0.0, "to come": 0.5}[when]
    before = await world.tables()
    answer = await tick(world, 1, FULL, [world.job()], not_before=not_before)
    if when != "to come":
        same((answer.done, len(answer.enqueued)), (True, 1), "answer")
        return
    same(answer, Ticked(done=False, entry=replace(PLAIN, version=1)), "answer")
    same(await world.tables(), before, "the store")
    world.advance(0.5)
    same((await tick(world, 1, FULL, not_before=not_before)).done, True, "done when its time has come")


@case
async def no_sweep_touches_an_entry(world: World) -> None:
    await made(world)
    world.advance(400 * DAY)
    async with world.unchanged("a round of sweeps"):
        await world.backend.promote(now=world.now)
        await world.backend.refill(now=world.now)
        await world.backend.prune(now=world.now)
        await world.backend.recover(now=world.now)


# ---------------------------------------------------------------------- the jobs


@case
async def a_tick_makes_its_jobs_as_enqueue_would(world: World) -> None:
    jobs = [
        world.job(args=b"[1]", priority=3, options=b'{"timeout":5}'),
        world.job(delay=60.0, expires=5.0, on_expire="drop"),
        world.job(due_at=world.now + 90.0, key="k", key_window=DAY),
        world.job(group="g"),
        world.job(group="g"),
    ]
    other = await world.another()
    await other.backend.enqueue(jobs, now=world.now)
    answer = await tick(world, 0, PLAIN, jobs)
    same(answer.enqueued, tuple(Enqueued(job.id, True) for job in jobs), "answers in order")
    for job in jobs:
        mine, theirs = await world.get(job.id), await other.get(job.id)
        same(replace(mine, seq=0), replace(theirs, seq=0), f"{job.id}, made by a tick and by enqueue")
    seqs = [(await world.get(job.id)).seq for job in jobs]
    same(seqs, sorted(set(seqs)), "seqs in order")


@case
async def the_jobs_of_a_tick_run_and_keep_their_group_in_order(world: World) -> None:
    head = await world.enqueue(group="g")
    jobs = [world.job(group="g") for _ in range(2)]
    await tick(world, 0, PLAIN, jobs)
    same(await world.states([job.id for job in jobs]), [State.WAITING] * 2, "behind their group")
    got = []
    for _ in range(3):
        lease = await world.claim_one(lease=FOREVER)
        got.append(lease.id)
        await world.end(lease)
    same(got, [head, jobs[0].id, jobs[1].id], "the order in which they ran")


@case
async def a_known_id_in_a_tick_makes_no_second_job(world: World) -> None:
    known = await world.put(State.SUCCEEDED)
    fresh = world.job()
    answer = await tick(world, 0, PLAIN, [world.job(id=known.id, args=b"[9]"), fresh])
    same(answer.enqueued, (Enqueued(known.id, False), Enqueued(fresh.id, True)), "answers")
    await world.is_in(known.id, State.SUCCEEDED)


@case_for_each(["keep", "raise"])
async def a_key_that_is_held_is_kept_and_the_tick_is_done(world: World, word: str) -> None:
    holder = await world.enqueue(key="k")
    fresh = world.job()
    answer = await tick(world, 0, PLAIN, [world.job(key="k", on_conflict=word), fresh])
    same((answer.done, answer.skipped), (True, False), "answer")
    same(answer.enqueued, (Enqueued(holder, False), Enqueued(fresh.id, True)), "answers")
    same([entry.version for entry in await world.backend.entries()], [1], "the entry is written")


@case_for_each(["replace", "debounce"])
async def a_tick_may_replace_the_job_that_waits(world: World, word: str) -> None:
    holder = await world.enqueue(key="k", delay=500.0, wait_max=1000.0)
    job = world.job(key="k", on_conflict=word, args=b"[2]", delay=600.0)
    answer = await tick(world, 0, PLAIN, [job])
    same(answer.enqueued, (Enqueued(holder, False, True),), "answers")
    found = await world.get(holder)
    same((found.args, found.due_at), (b"[2]", world.now + 600.0), "the job that waits")


@case
async def raise_within_one_tick_is_taken_as_keep(world: World) -> None:
    first, second = world.job(key="k", on_conflict="raise"), world.job(key="k", on_conflict="raise")
    answer = await tick(world, 0, PLAIN, [first, second])
    same(answer.enqueued, (Enqueued(first.id, True), Enqueued(first.id, False)), "answers")


@case
async def a_write_without_jobs_makes_none(world: World) -> None:
    await made(world)
    paused = replace(PLAIN, paused_at=world.now, paused_by="ann", pause_reason="why")
    answer = await tick(world, 1, paused)
    same(answer, Ticked(done=True, entry=replace(paused, version=2)), "answer")
    same((await world.tables())["jobs"], [], "jobs")


# ---------------------------------------------------------------------- overlap

AFTER = replace(PLAIN, next_at=200.0, fired=1)
SKIPPED = replace(PLAIN, next_at=200.0, skipped=1)


@case_for_each(sorted(State))
async def skip_leaves_the_jobs_out_while_the_previous_one_is_live(world: World, state: State) -> None:
    start = await world.put(state)
    await made(world)
    before = await world.row(start.id)
    job = world.job()
    answer = await tick(world, 1, AFTER, [job], entry_if_skipped=SKIPPED, overlap="skip", previous=start.id)
    live = state in LIVE
    same((answer.done, answer.skipped), (True, live), "done and skipped")
    same(answer.enqueued, () if live else (Enqueued(job.id, True),), "answers")
    same(answer.entry, replace(SKIPPED if live else AFTER, version=2), "the entry")
    same(await world.backend.entries(), [answer.entry], "entries")
    same(await world.row(start.id), before, "the previous job")
    same(await world.backend.get(job.id) is None, live, "no job was made")


@case_for_each(sorted(State))
async def cancel_ends_the_previous_job_as_the_verb_does(world: World, state: State) -> None:
    start = await world.put(state)
    await made(world)
    before = await world.get(start.id)
    job = world.job()
    answer = await tick(world, 1, AFTER, [job], overlap="cancel", previous=start.id)
    same((answer.done, answer.skipped, answer.enqueued), (True, False, (Enqueued(job.id, True),)), "answer")
    after = await world.get(start.id)
    if state in UNSTARTED:
        same((after.state, after.finished_at), (State.CANCELLED, world.now), "unstarted: it is cancelled")
    elif state is State.RUNNING:
        same((after.state, after.cancel_requested), (State.RUNNING, True), "running: it is asked to stop")
        await world.end(start.held, Ending.CANCELLED)
    else:
        same(after, before, "finished: it is left alone")


@case_for_each(sorted(State))
async def allow_does_not_look_at_the_previous_job(world: World, state: State) -> None:
    start = await world.put(state)
    before = await world.row(start.id)
    job = world.job()
    answer = await tick(world, 0, AFTER, [job], overlap="allow", previous=start.id, entry_if_skipped=SKIPPED)
    same((answer.enqueued, answer.entry), ((Enqueued(job.id, True),), replace(AFTER, version=1)), "answer")
    same(await world.row(start.id), before, "the previous job")


@case_for_each(["skip", "cancel"])
async def a_previous_job_that_is_gone_or_never_was_stands_in_nobodys_way(world: World, overlap: str) -> None:
    for version, previous in enumerate((None, "nobody")):
        job = world.job()
        answer = await tick(world, version, AFTER, [job], overlap=overlap, previous=previous, entry_if_skipped=SKIPPED)
        same((answer.done, answer.skipped), (True, False), "done and skipped")
        same(answer.enqueued, (Enqueued(job.id, True),), "answers")


@case
async def a_job_cancelled_by_a_tick_frees_its_key_and_its_group_for_the_next(world: World) -> None:
    previous = await world.enqueue(key="k", group="g")
    behind = await world.enqueue(group="g")
    job = world.job(key="k", group="g", priority=5)
    answer = await tick(world, 0, AFTER, [job], overlap="cancel", previous=previous)
    same(answer.enqueued, (Enqueued(job.id, True),), "answers")
    states = await world.states([previous, behind, job.id])
    same((states[0], sorted(states[1:])), (State.CANCELLED, [State.READY, State.WAITING]), "states")
    await kept(world, job.id, group="g")


@case
async def a_running_job_that_a_tick_cancels_keeps_its_key_until_it_stops(world: World) -> None:
    start = await world.put(State.RUNNING, key="k")
    answer = await tick(world, 0, AFTER, [world.job(key="k")], overlap="cancel", previous=start.id)
    same(answer.enqueued, (Enqueued(start.id, False),), "answers")
    same((await world.get(start.id)).cancel_requested, True, "it is asked to stop")


@case_for_each(sorted(FINISHED))
async def a_previous_job_that_was_brought_back_is_live_again(world: World, state: State) -> None:
    start = await world.put(state)
    await world.backend.retry(start.id, now=world.now)
    answer = await tick(world, 0, AFTER, [world.job()], overlap="skip", previous=start.id, entry_if_skipped=SKIPPED)
    same(answer.skipped, True, "skipped")
