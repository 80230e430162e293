"""What the keeper and its runners are to each other: `Runners`, which the keeper calls, and `Signals`, which they set.

Runners has two implementations: `InProcessRunners` here, for the embedded worker, and processes/pool.py, with a guard
over processes. It also has the log lines and events about leases, which both share. Nothing here waits for a runner,
which a handler may be blocking.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ... import events, logs
from ...context import Ended, Stop, stack_of
from ...errors import StoreSealed
from ...lifecycle import Ending, Settlement, StallVerdict, stall_verdict
from ...records import Lease, Recovered
from ...worker_status import draw

if TYPE_CHECKING:
    from ..runner.attempt import Runner

LOOP_BLOCKED_SECONDS = 1.0
LOOK_EVERY_SECONDS = 0.25


class Signals:
    """What runners and the keeper's parts tell the keeper's loops, without knowing them.

    Created by the worker, given to its runners and its keeper. `post`, `report_soon` and `call` are thread-safe;
    everything else is for the keeper's loop.
    """

    def __init__(self) -> None:
        self.ended: deque[Ended] = deque()  # attempts that ended, for the exchange loop
        self.wake = asyncio.Event()  # the exchange loop has something to do
        self.claim_due = True  # the last claim filled all slots, or jobs may have become claimable since
        self.alive_at = 0.0  # steady time of the exchange loop's last iteration or retry, for the watchdog
        self.status_changed = asyncio.Event()  # the lease renewal should publish the worker status soon
        self.reports_due = asyncio.Event()  # a report cannot wait for the next flush
        self.closing = False  # no more claims
        self.paused = False  # no claims until an operator resumes this worker
        self.abandon = asyncio.Event()  # end even if the store does not respond and outcomes are unsettled
        self.sealed: StoreSealed | None = None  # the store is being moved: the reason this worker ends
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

    def report_soon(self) -> None:
        """Write pending reports now."""
        self.call(self.reports_due.set)

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


class Runners(ABC):
    """The runners as the keeper sees them."""

    isolates: ClassVar[bool] = False  # can run suspect jobs alone in a process
    in_processes: ClassVar[bool] = False  # handlers do not share the keeper's GIL

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self.worker = ""  # the worker's id
        self.unknown: tuple[str, ...] = ()  # unknown tasks this worker was given jobs of
        self.broken = False  # no job can be run any more

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

    @abstractmethod
    def most_by_task(self) -> Mapping[str, int]:
        """Per-task maximum for the next claim. Contains only tasks with a limited number of slots."""

    @abstractmethod
    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        """Whether a claim with these caps that brought these leases may have left jobs for an immediate next one."""

    @abstractmethod
    def start(self, leases: Sequence[Lease]) -> None: ...

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

    def status(self) -> bytes | None:
        """The encoded worker status for the worker's row; None if there is nothing to show."""
        paused = self.signals.paused
        return draw((), unknown=self.unknown, paused=paused) if self.unknown or paused else None

    def set_unknown(self, tasks: tuple[str, ...]) -> None:
        """Publish which tasks this worker does not know."""
        self.unknown = tasks
        self.signals.status_changed.set()

    # ------------------------------------------------------------------ logs and events

    def emit(self, *seen: events.Event) -> None:
        wanted = [event for event in seen if self.wanted(event.name)]
        if wanted:
            self.deliver(wanted)

    def leases_lost(self, leases: Sequence[Lease]) -> None:
        """Log lost leases and emit an event for each."""
        for lease in leases:
            logs.lease_lost(lease.id, lease.task)
        if self.wanted("lease_lost"):
            self.emit(*(events.LeaseLost(**events.about(lease, self.worker)) for lease in leases))

    def jobs_recovered(self, ends: Sequence[Recovered]) -> None:
        """Log the stalled leases that this worker recovered and emit their events."""
        seen: list[events.Event] = []
        for end in ends:
            if not end.counted:
                continue
            state = end.state.value
            logs.job_stalled(end.id, end.task, end.worker, end.stalls, end.shared_stalls, state)
            facts: dict[str, Any] = {
                "job_id": end.id,
                "task": end.task,
                "queue": end.queue,
                "group": end.group,
                "worker": self.worker,
            }
            seen.append(
                events.Stalled(
                    **facts, holder=end.worker, stalls=end.stalls, shared_stalls=end.shared_stalls, state=state
                )
            )
            if state == "dead":
                seen.append(events.Dead(**facts, reason="stalled"))
            elif state == "cancelled":
                seen.append(events.Cancelled(**facts))
        self.emit(*seen)

    def settled(self, lease: Lease, settlement: Settlement) -> list[events.Event]:
        """Log a settlement that the store accepted, and return its events."""
        facts, error = events.about(lease, self.worker), settlement.failure
        ending, kind = settlement.ending, error.type if error is not None else ""
        seen: list[events.Event] = []
        if settlement.failed:
            failures, again = lease.failures + 1, ending is Ending.RETRY
            seen.append(events.Failed(**facts, failures=failures, error=error, will_retry=again))
            if again:
                reason = error.reason if error is not None else ""
                logs.attempt_failed(lease.id, lease.task, lease.attempt, kind or reason, settlement.delay)
                seen.append(events.Retrying(**facts, failures=failures, delay=settlement.delay, error=error))
        if ending is Ending.SUCCEEDED:
            seen.append(events.Succeeded(**facts))
        elif ending is Ending.BURIED:
            logs.job_dead(lease.id, lease.task, settlement.reason or "", kind)
            seen.append(events.Dead(**facts, reason=settlement.reason or "", error=error))
        elif ending is Ending.CANCELLED:
            seen.append(events.Cancelled(**facts))
        elif ending is Ending.STALLED:
            seen += self._crashed(lease, settlement)
        return seen

    def _crashed(self, lease: Lease, settlement: Settlement) -> list[events.Event]:
        """Events of a process death. The store decides by the lease's counts; only a pending cancel is unknown here."""
        facts, alone = events.about(lease, self.worker), settlement.alone
        verdict = stall_verdict(
            stalls=lease.stalls,
            shared_stalls=lease.shared_stalls,
            max_stalls=lease.max_stalls,
            alone=alone,
            begun=True,
            cancel_requested=False,
        )
        state = "dead" if verdict is StallVerdict.BURY else "ready"
        stalls, shared_stalls = lease.stalls + alone, lease.shared_stalls + (not alone)
        logs.job_stalled(lease.id, lease.task, self.worker, stalls, shared_stalls, state)
        holder = self.worker
        seen: list[events.Event] = [
            events.Stalled(**facts, holder=holder, stalls=stalls, shared_stalls=shared_stalls, state=state)
        ]
        if state == "dead":
            reason = settlement.failure.reason if settlement.failure is not None else "crash"
            seen.append(events.Dead(**facts, reason=reason, error=settlement.failure))
        return seen


class InProcessRunners(Runners):
    """One runner in this process, called by the keeper from its own thread with one thread-safe call per batch.

    It monitors the handlers' loop from outside, so it notices a handler that blocks it.
    """

    def __init__(self, runner: Runner, hub: events.Hub, signals: Signals) -> None:
        super().__init__(signals)
        self._runner, self._hub = runner, hub

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

    def start(self, leases: Sequence[Lease]) -> None:
        self._call(self._runner.start, leases)

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        if leases:
            marked = [(lease.id, lease.token) for lease in leases]
            self._runner.warn(marked, reason)  # takes effect even if the loop is blocked
            self._call(self._runner.stop, marked, reason)

    def stop_all(self, reason: Stop) -> None:
        self._runner.warn_all()
        self._call(self._runner.stop_all, reason)

    def allow_starts(self) -> None:
        self._runner.barred = False

    def running(self) -> tuple[str, ...]:
        return tuple(self._runner.runs)

    def deliver(self, seen: list[events.Event]) -> None:
        self._call(self._runner.deliver, seen)

    async def stacks(self) -> list[tuple[str, str]]:
        """Of the handlers' loop and of every thread that runs a handler, here and now: a blocked loop shows, too."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        shown = [self._runner.thread_id, *(one for one, name in names.items() if name.startswith("holdfast-handler"))]
        parts = [f"Thread {names.get(one, '')}\n{stack_of(one)}" for one in shown if one is not None]
        return [(f"process {os.getpid()}", "\n".join(parts))]

    def renewed(self, fence_at: float, margin: float) -> None:
        pass  # nothing here could enforce it; the keeper's fence tells the handlers to stop

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._runner.loop.call_soon_threadsafe(call, *arguments)
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
