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
from typing import Any

from ... import logs
from ..runner.attempt import Stop
from .exchange_loop import ExchangeLoop
from .ledger import Ledger
from .runners import Runners

STOP_WITHIN_SECONDS = 2.0  # time for an async handler to clean up after being told to stop


class Shutdown:
    """First request: no more claims; handlers may finish within the grace period. Second: stop them now."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()
        self.over = asyncio.Event()  # set by the keeper when nothing is left to wait for

    def ask(self) -> None:
        """Request a shutdown. Call it on the keeper's loop."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    async def carry_out(self, trader: ExchangeLoop, link: Runners, ledger: Ledger) -> None:
        """Wait for a request, then run the shutdown sequence."""
        await self._asked.wait()
        trader.wake.set()
        logs.worker_stopping(link.worker, len(ledger.busy), self._grace)
        await self._first_of(self._grace, self.over, self._hurried)
        if not self.over.is_set():
            logs.worker_hurried(link.worker, len(ledger.busy))
            link.stop_all(Stop.STOPPING)
            await self._first_of(STOP_WITHIN_SECONDS, self.over)
            if not self.over.is_set() and await link.end_rest():
                await self._first_of(STOP_WITHIN_SECONDS, self.over)
        trader.abandon.set()
        trader.wake.set()

    @staticmethod
    async def _first_of(seconds: float, *signs: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(sign.wait()) for sign in signs]
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
