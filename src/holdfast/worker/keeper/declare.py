"""What a worker's code declares and the store must know: queue rules, task rules and cron entries.

Built by the embedded worker from its app, and by the keeper of `holdfast work` from its runner's hello. Sent to the
store when a worker starts and when reloaded code declares something else: the latest declaration wins. Neither workers
nor jobs wait for a store that cannot take them now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ... import logs
from ...backends.contract import Backend
from ...context import Ended
from ...errors import BackendUnavailable, HoldfastError, OutcomeUnknown, StoreSealed
from ...records import CronEntry, Lease, QueueRule, Release, TaskRule
from .runners import Runners, Signals
from .store_client import StoreClient, backoff
from .unknown_tasks import UnknownTasks

if TYPE_CHECKING:
    from ...options import WorkerOptions
    from .lease_renewal import Ledger


class DeclaringApp(Protocol):
    """The part of an app that declares queues, tasks and cron entries."""

    def _queue_rules(self) -> Sequence[QueueRule]: ...

    def _task_rules(self) -> Sequence[TaskRule]: ...

    def _cron_entries(self) -> Sequence[CronEntry]: ...


class Declared(Struct, frozen=True):
    """The declarations of one version of the code."""

    queues: tuple[QueueRule, ...] = ()
    tasks: tuple[TaskRule, ...] = ()  # every task: an empty rule removes what an older version declared
    entries: tuple[CronEntry, ...] = ()  # stored by the cron ticker, if they differ from the stored ones

    def serving(self, options: WorkerOptions) -> Declared:
        """A copy with a dedicated lane for each task that this worker caps."""
        capped = options.task_slots
        if not capped:
            return self
        tasks = {rule.name: rule for rule in self.tasks}
        tasks |= {name: replace(tasks.get(name) or TaskRule(name=name), apart=True) for name in capped}
        return replace(self, tasks=tuple(tasks.values()))

    async def store(self, backend: Backend) -> None:
        """Store the rules."""
        if self.queues or self.tasks:
            await backend.declare(self.queues, self.tasks)


def declared_by(app: DeclaringApp) -> Declared:
    return Declared(tuple(app._queue_rules()), tuple(app._task_rules()), tuple(app._cron_entries()))


class Declarations:
    """Keeps the store's copy of this worker's declarations current."""

    def __init__(
        self, declared: Declared, store: StoreClient, runners: Runners, signals: Signals, unknown: UnknownTasks
    ) -> None:
        self._declared, self._store, self._runners, self._signals = declared, store, runners, signals
        self._unknown = unknown
        self._outdated = asyncio.Event()  # the store lacks the current declarations

    async def declare_first(self) -> None:
        """Declare before the first claim if the store can take it now; if it is busy, declare later."""
        try:
            await self._declared.store(self._store.backend)
        except (BackendUnavailable, OutcomeUnknown) as error:
            if self._signals.closing:
                raise
            logs.declare_failed(error, 1)
            self._outdated.set()

    def change(self, declared: Declared) -> None:
        """Switch to the declarations of reloaded code."""
        if declared != self._declared or self._unknown.caps:  # unknown tasks may be known now
            self._declared = declared
            self._outdated.set()

    async def repeat(self) -> None:
        """Declare the same again: another worker's declaration took its place."""
        try:
            await self._store.call("declare", self._declared.store(self._store.backend))
        except HoldfastError as error:
            logs.declare_failed(error, 1)
            self._outdated.set()

    async def within_caps(self, free: dict[str, int], leases: Sequence[Lease], ledger: Ledger) -> list[Lease]:
        """Return the leases that fit this worker's per-task caps. Excess leases arrive only if another worker without
        such a cap declared that the task needs no dedicated lane, or removed an unknown task's override. Release them
        unused and declare again."""
        fitting, excess = list[Lease](), list[Ended]()
        declares = dropped = False
        for lease in leases:
            left = free.get(lease.task)
            if lease.chained and dropped:
                excess.append(Release(id=lease.id, token=lease.token))  # it must not run before its predecessor
                continue
            dropped = left is not None and left <= 0
            if left is None or left > 0:
                fitting.append(lease)
                if left is not None:
                    free[lease.task] = left - 1
            else:
                stray = lease.task in self._unknown.caps
                delay = await self._unknown.strayed(lease.task) if stray else 0.0
                declares = declares or not stray
                excess.append(Release(id=lease.id, token=lease.token, delay=delay))
        ledger.ended(excess)
        if declares:
            await self.repeat()  # a task this worker caps lost its own lane
        return fitting

    async def declare_forever(self) -> None:
        """Declare what has changed, with retries until the store accepts it."""
        tries = 0
        while True:
            await self._outdated.wait()
            self._outdated.clear()
            await self._unknown.reset(self._runners.knows)
            try:
                await self._store.call("declare", self._declared.store(self._store.backend))
                tries = 0
            except StoreSealed as error:
                self._signals.seal(error)
            except HoldfastError as error:
                self._outdated.set()
                tries += 1
                logs.declare_failed(error, tries)
                await asyncio.sleep(backoff(tries))
