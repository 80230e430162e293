"""Dependencies between jobs as they cross the backend contract: edges, and the relatives of a job.

Called by backends, the engine and the public API, like records.py. Holds no behaviour and never does I/O.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from .lifecycle import State

OnParentFailure = Literal["bury", "cancel", "run"]
EdgeStatus = Literal["open", "failed", "met"]

ON_PARENT_FAILURE: tuple[OnParentFailure, ...] = ("bury", "cancel", "run")
STATUSES: tuple[EdgeStatus, ...] = ("open", "failed", "met")  # a store keeps the position

PARENTS_MAX = 10_000  # that one job may wait for
PROPAGATE_MAX = 200  # edges that a step brings in line with its parents' new states; promote continues
BATCH_TASK = "holdfast.batch"  # the task of the job that a batch is; every app knows it
BATCH_OPEN_TASK = f"{BATCH_TASK}.open"  # the task of the member that keeps a batch open; it does nothing
DUE_AFTER_PARENTS = 32_503_680_000.0  # due_at of a job that waits for its parents: the year 3000
DUE_NEVER = DUE_AFTER_PARENTS - 366 * 86_400.0  # due_at of the member that keeps a batch open: the year 2998


class Edge(Struct, frozen=True, kw_only=True):
    """One dependency: the child waits for the parent. What the child wanted is repeated on each of its edges."""

    parent: str
    child: str
    status: EdgeStatus = "open"  # failed: the parent died or was cancelled; met: the child no longer waits for it
    on_parent_failure: OnParentFailure = "bury"
    delay: float | None = None  # as in the child's NewJob; counts from when its parents have succeeded
    due_at: float | None = None


class Relative(Struct, frozen=True, kw_only=True):
    """A parent or a child of a job."""

    id: str
    task: str
    state: State
    status: EdgeStatus
    value: bytes | None = None  # of a parent that succeeded, if requested


class Relatives(Struct, frozen=True, kw_only=True):
    """The parents and children of a job, each list by id up to the limit asked for."""

    parents: tuple[Relative, ...] = ()
    children: tuple[Relative, ...] = ()
    pending: int = 0  # parents that it still waits for, or would: those that have not succeeded
    more: bool = False  # there are more than the limit on one side


def position_of(edge: Edge) -> str:
    """The place of an edge in a move: all are carried by child and parent."""
    return msgspec.json.encode([edge.child, edge.parent]).decode()


def edge_position(after: str) -> tuple[str, str]:
    """The child and parent of a position; "" is before all of them."""
    return msgspec.json.decode(after, type=tuple[str, str]) if after else ("", "")
