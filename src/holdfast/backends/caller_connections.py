"""The caller's connection, given as connection=: its kind, and whether it can be used to enqueue a job.

Called by the app and by the stores' `enqueue_on`. Drivers are recognised only if the caller has imported them: this
module imports none and executes no statement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from msgspec import Struct

from ..errors import ConfigurationError, HoldfastError
from ..records import NewJob

Library = Literal["sqlite3", "psycopg", "asyncpg", "sqlalchemy", "django", "unknown"]

_KNOWN: tuple[tuple[str, str, Library, bool], ...] = (
    ("sqlite3", "Connection", "sqlite3", False),
    ("psycopg", "Connection", "psycopg", False),
    ("psycopg", "AsyncConnection", "psycopg", True),
    ("asyncpg", "Connection", "asyncpg", True),  # also those of its pools
    ("sqlalchemy.engine", "Connection", "sqlalchemy", False),
    ("sqlalchemy.orm", "Session", "sqlalchemy", False),
    ("sqlalchemy.orm", "scoped_session", "sqlalchemy", False),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", "sqlalchemy", True),
    ("sqlalchemy.ext.asyncio", "AsyncSession", "sqlalchemy", True),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", "sqlalchemy", True),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", "django", False),
    ("django.utils.connection", "ConnectionProxy", "django", False),
)
_NOT_BEGUN = (
    "the connection given is in autocommit mode and no transaction is open on it, so there is none to join. "
    "Open a transaction first, or enqueue without connection=."
)


class Caller(Struct, frozen=True):
    """The kind of connection: the library, sync or async (None: unknown), and its name for error messages."""

    library: Library
    is_async: bool | None
    name: str


def recognise(connection: Any) -> Caller:
    """The kind of connection, by the driver classes that are already imported."""
    kind = type(connection)
    name = f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"
    for module, wanted, library, is_async in _KNOWN:
        found = getattr(sys.modules.get(module), wanted, None)
        if isinstance(found, type) and isinstance(connection, found):
            return Caller(library, is_async, name)
    return Caller("unknown", None, name)


def refuse_kind(caller: Caller, store: str, takes: str) -> NoReturn:
    """Raise the error for a kind of connection the store cannot use; it lists the kinds it can use."""
    if caller.library == "django":
        raise ConfigurationError(
            "connection= was given a Django connection, which only the app of holdfast.django accepts. Use that app: "
            "`from holdfast.django import app`. It follows atomic() by itself."
        )
    raise ConfigurationError(
        f"connection= takes {takes} here, as the jobs are in {store}; it was given a {caller.name}. "
        "Give one of these, open on the app's own database, or enqueue without connection=."
    )


def refuse_autocommit() -> NoReturn:
    """Raise the error for a connection without a transaction to join."""
    raise ConfigurationError(_NOT_BEGUN)


def is_begun(connection: Any) -> bool:
    """Whether a transaction is open on a sqlite3 or SQLAlchemy connection or session."""
    begun = getattr(connection, "in_transaction", False)
    return bool(begun() if callable(begun) else begun)


def unscoped(given: Any) -> Any:
    """The SQLAlchemy session behind a scoped_session or async_scoped_session; anything else as it is."""
    return given() if hasattr(given, "registry") and callable(given) else given


def sqlalchemy_connection(given: Any) -> Any:
    """The sync Connection behind a SQLAlchemy Connection or Session; begins its transaction as a statement would."""
    found = getattr(sys.modules.get("sqlalchemy.engine"), "Connection", None)
    connection: Any = given if isinstance(found, type) and isinstance(given, found) else given.connection()
    if not connection.in_transaction():
        connection.begin()
    return connection


@contextmanager
def sqlalchemy_errors(mapped: Callable[[BaseException], HoldfastError]) -> Iterator[None]:
    """Translate SQLAlchemy's errors, by the driver's original error if there is one."""
    errors: Any = sys.modules["sqlalchemy.exc"]
    try:
        yield
    except errors.SQLAlchemyError as error:
        driver_error = getattr(error, "orig", None)
        if driver_error is not None:
            raise mapped(driver_error) from error
        raise ConfigurationError(
            f"the SQLAlchemy connection given cannot be used: {str(error).splitlines()[0]}"
        ) from error


def refuse_parents(jobs: Sequence[NewJob]) -> None:
    """Plain INSERTs cannot know whether a parent ends meanwhile."""
    if any(job.after for job in jobs):
        raise ConfigurationError(
            "after= and connection= do not go together: a job that waits for others is stored in a step of its own. "
            "Enqueue it after your transaction has committed."
        )
    if any(job.before for job in jobs):
        raise ConfigurationError(
            "a job of a batch cannot join your own transaction: it is stored in a step of its own. "
            "Enqueue it after your transaction has committed."
        )
