"""What is to be done about a cron entry now: which ticks fire, which are skipped, which jobs they make.

Called by the tick sweep and by what operators ask. Pure: an entry and the store's time in, one write to the store out.
Whoever decides the same thing at the same time writes the same thing: the jobs of a tick have ids derived from it, and
the store takes only the first write about an entry's version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..records import CronEntry, NewJob, Overlap, Tick, Ticked
from .entry import decode_call, next_tick, ticks_after, ticks_between

JOBS_PER_TICK_MAX = 100
COUNTED_MAX = 1000  # of missed ticks, one by one: beyond, it is enough to know that there were many
FRESH_SECONDS = 60.0  # catch_up="none": a tick that is not older was not missed, only found a little late
_LOOK_BACK = (3600.0, 86400.0, 32 * 86400.0, 366 * 86400.0)
_OVERLAPS: dict[Literal["allow", "skip", "queue", "cancel"], Overlap] = {"skip": "skip", "cancel": "cancel"}


class Due(Struct, frozen=True):
    """The ticks of an entry up to now: those that fire, how many are passed over, and the last of all."""

    fire: tuple[float, ...]
    skipped: int
    last: float


def decide(entry: CronEntry, now: float) -> Tick | None:
    """What to write about the entry now; None: nothing."""
    if entry.paused_at is not None or entry.next_at is None or entry.next_at > now:
        return None
    due = due_ticks(entry, entry.next_at, now)
    jobs = tuple(job_of_tick(entry, at) for at in due.fire)
    moved = replace(entry, next_at=next_tick(entry, due.last), last_at=due.last, skipped=entry.skipped + due.skipped)
    fired = replace(moved, fired=entry.fired + len(jobs), last_job=jobs[-1].id if jobs else entry.last_job)
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
    """The ticks from `first`, which is one, up to now, by the entry's catch_up."""
    missed = list(islice(_up_to(entry, first, now), COUNTED_MAX + 1))
    if entry.catch_up == "all":
        wanted = [at for at in missed if at >= now - entry.window]
        if not wanted and len(missed) > COUNTED_MAX:  # it begins further on than was counted
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
    """The latest tick up to now, found without going through all of them."""
    for span in _LOOK_BACK:
        if now - span <= first:
            break
        ticks = list(takewhile(lambda at: at <= now, ticks_after(entry, now - span)))
        if ticks:
            return ticks[-1]
    return list(_up_to(entry, first, now))[-1]


def correction(tick: Tick, ticked: Ticked) -> Tick | None:
    """What to write after a tick whose last job was not made, because another one holds its key; None: nothing.

    Only the store knows what became of the jobs, and it keeps entries as they are given. The last job is then the one
    that took the tick's call over, or the one before: never one that is not there.
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
    """The job of one tick: always the same one, however often it is made."""
    new = decode_call(entry)
    due_at = at + entry.jitter * _share(f"{entry.name} {at:.3f}")
    return replace(new, id=tick_id(entry, at), due_at=due_at)


def tick_id(entry: CronEntry, at: float) -> str:
    """The id of a tick's job. Its first part is the tick's time, so that ids sort by it like any others."""
    said = f"{entry.name} {entry.created_at:.3f} {at:.3f}"
    text = f"{int(at * 1000) & 0xFFFFFFFFFFFF:012x}{hashlib.sha256(said.encode()).hexdigest()[:20]}"
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-8{text[17:20]}-{text[20:]}"


def _share(text: str) -> float:
    """A number from 0 to 1 that looks random and is always the same."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / float(1 << 56)
