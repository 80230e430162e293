"""Verdicts: exceptions a handler raises to decide how its attempt ends.

Raised by user code, handled by the worker. They derive from BaseException so that a handler's `except Exception`
cannot swallow them. They only carry data.
"""

from __future__ import annotations

from datetime import timedelta

from .clock import to_seconds


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
