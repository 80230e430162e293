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
from typing import ClassVar, TypeVar

from ...clock import Clock
from ...records import Enqueued, NewJob
from ..sqlite import enqueue, read_rules
from ..sqlite.connection import SCHEMA_VERSION, mapped
from ..sqlite.transaction import Transaction
from ..sqlite.verbs import BRING_NO_WORK, SqliteVerbs
from ..sqlite.writer import called_inside
from .databases import database_for

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

    # ------------------------------------------------------------------ waiting

    def _wake(self) -> None:
        """Wake all waiters, so that they check again."""
        for event, loop in self._waiting.items():
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop was closed meanwhile: nobody waits there any more

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        deadline, event = time.monotonic() + timeout, asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            while (seconds := min(self._until_work(queues), deadline - time.monotonic())) > 0:
                event.clear()
                try:
                    async with asyncio.timeout(seconds):
                        await event.wait()
                except TimeoutError:
                    return
        finally:
            with self._lock:
                del self._waiting[event]

    def _until_work(self, queues: Sequence[str]) -> float:
        """Seconds until something may be claimable; 0 if something is."""
        wall = self._clock.wall()
        with self._section("wait_for_work") as cursor:
            at_hand, next_due = read_rules.work_at_hand(cursor, queues, wall)
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
