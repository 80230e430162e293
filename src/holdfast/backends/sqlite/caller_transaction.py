"""enqueue_on: stores jobs through the caller's own connection, inside the caller's transaction.

Called by backend.py on the caller's thread. Plain INSERTs and nothing else, except for clearing the flag of a key whose
window has passed: every job is stored as `scheduled`, and promote brings it into play.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from ...errors import BackendError, ConfigurationError, DuplicateJob, HoldfastError, SchemaMismatch
from ...lifecycle import UNSTARTED
from ...records import Enqueued, NewJob
from .. import seals
from ..caller_connections import recognise, refuse_autocommit, refuse_kind, sqlalchemy_connection, sqlalchemy_errors
from . import unique_keys
from .columns import LANE_UNGROUPED, SQL
from .connection import SCHEMA_VERSION, errors_mapped, mapped
from .enqueue import beyond, due_time, row_of
from .unique_keys import Execute

_TAKES = "a sqlite3.Connection, or a SQLAlchemy Connection or Session on SQLite"
_TAKES_ASYNC = "a SQLAlchemy AsyncConnection or AsyncSession on SQLite"


def enqueue_on(connection: Any, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    """Plain INSERTs through the caller's connection and transaction: visible if and only if it commits."""
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
    """Like `enqueue_on`, through SQLAlchemy's async connections."""
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
    """Without a transaction to join, every INSERT would be committed at once."""
    if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
        mode = getattr(connection, "autocommit", None)  # True, False, or as before Python 3.12
        if mode is True or (mode is not False and connection.isolation_level is None):
            refuse_autocommit()


def _join(execute: Execute, path: str, jobs: Sequence[NewJob], now: float) -> list[Enqueued]:
    _check_same_store(execute, path)
    return [_join_one(execute, job, now) for job in jobs]


def _check_same_store(execute: Execute, path: str) -> None:
    found = execute("PRAGMA database_list").fetchall()
    files = [unique_keys.as_str(row[2]) for row in found if unique_keys.as_str(row[1]) == "main"]
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
    row = (*row_of(job, now, due_time(job, now), "scheduled", LANE_UNGROUPED, None), *beyond(job, now, 0))
    if execute(SQL["enqueue.joined"], row).rowcount:
        return Enqueued(job.id, True)
    closed = execute(SQL["seal.closed"]).fetchone()
    if closed is not None:
        raise seals.refusal(seals.read(closed[0]))
    if execute(SQL["enqueue.known"], (job.id,)).fetchone():
        return Enqueued(job.id, False)
    holder = unique_keys.holder_of(execute, unique_keys.place_of_key(job), job.task, job.key)
    if holder is None or holder.window_passed(now):
        if holder is not None:
            unique_keys.free(execute, holder)
        return Enqueued(job.id, execute(SQL["enqueue.joined"], row).rowcount > 0)
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), holder.id)
    if job.on_conflict == "keep" or holder.state not in UNSTARTED:
        return Enqueued(holder.id, False)
    raise ConfigurationError(
        f"on_conflict={job.on_conflict!r} cannot be used with connection=: it would have to move a job that is already "
        "in play. Enqueue without connection=, or use 'keep'."
    )
