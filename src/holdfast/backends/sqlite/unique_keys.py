"""Who holds a key, and since when no longer.

Called by enqueue, by enqueue_on with the caller's own connection, and by revive and retry. The unique indexes decide;
here is only read who stopped them, and a flag is taken from a holder whose window has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...records import NewJob
from .columns import SQL

Execute = Callable[..., Any]  # a statement and its values in, something with rowcount and fetchone out

EVERYWHERE = ""  # the place of a key that is one over all queues; elsewhere it is the queue

_HOLDER = SQL["enqueue.key_holder"]


class Holder(NamedTuple):
    """The job whose flag holds a key."""

    seq: int
    id: str
    queue: str
    state: str
    group: str | None
    held: int
    created_at: float
    key_window: float | None
    due_max: float | None
    priority: int
    turn: int | None

    @property
    def in_play(self) -> bool:
        """Whether it takes a place of its group."""
        return self.state in ("ready", "running") or (self.state == "scheduled" and bool(self.held))

    def window_passed(self, now: float) -> bool:
        return self.key_window is not None and self.created_at + self.key_window <= now


def place_of_key(job: NewJob) -> str | None:
    """Where a new job's key is the only one: a queue, or everywhere."""
    if job.key_scope == "global":
        return EVERYWHERE
    return None if job.key is None else job.queue


def holder_of(execute: Execute, place: str | None, task: str, key: str | None) -> Holder | None:
    """The job that holds a key, if only by a window that has passed."""
    row = execute(_HOLDER, (place, task, key)).fetchone()
    if row is None:
        return None
    holder = Holder(*row)
    return holder._replace(id=as_str(holder.id), queue=as_str(holder.queue), state=as_str(holder.state))


def free(execute: Execute, holder: Holder) -> None:
    """Another job takes the key: the holder whose window has passed holds it no longer."""
    execute(SQL["enqueue.free_key"], (holder.seq,))


def as_str(value: Any) -> str:
    """A caller's connection may hand out text as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
