"""history: one job's timeline, from its row, its errors and its marks, oldest first.

Called by the app. Most of it comes from what a job stores anyway: when it was enqueued, its failures, current lease,
its end. Marks (R65) add what the row does not show. Never writes or guesses: what is no longer stored is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from ..backends.contract import Reader
from ..clock import moment
from ..errors import JobNotFound
from ..headers import enqueued_by
from ..lifecycle import Failure, State
from ..records import JobRecord, Mark

ENQUEUED, CLAIMED, FAILED, STALLED = "enqueued", "claimed", "failed", "stalled"
_STALLS = frozenset({"stalled", "crash"})
_BY_OTHERS = frozenset({"expired", "bury", "parent"})  # failures of a job that had no lease


class HistoryEntry(Struct, frozen=True, kw_only=True):
    """One entry of a job's timeline."""

    at: datetime
    # enqueued claimed progress renewal failed stalled expired release snooze succeeded dead cancelled, or an operator's
    # verb
    kind: str
    text: str = ""
    by: str = ""  # who enqueued it, or who called an operator's verb, as given
    worker: str | None = None
    fence: int = 0
    attempt: int = 0  # 0: not known, or no attempt
    progress: float | None = None  # from 0 to 1
    gap: float | None = None  # of a late renewal: seconds for which the lease was not renewed
    count: int = 1  # of progress and late renewals: this one and those before it that are not kept


class _Sorted(Struct, frozen=True):
    """An entry and its place among those of the same time: a lease begins before it ends, the job ends last."""

    at: float
    rank: int
    entry: HistoryEntry


async def history(reader: Reader, job_id: str) -> list[HistoryEntry]:
    """The timeline of a job, oldest first."""
    job = await reader.get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    return timeline(job, await reader.marks(job_id))


def timeline(job: JobRecord, marks: Iterable[Mark]) -> list[HistoryEntry]:
    """The timeline of a job that was read together with its marks."""
    found = [_entry(job.created_at, 0, ENQUEUED, text=_placed(job), by=enqueued_by(job.options))]
    fences: set[int] = set()
    for mark in marks:
        if mark.started_at is not None:
            fences.add(mark.fence)
            found.append(_claimed(mark.started_at, mark.worker, mark.fence))
        found.append(_of_mark(mark))
    for failure in job.errors:
        found += _failed(failure, fences)
    if job.started_at is not None and job.fence not in fences:
        running = job.state is State.RUNNING
        attempt = job.attempts + running
        found.append(_claimed(job.started_at, job.worker, job.fence, attempt, "begun" if job.begun and running else ""))
    if job.finished_at is not None:
        found.append(_entry(job.finished_at, 3, job.state.value, text=job.reason or "", fence=job.fence))
    # One exchange settles and claims at one time, so the fence decides which lease came first.
    return [one.entry for one in sorted(found, key=lambda one: (one.at, one.entry.fence, one.rank))]


def _of_mark(mark: Mark) -> _Sorted:
    text = mark.text
    if mark.kind == "progress":
        text = " ".join(filter(None, ("" if mark.progress is None else f"{mark.progress:.0%}", text)))
    elif mark.kind == "renewal":
        text = f"late, after {mark.gap or 0.0:.1f} s"
    if mark.count > 1:
        text += f" (the latest of {mark.count})"
    entry = HistoryEntry(
        at=moment(mark.at),
        kind=mark.kind,
        text=text,
        by=mark.by,
        worker=mark.worker,
        fence=mark.fence,
        progress=mark.progress,
        gap=mark.gap,
        count=mark.count,
    )
    return _Sorted(mark.at, 2, entry)


def _placed(job: JobRecord) -> str:
    """Where it was enqueued to, and when it is due if that is later."""
    later = " with a delay" if job.attempts == 0 and job.due_at > job.created_at else ""
    return f"in queue {job.queue}{later}"


def _failed(failure: Failure, fences: set[int]) -> Iterable[_Sorted]:
    """A failure or stall, and the lease it ended."""
    if failure.started_at is not None and failure.reason not in _BY_OTHERS:
        fences.add(failure.fence)
        yield _claimed(failure.started_at, failure.worker, failure.fence, failure.attempt)
    kind = STALLED if failure.reason in _STALLS else failure.reason if failure.reason in _BY_OTHERS else FAILED
    if kind == "bury":
        return  # its mark says who
    text = f"{failure.type}: {failure.text}" if failure.type else failure.text or failure.reason
    yield _entry(failure.at, 2, kind, text=text, worker=failure.worker, fence=failure.fence, attempt=failure.attempt)


def _claimed(at: float, worker: str | None, fence: int, attempt: int = 0, text: str = "") -> _Sorted:
    return _entry(at, 1, CLAIMED, text=text, worker=worker, fence=fence, attempt=attempt)


def _entry(
    at: float,
    rank: int,
    kind: str,
    *,
    text: str = "",
    by: str = "",
    worker: str | None = None,
    fence: int = 0,
    attempt: int = 0,
) -> _Sorted:
    shown = HistoryEntry(at=moment(at), kind=kind, text=text, by=by, worker=worker, fence=fence, attempt=attempt)
    return _Sorted(at, rank, shown)
