"""enqueue on SQLite, inside a write transaction.

Called by verbs.py, by the blocking enqueue of the backends and, for the jobs of a tick, by cron.py. It builds plain
rows; the unique indexes decide about ids and keys. caller_transaction.py handles the caller's own connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import DuplicateJob
from ...lifecycle import UNSTARTED
from ...records import Enqueued, NewJob
from . import unique_keys
from .columns import LANE_GROUPED, LANE_UNGROUPED, SQL, encoded
from .rules import age_shift
from .transaction import Transaction

_INSERT = SQL["enqueue.insert"]
_INSERT_WHOLE = SQL["enqueue.insert_whole"]


def row_of(job: NewJob, now: float, due_at: float, state: str, lane: int, turn: int | None) -> tuple[Any, ...]:
    """The row of a new job, without the columns of rarely used options."""
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
    """The columns of rarely used options."""
    return (
        rank,
        int(job.key is not None),
        unique_keys.place_of_key(job),
        int(job.key_until == "started"),
        job.key_window,
        None if job.wait_max is None else now + job.wait_max,
        int(job.on_expire == "drop"),
    )


def due_time(job: NewJob, now: float) -> float:
    return job.due_at if job.due_at is not None else now + (job.delay or 0.0)


def _is_plain(job: NewJob) -> bool:
    """Whether a job uses no rare option, so that the columns' defaults apply."""
    return job.key is None and job.wait_max is None and job.on_expire == "bury"


def _rows(tx: Transaction, jobs: Sequence[NewJob]) -> list[tuple[Any, ...]]:
    """Scheduled until due, else ready, or waiting for the group's refill."""
    now, rules, rows = tx.now, tx.rules, []
    lanes, ages = rules.lanes, rules.any_aging
    for turn, job in enumerate(jobs, tx.ticks(len(jobs))):
        due_at = job.due_at if job.due_at is not None else now + (job.delay or 0.0)
        if due_at > now:
            rows.append(row_of(job, now, due_at, "scheduled", LANE_UNGROUPED, None))
        elif job.group is not None:
            rows.append(row_of(job, now, due_at, "waiting", LANE_GROUPED, None))
        else:
            taken = turn - age_shift(job.priority, rules.aging(job.queue)) if ages else turn
            rows.append(row_of(job, now, due_at, "ready", lanes.get(job.task, LANE_UNGROUPED), taken))
    return rows


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs in one step. Usually one statement for all; if an id or key is known, each job by itself."""
    rules = tx.rules
    tx.refuse_sealed()  # after reading the rules, which include the seal
    rows, insert = _rows(tx, jobs), _INSERT
    if rules.any_aging or not all(map(_is_plain, jobs)):
        insert = _INSERT_WHOLE
        rows = [(*row, *beyond(job, tx.now, _rank(tx, job))) for job, row in zip(jobs, rows, strict=True)]
    answers = _enqueue_all(tx, jobs, insert, rows) if len(jobs) > 1 else [_enqueue_one(tx, jobs[0], insert, rows[0])]
    for job, row, answer in zip(jobs, rows, answers, strict=True):
        if job.group is not None and row[3] == "waiting" and answer.created:
            tx.touch(job.queue, job.group)
    tx.close()
    return answers


def _enqueue_all(tx: Transaction, jobs: Sequence[NewJob], insert: str, rows: list[tuple[Any, ...]]) -> list[Enqueued]:
    cursor = tx.cursor
    cursor.execute("SAVEPOINT enqueue")
    if cursor.executemany(insert, rows).rowcount == len(jobs):
        answers = [Enqueued(job.id, True) for job in jobs]
    else:
        cursor.execute("ROLLBACK TO enqueue")
        answers = [_enqueue_one(tx, job, insert, row) for job, row in zip(jobs, rows, strict=True)]
    cursor.execute("RELEASE enqueue")
    return answers


def _rank(tx: Transaction, job: NewJob) -> int:
    return job.priority if tx.rules.aging(job.queue) is None else 0


def _enqueue_one(tx: Transaction, job: NewJob, insert: str, row: tuple[Any, ...]) -> Enqueued:
    execute = tx.cursor.execute
    if execute(insert, row).rowcount:
        return Enqueued(job.id, True)
    if execute(SQL["enqueue.known"], (job.id,)).fetchone():
        return Enqueued(job.id, False)
    holder = unique_keys.holder_of(execute, unique_keys.place_of_key(job), job.task, job.key)
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


def free_key(tx: Transaction, holder: unique_keys.Holder) -> None:
    unique_keys.free(tx.cursor.execute, holder)
    if holder.group is not None and (holder.in_play or holder.state == "waiting"):
        tx.touch(holder.queue, holder.group)


def _replace(tx: Transaction, job: NewJob, holder: unique_keys.Holder) -> None:
    """Give an unstarted job the call of a newer one with its key; it keeps its turn if group and priority stay."""
    due_at = due_time(job, tx.now)
    if job.on_conflict == "debounce" and holder.due_max is not None:
        due_at = min(due_at, max(holder.due_max, tx.now))
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
        in_line = (holder.group, holder.priority) == (job.group, job.priority)
        turn = holder.turn if in_line else None
        tx.place(holder.seq, holder.queue, job.task, job.group, job.priority, turn)
