"""The new state of a job whose process died, and the events to emit.

Used by the keeper once the store has accepted the stall, and by the pool for its log line. Pure but for the log.
"""

from __future__ import annotations

from ... import events, logs
from ...lifecycle import Settlement, StallVerdict, stall_verdict
from ...records import Lease


def crash_events(lease: Lease, settlement: Settlement, worker: str) -> list[events.Event]:
    """The events of a process death. The worker has already logged it."""
    facts, alone = events.about(lease, worker), settlement.alone
    state = state_after_crash(lease, alone=alone)
    stalls, shared_stalls = lease.stalls + alone, lease.shared_stalls + (not alone)
    if settlement.failure is None or settlement.failure.reason != "crash":
        logs.job_stalled(lease.id, lease.task, worker, stalls, shared_stalls, state)
    seen: list[events.Event] = [
        events.Stalled(**facts, holder=worker, stalls=stalls, shared_stalls=shared_stalls, state=state)
    ]
    if state == "dead":
        reason = settlement.failure.reason if settlement.failure is not None else "crash"
        seen.append(events.Dead(**facts, reason=reason, error=settlement.failure))
    return seen


def state_after_crash(lease: Lease, *, alone: bool) -> str:
    """The job's state after its process died. The store decides by the lease's counts; only a pending cancel is unknown
    here."""
    verdict = stall_verdict(
        stalls=lease.stalls,
        shared_stalls=lease.shared_stalls,
        max_stalls=lease.max_stalls,
        alone=alone,
        begun=True,
        cancel_requested=False,
    )
    return "dead" if verdict is StallVerdict.BURY else "ready"
