"""The memory store: the verbs of the SQLite store on a database in this process's memory.

Called by the app, the sandbox and every test that needs no file. Each verb is one critical section under one lock that
is never held across an await, so any loop and any thread may call it. It needs no thread of its own, stores nothing
outside its process and never calls user code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import ClassVar, NoReturn, TypeVar

from ...clock import Clock
from ...errors import ConfigurationError
from ...records import Enqueued, NewJob
from . import claim, enqueue
from .backend import BRING_NO_WORK, SqliteVerbs
from .connection import SCHEMA_VERSION, Transaction, called_inside, mapped
from .schema import check_version, migrated_in_memory

# ----------------------------------------------------------------------------------------------------------------------
# In-memory databases: copies of one migrated database; each serves one store, is emptied and serves the next.
# Preparing the statements of a new connection costs more than a small test does with them, so a connection outlives its
# store.


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


# ----------------------------------------------------------------------------------------------------------------------
# The store


T = TypeVar("T")

WAIT_SECONDS_MIN = 0.001  # for a due time that has arrived except for rounding


class MemoryBackend(SqliteVerbs):
    """A job store in this process's memory. It lives as long as this object: closing it loses nothing."""

    scheme: ClassVar[str] = "memory"
    durable: ClassVar[bool] = False
    any_loop: ClassVar[bool] = True  # no call awaits anything except wait_for_work

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._lock = threading.Lock()
        self._inside = 0  # the thread inside the critical section
        self._database: sqlite3.Connection | None = None
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        _alive.add(self)

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        with self._section("open"):
            return

    async def close(self) -> None:
        return None

    async def migrate(self) -> tuple[int, int]:
        return SCHEMA_VERSION, SCHEMA_VERSION

    # ------------------------------------------------------------------ critical sections

    def _cursor(self) -> sqlite3.Cursor:
        if self._database is None:
            self._database = database_for(self)
        return self._database.cursor()

    @contextlib.contextmanager
    def _section(self, verb: str) -> Iterator[sqlite3.Cursor]:
        """One critical section; maps sqlite3 errors to ours."""
        if self._inside == threading.get_ident():
            raise called_inside(verb)
        with self._lock:
            self._inside = threading.get_ident()
            try:
                yield self._cursor()
            except sqlite3.Error as error:
                raise mapped(error, "memory") from error
            finally:
                self._inside = 0

    def _write_here(self, verb: str, work: Callable[[Transaction], T], now: float | None) -> T:
        """Run the work completely or not at all, even on an interrupt."""
        with self._section(verb) as cursor:
            try:
                cursor.execute("BEGIN")
                answer = work(self._transaction(cursor, now))
                cursor.execute("COMMIT")
            except BaseException:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
                raise
            if self._waiting and verb not in BRING_NO_WORK:
                self._wake()
            return answer

    async def _write(
        self, verb: str, work: Callable[[Transaction], T], now: float | None, *, urgent: bool = False
    ) -> T:
        return self._write_here(verb, work, now)

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._write_here("enqueue", lambda tx: enqueue.enqueue(tx, jobs), None) if jobs else []

    async def _read(self, verb: str, work: Callable[[sqlite3.Cursor], T]) -> T:
        with self._section(verb) as cursor:
            return work(cursor)

    def _refuse_to_join(self) -> NoReturn:
        raise ConfigurationError(
            "memory:// cannot join a caller's transaction. In tests use holdfast.testing.sandbox(app), which follows "
            "it; elsewhere enqueue without connection=."
        )

    # ------------------------------------------------------------------ waiting

    def _wake(self) -> None:
        """Wake all waiters, so that they check again."""
        for event, loop in self._waiting.items():
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop was closed meanwhile: nobody waits there any more

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        deadline, event = time.monotonic() + timeout, asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            until_work = self._until_work(queues)
            if until_work <= 0:
                return True
            while (seconds := min(until_work, deadline - time.monotonic())) > 0:
                event.clear()
                try:
                    async with asyncio.timeout(seconds):
                        await event.wait()
                except TimeoutError:
                    break
                until_work = self._until_work(queues)
            return False
        finally:
            with self._lock:
                del self._waiting[event]

    def _until_work(self, queues: Sequence[str]) -> float:
        """Seconds until something may be claimable; 0 if something is."""
        wall = self._clock.wall()
        with self._section("wait_for_work") as cursor:
            at_hand, next_due = claim.work_at_hand(cursor, queues, wall)
        if at_hand:
            return 0.0
        return float("inf") if next_due is None else max(WAIT_SECONDS_MIN, next_due - wall)


# A fork during another thread's critical section would copy a torn store and a lock that is never released.
_alive: weakref.WeakSet[MemoryBackend] = weakref.WeakSet()
_stilled: list[MemoryBackend] = []


def _hold_still() -> None:
    backends = list(_alive)
    for backend in backends:
        backend._lock.acquire()
    _stilled[:] = backends


def _go_on() -> None:
    backends = _stilled[:]
    _stilled.clear()
    for backend in backends:
        backend._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_still, after_in_parent=_go_on, after_in_child=_go_on)
