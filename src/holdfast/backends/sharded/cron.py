"""tick over many shards: home keeps the cron entries, the jobs go to their usual shards.

Called by backend.py. Home writes the entry and, in the same step, records the jobs: one row each in a queue of its own
that no worker claims. That step decides, and nothing of it can be lost. Then the jobs are enqueued in their shards and
the rows are cancelled. A process that dies in between leaves the rows, and the next sweep hands them over. An id makes
one job, so a job handed over twice is still one: rows are handed over before anything is pruned, so its id is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import HoldfastError, JobNotFound, StateConflict, StoreSealed
from ...lifecycle import LIVE
from ...records import REMEMBER_SECONDS_MIN, Enqueued, JobQuery, JobRecord, NewJob, Tick, Ticked, with_conflicts_kept
from ..contract import Backend
from ..formulas import tick_overlap

NOTED = "{ticks}"  # the queue of the rows at home: no user's queue can have this name
GRACE_SECONDS = 5.0  # rows younger than this are left to the process that made them
PAGE = 100


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a row at home: a job to hand over, and the job to cancel before it."""

    job: NewJob
    cancels: str | None = None
    by: str = ""  # who cancels it, for its timeline


class Enqueue(Protocol):
    """The router's enqueue."""

    async def __call__(self, jobs: Sequence[NewJob], now: float | None) -> list[Enqueued]: ...


class Cancel(Protocol):
    """The router's cancel."""

    async def __call__(self, job_id: str, now: float | None, *, by: str) -> JobRecord: ...


class CronVerbs:
    """The verb tick, and the hand-over of rows that it left."""

    def __init__(
        self,
        home: Callable[[], Awaitable[Backend]],
        enqueue: Enqueue,
        get: Callable[[str], Awaitable[JobRecord | None]],
        cancel: Cancel,
    ) -> None:
        self._home, self._enqueue, self._get, self._cancel = home, enqueue, get, cancel

    async def tick(self, tick: Tick, now: float | None) -> Ticked:
        """The jobs' queues and tasks must be known already: after home has written, no shard may refuse them."""
        home = await self._home()
        jobs = [with_conflicts_kept(job) for job in tick.jobs]
        live = tick.overlap != "allow" and await self._is_live(tick.previous, now)
        skipped, ends = tick_overlap(tick.overlap, live=live)
        cancels, by = tick.previous if ends else None, f"cron {tick.name}"
        if skipped:
            jobs = []
        at = now if now is not None or not jobs else await home.clock()
        written = Tick(
            name=tick.name,
            version=tick.version,
            entry=tick.entry_if_skipped if skipped else tick.entry,
            jobs=tuple(_row(job, at or 0.0, cancels, by) for job in jobs),
            not_before=tick.not_before,
        )
        done = await home.tick(written, now)
        if not done.done:
            return done
        enqueued = [Enqueued(job.id, created=True) for job in jobs]
        with suppress(HoldfastError):  # home has decided and the rows are stored: a sweep will hand them over
            made = await self._hand_over(jobs, cancels, by, now)
            enqueued = [Enqueued(one.id, one.created, one.replaced) for one in made]
            await self._tear_up([row.id for row in written.jobs], now)
        return replace(done, enqueued=tuple(enqueued), skipped=skipped)

    async def _is_live(self, job_id: str | None, now: float | None) -> bool:
        if job_id is None:
            return False
        job = await self._get(job_id)
        if job is None:
            row = await (await self._home()).get(_row_id(job_id))
            if row is not None and row.state.live:  # it is not handed over yet
                await self.finish(now, age=0.0)
                job = await self._get(job_id)
        return job is not None and job.state.live

    async def _hand_over(
        self, jobs: Sequence[NewJob], cancels: str | None, by: str, now: float | None
    ) -> list[Enqueued]:
        if cancels is not None:
            with suppress(StateConflict, JobNotFound):  # it has finished meanwhile
                await self._cancel(cancels, now, by=by)
        return await self._enqueue(jobs, now) if jobs else []

    async def _tear_up(self, rows: Sequence[str], now: float | None) -> None:
        home = await self._home()
        for row in rows:
            with suppress(StateConflict, JobNotFound):
                await home.cancel(row, now)

    # ------------------------------------------------------------------ what was left

    async def _left(self) -> list[JobRecord]:
        """Return the rows that are not cancelled, in the order of the ticks."""
        home, rows, before = await self._home(), list[JobRecord](), None
        while True:
            query = JobQuery(queue=NOTED, states=tuple(LIVE), before=before, limit=PAGE)
            rows += (page := await home.find(query))
            if len(page) < PAGE:
                return rows[::-1]
            before = page[-1].seq

    async def finish(self, now: float | None, *, age: float = GRACE_SECONDS) -> HoldfastError | None:
        """Hand over the jobs of ticks that were not completed. Returns why one was left, if one was.

        One that is refused (its task may have got a limit that cannot be divided), or whose shard is silent, stays for
        the next time and does not block the others.
        """
        rows = await self._left()
        if not rows:
            return None
        left: HoldfastError | None = None
        before = (await (await self._home()).clock() if now is None else now) - age
        for row in rows:
            if row.created_at <= before:
                note = msgspec.json.decode(row.args, type=Note)
                try:
                    await self._hand_over([note.job], note.cancels, note.by, now)
                    await self._tear_up([row.id], now)
                except StoreSealed:
                    continue  # its job is in its shard, or goes there when the store is open again
                except HoldfastError as error:
                    left = error
        return left

    async def forget(self, now: float | None) -> None:
        """Remove the rows of jobs that were handed over."""
        await (await self._home()).prune(limit=10 * PAGE, older_than=REMEMBER_SECONDS_MIN, now=now)


def _row(job: NewJob, at: float, cancels: str | None, by: str) -> NewJob:
    """Build the row at home; a delay counts from now, not from when the job is handed over."""
    if job.delay is not None:
        job = replace(job, delay=None, due_at=at + job.delay)
    note = msgspec.json.encode(Note(job=job, cancels=cancels, by="" if cancels is None else by))
    return NewJob(id=_row_id(job.id), task=job.task, queue=NOTED, args=note)


def _row_id(job_id: str) -> str:
    return f"tick:{job_id}"
