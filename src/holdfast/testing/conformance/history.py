"""Conformance of a job's timeline: which transitions leave a mark, with what, how many are kept, and that they move.

Called by run_case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...errors import JobNotFound
from ...lifecycle import Ending, State
from ...records import AUTOMATIC, MARKS_KEPT_MAX, CronEntry, Held, Mark, Revival, Tick
from .compare import changed_columns, same
from .move import moved
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World


async def kinds(world: World, job_id: str) -> list[str]:
    return [mark.kind for mark in await world.backend.marks(job_id)]


@case
async def a_job_that_succeeds_at_its_first_attempt_has_no_marks(world: World) -> None:
    lease = await world.claim_one(await world.enqueue(group="g"))
    await world.begin(lease)
    await world.report(lease, lines=("half",))
    await world.end(lease)
    assert await world.backend.marks(lease.id) == []
    assert (await world.tables())["marks"] == []


@case
async def a_failed_attempt_and_a_stall_leave_no_mark_because_the_errors_show_them(world: World) -> None:
    lease = await world.claim_one(await world.enqueue())
    await world.end(lease, Ending.RETRY, delay=0.0, failed=True)
    await world.promote_all()
    await world.claim_one(lease.id, worker="gone")
    await world.backend.recover(dead=["gone"], now=world.now)
    assert await world.backend.marks(lease.id) == []


@case
async def a_release_and_a_snooze_name_the_lease_that_ended(world: World) -> None:
    lease = await world.claim_one(await world.enqueue(), worker="ann")
    world.advance(2.0)
    await world.give_back(lease)
    released = Mark(kind="release", at=world.now, worker="ann", fence=lease.fence, started_at=lease.started_at)
    assert await world.backend.marks(lease.id) == [released]
    again = await world.claim_one(lease.id, worker="bob")
    world.advance(1.0)
    await world.end(again, Ending.SNOOZED, delay=5.0)
    snoozed = Mark(kind="snooze", at=world.now, worker="bob", fence=again.fence, started_at=again.started_at)
    assert await world.backend.marks(lease.id) == [released, snoozed]
    assert (await world.tables())["marks"] == [
        {"job_id": lease.id, **{name: getattr(mark, name) for name in mark.__struct_fields__}}
        for mark in (released, snoozed)
    ]


@case
async def leases_released_unnamed_or_by_retire_leave_a_mark_too(world: World) -> None:
    first, second = await world.enqueue_many(2)
    await world.claim_one(first)
    await world.renew("w1", [])
    assert await kinds(world, first) == ["release"]
    await world.claim_one(first)
    await world.claim_one(second)
    await world.backend.retire("w1", now=world.now)
    assert await kinds(world, first) == ["release", "release"]
    assert await kinds(world, second) == ["release"]


@case
async def a_stale_release_leaves_no_mark(world: World) -> None:
    lease = await world.claim_one(await world.enqueue())
    await world.give_back(lease)
    async with world.unchanged("a stale release"):
        await world.release(lease)
        await world.settle(lease, Ending.SNOOZED, delay=1.0)


Verb = Callable[[World, str], Awaitable[object]]

VERBS: dict[str, tuple[State, Verb]] = {
    "cancel": (State.READY, lambda world, job: world.backend.cancel(job, world.now, by="ann@host")),
    "bury": (State.READY, lambda world, job: world.backend.bury(job, "why", world.now, by="ann@host")),
    "run_now": (State.SCHEDULED, lambda world, job: world.backend.run_now(job, world.now, by="ann@host")),
    "revive": (State.DEAD, lambda world, job: world.backend.revive(job, world.now, by="ann@host")),
    "retry": (State.SUCCEEDED, lambda world, job: world.backend.retry(job, world.now, by="ann@host")),
    "discard": (State.DEAD, lambda world, job: world.backend.discard(job, world.now, by="ann@host")),
}


@case_for_each(VERBS)
async def an_operators_verb_is_marked_with_who_called_it(world: World, verb: str) -> None:
    state, act = VERBS[verb]
    job = await world.put(state)
    world.advance(3.0)
    await act(world, job.id)
    assert (await world.backend.marks(job.id))[-1] == Mark(kind=verb, at=world.now, by="ann@host")


@case
async def a_running_jobs_cancel_is_marked_once(world: World) -> None:
    lease = await world.claim_one(await world.enqueue())
    await world.backend.cancel(lease.id, world.now, by="ann", reason="a – typo")
    world.advance(1.0)
    async with world.unchanged("a second cancel"):
        await world.backend.cancel(lease.id, world.now, by="bob", reason="another")
    assert [(mark.by, mark.text) for mark in await world.backend.marks(lease.id)] == [("ann", "a – typo")]


@case
async def a_cancel_keeps_its_reason_and_the_record_has_none(world: World) -> None:
    """R99: a reason such as "parent" must not be mistaken for the store's own."""
    job = await world.enqueue(group="g")
    await world.backend.cancel(job, world.now, by="ann", reason="parent")
    same((await world.get(job)).reason, None, "reason")
    assert await world.backend.marks(job) == [Mark(kind="cancel", at=world.now, by="ann", text="parent")]


@case
async def verbs_that_change_nothing_leave_no_mark(world: World) -> None:
    job = await world.put(State.DEAD)
    await world.backend.revive(job.id, world.now, by="ann")
    async with world.unchanged("the second click"):
        await world.backend.revive(job.id, world.now, by="bob")
    cancelled = await world.put(State.CANCELLED, queue="other")
    async with world.unchanged("a cancelled job stays as it is"):
        await world.backend.cancel(cancelled.id, world.now, by="bob")


@case_for_each(sorted(State))
async def a_note_is_added_to_a_job_in_any_state_and_changes_nothing_else(world: World, state: State) -> None:
    """R100."""
    job = await world.put(state)
    before, marks = await world.row(job.id), await world.backend.marks(job.id)
    world.advance(3.0)
    record = await world.backend.annotate(job.id, "rang the customer – twice", world.now, by="ann")
    same((record.id, record.state), (job.id, state), "the job")
    same(changed_columns(before, await world.row(job.id)) - {"marks"}, set(), "what changed")
    note = Mark(kind="note", at=world.now, by="ann", text="rang the customer – twice")
    same(await world.backend.marks(job.id), [*marks, note], "marks")


@case
async def a_note_about_nobody_is_refused(world: World) -> None:
    async with world.refused(JobNotFound, "a note"):
        await world.backend.annotate("nobody", "x", world.now)


@case
async def an_automatic_revival_says_so(world: World) -> None:
    for key in (None, "k"):
        lease = await world.claim_one(await world.enqueue(key=key, revival=Revival(after=HOUR)), lease=FOREVER)
        await world.end(lease, Ending.BURIED)
        world.advance(2 * HOUR)
        await world.promote_all()
        assert await world.backend.marks(lease.id) == [Mark(kind="revive", at=world.now, text=AUTOMATIC)], key
        await world.end(await world.claim_one(lease.id))


@case
async def an_overlapping_tick_that_cancels_is_named(world: World) -> None:
    previous = await world.enqueue()
    entry = CronEntry(name="nightly", next_at=world.now + DAY, every=DAY)
    await world.backend.tick(
        Tick(name="nightly", version=0, entry=entry, overlap="cancel", previous=previous), now=world.now
    )
    assert [(mark.kind, mark.by) for mark in await world.backend.marks(previous)] == [("cancel", "cron nightly")]


@case
async def the_first_mark_and_the_newest_are_kept(world: World) -> None:
    job = await world.enqueue(delay=1.0)
    await world.backend.run_now(job, world.now, by="the first")
    for _ in range(MARKS_KEPT_MAX + 5):
        world.advance(1.0)
        await world.give_back(await world.claim_one(job, lease=DAY))
    marks = await world.backend.marks(job)
    assert len(marks) == MARKS_KEPT_MAX
    assert marks[0].by == "the first"
    assert [mark.at for mark in marks[1:]] == [world.now - back for back in range(MARKS_KEPT_MAX - 2, -1, -1)]


@case
async def progress_is_kept_with_its_time_the_first_report_and_the_newest(world: World) -> None:
    lease = await world.claim_one(await world.enqueue(), worker="ann", lease=DAY)
    told = {"kind": "progress", "worker": "ann", "fence": lease.fence}
    await world.report(lease, progress=0.1, text="page 1 \u2603")
    first = Mark(at=world.now, progress=0.1, text="page 1 \u2603", **told)  # type: ignore[arg-type]
    assert await world.backend.marks(lease.id) == [first]
    for page in range(2, 6):
        world.advance(1.0)
        await world.report(lease, text=f"page {page}", lines=("a line",))
        newest = Mark(at=world.now, text=f"page {page}", count=page - 1, **told)  # type: ignore[arg-type]
        assert await world.backend.marks(lease.id) == [first, newest]
    async with world.unchanged("a report with a stale token"):
        await world.report(Held(lease.id, "stale"), progress=0.9)


@case
async def each_lease_keeps_its_own_progress(world: World) -> None:
    job = await world.enqueue()
    for progress in (0.1, 0.2):
        lease = await world.claim_one(job, lease=DAY)
        await world.report(lease, progress=progress)
        await world.give_back(lease)
    found = [(mark.kind, mark.progress) for mark in await world.backend.marks(job)]
    assert found == [("progress", 0.1), ("release", None), ("progress", 0.2), ("release", None)]


@case
async def a_renewal_later_than_half_a_lease_is_noted_with_its_gap(world: World) -> None:
    old = await world.claim_one(await world.enqueue(), lease=40.0)
    world.advance(12.0)
    young = await world.claim_one(await world.enqueue(), lease=40.0)
    assert await world.backend.marks(old.id) == []
    world.advance(18.0)
    await world.renew("w1", [old, young])
    late = Mark(kind="renewal", at=world.now, worker="w1", fence=old.fence, gap=30.0)
    assert await world.backend.marks(old.id) == [late]
    assert await world.backend.marks(young.id) == []
    for _ in range(3):  # in time
        world.advance(20.0)
        await world.renew("w1", [old, young])
    assert await world.backend.marks(old.id) == [late]


@case
async def of_many_late_renewals_a_lease_keeps_the_first_and_the_newest(world: World) -> None:
    lease = await world.claim_one(await world.enqueue(), lease=40.0)
    for gap in (25.0, 26.0, 27.0, 35.0):
        world.advance(gap)
        await world.renew("w1", [lease])
    found = [(mark.kind, mark.gap, mark.count) for mark in await world.backend.marks(lease.id)]
    assert found == [("renewal", 25.0, 1), ("renewal", 35.0, 3)]


@case
async def a_lease_that_a_late_renewal_does_not_name_is_released_and_not_noted(world: World) -> None:
    lease = await world.claim_one(await world.enqueue(), lease=40.0)
    world.advance(30.0)
    await world.renew("w1", [])
    assert await kinds(world, lease.id) == ["release"]


@case
async def many_progress_reports_leave_room_for_other_marks(world: World) -> None:
    job = await world.enqueue(delay=1.0)
    await world.backend.run_now(job, world.now, by="the first")
    for turn in range(MARKS_KEPT_MAX):
        lease = await world.claim_one(job, lease=DAY)
        await world.report(lease, progress=turn / 100)
        await world.give_back(lease)
    marks = await world.backend.marks(job)
    assert len(marks) == MARKS_KEPT_MAX
    assert marks[0].by == "the first"
    assert [mark.kind for mark in marks[1:]] == ["release", *["progress", "release"] * (MARKS_KEPT_MAX // 2 - 1)]


@case
async def marks_are_pruned_with_their_job(world: World) -> None:
    job = await world.enqueue()
    await world.backend.cancel(job, world.now, by="ann")
    world.advance(2 * DAY)
    assert await world.backend.prune(now=world.now) == 1
    assert await world.backend.marks(job) == []
    assert (await world.tables())["marks"] == []


@case
async def marks_move_with_their_job(world: World) -> None:
    job = await world.enqueue(delay=HOUR)
    await world.backend.run_now(job, world.now, by="ann \u2603")
    lease = await world.claim_one(job, lease=40.0)
    await world.report(lease, progress=0.5, text="half \u2603")
    world.advance(30.0)
    await world.renew("w1", [lease])
    await world.give_back(lease, delay=60.0)
    before = await world.backend.marks(job)
    target = await moved(world)
    assert [mark.kind for mark in before] == ["run_now", "progress", "renewal", "release"]
    assert await target.backend.marks(job) == before
