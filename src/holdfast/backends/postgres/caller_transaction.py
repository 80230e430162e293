"""Enqueue and settle in the caller's own transaction, through its connection.

Called by backend.py, on the caller's thread or loop. One statement each; it never commits or rolls back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from ...errors import BackendError, BackendUnavailable, ConfigurationError, DuplicateJob, HoldfastError, StoreSealed
from ...lifecycle import Settlement
from ...records import Answer, Enqueued, NewJob
from ..caller_connections import (
    recognise,
    refuse_autocommit,
    refuse_kind,
    refuse_parents,
    sqlalchemy_connection,
    sqlalchemy_errors,
    unscoped,
)
from .codec import by_column, encoded
from .connection import AGAIN, FORBIDDEN, NO_STORE, SAFE

_PARAMETER = re.compile(r"%\((\w+)\)s")
_TAKES = "a psycopg.Connection, or a SQLAlchemy Connection or Session on PostgreSQL"
_TAKES_ASYNC = (
    "a psycopg.AsyncConnection, an asyncpg.Connection, or a SQLAlchemy AsyncConnection or AsyncSession on PostgreSQL"
)


ENQUEUE_RIGHTS = (
    "USAGE on the schema, INSERT and SELECT on its ids and jobs (there UPDATE, too, for keys with a window), SELECT on "
    "pauses, bounds and schema_version (and queues, for jobs with an order), and SELECT and UPDATE on seal"
)
SETTLE_RIGHTS = (
    "USAGE on the schema, SELECT and UPDATE on its jobs, SELECT on ids, tasks, edges and schema_version, SELECT and "
    "INSERT on retained and propagating, and SELECT, UPDATE and DELETE on letters"
)


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a call in a caller's transaction needs: the statement, the expected store, and the lock timeout.

    `store` None: accept any store in that schema.
    """

    text: str
    schema: str
    store: str | None
    wait_seconds: float
    rights: str = ENQUEUE_RIGHTS  # what the caller's role needs

    def values(self, **values: Any) -> dict[str, Any]:
        return {**values, "store": self.store, "millis": max(1, int(self.wait_seconds * 1000))}

    def other_store(self) -> ConfigurationError:
        return ConfigurationError(
            f"the connection given is open on a different database, not this app's store: the schema {self.schema!r} "
            "there belongs to another store. Open it on the app's own database, or leave out connection=."
        )

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
                "Nothing of this call was stored; your transaction can continue. Try again when the other has ended."
            )
        if answer.refused == "replace":
            raise ConfigurationError(
                "on_conflict='replace', 'debounce' and 'extend' cannot be used with connection=: they would have to "
                "change a job that is already stored. Enqueue without connection=, or use 'keep'."
            )
        raise self.other_store()

    def settled(self, row: Any) -> Answer:
        """The server's answer to the settlement."""
        if row[0] == "other store":
            raise self.other_store()
        return Answer(row[0])


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
    refuse_parents(jobs)
    return joined.answers(_execute(connection, joined, joined.values(jobs=by_column(jobs))), jobs)


async def aenqueue_on(connection: Any, joined: Joined, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Like `enqueue_on`, through an async connection on the caller's own loop."""
    refuse_parents(jobs)
    return joined.answers(await _aexecute(connection, joined, joined.values(jobs=by_column(jobs))), jobs)


def settle_on(connection: Any, joined: Joined, settlement: Settlement) -> Answer:
    """End a lease by one statement in the caller's transaction: it is over if and only if that commits."""
    return joined.settled(_execute(connection, joined, joined.values(settlement=encoded(settlement))))


async def asettle_on(connection: Any, joined: Joined, settlement: Settlement) -> Answer:
    """Like `settle_on`, through an async connection on the caller's own loop."""
    return joined.settled(await _aexecute(connection, joined, joined.values(settlement=encoded(settlement))))


def _execute(connection: Any, joined: Joined, values: dict[str, Any]) -> Any:
    """The row that the statement returns, executed in the caller's transaction."""
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        return _on_sqlalchemy(connection, joined, values)
    if caller.library != "psycopg" or caller.is_async:
        refuse_kind(caller, "PostgreSQL", _TAKES)
    _check_begun(connection)
    try:
        with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(joined.text, values).fetchone()
    except psycopg.Error as error:
        raise mapped_error(error, joined.schema, joined.rights) from error


async def _aexecute(connection: Any, joined: Joined, values: dict[str, Any]) -> Any:
    caller = recognise(connection)
    if caller.library == "sqlalchemy":
        return await unscoped(connection).run_sync(_on_sqlalchemy, joined, values)
    if caller.library == "asyncpg":
        return await _on_asyncpg(connection, joined, values)
    if caller.library != "psycopg" or not caller.is_async:
        refuse_kind(caller, "PostgreSQL", _TAKES_ASYNC)
    _check_begun(connection)
    try:
        async with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(joined.text, values)
            return await cursor.fetchone()
    except psycopg.Error as error:
        raise mapped_error(error, joined.schema, joined.rights) from error


def shares_database(connection: Any, joined: Joined) -> bool:
    """Whether a psycopg connection sees this very store. A savepoint keeps its transaction usable if it does not."""
    caller = recognise(connection)
    if caller.library != "psycopg" or caller.is_async or connection.closed or joined.store is None:
        return False
    inside = connection.info.transaction_status != TransactionStatus.IDLE or not connection.autocommit
    try:
        with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            if inside:
                cursor.execute("SAVEPOINT holdfast_look")
            try:
                cursor.execute(f'SELECT store::text FROM "{joined.schema}".schema_version')  # noqa: S608 - it was checked
                row = cursor.fetchone()
            except psycopg.errors.SyntaxErrorOrAccessRuleViolation:  # no such schema or table, or no right to it
                row = None
            if inside:
                cursor.execute("ROLLBACK TO SAVEPOINT holdfast_look; RELEASE SAVEPOINT holdfast_look")
    except psycopg.Error as error:
        raise mapped_error(error, joined.schema, joined.rights) from error
    return row is not None and row[0] == joined.store


def _on_sqlalchemy(given: Any, joined: Joined, values: dict[str, Any]) -> Any:
    """Uses SQLAlchemy's text(), so that any of its PostgreSQL drivers works."""
    text: Any = sys.modules["sqlalchemy"].text
    with sqlalchemy_errors(lambda error: mapped_error(error, joined.schema, joined.rights)):
        connection = sqlalchemy_connection(given)
        if connection.dialect.name != "postgresql":
            refuse_kind(recognise(given), "PostgreSQL", _TAKES)
        if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
            refuse_autocommit()
        return connection.execute(text(_PARAMETER.sub(r":\1", joined.text)), values).fetchone()


async def _on_asyncpg(connection: Any, joined: Joined, values: dict[str, Any]) -> Any:
    """asyncpg numbers its parameters and has no transaction unless one was begun explicitly."""
    asyncpg: Any = sys.modules["asyncpg"]
    given = list(dict.fromkeys(_PARAMETER.findall(joined.text)))
    text = _PARAMETER.sub(lambda name: f"${given.index(name[1]) + 1}", joined.text)
    try:
        if connection.is_closed():
            _refuse_closed()
        if not connection.is_in_transaction():
            refuse_autocommit()
        return await connection.fetchrow(text, *(values[name] for name in given))
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise mapped_error(error, joined.schema, joined.rights) from error


def _check_begun(connection: Any) -> None:
    if connection.closed:
        _refuse_closed()
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        refuse_autocommit()


def _refuse_closed() -> NoReturn:
    raise ConfigurationError("the connection given is closed. Open it, or enqueue without connection=.")


def mapped_error(error: BaseException, schema: str, rights: str = ENQUEUE_RIGHTS) -> HoldfastError:
    """Map any driver's error to ours. A failure here has aborted the caller's transaction."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    if state in NO_STORE:
        return ConfigurationError(
            f"there is no store of this version in the schema {schema!r} of the database your connection is open on. "
            "Open it on the app's own database; if it is, run `holdfast migrate` once. Roll your transaction back."
        )
    if state in AGAIN:
        return BackendUnavailable("your transaction conflicts with another one. Roll it back and run it again.")
    if state == "25P02":
        return BackendError("your transaction has already failed. Roll it back; nothing can be stored in it.")
    if state in SAFE:
        return BackendUnavailable(f"PostgreSQL: {SAFE[state]} Roll your transaction back.")
    if state == FORBIDDEN:
        return ConfigurationError(
            f"the role of your connection lacks a right in the schema {schema!r}. Grant it {rights}."
        )
    if not state:
        return BackendUnavailable("the connection given was lost, and its transaction with it: nothing was stored.")
    return BackendError(f"PostgreSQL failed in your transaction ({state}). Roll it back.")
