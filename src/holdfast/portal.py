"""The app's own event loop in a thread: where every call to the store runs, whoever makes it.

Called by the app only. A store sees one loop for its whole life, so callers may be sync code, any thread, or any loop.
Started lazily, ended by `stop`; a fork leaves it behind in the parent. Never runs user code.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from .errors import ConfigurationError

T = TypeVar("T")
STOP_SECONDS_MAX = 10.0


def forbid_running_loop(call: str, twin: str) -> None:
    """Refuse a blocking call on a thread whose event loop is running: it would stop that loop."""
    if asyncio._get_running_loop() is not None:
        raise ConfigurationError(
            f"{call} was called on a running event loop, which it would block. Use `await {twin}`."
        )


class Portal:
    """One loop, one daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing: Callable[[], Awaitable[None]] | None = None
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="holdfast-portal", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._wind_up())
            self._loop.close()

    async def _wind_up(self) -> None:
        """Close the store, then end whatever still waits on this loop."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._closing is not None:
            with contextlib.suppress(Exception):  # whoever wants to see a failing close calls app.close()
                await self._closing()
        await self._loop.shutdown_asyncgens()

    def on_stop(self, closing: Callable[[], Awaitable[None]]) -> None:
        """What to do last on this loop: close the store."""
        self._closing = closing

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the portal's loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop closed a moment ago, in another thread
            work.close()
            raise ConfigurationError("the app was closed during this call. Call again: it opens itself.") from None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its answer here."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt here must not leave the work behind
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and await its answer on the caller's loop, whichever that is."""
        return await asyncio.wrap_future(self.submit(work))

    def stop(self) -> None:
        """Close the store and end the thread. Idempotent; from the portal's own thread it does not wait."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS_MAX)
