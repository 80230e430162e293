"""The objects users work with: Job (a snapshot with handle methods), BoundCall, Enqueued, DeadLetter.

Called by the app and by users. Plain data; I/O happens only through the app they were given. Decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from . import records
from .clock import moment
from .codec import decode_plain
from .dependencies import DUE_AFTER_PARENTS
from .errors import ArgumentsRejected, ConfigurationError
from .frozen import Discreet
from .headers import headers_of, tags_of
from .lifecycle import Failure, State
from .options import Duration
from .placeholders import Placeholder
from .queries import continued
from .queries.pages import JobPage
from .records import JobQuery, JobRecord, NewJob

if TYPE_CHECKING:
    from .app import Holdfast
    from .task import Task

R = TypeVar("R")


class Enqueued(Struct, frozen=True):
    """Result of enqueue_many: how many jobs it created, and how many calls matched an existing job."""

    created: int
    kept: int


class BoundCall(Discreet, Generic[R], frozen=True):
    """A call with its arguments checked and its id assigned. Enqueueing it again creates no second job."""

    new: NewJob
    connection: Any = None  # the caller's own, if the job is to join its transaction

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def task(self) -> str:
        return self.new.task

    @property
    def queue(self) -> str:
        return self.new.queue

    @property
    def group(self) -> str | None:
        return self.new.group

    @property
    def key(self) -> str | None:
        return self.new.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers given with `.options(headers=…)`."""
        return headers_of(self.new.options)

    @property
    def result(self) -> R:
        """What its job will return, as an argument of another call that waits for it: `add.bind(call.result, 3)`.

        It is a placeholder until that call runs, so it can only be passed on.
        """
        if self.key is not None:
            raise ConfigurationError(
                f"{self!r} has a key, so another job may stand for it. Enqueue it first, and use result_of(job)."
            )
        return cast(R, Placeholder(self.id))

    def __repr__(self) -> str:  # arguments do not belong in logs
        return f"<BoundCall {self.new.task} {self.new.id}>"


def plain_args(raw: bytes) -> dict[str, Any]:
    """Stored arguments as plain values, for display; empty if they cannot be read."""
    if not _is_json(raw):
        return {}
    stored = decode_plain(raw)
    return stored if isinstance(stored, dict) else {"": stored}


def arguments_of(task: Task[..., Any] | None, raw: bytes) -> dict[str, Any]:
    """Stored arguments by name: rebuilt if the task is known here, else plain JSON."""
    if task is not None:
        try:
            return task._decode(raw)
        except ArgumentsRejected:  # an older or newer signature: still worth showing
            pass
    return plain_args(raw)


def _is_json(raw: bytes) -> bool:
    try:
        decode_plain(raw)
    except ValueError:  # msgspec's errors too
        return False
    return True


def _moment(value: float | None) -> datetime | None:
    return None if value is None else moment(value)


def fresh_record(new: NewJob, answer: records.Enqueued, now: float, state: State | None = None) -> JobRecord:
    """A job that was just stored, as far as its producer knows without reading it back."""
    due_at = new.due_at if new.due_at is not None else now + (new.delay or 0.0)
    if new.after:
        due_at = DUE_AFTER_PARENTS
    if state is None:
        state = State.SCHEDULED if due_at > now else State.WAITING if answer.waits else State.READY
    return JobRecord(
        id=answer.id,
        seq=0,
        task=new.task,
        queue=new.queue,
        state=state,
        args=new.args,
        priority=new.priority,
        group=new.group,
        key=new.key,
        max_stalls=new.max_stalls,
        created_at=now,
        due_at=max(due_at, now),
        expires_at=None if new.expires is None else due_at + new.expires,
        revival=new.revival,
        options=new.options,
        key_scope=new.key_scope,
        key_until=new.key_until,
        key_window=new.key_window,
        holds_key=new.key is not None,
        due_max=None if new.wait_max is None else now + new.wait_max,
        on_expire=new.on_expire,
        order=new.order,
    )


class Job(Generic[R]):
    """A job as of its last read. `refresh` reads it again and returns itself."""

    __slots__ = ("_app", "_created", "_known", "_replaced")

    def __init__(
        self,
        app: Holdfast,
        record: JobRecord | Callable[[], JobRecord],  # most callers of enqueue never look at it
        *,
        created: bool = True,
        replaced: bool = False,
    ) -> None:
        self._app = app
        self._known = record
        self._created = created
        self._replaced = replaced

    @property
    def _record(self) -> JobRecord:
        known = self._known
        if not isinstance(known, JobRecord):
            known = self._known = known()
        return known

    @_record.setter
    def _record(self, record: JobRecord) -> None:
        self._known = record

    # ------------------------------------------------------------------ identity

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def task(self) -> str:
        return self._record.task

    @property
    def queue(self) -> str:
        return self._record.queue

    @property
    def state(self) -> State:
        return self._record.state

    @property
    def priority(self) -> int:
        return self._record.priority

    @property
    def group(self) -> str | None:
        return self._record.group

    @property
    def order(self) -> int | None:
        """Its place in its group, as given: lower ones go first. A datetime is in microseconds since 1970."""
        return self._record.order

    @property
    def key(self) -> str | None:
        return self._record.key

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name: rebuilt if this process has the task, else plain JSON. Defaults are not stored."""
        return arguments_of(self._app.find_task(self._record.task), self._record.args)

    @property
    def headers(self) -> dict[str, str]:
        """Metadata that travels with the job for middleware: request id, trace context, tenant."""
        return headers_of(self._record.options)

    @property
    def tags(self) -> tuple[str, ...]:
        """The words given with `.options(tags=…)`; `tag:NAME` finds its jobs."""
        return tags_of(self._record.options)

    @property
    def is_new(self) -> bool:
        """False if enqueue found an existing job: the same id, or a live one with the same key."""
        return self._created

    @property
    def created(self) -> bool:
        """The same as `is_new`."""
        return self._created

    @property
    def replaced(self) -> bool:
        """True if enqueue found a job that had not started and gave it this call's arguments and due time."""
        return self._replaced

    # ------------------------------------------------------------------ progress and outcome

    @property
    def attempts(self) -> int:
        return self._record.attempts

    @property
    def failures(self) -> int:
        return self._record.failures

    @property
    def stalls(self) -> int:
        return self._record.stalls

    @property
    def shared_stalls(self) -> int:
        """Stalls while other jobs ran in the same process; they have their own cap."""
        return self._record.shared_stalls

    @property
    def suspect(self) -> bool:
        """Its latest attempt stalled: a worker that supports it runs the job alone next."""
        return self._record.suspect

    @property
    def created_at(self) -> datetime:
        return moment(self._record.created_at)

    @property
    def waits_for_parents(self) -> bool:
        """Whether it waits until other jobs have succeeded (`after=`). Its `due_at` is in the year 3000 then."""
        return self.state is State.SCHEDULED and self._record.due_at == DUE_AFTER_PARENTS

    @property
    def due_at(self) -> datetime:
        return moment(self._record.due_at)

    @property
    def expires_at(self) -> datetime | None:
        """The job is no longer started after this time, unless it already has been."""
        return None if self._record.expires_at is None else moment(self._record.expires_at)

    @property
    def started_at(self) -> datetime | None:
        """When its latest lease began."""
        return _moment(self._record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return _moment(self._record.finished_at)

    @property
    def progress(self) -> float | None:
        return self._record.progress

    @property
    def progress_text(self) -> str | None:
        return self._record.progress_text

    @property
    def value(self) -> R | None:
        """What its handler returned; None until it succeeds."""
        raw = self._record.value
        return None if raw is None or not _is_json(raw) else self._app._rebuild(self._record.task, raw)

    @property
    def error(self) -> Failure | None:
        """The latest failure or stall."""
        return self._record.errors[-1] if self._record.errors else None

    @property
    def errors(self) -> tuple[Failure, ...]:
        """The newest failures and stalls, oldest first."""
        return self._record.errors

    @property
    def reason(self) -> str | None:
        """Why it is dead or was dropped ("expired")."""
        return self._record.reason

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Fields whose stored value cannot be read; they show their defaults here."""
        record = self._record
        stored = {"args": record.args, "value": record.value}
        more = (name for name, raw in stored.items() if raw is not None and not _is_json(raw))
        return tuple(dict.fromkeys((*record.unreadable, *more)))

    @property
    def worker(self) -> str | None:
        """The worker running it now."""
        return self._record.worker

    @property
    def fence(self) -> int:
        return self._record.fence

    @property
    def cancel_requested(self) -> bool:
        return self._record.cancel_requested

    # ------------------------------------------------------------------ operations

    def result(self, timeout: Duration | None = None) -> R:
        """Wait, through retries, until it finishes; return its value. JobDied, JobCancelled, WaitTimedOut, ResultGone.

        BackendError if the stored value is damaged.
        """
        return self._app._result(self, timeout)  # type: ignore[no-any-return]

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Async version of `result`."""
        return await self._app._aresult(self, timeout)  # type: ignore[no-any-return]

    def refresh(self) -> Job[R]:
        """Read it again. JobNotFound once it has been pruned."""
        self._record = self._app._reread(self)
        return self

    async def arefresh(self) -> Job[R]:
        """Async version of `refresh`."""
        self._record = (await self._app.ajob(self.id))._record
        return self

    def cancel(self, *, reason: str = "") -> Job[R]:
        """Cancel it: immediately if it has not started, else as soon as its handler stops."""
        self._record = self._app._cancel(self, reason)
        return self

    async def acancel(self, *, reason: str = "") -> Job[R]:
        """Async version of `cancel`."""
        self._record = (await self._app.acancel(self.id, reason=reason))._record
        return self

    def __repr__(self) -> str:
        return f"<Job {self.task} {self.id} {self.state.value}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id and other._app is self._app

    def __hash__(self) -> int:
        return hash(self.id)


def result_of(parent: Job[R] | BoundCall[R]) -> R:
    """What a job will return, as an argument of another call: `add.bind(result_of(job), 3)`, which then waits for it.

    Of a bound call, the same as `call.result`.
    """
    if isinstance(parent, BoundCall):
        return parent.result
    if not isinstance(parent, Job):
        raise ConfigurationError(f"result_of() takes a job or a bound call, not a {type(parent).__name__}.")
    return cast(R, Placeholder(parent.id))


class Page(Struct, frozen=True):
    """One page of the jobs that match a query, and how much was scanned for it."""

    jobs: list[Job[Any]]
    after: str | None  # the position to continue after; None: these were the last
    scanned: int  # jobs looked at
    sorted_all: bool = True  # False: sorted only among the newest that were looked at


class JobsFound:
    """The jobs matching a query, read page by page during iteration: `for` or `async for`. `page()` reads just one."""

    def __init__(self, app: Holdfast, query: JobQuery, most: int | None) -> None:
        self._app = app
        self._query = query
        self._most = most

    def page(self) -> Page:
        """The first page: at most `limit` jobs; fewer if it reached its bound of jobs or bytes to scan."""
        return self._shown(self._app._page(self._of_one(self._most)))

    async def apage(self) -> Page:
        """Async version of `page`."""
        return self._shown(await self._app._apage(self._of_one(self._most)))

    def __iter__(self) -> Iterator[Job[Any]]:
        left, query = self._most, self._query
        while left is None or left > 0:
            page = self._app._page(self._sized(query, left))
            yield from self._shown(page).jobs
            if page.after is None:
                return
            query, left = continued(query, page.after), None if left is None else left - len(page.jobs)

    async def __aiter__(self) -> AsyncIterator[Job[Any]]:
        left, query = self._most, self._query
        while left is None or left > 0:
            page = await self._app._apage(self._sized(query, left))
            for job in self._shown(page).jobs:
                yield job
            if page.after is None:
                return
            query, left = continued(query, page.after), None if left is None else left - len(page.jobs)

    def _shown(self, page: JobPage) -> Page:
        return Page([Job(self._app, record) for record in page.jobs], page.after, page.scanned, page.sorted_all)

    def _of_one(self, most: int | None) -> JobQuery:
        return replace(self._query, limit=PAGE_SIZE if most is None else min(PAGE_MAX, most))

    def _sized(self, query: JobQuery, left: int | None) -> JobQuery:
        return replace(query, limit=PAGE_SIZE if left is None else min(PAGE_SIZE, left))


PAGE_SIZE = 200  # read at once during iteration
PAGE_MAX = 1000  # of `page()`


class DeadLetter(Discreet, frozen=True, kw_only=True):
    """The one dead letter of a logical job: (queue, task, key), or the id if it has no key."""

    id: str
    task: str
    queue: str
    key: str | None
    group: str | None
    args: Mapping[str, Any]
    failure_count: int
    first_failed_at: datetime
    failed_at: datetime
    reason: str
    error: Failure | None
    history: tuple[records.PastDeath, ...]
    cycles: int
    revive_at: datetime | None
    revived_at: datetime | None
    headers: Mapping[str, str]
    tags: tuple[str, ...]

    @classmethod
    def _of(cls, letter: records.DeadLetter) -> DeadLetter:
        """Convert a stored letter to its public form: arguments as plain values, times as aware datetimes."""
        return cls(
            id=letter.id,
            task=letter.task,
            queue=letter.queue,
            key=letter.key,
            group=letter.group,
            args=plain_args(letter.args),
            failure_count=letter.failure_count,
            first_failed_at=moment(letter.first_failed_at),
            failed_at=moment(letter.failed_at),
            reason=letter.reason,
            error=letter.error,
            history=letter.history,
            cycles=letter.cycles,
            revive_at=_moment(letter.revive_at),
            revived_at=_moment(letter.revived_at),
            headers=headers_of(letter.options),
            tags=tags_of(letter.options),
        )

    def __repr__(self) -> str:
        return f"<DeadLetter {self.task} {self.id} {self.reason} x{self.failure_count}>"
