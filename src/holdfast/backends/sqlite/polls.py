"""Whether a claim would find anything to do.

Called by backend.py with one snapshot of the store, for a worker that polls. Reads what claim.py reads before it writes
anything, with the same statements and the same clocks. Never writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .claim import apart_ready
from .codec import SQL
from .connection import Transaction


def nothing_to_claim(tx: Transaction, worker: str, queues: Sequence[str]) -> bool:
    """Whether a claim would change nothing but its number.

    In doubt with any flow: a claim refills groups that wake, and corrects buckets. Also with a ready job that a limit
    may hold back.
    """
    rules, execute = tx.rules, tx.cursor.execute
    if rules.any_flow or rules.rearranging or rules.closed is not None:
        return False
    if any(execute(SQL["promote.look"], {"now": tx.now, "steady": tx.steady, "boot": tx.boot}).fetchone()):
        return False
    paused = rules.paused_queues
    for queue in queues:
        if queue not in paused and execute(SQL["read.claimable"], (queue,)).fetchone() is not None:
            return False
        if queue not in paused and apart_ready(tx.cursor, rules, queue):
            return False
    return execute(SQL["claim.worker"], (worker,)).fetchone() is not None
