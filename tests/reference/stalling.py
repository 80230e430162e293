"""How stalls end: ONE routine decides, whether the worker reported its process dead or recover found the worker gone.

Called by lease.py (settle, claim) and backend.py (recover) inside the critical section. The verdict is the
lifecycle's; the lease ends as every lease does. It never checks a token: the verbs judge who may ask.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.lifecycle import Failure, StallVerdict, State, stall_text, stall_verdict
from holdfast.records import Recovered

from .rows import Holder, Instant, Row
from .store import RETAIN_SECONDS, Store

_INTO = {
    StallVerdict.AGAIN: State.READY,
    StallVerdict.BURY: State.DEAD,
    StallVerdict.CANCEL: State.CANCELLED,
}


def recover(store: Store, at: Instant, dead: Collection[str], limit: int) -> list[Recovered]:
    """End the leases of workers past their deadline or proved dead; the rows of those that hold nothing go."""
    ended: list[tuple[Row, str, bool]] = []
    for holder in [holder for holder in store.workers.values() if holder.record.id in dead or holder.expired(at)]:
        for row in list(reversed(holder.leases.values()))[: limit - len(ended)]:  # the last of a chain first
            if _is_behind(store, row, holder):
                ended.append((row, holder.record.id, False))
                store.give_back(row, at.wall)
                continue
            alone = row.suspect or not holder.record.isolates
            text = stall_text(
                stalls=row.stalls, shared_stalls=row.shared_stalls, max_stalls=row.max_stalls, alone=alone
            )
            failure = Failure(reason="stalled", text=text)
            ended.append((row, holder.record.id, stall(store, row, at.wall, failure, alone=alone, begun=row.begun)))
        if not holder.leases:
            del store.workers[holder.record.id]
    store.refill_touched()
    return [
        Recovered(
            id=row.id,
            task=row.task,
            queue=row.queue,
            group=row.group,
            state=row.state,
            worker=worker,
            stalls=row.stalls,
            counted=counted,
            shared_stalls=row.shared_stalls,
        )
        for row, worker, counted in ended
    ]


def _is_behind(store: Store, row: Row, holder: Holder) -> bool:
    """Whether a lease is behind another one in its chain."""
    if row.group is None or not store.strict(row.queue, row.group):
        return False
    place = (row.queue, row.group, row.claim_call)
    return any(
        (one.queue, one.group, one.claim_call) == place and one.fence < row.fence for one in holder.leases.values()
    )


def stall(
    store: Store,
    row: Row,
    wall: float,
    failure: Failure,
    *,
    alone: bool,
    begun: bool,
    retain: float = RETAIN_SECONDS,
) -> bool:
    """End one lease that stalled; returns whether that counted."""
    verdict = stall_verdict(
        stalls=row.stalls,
        shared_stalls=row.shared_stalls,
        max_stalls=row.max_stalls,
        alone=alone,
        begun=begun,
        cancel_requested=row.cancel_requested,
    )
    if row.max_stalls == 0 and not begun:
        store.give_back(row, wall)
        return False
    store.end_lease(
        row,
        wall,
        _INTO[verdict],
        counted=True,
        stalled=True,
        alone=alone,
        retain=retain,
        failure=failure,
        reason=failure.reason,
    )
    return True
