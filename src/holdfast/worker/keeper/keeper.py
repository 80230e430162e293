"""The keeper: its own event loop and its own store connection, which do all store work for the handlers.

It is a thread of the embedded worker, or the main thread of `holdfast work`. It claims and settles, renews, sweeps and
watches, each in a separate coroutine. It never runs user code, so nothing a handler does can delay a renewal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ... import events, logs
from ...backends.contract import Backend
from ...clock import Clock
from ...errors import BackendUnavailable, HoldfastError, OutcomeUnknown, StoreSealed
from ...options import WorkerOptions
from ..runner.attempt import UNKNOWN_TASK_DELAY_SECONDS, Ended, Stop
from . import identity
from .cron_ticker import CronTicker
from .declare import Declared
from .drain import Drain
from .exchange_loop import Abandoned, ExchangeLoop
from .lease_renewal import LeaseRenewer
from .ledger import Ledger
from .reports import Reports
from .runners import Runners
from .shutdown import Shutdown
from .store_client import StoreClient, backoff
from .sweeps import Sweeper
from .unknown_tasks import LAPSE_SWEEPS, UnknownTasks
from .watchdog import Watchdog

TICK_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Summary:
    """Totals of one keeper run."""

    succeeded: int
    failed: int
    left: int | None  # unfinished jobs in the served queues; None if they could not be counted


class Keeper:
    """One worker's keeper. `await run()` on the current loop, or `start` it in a new thread."""

    def __init__(
        self,
        *,
        backend: Backend,
        declared: Declared,
        options: WorkerOptions,
        queues: tuple[str, ...],
        link: Runners,
        reports: Reports,
        clock: Clock,
        unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS,
    ) -> None:
        self._declared, self._options, self._queues = declared.serving(options), options, queues
        self._runners, self._reports = link, reports
        self._store = StoreClient(backend, clock, options.call_timeout)
        self._ledger = Ledger(options.slots, options.slots_by_queue, options.task_slots)
        self._renewal = LeaseRenewer(self._store, self._runners, self._ledger, options, queues)
        self._unknown = UnknownTasks(self._store, link, unknown_delay)
        self._exchange = ExchangeLoop(
            self._store, self._runners, self._ledger, self._renewal, reports, self._unknown, options, queues
        )
        self._renewal.on_change, self._renewal.abandon = self._exchange.look_again, self._exchange.abandon
        self._renewal.unwanted, self._renewal.on_try = lambda: self.stopping, self._exchange.goes_round
        self._exchange.redeclare = self._declare_again
        link.on_room, link.post, link.on_news = self._exchange.look_again, self.post, self._renewal.renew_soon
        self._sweeper = Sweeper(
            self._store, link, on_found=self._exchange.look_again, on_sealed=self._exchange.met_seal
        )
        self._draining = Drain(self._store, self._exchange, self._sweeper, queues)
        self._ticker = CronTicker(self._store, link, self._declared, queues, options.sweep_every or TICK_LOOK_SECONDS)
        self._ticker.on_fired, self._ticker.on_sealed = self._exchange.look_again, self._exchange.met_seal
        self._stopping = Shutdown(options.grace)
        self._watchdog = Watchdog(self._store, self._runners, self._exchange, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._summary = Summary(0, 0, 0)
        self._asked = self._heeded = 0
        self._thread_id = 0
        self._undeclared = asyncio.Event()  # set while the store lacks the current declarations

    # ------------------------------------------------------------------ called from the handlers' thread

    def start(self, on_ready: Callable[[], None], on_end: Callable[[Summary | BaseException], None]) -> None:
        """Run in a new thread. Both callbacks run in that thread, `on_end` last."""

        def live() -> None:
            try:
                asyncio.run(self.run(on_ready))
            except BaseException as error:
                on_end(error)
            else:
                on_end(self._summary)

        threading.Thread(target=live, name="holdfast-keeper", daemon=True).start()

    def post(self, batch: list[Ended]) -> None:
        """Hand over the outcomes of handlers that have stopped. Thread-safe."""
        self._exchange.inbox.extend(batch)
        if self._thread_id == threading.get_ident():
            self._exchange.wake.set()
        else:
            self._call(self._exchange.wake.set)

    def ask_to_stop(self, times: int = 1) -> None:
        """Request shutdown: the first request is graceful, the second stops handlers immediately."""
        self._exchange.closing = True  # set immediately: the next outcome must not trigger another claim
        self._asked += times
        self._call(self._heed)

    @property
    def stopping(self) -> bool:
        return self._exchange.closing

    def portrait(self) -> dict[str, Any]:
        """The worker's state for monitoring. Call it on the keeper's loop."""
        tenure, line = self._renewal, self._store
        now = line.clock.steady()
        return {
            "worker": tenure.worker.id,
            "queues": list(self._queues),
            "slots": self._options.slots,
            "running": len(self._ledger.busy),
            "registered": tenure.registered,
            "fenced": tenure.fenced,
            "stopping": self.stopping,
            "renewed_seconds_ago": round(now - tenure.sent, 3) if tenure.registered else None,
            "store_silent_seconds": 0.0 if line.down_since is None else round(now - line.down_since, 3),
        }

    def serve(self, queues: tuple[str, ...], declared: Declared) -> None:
        """Switch to the queues and declarations of reloaded code. Call it on the keeper's loop."""
        if set(queues) != set(self._queues):
            self._queues = queues
            self._exchange.serve(queues)
            self._draining.serve(queues)
            self._renewal.serve(queues)
        declared = declared.serving(self._options)
        if declared != self._declared or self._unknown.caps:  # unknown tasks may be known now
            self._declared = declared
            self._undeclared.set()
        self._ticker.serve(self._queues, declared)

    def _heed(self) -> None:
        """Forward stop requests, including those made before this thread's loop was running."""
        while self._heeded < self._asked:
            self._heeded += 1
            self._stopping.ask()

    def _call(self, what: Callable[[], None]) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(what)
            except RuntimeError:
                pass  # the loop has ended, so nothing is left to notify

    # ------------------------------------------------------------------ on the keeper's loop

    async def run(self, on_ready: Callable[[], None]) -> Summary:
        """Run the keeper from registration to retirement on the current loop."""
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._heed()
        backend = self._store.backend
        await backend.open()
        try:
            await self._declare_first()
            await self._renewal.enter()
            await self._clean_up()
            on_ready()
            logs.worker_started(self._renewal.worker.id, self._queues, self._options.slots)
            worker = self._renewal.worker
            self._runners.tell(events.WorkerStarted(worker=worker.id, queues=self._queues, slots=worker.slots))
            await self._work()
        finally:
            await backend.close()
        if self._exchange.sealed is not None:
            raise self._exchange.sealed  # lets the caller know that starting another worker is pointless
        return self._summary

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(part) for part in self._parts()]
                await self._trade()
                self._stopping.over.set()
                self._exchange.close()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as faults:
            self._runners.stop_all(Stop.FENCED)
            logs.keeper_failed(faults)
            raise faults.exceptions[0] from None
        finally:
            await self._wind_up()

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        parts = [
            self._renewal.renew_forever(),
            self._renewal.fence_forever(),
            self._watchdog.watch_forever(),
            self._runners.watch_forever(),
            self._reports.flush_forever(self._store, self._runners),
            self._stopping.carry_out(self._exchange, self._runners, self._ledger),
            self._declare_forever(),
        ]
        if self._options.sweep_every is not None:
            parts.append(self._sweeper.sweep_forever(self._options.sweep_every))
            parts.append(self._sweeper.rearrange_forever(self._options.sweep_every))
            parts.append(self._ticker.tick_forever())
            parts.append(self._unknown.lapse_forever(self._options.sweep_every * LAPSE_SWEEPS))
        return parts

    async def _trade(self) -> None:
        """The worker's main loop: exchange while there are outcomes to send or slots to fill, otherwise wait."""
        trader, ledger = self._exchange, self._ledger
        if self._options.drain or self._options.sweep_every is None:
            await self._ticker.catch_up(self._no_more)  # ticks that are already due must run before this worker ends
        while not self._runners.broken:
            try:
                if await trader.step():
                    continue
                if trader.abandon.is_set():
                    return
                if not (ledger.busy or trader.inbox):
                    if trader.closing:
                        return
                    if self._options.drain:
                        if await self._draining.finished():
                            trader.closing = True
                        continue
            except Abandoned:
                return
            await trader.idle()

    def _no_more(self) -> bool:
        self._exchange.goes_round()
        return self._exchange.closing

    async def _clean_up(self) -> None:
        """Immediately recover the jobs of provably dead workers on this host. A failure is logged and ignored."""
        try:
            workers = await self._store.call("workers", self._store.backend.workers())
            dead = identity.provably_dead(workers, self._renewal.worker)
            if dead:
                logs.clean_up_done(dead, len(await self._sweeper.recover(dead)))
        except Exception as error:
            logs.clean_up_failed(error)

    # ------------------------------------------------------------------ declaring

    async def _declare_first(self) -> None:
        """Declare before the first claim if the store can take it now; if it is busy, declare later."""
        try:
            await self._declared.tell(self._store.backend)
        except (BackendUnavailable, OutcomeUnknown) as error:
            if self.stopping:
                raise
            logs.declare_failed(error, 1)
            self._undeclared.set()

    async def _declare_again(self) -> None:
        try:
            await self._store.call("declare", self._declared.tell(self._store.backend))
        except HoldfastError as error:
            logs.declare_failed(error, 1)
            self._undeclared.set()

    async def _declare_forever(self) -> None:
        """Retry declaring until the store accepts it. Neither workers nor jobs wait for this."""
        tries = 0
        while True:
            await self._undeclared.wait()
            self._undeclared.clear()
            await self._unknown.reset(self._runners.knows)
            try:
                await self._store.call("declare", self._declared.tell(self._store.backend))
                tries = 0
            except StoreSealed as error:
                self._exchange.met_seal(error)
            except HoldfastError as error:
                self._undeclared.set()
                tries += 1
                logs.declare_failed(error, tries)
                await asyncio.sleep(backoff(tries))

    # ------------------------------------------------------------------ the end

    async def _wind_up(self) -> None:
        """Retire the worker, unless a handler still runs or outcomes are unsent: that would hand its jobs to others."""
        worker, unsent = self._renewal.worker.id, [one.id for one in self._ledger.settlements]
        running = self._runners.running()
        left: int | None = None
        if unsent:
            logs.outcomes_unsent(worker, unsent)
        if running:
            logs.left_running(worker, running)
        try:
            await self._reports.flush(self._store, self._runners, None)
            await self._unknown.reset()
            if not (running or unsent):
                await self._store.call("retire", self._store.backend.retire(worker))
            left = await self._draining.left()
        except HoldfastError as error:
            logs.retire_failed(worker, error)
        tally = self._exchange.tally
        self._summary = Summary(tally.succeeded, tally.failed, left)
        logs.worker_stopped(worker)
        self._runners.tell(events.WorkerStopped(worker=worker, left_running=running))
