"""Deciding what to do about a cron entry now: which ticks fire, which are skipped, which jobs they create.

Called by the tick sweep and for operators' requests. Pure: an entry and the store's time in, one write to the store
out. Concurrent deciders write the same thing: a tick's jobs have ids derived from it, and the store accepts only the
first write to an entry's version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..records import CronEntry, NewJob, Overlap, Tick, Ticked
from .entry import FRESH_SECONDS, decode_call, next_tick, ticks_after, ticks_between, ticks_left

JOBS_PER_TICK_MAX = 100
COUNTED_MAX = 1000  # missed ticks counted one by one: beyond this it is enough to know that there were many
_LOOK_BACK = (3600.0, 86400.0, 32 * 86400.0, 366 * 86400.0)
_OVERLAPS: dict[Literal["allow", "skip", "queue", "cancel"], Overlap] = {"skip": "skip", "cancel": "cancel"}


class Due(Struct, frozen=True):
    """An entry's ticks up to now: those that fire, how many are skipped, and the last one."""

    fire: tuple[float, ...]
    skipped: int
    last: float


def decide(entry: CronEntry, now: float) -> Tick | None:
    """What to write about the entry now; None for nothing."""
    if entry.paused_at is not None or entry.next_at is None or entry.next_at > now:
        return None
    due = due_ticks(entry, entry.next_at, now)
    jobs = tuple(job_of_tick(entry, at) for at in due.fire[: ticks_left(entry)])
    moved = replace(entry, next_at=next_tick(entry, due.last), last_at=due.last, skipped=entry.skipped + due.skipped)
    fired = replace(moved, fired=entry.fired + len(jobs), last_job=jobs[-1].id if jobs else entry.last_job)
    if ticks_left(fired) == 0:
        fired = replace(fired, next_at=None)
    return Tick(
        name=entry.name,
        version=entry.version,
        entry=fired,
        entry_if_skipped=replace(moved, skipped=moved.skipped + len(jobs)),
        jobs=jobs,
        not_before=due.last,
        overlap=_OVERLAPS.get(entry.overlap, "allow"),
        previous=entry.last_job,
    )


def due_ticks(entry: CronEntry, first: float, now: float) -> Due:
    """The ticks from `first` (itself a tick) up to now, according to the entry's catch_up."""
    missed = list(islice(_up_to(entry, first, now), COUNTED_MAX + 1))
    if entry.catch_up == "all":
        wanted = [at for at in missed if at >= now - entry.window]
        if not wanted and len(missed) > COUNTED_MAX:  # the window begins after the last counted tick
            later = takewhile(lambda at: at <= now, ticks_between(entry, now - entry.window))
            wanted = list(islice(later, JOBS_PER_TICK_MAX))
        fire = tuple(wanted[:JOBS_PER_TICK_MAX])
        return Due(fire, sum(at < now - entry.window for at in missed), fire[-1] if fire else missed[-1])
    latest = missed[-1] if len(missed) <= COUNTED_MAX else _latest(entry, first, now)
    if entry.catch_up == "none" and now - latest > FRESH_SECONDS:
        return Due((), len(missed), latest)
    return Due((latest,), len(missed) - 1, latest)


def _up_to(entry: CronEntry, first: float, now: float) -> Iterator[float]:
    return takewhile(lambda at: at <= now, chain((first,), ticks_after(entry, first)))


def _latest(entry: CronEntry, first: float, now: float) -> float:
    """The latest tick up to now, found without iterating over all of them."""
    for span in _LOOK_BACK:
        if now - span <= first:
            break
        ticks = list(takewhile(lambda at: at <= now, ticks_after(entry, now - span)))
        if ticks:
            return ticks[-1]
    return list(_up_to(entry, first, now))[-1]


def correction(tick: Tick, ticked: Ticked) -> Tick | None:
    """The write that follows a tick whose last job was not created because another holds its key; None for nothing.

    Only the store knows what happened to the jobs, and it stores entries as given. last_job then becomes the job that
    took over the tick's call, or the previous one: never a job that does not exist.
    """
    entry = ticked.entry
    if entry is None or not ticked.enqueued or entry.last_job == ticked.enqueued[-1].id:
        return None
    made = (
        answer.id
        for job, answer in zip(reversed(tick.jobs), reversed(ticked.enqueued), strict=True)
        if answer.id == job.id or answer.replaced
    )
    last_job = next(made, tick.previous)
    return Tick(name=tick.name, version=entry.version, entry=replace(entry, last_job=last_job))


# ---------------------------------------------------------------------- the jobs of ticks


def job_of_tick(entry: CronEntry, at: float) -> NewJob:
    """The job of one tick: always the same, however often it is built."""
    new = decode_call(entry)
    due_at = at + entry.jitter * _share(f"{entry.name} {at:.3f}")
    return replace(new, id=tick_id(entry, at), due_at=due_at)


def tick_id(entry: CronEntry, at: float) -> str:
    """The id of a tick's job. It begins with the tick's time, so that it sorts like any other id."""
    said = f"{entry.name} {entry.created_at:.3f} {at:.3f}"
    text = f"{int(at * 1000) & 0xFFFFFFFFFFFF:012x}{hashlib.sha256(said.encode()).hexdigest()[:20]}"
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-8{text[17:20]}-{text[20:]}"


def _share(text: str) -> float:
    """A deterministic pseudo-random number from 0 to 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / float(1 << 56)
