"""The watchdog: reports a store that stops responding, and wakes a claim loop that hangs.

Run by the keeper beside its calls. It logs and emits a blocked store. If the claim loop has free slots but neither
claims nor retries a call, it logs that and wakes the loop; if that does not help, it ends the worker, so that a
supervisor can restart it. A call that the store never answers, however often it is repeated, is no reason to end:
handlers continue as long as the lease is renewed.
"""

from __future__ import annotations

import asyncio

from ... import events, logs
from ...clock import until_tick
from ...options import WorkerOptions
from .exchange_loop import ExchangeLoop
from .runners import Runners, Signals
from .store_client import StoreClient

LOOK_EVERY_SECONDS = 1.0
IDLE_POLLS_MAX = 5  # poll intervals, plus one lease, that the claim loop may wait without claiming
WAKE_MAX = 2


class ClaimLoopStuck(Exception):
    """The claim loop hangs; the worker ends instead of staying idle forever."""


class Watchdog:
    """Watches the store and the claim loop; reports each outage once."""

    def __init__(
        self,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        exchange_loop: ExchangeLoop,
        options: WorkerOptions,
    ) -> None:
        self._store, self._runners, self._signals, self._exchange = store, runners, signals, exchange_loop
        self._patience = options.lease / 4
        self._idle_max = IDLE_POLLS_MAX * options.poll_every + options.lease
        self._reported = False
        self._woken = 0

    async def watch_forever(self) -> None:
        while True:
            await asyncio.sleep(until_tick(min(LOOK_EVERY_SECONDS, self._patience / 2)))
            self._look()
            self._look_at_claims()

    def _look_at_claims(self) -> None:
        idle = self._store.clock.steady() - self._signals.alive_at
        if idle <= self._idle_max * (1 + self._woken):
            self._woken = self._woken if idle > self._idle_max else 0
        elif self._exchange.free():  # no call is in flight, so it waits for a wake-up that does not come
            self._woken += 1
            logs.claims_stopped(self._runners.worker, idle)
            if self._woken > WAKE_MAX:
                raise ClaimLoopStuck(f"the claim loop has not run for {idle:.0f} s although slots are free.")
            self._exchange.stop_listening()

    def _look(self) -> None:
        since = self._store.down_since
        if since is None:
            self._reported = False
            return
        seconds = self._store.clock.steady() - since
        if seconds > self._patience and not self._reported:
            self._reported = True
            logs.store_blocked(seconds, self._store.last_error)
            self._runners.emit(
                events.StoreBlocked(worker=self._runners.worker, seconds=seconds, error=self._store.last_error)
            )
