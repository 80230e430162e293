"""The cron ticker: every worker stores the cron entries its code declares and fires those that are due.

Run by the keeper beside the settle + claim loop. There is no leader: all workers check, and the store lets one of them
fire each tick. A worker fires the entries its own code declares, and entries created at run time if it serves their
queue or knows their task. So an entry removed from the code stops as soon as the last worker with the old code is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from ... import events, logs
from ...cron.api import put, tick
from ...cron.entry import check_readable, decode_call
from ...errors import ConfigurationError, HoldfastError, StoreSealed
from ...records import CronEntry, NewJob, Ticked
from .declare import Declared
from .runners import Runners, Signals
from .store_client import StoreClient

LATE_SECONDS_MAX = 0.1  # jitter, so that workers do not all ask for the same tick at the same instant
AGAIN_SECONDS = 0.01  # delay if more ticks of an entry are due than one write fires
PASSES_MAX = 1000  # over due ticks at the start of a drain


class CronTicker:
    """Stores and fires cron entries."""

    def __init__(
        self,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        declared: Declared,
        queues: tuple[str, ...],
        every: float,
    ) -> None:
        self._store, self._runners, self._signals, self._every = store, runners, signals, every
        self._unreadable: set[str] = set()  # names already logged
        self._failed = 0  # failed checks in a row
        self._looking = asyncio.Lock()
        self.serve(queues, declared)

    def serve(self, queues: tuple[str, ...], declared: Declared) -> None:
        """Switch to these queues and declarations."""
        self._queues, self._known = frozenset(queues), frozenset(rule.name for rule in declared.tasks)
        self._declared = frozenset(entry.name for entry in declared.entries)
        self._undeclared = list(declared.entries)

    async def tick_forever(self) -> None:
        wait = 0.0
        while True:
            await asyncio.sleep(wait)
            wait = await self.look()

    async def catch_up(self, over: Callable[[], bool]) -> None:
        """Fire everything that is due now, or until `over()` is true."""
        for _ in range(PASSES_MAX):
            if over() or await self.look() > AGAIN_SECONDS:
                return

    async def look(self) -> float:
        """Store new entries and fire due ones. Return the seconds until the next check."""
        async with self._looking:
            return await self._look()

    async def _look(self) -> float:
        backend, call = self._store.backend, self._store.call
        try:
            while undeclared := self._undeclared:
                await call("tick", put(undeclared[0], backend))
                undeclared.pop(0)  # from the same list: `serve` may have replaced it meanwhile
            entries = [entry for entry in await call("entries", backend.entries()) if self._is_ours(entry)]
            if not entries:
                return self._every
            now = await call("clock", backend.clock())
            after = [await self._fire(entry, now) for entry in entries]
        except StoreSealed as error:
            self._signals.seal(error)
            return self._every
        except HoldfastError as error:
            self._failed += 1
            logs.sweep_failed("tick", error, self._failed)
            return self._every
        self._failed = 0
        due = [at - now for at in after if at is not None]
        if min(due, default=1.0) <= 0.0:
            return AGAIN_SECONDS
        return min([self._every, *(seconds + random.uniform(0.0, LATE_SECONDS_MAX) for seconds in due)])

    def _is_ours(self, entry: CronEntry) -> bool:
        if entry.declared and entry.name not in self._declared:
            return False
        try:
            call = check_readable(entry)
        except ConfigurationError as error:  # leave it to workers that can read it; other entries continue
            if entry.name not in self._unreadable:
                self._unreadable.add(entry.name)
                logs.entry_unreadable(error)
            return False
        return entry.declared or call.queue in self._queues or call.task in self._known

    async def _fire(self, entry: CronEntry, now: float) -> float | None:
        """Fire an entry's due ticks. Return when to check it next, None if never."""
        if entry.paused_at is not None:
            return None
        if entry.next_at is None or entry.next_at > now:
            return entry.next_at
        try:
            ticked = await self._store.call("tick", tick(self._store.backend, entry, now))
        except StoreSealed:
            raise
        except HoldfastError as error:  # the shard its jobs go to may be down; other entries continue
            logs.sweep_failed("tick", error)
            return now + self._every
        if ticked is None or ticked.entry is None:
            return None
        if ticked.done:
            self._report(entry, ticked)
        return None if ticked.entry.paused_at is not None else ticked.entry.next_at

    def _report(self, entry: CronEntry, ticked: Ticked) -> None:
        made = [answer.id for answer in ticked.enqueued if answer.created]
        logs.entry_ticked(entry.name, len(made), ticked.skipped)
        if not made:
            return
        self._signals.claim_again()
        if self._runners.wanted("enqueued"):
            new = decode_call(entry)
            self._runners.emit(*(_enqueued(new, job_id, self._runners.worker) for job_id in made))


def _enqueued(new: NewJob, job_id: str, worker: str) -> events.Enqueued:
    return events.Enqueued(job_id=job_id, task=new.task, queue=new.queue, group=new.group, worker=worker)
