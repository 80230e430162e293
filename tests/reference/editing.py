"""edit and delete: an operator changes one unstarted job, or removes one that is not running.

Called by backend.py inside its critical section. Whatever is refused is refused before anything changed.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.lifecycle import UNSTARTED, State, state_conflict
from holdfast.records import REMEMBER_SECONDS_MIN, Edit

from . import depending
from .operating import find, refuse_taken
from .rows import Row, key_name
from .store import Store


def edit(store: Store, job_id: str, changes: Edit, wall: float, by: str) -> Row:
    row = find(store, job_id)
    revives = changes.revive and row.state is State.DEAD
    if revives:
        refuse_taken(store, row, "edit", wall)
    elif row.state not in UNSTARTED:
        raise state_conflict(job_id, "edit", row.state)
    queue = row.queue if changes.queue is UNSET else changes.queue
    if queue != row.queue:
        _refuse_queue(store, row, queue, wall, revives=revives)
    if revives:
        store.revive(row, wall)
        store.mark(row, "revive", wall, by=by)
    if isinstance(changes.args, bytes):
        row.args = changes.args
    _move(store, row, changes, queue, wall)
    if changes.text:
        store.mark(row, "edit", wall, by=by, text=changes.text)
    return row


def _refuse_queue(store: Store, row: Row, queue: str, wall: float, *, revives: bool) -> None:
    if row.key is not None and (row.holds_key or revives):
        holder = store.key_holder(key_name(row.key_scope, queue, row.task, row.key), wall)
        if holder is not None and holder.id != row.id:
            raise state_conflict(row.id, "edit", row.state, live_id=holder.id)
    letter = store.letters.get((queue, row.task, row.key)) if row.key is not None else None
    if row.id in store.letter_of and letter is not None:
        raise state_conflict(row.id, "edit", row.state, letter_id=letter.id)


def _move(store: Store, row: Row, changes: Edit, queue: str, wall: float) -> None:
    group = row.group if changes.group is UNSET else changes.group
    priority = row.priority if changes.priority is UNSET else changes.priority
    order = row.order if changes.order is UNSET else changes.order
    due_at = wall + changes.delay if isinstance(changes.delay, int | float) else changes.due_at
    plays = row.state is not State.SCHEDULED if due_at is UNSET else due_at <= wall
    values: dict[str, Any] = {}
    if isinstance(due_at, int | float):
        values["due_at"] = due_at
        if row.expires_at is not None:
            values["expires_at"] = row.expires_at - row.due_at + due_at
    same = (queue, group, priority, order) == (row.queue, row.group, row.priority, row.order)
    if same and plays == (row.state is not State.SCHEDULED):
        if values:
            store.move(row, row.state, **values, **({"rank": row.rank} if row.state is State.READY else {}))
        return
    logical = store.letter_of.get(row.id)
    letter = None if logical is None else store.drop_letter(logical)
    if row.holds_key and queue != row.queue and row.key is not None and row.key_scope == "queue":
        store.free_key(key_name(row.key_scope, queue, row.task, row.key))
    store.move(
        row,
        State.SCHEDULED,
        queue=queue,
        group=group,
        priority=priority,
        order=order,
        held=row.held and (queue, group) == (row.queue, row.group),
        turn=row.turn if plays and same else None,
        **values,
    )
    if letter is not None:
        moved = letter if queue == letter.queue else replace(letter, queue=queue, group=group)
        store.keep_letter(row.logical, moved)
    if plays:
        store.place(row)


def delete(store: Store, job_id: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state is State.RUNNING:
        raise state_conflict(job_id, "delete", row.state)
    depending.refuse_if_awaited(store, row)
    if job_id in store.letter_of:
        store.drop_letter(store.letter_of[job_id])
    store.remembered[job_id] = (wall if row.finished_at is None else row.finished_at) + REMEMBER_SECONDS_MIN
    store.remove(row)
    return row
