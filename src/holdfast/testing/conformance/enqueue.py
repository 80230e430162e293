"""Conformance of enqueue: what is stored, ids that make one job, keys and their conflicts.

Called by run_case. Cases here never lease more than they need to reach a starting state.
"""

from __future__ import annotations

import msgspec

from ...errors import DuplicateJob
from ...lifecycle import FINISHED, LIVE, UNSTARTED, State
from ...records import Enqueued, Revival
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, HOUR, World


@case
async def a_job_due_now_is_ready_and_untouched(world: World) -> None:
    job = await world.get(await world.enqueue())
    same(job.state, State.READY, "state of an ungrouped job that is due")
    same((job.created_at, job.due_at), (world.now, world.now), "created_at and due_at")
    same((job.attempts, job.failures, job.stalls, job.fence), (0, 0, 0, 0), "counters and fence of a new job")
    same((job.started_at, job.finished_at, job.worker, job.value), (None, None, None, None), "marks of a lease")
    same((job.begun, job.held, job.cancel_requested), (False, False, False), "flags of a new job")


@case
async def a_delayed_job_is_scheduled_until_its_time(world: World) -> None:
    by_delay = await world.enqueue(delay=60.0)
    by_time = await world.enqueue(due_at=world.now + 90.0)
    same(await world.states([by_delay, by_time]), [State.SCHEDULED] * 2, "states before the due time")
    same((await world.get(by_delay)).due_at, world.now + 60.0, "due_at of a delayed job")
    same((await world.get(by_time)).due_at, world.now + 90.0, "due_at as given")
    await world.claim_none()


@case
async def a_due_time_in_the_past_means_now(world: World) -> None:
    job_id = await world.enqueue(due_at=world.now - HOUR)
    await world.is_in(job_id, State.READY)
    await world.is_in(await world.enqueue(delay=0.0), State.READY)


@case
async def every_field_of_a_new_job_is_stored(world: World) -> None:
    revival = Revival(after=5.0, factor=3.0, cap=50.0, cycles=2)
    new = world.job(
        task="mail.send",
        queue="mail",
        args=b'{"to":"ann"}',
        priority=7,
        group="ann",
        key="welcome:ann",
        delay=30.0,
        expires=120.0,
        max_stalls=1,
        revival=revival,
        options=b'{"timeout":5}',
    )
    await world.backend.enqueue([new], now=world.now)
    job = await world.get(new.id)
    for field in ("id", "task", "queue", "args", "priority", "group", "key", "max_stalls", "revival", "options"):
        same(getattr(job, field), getattr(new, field), f"stored {field}")
    same(job.expires_at, world.now + 30.0 + 120.0, "expires_at counts from the due time")


@case
async def a_batch_is_stored_and_numbered_in_order(world: World) -> None:
    ids = await world.enqueue_many(world.sized(1000))
    later = await world.enqueue()
    seqs = [(await world.get(job_id)).seq for job_id in (ids[0], ids[1], ids[-1], later)]
    assert seqs == sorted(set(seqs)), f"seq must grow with every job enqueued, got {seqs}"
    same(await world.claim_ids(len(ids) + 1), [*ids, later], "claim order of equal jobs")


@case
async def a_single_new_job_tells_whether_it_waits_for_its_group(world: World) -> None:
    first, second, ungrouped = world.job(group="g"), world.job(group="g"), world.job()
    later, keyed, elsewhere = world.job(group="g", delay=60.0), world.job(group="g", key="k"), world.job(group="h")
    for job in (first, second, ungrouped, later, keyed, elsewhere, second):
        known = await world.backend.get(job.id) is not None
        [answer] = await world.backend.enqueue([job], now=world.now)
        waits = not known and (await world.get(job.id)).state is State.WAITING
        same(answer, Enqueued(job.id, not known, waits=waits), "answer for a single job")
    same(await world.states([first.id, second.id, keyed.id]), [State.READY, State.WAITING, State.WAITING], "states")


@case
async def an_empty_batch_stores_nothing(world: World) -> None:
    async with world.unchanged("enqueue of no jobs"):
        same(await world.backend.enqueue([], now=world.now), [], "answer to an empty batch")


@case
async def an_id_twice_in_one_batch_makes_one_job(world: World) -> None:
    job = world.job()
    answers = await world.backend.enqueue([job, job], now=world.now)
    same(answers, [Enqueued(job.id, True), Enqueued(job.id, False)], "answers")
    same(len((await world.tables())["jobs"]), 1, "jobs stored")


@case
async def an_id_twice_in_one_batch_is_made_where_no_key_keeps_it(world: World) -> None:
    live = await world.enqueue(key="k")
    kept, made = world.job(id="again", key="k"), world.job(id="again")
    answers = await world.backend.enqueue([kept, made, made], now=world.now)
    same(answers, [Enqueued(live, False), Enqueued("again", True), Enqueued("again", False)], "answers by place")


@case
async def a_repeated_batch_creates_only_what_was_missing(world: World) -> None:
    known = world.job(args=b"[1]")
    await world.backend.enqueue([known], now=world.now)
    new = world.job()
    altered = msgspec.structs.replace(known, args=b"[2]")
    answers = await world.backend.enqueue([altered, new], now=world.now)
    same([a.created for a in answers], [False, True], "created")
    same((await world.get(known.id)).args, b"[1]", "arguments of the job that was known")


@case_for_each(["ungrouped", "grouped"])
async def a_long_batch_with_known_ids_creates_the_others_in_order(world: World, kind: str) -> None:
    group = "g" if kind == "grouped" else None
    jobs = [world.job(group=group, args=b"[%d]" % place) for place in range(60)]
    known = [jobs[30], jobs[59]]
    await world.backend.enqueue(known, now=world.now)
    answers = await world.backend.enqueue([*jobs, jobs[0]], now=world.now)
    made = [*(job not in known for job in jobs), False]
    same([a.created for a in answers], made, "created, the repeated last one included")
    same([a.id for a in answers], [*(job.id for job in jobs), jobs[0].id], "ids answered")
    order = [*known, *(job for job in jobs if job not in known)]
    claimed = await world.claim(len(order))
    same([lease.id for lease in claimed], [job.id for job in order][: len(claimed)], "order of claims")
    stored = [(await world.get(job.id)).seq for job in order]
    same(stored, sorted(stored), "seq in the order of enqueue")


@case_for_each(["keyed", "without keys"])
async def jobs_of_one_batch_keep_what_is_their_own(world: World, kind: str) -> None:
    revival = Revival(after=5.0, factor=3.0, cap=50.0, cycles=2)
    odd = {"queue": "mail", "priority": 7, "group": "ann", "key": "k", "delay": 30.0, "expires": 120.0, "max_stalls": 1}
    jobs = [
        world.job(**({**odd, "revival": revival, "options": b'{"timeout":5}'} if place % 3 == 0 else {}))
        for place in range(1, 62)
    ]
    keys = [f"k{place}" if kind == "keyed" else None for place in range(len(jobs))]
    jobs = [msgspec.structs.replace(job, key=key) if job.key else job for job, key in zip(jobs, keys, strict=True)]
    await world.backend.enqueue(jobs, now=world.now)
    for new in jobs:
        job = await world.get(new.id)
        for field in ("task", "queue", "args", "priority", "group", "key", "max_stalls", "revival", "options"):
            same(getattr(job, field), getattr(new, field), f"stored {field}")
        same(job.due_at, world.now + (new.delay or 0.0), "due_at")
        same(job.expires_at, None if new.expires is None else job.due_at + new.expires, "expires_at")


@case
async def a_known_id_is_remembered_ten_minutes_whatever_retention_says(world: World) -> None:
    job = world.job()
    await world.backend.enqueue([job], now=world.now)
    await world.end(await world.claim_one(job.id, lease=FOREVER), retain=0.0)
    world.advance(590.0)
    await world.backend.prune(now=world.now)
    async with world.unchanged("a repeat of an enqueue whose job finished"):
        same(await world.backend.enqueue([job], now=world.now), [Enqueued(job.id, False)], "answer to the repeat")
    await world.claim_none()


# ---------------------------------------------------------------------- keys


@case_for_each(sorted(LIVE))
async def keep_answers_the_live_job_of_the_key_and_changes_nothing(world: World, state: State) -> None:
    start = await world.put(state, key="k")
    rival = world.job(key="k", args=b"[2]", priority=9)
    async with world.unchanged(f"keep while the key is {state}"):
        same(await world.backend.enqueue([rival], now=world.now), [Enqueued(start.id, False)], "answer")
    same(await world.backend.get(rival.id), None, "the rival")


@case_for_each(sorted(FINISHED))
async def a_finished_job_leaves_its_key_free(world: World, state: State) -> None:
    await world.put(state, key="k")
    await world.is_in(await world.enqueue(key="k"), State.READY)


@case
async def a_key_belongs_to_its_queue_and_task(world: World) -> None:
    await world.enqueue(key="k")
    await world.enqueue(key="k", task="other")
    await world.enqueue(key="k", queue="other")
    await world.enqueue(key="k", task="other", queue="other")
    same(len((await world.tables())["jobs"]), 4, "jobs stored")


@case
async def a_key_twice_in_one_batch_makes_one_job(world: World) -> None:
    first, second = world.job(key="k"), world.job(key="k")
    answers = await world.backend.enqueue([first, second], now=world.now)
    same(answers, [Enqueued(first.id, True), Enqueued(first.id, False)], "answers")
    same(await world.claim_ids(5), [first.id], "claimable")


@case_for_each(sorted(UNSTARTED))
async def replace_renews_an_unstarted_job_in_its_place(world: World, state: State) -> None:
    start = await world.put(state, key="k")
    before = await world.get(start.id)
    rival = world.job(
        key="k",
        args=b"[2]",
        priority=9,
        expires=60.0,
        group=before.group,
        delay=500.0 if state is State.SCHEDULED else None,
        on_conflict="replace",
    )
    world.advance(5.0)
    answers = await world.backend.enqueue([rival], now=world.now)
    same(answers, [Enqueued(start.id, False, True)], "answer")
    after = await world.get(start.id)
    due = world.now + (rival.delay or 0.0)
    same((after.args, after.priority, after.due_at, after.expires_at), (b"[2]", 9, due, due + 60.0), "what is new")
    same((after.id, after.seq, after.state), (before.id, before.seq, state), "what it keeps")
    same(await world.backend.get(rival.id), None, "the rival")


@case
async def replace_keeps_a_running_job_as_it_is(world: World) -> None:
    start = await world.put(State.RUNNING, key="k")
    rival = world.job(key="k", args=b"[2]", on_conflict="replace")
    async with world.unchanged("replace of a running job"):
        same(await world.backend.enqueue([rival], now=world.now), [Enqueued(start.id, False)], "answer")


@case
async def replace_can_move_a_job_between_now_and_later(world: World) -> None:
    job_id = await world.enqueue(key="k")
    await world.backend.enqueue([world.job(key="k", delay=60.0, on_conflict="replace")], now=world.now)
    await world.is_in(job_id, State.SCHEDULED)
    await world.claim_none()
    await world.backend.enqueue([world.job(key="k", on_conflict="replace")], now=world.now)
    await world.is_in(job_id, State.READY)
    await world.claim_one(job_id)


@case
async def replace_that_leaves_a_group_lets_the_next_of_it_come(world: World) -> None:
    moved = await world.enqueue(group="a", key="k")
    behind = await world.enqueue(group="a")
    await world.backend.enqueue([world.job(key="k", group="b", on_conflict="replace")], now=world.now)
    same(await world.states([moved, behind]), [State.READY, State.READY], "states after the move")
    same((await world.get(moved)).group, "b", "group of the moved job")
    same(sorted(await world.claim_ids(5)), [moved, behind], "claimable")


@case
async def replace_that_joins_a_busy_group_waits_behind_it(world: World) -> None:
    await world.enqueue(group="a")
    moved = await world.enqueue(key="k")
    await world.backend.enqueue([world.job(key="k", group="a", on_conflict="replace")], now=world.now)
    await world.is_in(moved, State.WAITING)


@case_for_each(sorted(LIVE))
async def raise_stores_nothing_of_the_batch(world: World, state: State) -> None:
    start = await world.put(state, key="k")
    batch = [world.job(), world.job(key="k", on_conflict="raise"), world.job()]
    async with world.refused(DuplicateJob, "a batch with a duplicate") as raised:
        await world.backend.enqueue(batch, now=world.now)
    [error] = raised
    assert isinstance(error, DuplicateJob), "the error of a duplicate"
    same((error.key, error.existing_id), ("k", start.id), "what the error carries")


@case
async def raise_is_no_conflict_with_itself(world: World) -> None:
    job = world.job(key="k", on_conflict="raise")
    same(await world.backend.enqueue([job], now=world.now), [Enqueued(job.id, True)], "first")
    async with world.unchanged("a repeat of the same call"):
        same(await world.backend.enqueue([job], now=world.now), [Enqueued(job.id, False)], "repeat")


@case
async def a_finished_jobs_key_taken_anew_can_still_be_repeated_by_id(world: World) -> None:
    """The first call's id answers for the first job, although another live job has the key now."""
    first = world.job(key="k")
    await world.backend.enqueue([first], now=world.now)
    await world.end(await world.claim_one(first.id))
    await world.enqueue(key="k")
    async with world.unchanged("a repeat by id"):
        same(await world.backend.enqueue([first], now=world.now), [Enqueued(first.id, False)], "repeat")
