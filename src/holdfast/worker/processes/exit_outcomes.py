"""What a runner's exit means for its jobs. Pure; called by the pool.

Decided when the runner and everything it started are dead and all its frames have been read. A runner that exits
without an outcome for a job it began has crashed, whatever its exit code.
"""

from __future__ import annotations

import os
from collections.abc import Container

from msgspec import Struct, field

from ...context import TRACEBACK_CHARS_MAX, Ended, Gone, Outcome, OutcomeKind, Stop, bounded, interrupted
from ...lifecycle import Ending, Failure, Settlement
from ...records import Lease, Release
from ..keeper.crashes import state_after_crash
from . import guard
from .resource_limits import limit_hit
from .runner_process import Assignment, RunnerProcess, how_it_ended


class CrashOutcomes(Struct):
    """Outcomes of a dead runner's jobs."""

    ended: list[Ended] = field(default_factory=list)
    failed_by_kill: list[tuple[Lease, Outcome]] = field(default_factory=list)  # their task's retry policy decides
    crashed: list[tuple[Lease, float, str]] = field(default_factory=list)  # seconds it ran, what happens to it next
    how: str = ""  # how the runner ended


def outcomes_after_exit(
    runner: RunnerProcess, wait_status: int, cause: int, now: float, exit_fails: Container[str] = ()
) -> CrashOutcomes:
    """Decide the outcome of each job the runner had. An exit is a failure of the tasks `exit_fails`, else a crash."""
    blameless = runner.jobs_not_to_blame or cause == guard.TOO_LATE
    how = "died with its guard" if cause == guard.GUARD_DIED else how_it_ended(wait_status)
    outcomes = CrashOutcomes(how=how)
    stacks = ""
    for job in runner.jobs.values():
        lease, began = job.lease, runner.begun(job)
        if job.stop_reason is Stop.LOST:
            outcomes.ended.append((Gone if began else Release)(id=lease.id, token=lease.token))
        elif job.stop_reason is Stop.CANCELLED:
            outcomes.ended.append(Settlement(id=lease.id, token=lease.token, ending=Ending.CANCELLED))
        elif began and runner.has_succeeded(job):
            outcomes.ended.append(interrupted(lease))
        elif job.kill_outcome is not None:
            outcomes.failed_by_kill.append((lease, job.kill_outcome))
        elif began and runner.dedicated and (limit := limit_hit(wait_status)):
            text = f"the attempt used up its {limit}_limit: {runner.where()} {how_it_ended(wait_status)}"
            failure = Failure(reason=limit, text=text, traceback=bounded(runner.read_stacks(), TRACEBACK_CHARS_MAX))
            outcomes.failed_by_kill.append((lease, Outcome(kind=OutcomeKind.FAILED, failure=failure)))
        elif began and runner.dedicated and not blameless and lease.task in exit_fails and os.WIFEXITED(wait_status):
            text = f"the attempt ended its process, which counts as a failure (on_exit): {runner.where()} {how}"
            outcomes.failed_by_kill.append((lease, Outcome(kind=OutcomeKind.FAILED, failure=Failure(text=text))))
        elif not began:
            outcomes.ended.append(Release(id=lease.id, token=lease.token))
        elif blameless or job.stop_reason:
            outcomes.ended.append(interrupted(lease))
        else:
            stacks = stacks or bounded(runner.read_stacks(), TRACEBACK_CHARS_MAX)
            settlement = _crash(runner, job, how, now - began, stacks)
            outcomes.crashed.append((lease, now - began, _after_crash(lease, alone=settlement.alone)))
            outcomes.ended.append(settlement)
    return outcomes


def _crash(runner: RunnerProcess, job: Assignment, how: str, seconds: float, stacks: str) -> Settlement:
    lease = job.lease
    text = f"{runner.where()} {how}, {seconds:.1f} s into the attempt and without a result"
    return Settlement(
        id=lease.id,
        token=lease.token,
        ending=Ending.STALLED,
        alone=runner.slots == 1 and not runner.others_died_too and not runner.together.others(lease.token),
        failure=Failure(reason="crash", text=text, traceback=stacks),
    )


def _after_crash(lease: Lease, *, alone: bool) -> str:
    """What happens to a job whose process died, in words."""
    if state_after_crash(lease, alone=alone) == "dead":
        return f"it is dead now; `holdfast job {lease.id}` shows more"
    count = f"stall {lease.stalls + 1} of at most {lease.max_stalls}" if alone else "it shared the process"
    return f"it runs again, alone in a process ({count})"
