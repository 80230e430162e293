"""What goes to the server as JSON, and enqueue in the caller's own transaction.

Called by backend.py. Plain functions: what is sent is decided here, where it is executed is the caller's affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from ...errors import ConfigurationError, DuplicateJob
from ...lifecycle import State
from ...records import Enqueued, NewJob
from .connection import mapped

_encode = msgspec.json.Encoder().encode
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def encoded(value: Any) -> str:
    """As JSON text. PostgreSQL's text cannot hold NUL: in words people wrote it becomes the replacement character."""
    content = _encode(value)
    if b"\\u0000" in content:
        content = _NUL.sub(rb"\1\\ufffd", content)
    return content.decode()


def enqueue_on(connection: Any, sql: Mapping[str, str], jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Plain INSERTs through the caller's own connection and transaction: seen if and only if it commits."""
    if not isinstance(connection, psycopg.Connection):
        raise ConfigurationError(
            f"connection= takes a psycopg.Connection here, not {type(connection).__module__}."
            f"{type(connection).__qualname__}."
        )
    try:
        with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            return [_join_one(cursor, sql, job) for job in jobs]
    except psycopg.Error as error:
        raise mapped(error, "enqueue", writes=True, broken=bool(connection.closed)) from error


def _join_one(cursor: psycopg.Cursor[Any], sql: Mapping[str, str], job: NewJob) -> Enqueued:
    if cursor.execute(sql["enqueue.joined"], {"jobs": encoded([job])}).fetchone():
        return Enqueued(job.id, True)
    place = {"queue": job.queue, "task": job.task, "key": job.key}
    row = cursor.execute(sql["enqueue.live_key"], place).fetchone()
    if row is None or row[0] == job.id or cursor.execute(sql["enqueue.known"], {"id": job.id}).fetchone():
        return Enqueued(job.id, False)
    if job.on_conflict == "raise":
        raise DuplicateJob(str(job.key), row[0])
    if job.on_conflict == "keep" or row[1] == State.RUNNING:
        return Enqueued(row[0], False)
    raise ConfigurationError(
        "on_conflict='replace' cannot be used with connection=: it would have to move a job that is already in play. "
        "Enqueue without connection=, or use 'keep'."
    )
