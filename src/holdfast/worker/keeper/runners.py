"""The interface between the keeper and its runners: `Runners`, which the keeper calls, and `Signals`, which they set.

Runners has two implementations: `InProcessRunners` here, for the embedded worker, and processes/pool.py, with a guard
over processes. It also has the log lines and events about leases, which both share. Nothing here waits for a runner:
a handler may be blocking it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace

from ... import events, logs
from ...clock import Clock
from ...context import Ended, Stop, stack_of
from ...errors import StoreSealed
from ...lifecycle import Ending, Settlement
from ...options import LogJobs
from ...records import Lease, Recovered
from ...rollups import BOUNDS, BUCKETS, OTHER, KeptEvent, Recording, Rollup, merged, plus, recovered_as
from ...worker_status import RunnerView, draw
from .batches import BatchPlan, Gathered
from .chains import CHAINED_MAX
from .crashes import crash_events, state_after_crash
from .meter import Meter

if TYPE_CHECKING:
    from ..runner.attempt import Runner
    from .declare import Declared

LOOP_BLOCKED_SECONDS = 1.0
LOOK_EVERY_SECONDS = 0.25


# ----------------------------------------------------------------------------------------------------------------------
# The journal: how this worker's attempts ended, counted in memory, and events that others may follow. Everything in it
# is bounded. recorder.py writes it into the store.


CELLS_MAX = 500  # queues, tasks and outcomes counted in one recording; further ones are counted as task OTHER
EVENTS_MAX = 200  # in one recording; further ones are dropped, and the recording says how many
COMMON_MAX = 100  # of these at most, starts and successes
RARE_MAX = 50  # in addition: events that are not about a single job
_COMMON = frozenset({"started", "succeeded", "progress"})

_OUTCOMES = {
    Ending.SUCCEEDED: "succeeded",
    Ending.RETRY: "failed",
    Ending.SNOOZED: "snoozed",
    Ending.BURIED: "dead",
    Ending.CANCELLED: "cancelled",
    Ending.STALLED: "stalled",
}


class Cell:
    """Attempts of one task in one queue with the same outcome: histograms of how long they waited and ran."""

    __slots__ = ("runs", "waits")

    def __init__(self) -> None:
        self.waits = [0] * BUCKETS
        self.runs = [0] * BUCKETS


def _trimmed(counts: Sequence[int]) -> tuple[int, ...]:
    last = len(counts)
    while last and not counts[last - 1]:
        last -= 1
    return tuple(counts[:last])


class Journal:
    """Counts and events since the last recording. A meter, if there is one, is updated even while recording is off."""

    def __init__(self) -> None:
        self.on = True
        self.meter: Meter | None = None
        self._cells: dict[tuple[str, str, str], Cell] = {}
        self._counted: dict[tuple[str, str, str], int] = {}  # stalls of other workers' jobs, and lost leases
        self._seen: list[KeptEvent] = []
        self._common = 0
        self._dropped: dict[str, int] = {}
        self._offset: float | None = None  # the keeper's steady clock minus the store's, as of the latest claim
        self.busy_queues: dict[str, None] = {}  # queues of jobs that ended since they were last found empty

    # ------------------------------------------------------------------ counting

    @property
    def counts(self) -> bool:
        """Whether outcomes are counted at all."""
        return self.on or self.meter is not None

    def arrived(self, lease: Lease, now: float) -> None:
        """A lease arrived: its start, by the store's clock, is `now` (steady)."""
        self._offset = now - lease.started_at

    def started(self, leases: Sequence[Lease], worker: str) -> None:
        """These jobs start now."""
        room = max(0, COMMON_MAX - self._common) if self.on else 0
        self.seen(*(events.Started(**events.about(lease, worker), fence=lease.fence) for lease in leases[:room]))
        self.drop("started", len(leases[room:]))

    def settled(self, leases: Sequence[Lease], ending: Ending, ended_at: float) -> None:
        """The store accepted these outcomes, which this keeper had at `ended_at` (steady).

        It runs for every job, so leases of one task or one claim, which usually come together, share a look-up.
        """
        outcome, ended = _OUTCOMES[ending], ended_at - (self._offset or 0.0)
        if self.meter is not None:
            self.meter.settled(leases, outcome, ended)
            if not self.on:
                return
        queue = task = started_at = None
        waits: list[int] = []
        runs: list[int] = []
        run = 0
        for lease in leases:
            if lease.task != task or lease.queue != queue:
                queue, task = lease.queue, lease.task
                key = (queue, task, outcome)
                cell = self._cells.get(key) or self._new_cell(key)
                waits, runs = cell.waits, cell.runs
            if lease.started_at != started_at:
                started_at = lease.started_at
                run = bisect_left(BOUNDS, ended - started_at)
            runs[run] += 1
            waits[bisect_left(BOUNDS, started_at - lease.due_at)] += 1

    def ended(self, lease: Lease, settlement: Settlement, ended_at: float) -> None:
        """The store accepted an outcome other than success. The stall that exhausts a job's stalls is its death."""
        died = settlement.ending is Ending.STALLED and state_after_crash(lease, alone=settlement.alone) == "dead"
        self.settled([lease], Ending.BURIED if died else settlement.ending, ended_at)
        if died and self.meter is not None:
            self.meter.stalled(lease.queue, lease.task)

    def recovered(self, ends: Sequence[Recovered]) -> None:
        """This worker recovered stalled leases of others."""
        for end in ends:
            if end.counted:
                outcome = recovered_as(end.state)
                self._count(end.queue, end.task, outcome)
                if self.meter is not None:
                    self.meter.recovered(end.queue, end.task, outcome)

    def leases_lost(self, leases: Sequence[Lease]) -> None:
        """These leases are no longer ours."""
        for lease in leases:
            self._count(lease.queue, lease.task, "lost")
        if self.meter is not None:
            self.meter.leases_lost(leases)

    def _count(self, queue: str, task: str, outcome: str) -> None:
        if not self.on:
            return
        key = (queue, task, outcome)
        if key not in self._counted and len(self._counted) >= CELLS_MAX:
            key = (OTHER, OTHER, outcome)
        self._counted[key] = self._counted.get(key, 0) + 1

    def _new_cell(self, key: tuple[str, str, str]) -> Cell:
        queue, _, outcome = key
        if len(self._cells) >= CELLS_MAX:
            key = (queue, OTHER, outcome) if len(self._cells) < 2 * CELLS_MAX else (OTHER, OTHER, outcome)
        self.busy_queues[queue] = None
        cell = self._cells[key] = self._cells.get(key) or Cell()
        return cell

    # ------------------------------------------------------------------ events

    def seen(self, *found: events.Event) -> None:
        """Keep events for the next recording; beyond the bound they are only counted."""
        if not self.on:
            return
        for event in found:
            common = event.name in _COMMON
            most = EVENTS_MAX if isinstance(event, events.JobEvent) else EVENTS_MAX + RARE_MAX
            if len(self._seen) >= most or (common and self._common >= COMMON_MAX):
                self._dropped[event.name] = self._dropped.get(event.name, 0) + 1
                continue
            self._common += common
            self._seen.append(events.kept(event))

    @property
    def room(self) -> int:
        """How many more start and success events fit: check before building an event for each job."""
        return COMMON_MAX - self._common if self.on else 0

    def drop(self, name: str, number: int) -> None:
        """Count events that were not built because there is no room for them."""
        if self.on and number > 0:
            self._dropped[name] = self._dropped.get(name, 0) + number

    # ------------------------------------------------------------------ handing over

    def take(self, worker: str, number: int) -> Recording | None:
        """Take out the counts and events as that worker's recording of that number; None if there are none."""
        if not (self._cells or self._counted or self._seen or self._dropped):
            return None
        if self._dropped:
            self._seen.append(events.kept(events.EventsDropped(worker=worker, dropped=self._dropped)))
        rollups, total = self._rolled_up()
        rollups += [
            Rollup(outcome=outcome, count=count, queue=queue, task=task)
            for (queue, task, outcome), count in self._counted.items()
        ]
        mine = [replace(one, queue="", task="", worker=worker) for one in total.values()]
        recording = Recording(
            worker=worker, number=number, rollups=tuple(merged([*rollups, *mine])), events=tuple(self._seen)
        )
        self._cells, self._counted = {}, {}
        self._seen, self._dropped, self._common = [], {}, 0
        return recording

    def _rolled_up(self) -> tuple[list[Rollup], dict[str, Rollup]]:
        """The cells as roll-ups, one each and one sum per outcome."""
        found: list[Rollup] = []
        total: dict[str, Rollup] = {}
        for (queue, task, outcome), cell in self._cells.items():
            waits, runs = _trimmed(cell.waits), _trimmed(cell.runs)
            one = Rollup(outcome=outcome, count=sum(waits), queue=queue, task=task, waits=waits, runs=runs)
            found.append(one)
            total[outcome] = plus(total[outcome], one) if outcome in total else one
        return found, total


# ----------------------------------------------------------------------------------------------------------------------
# The job log: which jobs get a line in the worker's log when they start and end, and their times. A start is logged
# when its lease arrives, an end when the store has accepted it. Failures always get a line of their own, unless jobs
# are not logged at all. The other lines cost more than a small job does, so by default a busy worker logs
# LINES_PER_SECOND and sums up the rest once a second.


LINES_PER_SECOND = 100
SUM_UP_SECONDS = 1.0


class JobLog:
    """The lines about one worker's jobs. Called only on the keeper's loop."""

    def __init__(self, which: LogJobs | None, clock: Clock) -> None:
        self._failures = which != "none"
        self._each = which in (None, "all")
        self._bounded = which is None
        self._clock = clock
        self._offset = 0.0  # the keeper's steady clock minus the store's, as of the latest claim
        self._second = 0.0  # when the current second of the bound began
        self._left = LINES_PER_SECOND
        self._more: Counter[tuple[str, str]] = Counter()  # (what, task): jobs that were not logged one by one

    def started(self, leases: Sequence[Lease]) -> None:
        """Leases arrived and start now."""
        if leases:
            self._offset = self._clock.steady() - leases[0].started_at
        if self._each and logs.jobs_logger.isEnabledFor(logging.INFO):
            room = self._room(len(leases))
            for lease in islice(leases, room):
                logs.job_started(lease, max(0.0, lease.started_at - lease.due_at))
            self._sum_up("started", leases[room:])

    def succeeded(self, leases: Sequence[Lease], ran: Sequence[float | None], ended_at: float) -> None:
        """The store accepted these successes, which this keeper had at `ended_at` (steady)."""
        if self._each and logs.jobs_logger.isEnabledFor(logging.INFO):
            room = self._room(len(leases))
            for lease, seconds in islice(zip(leases, ran, strict=True), room):
                wait = max(0.0, lease.started_at - lease.due_at)
                logs.job_succeeded(lease, wait, self._run(lease, seconds, ended_at))
            self._sum_up("succeeded", leases[room:])

    def ended(self, lease: Lease, settlement: Settlement, ended_at: float) -> None:
        """The store accepted an outcome other than success."""
        run, ending = self._run(lease, settlement.ran, ended_at), settlement.ending
        if ending in (Ending.RETRY, Ending.BURIED):
            if self._failures:
                (logs.attempt_failed if ending is Ending.RETRY else logs.job_dead)(lease, settlement, run)
        elif self._each and self._room(1):
            if ending is Ending.SNOOZED:
                logs.job_put_off(lease, run, settlement.delay, settlement.reason)
            elif ending is Ending.CANCELLED:
                logs.job_cancelled(lease, run)

    def released(self, lease: Lease | None) -> None:
        """It was given back unfinished. If it was claimed ahead, it had not begun, although a start was logged."""
        if lease is not None and self._each:
            if self._room(1):
                logs.job_released(lease)
            else:
                self._sum_up("released", [lease])

    def close(self) -> None:
        """Sum up what has not been summed up yet."""
        if self._more:
            counts, self._more = self._more, Counter()
            logs.job_summed_up(counts, self._clock.steady() - self._second)

    def _run(self, lease: Lease, ran: float | None, ended_at: float) -> float:
        """How long the handler ran; if its process died, the time since it was leased."""
        return ran if ran is not None else max(0.0, ended_at - self._offset - lease.started_at)

    def _room(self, wanted: int) -> int:
        """How many of these lines fit into the current second."""
        if not self._bounded:
            return wanted
        now = self._clock.steady()
        if not 0.0 <= now - self._second < SUM_UP_SECONDS:
            self.close()
            self._second, self._left = now, LINES_PER_SECOND
        granted = min(wanted, self._left)
        self._left -= granted
        return granted

    def _sum_up(self, what: str, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        if not self._more:
            asyncio.get_running_loop().call_later(SUM_UP_SECONDS, self.close)
        for task, number in Counter([lease.task for lease in leases]).items():
            self._more[what, task] += number


# ----------------------------------------------------------------------------------------------------------------------
# The two sides


class Signals:
    """How runners and the keeper's parts notify the keeper's loops, without depending on them.

    Created by the worker, given to its runners and its keeper. `post`, `report_within` and `call` are thread-safe;
    everything else is for the keeper's loop.
    """

    def __init__(self) -> None:
        self.ended: deque[Ended] = deque()  # attempts that ended, for the exchange loop
        self.wake = asyncio.Event()  # the exchange loop has something to do
        self.slot_free = asyncio.Event()  # a runner has ended its last job, while outcomes were being collected
        self.claim_due = True  # the last claim filled all slots, or jobs may have become claimable since
        self.alive_at = 0.0  # steady time of the exchange loop's last iteration or retry, for the watchdog
        self.status_changed = asyncio.Event()  # the lease renewal should publish the worker status soon
        self.reports_due = asyncio.Event()  # pending reports are to be written now
        self.closing = False  # no more claims
        self.paused = False  # no claims until an operator resumes this worker
        self.abandon = asyncio.Event()  # end even if the store does not respond and outcomes are unsettled
        self.sealed: StoreSealed | None = None  # the store is being moved: the reason this worker ends
        self.settling: set[str] = set()  # tokens of leases that handlers settle in transactions of their own
        self.journal = Journal()  # what this worker counts and sees, for the recorder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0

    def attach(self) -> None:
        """The keeper runs on the current loop."""
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()

    def post(self, batch: list[Ended]) -> None:
        """Hand over attempts that have ended."""
        self.ended.extend(batch)
        if self._thread_id == threading.get_ident():
            self.wake.set()
        else:
            self.call(self.wake.set)

    def report_within(self, seconds: float) -> None:
        """Have pending reports written within this time."""
        self.call(lambda: asyncio.get_running_loop().call_later(seconds, self.reports_due.set))

    def call(self, what: Callable[[], object]) -> None:
        """Have the keeper's loop call this, if it runs."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(what)
            except RuntimeError:
                pass  # the loop has ended, so nothing is left to notify

    def claim_again(self) -> None:
        """There may be jobs to claim, or room for them."""
        self.claim_due = True
        self.wake.set()

    def seal(self, error: StoreSealed) -> None:
        """The store is sealed and hands out no more work: let running jobs finish, and stop."""
        if self.sealed is None:
            self.sealed, self.closing = error, True
            self.wake.set()


class Limited(NamedTuple):
    """Queues and tasks for which the code declares a limit or rate. Their jobs are not claimed ahead: they would count
    against it without running."""

    queues: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()


def limited_by(declared: Declared) -> Limited:
    return Limited(
        frozenset(
            rule.name
            for rule in declared.queues
            if rule.limit is not None or rule.rate or rule.group_rate or rule.group_limit != 1
        ),
        frozenset(rule.name for rule in declared.tasks if rule.limit is not None or rule.rate),
    )


class Runners(ABC):
    """The runners as the keeper sees them."""

    isolates: ClassVar[bool] = False  # can run suspect jobs alone in a process
    in_processes: ClassVar[bool] = False  # handlers do not share the keeper's GIL

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self.worker = ""  # the worker's id
        self.name = ""  # the worker's name
        self.priority: tuple[int, int] | None = None  # of the jobs it takes
        self.slots_from = ""  # where its number of slots comes from, see WorkerStatus
        self.unknown: tuple[str, ...] = ()  # tasks of claimed jobs that this code does not have
        self.catches_all = False  # this code has a catch-all task for jobs of unknown tasks
        self.broken = False  # no job can be run any more
        self.limited = Limited()
        self.exchange_seconds = 0.0  # recent average duration of an exchange that claims
        self.group_prefetch: Mapping[str, int] = {}  # by queue, where it is above 1
        self.batches = BatchPlan()
        self.gathered = Gathered(signals.post)

    # ------------------------------------------------------------------ specific to each implementation

    @abstractmethod
    def set_worker(self, worker: str) -> None:
        """Use this worker id from now on."""

    @abstractmethod
    def wanted(self, *names: str) -> bool:
        """Whether any of these events has a listener."""

    @abstractmethod
    def room(self, free: int) -> int:
        """How many of the `free` slots could start a job now."""

    def queued(self) -> int:
        """How many jobs that were claimed ahead wait in the runners for a slot."""
        return 0

    def ahead(self, now: int) -> int:
        """How many jobs a claim may return beyond the `now` that can start immediately: slots will soon be free."""
        return 0

    def lasts(self) -> float:
        """Estimated seconds until a slot is free, from recent run times: 0 if one is free, or nothing is queued."""
        return 0.0

    def sending(self) -> bool:
        """Whether every runner has yet to read jobs with large arguments."""
        return False

    def chaining(self) -> tuple[int, float | None]:
        """How many chained jobs a claim may return, and how long a job has recently taken (None: not known)."""
        return CHAINED_MAX, None

    @abstractmethod
    def give_back_queued(self) -> None:
        """Release the jobs that have not begun: those claimed ahead, and those behind another one in a chain."""

    @abstractmethod
    def most_by_task(self) -> Mapping[str, int]:
        """Per-task maximum for the next claim, only for tasks with a limited number of slots."""

    @abstractmethod
    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        """Whether a claim with these caps and this result may have left jobs that another claim would return now."""

    @abstractmethod
    def start(self, leases: Sequence[Lease], now: int) -> None:
        """Start up to `now` jobs immediately and the others as soon as slots are free. A chained lease directly follows
        its predecessor in the list, starts when that has succeeded, and does not count."""

    @abstractmethod
    def start_batch(self, leases: Sequence[Lease]) -> None:
        """Start one attempt for all of these jobs of a batch task."""

    @abstractmethod
    def stop(self, leases: Sequence[Lease], reason: Stop) -> None: ...

    @abstractmethod
    def stop_all(self, reason: Stop) -> None:
        """Tell every handler to stop; start nothing until `allow_starts`."""

    @abstractmethod
    def allow_starts(self) -> None:
        """Allow starts again: the fence has been lifted."""

    @abstractmethod
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs whose handlers have not stopped."""

    @abstractmethod
    def deliver(self, seen: list[events.Event]) -> None:
        """Deliver events to their listeners."""

    @abstractmethod
    async def watch_forever(self) -> None:
        """Check that the runners respond, and report when they do not."""

    @abstractmethod
    async def stacks(self) -> list[tuple[str, str]]:
        """The stacks of each runner's threads: (runner, text)."""

    async def kill_rest(self) -> bool:
        """Kill handlers that did not stop. Return whether that is possible."""
        return False

    @abstractmethod
    def renewed(self, fence_at: float, margin: float) -> None:
        """The worker's deadline moved: its handlers must have stopped at `fence_at` (steady), or soon after."""

    @abstractmethod
    def knows(self, task: str) -> bool:
        """Whether the newest code loaded here has this task."""

    def known(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Those whose task this code has."""
        unknown = {task for task in {lease.task for lease in leases} if not self.knows(task)}
        return [lease for lease in leases if lease.task not in unknown] if unknown else leases

    def status(self) -> bytes | None:
        """The encoded worker status for the worker's row."""
        return self.drawn(())

    def drawn(self, views: Sequence[RunnerView], unbegun: Sequence[str] = ()) -> bytes:
        return draw(
            views,
            unbegun,
            self.unknown,
            paused=self.signals.paused,
            tasks=self.task_names(),
            group_prefetch=self.group_prefetch,
            batches=self.batches.sizes() if self.batches.by_task else {},
            name=self.name,
            catch_all=self.catches_all,
            priority=self.priority,
            slots_from=self.slots_from,
        )

    @abstractmethod
    def task_names(self) -> Iterable[str]:
        """The names and aliases of the tasks that the newest code loaded here has."""

    def set_unknown(self, tasks: tuple[str, ...]) -> None:
        """Publish which tasks this worker does not know."""
        self.unknown = tasks
        self.signals.status_changed.set()

    # ------------------------------------------------------------------ logs and events

    def emit(self, *seen: events.Event) -> None:
        self.signals.journal.seen(*seen)
        wanted = [event for event in seen if self.wanted(event.name)]
        if wanted:
            self.deliver(wanted)

    def leases_lost(self, leases: Sequence[Lease]) -> None:
        """Log lost leases and emit an event for each."""
        self.signals.journal.leases_lost(leases)
        for lease in leases:
            logs.lease_lost(lease.id, lease.task)
        if self.signals.journal.on or self.wanted("lease_lost"):
            self.emit(*(events.LeaseLost(**events.about(lease, self.worker)) for lease in leases))

    def jobs_recovered(self, ends: Sequence[Recovered]) -> None:
        """Log and count the stalled leases that this worker recovered and emit their events."""
        self.signals.journal.recovered(ends)
        for end in ends:
            if end.counted:
                logs.job_stalled(end.id, end.task, end.worker, end.stalls, end.shared_stalls, end.state.value)
        self.emit(*events.of_recovered(ends, self.worker))

    def settled(self, lease: Lease, settlement: Settlement) -> list[events.Event]:
        """The events of a settlement that the store accepted."""
        if settlement.ending is Ending.STALLED:
            return crash_events(lease, settlement, self.worker)
        return events.of_settlement(lease, settlement, self.worker)


class InProcessRunners(Runners):
    """One runner in this process, called by the keeper from its own thread with one thread-safe call per batch.

    It monitors the handlers' loop from outside, so it notices a handler that blocks it.
    """

    def __init__(
        self, runner: Runner, hub: events.Hub, signals: Signals, task_names: Callable[[], Iterable[str]] = tuple
    ) -> None:
        super().__init__(signals)
        self._runner, self._hub, self._task_names = runner, hub, task_names
        self._context: contextvars.Context | None = None  # of handlers; None: the keeper's, which is empty

    def set_worker(self, worker: str) -> None:
        self.worker = self._runner.worker = worker

    def wanted(self, *names: str) -> bool:
        return any(self._hub.wanted(name) for name in names)

    def room(self, free: int) -> int:
        return free

    def most_by_task(self) -> Mapping[str, int]:
        return {}

    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        return False

    def knows(self, task: str) -> bool:
        return self._runner.knows(task)

    def task_names(self) -> Iterable[str]:
        return self._task_names()

    def start(self, leases: Sequence[Lease], now: int) -> None:
        self._call(self._runner.start, leases)

    def start_batch(self, leases: Sequence[Lease]) -> None:
        self._call(self._runner.start_batch, leases)

    def give_back_queued(self) -> None:
        self.gathered.give_back()
        self._call(self._runner.cut_chains)

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        leases = self.gathered.withdraw(leases)
        if leases:
            marked = [(lease.id, lease.token) for lease in leases]
            self._runner.warn(marked, reason)  # takes effect even if the loop is blocked
            self._call(self._runner.stop, marked, reason)

    def stop_all(self, reason: Stop) -> None:
        self.gathered.give_back()
        self._runner.warn_all()
        self._call(self._runner.stop_all, reason)

    def allow_starts(self) -> None:
        self._runner.barred = False

    def running(self) -> tuple[str, ...]:
        return tuple(self._runner.runs)

    def deliver(self, seen: list[events.Event]) -> None:
        self._call(self._runner.deliver, seen)

    async def stacks(self) -> list[tuple[str, str]]:
        """The stacks of the handlers' loop and of every thread that runs a handler, even if the loop is blocked."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        shown = [self._runner.thread_id, *(one for one, name in names.items() if name.startswith("holdfast-handler"))]
        parts = [f"Thread {names.get(one, '')}\n{stack_of(one)}" for one in shown if one is not None]
        return [(f"process {os.getpid()}", "\n".join(parts))]

    def renewed(self, fence_at: float, margin: float) -> None:
        pass  # nothing here could enforce it; the keeper's fence tells the handlers to stop

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._runner.loop.call_soon_threadsafe(call, *arguments, context=self._context)
        except RuntimeError:
            if not self.broken:
                self.broken = True
                logs.loop_gone(self.worker)

    # ------------------------------------------------------------------ liveness

    async def watch_forever(self) -> None:
        """Ping the handlers' loop; report each blockage once."""
        runner = self._runner
        pinged_at, expected, reported = time.monotonic(), runner.pongs, False
        while True:
            if runner.pongs >= expected:
                pinged_at, expected, reported = time.monotonic(), runner.pongs + 1, False
                self._call(runner.pong)
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            silent = time.monotonic() - pinged_at
            if runner.pongs < expected and silent > LOOP_BLOCKED_SECONDS and not reported:
                reported = True
                self._report_blocked(silent)

    def _report_blocked(self, seconds: float) -> None:
        runner = self._runner
        stack = stack_of(runner.thread_id)
        jobs = tuple(run.lease.id for run in list(runner.runs.values()) if run.task.is_async and run.entered)
        logs.loop_blocked(seconds, jobs, stack)
        self.emit(events.LoopBlocked(worker=self.worker, seconds=seconds, jobs=jobs, stack=stack))
