"""`drain=True`: decides whether all work is done once this worker has nothing left to do.

Called by the keeper between exchanges. Drained means that no job of the served queues is ready or running, on this
worker or any other. Jobs that are not due, behind such a job in their group, or paused are left. Jobs that only a rate
or a slow-down holds back are waited for, unless the store's clock stands still (in a sandbox): then they are not due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ...errors import HoldfastError, StoreSealed
from ...lifecycle import LIVE, State
from .exchange_loop import ExchangeLoop
from .runners import Signals
from .store_client import AdaptiveLimit, StoreClient, backoff
from .sweeps import Sweeper

LOOK_EVERY_SECONDS = 0.1
PASSES_MAX = 10_000
CLOCK_SECONDS_MIN = 0.005  # any running clock advances within this time


class Drain:
    """Decides when a drain is finished."""

    def __init__(
        self,
        store: StoreClient,
        signals: Signals,
        exchange_loop: ExchangeLoop,
        sweeper: Sweeper,
        queues: tuple[str, ...],
    ) -> None:
        self._store, self._signals, self._exchange = store, signals, exchange_loop
        self._sweeper, self._queues = sweeper, queues
        self._refused = 0  # consecutive checks that found ready jobs although claims return none
        self._tries = 0
        self._count_limit = AdaptiveLimit(1)  # counting cannot be made smaller, only more patient

    async def finished(self) -> bool:
        """Check once. False means continue (it has already waited if there was nothing to do)."""
        free = self._exchange.free()
        if not free:  # fenced, or no runner is available right now
            await self._wait(LOOK_EVERY_SECONDS)
            return False
        try:
            await self._make_ready()
            found = await self._exchange.exchange([], [], free)
            while not found and self._exchange.left_some:  # give every task its chance within one round
                found = await self._exchange.exchange([], [], free)
            if found:
                self._refused = 0
                return False
            states = await self._states()
        except StoreSealed as error:
            self._signals.seal(error)
            return False
        except HoldfastError:
            self._tries += 1
            await self._wait(backoff(self._tries))
            return False
        self._tries = 0
        if states.get(State.RUNNING, 0) or (states.get(State.READY, 0) and self._exchange.quiet):
            self._refused = 0
            await self._wait(LOOK_EVERY_SECONDS)
            return False
        if await self._wait_for_rate(states):
            self._refused = 0
            return False
        if states.get(State.READY, 0) and self._refused < 1:
            self._refused += 1  # enqueued since our claim, or paused: the next claim decides
            return False
        return True

    async def _wait_for_rate(self, states: Mapping[State, int]) -> bool:
        """Wait briefly for a rate or slow-down. False if none holds jobs back, or the clock stands still."""
        opens_in = self._exchange.opens_in if states.get(State.READY, 0) else None
        try:
            if opens_in is None and not (states.get(State.WAITING, 0) and await self._groups_wait_for_rate()):
                return False
            now = await self._store.call("clock", self._store.backend.clock())
            await asyncio.sleep(LOOK_EVERY_SECONDS if opens_in is None else _wait_seconds(opens_in))
            return now != await self._store.call("clock", self._store.backend.clock())
        except HoldfastError:
            return True  # check again

    async def _groups_wait_for_rate(self) -> bool:
        """Whether any group's jobs wait only for its rate."""
        return await self._store.call("waking", self._store.backend.waking(self._queues))

    def serve(self, queues: tuple[str, ...]) -> None:
        self._queues = queues

    async def left(self) -> int:
        """Count the unfinished jobs of the served queues."""
        return sum(count for state, count in (await self._states()).items() if state in LIVE)

    async def _make_ready(self) -> None:
        for _ in range(PASSES_MAX):
            self._exchange.note_alive()
            if not (await self._sweeper.promote()).more:
                break
        await self._sweeper.refill()

    async def _states(self) -> Mapping[State, int]:
        counts = await self._store.call_within("count", self._count_limit, lambda _: self._store.backend.count())
        total: dict[State, int] = {}
        for queue in self._queues:
            for state, count in counts.get(queue, {}).items():
                total[state] = total.get(state, 0) + count
        return total

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._signals.wake.wait()
        except TimeoutError:
            pass


def _wait_seconds(opens_in: float) -> float:
    return min(max(CLOCK_SECONDS_MIN, opens_in), LOOK_EVERY_SECONDS)
