"""Encodes what is sent to the server as JSON (new jobs, settlements), and enqueues in the caller's own transaction.

Called by backend.py, blocking.py, prepared.py and move.py. Apart from `enqueue_on` and `aenqueue_on`, which use the
caller's connection, it executes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from ...errors import BackendError, BackendUnavailable, ConfigurationError, DuplicateJob, HoldfastError, StoreSealed
from ...lifecycle import Ending, Settlement
from ...records import Enqueued, NewJob
from ..caller_connections import recognise, refuse_autocommit, refuse_kind, sqlalchemy_connection, sqlalchemy_errors
from .connection import AGAIN, FORBIDDEN, NO_STORE, SAFE

_encode = msgspec.json.Encoder().encode
_PARAMETER = re.compile(r"%\((\w+)\)s")
_TAKES = "a psycopg.Connection, or a SQLAlchemy Connection or Session on PostgreSQL"
_TAKES_ASYNC = "a psycopg.AsyncConnection, or a SQLAlchemy AsyncConnection or AsyncSession on PostgreSQL"
_SELDOM = ("key_scope", "key_until", "key_window", "wait_max", "on_expire")  # rare: sent as one object, only if set
SINGLE_FIELDS = (
    "id",
    "task",
    "queue",
    "priority",
    "delay",
    "due_at",
    "expires",
    "max_stalls",
    "args",
    "revival",
    "options",
)
_MAY_SHARE = tuple(
    (name, attrgetter(name)) for name in NewJob.__struct_fields__ if name not in ("id", "args", *_SELDOM)
)
_seldom = attrgetter(*_SELDOM)
_SAYS_NOTHING = _seldom(NewJob(id="", task=""))
_OF_SUCCESS = (("retain", attrgetter("retain")), ("value", attrgetter("value")))
_OURS = re.compile(r"[0-9]{1,18}\.[0-9a-f]+\.[0-9a-f]+g?\Z")  # a token in the format of claim.sql
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def encoded(value: Any) -> str:
    """Encode as JSON text. PostgreSQL text cannot contain NUL, so it becomes the replacement character U+FFFD."""
    content = _encode(value)
    if b"\\u0000" in content:
        content = _NUL.sub(rb"\1\\ufffd", content)
    return content.decode()


def by_column(jobs: Sequence[NewJob]) -> str:
    """New jobs by column, as enqueue.sql expects them: a shared value once, differing values as a list."""
    columns: dict[str, Any] = {"same": {}, "id": [job.id for job in jobs], "args": [job.args for job in jobs]}
    for name, read in _MAY_SHARE:
        values = list(map(read, jobs))
        if values.count(values[0]) == len(values):
            columns["same"][name] = values[0]
        else:
            columns[name] = values
    said = list(map(_seldom, jobs))
    if said.count(said[0]) < len(said):
        columns["more"] = list(map(_more, said))
    elif said[0] != _SAYS_NOTHING:
        columns["same"]["more"] = _more(said[0])
    return encoded(columns)


def is_single(jobs: Sequence[NewJob]) -> bool:
    """Whether this is one job for the fast path in enqueue.sql: no group, no key, no rare options."""
    if len(jobs) != 1:
        return False
    [job] = jobs
    return job.group is None and job.key is None and _seldom(job) == _SAYS_NOTHING


def by_field(job: NewJob) -> dict[str, Any]:
    """One job as parameters of the fast path in enqueue.sql."""
    fields = {name: getattr(job, name) for name in SINGLE_FIELDS}
    return fields if job.revival is None else {**fields, "revival": encoded(job.revival)}


def in_bytes(job: NewJob) -> tuple[list[bytes | None], list[int]]:
    """The same for sending without psycopg's cursor: the values in order, and which of them are binary."""
    fields = by_field(job)
    values = [fields[name] for name in SINGLE_FIELDS]
    return [sent(value) for value in values], [int(isinstance(value, bytes)) for value in values]


def sent(value: Any) -> bytes | None:
    """A parameter in wire format: bytes as they are, everything else as text."""
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _more(values: tuple[object, ...]) -> dict[str, object]:
    """The rare options that differ from their defaults."""
    said = zip(_SELDOM, values, _SAYS_NOTHING, strict=True)
    return {name: value for name, value, usual in said if value != usual}


class Outcomes(msgspec.Struct, frozen=True):
    """Settlements as settle.sql expects them: successes, the common case, by column; the others one by one."""

    successes: str | None
    others: str
    places: list[int] | None  # index of each answer's settlement in the caller's list; None: same order


def outcomes(settlements: Sequence[Settlement]) -> Outcomes:
    """A success goes by column if it is its job's first settlement and the server can parse its token."""
    first: dict[str, int] = {}
    others: list[int] = []
    for place, one in enumerate(settlements):
        if one.ending is Ending.SUCCEEDED and one.id not in first and _OURS.match(one.token):
            first[one.id] = place
        else:
            first.setdefault(one.id, -1)
            others.append(place)
    if not others:
        return Outcomes(_by_column(settlements), "[]", None)
    places = [place for place in first.values() if place >= 0]
    successes = _by_column([settlements[place] for place in places]) if places else None
    return Outcomes(successes, encoded([settlements[place] for place in others]), places + others)


def _by_column(settlements: Sequence[Settlement]) -> str:
    tokens = [one.token for one in settlements]
    columns: dict[str, Any] = {"token": tokens, "id": [one.id for one in settlements]}
    for name, read in _OF_SUCCESS:
        values = list(map(read, settlements))
        if values.count(values[0]) == len(values):
            columns[name] = values[0]
        else:
            columns[name + "s"] = values
    if any(token[-1] == "g" for token in tokens):
        columns["grouped"] = True
    return encoded(columns)


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What enqueueing in a caller's transaction needs: the statement, the expected store, and the lock timeout.

    `store` None: accept any store in that schema.
    """

    text: str
    schema: str
    store: str | None
    wait_seconds: float

    def values(self, jobs: Sequence[NewJob]) -> dict[str, Any]:
        return {"jobs": by_column(jobs), "store": self.store, "millis": max(1, int(self.wait_seconds * 1000))}

    def answers(self, row: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Decode the server's reply or raise its refusal. Either way the caller's transaction stays usable."""
        answer = _as_joined(row[0])
        if isinstance(answer, list):
            return [Enqueued(id, created) for id, created in answer]
        if isinstance(answer, bool):  # all jobs are new
            return [Enqueued(job.id, True) for job in jobs]
        if answer.refused == "duplicate":
            raise DuplicateJob(answer.key, answer.existing_id)
        if answer.refused == "sealed":
            raise StoreSealed(answer.role, answer.stage, answer.other)
        if answer.refused == "busy":
            raise BackendUnavailable(
                "another open transaction enqueues the same id or key, and whether it commits is not known yet. "
                "Nothing of this call was stored; your transaction goes on. Try again when the other has ended."
            )
        if answer.refused == "replace":
            raise ConfigurationError(
                "on_conflict='replace' and 'debounce' cannot be used with connection=: they would have to move a job "
                "that is already in play. Enqueue without connection=, or use 'keep'."
            )
        raise ConfigurationError(
            f"the connection given is open on another database than this app's store: its schema {self.schema!r} "
            "belongs to a different store. Open it on the app's own database, or enqueue without connection=."
        )


class _Refused(msgspec.Struct, frozen=True):
    refused: Literal["busy", "duplicate", "other store", "replace", "sealed"]
    key: str = ""
    existing_id: str = ""
    role: str = ""
    stage: str = ""
    other: str = ""


_as_joined = msgspec.json.Decoder(bool | list[tuple[str, bool]] | _Refused).decode


def enqueue_on(connection: Any, joined: Joined, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueue by one statement in the caller's transaction: the jobs are visible if and only if it commits."""
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        return _on_sqlalchemy(connection, joined, jobs)
    if caller.library != "psycopg" or caller.is_async:
        refuse_kind(caller, "PostgreSQL", _TAKES)
    _check_begun(connection)
    try:
        with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            row = cursor.execute(joined.text, joined.values(jobs)).fetchone()
    except psycopg.Error as error:
        raise _mapped(error, joined.schema) from error
    return joined.answers(row, jobs)


async def aenqueue_on(connection: Any, joined: Joined, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Like `enqueue_on`, through an async connection on the caller's own loop."""
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        answers: list[Enqueued] = await connection.run_sync(_on_sqlalchemy, joined, jobs)
        return answers
    if caller.library != "psycopg" or not caller.is_async:
        refuse_kind(caller, "PostgreSQL", _TAKES_ASYNC)
    _check_begun(connection)
    try:
        async with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(joined.text, joined.values(jobs))
            row = await cursor.fetchone()
    except psycopg.Error as error:
        raise _mapped(error, joined.schema) from error
    return joined.answers(row, jobs)


def _on_sqlalchemy(given: Any, joined: Joined, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Uses SQLAlchemy's text(), so that any of its PostgreSQL drivers works."""
    text: Any = sys.modules["sqlalchemy"].text
    with sqlalchemy_errors(lambda error: _mapped(error, joined.schema)):
        connection = sqlalchemy_connection(given)
        if connection.dialect.name != "postgresql":
            refuse_kind(recognise(given), "PostgreSQL", _TAKES)
        if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
            refuse_autocommit()
        row = connection.execute(text(_PARAMETER.sub(r":\1", joined.text)), joined.values(jobs)).fetchone()
    return joined.answers(row, jobs)


def _check_begun(connection: Any) -> None:
    if connection.closed:
        raise ConfigurationError("the connection given is closed. Open it, or enqueue without connection=.")
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        refuse_autocommit()


def _mapped(error: BaseException, schema: str) -> HoldfastError:
    """Map any driver's error to ours. A failure here has aborted the caller's transaction."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    if state in NO_STORE:
        return ConfigurationError(
            f"there is no store of this version in the schema {schema!r} of the database your connection is open on. "
            "Open it on the app's own database; if it is, run `holdfast migrate` once. Roll your transaction back."
        )
    if state in AGAIN:
        return BackendUnavailable("your transaction met a rival and cannot go on. Roll it back and run it again.")
    if state == "25P02":
        return BackendError("your transaction has already failed. Roll it back; nothing can be enqueued in it.")
    if state in SAFE:
        return BackendUnavailable(f"PostgreSQL: {SAFE[state]} Roll your transaction back.")
    if state == FORBIDDEN:
        return ConfigurationError(
            f"the role of your connection may not enqueue in the schema {schema!r}. "
            "Grant it USAGE on the schema, INSERT and SELECT on its ids and jobs (there UPDATE, too, for keys with a "
            "window), SELECT on pauses, bounds and schema_version, and SELECT and UPDATE on seal."
        )
    if not state:
        return BackendUnavailable("the connection given was lost, and its transaction with it: nothing was enqueued.")
    return BackendError(f"PostgreSQL failed during enqueue in your transaction ({state}). Roll it back.")
