"""promote: brings due jobs into play, ends expired ones, revives dead letters that are due for it.

Called by backend.py for the sweep and by claim.py before it claims, within a write transaction.
"""

from __future__ import annotations

from ...dependencies import PROPAGATE_MAX
from ...records import Promoted
from . import dependencies
from .codec import SQL
from .connection import Transaction
from .groups import bring_into_play
from .operate import expire, revive_row


def promote(tx: Transaction, limit: int) -> Promoted:
    """Propagate the ends of parents, bury expired jobs, bring due ones into play, revive letters: at most `limit` in
    all. Then refill groups with a rate."""
    execute = tx.cursor.execute
    most = min(limit, PROPAGATE_MAX)
    told = dependencies.propagate(tx, most) if tx.rules.any_edge else 0
    limit = max(0, limit - told)
    expired = execute(SQL["promote.expired"], (tx.now, limit)).fetchall()
    for (job_id,) in expired:
        expire(tx, job_id)
    due = execute(SQL["promote.due"], (tx.now, limit - len(expired))).fetchall()
    for row in due:
        bring_into_play(tx, *row)
    letters = execute(SQL["promote.letters_due"], (tx.now, limit - len(expired) - len(due))).fetchall()
    revived = sum(revive_row(tx, job_id, automatic=True) for (job_id,) in letters)
    if tx.rules.any_flow:
        for queue, group in execute(SQL["promote.waking"], (tx.now, limit)).fetchall():
            tx.touch(queue, group, changed=True)
    tx.refill()
    more = told >= most or len(expired) + len(due) + len(letters) >= limit
    return Promoted(due=len(due), expired=len(expired), revived=revived, more=more)
