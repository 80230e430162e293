"""The watchdog: has the store fallen silent, and does the claim loop still go round?

Run by the keeper beside its calls. A silent store is told. A claim loop that has free slots and neither looks for work
nor repeats a call is told and woken; if it does not wake, the worker ends, so that a supervisor can start it again. A
call that the store does not answer, however often it is repeated, is no reason to end: handlers run on while the lease
is renewed.
"""

from __future__ import annotations

import asyncio

from ... import events, logs
from ...options import WorkerOptions
from .exchange_loop import ExchangeLoop
from .runners import Runners
from .store_client import StoreClient

LOOK_EVERY_SECONDS = 0.25
IDLE_POLLS_MAX = 5  # on top of one lease: so long may a claim loop wait for work without looking
WAKE_MAX = 2


class ClaimLoopStuck(Exception):
    """The worker would be idle for ever; it ends instead."""


class Watchdog:
    """Watches the store's silence; each one is told once."""

    def __init__(self, line: StoreClient, link: Runners, trader: ExchangeLoop, options: WorkerOptions) -> None:
        self._store, self._runners, self._exchange = line, link, trader
        self._patience = options.lease / 4
        self._idle_max = IDLE_POLLS_MAX * options.poll_every + options.lease
        self._told = False
        self._woken = 0

    async def watch_forever(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_EVERY_SECONDS, self._patience / 2))
            self._look()
            self._look_at_claims()

    def _look_at_claims(self) -> None:
        trader = self._exchange
        idle = self._store.clock.steady() - trader.looked_at
        if idle <= self._idle_max * (1 + self._woken):
            self._woken = self._woken if idle > self._idle_max else 0
        elif trader.free():  # nothing is out, so it waits for a hint that does not come
            self._woken += 1
            logs.claims_stopped(self._runners.worker, idle)
            if self._woken > WAKE_MAX:
                raise ClaimLoopStuck(f"the claim loop has not gone round for {idle:.0f} s although slots are free.")
            trader.stop_listening()

    def _look(self) -> None:
        since = self._store.down_since
        if since is None:
            self._told = False
            return
        seconds = self._store.clock.steady() - since
        if seconds > self._patience and not self._told:
            self._told = True
            logs.store_blocked(seconds, self._store.last_error)
            self._runners.tell(
                events.StoreBlocked(worker=self._runners.worker, seconds=seconds, error=self._store.last_error)
            )
