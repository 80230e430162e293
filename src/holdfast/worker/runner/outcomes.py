"""Turns what a handler returned or raised into an Outcome: pure, bounded, and safe even if str(exception) raises.

Called by the runner. It never decides about retries: the retry policy and lifecycle.py do.
"""

from __future__ import annotations

import errno
import sys
import traceback
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentsRejected
from ...lifecycle import Failure, Outcome, OutcomeKind
from ...verdicts import Bury, Retry, Snooze, Verdict

if TYPE_CHECKING:
    from ...task import Task

TEXT_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 10_000
TRACEBACK_FRAMES_MAX = 50

NOTHING = Outcome(kind=OutcomeKind.RETURNED, value=b"null")  # most handlers return None
STOPPED = Outcome(kind=OutcomeKind.CANCELLED)  # it stopped because it was told to; the runner knows why


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


def timed_out(timeout: float | None, evidence: str = "") -> Outcome:
    """Outcome of an attempt that exceeded its timeout; `evidence` is its stack at that time."""
    text = f"the attempt did not end within {timeout:g} s" if timeout is not None else "the attempt did not end in time"
    return Outcome(kind=OutcomeKind.TIMED_OUT, failure=Failure(reason="timeout", text=text, traceback=evidence))


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
