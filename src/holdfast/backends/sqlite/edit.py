"""edit and delete: an operator changes one unstarted job, or removes one that is not running.

Called by backend.py inside a write transaction. Raises JobNotFound, StateConflict or StoreSealed before the first
write, so a refused verb changes nothing; edit with `revive` revives the job first, and the transaction is rolled back
if the edit is refused.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from ...errors import JobNotFound
from ...lifecycle import UNSTARTED, State, state_conflict
from ...records import REMEMBER_SECONDS_MIN, Edit, JobRecord
from . import dependencies, enqueue, operate, read, steps
from .codec import EVERYWHERE, SQL, logical_name, state_of
from .connection import Transaction
from .groups import bring_into_play
from .settle import leave_group, mark

_NAMES = "seq id task queue state grp key priority held turn due_at expires_at holds_key key_queue ordinal"
JOB_FIELDS = _NAMES.split()


def edit(tx: Transaction, job_id: str, changes: Edit, by: str) -> JobRecord:
    """Change an unstarted job; a claim in another transaction came first, or finds it changed."""
    tx.refuse_sealed()
    if changes.revive and _job(tx, job_id)["state"] == State.DEAD:
        operate.revive(tx, job_id, by)
    job = _job(tx, job_id)
    if state_of(job["state"]) not in UNSTARTED:
        raise state_conflict(job_id, "edit", job["state"])
    moved = _moved(job, changes)
    if moved["queue"] != job["queue"]:
        _change_queue(tx, job, moved)
    if changes.args is not UNSET:
        tx.cursor.execute(SQL["edit.args"], (*enqueue.split(changes.args), job["seq"]))
        enqueue.set_body(tx.cursor.execute, job["seq"], changes.args)
    due_at = _due_at(tx, changes)
    if due_at is not None:
        expires_at = None if job["expires_at"] is None else job["expires_at"] - job["due_at"] + due_at
        tx.cursor.execute(SQL["edit.due"], (due_at, expires_at, job["seq"]))
    _place(tx, job, moved, due_at)
    if moved["ordinal"] is not None and moved["grp"] is not None:
        tx.touch(moved["queue"], moved["grp"], changed=True)
    if changes.text:
        mark(tx, job["seq"], "edit", by=by, text=changes.text)
    tx.close()
    return _read(tx, job_id)


def _job(tx: Transaction, job_id: str) -> dict[str, Any]:
    row = tx.cursor.execute(SQL["edit.job"], (job_id,)).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return dict(zip(JOB_FIELDS, row, strict=True))


def _read(tx: Transaction, job_id: str) -> JobRecord:
    record = read.get(tx.cursor, job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def _moved(job: dict[str, Any], changes: Edit) -> dict[str, Any]:
    """Queue, group, priority and order after the edit."""
    given = {"queue": changes.queue, "grp": changes.group, "priority": changes.priority, "ordinal": changes.order}
    return {name: job[name] if value is UNSET else value for name, value in given.items()}


def _due_at(tx: Transaction, changes: Edit) -> float | None:
    """The new due time; None if it stays."""
    if isinstance(changes.delay, int | float):
        return tx.now + changes.delay
    return changes.due_at if isinstance(changes.due_at, int | float) else None


def _change_queue(tx: Transaction, job: dict[str, Any], moved: dict[str, Any]) -> None:
    """Take the key and the dead letter along, or refuse if another job has them there."""
    letter = tx.cursor.execute(SQL["revive.letter_of"], (job["id"],)).fetchone()
    if job["key"] is not None and job["key_queue"] != EVERYWHERE:
        holder = None
        if job["holds_key"]:
            holder = enqueue.holder_of(tx.cursor.execute, moved["queue"], job["task"], job["key"])
        if holder is not None and not holder.window_passed(tx.now):
            raise state_conflict(job["id"], "edit", job["state"], live_id=holder.id)
        if holder is not None:
            enqueue.free_key(tx, holder)
    logical = logical_name(job["id"], moved["queue"], job["task"], job["key"])
    if letter is not None:
        other = tx.cursor.execute(SQL["revive.letter_by_logical"], (logical,)).fetchone()
        if other is not None and other[0] != job["id"]:
            raise state_conflict(job["id"], "edit", job["state"], letter_id=other[0])
        tx.cursor.execute(SQL["edit.letter"], (logical, moved["queue"], moved["grp"], job["id"]))


def _place(tx: Transaction, job: dict[str, Any], moved: dict[str, Any], due_at: float | None) -> None:
    """Bring the job to where its new values belong; one that need not move keeps its place and turn."""
    plays = job["state"] != State.SCHEDULED if due_at is None else due_at <= tx.now
    same_place = all(moved[name] == job[name] for name in moved)
    if same_place and plays == (job["state"] != State.SCHEDULED):
        return
    same_group = (moved["queue"], moved["grp"]) == (job["queue"], job["grp"])
    scoped = job["key"] is not None and job["key_queue"] != EVERYWHERE
    values = {
        **moved,
        "held": int(bool(job["held"]) and same_group),
        "key_queue": moved["queue"] if scoped else job["key_queue"],
        "seq": job["seq"],
    }
    tx.cursor.execute(SQL["edit.move"], values)
    leave_group(tx, job)
    if plays:
        turn = job["turn"] if same_place else None
        bring_into_play(tx, job["seq"], moved["queue"], job["task"], moved["grp"], moved["priority"], turn)


def delete(tx: Transaction, job_id: str) -> JobRecord:
    """Remove a job with everything stored about it; its id stays known for a while."""
    tx.refuse_sealed()
    job = _job(tx, job_id)
    if job["state"] == State.RUNNING:
        raise state_conflict(job_id, "delete", job["state"])
    dependencies.refuse_if_awaited(tx, job_id, job["state"])
    record = _read(tx, job_id)
    until = (tx.now if record.finished_at is None else record.finished_at) + REMEMBER_SECONDS_MIN
    if until > tx.now:
        tx.cursor.execute(SQL["delete.remember"], (job_id, until))
    dependencies.forget(tx, [job_id])
    steps.forget(tx, [job_id])
    tx.cursor.execute(SQL["discard.letter"], (job_id,))
    tx.cursor.execute(SQL["prune.logs"], (job["seq"],))
    tx.cursor.execute(SQL["prune.job"], (job["seq"],))
    leave_group(tx, job)
    tx.close()
    return record
