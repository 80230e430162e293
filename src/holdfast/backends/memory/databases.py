"""In-memory databases: copies of one migrated database; each serves one store, is emptied and serves the next.

Called by the memory backend. Preparing the statements of a new connection costs more than a small test does with them,
so a connection outlives its store. Knows nothing about jobs.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from functools import cache

from ..sqlite.connection import check_version, migrated_in_memory

IDLE_MAX = 4  # one process rarely has more stores alive at once
IDLE_PAGES_MAX = 1024  # a larger one is closed, to return its memory to the system

_copying = threading.Lock()
_idle: list[sqlite3.Connection] = []


def database_for(owner: object) -> sqlite3.Connection:
    """The database of an empty store, for as long as its owner lives."""
    try:
        connection = _idle.pop()
    except IndexError:
        connection = _copy()
    weakref.finalize(owner, _take_back, connection).atexit = False
    return connection


def _copy() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute("PRAGMA temp_store = MEMORY")
    with _copying:
        _image().backup(connection)
        _emptying()
    return connection


@cache
def _image() -> sqlite3.Connection:
    check_version()
    return migrated_in_memory()


@cache
def _emptying() -> tuple[tuple[str, tuple[object, ...]], ...]:
    """The statements that reset a database to the image: no rows except those of a new store."""
    tables = [name for (name,) in _image().execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    statements: list[tuple[str, tuple[object, ...]]] = [(f"DELETE FROM {table}", ()) for table in tables]  # noqa: S608
    for table in tables:
        for row in _image().execute(f"SELECT * FROM {table}"):  # noqa: S608 - the names are ours
            places = ", ".join("?" * len(row))
            statements.append((f"INSERT INTO {table} VALUES ({places})", row))  # noqa: S608
    return tuple(statements)


def _take_back(connection: sqlite3.Connection) -> None:
    """Reuse or close the connection. May run anywhere, even in the garbage collector, so it takes no lock."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    [(pages,)] = connection.execute("PRAGMA page_count")
    if len(_idle) >= IDLE_MAX or pages > IDLE_PAGES_MAX:
        connection.close()
        return
    connection.execute("BEGIN")
    for statement, row in _emptying():
        connection.execute(statement, row)
    connection.execute("COMMIT")
    _idle.append(connection)


# A fork during a copy would leave the child with a lock that is never released.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_copying.acquire, after_in_parent=_copying.release, after_in_child=_copying.release)
