"""Timeouts, enforced from outside: finds attempts that do not stop and runners that do not respond, and kills them.

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
from ...clock import Clock, until_tick
from ...context import LOG_LINE_CHARS_MAX, TRACEBACK_CHARS_MAX, Outcome, OutcomeKind, Stop, bounded
from ...lifecycle import Failure
from ...options import TaskOptions
from ...records import ONLY_SIGNED, Lease
from ..keeper.shutdown import STOP_WITHIN_SECONDS
from . import guard, protocol
from .resource_limits import STACK_BYTES, memory_of, memory_of_family
from .runner_process import Assignment, RunnerProcess, Stage
from .spawner import DUMP_WITHIN_SECONDS

if TYPE_CHECKING:
    from .pool import Pool

LOOK_SECONDS_BUSY = 0.1
LOOK_SECONDS_IDLE = 0.5
LOOK_SECONDS_UNUSED = 4.5  # in addition, while no runner has a job and all respond; a job ends it
SILENT_SECONDS = 0.3  # without a reply: take back jobs that have not begun
BLOCKED_SECONDS = 1.0  # without a reply: log it and emit an event
BEGIN_SECONDS = 10.0  # a runner that replies but has not begun a job by then loses its unbegun jobs and is replaced
OBEY_SECONDS = 2.0  # from an attempt's timeout or the loss of its lease until its runner is due to be killed
OBEY_SECONDS_ALONE = 0.5  # the same for a timeout in a runner without other jobs
DEDICATED_IDLE_SECONDS = 60.0
SUCCESSOR_AGAIN_SECONDS = 5.0  # pause after a successor failed to start
MEMORY_URGENT = 1.5  # times max_memory: replace the runner now, without waiting for its successor
STOPPED_SECONDS = 5.0  # send SIGCONT to a runner that has been stopped for this long
CONTINUED_MAX = 3  # SIGCONTs before the runner is killed
UNRESPONSIVE_SECONDS = 5.0  # without a reply although its loop is idle
UNRESPONSIVE_CHECKS = 20  # … at this many checks in a row: kill it
SILENT_SECONDS_MAX = 3600.0  # without a reply: kill it if several of its jobs have begun


class TimeoutMonitor:
    """Watches the runners of one pool."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool, self._clock = pool, clock
        self._blocked_reported: set[int] = set()  # runners reported as blocked
        self._leaving: set[int] = set()  # runners already being shut down
        self._being_replaced: set[int] = set()  # runners whose successor is starting, or queued to start
        self._one_at_a_time = asyncio.Lock()
        self._broken: set[int] = set()  # runners killed because they cannot reply
        self._idle_since: dict[int, float] = {}
        self._given = asyncio.Event()  # a runner was given jobs

    # ------------------------------------------------------------------ called by the pool

    def expect(self, runner: RunnerProcess, leases: Sequence[Lease]) -> None:
        """Record the timeouts of jobs just sent to a runner."""
        self._given.set()
        pool, jobs = self._pool, runner.jobs
        timeouts, any_other = pool.timeouts, None if pool.catch_all is None else pool.catch_all.timeout
        for lease in leases:
            timeout = timeouts.get(lease.task) if timeouts else None
            if any_other is not None and lease.task not in pool.facts:
                timeout = any_other
            if lease.options is not None and not lease.options.startswith(ONLY_SIGNED):
                timeout = TaskOptions(timeout=timeout).for_call(lease.options).timeout
            if timeout is not None:
                jobs[lease.token].timeout = timeout

    def stop_sent(self, runner: RunnerProcess, job: Assignment) -> None:
        """A job was told to stop. Kill a dedicated runner now. On a shared one a lost job gets OBEY_SECONDS, while a
        cancelled one that runs in a thread may take its time."""
        if runner.dedicated:
            self._pool.spawner.kill(runner)
        else:
            job.stop_sent_at = self._clock.steady()

    def check_max_jobs(self, runner: RunnerProcess) -> None:
        """After jobs ended: replace the runner if it has reached max_jobs."""
        most = self._pool.spawner.plan.max_jobs
        if most is None or runner.stage is not Stage.READY:
            return
        if runner.done >= max(1, int(most * runner.lifetime)):
            self.replace_when_ready(runner, f"{runner.done} jobs")

    def replace_when_ready(self, runner: RunnerProcess, why: str) -> None:
        """Replace a working runner: its successor is ready before it leaves, and only one leaves at a time."""
        if runner.dedicated:
            self.replace(runner, why)
        elif runner.tag not in self._being_replaced:
            self._being_replaced.add(runner.tag)
            self._pool.spawner.spawn(self._replace_when_ready(runner, why))

    async def _replace_when_ready(self, runner: RunnerProcess, why: str) -> None:
        spawner = self._pool.spawner
        try:
            async with self._one_at_a_time:
                if runner.stage is not Stage.READY:
                    return  # it is already leaving for another reason
                new = spawner.start()
                if new is not None and await spawner.ready(new):
                    if runner.stage is Stage.READY:
                        self.replace(runner, why)
                else:
                    await asyncio.sleep(SUCCESSOR_AGAIN_SECONDS)  # the old one continues until there is a new one
        finally:
            self._being_replaced.discard(runner.tag)

    def replace(self, runner: RunnerProcess, why: str) -> None:
        """Start a replacement; the old runner leaves when its jobs have ended or the grace period is over."""
        if runner.tag not in self._leaving:
            logs.runner_replaced(runner.pid, why)
            self._leave(runner)
            if runner.waiting:
                self._pool.reroute(self._pool.take_back(runner))
            self._pool.spawner.spawn(self._shut_down(runner))

    async def restart(self) -> None:
        """Rolling restart: replace all runners one by one. Each new one is ready before the old one leaves.

        If the new code cannot be imported, the old runners stay.
        """
        spawner = self._pool.spawner
        for old in [runner for runner in spawner.runners.values() if runner.stage <= Stage.READY]:
            if old.dedicated:
                self.replace(old, "restart")
                continue
            new = spawner.start()
            if new is None or not await spawner.ready(new):
                if not spawner.closing:
                    logs.restart_failed()
                return
            self.replace(old, "restart")
            await spawner.gone(old, spawner.plan.grace + STOP_WITHIN_SECONDS + 1)

    def _leave(self, runner: RunnerProcess) -> None:
        self._leaving.add(runner.tag)
        runner.stage = max(runner.stage, Stage.LEAVING)
        self._pool.spawner.fill()

    # ------------------------------------------------------------------ checks

    async def watch_forever(self) -> None:
        runners = self._pool.spawner.runners
        while True:
            busy = any(runner.jobs for runner in runners.values())
            if not busy and self._pool.unused():
                await self._until_given()
            await asyncio.sleep(LOOK_SECONDS_BUSY if busy else until_tick(LOOK_SECONDS_IDLE))
            now = self._clock.steady()
            self._pool.check_waiting(now)
            for runner in list(runners.values()):
                if runner.stage in (Stage.READY, Stage.LEAVING):
                    self._check(runner, now)
                    to_kill = [job for job in runner.jobs.values() if self._must_be_killed(runner, job, now)]
                    if to_kill:
                        self._kill_runner(runner)

    async def _until_given(self) -> None:
        self._given.clear()
        try:
            async with asyncio.timeout(until_tick(LOOK_SECONDS_UNUSED)):
                await self._given.wait()
        except TimeoutError:
            pass

    def _check(self, runner: RunnerProcess, now: float) -> None:
        silent = runner.ping(now)
        was_blocked, runner.blocked = runner.blocked, silent > SILENT_SECONDS
        if runner.blocked:
            taken = [] if runner.dedicated else self._pool.take_back(runner)
            if taken:
                logs.jobs_taken_back(runner.pid, len(taken), silent)
                self._pool.reroute(taken)
            if silent > BLOCKED_SECONDS and runner.jobs and runner.tag not in self._blocked_reported:
                self._blocked_reported.add(runner.tag)
                self._pool.spawner.spawn(self._report_blocked(runner, silent))
            self._check_vitals(runner, silent)
        else:
            runner.idle_checks = 0
            if was_blocked:
                self._blocked_reported.discard(runner.tag)
                self._pool.signals.claim_again()
            self._pool.check_queued(runner, now)
            self._check_begins(runner, now)
        most = self._pool.spawner.plan.max_memory
        if most is not None and runner.memory > most and runner.stage is Stage.READY:
            why = f"{runner.memory >> 20} MiB of memory"
            if runner.memory > most * MEMORY_URGENT:
                self.replace(runner, why)
            else:
                self.replace_when_ready(runner, why)
        if runner.dedicated:
            self._check_idle(runner, now)
            self._check_memory(runner)

    def _check_vitals(self, runner: RunnerProcess, silent: float) -> None:
        """It does not reply. A handler may legitimately block it for long, but it may also be stopped or broken."""
        spawner = self._pool.spawner
        if spawner.plan.max_memory is not None:
            runner.memory = memory_of(runner.pid)  # no Pong reports it any more
        if silent > STOPPED_SECONDS * (1 + runner.continued) and is_stopped(runner.pid):
            runner.continued += 1
            if runner.continued > CONTINUED_MAX or spawner.guard_client is None:
                self._kill_broken(runner, silent, "it stops itself again and again")
            else:
                logs.runner_continued(runner.pid, silent)
                spawner.guard_client.signal(runner.tag, signal.SIGCONT)
        elif silent > UNRESPONSIVE_SECONDS and waits_for_events(runner.pid):
            runner.idle_checks += 1
            if runner.idle_checks == UNRESPONSIVE_CHECKS:
                spawner.spawn(self._kill_unresponsive(runner, silent))
        else:
            runner.idle_checks = 0
        if silent > SILENT_SECONDS_MAX and sum(runner.begun(job) > 0.0 for job in runner.jobs.values()) > 1:
            self._kill_broken(runner, silent, "one of its jobs blocks the others")

    async def _kill_unresponsive(self, runner: RunnerProcess, silent: float) -> None:
        """Its loop waits for events yet ignores our frames, so it cannot reply. Verify with a stack, then kill it."""
        stacks = (await self.stacks(runner)).strip().split("\n\n")
        if runner.blocked and runner.stage is not Stage.GONE and loop_is_idle(stacks[-1]):
            self._kill_broken(runner, silent, "its loop is idle and does not answer")
        else:
            runner.idle_checks = 0

    def _kill_broken(self, runner: RunnerProcess, silent: float, why: str) -> None:
        """Kill a broken runner. The jobs it had begun run again, each alone."""
        if runner.tag not in self._broken:
            self._broken.add(runner.tag)
            logs.runner_broken(runner.pid, silent, why)
            self._pool.spawner.kill(runner)
            self._pool.spawner.fill()

    def _check_begins(self, runner: RunnerProcess, now: float) -> None:
        """Replace a runner that responds but does not begin its jobs: something in it is broken."""
        if not any(job.sent_at < now - BEGIN_SECONDS for job in runner.jobs.values()):
            return
        late = [lease for lease in runner.unbegun(now - BEGIN_SECONDS) if not self._pool.follows(lease)]
        if late and runner.stage is Stage.READY:
            logs.jobs_not_begun(runner.pid, [lease.id for lease in late], BEGIN_SECONDS)
            runner.stage = Stage.LEAVING  # first, so that reroute does not pick it again
            taken = self._pool.take_back(runner)
            self.replace(runner, "it does not begin its jobs")
            self._pool.reroute(taken)

    def _check_idle(self, runner: RunnerProcess, now: float) -> None:
        if runner.jobs or runner.stage is not Stage.READY:
            self._idle_since.pop(runner.tag, None)
        elif now - self._idle_since.setdefault(runner.tag, now) > DEDICATED_IDLE_SECONDS:
            self._pool.spawner.quit(runner)

    def _check_memory(self, runner: RunnerProcess) -> None:
        """Enforce an isolated attempt's memory limit including its children; the process itself has an rlimit."""
        for job in runner.jobs.values():
            task = self._pool.facts.get(job.lease.task)
            most = task.memory_limit if task is not None else None
            if most is not None and job.kill_outcome is None and memory_of_family(runner.pid) > most + STACK_BYTES:
                text = f"the attempt used more than its memory_limit of {most} bytes: {runner.where()} was killed"
                job.kill_outcome = Outcome(kind=OutcomeKind.FAILED, failure=Failure(reason="memory", text=text))
                self._pool.spawner.kill(runner)

    def _must_be_killed(self, runner: RunnerProcess, job: Assignment, now: float) -> bool:
        """Whether a job newly requires killing its runner: it is past its timeout, or lost, and does not stop."""
        if job.kill_outcome is not None or (job.timeout is None and job.stop_reason is not Stop.LOST):
            return False
        if job.stop_reason is Stop.LOST:
            if now < job.stop_sent_at + OBEY_SECONDS:
                return False
            job.kill_outcome = Outcome(kind=OutcomeKind.CANCELLED)  # not recorded: the attempt only has to end
            return True
        began, timeout = runner.begun(job), job.timeout or 0.0
        if not began or now < began + timeout + (OBEY_SECONDS_ALONE if runner.dedicated else OBEY_SECONDS):
            return False
        logs.timeout_ignored(job.lease.id, job.lease.task, timeout, runner.pid)
        text = (
            f"the attempt did not end within {timeout:g} s and did not stop when asked to: {runner.where()} was killed "
            f"{now - began:.1f} s after it began"
        )
        job.kill_outcome = Outcome(kind=OutcomeKind.TIMED_OUT, failure=Failure(reason="timeout", text=text))
        return True

    # ------------------------------------------------------------------ actions

    def _kill_runner(self, runner: RunnerProcess) -> None:
        """Take back unbegun jobs, send no more, and kill the runner in time, even if it is already leaving."""
        taken = self._pool.take_back(runner)
        self._leave(runner)
        self._pool.spawner.spawn(self._kill_in_time(runner))
        if taken:
            self._pool.reroute(taken)

    async def _kill_in_time(self, runner: RunnerProcess) -> None:
        """Kill the runner once only offending jobs are left, or after the grace period."""
        stacks = await self.stacks(runner)
        for job in runner.jobs.values():
            if job.kill_outcome is not None and job.kill_outcome.failure is not None:
                job.kill_outcome = _with_stack(job.kill_outcome, stack_of(stacks, runner.begin_flags.thread(job.flag)))
        await self._until_left(runner, lambda job: job.kill_outcome is not None, self._pool.spawner.plan.grace)
        if runner.jobs:
            self._pool.spawner.kill(runner, jobs_not_to_blame=True)
        else:
            self._pool.spawner.quit(runner)

    async def _shut_down(self, runner: RunnerProcess) -> None:
        """Shut a runner down: wait for its jobs, then stop them, then kill it. Unfinished jobs are released."""
        if not await self._until_left(runner, lambda job: False, self._pool.spawner.plan.grace):
            runner.send(protocol.HaltAll(Stop.STOPPING))
            if not await self._until_left(runner, lambda job: False, STOP_WITHIN_SECONDS):
                self._pool.spawner.kill(runner, jobs_not_to_blame=True)
        self._pool.spawner.quit(runner)

    async def _until_left(self, runner: RunnerProcess, may_stay: Callable[[Assignment], bool], seconds: float) -> bool:
        """Wait until only jobs that may stay are left. False on timeout."""
        deadline = self._clock.steady() + seconds
        while any(not may_stay(job) for job in runner.jobs.values()):
            left = deadline - self._clock.steady()
            if left <= 0:
                return False
            runner.changed.clear()
            try:
                async with asyncio.timeout(min(left, LOOK_SECONDS_IDLE)):
                    await runner.changed.wait()
            except TimeoutError:
                pass
        return True

    async def _report_blocked(self, runner: RunnerProcess, seconds: float) -> None:
        stacks = await self.stacks(runner)
        jobs = tuple(job.lease.id for job in runner.jobs.values() if runner.begun(job))
        stack = bounded(stacks, TRACEBACK_CHARS_MAX)
        logs.runner_blocked(runner.pid, seconds, jobs, stack)
        pool = self._pool
        for job in runner.jobs.values():
            if runner.begun(job):
                here = bounded(stack_of(stacks, runner.begin_flags.thread(job.flag)), LOG_LINE_CHARS_MAX)
                pool.log_line(
                    job.lease, f"its runner {runner.pid} has not responded for {seconds:.1f} s. It is at:\n{here}"
                )
        pool.emit(events.LoopBlocked(worker=pool.worker, seconds=seconds, jobs=jobs, stack=stack))

    async def stacks(self, runner: RunnerProcess) -> str:
        """Have a runner dump its threads' stacks. A C signal handler does it, even if the interpreter is stuck."""
        async with runner.dumping:  # concurrent callers must not read each other's dumps
            runner.read_stacks()  # discard earlier output
            guard_client = self._pool.spawner.guard_client
            if guard_client is None or runner.stage is Stage.GONE:
                return ""
            guard_client.signal(runner.tag, guard.DUMP_SIGNAL)
            text = ""
            deadline = self._clock.steady() + DUMP_WITHIN_SECONDS
            while self._clock.steady() < deadline:
                await asyncio.sleep(0.02)
                more = runner.read_stacks()
                if text and not more:
                    break
                text += more
            return text


def _with_stack(kill_outcome: Outcome, stack: str) -> Outcome:
    failure = kill_outcome.failure
    if failure is None:
        return kill_outcome
    failure = Failure(reason=failure.reason, text=failure.text, traceback=bounded(stack, TRACEBACK_CHARS_MAX))
    return Outcome(kind=kill_outcome.kind, failure=failure)


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
