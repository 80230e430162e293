"""The one writer thread of a process: requests that arrive together share a transaction (group commit).

Called by the backend only. Each request runs in a savepoint of its own, so a failing one leaves its neighbours alone;
all of them are answered after the one COMMIT. Renewals go first. Also the reader thread, which never writes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ...errors import BackendUnavailable, OutcomeUnknown
from .connection import begin_immediate, connect, is_full, mapped, patiently
from .forking import Post

T = TypeVar("T")
Work = Callable[[sqlite3.Cursor], Any]
REQUESTS_PER_COMMIT_MAX = 64


class Request:
    """One piece of work and the future its caller waits on."""

    __slots__ = ("future", "name", "work")

    def __init__(self, name: str, work: Work) -> None:
        self.name, self.work = name, work
        self.future: Future[Any] = Future()


class StoreThread:
    """A thread with a connection of its own that carries out requests one after another."""

    def __init__(self, path: str, *, synchronous: str, call_timeout: float, after_commit: Callable[[], None]) -> None:
        self._path, self._synchronous = path, synchronous
        self._call_timeout = call_timeout
        self._after_commit = after_commit
        self._requests: deque[Request] = deque()
        self._urgent: deque[Request] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._post = Post(rank=0)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{self.role}", daemon=True)
        self._thread.start()

    role = "writer"

    def submit(self, name: str, work: Callable[[sqlite3.Cursor], T], *, urgent: bool = False) -> Future[T]:
        request = Request(name, work)
        with self._wake:
            if self._stopping:
                raise BackendUnavailable("the store was closed while this call was made. Open it again.")
            (self._urgent if urgent else self._requests).append(request)
            self._wake.notify()
        return request.future

    def stop(self) -> None:
        """Finish what was asked, then end the thread and close its connection."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            live = [request for request in batch if request.future.set_running_or_notify_cancel()]
            try:
                if live:
                    with self._post.at_work:
                        self._carry_out(live)
            except BaseException as error:  # whatever it was, this thread must live on and nobody wait for ever
                self._post.close()
                self._refuse([request for request in live if not request.future.done()], None, cause=error)
        with self._post.at_work:
            self._post.close()

    def _next_batch(self) -> list[Request]:
        with self._wake:
            while not (self._urgent or self._requests or self._stopping):
                self._wake.wait()
            batch: list[Request] = []
            for waiting in (self._urgent, self._requests):
                while waiting and len(batch) < REQUESTS_PER_COMMIT_MAX:
                    batch.append(waiting.popleft())
            return batch

    def _connected(self) -> sqlite3.Connection:
        if self._post.connection is None:
            self._post.connection = connect(self._path, synchronous=self._synchronous, patience=self._call_timeout)
        return self._post.connection

    def _carry_out(self, batch: list[Request]) -> None:
        try:
            connection = self._connected()
            begin_immediate(connection, self._call_timeout)
        except Exception as error:
            self._refuse(batch, mapped(error, self._path) if isinstance(error, sqlite3.Error) else error)
            return
        answers = self._apply(connection, batch)
        if not connection.in_transaction:
            # SQLite itself rolled everything back (disk full, input/output error): nothing was changed so far.
            gone = answers[-1][1] or BackendUnavailable(
                "SQLite rolled the transaction back. Nothing was changed; try again."
            )
            for request, (_, failed) in zip(batch, answers, strict=False):
                request.future.set_exception(failed or gone)
            if rest := batch[len(answers) :]:
                self._carry_out(rest)
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            undone, cause = self._undo(connection), mapped(error, self._path)
            # Without room nothing of it reached the file. After any other fault it may have, and may come back.
            self._refuse(batch, cause if undone and is_full(error) else None, cause=cause)
            return
        for request, (answer, failed) in zip(batch, answers, strict=True):
            if failed is None:
                request.future.set_result(answer)
            else:
                request.future.set_exception(failed)
        self._after_commit()

    def _apply(self, connection: sqlite3.Connection, batch: list[Request]) -> list[tuple[Any, Exception | None]]:
        """Each request in a savepoint of its own; ends early where the whole transaction is gone."""
        cursor = connection.cursor()
        answers: list[tuple[Any, Exception | None]] = []
        for request in batch:
            cursor.execute("SAVEPOINT request")
            try:
                answers.append((request.work(cursor), None))
            except Exception as error:
                answers.append((None, mapped(error, self._path) if isinstance(error, sqlite3.Error) else error))
                if not connection.in_transaction:
                    break
                cursor.execute("ROLLBACK TO request")
            cursor.execute("RELEASE request")
        return answers

    def _undo(self, connection: sqlite3.Connection) -> bool:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._post.close()
            return False
        return True

    def _refuse(self, batch: list[Request], error: Exception | None, cause: BaseException | None = None) -> None:
        for request in batch:
            failure: Exception | None = error
            if failure is None:
                failure = OutcomeUnknown(request.name)
                failure.__cause__ = cause
            request.future.set_exception(failure)


class ReaderThread(StoreThread):
    """Reads on a connection of its own: one consistent picture per request, never waiting for the writer."""

    role = "reader"

    def _carry_out(self, batch: list[Request]) -> None:
        for request in batch:
            try:
                request.future.set_result(patiently(partial(self._read, request.work), self._call_timeout))
            except Exception as error:
                failure = mapped(error, self._path) if isinstance(error, sqlite3.Error) else error
                request.future.set_exception(failure)

    def _read(self, work: Work) -> Any:
        connection = self._connected()
        connection.execute("BEGIN")
        try:
            return work(connection.cursor())
        finally:
            connection.execute("ROLLBACK")
