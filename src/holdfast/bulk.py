"""One verb on every job that matches a query: find them, then act on each in a separate step, oldest first.

Called by `app.bulk` and the commands with --query. A refused job never stops the others; a store that cannot be reached
does, and the result says how far it got. What makes a repetition safe after a crash: each verb is one step per job; a
job that was acted on no longer matches, or its timeline has the change; and `as_of` leaves out jobs that were created
or that finished after the first run began. So no job is retried, revived or changed twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from .clock import moment
from .edits import EditSettings, encoded, make_edit
from .errors import BackendError, ConfigurationError, HoldfastError, OutcomeUnknown, QueueBusy
from .lazy import import_lazily
from .lifecycle import FINISHED, LIVE, UNSTARTED, State
from .names import check_options, check_text
from .options import whole
from .queries import continued, make_query
from .rates import Rate, parse_rate
from .records import BY_CHARS_MAX, Edit, JobQuery, JobRecord, Override, Pause
from .task import check_at

if TYPE_CHECKING:
    import asyncio

    from .app import Holdfast
    from .backends.contract import Backend
else:
    import_lazily(globals(), "asyncio")

IN_FLIGHT_MAX = 16  # calls to the store at once
PAGE_SIZE = 1000
IDLE_LOOKS_SECONDS = 0.2  # between two checks whether a queue has become idle

# verb → the states that a query without a state means
VERBS: Mapping[str, frozenset[State]] = {
    "cancel": LIVE,
    "retry": frozenset({State.DEAD}),
    "revive": frozenset({State.DEAD}),
    "discard": frozenset({State.DEAD}),
    "run_now": frozenset({State.SCHEDULED}),
    "bury": UNSTARTED,
    "edit": UNSTARTED,
    "reschedule": UNSTARTED,
    "delete": UNSTARTED | FINISHED,
}
_CHANGING = ("edit", "reschedule", "revive")  # verbs that take changes

Progress = Callable[[int, int], object]  # done or refused so far, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What to do with the jobs that match."""

    verb: str
    query: JobQuery
    edit: Edit
    args: Mapping[str, Any] | None = None
    rate: Rate | None = None
    reason: str = ""
    by: str = ""
    limit: int | None = None
    as_of: float | None = None
    dry_run: bool = False
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What one verb did with the jobs that matched."""

    verb: str
    as_of: datetime  # give it to a repetition after a crash
    matched: Sequence[str]  # ids, oldest first
    done: dict[str, str] = field(default_factory=dict)  # id → its state now, or what was done to it
    refused: dict[str, HoldfastError] = field(default_factory=dict)  # id → why
    stopped: HoldfastError | None = None  # the store could not be reached: the others were not tried


class BulkSettings(EditSettings, total=False):
    """The keyword arguments of `app.bulk`."""

    rate: str | Rate | None
    reason: str
    by: str
    limit: int | None
    as_of: datetime | None
    dry_run: bool
    progress: Progress | None


def make_bulk(verb: str, query: str | JobQuery | None, settings: BulkSettings) -> Bulk:
    """A validated bulk action."""
    if verb not in VERBS:
        raise ConfigurationError(f"bulk() has no verb {verb!r}; it has {', '.join(sorted(VERBS))}.")
    check_options("app.bulk()", settings, BulkSettings.__annotations__)
    changes = _changes(verb, settings)
    rate, limit, as_of = settings.get("rate"), settings.get("limit"), settings.get("as_of")
    if rate is not None and verb != "revive":
        raise ConfigurationError("rate= is for revive: the jobs become due at that rate.")
    if rate is not None and ("delay" in changes or "at" in changes):
        raise ConfigurationError("rate= says when each job is due; leave delay= and at= out.")
    asked = make_query(query, {})
    return Bulk(
        verb=verb,
        query=asked if asked.states else replace(asked, states=tuple(sorted(VERBS[verb]))),
        edit=make_edit(changes, revive=verb not in ("edit", "reschedule")),
        args=changes.get("args"),
        rate=None if rate is None else parse_rate(rate),
        reason=check_text(settings.get("reason", ""), "reason"),
        by=check_text(settings.get("by", ""), "by")[:BY_CHARS_MAX],
        limit=None if limit is None else whole(limit, "limit=", 1),
        as_of=None if as_of is None else check_at(as_of),
        dry_run=settings.get("dry_run", False),
        progress=settings.get("progress"),
    )


def _changes(verb: str, settings: BulkSettings) -> EditSettings:
    """What is to be changed of each job."""
    given: dict[str, Any] = {name: settings[name] for name in EditSettings.__annotations__ if name in settings}  # type: ignore[literal-required]
    if given and verb not in _CHANGING:
        raise ConfigurationError(f"{verb} takes no changes; use edit, reschedule or revive.")
    if verb == "reschedule" and not {"delay", "at"} & given.keys():
        raise ConfigurationError("say when: delay= or at=.")
    changes: EditSettings = given  # type: ignore[assignment]
    return changes


async def find(bulk: Bulk, backend: Backend) -> tuple[float, list[tuple[str, str]]]:
    """The time this run is as of, and (id, task) of the jobs that match, oldest first."""
    as_of = await backend.clock() if bulk.as_of is None else bulk.as_of
    found: list[tuple[str, str]] = []
    query = replace(bulk.query, limit=PAGE_SIZE)
    while bulk.limit is None or len(found) < bulk.limit:
        page = await backend.page(query)
        found += [(job.id, job.task) for job in page.jobs if _is_old_enough(job, as_of)]
        if page.after is None:
            break
        query = continued(query, page.after)
    return as_of, found[: bulk.limit][::-1]


def _is_old_enough(job: JobRecord, as_of: float) -> bool:
    return job.created_at <= as_of and (job.finished_at is None or job.finished_at <= as_of)


async def run(app: Any, bulk: Bulk, backend: Backend) -> BulkResult:
    """Find the jobs and act on each, several at once; the first call that cannot reach the store is the last."""
    as_of, found = await find(bulk, backend)
    run = _Run(app, bulk, backend, [] if bulk.dry_run else found)
    await run.all()
    return BulkResult(
        verb=bulk.verb,
        as_of=moment(as_of),
        matched=[id for id, _ in found],
        done=run.done,
        refused=run.refused,
        stopped=run.stopped,
    )


class _Run:
    """One pass over the jobs found."""

    def __init__(self, app: Holdfast, bulk: Bulk, backend: Backend, found: Sequence[tuple[str, str]]) -> None:
        self._app, self._bulk, self._backend, self._found = app, bulk, backend, found
        self._places = iter(range(len(found)))
        self._args: dict[str, bytes] = {}  # encoded, by task
        self.done: dict[str, str] = {}
        self.refused: dict[str, HoldfastError] = {}
        self.stopped: HoldfastError | None = None

    async def all(self) -> None:
        await asyncio.gather(*(self._walk() for _ in range(min(IN_FLIGHT_MAX, len(self._found)))))

    async def _walk(self) -> None:
        for place in self._places:
            if self.stopped is not None:
                return
            await self._one(place, *self._found[place])
            if self._bulk.progress is not None:
                self._bulk.progress(len(self.done) + len(self.refused), len(self._found))

    async def _one(self, place: int, id: str, task: str) -> None:
        try:
            self.done[id] = await self._act(place, id, task)
        except (BackendError, OutcomeUnknown) as error:
            self.stopped = error
        except HoldfastError as error:
            self.refused[id] = error

    async def _act(self, place: int, id: str, task: str) -> str:
        bulk, backend = self._bulk, self._backend
        if bulk.verb == "delete":
            await backend.delete(id, by=bulk.by)
            return "deleted"
        if bulk.verb == "discard":
            await backend.discard(id, by=bulk.by)
            return "discarded"
        if bulk.verb == "bury":
            return (await backend.bury(id, bulk.reason, by=bulk.by)).state.value
        edit = self._edit(place, task)
        if edit is not None:
            if await self._was_made(id, edit):
                return "changed before"
            return (await backend.edit(id, edit, by=bulk.by)).state.value
        verb: Callable[..., Awaitable[JobRecord]] = getattr(backend, bulk.verb)
        why = {"reason": bulk.reason[:BY_CHARS_MAX]} if bulk.verb == "cancel" else {}
        job = await verb(id, by=bulk.by, **why)
        running = job.state is State.RUNNING and job.cancel_requested
        return "running, asked to stop" if running else job.state.value

    async def _was_made(self, id: str, edit: Edit) -> bool:
        """Whether the run that is repeated made this change: unlike other verbs it leaves a job that still matches."""
        bulk = self._bulk
        if bulk.as_of is None or edit.revive:
            return False
        told = [("edit", bulk.by, edit.text, True)]
        return any((one.kind, one.by, one.text, one.at >= bulk.as_of) in told for one in await self._backend.marks(id))

    def _edit(self, place: int, task: str) -> Edit | None:
        """What to change of a job; None if the verb changes nothing but its state."""
        bulk, edit = self._bulk, self._bulk.edit
        if bulk.verb not in _CHANGING or (bulk.verb == "revive" and bulk.rate is None and not self._changes):
            return None
        if bulk.args is not None:
            if task not in self._args:
                self._args[task] = encoded(self._app, task, bulk.args)
            edit = replace(edit, args=self._args[task])
        return edit if bulk.rate is None else replace(edit, delay=place * bulk.rate.every)

    @property
    def _changes(self) -> bool:
        return bool(self._bulk.edit.text) or self._bulk.args is not None or self._bulk.edit.args is not UNSET


# ----------------------------------------------------------------------------------------------------------------------
# Whole queues. Every step is bounded and safe to repeat: a run that was killed is continued by calling it again.


async def empty(app: Any, queue: str, by: str, progress: Progress | None, backend: Backend) -> BulkResult:
    """Delete the jobs of a queue that have not started."""
    query = JobQuery(queue=queue, states=tuple(sorted(UNSTARTED)))
    return await run(app, make_bulk("delete", query, {"by": by, "progress": progress}), backend)


async def obliterate(
    app: Any, queue: str, wait: float | None, by: str, progress: Progress | None, backend: Backend
) -> BulkResult:
    """Delete all jobs and dead letters of a queue, then its overrides and pauses. It is paused until that is done."""
    was_paused = any(one.queue == queue and one.group is None for one in await backend.pauses())
    await backend.pause(Pause(queue=queue, reason="it is being obliterated", by=by))
    try:
        await _until_idle(queue, wait, backend)
    except QueueBusy:
        if not was_paused:
            await backend.resume(Pause(queue=queue))
        raise
    query = JobQuery(queue=queue, states=tuple(sorted(VERBS["delete"])))
    result = await run(app, make_bulk("delete", query, {"by": by, "progress": progress}), backend)
    if result.stopped is None and not result.refused:
        await _forget(queue, backend)
    return result


async def _until_idle(queue: str, wait: float | None, backend: Backend) -> None:
    """Return when no job of the queue runs; QueueBusy if one still does after `wait` seconds."""
    deadline = time.monotonic() + (wait or 0.0)
    while running := (await backend.count(queue)).get(queue, {}).get(State.RUNNING, 0):
        if time.monotonic() >= deadline:
            raise QueueBusy(queue, running)
        await asyncio.sleep(IDLE_LOOKS_SECONDS)


async def _forget(queue: str, backend: Backend) -> None:
    """Reset operators' overrides and pauses of the queue and its groups; what the code declares stays."""
    while groups := [
        one
        for one in await backend.groups(queue, limit=PAGE_SIZE)
        if one.override or one.rate_override or one.weight > 1
    ]:
        for group in groups:
            await backend.limit(Override(queue=queue, group=group.name, limit=None, rate=None, weight=None))
    for pause in await backend.pauses():
        if pause.queue == queue and pause.group is not None:
            await backend.resume(pause)
    await backend.limit(Override(queue=queue, limit=None, rate=None))
    await backend.resume(Pause(queue=queue))
