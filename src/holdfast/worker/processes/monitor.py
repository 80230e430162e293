"""The overseer: sees which runner does not respond, which attempt does not obey, and what has to be done about it.

Used by the pool, on the keeper's loop: nothing a handler does can hold it up. From a runner that does not respond, or
that responds and begins nothing, it takes back what has not begun. A job that is past its timeout and does not stop
costs its runner: that gets no more jobs, the others there may finish within the grace, then it is killed; the guilty
job is charged, the others are given back.
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
SILENT_SECONDS = 0.3  # after this what a runner has not begun is taken back
BLOCKED_SECONDS = 1.0  # after this it is told
BEGIN_SECONDS = 10.0  # after this what a runner that responds has not begun is taken back, and it is replaced
OBEY_SECONDS = 2.0  # from an attempt's timeout, or from being told to stop, to its runner's end
OBEY_SECONDS_ALONE = 0.5  # where nobody else would be hurt
SOLO_IDLE_SECONDS = 60.0
SUCCESSOR_AGAIN_SECONDS = 5.0  # after one that could not start
MEMORY_URGENT = 1.5  # of max_memory: it leaves at once, before its successor is ready
STOPPED_SECONDS = 5.0  # after this a runner that was stopped is continued
CONTINUED_MAX = 3  # … so often; then it is killed
DEAF_SECONDS = 5.0  # after this a runner whose loop is idle and does not answer is killed
DEAF_LOOKS = 20
SILENT_SECONDS_MAX = 3600.0  # after this one that does not answer is killed, if several jobs had begun there


class Monitor:
    """Watches the runners of one pool."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool, self._clock = pool, clock
        self._told: set[int] = set()  # runners whose silence was told
        self._leaving: set[int] = set()  # runners somebody sees off already
        self._succeeding: set[int] = set()  # runners whose successor is on its way, or waits for its turn
        self._succession = asyncio.Lock()
        self._broken: set[int] = set()  # runners that were killed because they cannot answer
        self._idle_since: dict[int, float] = {}

    # ------------------------------------------------------------------ what the pool tells

    def expect(self, remote: RunnerProcess, leases: Sequence[Lease]) -> None:
        """These were sent: look whether they end in time."""
        timeouts, held = self._pool.timeouts, remote.held
        for lease in leases:
            if lease.options is not None:
                own = TaskOptions(timeout=timeouts.get(lease.task)).for_call(lease.options)
                held[lease.token].timeout = own.timeout
            elif timeouts and lease.task in timeouts:
                held[lease.token].timeout = timeouts[lease.task]

    def told_to_stop(self, remote: RunnerProcess, sent: Sent) -> None:
        """A job was told to stop: see that it does. Cancelled in a thread it may take its time; alone it may not."""
        if remote.solo:
            self._pool.staff.kill(remote)
        else:
            sent.told_at = self._clock.steady()

    def look_at(self, remote: RunnerProcess) -> None:
        """Some of its jobs ended: has it done its share?"""
        most = self._pool.staff.plan.max_jobs
        if most is None or remote.stage is not Stage.READY:
            return
        if remote.done >= max(1, int(most * remote.lifetime)):
            self.succeed(remote, f"{remote.done} jobs")

    def succeed(self, remote: RunnerProcess, why: str) -> None:
        """Replace a runner that is still of use: its successor is ready before it leaves, and one leaves at a time."""
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
                    return  # it has left for another reason meanwhile
                new = staff.start()
                if new is not None and await staff.ready(new):
                    if remote.stage is Stage.READY:
                        self.replace(remote, why)
                else:
                    await asyncio.sleep(SUCCESSOR_AGAIN_SECONDS)  # the old one goes on until there is another
        finally:
            self._succeeding.discard(remote.tag)

    def replace(self, remote: RunnerProcess, why: str) -> None:
        """Have another runner in its place; it leaves when its jobs have ended, or the grace is over."""
        if remote.tag not in self._leaving:
            logs.runner_replaced(remote.pid, why)
            self._leave(remote)
            self._pool.staff.spawn(self._see_off(remote))

    async def restart(self) -> None:
        """Replace all runners, one after the other: the new one is ready before the old one leaves.

        Where the new code cannot be imported the old runners stay.
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

    # ------------------------------------------------------------------ looking

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
        """It does not answer. A handler may hold it for long; but it may be stopped, or out of its mind."""
        staff = self._pool.staff
        if staff.plan.max_memory is not None:
            remote.memory = memory_of(remote.pid)  # it does not tell any more
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
        """Its loop waits for events, and what it is told is one: it cannot answer any more. Make sure, and end it."""
        stacks = (await self._stacks(remote)).strip().split("\n\n")
        if remote.blocked and remote.stage is not Stage.GONE and loop_is_idle(stacks[-1]):
            self._kill_broken(remote, silent, "its loop is idle and does not answer")
        else:
            remote.idle_looks = 0

    def _kill_broken(self, remote: RunnerProcess, silent: float, why: str) -> None:
        """What it had begun runs again, each job alone."""
        if remote.tag not in self._broken:
            self._broken.add(remote.tag)
            logs.runner_broken(remote.pid, silent, why)
            self._pool.staff.kill(remote)
            self._pool.staff.fill()

    def _check_begins(self, remote: RunnerProcess, now: float) -> None:
        """It responds; but does it begin what it was given? If not, something in it is broken, and it is replaced."""
        if not any(sent.sent_at < now - BEGIN_SECONDS for sent in remote.held.values()):
            return
        late = [lease for lease in remote.unbegun(now - BEGIN_SECONDS) if not self._pool.follows(lease)]
        if late and remote.stage is Stage.READY:
            logs.jobs_not_begun(remote.pid, [lease.id for lease in late], BEGIN_SECONDS)
            remote.stage = Stage.LEAVING  # before they are given to somebody else
            taken = remote.take_back()
            self.replace(remote, "it does not begin its jobs")
            self._pool.reroute(taken)

    def _check_idle(self, remote: RunnerProcess, now: float) -> None:
        if remote.held or remote.stage is not Stage.READY:
            self._idle_since.pop(remote.tag, None)
        elif now - self._idle_since.setdefault(remote.tag, now) > SOLO_IDLE_SECONDS:
            self._pool.staff.dismiss(remote)

    def _check_memory(self, remote: RunnerProcess) -> None:
        """What an isolated attempt's children use is held to its limit here; its own process sees to itself."""
        for sent in remote.held.values():
            task = self._pool.facts.get(sent.lease.task)
            most = task.memory_limit if task is not None else None
            if most is not None and sent.guilty is None and memory_of_family(remote.pid) > most + STACK_BYTES:
                text = f"the attempt used more than its memory_limit of {most} bytes: {remote.where()} was killed"
                sent.guilty = Outcome(kind=OutcomeKind.FAILED, failure=Failure(reason="memory", text=text))
                self._pool.staff.kill(remote)

    def _is_guilty(self, remote: RunnerProcess, sent: Sent, now: float) -> bool:
        """Whether a job has just now cost its runner: past its timeout, or lost, and it does not stop."""
        if sent.guilty is not None or (sent.timeout is None and sent.told is not Stop.LOST):
            return False
        if sent.told is Stop.LOST:
            if now < sent.told_at + OBEY_SECONDS:
                return False
            sent.guilty = Outcome(kind=OutcomeKind.CANCELLED)  # nothing is recorded of it, it only has to end
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

    # ------------------------------------------------------------------ doing something about it

    def _kill_runner(self, remote: RunnerProcess) -> None:
        """Its runner gets no more jobs and is killed; somebody else may be waiting to do so already."""
        taken = remote.take_back()
        self._leave(remote)
        self._pool.staff.spawn(self._kill_in_time(remote))
        if taken:
            self._pool.reroute(taken)

    async def _kill_in_time(self, remote: RunnerProcess) -> None:
        """Kill once only the guilty are left, at the latest after the grace."""
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
        """Let a runner end in order: its jobs end, or are given back, or it is killed and they are given back."""
        if not await self._until_left(remote, lambda sent: False, self._pool.staff.plan.grace):
            remote.send(protocol.HaltAll(Stop.STOPPING))
            if not await self._until_left(remote, lambda sent: False, STOP_WITHIN_SECONDS):
                self._pool.staff.kill(remote, spare=True)
        self._pool.staff.dismiss(remote)

    async def _until_left(self, remote: RunnerProcess, may_stay: Callable[[Sent], bool], seconds: float) -> bool:
        """Wait until only jobs that may stay are left; False when time ran out."""
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
        """Have a runner write where its threads are; the signal's handler does it, however stuck the interpreter is."""
        async with remote.dumping:  # one who asks must not read what another asked for
            remote.read_evidence()  # what was there before
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
    """Of a dump of all threads the part about one; all of it where that cannot be found."""
    parts = stacks.split("\n\n")
    return next((part for part in parts if f"0x{thread:016x}" in part.partition("\n")[0]), stacks)


# ----------------------------------------------------------------------------------------------------------------------
# How a runner process is, read off the system: stopped, or idle although it does not answer.
#
# Used by the overseer for runners that do not respond. Reads /proc; on systems without it, it knows nothing. A handler
# may legally hold the loop or the interpreter for long, and nobody can tell for how long; but a process that is
# stopped, or whose loop waits for events and does not answer, will not get better by itself.


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
    """Whether its main thread sleeps in the kernel until an event comes: it does not wait for the interpreter then."""
    try:
        return "epoll" in Path(f"/proc/{pid}/task/{pid}/wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def loop_is_idle(main_stack: str) -> bool:
    """Whether a stack of the main thread, innermost first, is that of a loop without anything to do."""
    frames = [line for line in main_stack.splitlines() if line.lstrip().startswith("File ")]
    steps = sum(_LOOP_STEP in line for line in frames)
    return len(frames) > 1 and _SELECT in frames[0] and _LOOP_STEP in frames[1] and steps == 1
