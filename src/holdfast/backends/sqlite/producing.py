"""enqueue and declare on SQLite, on our writer's cursor or on the caller's own.

Called by backend.py. What is inserted is decided here as plain rows; the unique indexes decide about ids and keys.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import BackendError, ConfigurationError, DuplicateJob, HoldfastError, SchemaMismatch
from ...lifecycle import State
from ...records import Enqueued, NewJob
from ...rules import QueueRule
from .. import sealing
from ..callers import recognise, refuse_autocommit, refuse_kind, sqlalchemy_connection, sqlalchemy_errors
from .connection import SCHEMA_VERSION, errors_mapped, mapped
from .transaction import LANE_GROUPED, LANE_UNGROUPED, SQL, Transaction, encoded

Execute = Callable[..., Any]  # a statement and its values in, something with rowcount and fetchone out

_INSERT = SQL["enqueue.insert"]
_TAKES = "a sqlite3.Connection, or a SQLAlchemy Connection or Session on SQLite"
_TAKES_ASYNC = "a SQLAlchemy AsyncConnection or AsyncSession on SQLite"


def declare(tx: Transaction, rules: Sequence[QueueRule]) -> None:
    execute = tx.cursor.execute
    for rule in rules:
        limit = 1 if rule.group_order == "strict" else rule.group_limit
        before = execute(SQL["declare.rule"], (rule.name,)).fetchone()
        if before == (limit, rule.group_order):
            continue
        tx.refuse_sealed()
        execute(SQL["declare.store"], (rule.name, limit, rule.group_order))
        tx.rules_changed()
        for (group,) in execute(SQL["declare.groups_of"], (rule.name,)).fetchall():
            tx.withdraw(rule.name, group)
    tx.close()


def _times(job: NewJob, now: float) -> tuple[float, float | None]:
    due_at = job.due_at if job.due_at is not None else now + (job.delay or 0.0)
    return due_at, None if job.expires is None else due_at + job.expires


def _row(tx: Transaction, job: NewJob, turn: int) -> tuple[Any, ...]:
    """The row of a new job: scheduled until due, else ready, or waiting for its group's refill."""
    due_at, expires_at = _times(job, tx.now)
    if due_at > tx.now:
        state, taken = "scheduled", None
    elif job.group is None:
        state, taken = "ready", turn
    else:
        state, taken = "waiting", None
    return (
        job.id,
        job.task,
        job.queue,
        state,
        job.priority,
        job.group,
        job.key,
        tx.lane_of(job.task, job.group),
        taken,
        job.max_stalls,
        tx.now,
        due_at,
        expires_at,
        job.args,
        None if job.revival is None else encoded(job.revival),
        job.options,
    )


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs in one step. The common case is one statement for all; a known id or key makes it go one by one."""
    tx.refuse_sealed()
    first = tx.ticks(len(jobs))
    rows = [_row(tx, job, first + place) for place, job in enumerate(jobs)]
    cursor = tx.cursor
    cursor.execute("SAVEPOINT enqueue")
    if cursor.executemany(_INSERT, rows).rowcount == len(jobs):
        answers = [Enqueued(job.id, True) for job in jobs]
    else:
        cursor.execute("ROLLBACK TO enqueue")
        answers = [_enqueue_one(tx, job, row) for job, row in zip(jobs, rows, strict=True)]
    cursor.execute("RELEASE enqueue")
    for job, row in zip(jobs, rows, strict=True):
        if job.group is not None and row[3] == "waiting":
            tx.touch(job.queue, job.group)
    tx.close()
    return answers


def _enqueue_one(tx: Transaction, job: NewJob, row: tuple[Any, ...]) -> Enqueued:
    execute = tx.cursor.execute
    if execute(_INSERT, row).rowcount:
        return Enqueued(job.id, True)
    if execute(SQL["enqueue.known"], (job.id,)).fetchone():
        return Enqueued(job.id, False)
    live_id, state, group = execute(SQL["enqueue.live_key"], (job.queue, job.task, job.key)).fetchone()
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), live_id)
    if job.on_conflict == "keep" or state == State.RUNNING:
        return Enqueued(live_id, False)
    (
        _,
        _,
        _,
        new_state,
        priority,
        new_group,
        _,
        lane,
        turn,
        max_stalls,
        _,
        due_at,
        expires_at,
        args,
        revival,
        options,
    ) = row
    changed = (new_state, priority, new_group, lane, turn, max_stalls, due_at, expires_at, args, revival, options)
    execute(SQL["enqueue.replace"], (*changed, new_group, live_id))
    for touched in {group, new_group} - {None}:
        tx.touch(job.queue, touched)
    return Enqueued(live_id, False, replaced=True)


def enqueue_on(connection: Any, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    """Plain INSERTs through the caller's own connection and transaction: seen if and only if it commits."""
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        with sqlalchemy_errors(lambda error: _mapped(error, path)):
            inner = sqlalchemy_connection(connection)
            if inner.dialect.name != "sqlite":
                refuse_kind(caller, "SQLite", _TAKES)
            _check_begun(inner.connection.dbapi_connection)
            return _join(inner.exec_driver_sql, path, jobs, now)
    if caller.library != "sqlite3":
        refuse_kind(caller, "SQLite", _TAKES)
    with errors_mapped(path):
        cursor = connection.cursor()
        cursor.row_factory = None
        _check_begun(connection)
        return _join(cursor.execute, path, jobs, now)


async def aenqueue_on(connection: Any, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    """As `enqueue_on`, through SQLAlchemy's async connections."""
    caller = recognise(connection)
    if caller.library != "sqlalchemy":
        refuse_kind(caller, "SQLite", _TAKES_ASYNC)
    answers: list[Enqueued] = await connection.run_sync(enqueue_on, path, jobs, now)
    return answers


def _mapped(error: BaseException, path: str) -> HoldfastError:
    if isinstance(error, sqlite3.Error):
        return mapped(error, path)
    return BackendError(f"{os.path.basename(path)}: the driver failed ({type(error).__name__}).")


def _check_begun(connection: Any) -> None:
    """Without a transaction to join, every INSERT would be stored at once."""
    if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
        mode = getattr(connection, "autocommit", None)  # True, False, or as before Python 3.12
        if mode is True or (mode is not False and connection.isolation_level is None):
            refuse_autocommit()


def _join(execute: Execute, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    _check_same_store(execute, path)
    return [_join_one(execute, job, now) for job in jobs]


def _check_same_store(execute: Execute, path: str) -> None:
    found = execute("PRAGMA database_list").fetchall()
    files = [_text(row[2]) for row in found if _text(row[1]) == "main"]
    if not files or not files[0] or not os.path.exists(path) or not os.path.samefile(files[0], path):
        raise ConfigurationError(
            f"the connection given is open on another database than this app's store ({os.path.basename(path)}). "
            "Open it on the same file, or enqueue without connection=."
        )
    if execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_schema'").fetchone() is None:
        raise ConfigurationError(
            "the store is not set up yet, and cannot be inside your transaction. "
            "Call app.open() before it begins, or run `holdfast migrate` once."
        )
    version = execute("SELECT version FROM holdfast_schema").fetchone()
    if version is None or version[0] != SCHEMA_VERSION:
        raise SchemaMismatch(0 if version is None else version[0], SCHEMA_VERSION)


def _join_one(execute: Execute, job: NewJob, now: float) -> Enqueued:
    due_at, expires_at = _times(job, now)
    lane = LANE_UNGROUPED if job.group is None else LANE_GROUPED
    revival = None if job.revival is None else encoded(job.revival)
    place = (job.id, job.task, job.queue, job.priority, job.group, job.key, lane, job.max_stalls)
    row = (*place, now, due_at, expires_at, job.args, revival, job.options)
    if execute(SQL["enqueue.joined"], row).rowcount:
        return Enqueued(job.id, True)
    closed = execute(SQL["seal.closed"]).fetchone()
    if closed is not None:
        raise sealing.refusal(sealing.read(closed[0]))
    if execute(SQL["enqueue.known"], (job.id,)).fetchone():
        return Enqueued(job.id, False)
    live = execute(SQL["enqueue.live_key"], (job.queue, job.task, job.key)).fetchone()
    live_id, state = _text(live[0]), _text(live[1])
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), live_id)
    if job.on_conflict == "keep" or state == State.RUNNING:
        return Enqueued(live_id, False)
    raise ConfigurationError(
        "on_conflict='replace' cannot be used with connection=: it would have to move a job that is already in play. "
        "Enqueue without connection=, or use 'keep'."
    )


def _text(value: Any) -> str:
    """The caller's connection may hand out text as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
