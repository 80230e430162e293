"""`app.eager()`: every call runs at once in the calling thread, on a store in memory. For scripts and consoles.

Called by the app's enqueue methods while the block lasts. A call first becomes a job in that store, as usual, and then
an inline worker runs whatever there is; so options, hooks and results mean what they always mean. Only time is skipped:
a delay, or a Snooze, is over at once. The app's real store is not touched.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from .backends.sqlite.memory import MemoryBackend
from .clock import SystemClock
from .context import CURRENT
from .dependencies import DUE_NEVER
from .errors import ConfigurationError, StateConflict, TaskNotRegistered
from .lifecycle import LIVE, State
from .observer import JobOrId, job_id
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
    """The jobs of one block. One call at a time runs all stored jobs; calls made meanwhile only store their jobs,
    and the one under way runs these, too."""

    def __init__(self, app: Holdfast, backend: MemoryBackend) -> None:
        self._app, self._backend = app, backend
        self._busy = threading.Lock()

    def run(self) -> None:
        """Run everything there is, in this thread, unless another call does."""
        forbid_running_loop("enqueue()", "aenqueue()")
        if not self._busy.locked():
            with asyncio.Runner() as runner:
                runner.get_loop().run_until_complete(self._run())

    async def arun(self, job: JobOrId | None = None) -> None:
        """The same on the running loop. If another call runs the job, wait for that, except in a handler."""
        if not await self._run() and job is not None and CURRENT.get() is None:
            store = self._app._store
            await store.acall(partial(store.waiter.wait, job_id(job), None))

    async def _run(self) -> bool:
        """False: another call is running what there is. It looks again after it has let others in."""
        while self._busy.acquire(blocking=False):
            try:
                ran = await self._rounds()
            except BaseException:
                await _give_up(self._backend)
                raise
            finally:
                self._busy.release()
            if not ran or not await self._queues():
                return True
        return False

    async def _rounds(self) -> bool:
        """Run the due jobs, then those due later, and so on; returns whether anything was run."""
        self._app.import_tasks()
        ran = False
        for _ in range(ROUNDS_MAX):
            queues = await self._queues()
            if not queues:
                return ran
            options = WorkerOptions(queues=queues, drain=True, slots=1)
            drained = await InlineWorker(self._app, options, raises=True, cron=False).run()
            ran = ran or drained.succeeded > 0
            if not await _hasten(self._backend):
                return ran
        raise ConfigurationError(
            f"a job asked {ROUNDS_MAX} times to run later. In app.eager() nothing else happens meanwhile, so what it "
            "waits for will not come. Use a worker for it."
        )

    async def _queues(self) -> list[str]:
        """The queues with jobs that have not finished."""
        found = await self._backend.find(JobQuery(states=tuple(LIVE), limit=_EVERYTHING))
        live = [record for record in found if record.due_at < DUE_NEVER]  # others wait for jobs, or for batch.close()
        for record in live:
            if self._app.find_task(record.task) is None:
                raise TaskNotRegistered(record.task, tuple(self._app.tasks))
        return sorted({record.queue for record in live})


async def _hasten(backend: Backend) -> bool:
    """Make every job due that is due later; returns whether there was any."""
    found = await backend.find(JobQuery(states=(State.SCHEDULED,), limit=_EVERYTHING))
    later = [record for record in found if record.due_at < DUE_NEVER]
    for record in later:
        await backend.run_now(record.id)
    return bool(later)


async def _give_up(backend: Backend) -> None:
    """After a failure: a later call must not run the remaining jobs of this one."""
    for record in await backend.find(JobQuery(states=tuple(LIVE), limit=_EVERYTHING)):
        with suppress(StateConflict):
            await backend.cancel(record.id)


@contextmanager
def eager(app: Holdfast) -> Iterator[None]:
    """The block of `app.eager()`."""
    clock = SystemClock()
    backend = MemoryBackend(clock)
    store = StoreHandle(lambda: backend, clock)
    store.rules.update({rule.name: rule for rule in app._queue_rules()})
    address, handle, eagerly = *app._aim("memory://", store), app._eager
    app._eager = Eager(app, backend)
    try:
        yield
    finally:
        app._eager = eagerly
        app._aim(address, handle)
        store.close()
