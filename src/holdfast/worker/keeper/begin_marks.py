"""Begin marks of at-most-once jobs: the store records that such a job begins before its handler is called.

Used by the exchange loop for newly claimed jobs, and for batches when they start. Repeating a mark is harmless;
a job whose mark cannot be stored is not started but released.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ...errors import HoldfastError
from ...records import Answer, Held, Lease, Release
from .lease_renewal import LeaseRenewer, Ledger
from .runners import Runners, Signals
from .store_client import AdaptiveLimit, StoreClient, backoff

Start = Callable[[list[Lease]], None]


class BeginMarks:
    """Marks jobs as begun, then starts those that may run."""

    def __init__(
        self,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        ledger: Ledger,
        renewal: LeaseRenewer,
        limit: AdaptiveLimit,
    ) -> None:
        self._store, self._runners, self._signals = store, runners, signals
        self._ledger, self._renewal, self._limit = ledger, renewal, limit

    async def mark(
        self, leases: Sequence[Lease], start: Start, abandoned_within: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Mark these jobs in one call and start those that were marked; after a timeout, half as many at a time."""
        tries, left, limit = 0, list(leases), self._limit
        limit.widen(len(left))  # a batch may have more jobs than there are slots, and starts in one piece
        while left:
            some = left[: limit.value]
            try:
                answers = await self._store.call_within("begin", limit, partial(self._mark, left))
            except HoldfastError:
                tries += 1
                if not (self._renewal.fenced or await abandoned_within(backoff(tries))):
                    continue
                some, answers = left, [Answer.CANCELLED] * len(left)  # not started: released at no cost
            left = left[len(some) :]
            self._begun(some, answers, start)

    async def _mark(self, leases: Sequence[Lease], most: int) -> list[Answer]:
        return await self._store.backend.begin([Held(lease.id, lease.token) for lease in leases[:most]])

    def _begun(self, leases: Sequence[Lease], answers: Sequence[Answer], start: Start) -> None:
        may_start = not (self._renewal.fenced or self._signals.closing)
        fit: list[Lease] = []
        for lease, answer in zip(leases, answers, strict=True):
            if answer is Answer.LOST:
                self._ledger.busy.pop(lease.token, None)
                if self._ledger.leases.pop(lease.token, None) is not None:
                    self._runners.leases_lost([lease])
            elif answer is Answer.OK and lease.token in self._ledger.leases and may_start:
                fit.append(lease)
            else:  # if a cancel was requested, the store cancels the job instead; for a lost lease this is a no-op
                self._signals.ended.append(Release(id=lease.id, token=lease.token))
        if fit:
            start(fit)
        self._signals.wake.set()
