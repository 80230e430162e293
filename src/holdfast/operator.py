"""An operator's half of the app: inspect jobs, cancel, retry, pause, count, recover, audit; and `app.queues`,
`app.groups` and `app.tasks`, which show and override their rules.

Inherited or created by `Holdfast`; each method has an `a…` twin for async code. Every method is one call to the store
and decides nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .clock import moment, to_seconds
from .dead_letters import Letters, letter_id
from .errors import ConfigurationError, JobNotFound
from .events import Paused, Removed, Resumed
from .job import DeadLetter, Job, JobsFound
from .lazy import import_lazily
from .lifecycle import State
from .names import check_name, check_text
from .observer import JobOrId, checked_by, job_id, recover, tell
from .options import COUNT_MAX, Duration, Special, queue_name, said_limit, said_rate, said_weight, whole
from .queries import check_grouping, make_query, matches_letter
from .queries.pages import JobPage, Tally
from .rates import Rate
from .records import (
    REMEMBER_SECONDS_MIN,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Override,
    Pause,
    QueueRecord,
    Recovered,
    TaskRecord,
    WorkerRecord,
)
from .store_thread import forbid_running_loop
from .task import Task
from .worker_commands import WorkerCommands

if TYPE_CHECKING:
    from . import bulk as bulks
    from . import edits
    from .app import Holdfast
    from .backends.contract import Backend
    from .bulk import BulkResult, BulkSettings
    from .edits import EditSettings
    from .inspection import Audit, Explanation
    from .inspection.failures import Failures
else:
    import_lazily(globals(), ".edits", bulks=".bulk")

T = TypeVar("T")
PRUNE_STEP = 1000
LETTERS_SEEN_MAX = 5000  # the newest dead letters that a query reads
Counts = dict[str, dict[str, int]]  # keyed by State, which is a str


def make_pause(queue: str | None, group: str | None, task: Any, reason: str = "", by: str = "") -> Pause:
    """Validate that exactly one thing is to be paused: a queue, a group of a queue, or a task."""
    if (queue is None) == (task is None):
        raise ConfigurationError("say what to pause: queue=, or queue= and group=, or task=.")
    if task is not None and group is not None:
        raise ConfigurationError("a group belongs to a queue: say queue= and group=, without task=.")
    return Pause(
        queue=queue_or_none(queue),
        group=None if group is None else check_name(group, "group"),
        task=task_or_none(task),
        reason=check_text(reason, "reason"),
        by=check_text(by, "by"),
    )


def queue_or_none(queue: Any) -> str | None:
    """The queue's name, or None."""
    return None if queue is None else queue_name(queue)


def task_or_none(task: Any) -> str | None:
    """The task's name, given as a task or as text; or None."""
    return None if task is None else check_name(getattr(task, "name", task), "task name")


async def _get(id: str, backend: Backend) -> JobRecord:
    record = await backend.get(id)
    if record is None:
        raise JobNotFound(id)
    return record


async def _count(queue: str | None, backend: Backend) -> Counts:
    counted = await backend.count(queue)
    names = [queue] if queue is not None else list(counted)
    return {name: {state: counted.get(name, {}).get(state, 0) for state in State} for name in names}


async def _audit(backend: Backend) -> Audit:
    from .inspection import audit

    return await audit(backend)


async def _explain(id: str, tasks: Collection[str] | None, backend: Backend) -> Explanation:
    from .inspection import explain

    return await explain(backend, id, tasks)


async def _failures(queue: str | None, task: str | None, backend: Backend) -> Failures:
    from .inspection.failures import failures

    return await failures(backend, queue=queue, task=task, now=await backend.clock())


async def _pause(pause: Pause, backend: Backend) -> None:
    await backend.pause(pause)
    what = Paused(queue=pause.queue, group=pause.group, task=pause.task, by=pause.by, reason=pause.reason)
    await tell(backend, what)


async def _delete(id: str, by: str, backend: Backend) -> JobRecord:
    gone = await backend.delete(id, by=by)
    await tell(backend, Removed(job_id=gone.id, task=gone.task, queue=gone.queue, group=gone.group, by=by))
    return gone


async def _resume(pause: Pause, skip_dead: bool, backend: Backend) -> bool:
    if skip_dead and pause.group is None:
        raise ConfigurationError("skip_dead= is about one group: say queue= and group=, too.")
    ended = await backend.resume(pause, skip_dead=skip_dead)
    if ended:
        await tell(backend, Resumed(queue=pause.queue, group=pause.group, task=pause.task, by=pause.by))
    return ended


async def _logs(id: str, backend: Backend) -> list[LogLine]:
    await _get(id, backend)
    return await backend.logs(id)


async def _now(backend: Backend) -> datetime:
    return moment(await backend.clock())


async def _prune(older_than: float | None, dry_run: bool, backend: Backend) -> int:
    if dry_run:
        from .inspection import prunable

        return await prunable(backend, older_than)
    removed, step = 0, PRUNE_STEP
    while step == PRUNE_STEP:
        step = await backend.prune(limit=PRUNE_STEP, older_than=older_than)
        removed += step
    return removed


def _age(older_than: Duration | None) -> float | None:
    return None if older_than is None else to_seconds(older_than, "older_than=", least=REMEMBER_SECONDS_MIN)


class Operator(WorkerCommands):
    """The operator's half of an app."""

    def _job(self, record: JobRecord) -> Job[Any]:
        app: Holdfast = self  # type: ignore[assignment]
        return Job(app, record)

    # ------------------------------------------------------------------ inspection

    def job(self, id: str) -> Job[Any]:
        """The job with that id, or JobNotFound."""
        return self._job(self._do("job", partial(_get, job_id(id))))

    async def ajob(self, id: str) -> Job[Any]:
        """Async version of `job`."""
        return self._job(await self._ado(partial(_get, job_id(id))))

    def jobs(
        self,
        query: str | JobQuery | None = None,
        *,
        sort: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        **filters: Any,
    ) -> JobsFound:
        """Find jobs, newest first; read lazily with `for` or `async for`, or one page with `page()`.

        `query` is text such as "state:dead queue:mail task:send_* age:>1h"; filters are state, queue, task, group, key,
        worker, id_prefix. `sort` is created, due, finished or priority; `after`, the position a page ended at.
        """
        app: Holdfast = self  # type: ignore[assignment]
        most = None if limit is None else whole(limit, "limit=", 0)
        return JobsFound(app, make_query(query, filters, sort, after), most)

    def _page(self, query: JobQuery) -> JobPage:
        forbid_running_loop("`for job in app.jobs()`", "", advice="Use `async for job in app.jobs()`.")
        return self._store.call(lambda backend: backend.page(query))

    async def _apage(self, query: JobQuery) -> JobPage:
        return await self._ado(lambda backend: backend.page(query))

    def count(self, query: str | JobQuery | None = None, *, by: str | None = None, **filters: Any) -> Tally:
        """How many jobs match, in total and by state, queue, task or error. `complete`: no bound was reached."""
        asked, grouping = make_query(query, filters), check_grouping(by)
        return self._do("count", lambda backend: backend.tally(asked, grouping))

    async def acount(self, query: str | JobQuery | None = None, *, by: str | None = None, **filters: Any) -> Tally:
        """Async version of `count`."""
        asked, grouping = make_query(query, filters), check_grouping(by)
        return await self._ado(lambda backend: backend.tally(asked, grouping))

    def counts(self, queue: str | None = None) -> Counts:
        """The number of jobs per state, by queue; every state is included."""
        return self._do("counts", partial(_count, queue_or_none(queue)))

    async def acounts(self, queue: str | None = None) -> Counts:
        """Async version of `counts`."""
        return await self._ado(partial(_count, queue_or_none(queue)))

    def audit(self) -> Audit:
        """Check that every invariant holds in the store right now; `.violations` is empty if so."""
        return self._do("audit", _audit)

    async def aaudit(self) -> Audit:
        """Async version of `audit`."""
        return await self._ado(_audit)

    def explain(self, job: JobOrId, *, tasks: Collection[str] | None = None) -> Explanation:
        """Why a job is where it is. `tasks` are the names a worker has; defaults to this app's own."""
        return self._do("explain", partial(_explain, job_id(job), self._known_tasks(tasks)))

    async def aexplain(self, job: JobOrId, *, tasks: Collection[str] | None = None) -> Explanation:
        """Async version of `explain`."""
        return await self._ado(partial(_explain, job_id(job), self._known_tasks(tasks)))

    def failures(self, *, queue: str | None = None, task: Any = None) -> Failures:
        """The newest dead letters, grouped by task, exception and top frame of the user's code; most frequent first."""
        return self._do("failures", partial(_failures, queue_or_none(queue), task_or_none(task)))

    async def afailures(self, *, queue: str | None = None, task: Any = None) -> Failures:
        """Async version of `failures`."""
        return await self._ado(partial(_failures, queue_or_none(queue), task_or_none(task)))

    def _known_tasks(self, given: Collection[str] | None) -> Collection[str] | None:
        raise NotImplementedError

    def logs(self, job: JobOrId) -> list[LogLine]:
        """The lines its handlers wrote with `ctx.log`, oldest first."""
        return self._do("logs", partial(_logs, job_id(job)))

    async def alogs(self, job: JobOrId) -> list[LogLine]:
        """Async version of `logs`."""
        return await self._ado(partial(_logs, job_id(job)))

    def workers(self) -> list[WorkerRecord]:
        """The registered workers: what each serves, and when it last renewed."""
        return self._do("workers", lambda backend: backend.workers())

    async def aworkers(self) -> list[WorkerRecord]:
        """Async version of `workers`."""
        return await self._ado(lambda backend: backend.workers())

    def now(self) -> datetime:
        """The current time on the store's clock, which decides when jobs are due."""
        return self._do("now", _now)

    async def anow(self) -> datetime:
        """Async version of `now`."""
        return await self._ado(_now)

    # ------------------------------------------------------------------ one job

    def cancel(self, job: JobOrId, *, reason: str = "", by: str = "") -> Job[Any]:
        """Cancel: immediately if it has not started, else its handler is asked to stop. `reason` is kept."""
        id, who, why = job_id(job), checked_by(by), checked_by(reason, "reason")
        return self._job(self._do("cancel", lambda backend: backend.cancel(id, by=who, reason=why)))

    async def acancel(self, job: JobOrId, *, reason: str = "", by: str = "") -> Job[Any]:
        """Async version of `cancel`."""
        id, who, why = job_id(job), checked_by(by), checked_by(reason, "reason")
        return self._job(await self._ado(lambda backend: backend.cancel(id, by=who, reason=why)))

    def retry(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Run any finished job again, with fresh budgets; for a dead one this is revive."""
        id, who = job_id(job), checked_by(by)
        return self._job(self._do("retry", lambda backend: backend.retry(id, by=who)))

    async def aretry(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Async version of `retry`."""
        id, who = job_id(job), checked_by(by)
        return self._job(await self._ado(lambda backend: backend.retry(id, by=who)))

    def run_now(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Make a scheduled job due immediately."""
        id, who = job_id(job), checked_by(by)
        return self._job(self._do("run_now", lambda backend: backend.run_now(id, by=who)))

    async def arun_now(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Async version of `run_now`."""
        id, who = job_id(job), checked_by(by)
        return self._job(await self._ado(lambda backend: backend.run_now(id, by=who)))

    def bury(self, job: JobOrId, reason: str = "", *, by: str = "") -> Job[Any]:
        """Turn an unstarted job into a dead letter."""
        id, reason, who = job_id(job), check_text(reason, "reason"), checked_by(by)
        return self._job(self._do("bury", lambda backend: backend.bury(id, reason, by=who)))

    async def abury(self, job: JobOrId, reason: str = "", *, by: str = "") -> Job[Any]:
        """Async version of `bury`."""
        id, reason, who = job_id(job), check_text(reason, "reason"), checked_by(by)
        return self._job(await self._ado(lambda backend: backend.bury(id, reason, by=who)))

    def edit(self, job: JobOrId, *, by: str = "", **changes: Unpack[EditSettings]) -> Job[Any]:
        """Change a job that has not started: args, queue, group, priority, order, delay or at. The rest stays."""
        return self._job(self._do("edit", self._editing(job_id(job), changes, by)))

    async def aedit(self, job: JobOrId, *, by: str = "", **changes: Unpack[EditSettings]) -> Job[Any]:
        """Async version of `edit`."""
        return self._job(await self._ado(self._editing(job_id(job), changes, by)))

    def _editing(
        self, id: str, changes: EditSettings, by: str, *, revive: bool = False
    ) -> Callable[[Backend], Coroutine[Any, Any, JobRecord]]:
        app: Holdfast = self  # type: ignore[assignment]
        edit = edits.make_edit(changes, revive=revive)
        return partial(edits.edit, app, id, changes.get("args", UNSET), edit, checked_by(by))

    def reschedule(
        self, job: JobOrId, *, delay: Duration | None = None, at: datetime | None = None, by: str = ""
    ) -> Job[Any]:
        """Give a job that has not started another due time; delay=0 means now."""
        id, edit, who = job_id(job), edits.make_reschedule(delay, at), checked_by(by)
        return self._job(self._do("reschedule", lambda backend: backend.edit(id, edit, by=who)))

    async def areschedule(
        self, job: JobOrId, *, delay: Duration | None = None, at: datetime | None = None, by: str = ""
    ) -> Job[Any]:
        """Async version of `reschedule`."""
        id, edit, who = job_id(job), edits.make_reschedule(delay, at), checked_by(by)
        return self._job(await self._ado(lambda backend: backend.edit(id, edit, by=who)))

    def delete(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Remove a job that is not running, with everything stored about it; returns it as it was.

        Its id stays known for ten minutes, so that a repeated enqueue of the same call does not bring it back.
        """
        id, who = job_id(job), checked_by(by)
        return self._job(self._do("delete", partial(_delete, id, who)))

    async def adelete(self, job: JobOrId, *, by: str = "") -> Job[Any]:
        """Async version of `delete`."""
        id, who = job_id(job), checked_by(by)
        return self._job(await self._ado(partial(_delete, id, who)))

    # ------------------------------------------------------------------ many jobs

    def bulk(self, verb: str, query: str | JobQuery | None, **settings: Unpack[BulkSettings]) -> BulkResult:
        """Act on every job that matches: cancel, retry, revive, discard, run_now, bury, edit, reschedule or delete.

        Settings: those of `edit` (for edit, reschedule and revive), `by`, `reason`, `limit`, `dry_run`, `rate` (revive:
        jobs become due at that rate), `progress` (a function of done and total), and `as_of`: repeat an interrupted
        call with the result's `as_of`, and no job is acted on twice.
        """
        return self._do("bulk", partial(bulks.run, self, bulks.make_bulk(verb, query, settings)))

    async def abulk(self, verb: str, query: str | JobQuery | None, **settings: Unpack[BulkSettings]) -> BulkResult:
        """Async version of `bulk`."""
        return await self._ado(partial(bulks.run, self, bulks.make_bulk(verb, query, settings)))

    def pause(
        self, *, queue: str | None = None, group: str | None = None, task: Any = None, reason: str = "", by: str = ""
    ) -> None:
        """Pause a queue, one of its groups, or a task: none of its jobs start until `resume`. `by`: who pauses."""
        pause = make_pause(queue, group, task, reason, by)
        self._do("pause", partial(_pause, pause))

    async def apause(
        self, *, queue: str | None = None, group: str | None = None, task: Any = None, reason: str = "", by: str = ""
    ) -> None:
        """Async version of `pause`."""
        pause = make_pause(queue, group, task, reason, by)
        await self._ado(partial(_pause, pause))

    def resume(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        task: Any = None,
        skip_dead: bool = False,
        by: str = "",
    ) -> bool:
        """End that pause, a queue's slow-down, with skip_dead a group's stop by a dead job; False: nothing to do."""
        pause = make_pause(queue, group, task, by=by)
        return self._do("resume", partial(_resume, pause, skip_dead))

    async def aresume(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        task: Any = None,
        skip_dead: bool = False,
        by: str = "",
    ) -> bool:
        """Async version of `resume`."""
        pause = make_pause(queue, group, task, by=by)
        return await self._ado(partial(_resume, pause, skip_dead))

    def recover(self) -> list[Recovered]:
        """End the leases of workers whose deadline has passed, now instead of at the next sweep."""
        return self._do("recover", recover)

    async def arecover(self) -> list[Recovered]:
        """Async version of `recover`."""
        return await self._ado(recover)

    def prune(self, *, older_than: Duration | None = None, dry_run: bool = False) -> int:
        """Remove finished jobs past their retention, or finished longer ago than `older_than`; returns how many."""
        return self._do("prune", partial(_prune, _age(older_than), dry_run))

    async def aprune(self, *, older_than: Duration | None = None, dry_run: bool = False) -> int:
        """Async version of `prune`."""
        return await self._ado(partial(_prune, _age(older_than), dry_run))


class Dead(Letters):
    """`app.dead`: the dead letters."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def list(
        self,
        query: str | None = None,
        *,
        queue: str | None = None,
        task: Any = None,
        reason: str | None = None,
        id_prefix: str | None = None,
        limit: int = 100,
    ) -> builtins.list[DeadLetter]:
        """Dead letters, newest failure first. With a query, those of the newest LETTERS_SEEN_MAX that match it."""
        wanted = _letter_query(queue, task, reason, id_prefix, limit)
        return self._app._do("dead.list", partial(_letters, wanted, make_query(query, {})))

    async def alist(
        self,
        query: str | None = None,
        *,
        queue: str | None = None,
        task: Any = None,
        reason: str | None = None,
        id_prefix: str | None = None,
        limit: int = 100,
    ) -> builtins.list[DeadLetter]:
        """Async version of `list`."""
        wanted = _letter_query(queue, task, reason, id_prefix, limit)
        return await self._app._ado(partial(_letters, wanted, make_query(query, {})))

    def get(self, id: JobOrId | DeadLetter) -> DeadLetter:
        """The dead letter of a job, or JobNotFound."""
        return self._app._do("dead.get", partial(_letter, letter_id(id)))

    async def aget(self, id: JobOrId | DeadLetter) -> DeadLetter:
        """Async version of `get`."""
        return await self._app._ado(partial(_letter, letter_id(id)))

    def revive(self, id: JobOrId | DeadLetter, *, by: str = "", **changes: Unpack[EditSettings]) -> Job[Any]:
        """Run the dead job again, with fresh budgets; atomic and idempotent. `changes` as in `app.edit`, same step."""
        return self._app._job(self._app._do("dead.revive", self._reviving(letter_id(id), changes, by)))

    async def arevive(self, id: JobOrId | DeadLetter, *, by: str = "", **changes: Unpack[EditSettings]) -> Job[Any]:
        """Async version of `revive`."""
        return self._app._job(await self._app._ado(self._reviving(letter_id(id), changes, by)))

    def _reviving(self, id: str, changes: EditSettings, by: str) -> Callable[[Backend], Coroutine[Any, Any, JobRecord]]:
        if changes:
            return self._app._editing(id, changes, by, revive=True)
        return lambda backend: backend.revive(id, by=checked_by(by))

    def discard(self, id: JobOrId | DeadLetter, *, by: str = "") -> DeadLetter:
        """Remove the letter; its job stays dead until it is pruned."""
        known, who = letter_id(id), checked_by(by)
        return DeadLetter._of(self._app._do("dead.discard", lambda backend: backend.discard(known, by=who)))

    async def adiscard(self, id: JobOrId | DeadLetter, *, by: str = "") -> DeadLetter:
        """Async version of `discard`."""
        known, who = letter_id(id), checked_by(by)
        return DeadLetter._of(await self._app._ado(lambda backend: backend.discard(known, by=who)))


def _letter_query(queue: str | None, task: Any, reason: str | None, id_prefix: str | None, limit: int) -> LetterQuery:
    return LetterQuery(
        queue=queue_or_none(queue),
        task=task_or_none(task),
        reason=None if reason is None else check_text(reason, "reason"),
        id_prefix=None if id_prefix is None else check_name(id_prefix, "id_prefix"),
        limit=whole(limit, "limit=", 1, COUNT_MAX),
    )


async def _letters(wanted: LetterQuery, query: JobQuery, backend: Backend) -> list[DeadLetter]:
    if query == JobQuery():
        return [DeadLetter._of(letter) for letter in await backend.letters(wanted)]
    seen = replace(
        wanted,
        queue=wanted.queue if query.queue is None else query.queue,
        task=wanted.task if query.task is None else query.task,
        limit=LETTERS_SEEN_MAX,
    )
    now = await backend.clock()
    found = [letter for letter in await backend.letters(seen) if matches_letter(query, letter, now)]
    return [DeadLetter._of(letter) for letter in found[: wanted.limit]]


async def _letter(id: str, backend: Backend) -> DeadLetter:
    letter = await backend.letter(id)
    if letter is None:
        raise JobNotFound(id, "dead letter")
    return DeadLetter._of(letter)


# ----------------------------------------------------------------------------------------------------------------------
# Inspecting and overriding queues, groups and tasks: `app.queues`, `app.groups`, `app.tasks`. An operator's override
# takes precedence over what the code declares, immediately and without a restart, until it is reset; both are shown.


SaidLimit = int | Special | Literal["none"] | UnsetType | None  # "none", None: the former UNLIMITED and RESET
SaidRate = str | Rate | Special | UnsetType | None
SaidWeight = int | Special | UnsetType


def make_override(
    limit: SaidLimit,
    rate: SaidRate,
    weight: SaidWeight = UNSET,
    *,
    queue: Any = None,
    group: Any = None,
    task: Any = None,
) -> Override:
    """A validated override of a queue, a group or a task."""
    if limit is UNSET and rate is UNSET and weight is UNSET:
        raise ConfigurationError("say limit=, rate= or weight=: a value, UNLIMITED to lift it, RESET for the code's.")
    return Override(
        queue=queue_or_none(queue),
        group=group,
        task=task_or_none(task),
        limit=said_limit(limit, "limit="),
        rate=said_rate(rate, "rate="),
        weight=said_weight(weight),
    )


class Groups:
    """`app.groups`: order and concurrency by group."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def list(self, queue: str | None = None, *, limit: int = 100) -> builtins.list[GroupRecord]:
        """Groups with unfinished jobs, an override or a pause, by queue and name."""
        name, most = queue_or_none(queue), whole(limit, "limit=", 1, COUNT_MAX)
        return self._app._do("groups.list", lambda backend: backend.groups(name, limit=most))

    async def alist(self, queue: str | None = None, *, limit: int = 100) -> builtins.list[GroupRecord]:
        """Async version of `list`."""
        name, most = queue_or_none(queue), whole(limit, "limit=", 1, COUNT_MAX)
        return await self._app._ado(lambda backend: backend.groups(name, limit=most))

    def get(self, queue: str, name: str) -> GroupRecord:
        """One group: its limit and rate, its jobs in play and waiting, and whose turn it is."""
        queue, name = queue_name(queue), check_name(name, "group")
        return self._app._do("groups.get", lambda backend: backend.group(queue, name))

    async def aget(self, queue: str, name: str) -> GroupRecord:
        """Async version of `get`."""
        queue, name = queue_name(queue), check_name(name, "group")
        return await self._app._ado(lambda backend: backend.group(queue, name))

    def limit(
        self, queue: str, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET, weight: SaidWeight = UNSET
    ) -> None:
        """Limit how many jobs of this group run at once and start per time; weight: turns a round. RESET: its rule."""
        override = make_override(limit, rate, weight, queue=queue, group=check_name(name, "group"))
        self._app._do("groups.limit", lambda backend: backend.limit(override))

    async def alimit(
        self, queue: str, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET, weight: SaidWeight = UNSET
    ) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, weight, queue=queue, group=check_name(name, "group"))
        await self._app._ado(lambda backend: backend.limit(override))


class Queues:
    """`app.queues`: the named lanes."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def list(self) -> Sequence[QueueRecord]:
        """Every queue that is declared, overridden, slowed down, paused or has jobs, by name."""
        return self._app._do("queues.list", lambda backend: backend.queues())

    async def alist(self) -> Sequence[QueueRecord]:
        """Async version of `list`."""
        return await self._app._ado(lambda backend: backend.queues())

    def limit(self, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Limit how many jobs of a queue run at once over all workers, and the rate of starts. RESET: as declared."""
        override = make_override(limit, rate, queue=name)
        self._app._do("queues.limit", lambda backend: backend.limit(override))

    async def alimit(self, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, queue=name)
        await self._app._ado(lambda backend: backend.limit(override))

    def empty(self, name: str, *, by: str = "", progress: bulks.Progress | None = None) -> BulkResult:
        """Delete the jobs of a queue that have not started. Safe to repeat after a crash."""
        return self._app._do("queues.empty", self._emptying(name, by, progress))

    async def aempty(self, name: str, *, by: str = "", progress: bulks.Progress | None = None) -> BulkResult:
        """Async version of `empty`."""
        return await self._app._ado(self._emptying(name, by, progress))

    def _emptying(
        self, name: str, by: str, progress: bulks.Progress | None
    ) -> Callable[[Backend], Coroutine[Any, Any, BulkResult]]:
        return partial(bulks.empty, self._app, queue_name(name), checked_by(by), progress)

    def obliterate(
        self, name: str, *, wait: Duration | None = None, by: str = "", progress: bulks.Progress | None = None
    ) -> BulkResult:
        """Delete every job and dead letter of a queue, and its overrides and pauses. QueueBusy while its jobs run.

        With `wait` it pauses the queue and waits that long for them. Safe to repeat after a crash.
        """
        return self._app._do("queues.obliterate", self._obliterating(name, wait, by, progress))

    async def aobliterate(
        self, name: str, *, wait: Duration | None = None, by: str = "", progress: bulks.Progress | None = None
    ) -> BulkResult:
        """Async version of `obliterate`."""
        return await self._app._ado(self._obliterating(name, wait, by, progress))

    def _obliterating(
        self, name: str, wait: Duration | None, by: str, progress: bulks.Progress | None
    ) -> Callable[[Backend], Coroutine[Any, Any, BulkResult]]:
        seconds = None if wait is None else to_seconds(wait, "wait=")
        return partial(bulks.obliterate, self._app, queue_name(name), seconds, checked_by(by), progress)


class RegisteredTasks(Mapping[str, Task[..., Any]]):
    """`app.tasks`: the registered tasks by name, and the tasks the store has rules for."""

    def __init__(self, app: Holdfast, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._app, self._tasks = app, tasks

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<tasks {', '.join(self._tasks)}>"

    def list(self) -> builtins.list[TaskRecord]:
        """Tasks with a rule, an override or a GCRA state in the store, by name; registered here or not."""
        return self._app._do("tasks.list", lambda backend: backend.tasks())

    async def alist(self) -> builtins.list[TaskRecord]:
        """Async version of `list`."""
        return await self._app._ado(lambda backend: backend.tasks())

    def limit(self, task: Task[..., Any] | str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Limit how many jobs of a task run at once over all queues and workers, and the rate. RESET: as declared."""
        override = make_override(limit, rate, task=task)
        self._app._do("tasks.limit", lambda backend: backend.limit(override))

    async def alimit(self, task: Task[..., Any] | str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, task=task)
        await self._app._ado(lambda backend: backend.limit(override))
