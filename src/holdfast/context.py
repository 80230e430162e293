"""One attempt: what its handler can learn, report and decide (Context, verdicts), and its outcome and settlement.

The runner creates one Context per attempt; handlers use it from any thread. Nothing here waits for the store: progress
and log lines go to the keeper, which coalesces and writes them, and so does the settlement.
"""

from __future__ import annotations

import errno
import math
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from enum import IntEnum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from . import logs
from .clock import to_seconds
from .durable import Durable
from .errors import ArgumentsRejected, ConfigurationError
from .headers import batch_of, first_id, headers_of, parents_number
from .lifecycle import REMOVED, Ending, Failure, Settlement
from .names import plain
from .records import ONLY_SIGNED, Lease, Release

if TYPE_CHECKING:
    from .app import Holdfast
    from .batches import Batch
    from .children import Children
    from .job import BoundCall, Job
    from .options import TaskOptions
    from .step_replay import Replay
    from .task import Task

R = TypeVar("R")
T = TypeVar("T")

# ----------------------------------------------------------------------------------------------------------------------
# Verdicts: exceptions a handler raises to decide how its attempt ends. They derive from BaseException so that a
# handler's `except Exception` cannot swallow them. They only carry data.


class Verdict(BaseException):
    """The handler has decided; the worker carries it out."""


class Retry(Verdict):
    """A failure: retry after `after` seconds if given, else after the policy's back-off. Spends a retry."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after: float | None = None if after is None else to_seconds(after, "Retry(after=…)")
        self.reason = reason
        super().__init__(reason or "the handler asked to be run again")


class Snooze(Verdict):
    """Not a failure: run again in `seconds`. Spends nothing. With queue=True its queue starts nothing until then."""

    def __init__(self, seconds: float | timedelta, *, queue: bool = False) -> None:
        self.seconds: float = to_seconds(seconds, "Snooze(…)")
        self.queue = bool(queue)
        super().__init__(f"the handler asked to be run again in {self.seconds:g} s")


class Bury(Verdict):
    """Final: no further attempt; the job becomes a dead letter with this reason."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the handler gave the job up")


# ----------------------------------------------------------------------------------------------------------------------
# The context


PROGRESS_TEXT_CHARS_MAX = 500
LOG_LINE_CHARS_MAX = 2000


class ReportSink(Protocol):
    """Receives progress, log lines, slow-downs, and which handlers settle their job; thread-safe, never blocks."""

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None: ...

    def line(self, lease: Lease, line: str) -> None: ...

    def slow_down(self, lease: Lease, seconds: float) -> None: ...

    def settles_itself(self, lease: Lease) -> None: ...


class CancelRequested(BaseException):
    """Raised by `Context.raise_if_cancelled` to end the attempt; `except Exception` does not catch it."""


class Resources(dict[str, Any]):
    """What the startup functions opened, by name: `resources["db"] = pool`, then `ctx.resources["db"]` in handlers.

    `ctx.resources.of(Pool)` finds one by its class, and is typed.
    """

    def __missing__(self, name: str) -> Any:
        raise ConfigurationError(
            f"there is no resource {name!r}; {self._named()}. Set it in a function of @app.on_startup."
        )

    def of(self, kind: type[T], name: str | None = None) -> T:
        """The resource of this class: the only one, or the one with this name."""
        found = [one for one in self.values() if isinstance(one, kind)] if name is None else [self[name]]
        if len(found) == 1 and isinstance(found[0], kind):
            return found[0]
        if len(found) > 1:
            raise ConfigurationError(f"{len(found)} resources are a {kind.__name__}: {self._named()}. Give its name.")
        raise ConfigurationError(f"no resource{f' {name!r}' if name else ''} is a {kind.__name__}; {self._named()}.")

    def _named(self) -> str:
        return f"there are {', '.join(sorted(map(str, self)))}" if self else "there are none"


class Attempt:
    """What a lease tells a handler, or a program that leased the job itself, about its attempt."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def task(self) -> str:
        return self._lease.task

    @property
    def queue(self) -> str:
        return self._lease.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._lease.attempt

    @property
    def failures(self) -> int:
        """How many attempts failed before this one."""
        return self._lease.failures

    @property
    def fence(self) -> int:
        """Grows with every lease of the job and of its group: use it to reject a late writer."""
        return self._lease.fence

    @property
    def group(self) -> str | None:
        return self._lease.group

    @property
    def key(self) -> str | None:
        return self._lease.key

    @property
    def headers(self) -> dict[str, str]:
        """What came with the job: `.options(headers=…)` and `@app.on_enqueue`. A copy, the same in every attempt."""
        return headers_of(self._lease.options)


class Context(Durable, Attempt):
    """One attempt, as its handler sees it.

    `id` is stable across retries and revivals (use it as an idempotency key); `fence` grows with every lease of the job
    and of its group (use it to reject a late writer).
    """

    __slots__ = (
        *("_cancelled", "_children", "_deadline", "_options", "_parents"),
        *("_replay", "_reports", "_resources", "_settled", "_task"),
    )

    def __init__(
        self,
        lease: Lease,
        *,
        deadline: float | None = None,
        task: Task[..., Any] | None = None,
        options: TaskOptions | None = None,
        reports: ReportSink | None = None,
        resources: Resources | None = None,
    ) -> None:
        self._lease = lease
        self._parents: Mapping[str, Any] | None = None
        self._replay: Replay | None = None  # its durable calls; None until there is one
        self._children: Children | None = None  # jobs to be stored with its success
        self._deadline = deadline
        self._task = task
        self._options = options
        self._reports = reports
        self._resources = resources
        self._cancelled = False
        self._settled = False  # its handler has settled it in its own transaction

    @staticmethod
    def current() -> Context:
        """The context of the attempt this code is running in."""
        context = CURRENT.get()
        if context is None:
            raise ConfigurationError(
                "no job is running here: Context.current() works only inside a handler and in what it calls. "
                "In a thread of your own, start it with contextvars.copy_context().run."
            )
        return context

    @property
    def last_attempt(self) -> bool:
        """Whether a failure of this attempt would be final."""
        return self._options is not None and self._options.retry.delay(self._lease.failures + 1) is None

    @property
    def deadline(self) -> float | None:
        """When the task's timeout expires, on `time.monotonic()`; None without a timeout."""
        return self._deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until the timeout expires, never below 0; None without a timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: cancellation, timeout, a lost lease, or worker shutdown.

        Async handlers are also cancelled; a sync handler only gets this flag, because a thread cannot be killed.
        """
        return self._cancelled

    @property
    def resources(self) -> Resources:
        """What the functions of `@app.on_startup` opened in this process."""
        if self._resources is None:
            self._resources = Resources()
        return self._resources

    @property
    def parents(self) -> Mapping[str, Any]:
        """The results of the jobs that this one waited for (`after=`), by id; only of those that succeeded.

        They are read at the first access; for an async handler that takes a Context, before it begins.
        """
        if self._parents is None:
            asks, job_id = self._asks_parents(), first_id(self._lease.options, self.id)
            self._parents = {} if asks is None else asks._store.call(partial(asks._results_of_parents, job_id))
        return self._parents

    async def _load_parents(self) -> None:
        """Read the results of the parents, if there are any, for an async handler."""
        asks, job_id = self._asks_parents(), first_id(self._lease.options, self.id)
        if asks is not None:
            self._parents = await asks._store.acall(partial(asks._results_of_parents, job_id))

    def _asks_parents(self) -> Holdfast | None:
        """The app whose store has the results of the parents; None if the job has none."""
        stored = self._lease.options
        return None if stored is None or self._task is None or not parents_number(stored) else self._task.app

    def _durable(self) -> Replay:
        if self._replay is None:
            from .step_replay import of_attempt

            return of_attempt(self)
        return self._replay

    def raise_if_cancelled(self) -> None:
        """End the attempt here if it should stop."""
        if self._cancelled:
            raise CancelRequested

    def progress(self, fraction: float | None, text: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1 and a short text. The latest report wins."""
        if fraction is not None:
            fraction = float(fraction)
            if math.isnan(fraction) or not 0.0 <= fraction <= 1.0:
                raise ValueError(f"progress must be between 0 and 1, not {fraction!r}")
        if self._reports is not None:
            self._reports.progress(
                self._lease, fraction, None if text is None else plain(text)[:PROGRESS_TEXT_CHARS_MAX]
            )

    def log(self, text: str, **fields: Any) -> None:
        """Add a line to the job's own log: the text, then the fields as name=value."""
        if fields:
            text = " ".join([text, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        if self._reports is not None:
            self._reports.line(self._lease, plain(text)[:LOG_LINE_CHARS_MAX])

    def slow_down(self, seconds: float | timedelta) -> None:
        """Start no more jobs of this job's queue for `seconds`, on any worker: for when a remote service is overloaded.

        Takes effect almost immediately; running jobs, including this one, continue. Never shortens a longer slow-down.
        """
        span = to_seconds(seconds, "slow_down(…)")
        if self._reports is not None:
            self._reports.slow_down(self._lease, span)

    @property
    def batch(self) -> Batch | None:
        """The batch that this job is a member or a callback of. `ctx.enqueue(ctx.batch.add(call))` adds to it."""
        id = batch_of(self._lease.options)
        return None if not id or self._task is None else self._task.app.find_batch(id)

    def enqueue(self, call: BoundCall[R]) -> Job[R]:
        """Enqueue a job with the success of this attempt: both are stored, in one step, or neither.

        Returns at once; the job's id is known, and the job is there when this handler has returned and was settled. An
        attempt that fails, is cancelled or loses its lease stores none, so a retry enqueues nothing twice. A call that
        waits for another one of this attempt (`after=`) comes after that one. In async handlers, too, without await.
        """
        from .children import Children

        if self._task is None:
            raise ConfigurationError("ctx.enqueue works in a job only, and this handler was called directly.")
        if self._settled:
            raise ConfigurationError("ctx.enqueue comes before ctx.succeed(connection=…), which stores its jobs.")
        if self._children is None:
            self._children = Children()
        return self._children.add(self._task.app, call)

    def enqueue_many(self, calls: Iterable[BoundCall[Any]]) -> None:
        """Enqueue several jobs with the success of this attempt, as `enqueue` does; also the calls of a flow."""
        for call in calls:
            self.enqueue(call)

    def succeed(self, result: Any = None, *, connection: Any) -> None:
        """Settle this attempt as succeeded inside your own open transaction: what you wrote there and the job's end are
        committed together, or neither is. Then commit, and return; what the handler returns is ignored.

        The connection must be open on the database that holds the jobs (SQLite or PostgreSQL). LeaseLost: the lease is
        no longer yours, so roll back.
        """
        if self._task is not None and self._options is not None:
            from .caller_transaction import settle

            settle(self, self._task, self._options, connection, result)

    async def asucceed(self, result: Any = None, *, connection: Any) -> None:
        """Async version of `succeed`, for an async connection on the handler's loop."""
        if self._task is not None and self._options is not None:
            from .caller_transaction import asettle

            await asettle(self, self._task, self._options, connection, result)


CURRENT: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)
# Whether handlers run in the thread that drains them, where a test has its open transaction.
INLINE: ContextVar[bool] = ContextVar("holdfast_inline", default=False)


def _shown(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)


# ----------------------------------------------------------------------------------------------------------------------
# Outcomes: why an attempt must stop, how its handler ended, and the settlement that the keeper sends. Used by
# runners and keeper. Pure, bounded, and safe even if str(exception) raises. Whether to retry is the task's policy.


TEXT_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 10_000
TRACEBACK_FRAMES_MAX = 50

UNKNOWN_TASK_DELAY_SECONDS = 30.0
FAULTY_BACKOFF_SECONDS = 30.0


class Stop(IntEnum):
    """Why an attempt was asked to stop; the highest reason decides its outcome."""

    NOT = 0
    STOPPING = 1  # the worker is ending: released, unless the handler finished by itself
    FENCED = 2  # the lease may expire soon: the same
    TIMED_OUT = 3  # ends as timed out, whatever it returned
    CANCELLED = 4  # ends as cancelled, whatever it returned
    LOST = 5  # the lease is no longer ours: nothing is recorded


class Gone:
    """An attempt that ended without an outcome for the store: its lease was lost."""

    __slots__ = ("id", "token")

    def __init__(self, id: str, token: str) -> None:
        self.id, self.token = id, token


class Unknown:
    """An attempt that never began because this runner does not know its task."""

    __slots__ = ("id", "token")

    def __init__(self, id: str, token: str) -> None:
        self.id, self.token = id, token


Ended = Settlement | Release | Gone | Unknown


class OutcomeKind(StrEnum):
    """How an attempt ended, as its runner saw it."""

    RETURNED = "returned"
    FAILED = "failed"  # raised, or raised Retry
    TIMED_OUT = "timeout"
    SNOOZED = "snoozed"
    BURIED = "bury"
    UNDECODABLE = "undecodable"  # the stored arguments no longer fit the function
    CANCELLED = "cancelled"


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of an attempt. `delay` is set by a verdict (always for Snooze, optional for Retry)."""

    kind: OutcomeKind
    value: bytes | None = None
    failure: Failure | None = None
    delay: float | None = None
    signal: str | None = None  # of a snooze: the signal that ends it


NOTHING = Outcome(kind=OutcomeKind.RETURNED, value=b"null")  # most handlers return None
RETURNED = NOTHING.kind  # see SUCCEEDED
STOPPED = Outcome(kind=OutcomeKind.CANCELLED)  # it stopped because it was asked to; the runner knows why
# After ctx.succeed(connection=…). If that transaction was committed, the lease is over, and the store refuses this.
NOT_COMMITTED = Outcome(
    kind=OutcomeKind.FAILED,
    failure=Failure(
        reason="failed",
        text="the handler called ctx.succeed(connection=…) and returned, but that transaction was not committed",
    ),
)


def returned(context: Context, task: Task[..., Any], value: Any) -> tuple[Outcome, BaseException | None]:
    """Outcome of a handler that returned. If the value cannot be stored, or a durable call is open, it is a failure."""
    fault = None if context._replay is None else context._replay.fault_at_end()
    if fault is not None:
        return Outcome(kind=OutcomeKind.FAILED, failure=failure_of(fault)), fault
    if value is None:
        return NOTHING, None
    try:
        return Outcome(kind=OutcomeKind.RETURNED, value=task._encode(value)), None
    except ArgumentsRejected as error:
        text = f"the handler returned, but its result cannot be stored: {error.why}"
        failure = Failure(type=dotted(error), text=bounded(text, TEXT_CHARS_MAX))
        return Outcome(kind=OutcomeKind.FAILED, failure=failure), error
    except BaseException as error:  # encoding may run the value's own code, which must not end the worker
        return Outcome(kind=OutcomeKind.FAILED, failure=failure_of(error)), error


def asked(context: Context, fault: CancelRequested) -> tuple[Outcome, BaseException | None]:
    """A handler raised CancelRequested because it was asked to stop. If it was not asked, that is a failure."""
    return (STOPPED, None) if context.cancelled else (raised(fault), fault)


def raised(error: BaseException) -> Outcome:
    """Outcome of a handler that raised a verdict or any other exception; a failure if that is broken itself."""
    try:
        return _outcome_of(unwrapped(error))
    except BaseException as fault:  # an attempt without an outcome would never end
        text = f"{error_text(error)} (what it asks for cannot be read: {error_text(fault)})"
        failure = Failure(reason="failed", type=dotted(error), text=bounded(text, TEXT_CHARS_MAX))
        return Outcome(kind=OutcomeKind.FAILED, failure=failure)


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, Snooze):
        return Outcome(kind=OutcomeKind.SNOOZED, delay=error.seconds, signal=getattr(error, "signal", None))
    if isinstance(error, Bury):
        text = bounded(error_text(error.reason) or error_text(error), TEXT_CHARS_MAX)
        return Outcome(kind=OutcomeKind.BURIED, failure=Failure(reason="bury", text=text))
    if isinstance(error, Retry):
        cause = error.__cause__
        failure = failure_of(error if cause is None else cause)
        return Outcome(kind=OutcomeKind.FAILED, failure=failure, delay=error.after)
    return Outcome(kind=OutcomeKind.FAILED, failure=failure_of(error))


def slows_queue(error: BaseException) -> bool:
    """Whether the exception asks to pause the whole queue meanwhile."""
    verdict = unwrapped(error)
    return isinstance(verdict, Snooze) and getattr(verdict, "queue", False) is True


def undecodable(error: BaseException) -> Outcome:
    """Outcome if the stored arguments no longer fit the function."""
    text = error.why if isinstance(error, ArgumentsRejected) else error_text(error)
    text = f"{text}. Deploy code that takes these arguments, then revive the job"
    failure = Failure(reason="undecodable", type=dotted(error), text=bounded(text, TEXT_CHARS_MAX))
    return Outcome(kind=OutcomeKind.UNDECODABLE, failure=failure)


def timed_out(timeout: float | None, stack: str = "") -> Outcome:
    """Outcome of an attempt that exceeded its timeout; `stack` is where it was then."""
    text = f"the attempt did not end within {timeout:g} s" if timeout is not None else "the attempt did not end in time"
    return Outcome(kind=OutcomeKind.TIMED_OUT, failure=Failure(reason="timeout", text=text, traceback=stack))


def unwrapped(error: BaseException) -> BaseException:
    """Unwrap a verdict that passed through a task group, which wraps it in an exception group."""
    inner = error
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner if isinstance(inner, Verdict) else error


def failure_of(error: BaseException) -> Failure:
    return Failure(
        reason=_reason(error),
        type=dotted(error),
        text=bounded(error_text(error), TEXT_CHARS_MAX),
        traceback=traceback_of(error),
    )


def _reason(error: BaseException) -> str:
    """The reason of a failure: some resource limits surface as exceptions."""
    if isinstance(error, MemoryError):
        return "memory"
    return "file" if isinstance(error, OSError) and error.errno == errno.EFBIG else "failed"


def dotted(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return bounded(name, TEXT_CHARS_MAX)


def error_text(error: object) -> str:
    """The text of an exception, or of a verdict's reason of any class."""
    try:
        return str.__str__(str(error))  # turns an instance of a str subclass into a plain str
    except BaseException:  # also SystemExit: an attempt that never ends would keep its slot forever
        return f"<{type(error).__name__} that cannot be printed>"


def bounded(text: str, most: int) -> str:
    """The text, with its middle cut out if it is too long; always text that a store can encode."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return storable(text)


def storable(text: str) -> str:
    """The text with each lone surrogate (as in file names that are not UTF-8) replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def stack_of(thread_id: int) -> str:
    """A thread's current stack as text; "" if it is gone."""
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return ""
    return bounded("".join(traceback.format_stack(frame, limit=TRACEBACK_FRAMES_MAX)), TRACEBACK_CHARS_MAX)


def traceback_of(error: BaseException) -> str:
    trail = error.__traceback__
    if trail is not None and trail.tb_next is not None:
        trail = trail.tb_next  # the first frame is the runner's own
        while trail.tb_next is not None and trail.tb_frame.f_globals.get("__name__") == "holdfast.hooks":
            trail = trail.tb_next  # so are those that lead into middleware
    try:
        lines = traceback.format_exception(type(error), error, trail, limit=-TRACEBACK_FRAMES_MAX)
        return bounded("".join(lines), TRACEBACK_CHARS_MAX)
    except BaseException:  # it also formats chained exceptions, which may raise
        return ""


def interrupted(lease: Lease) -> Release | Settlement:
    """The outcome of an attempt that began and was stopped by its worker: released at no cost, to run again.

    For an at-most-once job (`max_stalls` 0) that was its only run: it ends as a stall, which exceeds its limit.
    """
    if lease.max_stalls:
        return Release(id=lease.id, token=lease.token)
    text = "its worker stopped it before it ended, and it must not run twice"
    failure = Failure(reason="stalled", text=text)
    return Settlement(id=lease.id, token=lease.token, ending=Ending.STALLED, alone=True, failure=failure)


def settlement_for(
    job_id: str,
    token: str,
    outcome: Outcome,
    *,
    retain: float,
    retry_in: float | None = None,
    ran: float | None = None,
) -> Settlement:
    """Turn an outcome into the settlement the store carries out.

    `retry_in` is the back-off before the next attempt, or None if no retry is left or the error is not retryable;
    it is used only for outcomes that spend a retry.
    """
    kind = outcome.kind
    if kind is OutcomeKind.RETURNED:
        return Settlement(id=job_id, token=token, ending=Ending.SUCCEEDED, value=outcome.value, retain=retain, ran=ran)
    if kind is OutcomeKind.SNOOZED:
        delay, why = outcome.delay or 0.0, outcome.signal
        return Settlement(id=job_id, token=token, ending=Ending.SNOOZED, delay=delay, reason=why, retain=retain)
    if kind is OutcomeKind.CANCELLED:
        return Settlement(id=job_id, token=token, ending=Ending.CANCELLED, failure=outcome.failure, retain=retain)
    spends = kind in (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT)
    if spends and retry_in is not None:
        delay = outcome.delay if outcome.delay is not None else retry_in
        return Settlement(
            id=job_id,
            token=token,
            ending=Ending.RETRY,
            failed=True,
            delay=delay,
            failure=outcome.failure,
            retain=retain,
        )
    reason = kind.value
    if kind is OutcomeKind.FAILED and outcome.failure is not None:
        reason = outcome.failure.reason  # exceeding a resource limit has its own reason: memory, cpu, file
    return Settlement(
        id=job_id,
        token=token,
        ending=Ending.BURIED,
        failed=spends,
        failure=outcome.failure,
        reason=reason,
        retain=retain,
    )


def ended_as(ending: Ending, end: Settlement) -> Settlement:
    """Another end of the same lease, without a value or a failure."""
    return Settlement(id=end.id, token=end.token, ending=ending, retain=end.retain, ran=end.ran)


def options_for(defaults: TaskOptions, stored: bytes | None) -> TaskOptions:
    """A task's options with one call's overrides; overrides that are invalid in this version are ignored."""
    if stored is None or stored.startswith(ONLY_SIGNED):
        return defaults
    try:
        return defaults.for_call(stored)
    except ConfigurationError:
        return defaults


def settlement_of(lease: Lease, options: TaskOptions, outcome: Outcome, error: BaseException | None) -> Settlement:
    """The settlement of an outcome under these options."""
    retry_in: float | None = None
    last = options.max_starts is not None and lease.attempt >= options.max_starts
    final = last or (outcome.kind is OutcomeKind.TIMED_OUT and options.on_timeout == "bury")
    if last and outcome.kind is OutcomeKind.SNOOZED:
        outcome = _starts_spent(options.max_starts)
    elif outcome.kind in _SPENDS_A_RETRY and not final:
        retry_in = _retry_in(options, lease.failures + 1, error)
    retain = REMOVED if options.remove and outcome.kind is OutcomeKind.RETURNED else options.retain
    return settlement_for(lease.id, lease.token, outcome, retry_in=retry_in, retain=retain)


def unstartable(lease: Lease, options: TaskOptions) -> Settlement | None:
    """The settlement of a job that may not start again; None: it may. Stalls can have spent its starts."""
    if options.max_starts is None or lease.attempt <= options.max_starts:
        return None
    return settlement_for(lease.id, lease.token, _starts_spent(options.max_starts), retain=options.retain)


def _starts_spent(max_starts: int | None) -> Outcome:
    failure = Failure(reason="starts", text=f"it has started {max_starts} times, and max_starts allows no more")
    return Outcome(kind=OutcomeKind.FAILED, failure=failure)


def _retry_in(options: TaskOptions, failures: int, error: BaseException | None) -> float | None:
    try:
        return options.retry.delay(failures, error)
    except BaseException as fault:  # user-defined backoff: the attempt must end whatever it raises
        logs.logger.error("a retry policy's backoff failed; the job is tried again in 30 s", exc_info=fault)
        return FAULTY_BACKOFF_SECONDS


_SPENDS_A_RETRY = (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT)
