"""enqueue on SQLite, on our writer's cursor.

Called by backend.py and, for the jobs of a tick, by ticking.py. What is inserted is decided here as plain rows; the
unique indexes decide about ids and keys. The caller's own connection is joining.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import DuplicateJob
from ...lifecycle import UNSTARTED
from ...records import Enqueued, NewJob
from . import keys
from .ruling import age_shift
from .stored import SQL, encoded
from .transaction import Transaction

_INSERT = SQL["enqueue.insert"]
_INSERT_WHOLE = SQL["enqueue.insert_whole"]


def row_of(job: NewJob, now: float, state: str, lane: int, turn: int | None) -> tuple[Any, ...]:
    """The row of a new job, without what only some ask for."""
    due_at = job.due_at if job.due_at is not None else now + (job.delay or 0.0)
    return (
        job.id,
        job.task,
        job.queue,
        state,
        job.priority,
        job.group,
        job.key,
        lane,
        turn,
        job.max_stalls,
        now,
        due_at,
        None if job.expires is None else due_at + job.expires,
        job.args,
        None if job.revival is None else encoded(job.revival),
        job.options,
    )


def beyond(job: NewJob, now: float, rank: int) -> tuple[Any, ...]:
    """The rest of the row."""
    return (
        rank,
        int(job.key is not None),
        keys.place_of_key(job),
        int(job.key_until == "started"),
        job.key_window,
        None if job.wait_max is None else now + job.wait_max,
        int(job.on_expire == "drop"),
    )


def _due_at(job: NewJob, now: float) -> float:
    return job.due_at if job.due_at is not None else now + (job.delay or 0.0)


def _row(tx: Transaction, job: NewJob, turn: int, ages: bool) -> tuple[Any, ...]:
    """Scheduled until due, else ready, or waiting for its group's refill."""
    now = tx.now
    if (job.due_at is not None or job.delay) and _due_at(job, now) > now:
        return row_of(job, now, "scheduled", 0, None)
    if job.group is not None:
        return row_of(job, now, "waiting", 0, None)
    if ages:
        turn -= age_shift(job.priority, tx.rules.aging(job.queue))
    return row_of(job, now, "ready", tx.rules.lane_of(job.task, None), turn)


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs in one step. The common case is one statement for all; a known id or key makes it go one by one."""
    tx.refuse_sealed()
    first, insert = tx.ticks(len(jobs)), _INSERT
    ages = tx.rules.any_aging
    rows = [_row(tx, job, first + place, ages) for place, job in enumerate(jobs)]
    if ages or any(job.key is not None or job.on_expire == "drop" or job.wait_max is not None for job in jobs):
        insert = _INSERT_WHOLE
        rows = [(*row, *beyond(job, tx.now, _rank(tx, job))) for job, row in zip(jobs, rows, strict=True)]
    cursor = tx.cursor
    cursor.execute("SAVEPOINT enqueue")
    if cursor.executemany(insert, rows).rowcount == len(jobs):
        answers = [Enqueued(job.id, True) for job in jobs]
    else:
        cursor.execute("ROLLBACK TO enqueue")
        answers = [_enqueue_one(tx, job, insert, row) for job, row in zip(jobs, rows, strict=True)]
    cursor.execute("RELEASE enqueue")
    for job, row in zip(jobs, rows, strict=True):
        if job.group is not None and row[3] == "waiting":
            tx.touch(job.queue, job.group)
    tx.close()
    return answers


def _rank(tx: Transaction, job: NewJob) -> int:
    return job.priority if tx.rules.aging(job.queue) is None else 0


def _enqueue_one(tx: Transaction, job: NewJob, insert: str, row: tuple[Any, ...]) -> Enqueued:
    execute = tx.cursor.execute
    if execute(insert, row).rowcount:
        return Enqueued(job.id, True)
    if execute(SQL["enqueue.known"], (job.id,)).fetchone():
        return Enqueued(job.id, False)
    holder = keys.holder_of(execute, keys.place_of_key(job), job.task, job.key)
    if holder is None or holder.window_passed(tx.now):
        if holder is not None:
            free_key(tx, holder)
        return Enqueued(job.id, execute(insert, row).rowcount > 0)
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), holder.id)
    if job.on_conflict == "keep" or holder.state not in UNSTARTED:
        return Enqueued(holder.id, False)
    _replace(tx, job, holder)
    return Enqueued(holder.id, False, replaced=True)


def free_key(tx: Transaction, holder: keys.Holder) -> None:
    keys.free(tx.cursor.execute, holder)
    if holder.group is not None and holder.in_play:
        tx.touch(holder.queue, holder.group)


def _replace(tx: Transaction, job: NewJob, holder: keys.Holder) -> None:
    """Give an unstarted job the call of a newer one of its key; its place is found anew."""
    due_at = _due_at(job, tx.now)
    if job.on_conflict == "debounce" and holder.due_max is not None:
        due_at = min(due_at, holder.due_max)
    values = {
        "priority": job.priority,
        "grp": job.group,
        "max_stalls": job.max_stalls,
        "due_at": due_at,
        "expires_at": None if job.expires is None else due_at + job.expires,
        "args": job.args,
        "revival": None if job.revival is None else encoded(job.revival),
        "options": job.options,
        "key_started": int(job.key_until == "started"),
        "key_window": job.key_window,
        "dropped": int(job.on_expire == "drop"),
        "seq": holder.seq,
    }
    tx.cursor.execute(SQL["enqueue.replace"], values)
    if holder.group is not None and holder.in_play:
        tx.touch(holder.queue, holder.group)
    if due_at <= tx.now:
        tx.place(holder.seq, holder.queue, job.task, job.group, job.priority)
