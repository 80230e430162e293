"""enqueue on SQLite, inside a write transaction, and enqueue_on, inside the caller's; and which job holds a unique key.

Called by the backends and, for the jobs of a tick, by cron.py. It builds plain rows; the unique indexes decide about
ids and keys.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from ...dependencies import DUE_AFTER_PARENTS
from ...errors import BackendError, ConfigurationError, DuplicateJob, HoldfastError, SchemaMismatch
from ...lifecycle import UNSTARTED
from ...records import Enqueued, NewJob
from .. import seals
from ..caller_connections import (
    recognise,
    refuse_autocommit,
    refuse_kind,
    refuse_parents,
    sqlalchemy_connection,
    sqlalchemy_errors,
    unscoped,
)
from ..formulas import LANE_GROUPED, LANE_UNGROUPED, due_time, rank, window_end
from ..formulas import turn as turn_of
from .codec import EVERYWHERE, SQL, encoded
from .connection import SCHEMA_VERSION, Transaction, errors_mapped, mapped
from .groups import bring_into_play

# ----------------------------------------------------------------------------------------------------------------------
# Unique keys: which job holds a key, and until when. Also for enqueue_on, revive and retry. The unique indexes
# decide; this only reads which job caused the conflict, and clears the flag of a holder whose window has passed.


Execute = Callable[..., Any]  # takes a statement and its values, returns something with rowcount and fetchone


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
    order: int | None
    turn: int | None
    due_at: float

    @property
    def in_play(self) -> bool:
        """Whether it occupies a slot of its group."""
        return self.state in ("ready", "running") or (self.state == "scheduled" and bool(self.held))

    def window_passed(self, now: float) -> bool:
        ends = window_end(self.id, self.created_at, self.key_window)
        return ends is not None and ends <= now


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
    """Clear the flag of a holder whose window has passed, so that another job can take the key."""
    execute(SQL["enqueue.free_key"], (holder.seq,))


def as_str(value: Any) -> str:
    """A caller's connection may return text as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


# ----------------------------------------------------------------------------------------------------------------------
# enqueue


_INSERT = SQL["enqueue.insert"]
_INSERT_WHOLE = SQL["enqueue.insert_whole"]
_INSERT_UNKNOWN = SQL["enqueue.insert_unknown"]
_JOINED = SQL["enqueue.joined"]
_BODY_OF = SQL["enqueue.body"]
_STATE, _TURN, _ARGS, _BODY = 3, 8, 13, 17  # positions in a row
ARGS_INLINE_MAX = 2048  # bytes; larger arguments are in holdfast_bodies
ROWS_AT_ONCE = (500, 50)  # per statement, while there are that many left


def _for_many(insert: str, rows: int) -> str:
    """The same INSERT for many rows. It opens the table and its indexes once, which is a third of what a row costs, and
    releases the GIL while it runs, for example to the thread that makes the next jobs."""
    row = insert[insert.index("(?") : insert.index("?)") + 2]
    return insert.replace(row, ", ".join([row] * rows))


_INSERTS_OF_MANY = {
    insert: tuple((rows, _for_many(insert, rows)) for rows in ROWS_AT_ONCE) for insert in (_INSERT, _INSERT_WHOLE)
}


def row_of(
    job: NewJob, now: float, due_at: float, state: str, lane: int, turn: int | None, its_rank: int
) -> tuple[Any, ...]:
    """The row of a new job, without the columns of rarely used options; `body` is stored beside it if it has one."""
    args, body = split(job.args)
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
        args,
        None if job.revival is None else encoded(job.revival),
        job.options,
        its_rank,
        body,
    )


def split(args: bytes) -> tuple[bytes, int | None]:
    """What the columns `args` and `body` of a job say of its arguments."""
    return (args, None) if len(args) <= ARGS_INLINE_MAX else (b"", len(args))


def set_body(execute: Execute, seq: int, args: bytes) -> None:
    """Store a job's new arguments beside its row if they belong there, and forget the earlier ones."""
    execute(SQL["edit.no_body"], (seq,))
    if len(args) > ARGS_INLINE_MAX:
        execute(SQL["edit.body"], (seq, args))


def beyond(job: NewJob, now: float) -> tuple[Any, ...]:
    """The columns of rarely used options."""
    return (
        int(job.key is not None),
        place_of_key(job),
        int(job.key_until == "started"),
        job.key_window,
        None if job.wait_max is None else now + job.wait_max,
        int(job.on_expire == "drop"),
        job.order,
    )


def _is_plain(job: NewJob) -> bool:
    """Whether a job uses no rare option, so that the columns' defaults apply."""
    return job.key is None and job.wait_max is None and job.on_expire == "bury" and job.order is None


def _rows(tx: Transaction, jobs: Sequence[NewJob]) -> list[tuple[Any, ...]]:
    """Scheduled until due, else ready, or waiting for the group's refill."""
    now, rules, rows = tx.now, tx.rules, []
    lanes, ages = rules.lanes, rules.any_aging
    for turn, job in enumerate(jobs, tx.ticks(len(jobs))):
        due_at = job.due_at if job.due_at is not None else now + (job.delay or 0.0)
        if job.order is not None:
            due_at = due_time(job, rules.queue(job.queue).order_window, now)
        its_rank = rank(job.priority, rules.aging(job.queue)) if ages else job.priority
        if due_at > now:
            rows.append(row_of(job, now, due_at, "scheduled", LANE_UNGROUPED, None, its_rank))
        elif job.group is not None:
            rows.append(row_of(job, now, due_at, "waiting", LANE_GROUPED, None, its_rank))
        else:
            taken = turn_of(turn, job.priority, rules.aging(job.queue)) if ages else turn
            rows.append(row_of(job, now, due_at, "ready", lanes.get(job.task, LANE_UNGROUPED), taken, its_rank))
    return rows


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs in one step. For a single job, also return whether its group has no room for it yet."""
    for job in jobs:
        if job.after or job.before:
            from . import dependencies

            return dependencies.store(tx, jobs)
    answers = store(tx, jobs)
    if len(jobs) == 1 and jobs[0].group is not None and answers[0].created:
        [waits] = tx.cursor.execute(SQL["enqueue.waits"], (jobs[0].id,)).fetchone()
        return [Enqueued(jobs[0].id, True, waits=bool(waits))]
    return answers


def store(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs in one step. Usually one statement for all; if an id or key is known, each job by itself."""
    rules = tx.rules
    tx.refuse_sealed()  # after reading the rules, which include the seal
    rows, insert = _rows(tx, jobs), _INSERT
    if rules.any_remembered or not all(map(_is_plain, jobs)):
        insert = _INSERT_UNKNOWN if rules.any_remembered else _INSERT_WHOLE
        rows = [(*row, *beyond(job, tx.now)) for job, row in zip(jobs, rows, strict=True)]
    answers = _enqueue_all(tx, jobs, insert, rows) if len(jobs) > 1 else [_enqueue_one(tx, jobs[0], insert, rows[0])]
    for job, row, answer in zip(jobs, rows, answers, strict=True):
        if job.group is not None and answer.created and (row[_STATE] == "waiting" or job.order is not None):
            tx.touch(job.queue, job.group, changed=job.order is not None)
    tx.close()
    return answers


def _enqueue_all(tx: Transaction, jobs: Sequence[NewJob], insert: str, rows: list[tuple[Any, ...]]) -> list[Enqueued]:
    cursor = tx.cursor
    cursor.execute("SAVEPOINT enqueue")
    if _insert_all(cursor, insert, rows) == len(jobs):
        answers = [Enqueued(job.id, True) for job in jobs]
        bodies = [(job.args, job.id) for job, row in zip(jobs, rows, strict=True) if row[_BODY] is not None]
        cursor.executemany(_BODY_OF, bodies)
    else:
        cursor.execute("ROLLBACK TO enqueue")
        answers = [_enqueue_one(tx, job, insert, row) for job, row in zip(jobs, rows, strict=True)]
    cursor.execute("RELEASE enqueue")
    return answers


def _insert_all(cursor: sqlite3.Cursor, insert: str, rows: list[tuple[Any, ...]]) -> int:
    """Insert the rows; returns how many were new."""
    new, done = 0, 0
    for count, of_many in _INSERTS_OF_MANY.get(insert, ()):
        while len(rows) - done >= count:
            values = tuple(chain.from_iterable(rows[done : done + count]))
            new, done = new + cursor.execute(of_many, values).rowcount, done + count
    return new + cursor.executemany(insert, rows[done:]).rowcount if done < len(rows) else new


def _enqueue_one(tx: Transaction, job: NewJob, insert: str, row: tuple[Any, ...]) -> Enqueued:
    execute = tx.cursor.execute
    if _inserted(execute, insert, job, row):
        return Enqueued(job.id, True)
    met = _conflict(execute, job, tx.now)
    if isinstance(met, Enqueued):
        return met
    if met is None or met.window_passed(tx.now):
        if met is not None:
            free_key(tx, met)
        return Enqueued(job.id, _inserted(execute, insert, job, row))
    if job.on_conflict == "extend":
        if met.key_window is not None and job.key_window is not None:
            execute(SQL["enqueue.extend"], {"window": tx.now - met.created_at + job.key_window, "seq": met.seq})
        return Enqueued(met.id, False)
    _replace(tx, job, met, row[_TURN])
    return Enqueued(met.id, False, replaced=True)


def _inserted(execute: Execute, insert: str, job: NewJob, row: tuple[Any, ...]) -> bool:
    """Insert one job with its body; False if its id is known, another job holds its key, or the store is sealed."""
    is_new: bool = execute(insert, row).rowcount > 0
    if is_new and row[_BODY] is not None:
        execute(_BODY_OF, (job.args, job.id))
    return is_new


def _conflict(execute: Execute, job: NewJob, now: float) -> Enqueued | Holder | None:
    """Why a job was not inserted (R28, R29). Returns the result if that is final, else the holder of its key, which
    must change first: its window has passed or is extended, or it is replaced. None: the holder is gone."""
    if execute(SQL["enqueue.known"], (job.id, now)).fetchone():
        return Enqueued(job.id, False)
    holder = holder_of(execute, place_of_key(job), job.task, job.key)
    if holder is None or holder.window_passed(now):
        return holder
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), holder.id)
    if job.on_conflict == "extend":
        return holder
    if job.on_conflict == "keep" or holder.state not in UNSTARTED or holder.due_at == DUE_AFTER_PARENTS:
        return Enqueued(holder.id, False)
    if execute(SQL["steps.has"], (holder.id,)).fetchone()[0]:  # it has begun
        return Enqueued(holder.id, False)
    return holder


def free_key(tx: Transaction, holder: Holder) -> None:
    free(tx.cursor.execute, holder)
    if holder.group is not None and (holder.in_play or holder.state == "waiting"):
        tx.touch(holder.queue, holder.group)


def _replace(tx: Transaction, job: NewJob, holder: Holder, issued: int | None) -> None:
    """Replace the call of an unstarted job by a newer one with its key. It keeps its turn if its place stays; else it
    gets the turn `issued` to that call, so that it takes the call's place in its batch."""
    due_at = due_time(job, tx.rules.queue(job.queue).order_window, tx.now)
    if job.on_conflict == "debounce" and holder.due_max is not None:
        due_at = min(due_at, max(holder.due_max, tx.now))
    args, body = split(job.args)
    values = {
        "priority": job.priority,
        "grp": job.group,
        "max_stalls": job.max_stalls,
        "due_at": due_at,
        "expires_at": None if job.expires is None else due_at + job.expires,
        "args": args,
        "body": body,
        "revival": None if job.revival is None else encoded(job.revival),
        "options": job.options,
        "key_started": int(job.key_until == "started"),
        "key_window": job.key_window,
        "dropped": int(job.on_expire == "drop"),
        "ordinal": job.order,
        "seq": holder.seq,
    }
    tx.cursor.execute(SQL["enqueue.replace"], values)
    set_body(tx.cursor.execute, holder.seq, job.args)
    waited = holder.state == "waiting"
    if holder.group is not None and (holder.in_play or waited):
        tx.touch(holder.queue, holder.group, changed=waited)  # a lower order may come first now (R105)
    if due_at <= tx.now:
        in_line = (holder.group, holder.priority, holder.order) == (job.group, job.priority, job.order)
        is_here = issued is not None and holder.queue == job.queue  # another queue may have another aging
        turn = holder.turn if in_line else issued if is_here else None
        bring_into_play(tx, holder.seq, holder.queue, job.task, job.group, job.priority, turn)
    elif job.group is not None and job.order is not None:
        tx.touch(holder.queue, job.group, changed=True)


# ----------------------------------------------------------------------------------------------------------------------
# enqueue_on: stores jobs through the caller's own connection, inside the caller's transaction, on the caller's
# thread. Plain INSERTs and nothing else, except for clearing the flag of a key whose window has passed: every job is
# stored as `scheduled`, and promote brings it into play.


_TAKES = "a sqlite3.Connection, or a SQLAlchemy Connection or Session on SQLite"
_TAKES_ASYNC = "a SQLAlchemy AsyncConnection or AsyncSession on SQLite"


def enqueue_on(connection: Any, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    """Plain INSERTs through the caller's connection and transaction: visible if and only if it commits."""
    refuse_parents(jobs)
    with in_transaction_of(connection, path) as execute:
        return [join_one(execute, job, now) for job in jobs]


@contextmanager
def in_transaction_of(connection: Any, path: str) -> Iterator[Execute]:
    """How to run statements in the caller's transaction, after checking that it is one on the store's own file."""
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        with sqlalchemy_errors(lambda error: _mapped(error, path)):
            inner = sqlalchemy_connection(connection)
            if inner.dialect.name != "sqlite":
                refuse_kind(caller, "SQLite", _TAKES)
            check_begun(inner.connection.dbapi_connection)
            _check_same_store(inner.exec_driver_sql, path)
            yield inner.exec_driver_sql
        return
    if caller.library != "sqlite3":
        refuse_kind(caller, "SQLite", _TAKES)
    with errors_mapped(path):
        cursor = connection.cursor()
        cursor.row_factory = None
        check_begun(connection)
        _check_same_store(cursor.execute, path)
        yield cursor.execute


async def aenqueue_on(connection: Any, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    """Like `enqueue_on`, through SQLAlchemy's async connections."""
    answers: list[Enqueued] = await run_sync(connection, enqueue_on, path, jobs, now)
    return answers


async def run_sync(connection: Any, work: Callable[..., Any], *args: Any) -> Any:
    """Run sync work on the connection behind one of SQLAlchemy's async ones."""
    caller = recognise(connection)
    if caller.library != "sqlalchemy":
        refuse_kind(caller, "SQLite", _TAKES_ASYNC)
    return await unscoped(connection).run_sync(work, *args)


def _mapped(error: BaseException, path: str) -> HoldfastError:
    if isinstance(error, sqlite3.Error):
        return mapped(error, path)
    return BackendError(f"{os.path.basename(path)}: the driver failed ({type(error).__name__}).")


def check_begun(connection: Any) -> None:
    """Without a transaction to join, every INSERT would be committed at once."""
    if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
        mode = getattr(connection, "autocommit", None)  # True, False, or as before Python 3.12
        if mode is True or (mode is not False and connection.isolation_level is None):
            refuse_autocommit()


def is_same_file(execute: Execute, path: str) -> bool:
    """Whether a connection's main database is the file at that path."""
    found = execute("PRAGMA database_list").fetchall()
    files = [as_str(file) for _, name, file in found if as_str(name) == "main"]
    return bool(files and files[0] and os.path.exists(path) and os.path.samefile(files[0], path))


def _check_same_store(execute: Execute, path: str) -> None:
    if not is_same_file(execute, path):
        raise ConfigurationError(
            f"the connection given is open on a different database, not this app's store ({os.path.basename(path)}). "
            "Open it on the same file, or enqueue without connection=."
        )
    try:  # take the write lock before anything is read: a transaction that has read cannot write once another one has
        execute("UPDATE holdfast_schema SET version = version WHERE 0")
    except Exception as error:  # the driver's, or SQLAlchemy's
        if "no such table: holdfast_schema" not in str(error):
            raise
        raise ConfigurationError(
            "the store does not exist yet, and cannot be created inside your transaction. "
            "Call app.open() before it begins, or run `holdfast migrate` once."
        ) from error
    version = execute("SELECT version FROM holdfast_schema").fetchone()
    if version is None or version[0] != SCHEMA_VERSION:
        raise SchemaMismatch(0 if version is None else version[0], SCHEMA_VERSION)


def join_one(execute: Execute, job: NewJob, now: float) -> Enqueued:
    """Store one job as `scheduled`, or return the one that already exists."""
    window = None
    if job.order is not None:
        found = execute(SQL["enqueue.order_window"], (job.queue,)).fetchone()
        window = None if found is None else found[0]
    due_at = due_time(job, window, now)
    row = row_of(job, now, due_at, "scheduled", LANE_UNGROUPED, None, 0)
    if row[_BODY] is not None:  # one statement stores all of the job, or nothing if it fails and the caller goes on
        row = (*row[:_ARGS], job.args, *row[_ARGS + 1 : _BODY], None)
    row = (*row, *beyond(job, now))
    if _inserted(execute, _JOINED, job, row):
        return Enqueued(job.id, True)
    closed = execute(SQL["seal.closed"]).fetchone()
    if closed is not None:
        raise seals.refusal(seals.read(closed[0]))
    met = _conflict(execute, job, now)
    if isinstance(met, Enqueued):
        return met
    if met is None or met.window_passed(now):
        if met is not None:
            free(execute, met)
        return Enqueued(job.id, _inserted(execute, _JOINED, job, row))
    raise ConfigurationError(
        f"on_conflict={job.on_conflict!r} cannot be used with connection=: it would have to change a job that is "
        "already stored. Enqueue without connection=, or use 'keep'."
    )
