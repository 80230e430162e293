"""The SQLite store in a file: each verb of the contract is one request to the writer or the reader thread.

Called by the app and the keeper, from any event loop or thread. Contains no verbs and no rules: see verbs.py.
After a fork the child drops the inherited threads, fork.py closes its copies of the connections, and the next call
opens new ones.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...clock import Clock
from ...errors import BackendUnavailable, ConfigurationError
from ...lifecycle import Settlement
from ...records import ClaimRequest, Enqueued, Exchanged, Flaw, NewJob, Release
from . import caller_transaction, enqueue, flaws
from .connection import SYNCHRONOUS, errors_mapped, set_up
from .file_identity import Identity, check, identity_of
from .transaction import Transaction
from .verbs import BRING_NO_WORK, SqliteVerbs
from .wakeups import Wakeups, call_out, forget_inherited, nudge
from .writer import ReaderThread, StoreThread, answered, answered_here

T = TypeVar("T")

# This worker's own claim has just looked and did not want what is left, so its own waiter need not wake. The other
# waiters of this process are nudged; other processes notice the write itself.
_TAKE_WORK = {*BRING_NO_WORK, "exchange", "renew"}

_opened: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()
_inherited: list[Any] = []  # in a forked child: kept forever, so that a copy that was in use is never closed or freed


def _forget_inherited() -> None:
    forget_inherited()
    for backend in list(_opened):
        backend.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


class SqliteBackend(SqliteVerbs):
    """A store in one SQLite file, shared by any number of processes on one machine."""

    scheme = "sqlite"
    durable = True
    any_loop = True  # the work is done on its own threads

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        share: bool = False,
        call_timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock)
        if synchronous.upper() not in SYNCHRONOUS:
            raise ConfigurationError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}.")
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        self.path = os.path.abspath(path) if path not in ("", ":memory:") else path
        self._synchronous, self._share = synchronous.upper(), share
        self._call_timeout = call_timeout
        self._guard = threading.Lock()
        self._identity: Identity | None = None
        self._reset()

    def _reset(self) -> None:
        self._is_set_up = False
        self._writer: StoreThread | None = None
        self._reader: ReaderThread | None = None
        self._wakeups: Wakeups | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        if not self._is_set_up:
            await asyncio.to_thread(self._set_up)
            self._is_set_up = True
            _opened.add(self)

    def _set_up(self) -> tuple[int, int]:
        versions = set_up(self.path, synchronous=self._synchronous, share=self._share, seconds=self._call_timeout)
        if self._writer is None and self._reader is None:
            self._identity = identity_of(self.path)
        return versions

    async def close(self) -> None:
        with self._guard:
            writer, reader, watch = self._writer, self._reader, self._wakeups
            self._reset()
        for thread in (writer, reader):
            if thread is not None:
                await asyncio.to_thread(thread.stop)
        if watch is not None:
            watch.close()

    def forget(self) -> None:
        """In a forked child: drop what was inherited and start without connections."""
        _inherited.append((self._writer, self._reader, self._wakeups, self._guard))
        self._guard = threading.Lock()
        was_set_up = self._is_set_up
        self._reset()
        self._is_set_up = was_set_up

    async def migrate(self) -> tuple[int, int]:
        versions = await asyncio.to_thread(self._set_up)
        self._is_set_up = True
        _opened.add(self)
        return versions

    # ------------------------------------------------------------------ requests

    def _writing(self) -> StoreThread:
        with self._guard:
            if self._writer is None:
                self._need_open()
                self._writer = StoreThread(
                    self.path,
                    identity=self._identity,
                    synchronous=self._synchronous,
                    call_timeout=self._call_timeout,
                    after_commit=self._committed,
                )
            return self._writer

    def _committed(self, verbs: set[str]) -> None:
        """Wake those who may be waiting for what was written."""
        if verbs <= BRING_NO_WORK:
            return
        if verbs <= _TAKE_WORK:
            nudge(self.path, claimed=self._wakeups)
            return
        nudge(self.path)
        call_out(self.path)

    def _reading(self) -> ReaderThread:
        with self._guard:
            if self._reader is None:
                self._need_open()
                self._reader = ReaderThread(
                    self.path,
                    identity=self._identity,
                    synchronous=self._synchronous,
                    call_timeout=self._call_timeout,
                    after_commit=_nothing,
                )
            return self._reader

    def _watching_locked(self) -> Wakeups:
        if self._wakeups is None:
            self._need_open()
            self._wakeups = Wakeups(self.path, self._clock)
        return self._wakeups

    def _need_open(self) -> None:
        if not self._is_set_up:
            raise BackendUnavailable("the store is not open. Call open() first.")

    async def _write(
        self, verb: str, work: Callable[[Transaction], T], now: float | None, *, urgent: bool = False
    ) -> T:
        def carry_out(cursor: sqlite3.Cursor) -> T:
            return work(self._transaction(cursor, now))

        future = self._writing().submit(verb, carry_out, urgent=urgent)
        return await answered(verb, future, 2 * self._call_timeout)

    async def _read(self, verb: str, work: Callable[[sqlite3.Cursor], T]) -> T:
        return await asyncio.wrap_future(self._reading().submit(verb, work))

    # ------------------------------------------------------------------ specific to a file

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """Run on the calling thread if nobody else is writing, else on the writer thread."""
        if not jobs:
            return []

        def carry_out(cursor: sqlite3.Cursor) -> list[Enqueued]:
            return enqueue.enqueue(self._transaction(cursor, None), jobs)

        writer = self._writing()
        done = writer.carry_out_here("enqueue", carry_out)
        if done is not None:
            return done[0]
        return answered_here("enqueue", writer.submit("enqueue", carry_out), 2 * self._call_timeout)

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check(self.path, self._identity)
        return caller_transaction.enqueue_on(connection, self.path, jobs, self._clock.wall())

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check(self.path, self._identity)
        return await caller_transaction.aenqueue_on(connection, self.path, jobs, self._clock.wall())

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        if request is None or self._wakeups is None:
            return await super().exchange(settlements, releases, request, now)
        with self._wakeups.claiming():
            return await super().exchange(settlements, releases, request, now)

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        self._need_open()
        check(self.path, self._identity)
        with errors_mapped(self.path):
            return await asyncio.to_thread(flaws.flaws, self.path, limit, self._call_timeout)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        with self._guard:
            watch = self._watching_locked()
        await watch.wait_for_work(queues, timeout)


def _nothing(_: set[str]) -> None:
    """A reader commits nothing, so it wakes nobody."""
