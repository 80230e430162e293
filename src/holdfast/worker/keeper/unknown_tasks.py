"""Tasks this worker is given jobs of and does not know: newer code enqueued them, or older code is gone.

Used by the settle + claim loop, on the keeper's loop. The first job of such a task gives it a lane of its own in the
store (an override), so that claims of this worker can leave the whole task to others at no cost; the job goes back at
once, with its turn. Where that cannot be stored, each job is put off for a while. The override is taken back when this
worker ends or has learnt the task; other workers that need it set it again. What a killed worker left is taken back by
whoever lives: every worker shows in its portrait what it does not know.
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

TASKS_MAX = 100  # beyond, jobs of further unknown tasks are put off one by one
LAPSE_SWEEPS = 12  # in as many sweeps' time one look for overrides that nobody needs any more
AGAIN_SECONDS = 5.0  # an override that was set more recently and does not hold is not set again


class UnknownTasks:
    """What this worker cannot run, and what it told the store about it."""

    def __init__(self, line: StoreClient, link: Runners, delay: float) -> None:
        self._store, self._runners, self._delay = line, link, delay
        self._apart: dict[str, float] = {}  # task → steady time the override was set
        self._unneeded: frozenset[str] = frozenset()  # overrides that no worker needed at the last look
        self.caps: Mapping[str, int] = {}  # for claims: nothing of these tasks

    async def met(self, task: str) -> float:
        """A runner did not know the task of a job: seconds to put the job off."""
        if task in self._apart or self._runners.knows(task):  # claimed before, or by a runner with older code
            return 0.0
        return await self._set(task)

    async def strayed(self, task: str) -> float:
        """A claim brought a job of it although it was to bring none: somebody took the override back."""
        if self._store.clock.steady() - self._apart.get(task, 0.0) < AGAIN_SECONDS:
            return self._delay
        return await self._set(task)

    async def _set(self, task: str) -> float:
        if len(self._apart) >= TASKS_MAX and task not in self._apart:
            return self._delay
        try:
            await self._store.call("limit", self._store.backend.limit(Override(task=task, apart=True)))
        except HoldfastError as error:
            logs.unknown_not_apart(task, self._delay, error)
            return self._delay
        self._apart[task] = self._store.clock.steady()
        self._changed()
        return 0.0

    async def reset(self, is_over: Callable[[str], bool] = lambda task: True) -> None:
        """Take back what was said of the tasks whose time is over: this worker ends, or knows them now."""
        for task in [task for task in self._apart if is_over(task)]:
            try:
                await self._store.call("limit", self._store.backend.limit(Override(task=task, apart=None)))
            except HoldfastError as error:
                logs.unknown_not_reset(task, error)  # a lane of its own harms nobody
            self._apart.pop(task, None)
            self._changed()

    async def lapse_forever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every * random.uniform(0.75, 1.25))
            try:
                await self.lapse()
            except HoldfastError as error:
                logs.sweep_failed("lapse", error)

    async def lapse(self) -> None:
        """Take back overrides that no live worker needs, at two looks running: one that is new may not be shown yet.

        Taken back too early it would be set again by who needs it.
        """
        line = self._store
        records = await line.call("tasks", line.backend.tasks())
        apart = {one.rule.name for one in records if one.override is not None and one.override.apart is True}
        unneeded = apart - self._apart.keys()
        if unneeded:
            workers = await line.call("workers", line.backend.workers())
            shown = [worker.portrait for worker in workers if not worker.expired]
            unneeded = {task for task in unneeded if not any(may_not_know(portrait, task) for portrait in shown)}
        for task in sorted(unneeded & self._unneeded):
            await line.call("limit", line.backend.limit(Override(task=task, apart=None)))
            logs.unknown_lapsed(task)
        self._unneeded = frozenset(unneeded)

    def _changed(self) -> None:
        self.caps = dict.fromkeys(self._apart, 0)
        self._runners.unknown = tuple(self._apart)
        self._runners.on_news()
