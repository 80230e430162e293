"""What a handler can learn, report and decide about its own attempt: its Context, and the verdicts it may raise.

The runner creates one Context per attempt; handlers use it from any thread. Nothing here waits for the store: progress
and log lines go to the keeper, which coalesces and writes them.
"""

from __future__ import annotations

import math
import time
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from .clock import to_seconds
from .errors import ConfigurationError
from .names import plain
from .records import Lease

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
    """Not a failure: run again in `seconds`. Spends nothing. With queue=True its whole queue starts nothing before."""

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
    """Receives progress, log lines and slow-downs; thread-safe, never blocks."""

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None: ...

    def line(self, lease: Lease, line: str) -> None: ...

    def slow_down(self, lease: Lease, seconds: float) -> None: ...


class BackOff(Protocol):
    """The part of a RetryPolicy that determines whether this is the last attempt."""

    def delay(self, failures: int, error: BaseException | None = None) -> float | None: ...


class CancelRequested(BaseException):
    """Raised by `Context.raise_if_cancelled` to end the attempt; `except Exception` does not catch it."""


class Context:
    """One attempt, as its handler sees it.

    `id` is stable across retries and revivals (use it as an idempotency key); `fence` grows with every lease of the job
    and of its group (use it to reject a late writer).
    """

    __slots__ = ("_cancelled", "_deadline", "_lease", "_policy", "_reports")

    def __init__(
        self,
        lease: Lease,
        *,
        deadline: float | None = None,
        policy: BackOff | None = None,
        reports: ReportSink | None = None,
    ) -> None:
        self._lease = lease
        self._deadline = deadline
        self._policy = policy
        self._reports = reports
        self._cancelled = False

    @staticmethod
    def current() -> Context:
        """The context of the attempt this code is running in."""
        context = CURRENT.get()
        if context is None:
            raise ConfigurationError(
                "no job is running here: Context.current() answers only inside a handler and what it calls. "
                "In a thread of your own, start it with contextvars.copy_context().run."
            )
        return context

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
    def last_attempt(self) -> bool:
        """Whether a failure of this attempt would be final."""
        return self._policy is not None and self._policy.delay(self._lease.failures + 1) is None

    @property
    def fence(self) -> int:
        return self._lease.fence

    @property
    def group(self) -> str | None:
        return self._lease.group

    @property
    def key(self) -> str | None:
        return self._lease.key

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
        """Start no more jobs of this job's queue for `seconds`, on any worker: for when a remote side is overloaded.

        Takes effect almost immediately; running jobs, including this one, continue. Never shortens a longer slow-down.
        """
        span = to_seconds(seconds, "slow_down(…)")
        if self._reports is not None:
            self._reports.slow_down(self._lease, span)


CURRENT: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)


def _shown(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)
