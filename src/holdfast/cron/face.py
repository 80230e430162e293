"""`app.cron`: declare entries beside the tasks, and look at and change what is stored.

Made by the app, used by users and by the command line. `@app.cron("*/5 * * * *")` declares; what was declared is
stored when a worker starts. Everything else is one question to the store or one compared write; each has an `a…` twin.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from ..calls import fresh_record
from ..clock import moment
from ..context import Context
from ..entries import CronEntry
from ..errors import ConfigurationError
from ..job import BoundCall, Job
from ..keywords import check_options
from ..names import check_name, check_text
from ..options import Duration, whole
from ..task import Task
from . import changing
from .entry import CatchUp, CronOptions, Overlap, wanted_entry
from .view import Entry

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..backends.contract import Backend

P = ParamSpec("P")
R = TypeVar("R")
NEXT_MAX = 1000
YEAR_MIN = 1970  # of a backfill: before, there is no clock that could have ticked


class CronSettings(TypedDict, total=False):
    """What an entry takes besides its expression; see CronOptions, which checks them together."""

    every: Duration | None
    tz: str | tzinfo
    overlap: Overlap
    catch_up: CatchUp
    window: Duration
    jitter: Duration


class CronDecorator(Protocol):
    """`@app.cron(...)`: on a task, or on a plain function, which it makes a task."""

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


@dataclass(frozen=True, slots=True)
class _Declaration:
    name: str
    task: Task[..., Any]
    args: Mapping[str, Any]
    options: CronOptions

    def entry(self) -> CronEntry:
        return wanted_entry(self.name, self.task.bind(**self.args).new, self.options, declared=True)


@dataclass(frozen=True, slots=True)
class Backfilled:
    """One tick of a backfilled range: when it was, its job, and whether that job was made now."""

    at: datetime
    id: str
    created: bool


class Cron:
    """Cron entries of an app."""

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
        """Declare that a task is to run at times: `@app.cron("0 9 * * MON-FRI", tz="Europe/Berlin")`, `every=30`.

        `name` is the task's unless given; `args` are the arguments by name. It is stored when a worker starts.
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
        task.codec.bind((), dict(args))  # a slip shows here; the values are encoded when a worker starts
        self._declared[name] = _Declaration(name, task, args, options)

    def declared(self) -> builtins.list[CronEntry]:
        """What the code declares, as it is to be stored; for workers."""
        return [declaration.entry() for declaration in self._declared.values()]

    # ------------------------------------------------------------------ looking

    def list(self) -> builtins.list[Entry]:
        """All entries that are stored, by name."""
        return self._app._do("cron.list", self._list)

    async def alist(self) -> builtins.list[Entry]:
        """As `list`."""
        return await self._app._ado(self._list)

    def get(self, name: str) -> Entry:
        """The entry of that name, or EntryNotFound."""
        return self._view(self._app._do("cron.get", partial(changing.get, _name(name))))

    async def aget(self, name: str) -> Entry:
        """As `get`."""
        return self._view(await self._app._ado(partial(changing.get, _name(name))))

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """When it ticks next; those that are due and not fired yet come first. Empty while it is paused."""
        return self._app._do("cron.next", partial(_next, _name(name), whole(count, "count=", 1, NEXT_MAX)))

    async def anext(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """As `next`."""
        return await self._app._ado(partial(_next, _name(name), whole(count, "count=", 1, NEXT_MAX)))

    # ------------------------------------------------------------------ changing

    def add(
        self,
        name: str,
        call: BoundCall[Any] | Task[..., Any],
        cron: str | None = None,
        **settings: Unpack[CronSettings],
    ) -> Entry:
        """Store an entry made at run time, or change it: `app.cron.add("x", send.bind("ann"), "0 9 * * *")`."""
        wanted = _wanted(name, call, cron, settings)
        return self._view(self._app._do("cron.add", partial(changing.put, wanted)))

    async def aadd(
        self,
        name: str,
        call: BoundCall[Any] | Task[..., Any],
        cron: str | None = None,
        **settings: Unpack[CronSettings],
    ) -> Entry:
        """As `add`."""
        wanted = _wanted(name, call, cron, settings)
        return self._view(await self._app._ado(partial(changing.put, wanted)))

    def remove(self, name: str) -> Entry:
        """Remove an entry. One that code declares comes back with the next worker that starts."""
        return self._view(self._app._do("cron.remove", partial(changing.remove, _name(name))))

    async def aremove(self, name: str) -> Entry:
        """As `remove`."""
        return self._view(await self._app._ado(partial(changing.remove, _name(name))))

    def pause(self, name: str, *, reason: str = "", by: str = "") -> Entry:
        """No tick fires until `resume`; jobs that are there run."""
        return self._view(self._app._do("cron.pause", _pausing(name, reason, by)))

    async def apause(self, name: str, *, reason: str = "", by: str = "") -> Entry:
        """As `pause`."""
        return self._view(await self._app._ado(_pausing(name, reason, by)))

    def resume(self, name: str) -> Entry:
        """It goes on with its next tick from now; those meanwhile are not made up for (`backfill` does that)."""
        return self._view(self._app._do("cron.resume", partial(changing.resume, _name(name))))

    async def aresume(self, name: str) -> Entry:
        """As `resume`."""
        return self._view(await self._app._ado(partial(changing.resume, _name(name))))

    def run_now(self, name: str) -> Job[Any]:
        """A job of the entry at once, besides its ticks."""
        return self._app._do("cron.run_now", partial(self._run_now, _name(name)))

    async def arun_now(self, name: str) -> Job[Any]:
        """As `run_now`."""
        return await self._app._ado(partial(self._run_now, _name(name)))

    def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False
    ) -> builtins.list[Backfilled]:
        """Make the jobs of the ticks from `start` on, before `end`, that have none; repeating it makes none twice."""
        return self._app._do("cron.backfill", partial(_backfill, _name(name), _span(start, end), dry_run))

    async def abackfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False
    ) -> builtins.list[Backfilled]:
        """As `backfill`."""
        return await self._app._ado(partial(_backfill, _name(name), _span(start, end), dry_run))

    # ------------------------------------------------------------------ inside

    def _view(self, entry: CronEntry) -> Entry:
        return Entry.of(entry, self._declared if self._app.tasks else None)

    async def _list(self, backend: Backend) -> builtins.list[Entry]:
        return [self._view(entry) for entry in await backend.entries()]

    async def _run_now(self, name: str, backend: Backend) -> Job[Any]:
        new, answer = await changing.run_now(name, backend)
        record = await backend.get(answer.id) or fresh_record(new, answer.id, await backend.clock())
        return Job(self._app, record, created=answer.created, replaced=answer.replaced)

    def __repr__(self) -> str:
        return f"<cron entries of {self._app!r}>"


async def _next(name: str, count: int, backend: Backend) -> list[datetime]:
    entry = await changing.get(name, backend)
    return [] if entry.paused_at is not None else [moment(at) for at in changing.upcoming(entry, count)]


async def _backfill(name: str, span: tuple[float, float], dry_run: bool, backend: Backend) -> list[Backfilled]:
    found = await changing.backfill(name, *span, dry_run, backend)
    return [Backfilled(moment(at), answer.id, answer.created) for at, answer in found]


def _name(name: object) -> str:
    return check_name(name, "cron entry's name")


def _pausing(name: str, reason: str, by: str) -> Callable[[Backend], Coroutine[Any, Any, CronEntry]]:
    return partial(changing.pause, _name(name), check_text(reason, "reason"), check_text(by, "by"))


def _span(start: object, end: object) -> tuple[float, float]:
    for bound in (start, end):
        if not isinstance(bound, datetime) or bound.utcoffset() is None:
            raise ConfigurationError("backfill takes aware datetimes, such as datetime(2030, 1, 1, tzinfo=UTC).")
        if bound.year < YEAR_MIN:
            raise ConfigurationError(f"backfill goes back to the year {YEAR_MIN}, not to {bound.year}.")
    return start.timestamp(), end.timestamp()  # type: ignore[attr-defined]


def _wanted(name: str, call: object, cron: str | None, settings: CronSettings) -> CronEntry:
    if isinstance(call, Task):
        call = call.bind()
    if not isinstance(call, BoundCall):
        raise ConfigurationError(f"a cron entry makes jobs of a task or a bound call, not of a {type(call).__name__}.")
    if call.connection is not None:
        raise ConfigurationError("a cron entry is no part of a transaction. Leave out connection=.")
    check_options("app.cron.add()", settings, CronSettings.__annotations__)
    return wanted_entry(_name(name), call.new, CronOptions(cron=cron, **settings), declared=False)
