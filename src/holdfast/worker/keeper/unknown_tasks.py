"""Tasks whose jobs this worker receives but whose code it lacks: newer code enqueued them, or older code is gone.

Used by the settle + claim loop, on the keeper's loop. The first job of such a task gives the task a dedicated lane in
the store (an override), so that this worker's claims can skip the whole task at no cost; the job is released at once
and keeps its place. If the override cannot be stored, each job is rescheduled with a delay. The override is removed
when this worker ends or has learnt the task; other workers that need it set it again. Overrides of killed workers are
removed by live ones: every worker lists the tasks it does not know in its worker status.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from ... import logs
from ...errors import HoldfastError
from ...records import Override
from ...worker_status import may_not_know
from .runners import Runners
from .store_client import StoreClient

TASKS_MAX = 100  # overrides per worker; jobs of further unknown tasks are delayed one by one
LAPSE_SWEEPS = 12  # check for unneeded overrides once per this many sweeps
AGAIN_SECONDS = 5.0  # do not set an override again within this time, even if it had no effect


class UnknownTasks:
    """The tasks this worker cannot run, and the overrides it has set for them."""

    def __init__(self, store: StoreClient, runners: Runners, delay: float) -> None:
        self._store, self._runners, self._delay = store, runners, delay
        self._overridden: dict[str, float] = {}  # task → steady time the override was set
        self._unneeded: frozenset[str] = frozenset()  # overrides that no worker needed at the last check
        self.caps: Mapping[str, int] = {}  # per-task maximum for claims: 0 for each of these tasks

    async def met(self, task: str) -> float:
        """A runner did not know a job's task. Return the seconds to delay the job."""
        if task in self._overridden or self._runners.knows(task):  # claimed before the override, or sent to older code
            return 0.0
        return await self._set(task)

    async def strayed(self, task: str) -> float:
        """A claim brought a job of a skipped task: the override was removed. Return the seconds to delay the job."""
        if self._store.clock.steady() - self._overridden.get(task, 0.0) < AGAIN_SECONDS:
            return self._delay
        return await self._set(task)

    async def _set(self, task: str) -> float:
        if len(self._overridden) >= TASKS_MAX and task not in self._overridden:
            return self._delay
        try:
            await self._store.call("limit", self._store.backend.limit(Override(task=task, apart=True)))
        except HoldfastError as error:
            logs.unknown_not_apart(task, self._delay, error)
            return self._delay
        self._overridden[task] = self._store.clock.steady()
        self._changed()
        return 0.0

    async def reset(self, is_over: Callable[[str], bool] = lambda task: True) -> None:
        """Remove overrides that are over: this worker ends, or knows the tasks now."""
        for task in [task for task in self._overridden if is_over(task)]:
            try:
                await self._store.call("limit", self._store.backend.limit(Override(task=task, apart=None)))
            except HoldfastError as error:
                logs.unknown_not_reset(task, error)  # a leftover dedicated lane is harmless
            self._overridden.pop(task, None)
            self._changed()

    async def lapse_forever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every * random.uniform(0.75, 1.25))
            try:
                await self.lapse()
            except HoldfastError as error:
                logs.sweep_failed("lapse", error)

    async def lapse(self) -> None:
        """Remove overrides that no live worker needed at two checks in a row: a new need may not be published yet.

        If one is removed too early, the worker that needs it sets it again.
        """
        store = self._store
        records = await store.call("tasks", store.backend.tasks())
        dedicated = {task.rule.name for task in records if task.override is not None and task.override.apart is True}
        unneeded = dedicated - self._overridden.keys()
        if unneeded:
            workers = await store.call("workers", store.backend.workers())
            statuses = [worker.portrait for worker in workers if not worker.expired]
            unneeded = {task for task in unneeded if not any(may_not_know(status, task) for status in statuses)}
        for task in sorted(unneeded & self._unneeded):
            await store.call("limit", store.backend.limit(Override(task=task, apart=None)))
            logs.unknown_lapsed(task)
        self._unneeded = frozenset(unneeded)

    def _changed(self) -> None:
        self.caps = dict.fromkeys(self._overridden, 0)
        self._runners.set_unknown(tuple(self._overridden))
