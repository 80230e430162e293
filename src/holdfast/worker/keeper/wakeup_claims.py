"""Claims that an idle worker sends ahead, for the store to carry out when it would wake the worker.

Used by the exchange loop while the worker holds no lease, if its store offers it (backends/wakeup_claims.py). It saves
the trip to the store between a wake-up and the job. It is a numbered exchange like any other, except that its
reply takes long. If the worker has something else to do meanwhile, the exchange loop repeats the same call on another
connection, as it does with any call that has no reply.

Every hint wakes all workers, whatever queues they serve, and one of them gets the job. So only a worker whose last
wake-up brought a job sends its next claim ahead; the others wait to be woken and check whether the hint concerns them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ...backends.contract import Backend
from ...backends.wakeup_claims import ClaimsOnWakeup
from ...records import ClaimRequest, Exchanged

SOON_SECONDS = 0.005  # by then the initial check of a wait for work has usually been answered


class WakeupClaims:
    """Decides whether the next claim may be sent ahead, and sends it."""

    def __init__(self, store: ClaimsOnWakeup, wake: asyncio.Event) -> None:
        self._store, self._wake = store, wake
        self.pay = False  # the last wake-up brought a job
        self.under_way = False
        self.woken = False  # the last one was carried out because of a wake-up
        self._tried = False  # already waited briefly until one can be sent

    async def possible(self, free: int) -> bool:
        """Return True if a claim for `free` slots may be sent ahead now; else wait until the exchange loop has
        something to do, or, once, until the store has probably been asked whether there is work."""
        if not (free and self.pay):
            await self._wake.wait()
        elif not self._store.awaits_wakeup:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._tried else SOON_SECONDS):
                    self._tried = True
                    await self._wake.wait()
        else:
            return not self._wake.is_set()
        return False

    async def answer(self, request: ClaimRequest) -> Exchanged | None:
        """Return the store's reply; None if it must be asked for again."""
        self.under_way, self._tried = True, False
        try:
            answer, self.woken = await self._store.claim_on_wakeup(request, self._wake)
        finally:
            self.under_way = False
        if answer is None or self.woken:
            self.pay = answer is not None and bool(answer.leases)
        return answer


def claims_on_wakeup(backend: Backend, wake: asyncio.Event) -> WakeupClaims | None:
    """None if the store does not offer it."""
    return WakeupClaims(backend, wake) if isinstance(backend, ClaimsOnWakeup) else None
