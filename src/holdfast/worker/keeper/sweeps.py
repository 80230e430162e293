"""The worker's sweeps: promote, recover, refill, prune and rearrange. Every worker runs them, in bounded passes.

Run by the keeper beside its other calls; a drain runs single passes. Sweeps are independent: one that fails does not
stop the others, and one that times out is not repeated unchanged but with a smaller limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from ... import logs
from ...errors import BackendUnavailable, HoldfastError, StoreSealed
from ...records import Promoted, Recovered
from .runners import Runners, Signals
from .store_client import REARRANGE_LIMIT, AdaptiveLimit, StoreClient, backoff

PROMOTE_LIMIT = RECOVER_LIMIT = REFILL_LIMIT = 500  # jobs per pass
PRUNE_LIMIT = 1000
AGAIN_SECONDS = 0.05  # after a pass that hit its limit: leaves room for other calls


class Sweeper:
    """Runs the passes, and has the exchange loop claim when they may have made jobs claimable."""

    def __init__(self, store: StoreClient, runners: Runners, signals: Signals) -> None:
        self._store, self._runners, self._signals = store, runners, signals
        self._failed = 0  # failed passes in a row
        self.swept_at: dict[str, float] = {}  # by sweep: when it last ended well (steady)
        self._promote_limit = AdaptiveLimit(PROMOTE_LIMIT)
        self._recover_limit = AdaptiveLimit(RECOVER_LIMIT)
        self._refill_limit = AdaptiveLimit(REFILL_LIMIT)
        self._prune_limit = AdaptiveLimit(PRUNE_LIMIT)
        self._rearrange_limit = AdaptiveLimit(REARRANGE_LIMIT)

    async def sweep_forever(self, every: float) -> None:
        await self._repeat(every, self._promote, self._recover, self._refill, self._prune)

    async def rearrange_forever(self, every: float) -> None:
        """Separate from the other sweeps: a large backlog takes many passes, and nothing should wait for them."""
        await self._repeat(every, self.rearrange)

    async def _repeat(self, every: float, *passes: Callable[[], Awaitable[bool]]) -> None:
        wait = every * random.random()  # workers started together must not sweep together
        while True:
            await asyncio.sleep(wait)
            again = await self._each(passes)
            wait = (AGAIN_SECONDS if again else every) * random.uniform(0.75, 1.25)
            if self._failed:
                wait = max(wait, backoff(self._failed))

    async def _each(self, passes: Sequence[Callable[[], Awaitable[bool]]]) -> bool:
        """Run one pass of each. Return whether any of them hit its limit."""
        again = False
        for sweep in passes:
            try:
                again = await sweep() or again
            except StoreSealed as error:
                self._signals.seal(error)
                return False
            except HoldfastError as error:
                self._failed += 1
                logs.sweep_failed(sweep.__name__.strip("_"), error, self._failed)
                if isinstance(error, BackendUnavailable):  # the store is down right now: the others would fail, too
                    return False
            else:
                self._failed = 0
                self.swept_at[sweep.__name__.strip("_")] = self._store.clock.steady()
        return again

    # ------------------------------------------------------------------ one pass each

    async def promote(self) -> Promoted:
        return await self._store.call_within(
            "promote", self._promote_limit, lambda limit: self._store.backend.promote(limit=limit)
        )

    async def recover(self, dead: Sequence[str] = ()) -> list[Recovered]:
        ends = await self._store.call_within(
            "recover", self._recover_limit, lambda limit: self._store.backend.recover(dead=dead, limit=limit)
        )
        self._runners.jobs_recovered(ends)
        return ends

    async def refill(self) -> int:
        return await self._store.call_within(
            "refill", self._refill_limit, lambda limit: self._store.backend.refill(limit=limit)
        )

    async def rearrange(self) -> bool:
        """Run one pass. Return whether there is more."""
        return await self._store.call_within(
            "rearrange", self._rearrange_limit, lambda limit: self._store.backend.rearrange(limit=limit)
        )

    async def _promote(self) -> bool:
        promoted = await self.promote()
        self._found(promoted.due or promoted.revived)
        return promoted.more

    async def _recover(self) -> bool:
        limit = self._recover_limit.value
        ends = len(await self.recover())
        self._found(ends)
        return ends >= limit

    async def _refill(self) -> bool:
        limit = self._refill_limit.value
        filled = await self.refill()
        self._found(filled)
        return filled >= limit

    async def _prune(self) -> bool:
        limit = self._prune_limit.value
        pruned = await self._store.call_within(
            "prune", self._prune_limit, lambda limit: self._store.backend.prune(limit=limit)
        )
        return pruned >= limit

    def _found(self, number: int) -> None:
        if number:
            self._signals.claim_again()
