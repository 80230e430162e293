"""Dependencies as they are read: the relatives of a job, and all edges for a dump and a move.

Called by backend.py, read.py and move.py. Never writes; dependencies.py does.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from ...dependencies import STATUSES, Edge, Relative, Relatives
from .codec import SQL, state_of


def relatives(cursor: sqlite3.Cursor, job_id: str, limit: int, values: bool, beyond: str) -> Relatives:
    parents = cursor.execute(SQL["dependencies.parents"], (job_id, values, limit + 1, beyond)).fetchall()
    children = cursor.execute(SQL["dependencies.children"], (job_id, 0, limit + 1, beyond)).fetchall()
    row = cursor.execute(SQL["dependencies.pending"], (job_id,)).fetchone()
    return Relatives(
        parents=tuple(_relative(*parent) for parent in parents[:limit]),
        children=tuple(_relative(*child) for child in children[:limit]),
        pending=0 if row is None else row[0],
        more=max(len(parents), len(children)) > limit,
    )


def _relative(job_id: str, task: str, state: str, status: int, value: bytes | None) -> Relative:
    return Relative(id=job_id, task=task, state=state_of(state), status=STATUSES[status], value=value)


def edges(cursor: sqlite3.Cursor, after: tuple[str, str] = ("", ""), limit: int = -1) -> list[Edge]:
    """By child and parent."""
    return [
        Edge(parent=parent, child=child, status=STATUSES[status], on_parent_failure=policy, delay=delay, due_at=due_at)
        for parent, child, status, policy, delay, due_at in cursor.execute(SQL["dependencies.edges"], (*after, limit))
    ]


def tables(cursor: sqlite3.Cursor) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tables `dependents` and `propagating` of a dump."""
    counts = cursor.execute(SQL["dependencies.dependents"]).fetchall()
    parents = cursor.execute(SQL["dependencies.propagating"]).fetchall()
    return (
        [{"child": child, "pending": pending, "failed": failed} for child, pending, failed in counts],
        [{"parent": parent} for (parent,) in parents],
    )
