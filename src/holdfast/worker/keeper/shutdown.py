"""Graceful shutdown of a worker: signals, the handlers' grace period, and releasing unfinished jobs.

Used by the embedded worker (signals) and the keeper (the sequence). A job is never released while its handler runs:
threads cannot be killed, so a job whose handler has not stopped keeps its lease until it expires.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from ... import logs
from ...context import Stop
from .runners import Runners, Signals

if TYPE_CHECKING:
    from .lease_renewal import Ledger

STOP_WITHIN_SECONDS = 2.0  # time for an async handler to clean up after being told to stop


class Shutdown:
    """First request: no more claims; handlers may finish within the grace period. Second: stop them now."""

    def __init__(self, grace: float, runners: Runners, signals: Signals, ledger: Ledger) -> None:
        self._grace, self._runners, self._signals, self._ledger = grace, runners, signals, ledger
        self._requested = asyncio.Event()
        self._now = asyncio.Event()
        self.over = asyncio.Event()  # set by the keeper when nothing is left to wait for

    def request(self) -> None:
        """Request a shutdown. Call it on the keeper's loop."""
        if self._requested.is_set():
            self._now.set()
        self._requested.set()

    async def carry_out(self) -> None:
        """Wait for a request, then run the shutdown sequence."""
        await self._requested.wait()
        runners, signals, ledger = self._runners, self._signals, self._ledger
        signals.wake.set()
        runners.give_back_queued()
        logs.worker_stopping(runners.worker, len(ledger.busy), self._grace)
        await self._first_of(self._grace, self.over, self._now)
        if not self.over.is_set():
            logs.worker_hurried(runners.worker, len(ledger.busy))
            runners.stop_all(Stop.STOPPING)
            await self._first_of(STOP_WITHIN_SECONDS, self.over)
            if not self.over.is_set() and await runners.kill_rest():
                await self._first_of(STOP_WITHIN_SECONDS, self.over)
        signals.abandon.set()
        signals.wake.set()

    @staticmethod
    async def _first_of(seconds: float, *events: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


@contextmanager
def stop_signals(loop: asyncio.AbstractEventLoop, ask: Callable[[], None]) -> Iterator[None]:
    """Within this context, SIGINT and SIGTERM ask the worker to stop.

    Only in the main thread, and only for signals without a handler: a program's own handler is left in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(signum: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(ask)  # also wakes the loop if it was waiting when the signal came

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        current = signal.getsignal(number)
        if _is_default(current):
            before[number] = signal.signal(number, asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_default(handler: Any) -> bool:
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    # asyncio.run installs its own handler, which would cancel us instead of shutting down gracefully.
    return isinstance(handler, functools.partial) and getattr(handler.func, "__name__", "") == "_on_sigint"
