"""Turns the outcome of an attempt that did not simply succeed, and why it was asked to stop, into a settlement.

Called by the runner for each such attempt, and by the pipeline of batches. It decides; the runner hands over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...context import (
    NOT_COMMITTED,
    STOPPED,
    Ended,
    Gone,
    Outcome,
    OutcomeKind,
    ReportSink,
    Stop,
    interrupted,
    settlement_of,
    slows_queue,
    timed_out,
)
from ...lifecycle import REMOVED
from ...records import Release

if TYPE_CHECKING:
    from .attempt import Run

UNBEGUN = Outcome(kind=OutcomeKind.CANCELLED)  # stopped or taken back before its handler was called: it costs nothing


def conclude(run: Run, outcome: Outcome, error: BaseException | None, reports: ReportSink) -> Ended:
    """Decide how the attempt ends, given its outcome and why it was asked to stop, if it was."""
    lease, stop, options, kind = run.lease, run.stop, run.options, outcome.kind
    if stop is Stop.LOST:
        return Gone(lease.id, lease.token)
    if stop is Stop.CANCELLED:
        outcome, error = STOPPED, None
    elif outcome is UNBEGUN:
        return Release(id=lease.id, token=lease.token)
    elif stop is Stop.TIMED_OUT:
        outcome, error = timed_out(options.timeout, run.stack), None
    elif kind is OutcomeKind.CANCELLED or (run.context.cancelled and kind is OutcomeKind.FAILED):
        return interrupted(lease)  # we stopped it: an exception it raised on the way is not a failure
    elif error is not None and slows_queue(error):
        reports.slow_down(lease, outcome.delay or 0.0)  # stored before this outcome is settled
    elif run.context._settled and kind is OutcomeKind.RETURNED:
        outcome = NOT_COMMITTED
    end = settlement_of(lease, options, outcome, error)
    if run.context._settled and options.remove:  # the keeper removes the job if that was committed
        end = replace(end, retain=REMOVED)
    return end
