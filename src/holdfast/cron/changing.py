"""What operators and starting workers change about cron entries: put, remove, pause, resume, run now, backfill.

Called by `app.cron` and by the worker's ticker, with the open backend. Every change is a write compared with the
entry's version, decided anew when somebody else was faster; so no change undoes another.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace

from ..backends.contract import Backend
from ..entries import CronEntry
from ..errors import BackendUnavailable, ConfigurationError, EntryNotFound
from ..ids import new_id
from ..records import Enqueued, NewJob, Tick, Ticked
from .entry import decode_call, next_tick, placed, same_but_time, ticks_after, ticks_between
from .ticking import JOBS_PER_TICK_MAX, correction, decide, job_of_tick

TRIES_MAX = 20  # of one change against rivals
BACKFILL_MAX = 10_000  # ticks in one call
REDECLARED_SECONDS = 60.0  # that code still has an entry is written down no more often than this

Decision = Callable[[CronEntry | None, float], Tick | None]


async def find(backend: Backend, name: str) -> CronEntry | None:
    """The entry of that name."""
    return next((entry for entry in await backend.entries() if entry.name == name), None)


async def get(name: str, backend: Backend) -> CronEntry:
    """The entry of that name, or EntryNotFound."""
    entry = await find(backend, name)
    if entry is None:
        raise EntryNotFound(name)
    return entry


async def change(backend: Backend, name: str, decide: Decision) -> Ticked:
    """Write what is decided on the entry as it is, until nobody was faster. None decided: nothing is written."""
    entry = await find(backend, name)
    for _ in range(TRIES_MAX):
        tick = decide(entry, await backend.clock())
        if tick is None:
            return Ticked(done=False, entry=entry)
        ticked = await write(backend, tick)
        if ticked.done:
            return ticked
        entry = ticked.entry
    raise BackendUnavailable(f"cron entry {name!r} changes too often to be changed just now. Try again.")


async def write(backend: Backend, tick: Tick) -> Ticked:
    """Write about an entry; where a key kept the last job from being made, the entry is put right in a second write.

    Who dies in between, or finds a rival there, leaves the id of a job that is not: it holds nothing back.
    """
    ticked = await backend.tick(tick)
    corrected = correction(tick, ticked) if ticked.done else None
    if corrected is None:
        return ticked
    return replace(ticked, entry=(await backend.tick(corrected)).entry)


def _write(name: str, before: CronEntry | None, after: CronEntry | None, *jobs: NewJob) -> Tick:
    return Tick(name=name, version=0 if before is None else before.version, entry=after, jobs=jobs)


def _there(name: str, entry: CronEntry | None) -> CronEntry:
    if entry is None:
        raise EntryNotFound(name)
    return entry


async def put(wanted: CronEntry, backend: Backend) -> CronEntry:
    """Store an entry made at run time, or change it; where it stands is kept unless its times are others."""

    def decide(entry: CronEntry | None, now: float) -> Tick | None:
        if entry is not None and entry.declared and not wanted.declared:
            raise ConfigurationError(
                f"cron entry {wanted.name!r} is declared in code. Change it there, or take another name."
            )
        after = placed(wanted, entry, now)
        if (
            entry is not None
            and same_but_time(after, entry)
            and after.declared_at - entry.declared_at < (REDECLARED_SECONDS)
        ):
            return None
        return _write(wanted.name, entry, after)

    return _there(wanted.name, (await change(backend, wanted.name, decide)).entry)


async def remove(name: str, backend: Backend) -> CronEntry:
    """Remove an entry; what it was."""
    removed: list[CronEntry] = []

    def decide(entry: CronEntry | None, now: float) -> Tick:
        removed[:] = [_there(name, entry)]
        return _write(name, entry, None)

    await change(backend, name, decide)
    return removed[0]


async def pause(name: str, reason: str, by: str, backend: Backend) -> CronEntry:
    """No tick of it fires until resume. Paused already: it stays as it is."""

    def decide(entry: CronEntry | None, now: float) -> Tick | None:
        entry = _there(name, entry)
        if entry.paused_at is not None:
            return None
        return _write(name, entry, replace(entry, paused_at=now, paused_by=by, pause_reason=reason))

    return _there(name, (await change(backend, name, decide)).entry)


async def resume(name: str, backend: Backend) -> CronEntry:
    """It goes on with the next tick from now; those meanwhile are not made up for."""

    def decide(entry: CronEntry | None, now: float) -> Tick | None:
        entry = _there(name, entry)
        if entry.paused_at is None:
            return None
        after = replace(entry, paused_at=None, paused_by="", pause_reason="", next_at=next_tick(entry, now))
        return _write(name, entry, after)

    return _there(name, (await change(backend, name, decide)).entry)


async def run_now(name: str, backend: Backend) -> tuple[NewJob, Enqueued]:
    """A job of the entry besides its ticks, at once, whatever its overlap says; later ticks take it as the previous."""
    made: list[NewJob] = []

    def decide(entry: CronEntry | None, now: float) -> Tick:
        entry = _there(name, entry)
        made[:] = [replace(decode_call(entry), id=new_id())]
        after = replace(entry, last_job=made[0].id)
        return replace(_write(name, entry, after, made[0]), previous=entry.last_job)

    ticked = await change(backend, name, decide)
    return made[0], ticked.enqueued[0]


def upcoming(entry: CronEntry, count: int) -> list[float]:
    """The ticks that nobody has fired yet, the next ones first."""
    if entry.next_at is None:
        return []
    return [entry.next_at, *islice(ticks_after(entry, entry.next_at), count - 1)]


def range_of(entry: CronEntry, start: float, end: float) -> list[float]:
    """The ticks of a past range, bounded."""
    ticks = list(islice(ticks_between(entry, start, end), BACKFILL_MAX + 1))
    if len(ticks) > BACKFILL_MAX:
        raise ConfigurationError(
            f"cron entry {entry.name!r} has more than {BACKFILL_MAX} ticks in that range. Take a shorter one."
        )
    return ticks


async def backfill(
    name: str, start: float, end: float, dry_run: bool, backend: Backend
) -> list[tuple[float, Enqueued]]:
    """The jobs of the ticks of a past range that have none yet, due at once; each tick with what became of it."""
    entry, now = await get(name, backend), await backend.clock()
    if end <= start or end > now:
        raise ConfigurationError("backfill takes a range that has passed: start before end, end not in the future.")
    found: list[tuple[float, Enqueued]] = []
    ticks = range_of(entry, start, end)
    for place in range(0, len(ticks), JOBS_PER_TICK_MAX):
        some = ticks[place : place + JOBS_PER_TICK_MAX]
        jobs = [_for_backfill(job_of_tick(entry, at)) for at in some]
        if dry_run:
            known = [await backend.get(job.id) is not None for job in jobs]
            answers = [Enqueued(job.id, not there) for job, there in zip(jobs, known, strict=True)]
        else:
            answers = await backend.enqueue(jobs)
        found += zip(some, answers, strict=True)
    return found


def _for_backfill(job: NewJob) -> NewJob:
    """Not due at its tick: it would have expired before anybody could run it. As in a tick, "raise" is "keep"."""
    return replace(job, due_at=None, on_conflict="keep" if job.on_conflict == "raise" else job.on_conflict)


async def tick(backend: Backend, entry: CronEntry, now: float) -> Ticked | None:
    """Fire the entry's due ticks; None: none is due."""
    decided = decide(entry, now)
    return None if decided is None else await write(backend, decided)
