"""prune: removes jobs past their retention, what the tasks' rules do not keep, idle buckets, and ids of deleted jobs.

Called by backend.py inside a write transaction. It never removes a job finished within REMEMBER_SECONDS_MIN, one whose
key's window has not passed, or a letter whose job is live.
"""

from __future__ import annotations

from ...records import REMEMBER_SECONDS_MIN
from . import dependencies, steps
from .codec import SQL
from .connection import Transaction

FLOWS_PER_PRUNE_MAX = 10_000
IDS_PER_PRUNE_MAX = 10_000

Rows = list[tuple[int]]


def prune(tx: Transaction, limit: int, older_than: float | None) -> int:
    tx.refuse_sealed()
    tx.cursor.execute(SQL["prune.flows"], (tx.now, tx.now, FLOWS_PER_PRUNE_MAX))
    tx.cursor.execute(SQL["delete.forget"], (tx.now, IDS_PER_PRUNE_MAX))
    if older_than is None:
        rows = tx.cursor.execute(SQL["prune.past"], (tx.now, limit)).fetchall()
    else:
        before = tx.now - max(older_than, REMEMBER_SECONDS_MIN)
        rows = tx.cursor.execute(SQL["prune.older"], (before, tx.now, limit)).fetchall()
    gone = remove(tx, rows)
    gone += _prune_by_rule(tx, limit - gone)
    tx.close()
    return gone


def remove(tx: Transaction, rows: Rows) -> int:
    """Remove these jobs, but for parents of jobs that have not finished; returns how many went."""
    if tx.rules.any_edge:
        rows = [(seq,) for seq in dependencies.without_needed(tx, [seq for (seq,) in rows])]
        dependencies.forget(tx, _ids(tx, rows))
    if rows and steps.any_at_all(tx):
        steps.forget(tx, _ids(tx, rows))
    tx.cursor.executemany(SQL["prune.logs"], rows)
    tx.cursor.executemany(SQL["prune.job"], rows)
    return len(rows)


def _ids(tx: Transaction, rows: Rows) -> list[str]:
    return [tx.cursor.execute(SQL["prune.id"], row).fetchone()[0] for row in rows]


def _prune_by_rule(tx: Transaction, limit: int) -> int:
    """Task by task, oldest first (R49)."""
    execute, gone = tx.cursor.execute, 0
    for task, kept, dead_seconds, dead_kept in execute(SQL["prune.rules"]).fetchall():
        values = {"task": task, "now": tx.now, "remembered": tx.now - REMEMBER_SECONDS_MIN}
        if kept is not None and gone < limit:
            counted = execute(SQL["prune.count_finished"], (task,)).fetchone()[0]
            values |= {"excess": max(0, counted - kept), "limit": limit - gone}
            rows = execute(SQL["prune.finished"], values).fetchall()
            gone += remove(tx, rows)
        if dead_seconds is not None and gone < limit:
            values |= {"before": tx.now - dead_seconds, "excess": -1, "limit": limit - gone}
            gone += _remove_dead(tx, execute(SQL["prune.dead"], values).fetchall())
        if dead_kept is not None and gone < limit:
            counted = execute(SQL["prune.count_dead"], (task,)).fetchone()[0]
            values |= {"before": float("inf"), "excess": max(0, counted - dead_kept), "limit": limit - gone}
            gone += _remove_dead(tx, execute(SQL["prune.dead"], values).fetchall())
    return gone


def _remove_dead(tx: Transaction, rows: list[tuple[int, str]]) -> int:
    may_go = {*dependencies.without_needed(tx, [seq for seq, _ in rows])}
    rows = [row for row in rows if row[0] in may_go]
    for _, job_id in rows:
        tx.cursor.execute(SQL["discard.letter"], (job_id,))
        stopped = tx.cursor.execute(SQL["bury.held"], (job_id,)).fetchone()
        if stopped is not None:
            tx.touch(*stopped)
    return remove(tx, [(seq,) for seq, _ in rows])
