"""How an attempt ends: why it is told to stop, what its handler came to, and what the keeper gets.

Turns what a handler returned or raised into an Outcome: pure, bounded, and safe even if str(exception) raises. Used by
runners and keeper. It never decides about retries itself: the task's retry policy and lifecycle.py do.
"""

from __future__ import annotations

import errno
import sys
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ... import logs
from ...context import Bury, Retry, Snooze, Verdict
from ...errors import ArgumentsRejected
from ...lifecycle import Ending, Failure, Outcome, OutcomeKind, Settlement, settlement_for
from ...records import Lease, Release

if TYPE_CHECKING:
    from ...options import TaskOptions
    from ...task import Task

TEXT_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 10_000
TRACEBACK_FRAMES_MAX = 50

UNKNOWN_TASK_DELAY_SECONDS = 30.0
FAULTY_BACKOFF_SECONDS = 30.0

NOTHING = Outcome(kind=OutcomeKind.RETURNED, value=b"null")  # most handlers return None
STOPPED = Outcome(kind=OutcomeKind.CANCELLED)  # it stopped because it was told to; the runner knows why


class Stop(IntEnum):
    """Why an attempt was told to stop; the highest reason decides its outcome."""

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


def returned(task: Task[..., Any], value: Any) -> tuple[Outcome, BaseException | None]:
    """Outcome of a handler that returned. If the value cannot be stored, it is a failure."""
    if value is None:
        return NOTHING, None
    try:
        return Outcome(kind=OutcomeKind.RETURNED, value=task.encode(value)), None
    except ArgumentsRejected as error:
        text = f"the handler returned, but its result cannot be stored: {error.why}"
        failure = Failure(type=dotted(error), text=bounded(text, TEXT_CHARS_MAX))
        return Outcome(kind=OutcomeKind.FAILED, failure=failure), error
    except BaseException as error:  # encoding may run the value's own code, which must not end the worker
        return Outcome(kind=OutcomeKind.FAILED, failure=failure_of(error)), error


def raised(error: BaseException) -> Outcome:
    """Outcome of a handler that raised a verdict or any other exception."""
    error = unwrapped(error)
    if isinstance(error, Snooze):
        return Outcome(kind=OutcomeKind.SNOOZED, delay=error.seconds)
    if isinstance(error, Bury):
        text = bounded(said(error.reason) or said(error), TEXT_CHARS_MAX)
        return Outcome(kind=OutcomeKind.BURIED, failure=Failure(reason="bury", text=text))
    if isinstance(error, Retry):
        cause = error.__cause__
        failure = failure_of(error if cause is None else cause)
        return Outcome(kind=OutcomeKind.FAILED, failure=failure, delay=error.after)
    return Outcome(kind=OutcomeKind.FAILED, failure=failure_of(error))


def slows_queue(error: BaseException) -> bool:
    """Whether the exception asks to pause the whole queue meanwhile."""
    verdict = unwrapped(error)
    return isinstance(verdict, Snooze) and verdict.queue


def undecodable(error: BaseException) -> Outcome:
    """Outcome if the stored arguments no longer fit the function."""
    text = error.why if isinstance(error, ArgumentsRejected) else said(error)
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
        text=bounded(said(error), TEXT_CHARS_MAX),
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


def said(error: object) -> str:
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


def settlement_of(lease: Lease, options: TaskOptions, outcome: Outcome, error: BaseException | None) -> Settlement:
    """The settlement of an outcome under these options."""
    retry_in: float | None = None
    if outcome.kind in _SPENDS_A_RETRY:
        retry_in = _retry_in(options, lease.failures + 1, error)
    return settlement_for(lease.id, lease.token, outcome, retry_in=retry_in, retain=options.retain)


def _retry_in(options: TaskOptions, failures: int, error: BaseException | None) -> float | None:
    try:
        return options.retry.delay(failures, error)
    except BaseException as fault:  # user-defined backoff: the attempt must end whatever it raises
        logs.logger.error("a retry policy's backoff failed; the job is tried again in 30 s", exc_info=fault)
        return FAULTY_BACKOFF_SECONDS


_SPENDS_A_RETRY = (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT)
