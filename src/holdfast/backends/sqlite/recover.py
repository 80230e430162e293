"""recover and retire: ends the leases of workers that died, and of a worker that leaves.

Called by backend.py, and by claim.py for workers whose deadline has passed. What happens to a job is decided in
settle.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...lifecycle import State
from ...records import Recovered
from . import settle
from .codec import SQL
from .connection import Transaction


def retire(tx: Transaction, worker: str) -> int:
    rows = tx.cursor.execute(SQL["recover.leases"], (worker, -1)).fetchall()
    for row in rows:
        settle.give_back(tx, settle.as_lease(row))
    tx.cursor.execute(SQL["recover.remove"], (worker,))
    tx.close()
    return len(rows)


def recover(tx: Transaction, dead: Sequence[str], limit: int) -> tuple[list[Recovered], set[str]]:
    """End the leases of dead workers, no matter who noticed first. Also returns the workers whose rows were removed."""
    execute = tx.cursor.execute
    expired = dict(execute(SQL["recover.expired"], {"steady": tx.steady, "boot": tx.boot}).fetchall())
    for worker in dead:
        if worker not in expired and (row := execute(SQL["recover.exists"], (worker,)).fetchone()):
            expired[worker] = row[0]
    recovered: list[Recovered] = []
    gone: set[str] = set()
    for worker, isolates in sorted(expired.items()):
        # Reading one more than the limit shows whether the worker still holds leases afterwards.
        rows = execute(SQL["recover.leases"], (worker, limit - len(recovered) + 1)).fetchall()
        room = limit - len(recovered)
        recovered += [settle.recovered(tx, settle.as_lease(row), isolates=bool(isolates)) for row in rows[:room]]
        if len(rows) > room:
            break
        execute(SQL["recover.remove"], (worker,))
        gone.add(worker)
    tx.refill()
    return [_as_refilled(tx, one) for one in recovered], gone


def _as_refilled(tx: Transaction, one: Recovered) -> Recovered:
    """A grouped job was put back as waiting; the refill may have made it ready."""
    if one.state is not State.WAITING:
        return one
    [state] = tx.cursor.execute(SQL["recover.state"], (one.id,)).fetchone()
    return msgspec.structs.replace(one, state=State(state))
