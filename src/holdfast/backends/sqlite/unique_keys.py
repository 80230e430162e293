"""Unique keys: which job holds a key, and until when.

Called by enqueue, by enqueue_on with the caller's own connection, and by revive and retry. The unique indexes decide;
this module only reads which job caused the conflict, and clears the flag of a holder whose window has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...records import NewJob
from .columns import SQL

Execute = Callable[..., Any]  # takes a statement and its values, returns something with rowcount and fetchone

EVERYWHERE = ""  # the place of a key with scope "global"; for other keys the place is the queue

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
        """Whether it occupies a slot of its group."""
        return self.state in ("ready", "running") or (self.state == "scheduled" and bool(self.held))

    def window_passed(self, now: float) -> bool:
        return self.key_window is not None and self.created_at + self.key_window <= now


def place_of_key(job: NewJob) -> str | None:
    """The scope in which a new job's key is unique: a queue, or everywhere."""
    if job.key_scope == "global":
        return EVERYWHERE
    return None if job.key is None else job.queue


def holder_of(execute: Execute, place: str | None, task: str, key: str | None) -> Holder | None:
    """The job that holds a key, even if only by a window that has passed."""
    row = execute(_HOLDER, (place, task, key)).fetchone()
    if row is None:
        return None
    holder = Holder(*row)
    return holder._replace(id=as_str(holder.id), queue=as_str(holder.queue), state=as_str(holder.state))


def free(execute: Execute, holder: Holder) -> None:
    """Another job takes the key: clear the flag of the holder whose window has passed."""
    execute(SQL["enqueue.free_key"], (holder.seq,))


def as_str(value: Any) -> str:
    """A caller's connection may return text as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
