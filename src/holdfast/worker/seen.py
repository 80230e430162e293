"""What an accepted settlement means to listeners and to the log.

Called by the settle + claim loop. It decides nothing: the store has.
"""

from __future__ import annotations

from .. import events, logs
from ..lifecycle import Ending, Settlement, StallVerdict, stall_verdict
from ..records import Lease
from .runner import about


def seen_of(lease: Lease, settlement: Settlement, worker: str) -> list[events.Event]:
    """The events of one settlement; the log is told."""
    facts, error = about(lease, worker), settlement.failure
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
        seen += _seen_stall(lease, settlement, worker)
    return seen


def _seen_stall(lease: Lease, settlement: Settlement, worker: str) -> list[events.Event]:
    """Its process died. The store decided by the counts the lease told; only a cancel asked for is unknown here."""
    facts, alone = about(lease, worker), settlement.alone
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
    logs.job_stalled(lease.id, lease.task, worker, stalls, shared_stalls, state)
    seen: list[events.Event] = [
        events.Stalled(**facts, holder=worker, stalls=stalls, shared_stalls=shared_stalls, state=state)
    ]
    if state == "dead":
        seen.append(events.Dead(**facts, reason="crash", error=settlement.failure))
    return seen
