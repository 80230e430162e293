"""Writes this worker's counts and events (the journal in runners.py) into the store, once a second, in one small call.

Run by the keeper beside the exchange loop; it never delays a settlement. What the store does not accept is kept for
the next call, within bounds; what a killed worker had not written is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ... import events, logs
from ...clock import until_tick
from ...errors import HoldfastError
from ...lifecycle import State
from ...options import WorkerOptions
from ...records import JobQuery
from ...rollups import Recording
from .store_client import StoreClient, backoff

if TYPE_CHECKING:
    from .runners import Runners, Signals

FLUSH_EVERY_SECONDS = 1.0
PRUNE_EVERY_SECONDS = 60.0
HOURS_KEPT_SECONDS = 90 * 86400.0
LOOKS_MAX = 10  # queues looked at in one pass


class Recorder:
    """Writes the journal. Used by the keeper, on its loop."""

    def __init__(self, store: StoreClient, runners: Runners, signals: Signals, options: WorkerOptions) -> None:
        self._store, self._runners, self._signals = store, runners, signals
        self._journal, self._keep = signals.journal, options.history_minutes
        self._journal.on = options.history
        self._number = 0
        self._unsent: Recording | None = None  # sent without a reply: repeated unchanged
        self._prune_at = 0.0

    async def record_forever(self) -> None:
        failed = 0
        while self._journal.on:
            seconds = FLUSH_EVERY_SECONDS + (backoff(failed) if failed else 0.0)
            await asyncio.sleep(until_tick(seconds))
            failed = 0 if await self.flush() else failed + 1

    async def flush(self) -> bool:
        """Write the pending counts and events. Return False if the store did not accept them; the next call retries."""
        if not self._journal.on:
            return True
        try:
            await self._look_for_drained()
            if self._unsent is None:
                self._unsent = self._taken()
            if self._unsent is not None:
                await self._store.call("record", self._store.backend.record(self._unsent))
                self._unsent = None
        except HoldfastError as error:
            logs.record_failed(error)
            return False
        return True

    def _taken(self) -> Recording | None:
        worker, now = self._runners.worker, self._store.clock.steady()
        recording = self._journal.take(worker, self._number + 1)
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_SECONDS
            recording = recording or Recording(worker=worker, number=self._number + 1)
            recording = replace(recording, keep_minutes=self._keep, keep_hours=HOURS_KEPT_SECONDS)
        self._number += recording is not None
        return recording

    async def _look_for_drained(self) -> None:
        """Emit QueueDrained for queues that are empty now and whose jobs this worker ended. Looks only while idle."""
        if self._signals.claim_due or self._signals.ended or self._runners.running():
            return
        for queue in list(self._journal.busy_queues)[:LOOKS_MAX]:
            query = JobQuery(states=(State.READY, State.RUNNING, State.WAITING), queue=queue, limit=1)
            if not await self._store.call("find", self._store.backend.find(query)):
                self._journal.busy_queues.pop(queue, None)
                self._runners.emit(events.QueueDrained(worker=self._runners.worker, queue=queue))
