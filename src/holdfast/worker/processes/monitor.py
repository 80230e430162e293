"""The monitor: finds runners that do not respond and attempts that do not stop, and replaces or kills those runners.

Used by the pool, on the keeper's loop, where no handler can delay it. It takes back jobs that have not begun from a
runner that does not respond, or that responds but starts nothing. If a job is past its timeout and does not stop, its
runner gets no more jobs, its other jobs may finish within the grace period, and then the runner is killed: the
offending job counts as failed, the others are released. Process states come from /proc; without it, nothing is known.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ... import events, logs
from ...clock import Clock
from ...context import LOG_LINE_CHARS_MAX
from ...lifecycle import Failure, Outcome, OutcomeKind
from ...options import TaskOptions
from ...records import Lease
from ..keeper.shutdown import STOP_WITHIN_SECONDS
from ..runner.attempt import Stop
from ..runner.outcomes import TRACEBACK_CHARS_MAX, bounded
from . import protocol
from .resource_limits import STACK_BYTES, memory_of, memory_of_family
from .runner_process import DUMP_SIGNAL, RunnerProcess, Sent, Stage
from .spawner import EVIDENCE_WITHIN_SECONDS

if TYPE_CHECKING:
    from .pool import Pool

LOOK_SECONDS_BUSY = 0.1
LOOK_SECONDS_IDLE = 0.5
SILENT_SECONDS = 0.3  # without a reply: take back jobs that have not begun
BLOCKED_SECONDS = 1.0  # without a reply: log it and emit an event
BEGIN_SECONDS = 10.0  # a runner that replies but has not begun a job by then loses its unbegun jobs and is replaced
OBEY_SECONDS = 2.0  # from an attempt's timeout or the loss of its lease until its runner is due to be killed
OBEY_SECONDS_ALONE = 0.5  # the same for a timeout in a runner without other jobs
SOLO_IDLE_SECONDS = 60.0
SUCCESSOR_AGAIN_SECONDS = 5.0  # pause after a successor failed to start
MEMORY_URGENT = 1.5  # times max_memory: replace the runner now, without waiting for its successor
STOPPED_SECONDS = 5.0  # send SIGCONT to a runner that has been stopped for this long
CONTINUED_MAX = 3  # SIGCONTs before the runner is killed
DEAF_SECONDS = 5.0  # without a reply although its loop is idle: check DEAF_LOOKS times, then kill it
DEAF_LOOKS = 20
SILENT_SECONDS_MAX = 3600.0  # without a reply: kill it if several of its jobs have begun


class Monitor:
    """Watches the runners of one pool."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool, self._clock = pool, clock
        self._told: set[int] = set()  # runners reported as blocked
        self._leaving: set[int] = set()  # runners already being shut down
        self._succeeding: set[int] = set()  # runners whose successor is starting, or queued to start
        self._succession = asyncio.Lock()
        self._broken: set[int] = set()  # runners killed because they cannot reply
        self._idle_since: dict[int, float] = {}

    # ------------------------------------------------------------------ called by the pool

    def expect(self, remote: RunnerProcess, leases: Sequence[Lease]) -> None:
        """Record the timeouts of jobs just sent to a runner."""
        timeouts, held = self._pool.timeouts, remote.held
        for lease in leases:
            if lease.options is not None:
                own = TaskOptions(timeout=timeouts.get(lease.task)).for_call(lease.options)
                held[lease.token].timeout = own.timeout
            elif timeouts and lease.task in timeouts:
                held[lease.token].timeout = timeouts[lease.task]

    def told_to_stop(self, remote: RunnerProcess, sent: Sent) -> None:
        """A job was told to stop. Kill a dedicated runner now. On a shared one a lost job gets OBEY_SECONDS, while a
        cancelled one that runs in a thread may take its time."""
        if remote.solo:
            self._pool.staff.kill(remote)
        else:
            sent.told_at = self._clock.steady()

    def look_at(self, remote: RunnerProcess) -> None:
        """After jobs ended: replace the runner if it has reached max_jobs."""
        most = self._pool.staff.plan.max_jobs
        if most is None or remote.stage is not Stage.READY:
            return
        if remote.done >= max(1, int(most * remote.lifetime)):
            self.succeed(remote, f"{remote.done} jobs")

    def succeed(self, remote: RunnerProcess, why: str) -> None:
        """Replace a working runner: its successor is ready before it leaves, and only one leaves at a time."""
        if remote.solo:
            self.replace(remote, why)
        elif remote.tag not in self._succeeding:
            self._succeeding.add(remote.tag)
            self._pool.staff.spawn(self._succeed(remote, why))

    async def _succeed(self, remote: RunnerProcess, why: str) -> None:
        staff = self._pool.staff
        try:
            async with self._succession:
                if remote.stage is not Stage.READY:
                    return  # it is already leaving for another reason
                new = staff.start()
                if new is not None and await staff.ready(new):
                    if remote.stage is Stage.READY:
                        self.replace(remote, why)
                else:
                    await asyncio.sleep(SUCCESSOR_AGAIN_SECONDS)  # the old one continues until there is a new one
        finally:
            self._succeeding.discard(remote.tag)

    def replace(self, remote: RunnerProcess, why: str) -> None:
        """Start a replacement; the old runner leaves when its jobs have ended or the grace period is over."""
        if remote.tag not in self._leaving:
            logs.runner_replaced(remote.pid, why)
            self._leave(remote)
            self._pool.staff.spawn(self._see_off(remote))

    async def restart(self) -> None:
        """Rolling restart: replace all runners one by one. Each new one is ready before the old one leaves.

        If the new code cannot be imported, the old runners stay.
        """
        staff = self._pool.staff
        for old in [one for one in staff.remotes.values() if one.stage <= Stage.READY]:
            if old.solo:
                self.replace(old, "restart")
                continue
            new = staff.start()
            if new is None or not await staff.ready(new):
                if not staff.closing:
                    logs.restart_failed()
                return
            self.replace(old, "restart")
            await staff.gone(old, staff.plan.grace + STOP_WITHIN_SECONDS + 1)

    def _leave(self, remote: RunnerProcess) -> None:
        self._leaving.add(remote.tag)
        remote.stage = max(remote.stage, Stage.LEAVING)
        self._pool.staff.fill()

    # ------------------------------------------------------------------ checks

    async def watch_forever(self) -> None:
        remotes = self._pool.staff.remotes
        while True:
            busy = any(remote.held for remote in remotes.values())
            await asyncio.sleep(LOOK_SECONDS_BUSY if busy else LOOK_SECONDS_IDLE)
            now = self._clock.steady()
            self._pool.look_at_waiting(now)
            for remote in list(remotes.values()):
                if remote.stage in (Stage.READY, Stage.LEAVING):
                    self._check(remote, now)
                    guilty = [sent for sent in remote.held.values() if self._is_guilty(remote, sent, now)]
                    if guilty:
                        self._kill_runner(remote)

    def _check(self, remote: RunnerProcess, now: float) -> None:
        silent = remote.ping(now)
        was_blocked, remote.blocked = remote.blocked, silent > SILENT_SECONDS
        if remote.blocked:
            taken = [] if remote.solo else remote.take_back()
            if taken:
                logs.jobs_taken_back(remote.pid, len(taken), silent)
                self._pool.reroute(taken)
            if silent > BLOCKED_SECONDS and remote.held and remote.tag not in self._told:
                self._told.add(remote.tag)
                self._pool.staff.spawn(self._tell_blocked(remote, silent))
            self._check_vitals(remote, silent)
        else:
            remote.idle_looks = 0
            if was_blocked:
                self._told.discard(remote.tag)
                self._pool.on_room()
            self._check_begins(remote, now)
        most = self._pool.staff.plan.max_memory
        if most is not None and remote.memory > most and remote.stage is Stage.READY:
            why = f"{remote.memory >> 20} MiB of memory"
            if remote.memory > most * MEMORY_URGENT:
                self.replace(remote, why)
            else:
                self.succeed(remote, why)
        if remote.solo:
            self._check_idle(remote, now)
            self._check_memory(remote)

    def _check_vitals(self, remote: RunnerProcess, silent: float) -> None:
        """It does not reply. A handler may legitimately block it for long, but it may also be stopped or broken."""
        staff = self._pool.staff
        if staff.plan.max_memory is not None:
            remote.memory = memory_of(remote.pid)  # no Pong reports it any more
        if silent > STOPPED_SECONDS * (1 + remote.continued) and is_stopped(remote.pid):
            remote.continued += 1
            if remote.continued > CONTINUED_MAX or staff.guarding is None:
                self._kill_broken(remote, silent, "it stops itself time and again")
            else:
                logs.runner_continued(remote.pid, silent)
                staff.guarding.signal(remote.tag, signal.SIGCONT)
        elif silent > DEAF_SECONDS and waits_for_events(remote.pid):
            remote.idle_looks += 1
            if remote.idle_looks == DEAF_LOOKS:
                staff.spawn(self._end_deaf(remote, silent))
        else:
            remote.idle_looks = 0
        if silent > SILENT_SECONDS_MAX and sum(remote.begun(sent) > 0.0 for sent in remote.held.values()) > 1:
            self._kill_broken(remote, silent, "one of its jobs blocks the others")

    async def _end_deaf(self, remote: RunnerProcess, silent: float) -> None:
        """Its loop waits for events yet ignores our frames, so it cannot reply. Verify with a stack, then kill it."""
        stacks = (await self._stacks(remote)).strip().split("\n\n")
        if remote.blocked and remote.stage is not Stage.GONE and loop_is_idle(stacks[-1]):
            self._kill_broken(remote, silent, "its loop is idle and does not answer")
        else:
            remote.idle_looks = 0

    def _kill_broken(self, remote: RunnerProcess, silent: float, why: str) -> None:
        """Kill a broken runner. The jobs it had begun run again, each alone."""
        if remote.tag not in self._broken:
            self._broken.add(remote.tag)
            logs.runner_broken(remote.pid, silent, why)
            self._pool.staff.kill(remote)
            self._pool.staff.fill()

    def _check_begins(self, remote: RunnerProcess, now: float) -> None:
        """Replace a runner that responds but does not begin its jobs: something in it is broken."""
        if not any(sent.sent_at < now - BEGIN_SECONDS for sent in remote.held.values()):
            return
        late = [lease for lease in remote.unbegun(now - BEGIN_SECONDS) if not self._pool.follows(lease)]
        if late and remote.stage is Stage.READY:
            logs.jobs_not_begun(remote.pid, [lease.id for lease in late], BEGIN_SECONDS)
            remote.stage = Stage.LEAVING  # first, so that reroute does not pick it again
            taken = remote.take_back()
            self.replace(remote, "it does not begin its jobs")
            self._pool.reroute(taken)

    def _check_idle(self, remote: RunnerProcess, now: float) -> None:
        if remote.held or remote.stage is not Stage.READY:
            self._idle_since.pop(remote.tag, None)
        elif now - self._idle_since.setdefault(remote.tag, now) > SOLO_IDLE_SECONDS:
            self._pool.staff.dismiss(remote)

    def _check_memory(self, remote: RunnerProcess) -> None:
        """Enforce an isolated attempt's memory limit including its children; the process itself has an rlimit."""
        for sent in remote.held.values():
            task = self._pool.facts.get(sent.lease.task)
            most = task.memory_limit if task is not None else None
            if most is not None and sent.guilty is None and memory_of_family(remote.pid) > most + STACK_BYTES:
                text = f"the attempt used more than its memory_limit of {most} bytes: {remote.where()} was killed"
                sent.guilty = Outcome(kind=OutcomeKind.FAILED, failure=Failure(reason="memory", text=text))
                self._pool.staff.kill(remote)

    def _is_guilty(self, remote: RunnerProcess, sent: Sent, now: float) -> bool:
        """Whether a job newly requires killing its runner: it is past its timeout, or lost, and does not stop."""
        if sent.guilty is not None or (sent.timeout is None and sent.told is not Stop.LOST):
            return False
        if sent.told is Stop.LOST:
            if now < sent.told_at + OBEY_SECONDS:
                return False
            sent.guilty = Outcome(kind=OutcomeKind.CANCELLED)  # not recorded: the attempt only has to end
            return True
        began, timeout = remote.begun(sent), sent.timeout or 0.0
        if not began or now < began + timeout + (OBEY_SECONDS_ALONE if remote.solo else OBEY_SECONDS):
            return False
        logs.timeout_ignored(sent.lease.id, sent.lease.task, timeout, remote.pid)
        text = (
            f"the attempt did not end within {timeout:g} s and did not stop when told to: {remote.where()} was killed "
            f"{now - began:.1f} s after it began"
        )
        sent.guilty = Outcome(kind=OutcomeKind.TIMED_OUT, failure=Failure(reason="timeout", text=text))
        return True

    # ------------------------------------------------------------------ actions

    def _kill_runner(self, remote: RunnerProcess) -> None:
        """Take back unbegun jobs, send no more, and kill the runner in time, even if it is already leaving."""
        taken = remote.take_back()
        self._leave(remote)
        self._pool.staff.spawn(self._kill_in_time(remote))
        if taken:
            self._pool.reroute(taken)

    async def _kill_in_time(self, remote: RunnerProcess) -> None:
        """Kill the runner once only offending jobs are left, or after the grace period."""
        stacks = await self._stacks(remote)
        for sent in remote.held.values():
            if sent.guilty is not None and sent.guilty.failure is not None:
                sent.guilty = _with_stack(sent.guilty, stack_of(stacks, remote.marks.thread(sent.place)))
        await self._until_left(remote, lambda sent: sent.guilty is not None, self._pool.staff.plan.grace)
        if remote.held:
            self._pool.staff.kill(remote, spare=True)
        else:
            self._pool.staff.dismiss(remote)

    async def _see_off(self, remote: RunnerProcess) -> None:
        """Shut a runner down: wait for its jobs, then stop them, then kill it. Unfinished jobs are released."""
        if not await self._until_left(remote, lambda sent: False, self._pool.staff.plan.grace):
            remote.send(protocol.HaltAll(Stop.STOPPING))
            if not await self._until_left(remote, lambda sent: False, STOP_WITHIN_SECONDS):
                self._pool.staff.kill(remote, spare=True)
        self._pool.staff.dismiss(remote)

    async def _until_left(self, remote: RunnerProcess, may_stay: Callable[[Sent], bool], seconds: float) -> bool:
        """Wait until only jobs that may stay are left. False on timeout."""
        deadline = self._clock.steady() + seconds
        while any(not may_stay(sent) for sent in remote.held.values()):
            left = deadline - self._clock.steady()
            if left <= 0:
                return False
            remote.changed.clear()
            try:
                async with asyncio.timeout(min(left, LOOK_SECONDS_IDLE)):
                    await remote.changed.wait()
            except TimeoutError:
                pass
        return True

    async def _tell_blocked(self, remote: RunnerProcess, seconds: float) -> None:
        stacks = await self._stacks(remote)
        jobs = tuple(sent.lease.id for sent in remote.held.values() if remote.begun(sent))
        stack = bounded(stacks, TRACEBACK_CHARS_MAX)
        logs.runner_blocked(remote.pid, seconds, jobs, stack)
        pool = self._pool
        for sent in remote.held.values():
            if remote.begun(sent):
                here = bounded(stack_of(stacks, remote.marks.thread(sent.place)), LOG_LINE_CHARS_MAX)
                pool.note(
                    sent.lease, f"its runner {remote.pid} has not responded for {seconds:.1f} s. It is at:\n{here}"
                )
        pool.tell(events.LoopBlocked(worker=pool.worker, seconds=seconds, jobs=jobs, stack=stack))

    async def _stacks(self, remote: RunnerProcess) -> str:
        """Have a runner dump its threads' stacks. A C signal handler does it, even if the interpreter is stuck."""
        async with remote.dumping:  # concurrent callers must not read each other's dumps
            remote.read_evidence()  # discard earlier output
            guarding = self._pool.staff.guarding
            if guarding is None or remote.stage is Stage.GONE:
                return ""
            guarding.signal(remote.tag, DUMP_SIGNAL)
            text = ""
            deadline = self._clock.steady() + EVIDENCE_WITHIN_SECONDS
            while self._clock.steady() < deadline:
                await asyncio.sleep(0.02)
                more = remote.read_evidence()
                if text and not more:
                    break
                text += more
            return text


def _with_stack(guilty: Outcome, stack: str) -> Outcome:
    failure = guilty.failure
    if failure is None:
        return guilty
    told = Failure(reason=failure.reason, text=failure.text, traceback=bounded(stack, TRACEBACK_CHARS_MAX))
    return Outcome(kind=guilty.kind, failure=told)


def stack_of(stacks: str, thread: int) -> str:
    """One thread's part of a dump of all threads; the whole dump if it is not found."""
    parts = stacks.split("\n\n")
    return next((part for part in parts if f"0x{thread:016x}" in part.partition("\n")[0]), stacks)


# ----------------------------------------------------------------------------------------------------------------------
# Process state from /proc. A handler may legitimately hold the loop or the GIL for an unknown time. But a process that
# is stopped, or whose loop waits for events and still does not reply, will not recover by itself.


_SELECT = "selectors.py"
_LOOP_STEP = "in _run_once"


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"]


def waits_for_events(pid: int) -> bool:
    """Whether its main thread sleeps in epoll: then it is not waiting for the GIL."""
    try:
        return "epoll" in Path(f"/proc/{pid}/task/{pid}/wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def loop_is_idle(main_stack: str) -> bool:
    """Whether the main thread's stack, innermost frame first, is that of an idle event loop."""
    frames = [line for line in main_stack.splitlines() if line.lstrip().startswith("File ")]
    steps = sum(_LOOP_STEP in line for line in frames)
    return len(frames) > 1 and _SELECT in frames[0] and _LOOP_STEP in frames[1] and steps == 1
