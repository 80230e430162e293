"""`app.cron`: declare entries beside the tasks, and inspect and change the stored ones.

Created by the app; used by users, the command line and the worker's ticker. `@app.cron("*/5 * * * *")` declares an
entry, which is stored when a worker starts. Every other method is one read or one compare-and-set write, with an `a…`
twin.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime, tzinfo
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from ..backends.contract import Backend
from ..clock import moment
from ..context import Context
from ..errors import BackendUnavailable, ConfigurationError, CronEntryNotFound, InvalidArguments
from ..events import Started
from ..frozen import Discreet
from ..job import BoundCall, Job, fresh_record, plain_args
from ..names import check_name, check_options, check_text, new_id
from ..options import Duration, whole
from ..records import CronEntry, Enqueued, NewJob, Tick, Ticked
from ..task import Task
from .calendar import TIMES_LEFT_MIN, NextAfter, Skip
from .entry import (
    CatchUp,
    CronOptions,
    Overlap,
    decode_call,
    next_tick,
    placed,
    same_but_time,
    ticks_after,
    ticks_between,
    ticks_left,
    wanted_entry,
)
from .tick import JOBS_PER_TICK_MAX, correction, decide, job_of_tick

if TYPE_CHECKING:
    from ..app import Holdfast

# ----------------------------------------------------------------------------------------------------------------------
# A cron entry as users see it: times as aware datetimes, its call as a task with plain arguments. Frozen data.


class Entry(Discreet, frozen=True, kw_only=True):
    """A cron entry and its progress."""

    name: str
    task: str
    queue: str
    args: Mapping[str, Any]
    cron: str | None
    every: float | None
    chooser: str  # the function in the code that chooses its times, by name; "" for none
    tz: str
    overlap: Overlap
    catch_up: CatchUp
    window: float
    jitter: float
    starts_at: datetime | None
    ends_at: datetime | None
    ticks: int | None  # how many it fires in all
    offset: float | None
    skip: tuple[str, ...]
    next_at: datetime | None  # None while paused, and if there are no more
    ended: bool  # no tick follows
    last_at: datetime | None  # the latest tick, fired or skipped
    last_job: str | None  # the job of the latest tick that created one
    fired: int
    skipped: int
    created_at: datetime
    declared: bool  # by code, not created at run time
    declared_at: datetime | None  # when a worker last started with code that has it
    in_code: bool | None  # whether this app's code declares it; None: the app has no tasks, so it cannot know
    paused_at: datetime | None
    paused_by: str
    pause_reason: str

    @classmethod
    def _of(cls, entry: CronEntry, declared_here: Collection[str] | None) -> Entry:
        """Convert a stored entry to its public form."""
        try:
            call = decode_call(entry)
            task, queue, args = call.task, call.queue, plain_args(call.args)
        except ConfigurationError:  # written by a newer version: the rest is still worth showing
            task, queue, args = "", "", {}
        unknown = declared_here is None or not entry.declared
        return cls(
            name=entry.name,
            task=task,
            queue=queue,
            args=args,
            cron=entry.cron,
            every=entry.every,
            tz=entry.tz,
            overlap=entry.overlap,
            catch_up=entry.catch_up,
            window=entry.window,
            jitter=entry.jitter,
            starts_at=_moment(entry.starts_at),
            ends_at=_moment(entry.ends_at),
            ticks=entry.ticks,
            offset=entry.offset,
            skip=entry.skip,
            ended=entry.next_at is None,
            chooser=entry.chooser,
            next_at=None if entry.paused_at is not None else _moment(entry.next_at),
            last_at=_moment(entry.last_at),
            last_job=entry.last_job,
            fired=entry.fired,
            skipped=entry.skipped,
            created_at=moment(entry.created_at),
            declared=entry.declared,
            declared_at=_moment(entry.declared_at or None),
            in_code=None if unknown else entry.name in (declared_here or ()),
            paused_at=_moment(entry.paused_at),
            paused_by=entry.paused_by,
            pause_reason=entry.pause_reason,
        )

    @property
    def when(self) -> str:
        """When it ticks, for display."""
        if self.chooser:
            return self.chooser
        if self.cron is None:
            return f"every {self.every:g} s"
        return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"

    def __repr__(self) -> str:  # arguments do not belong in logs
        return f"<Entry {self.name} {self.when} {self.task}>"


def _moment(value: float | None) -> datetime | None:
    return None if value is None else moment(value)


# ----------------------------------------------------------------------------------------------------------------------
# The API


P = ParamSpec("P")
R = TypeVar("R")
NEXT_MAX = 1000
YEAR_MIN = 1970  # for a backfill: there was no Unix time before


class CronSettings(TypedDict, total=False):
    """An entry's settings besides its expression; CronOptions validates them together."""

    every: Duration | None
    next_after: NextAfter | None
    tz: str | tzinfo
    start: datetime | None
    end: datetime | None
    ticks: int | None
    offset: Duration | None
    skip: Skip
    overlap: Overlap
    catch_up: CatchUp
    window: Duration
    jitter: Duration


class CronDecorator(Protocol):
    """`@app.cron(...)`: on a task, or on a plain function, which becomes a task."""

    @overload
    def __call__(self, fn: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class _Declaration(Struct, frozen=True):
    name: str
    task: Task[..., Any]
    args: Mapping[str, Any]
    options: CronOptions

    def entry(self, now: float | None = None) -> CronEntry:
        return wanted_entry(self.name, self.task.bind(**self.args).new, self.options, declared=True, now=now)


class Backfilled(Struct, frozen=True):
    """One tick of a backfilled range: its time, its job, and whether that job was created now."""

    at: datetime
    id: str
    created: bool


class Cron:
    """An app's cron entries."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._declared: dict[str, _Declaration] = {}

    # ------------------------------------------------------------------ declaring

    def __call__(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **settings: Unpack[CronSettings],
    ) -> CronDecorator:
        """Schedule a task: `@app.cron("0 9 * * MON-FRI", tz="Europe/Berlin")`, `every=30`.

        `name` defaults to the task's; `args` are the arguments by name. The entry is stored when a worker starts.
        """
        if cron is not None and not isinstance(cron, str):
            raise ConfigurationError('say when: @app.cron("*/5 * * * *") or @app.cron(every=30).')
        check_options("app.cron()", settings, [*CronSettings.__annotations__, "name", "args"])
        options = CronOptions(cron=cron, **settings)
        given = dict(args or {})

        def declare(fn: Any) -> Any:
            task: Task[..., Any] = fn if isinstance(fn, Task) else self._app.task(fn)
            self._declare(task.name if name is None else check_name(name, "cron entry's name"), task, given, options)
            return task

        return declare

    def _declare(self, name: str, task: Task[..., Any], args: Mapping[str, Any], options: CronOptions) -> None:
        if name in self._declared:
            raise ConfigurationError(
                f"a cron entry named {name!r} is already declared. Give one of them another name=."
            )
        try:
            task._codec.bind((), dict(args))  # raises on a typo here; the values are encoded when a worker starts
        except InvalidArguments as error:
            raise InvalidArguments(
                task.name,
                f"cron entry {name!r} calls it without them: {error.why}. Give them as @app.cron(…, args={{…}})",
            ) from None
        self._declared[name] = _Declaration(name, task, args, options)
        if options.next_after is not None:
            self._app.on("started")(partial(self._choose_more, name))

    def declared(self) -> builtins.list[CronEntry]:
        """The entries that the code declares, ready to store; for workers."""
        return [declaration.entry() for declaration in self._declared.values()]

    # ------------------------------------------------------------------ inspection

    def list(self) -> builtins.list[Entry]:
        """All stored entries, by name."""
        return self._app._do("cron.list", self._list)

    async def alist(self) -> builtins.list[Entry]:
        """Async version of `list`."""
        return await self._app._ado(self._list)

    def get(self, name: str) -> Entry:
        """The entry with that name, or CronEntryNotFound."""
        return self._view(self._app._do("cron.get", partial(get, _name(name))))

    async def aget(self, name: str) -> Entry:
        """Async version of `get`."""
        return self._view(await self._app._ado(partial(get, _name(name))))

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """Its next ticks; ones that are due but have not fired come first. Empty while it is paused."""
        return self._app._do("cron.next", partial(_next, _name(name), whole(count, "count=", 1, NEXT_MAX)))

    async def anext(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """Async version of `next`."""
        return await self._app._ado(partial(_next, _name(name), whole(count, "count=", 1, NEXT_MAX)))

    # ------------------------------------------------------------------ changes

    def add(
        self,
        name: str,
        call: BoundCall[Any] | Task[..., Any],
        cron: str | None = None,
        **settings: Unpack[CronSettings],
    ) -> Entry:
        """Store an entry created at run time, or change it: `app.cron.add("x", send.bind("ann"), "0 9 * * *")`."""
        wanted = _wanted(name, call, cron, settings)
        return self._view(self._app._do("cron.add", partial(put, wanted)))

    async def aadd(
        self,
        name: str,
        call: BoundCall[Any] | Task[..., Any],
        cron: str | None = None,
        **settings: Unpack[CronSettings],
    ) -> Entry:
        """Async version of `add`."""
        wanted = _wanted(name, call, cron, settings)
        return self._view(await self._app._ado(partial(put, wanted)))

    def remove(self, name: str) -> Entry:
        """Remove an entry. One that code declares comes back when the next worker starts."""
        return self._view(self._app._do("cron.remove", partial(remove, _name(name))))

    async def aremove(self, name: str) -> Entry:
        """Async version of `remove`."""
        return self._view(await self._app._ado(partial(remove, _name(name))))

    def pause(self, name: str, *, reason: str = "", by: str = "") -> Entry:
        """Fire no tick until `resume`; existing jobs still run."""
        return self._view(self._app._do("cron.pause", _pausing(name, reason, by)))

    async def apause(self, name: str, *, reason: str = "", by: str = "") -> Entry:
        """Async version of `pause`."""
        return self._view(await self._app._ado(_pausing(name, reason, by)))

    def resume(self, name: str) -> Entry:
        """Resume at the next future tick; ticks missed while paused are not backfilled (`backfill` does that)."""
        return self._view(self._app._do("cron.resume", partial(resume, _name(name))))

    async def aresume(self, name: str) -> Entry:
        """Async version of `resume`."""
        return self._view(await self._app._ado(partial(resume, _name(name))))

    def run_now(self, name: str) -> Job[Any]:
        """Create one of the entry's jobs now, in addition to its ticks."""
        return self._app._do("cron.run_now", partial(self._run_now, _name(name)))

    async def arun_now(self, name: str) -> Job[Any]:
        """Async version of `run_now`."""
        return await self._app._ado(partial(self._run_now, _name(name)))

    def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False
    ) -> builtins.list[Backfilled]:
        """Create the missing jobs of the ticks from `start` up to, not including, `end`; repeating it is harmless."""
        return self._app._do("cron.backfill", partial(_backfill, _name(name), _span(start, end), dry_run))

    async def abackfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False
    ) -> builtins.list[Backfilled]:
        """Async version of `backfill`."""
        return await self._app._ado(partial(_backfill, _name(name), _span(start, end), dry_run))

    # ------------------------------------------------------------------ internals

    async def _choose_more(self, name: str, event: Started) -> None:
        """Store more of the times that the entry's function chooses; runs in a runner, when one of its jobs starts."""
        declaration = self._declared[name]
        if event.task != declaration.task.name:
            return
        entry, now = await self._app._ado(partial(_find, name))
        if entry is not None and sum(at > now for at in entry.times) < TIMES_LEFT_MIN:
            await self._app._ado(partial(put, declaration.entry(now)))

    def _view(self, entry: CronEntry) -> Entry:
        return Entry._of(entry, self._declared if self._app.tasks else None)

    async def _list(self, backend: Backend) -> builtins.list[Entry]:
        return [self._view(entry) for entry in await backend.entries()]

    async def _run_now(self, name: str, backend: Backend) -> Job[Any]:
        new, answer = await run_now(name, backend)
        record = await backend.get(answer.id) or fresh_record(new, answer, await backend.clock())
        return Job(self._app, record, created=answer.created, replaced=answer.replaced)

    def __repr__(self) -> str:
        return f"<cron entries of {self._app!r}>"


async def _find(name: str, backend: Backend) -> tuple[CronEntry | None, float]:
    return await find(backend, name), await backend.clock()


async def _next(name: str, count: int, backend: Backend) -> list[datetime]:
    entry = await get(name, backend)
    return [] if entry.paused_at is not None else [moment(at) for at in upcoming(entry, count)]


async def _backfill(name: str, span: tuple[float, float], dry_run: bool, backend: Backend) -> list[Backfilled]:
    found = await backfill(name, *span, dry_run, backend)
    return [Backfilled(moment(at), answer.id, answer.created) for at, answer in found]


def _name(name: object) -> str:
    return check_name(name, "cron entry's name")


def _pausing(name: str, reason: str, by: str) -> Callable[[Backend], Coroutine[Any, Any, CronEntry]]:
    return partial(pause, _name(name), check_text(reason, "reason"), check_text(by, "by"))


def _span(start: object, end: object) -> tuple[float, float]:
    for bound in (start, end):
        if not isinstance(bound, datetime) or bound.utcoffset() is None:
            raise ConfigurationError("backfill takes aware datetimes, such as datetime(2030, 1, 1, tzinfo=UTC).")
        if bound.year < YEAR_MIN:
            raise ConfigurationError(f"backfill goes back to the year {YEAR_MIN}, not to {bound.year}.")
    return start.timestamp(), end.timestamp()  # type: ignore[attr-defined]


def _wanted(name: str, call: object, cron: str | None, settings: CronSettings) -> CronEntry:
    if isinstance(call, Task):
        task = call
        try:
            call = task.bind()
        except InvalidArguments as error:
            why = f"cron entry {name!r} calls it without them: {error.why}. Give a bound call: task.bind(…)"
            raise InvalidArguments(task.name, why) from None
    if not isinstance(call, BoundCall):
        raise ConfigurationError(f"a cron entry makes jobs of a task or a bound call, not of a {type(call).__name__}.")
    if call.new.after:
        raise ConfigurationError("the jobs of a cron entry wait for no other jobs. Leave out after=.")
    if call.connection is not None:
        raise ConfigurationError("a cron entry cannot be part of a transaction. Leave out connection=.")
    check_options("app.cron.add()", settings, CronSettings.__annotations__)
    return wanted_entry(_name(name), call.new, CronOptions(cron=cron, **settings), declared=False)


# ----------------------------------------------------------------------------------------------------------------------
# Changes to stored entries: put, remove, pause, resume, run now, backfill. Each is a compare-and-set on the entry's
# version, decided again if another writer was faster, so no change undoes another.


TRIES_MAX = 20  # attempts at one change against concurrent writers
BACKFILL_MAX = 10_000  # ticks per call
REDECLARED_SECONDS = 60.0  # minimum interval between writes that only record that code still declares an entry

Decision = Callable[[CronEntry | None, float], Tick | None]


async def find(backend: Backend, name: str) -> CronEntry | None:
    """The entry with that name, or None."""
    return next((entry for entry in await backend.entries() if entry.name == name), None)


async def get(name: str, backend: Backend) -> CronEntry:
    """The entry with that name, or CronEntryNotFound."""
    entry = await find(backend, name)
    if entry is None:
        raise CronEntryNotFound(name)
    return entry


async def change(backend: Backend, name: str, decide: Decision) -> Ticked:
    """Decide on the current entry and write, until no other writer was faster. Deciding None writes nothing."""
    entry = await find(backend, name)
    for _ in range(TRIES_MAX):
        tick = decide(entry, await backend.clock())
        if tick is None:
            return Ticked(done=False, entry=entry)
        ticked = await write(backend, tick)
        if ticked.done:
            return ticked
        entry = ticked.entry
    raise BackendUnavailable(f"cron entry {name!r} keeps being changed by others. Try again.")


async def write(backend: Backend, tick: Tick) -> Ticked:
    """Write a tick; if a key conflict kept the last job from being created, correct the entry in a second write.

    If the process dies in between, or another writer intervenes, last_job names a missing job, which blocks nothing.
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
        raise CronEntryNotFound(name)
    return entry


async def put(wanted: CronEntry, backend: Backend) -> CronEntry:
    """Store an entry created at run time, or change it; its progress is kept unless its schedule changed."""

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
    """Remove an entry; returns it."""
    removed: list[CronEntry] = []

    def decide(entry: CronEntry | None, now: float) -> Tick:
        removed[:] = [_there(name, entry)]
        return _write(name, entry, None)

    await change(backend, name, decide)
    return removed[0]


async def pause(name: str, reason: str, by: str, backend: Backend) -> CronEntry:
    """Fire no tick until resume. An entry that is already paused stays unchanged."""

    def decide(entry: CronEntry | None, now: float) -> Tick | None:
        entry = _there(name, entry)
        if entry.paused_at is not None:
            return None
        return _write(name, entry, replace(entry, paused_at=now, paused_by=by, pause_reason=reason))

    return _there(name, (await change(backend, name, decide)).entry)


async def resume(name: str, backend: Backend) -> CronEntry:
    """Resume at the next future tick; ticks missed while paused are not backfilled."""

    def decide(entry: CronEntry | None, now: float) -> Tick | None:
        entry = _there(name, entry)
        if entry.paused_at is None:
            return None
        after = replace(entry, paused_at=None, paused_by="", pause_reason="", next_at=next_tick(entry, now))
        return _write(name, entry, after)

    return _there(name, (await change(backend, name, decide)).entry)


async def run_now(name: str, backend: Backend) -> tuple[NewJob, Enqueued]:
    """Create a job besides the ticks, now and whatever the overlap; later ticks treat it as the previous one."""
    made: list[NewJob] = []

    def decide(entry: CronEntry | None, now: float) -> Tick:
        entry = _there(name, entry)
        made[:] = [replace(decode_call(entry), id=new_id())]
        after = replace(entry, last_job=made[0].id)
        return replace(_write(name, entry, after, made[0]), previous=entry.last_job)

    ticked = await change(backend, name, decide)
    return made[0], ticked.enqueued[0]


def upcoming(entry: CronEntry, count: int) -> list[float]:
    """The ticks that have not fired yet, next ones first."""
    if entry.next_at is None:
        return []
    left = ticks_left(entry)
    count = count if left is None else min(count, left)
    return [entry.next_at, *islice(ticks_after(entry, entry.next_at), count - 1)]


def range_of(entry: CronEntry, start: float, end: float) -> list[float]:
    """The ticks of a past range, bounded."""
    if entry.chooser:
        raise ConfigurationError(
            f"the times of cron entry {entry.name!r} are chosen by {entry.chooser}, and only those to come are stored. "
            "Enqueue the jobs of past times yourself."
        )
    ticks = list(islice(ticks_between(entry, start, end), BACKFILL_MAX + 1))
    if len(ticks) > BACKFILL_MAX:
        raise ConfigurationError(
            f"cron entry {entry.name!r} has more than {BACKFILL_MAX} ticks in that range. Take a shorter one."
        )
    return ticks


async def backfill(
    name: str, start: float, end: float, dry_run: bool, backend: Backend
) -> list[tuple[float, Enqueued]]:
    """Create the missing jobs for the ticks of a past range, due immediately; returns each tick with its result."""
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
    """Not due at its tick, or it could expire before any worker runs it. As in a tick, "raise" becomes "keep"."""
    return replace(job, due_at=None, on_conflict="keep" if job.on_conflict == "raise" else job.on_conflict)


async def tick(backend: Backend, entry: CronEntry, now: float) -> Ticked | None:
    """Fire the entry's due ticks; None if none are due."""
    decided = decide(entry, now)
    return None if decided is None else await write(backend, decided)
