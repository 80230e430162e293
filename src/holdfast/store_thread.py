"""The app's access to its store: an event loop in its own thread, on which every store call runs.

Called by the app only. A store sees one loop for its whole life, so callers may be sync code, any thread, or any loop.
Started lazily, ended by `stop`; a forked child abandons it to the parent. Never runs user code.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import random
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from . import logs
from .backends.contract import Backend
from .clock import Clock
from .errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown
from .lazy import import_lazily
from .records import QueueRule
from .results import Waiter

if TYPE_CHECKING:
    import asyncio
else:
    import_lazily(globals(), "asyncio")

T = TypeVar("T")
STOP_SECONDS_MAX = 10.0
# A caller that keeps computing holds the GIL for a 5 ms switch interval, so the store thread could not even send the
# request. Wait this long first: by then the request is with the store, or has been answered.
HAND_OVER_SECONDS = 0.001
DECLARE_AGAIN_SECONDS = 1.0  # after a failed declare; doubled each time
DECLARE_AGAIN_SECONDS_MAX = 30.0
_CLOSED = "The app was closed meanwhile. Repeat the same bound call: it takes effect at most once."


def forbid_running_loop(call: str, twin: str, *, advice: str = "") -> None:
    """Reject a blocking call on a thread whose event loop is running: it would block that loop."""
    loops = sys.modules.get("asyncio")  # if it was never imported, no loop runs
    if loops is not None and loops._get_running_loop() is not None:
        advice = advice or f"Use `await {twin}`."
        raise ConfigurationError(f"{call} was called on a running event loop, which it would block. {advice}")


class Portal:
    """One event loop on one daemon thread."""

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
        """Cancel whatever still waits on this loop, then close the store."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._closing is not None:
            with contextlib.suppress(Exception):  # callers who want to see a failing close use app.close()
                await self._closing()
        await self._loop.shutdown_asyncgens()

    def on_stop(self, closing: Callable[[], Awaitable[None]]) -> None:
        """Set what to do last on this loop: close the store."""
        self._closing = closing

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the store thread's loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # another thread closed the loop a moment ago
            work.close()
            raise ConfigurationError("the app was closed during this call. Call again: it opens itself.") from None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result here."""
        return self.answer(self.submit(work))

    def answer(self, future: Future[T]) -> T:
        """Wait here for the result of a submitted coroutine."""
        try:
            return future.result()
        except CancelledError:  # not by us: the store thread was stopped
            raise OutcomeUnknown("this call", _CLOSED) from None
        except BaseException:
            future.cancel()  # an interrupt here must not leave the work running
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and await its result on the caller's loop, whichever that is."""
        try:
            return await asyncio.wrap_future(self.submit(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise OutcomeUnknown("this call", _CLOSED) from None

    def stop(self) -> None:
        """Close the store and end the thread. Idempotent; does not wait when called from that thread itself."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS_MAX)


class StoreHandle:
    """Access to one store: its backend, opened at first use on its own thread, with the queue rules declared.

    Knows nothing about the app, so that an unreferenced app can be collected and its handle closed.
    """

    def __init__(self, make: Callable[[], Backend], clock: Clock) -> None:
        self.clock = clock
        self.rules: dict[str, QueueRule] = {}
        self.lent = False  # a worker has a backend of this store
        self._make = make
        self._begin()
        _gates.add(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._portal: Portal | None = None
        self._backend: Backend | None = None
        self._opening: asyncio.Lock | None = None
        self._open = False
        self._declared: dict[str, QueueRule] = {}  # declared to the store, or about to be
        self._declaring: asyncio.Task[None] | None = None
        self._waiter: Waiter | None = None  # made with the store thread
        self._unattended: weakref.finalize[Any, StoreHandle] | None = None

    def forget(self) -> None:
        """In a forked child: leave everything to the parent, and keep it alive: closing it here could harm it there."""
        if self._unattended is not None:
            self._unattended.detach()
        _forgotten.extend((self._portal, self._backend, self._opening, self._declaring))
        self._begin()

    @property
    def unopened(self) -> Backend:
        """The backend, created but possibly not open yet."""
        with self._guard:
            if self._backend is None:
                self._backend = self._make()
            return self._backend

    @property
    def is_open(self) -> bool:
        return self._open

    def _ready(self) -> Portal:
        backend = self.unopened
        with self._guard:
            if self._portal is None:
                self._portal = Portal()
                self._portal.on_stop(backend.close)
                if self._unattended is not None:  # of `opened_here`: the store thread closes the store from now on
                    self._unattended.detach()
                self._unattended = _when_collected(self, self._portal.stop)
                self._opening = asyncio.Lock()
                self._waiter = Waiter()
                self._open = False
                if self._declaring is not None:  # it ended with the previous store thread, maybe undeclared
                    self._declared, self._declaring = {}, None
            return self._portal

    @property
    def waiter(self) -> Waiter:
        """Waits for results on the store thread, which it starts."""
        self._ready()
        if self._waiter is None:
            raise ConfigurationError("the app was forked during this call. Call again in the child.")
        return self._waiter

    async def _opened(self) -> Backend:
        """On the store thread: the open backend, with every undeclared rule declared."""
        backend, opening = self._backend, self._opening
        if backend is None or opening is None:  # _ready creates both before anything gets here
            raise ConfigurationError("the app was forked during this call. Call again in the child.")
        if self._open and self._declared == self.rules:
            return backend
        async with opening:
            if not self._open:
                await backend.open()
                self._open = True
            rules = dict(self.rules)
            fresh = [rule for name, rule in rules.items() if self._declared.get(name) != rule]
            if fresh:
                await self._declare(backend, fresh)
            self._declared = rules
        return backend

    async def _declare(self, backend: Backend, fresh: list[QueueRule]) -> None:
        """Declare rules. If the store is busy, continue and retry later: a rule must not make an enqueue fail.

        Except for a sharded queue: its rule decides where jobs are stored.
        """
        try:
            await backend.declare(fresh)
        except (BackendUnavailable, OutcomeUnknown) as error:
            if any(rule.shards > 1 for rule in fresh):
                raise
            logs.declare_failed(error, 1)
            later = self._declare_later(backend, fresh, self._declaring)
            self._declaring = asyncio.get_running_loop().create_task(later)

    async def _declare_later(self, backend: Backend, fresh: list[QueueRule], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before  # earlier declarations first
        pause, tries = DECLARE_AGAIN_SECONDS, 1
        while rules := [rule for rule in fresh if self.rules.get(rule.name) == rule]:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            try:
                await backend.declare(rules)
                return
            except (BackendUnavailable, OutcomeUnknown) as error:
                tries += 1
                logs.declare_failed(error, tries)
                pause = min(2 * pause, DECLARE_AGAIN_SECONDS_MAX)
            except HoldfastError as error:  # sealed meanwhile, or newer than this version: retrying will not help
                logs.declare_failed(error, 1)
                return

    async def _through(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        return await work(await self._opened())

    def open(self) -> Backend:
        """The open backend. Waits for the store thread, never for the caller's own loop, so any thread may call it."""
        portal = self._ready()
        return portal.call(self._opened())

    def call(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the open backend and wait for it here."""
        return self._ready().call(self._through(work))

    @property
    def opened(self) -> Backend | None:
        """The backend if it is open and knows every rule; for calls made outside the store thread."""
        return self._backend if self._open and self._declared == self.rules else None

    def opened_here(self) -> Backend | None:
        """Like `opened`; opens a store that needs no loop for it, so that its producers need not import asyncio."""
        if self._open or self._portal is not None or self.rules:
            return self.opened
        backend = self.unopened
        if not backend.open_here():
            return None
        with self._guard:
            if self._portal is None and self._backend is backend and not self._open:
                self._open = True
                self._unattended = _when_collected(self, backend.close_here)
        return self.opened

    def begin(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> Callable[[], T]:
        """Start `work` with the open backend; returns a function that waits for it, so the caller can overlap work."""
        portal = self._ready()
        future = portal.submit(self._through(work))
        try:
            wait([future], HAND_OVER_SECONDS)
        except BaseException:
            future.cancel()
            raise
        return partial(portal.answer, future)

    async def acall(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the open backend and await it on the caller's loop."""
        return await self._ready().acall(self._through(work))

    def close(self) -> None:
        """Close the backend and end the store thread; the next call opens them again. Idempotent."""
        with self._guard:  # held to the end, so that no thread opens the backend while it is being closed
            portal, self._portal = self._portal, None
            unattended, self._unattended = self._unattended, None
            if unattended is not None:
                unattended.detach()
            if portal is not None:
                portal.stop()
            elif self._open and self._backend is not None:
                self._backend.close_here()
            self._open = False


_gates: weakref.WeakSet[StoreHandle] = weakref.WeakSet()
_forgotten: list[object] = []  # in a forked child: objects the parent still uses; never touched, never freed
_closings: dict[int, _thread.LockType] = {}  # each held until the store of a collected handle is closed


def _when_collected(gate: StoreHandle, close: Callable[[], None]) -> weakref.finalize[Any, StoreHandle]:
    finalizer = weakref.finalize(gate, _close_apart, close)
    finalizer.atexit = False  # `_close_all` does that, and waits
    return finalizer


def _close_apart(close: Callable[[], None]) -> None:
    """Close the store of a collected handle in a thread of its own, without waiting for it.

    The collector calls this in any thread, at almost any line, so that thread may hold a lock that closing needs, such
    as one of `threading` or of the import system. Waiting here would be a deadlock; so would `Thread.start`, which
    takes such a lock.
    """
    closed = _thread.allocate_lock()
    closed.acquire()

    def run() -> None:
        try:
            with contextlib.suppress(Exception):
                close()
        finally:
            _closings.pop(id(closed), None)
            closed.release()

    _closings[id(closed)] = closed
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the system refuses another thread; the end of the process closes the store
        _closings.pop(id(closed), None)


def _close_all() -> None:
    """At exit, so that users need not remember close()."""
    for gate in list(_gates):
        gate.close()
    for closed in list(_closings.values()):
        closed.acquire(timeout=STOP_SECONDS_MAX)


def _forget_all() -> None:
    _closings.clear()
    for gate in list(_gates):
        gate.forget()


atexit.register(_close_all)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
