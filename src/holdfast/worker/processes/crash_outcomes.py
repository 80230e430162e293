"""Decides the outcome of each job of a runner process that has exited.

Called by the pool when a runner and everything it started are dead and all its frames have been read. It only decides;
the pool acts. A runner that exits without an outcome for a job it began has crashed, whatever its exit code.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

from ... import logs
from ...lifecycle import Ending, Failure, Outcome, OutcomeKind, Settlement
from ...records import Lease, Release
from ..runner.attempt import Ended, Gone, Stop, interrupted
from ..runner.outcomes import TRACEBACK_CHARS_MAX, bounded
from . import guard
from .resource_limits import OUT_OF_MEMORY
from .runner_process import RunnerProcess, Sent


@dataclass
class CrashOutcomes:
    """Outcomes of a dead runner's jobs."""

    ended: list[Ended] = field(default_factory=list)
    charged: list[tuple[Lease, Outcome]] = field(default_factory=list)  # their task's retry policy decides
    crashed: list[str] = field(default_factory=list)


def outcomes_after_exit(remote: RunnerProcess, wait_status: int, cause: int, now: float) -> CrashOutcomes:
    """Decide the outcome of each job the runner had."""
    estate = CrashOutcomes()
    evidence = ""
    how = "died with its guard" if cause == guard.BEREFT else how_it_ended(wait_status)
    for sent in remote.held.values():
        lease, began = sent.lease, remote.begun(sent)
        if sent.told is Stop.LOST:
            estate.ended.append((Gone if began else Release)(id=lease.id, token=lease.token))
        elif sent.told is Stop.CANCELLED:
            estate.ended.append(Settlement(id=lease.id, token=lease.token, ending=Ending.CANCELLED))
        elif sent.guilty is not None:
            estate.charged.append((lease, sent.guilty))
        elif began and remote.solo and (limit := _limit_hit(wait_status)):
            text = f"the attempt used up its {limit}_limit: {remote.where()} {how_it_ended(wait_status)}"
            failure = Failure(reason=limit, text=text, traceback=bounded(remote.read_evidence(), TRACEBACK_CHARS_MAX))
            estate.charged.append((lease, Outcome(kind=OutcomeKind.FAILED, failure=failure)))
        elif not began:
            estate.ended.append(Release(id=lease.id, token=lease.token))
        elif remote.spared or cause == guard.TOO_LATE or sent.told:
            estate.ended.append(interrupted(lease))
        else:
            evidence = evidence or bounded(remote.read_evidence(), TRACEBACK_CHARS_MAX)
            estate.crashed.append(lease.id)
            estate.ended.append(_crash(remote, sent, how, now - began, evidence))
    return estate


def _crash(remote: RunnerProcess, sent: Sent, how: str, seconds: float, evidence: str) -> Settlement:
    lease = sent.lease
    text = f"{remote.where()} {how} {seconds:.1f} s into the attempt, without a result"
    logs.job_crashed(lease.id, lease.task, remote.pid, how)
    return Settlement(
        id=lease.id,
        token=lease.token,
        ending=Ending.STALLED,
        alone=remote.slots == 1 and not remote.in_company,
        failure=Failure(reason="crash", text=text, traceback=evidence),
    )


def _limit_hit(wait_status: int) -> str:
    """Which resource limit ended an isolated attempt's process; "" if none did."""
    if os.WIFSIGNALED(wait_status):
        return "cpu" if os.WTERMSIG(wait_status) == signal.SIGXCPU else ""
    return "memory" if os.waitstatus_to_exitcode(wait_status) == OUT_OF_MEMORY else ""


def how_it_ended(wait_status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"ended with exit code {os.waitstatus_to_exitcode(wait_status)}"
