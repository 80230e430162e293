"""`app.eager()`: every call runs at once in the calling thread, on a store in memory. For scripts and consoles.

Called by the app's enqueue methods while the block lasts. A call first becomes a job in that store, as ever, and then
an inline worker runs whatever there is; so options, hooks and results mean what they always mean. Only time is skipped:
a delay, or a Snooze, is over at once. The app's real store is not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .backends.sqlite.memory import MemoryBackend
from .clock import SystemClock
from .errors import ConfigurationError, StateConflict
from .lifecycle import LIVE, State
from .options import WorkerOptions
from .records import JobQuery
from .store_thread import StoreHandle, forbid_running_loop
from .worker.inline import InlineWorker

if TYPE_CHECKING:
    from .app import Holdfast
    from .backends.contract import Backend

ROUNDS_MAX = 1000  # of jobs that want to run later, each with its delay skipped
_EVERYTHING = 1_000_000_000


class Eager:
    """The jobs of one block. While one runs, further calls are only stored: the worker under way runs them, too."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._busy = threading.Lock()

    def run(self) -> None:
        """Run everything there is."""
        forbid_running_loop("enqueue()", "aenqueue()")
        if not self._busy.acquire(blocking=False):
            return
        store = self._app._store
        try:
            for _ in range(ROUNDS_MAX):
                self._worker().run_here()
                if not store.call(_hasten):
                    return
            raise _endless()
        except BaseException:
            store.call(_give_up)
            raise
        finally:
            self._busy.release()

    async def arun(self) -> None:
        """Async version of `run`."""
        if not self._busy.acquire(blocking=False):
            return
        store = self._app._store
        try:
            for _ in range(ROUNDS_MAX):
                await self._worker().run()
                if not await store.acall(_hasten):
                    return
            raise _endless()
        except BaseException:
            await store.acall(_give_up)
            raise
        finally:
            self._busy.release()

    def _worker(self) -> InlineWorker:
        self._app.import_tasks()
        return InlineWorker(self._app, WorkerOptions(drain=True, slots=1), raises=True, cron=False)


async def _hasten(backend: Backend) -> bool:
    """Make every job due that is due later; returns whether there is anything left to run."""
    for record in await backend.find(JobQuery(states=(State.SCHEDULED,), limit=_EVERYTHING)):
        await backend.run_now(record.id)
    counts = await backend.count()
    return any(states.get(State.READY, 0) for states in counts.values())


async def _give_up(backend: Backend) -> None:
    """After a failure: a later call must not run what is left of this one."""
    for record in await backend.find(JobQuery(states=tuple(LIVE), limit=_EVERYTHING)):
        try:
            await backend.cancel(record.id)
        except StateConflict:
            continue


def _endless() -> ConfigurationError:
    return ConfigurationError(
        f"a job asked {ROUNDS_MAX} times to run later. In app.eager() nothing else happens meanwhile, so what it waits "
        "for will not come. Use a worker for it."
    )


@contextmanager
def eager(app: Holdfast) -> Iterator[None]:
    """The block of `app.eager()`."""
    clock = SystemClock()
    backend = MemoryBackend(clock)
    store = StoreHandle(lambda: backend, clock)
    store.rules.update({rule.name: rule for rule in app.queue_rules()})
    address, handle, eagerly = *app.aim("memory://", store), app._eager
    app._eager = Eager(app)
    try:
        yield
    finally:
        app._eager = eagerly
        app.aim(address, handle)
        store.close()
