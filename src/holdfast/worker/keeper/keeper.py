"""The keeper: its own event loop and its own store connection, which do all store work for the handlers.

It is a thread of the embedded worker, or the main thread of `holdfast work`. It claims and settles, renews, sweeps and
watches, each in a separate coroutine. It never runs user code, so nothing a handler does can delay a renewal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from ... import events, logs
from ...backends.contract import Backend
from ...clock import Clock
from ...context import UNKNOWN_TASK_DELAY_SECONDS, Stop
from ...errors import HoldfastError
from ...options import WorkerOptions
from . import identity
from .commands import Commands
from .cron_ticker import CronTicker
from .declare import Declarations, Declared
from .drain import Drain
from .exchange_loop import ExchangeLoop
from .lease_renewal import LeaseRenewer, Ledger
from .meter import Meter
from .recorder import Recorder
from .reports import Reports, ReportWriter
from .runners import Runners, Signals
from .shutdown import Shutdown
from .store_client import StoreClient
from .sweeps import Sweeper
from .unknown_tasks import LAPSE_SWEEPS, UnknownTasks
from .watchdog import Watchdog

TICK_LOOK_SECONDS = 5.0


class Summary(Struct, frozen=True):
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
        runners: Runners,
        signals: Signals,
        reports: Reports,
        clock: Clock,
        unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS,
        meter: Meter | None = None,
    ) -> None:
        declared = declared.serving(options)
        self._options, self._queues, self._runners, self._signals = options, queues, runners, signals
        signals.journal.meter = meter
        runners.name, runners.priority = options.name, options.priority
        store = self._store = StoreClient(backend, clock, options.call_timeout, meter)
        ledger = self._ledger = Ledger(options.slots, options.slots_by_queue, options.task_slots)
        self._commands = Commands(
            store, runners, signals, ledger, options.slots, set_slots=self._use_slots, stop=self.ask_to_stop
        )
        self._renewal = LeaseRenewer(store, runners, signals, ledger, options, queues, self._commands.obey)
        self._unknown = UnknownTasks(store, runners, unknown_delay)
        self._declarations = Declarations(declared, store, runners, signals, self._unknown)
        self._report_writer = ReportWriter(reports, store, runners, signals)
        self._exchange = ExchangeLoop(
            store=store,
            runners=runners,
            signals=signals,
            ledger=ledger,
            renewal=self._renewal,
            reports=reports,
            report_writer=self._report_writer,
            unknown=self._unknown,
            declarations=self._declarations,
            options=options,
            queues=queues,
        )
        self._recorder = Recorder(store, runners, signals, options)
        self._sweeper = Sweeper(store, runners, signals)
        self._drain = Drain(store, signals, self._exchange, self._sweeper, queues)
        self._ticker = CronTicker(store, runners, signals, declared, queues, options.sweep_every or TICK_LOOK_SECONDS)
        self._shutdown = Shutdown(options.grace, runners, signals, ledger)
        self._watchdog = Watchdog(store, runners, signals, self._exchange, options)
        self._summary = Summary(0, 0, 0)
        self._stops_requested = self._stops_forwarded = 0

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

    def ask_to_stop(self, times: int = 1) -> None:
        """Request shutdown: the first request is graceful, the second stops handlers immediately."""
        self._signals.closing = True  # set immediately: the next outcome must not trigger another claim
        self._stops_requested += times
        self._signals.call(self._forward_stops)

    @property
    def stopping(self) -> bool:
        return self._signals.closing

    def status(self) -> dict[str, Any]:
        """The worker's state for monitoring. Call it on the keeper's loop."""
        renewal, store = self._renewal, self._store
        now = store.clock.steady()
        return {
            "worker": renewal.worker.id,
            "name": self._options.name,
            "priority": self._options.priority,
            "queues": list(self._queues),
            "slots": renewal.worker.slots,
            "paused": self._signals.paused,
            "running": len(self._ledger.busy) - self._runners.queued() - self._runners.gathered.number,
            "ahead": self._runners.queued() + self._runners.gathered.number,
            "registered": renewal.registered,
            "fenced": renewal.fenced,
            "stopping": self.stopping,
            "renewed_seconds_ago": round(now - renewal.sent, 3) if renewal.registered else None,
            "store_silent_seconds": 0.0 if store.down_since is None else round(now - store.down_since, 3),
        }

    def ages(self) -> dict[str, float]:
        """Seconds since the last renewal ("renew") and since each sweep ended well. Call it on the keeper's loop."""
        at = {"renew": self._renewal.sent, **self._sweeper.swept_at} if self._renewal.registered else {}
        return {what: max(0.0, self._store.clock.steady() - then) for what, then in at.items()}

    def serve(self, queues: tuple[str, ...], declared: Declared, slots: int) -> None:
        """Switch to the queues, declarations and slots of reloaded code. Call it on the keeper's loop."""
        self._commands.change_slots(slots)
        if set(queues) != set(self._queues):
            self._queues = queues
            self._exchange.serve(queues)
            self._drain.serve(queues)
            self._renewal.serve(queues)
        declared = declared.serving(self._options)
        self._declarations.change(declared)
        self._ticker.serve(self._queues, declared)

    def _use_slots(self, slots: int) -> None:
        self._renewal.use_slots(slots)

    def _forward_stops(self) -> None:
        """Forward stop requests, including those made before this thread's loop was running."""
        while self._stops_forwarded < self._stops_requested:
            self._stops_forwarded += 1
            self._shutdown.request()

    # ------------------------------------------------------------------ on the keeper's loop

    async def run(self, on_ready: Callable[[], None]) -> Summary:
        """Run the keeper from registration to retirement on the current loop."""
        self._signals.attach()
        self._forward_stops()
        backend = self._store.backend
        await backend.open()
        try:
            await self._declarations.declare_first()
            await self._renewal.enter()
            await self._clean_up()
            on_ready()
            logs.worker_started(self._renewal.worker.id, self._queues, self._options.slots, self._options.name)
            worker = self._renewal.worker
            self._runners.emit(events.WorkerStarted(worker=worker.id, queues=self._queues, slots=worker.slots))
            await self._work()
        finally:
            await backend.close()
        if self._signals.sealed is not None:
            raise self._signals.sealed  # lets the caller know that starting another worker is pointless
        return self._summary

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(part) for part in self._parts()]
                if self._options.drain or self._options.sweep_every is None:
                    await self._ticker.catch_up(self._no_more)  # ticks already due must run before this worker ends
                # In a task of its own: each of its steps would otherwise resume every coroutine that awaits it here.
                await group.create_task(self._exchange.run(self._drain.finished if self._options.drain else None))
                self._shutdown.over.set()
                self._exchange.close()
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as faults:
            self._runners.stop_all(Stop.FENCED)
            logs.keeper_failed(faults)
            raise faults.exceptions[0] from None
        finally:
            await self._retire()

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        parts = [
            self._renewal.renew_forever(),
            self._renewal.fence_forever(),
            self._watchdog.watch_forever(),
            self._runners.watch_forever(),
            self._report_writer.flush_forever(),
            self._recorder.record_forever(),
            self._shutdown.carry_out(),
            self._declarations.declare_forever(),
        ]
        if self._options.sweep_every is not None:
            parts.append(self._sweeper.sweep_forever(self._options.sweep_every))
            parts.append(self._sweeper.rearrange_forever(self._options.sweep_every))
            parts.append(self._ticker.tick_forever())
            parts.append(self._unknown.lapse_forever(self._options.sweep_every * LAPSE_SWEEPS))
        return parts

    def _no_more(self) -> bool:
        self._exchange.note_alive()
        return self.stopping

    async def _clean_up(self) -> None:
        """Immediately recover the jobs of provably dead workers on this host. A failure is logged and ignored."""
        try:
            workers = await self._store.call("workers", self._store.backend.workers())
            dead = identity.provably_dead(workers, self._renewal.worker)
            if dead:
                logs.clean_up_done(dead, len(await self._sweeper.recover(dead)))
        except Exception as error:
            logs.clean_up_failed(error)

    # ------------------------------------------------------------------ the end

    async def _retire(self) -> None:
        """Retire the worker, unless a handler still runs or outcomes are unsent: that would hand its jobs to others."""
        worker, unsent = self._renewal.worker.id, [settlement.id for settlement in self._ledger.settlements]
        running = self._runners.running()
        left: int | None = None
        if unsent:
            logs.outcomes_unsent(worker, unsent)
        if running:
            logs.left_running(worker, running)
        try:
            await self._report_writer.flush(None)
            await self._unknown.reset()
            if not (running or unsent):
                await self._store.call("retire", self._store.backend.retire(worker))
            self._signals.journal.seen(events.WorkerStopped(worker=worker, left_running=running))
            await self._recorder.flush()
            left = await self._drain.left()
        except HoldfastError as error:
            logs.retire_failed(worker, error)
        tally = self._exchange.tally
        self._summary = Summary(tally.succeeded, tally.failed, left)
        logs.worker_stopped(worker)
        self._runners.emit(events.WorkerStopped(worker=worker, left_running=running))
