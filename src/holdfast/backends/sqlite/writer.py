"""The one writer thread of a process: requests that arrive together share a transaction (group commit).

Called by the backend only. Each request runs in its own savepoint, so a failing one does not affect the others; all of
them get their results after the one COMMIT. Renewals go first. A caller that would only wait may run its request on its
own thread, with the writer's connection, while nobody else needs it. Also the reader thread, which never writes, and
the bounded wait for a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ... import logs
from ...errors import BackendError, BackendUnavailable, OutcomeUnknown, StoreReplaced
from . import flaws, tolerant
from .connection import begin_at_once, begin_immediate, connect, is_full, mapped, patiently
from .file_identity import Identity, check, replaced
from .fork import Post

T = TypeVar("T")
Work = Callable[[sqlite3.Cursor], Any]
Outcome = tuple[Any, Exception | None]  # its result, or why it was refused
REQUESTS_PER_COMMIT_MAX = 64


class Undecodable(Exception):
    """A request read text that is not UTF-8. Never leaves this module."""


class Request:
    """One piece of work and the future its caller waits on."""

    __slots__ = ("future", "name", "work")

    def __init__(self, name: str, work: Work) -> None:
        self.name, self.work = name, work
        self.future: Future[Any] = Future()


class StoreThread:
    """A thread with its own connection that runs requests one after another."""

    def __init__(
        self,
        path: str,
        *,
        identity: Identity | None,
        synchronous: str,
        call_timeout: float,
        after_commit: Callable[[set[str]], None],
    ) -> None:
        self._path, self._identity, self._synchronous = path, identity, synchronous
        self._call_timeout = call_timeout
        self._after_commit = after_commit
        self._requests: deque[Request] = deque()
        self._urgent: deque[Request] = deque()
        self._wake = threading.Condition()
        self._in_hand = False  # the thread has taken requests and not finished them
        self._here = 0  # the thread that runs its request itself, if any
        self._stopping = False
        self._post = Post(rank=0)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{self.role}", daemon=True)
        self._thread.start()

    role = "writer"

    def submit(self, name: str, work: Callable[[sqlite3.Cursor], T], *, urgent: bool = False) -> Future[T]:
        request = Request(name, work)
        with self._wake:
            if self._stopping:
                raise _closed()
            (self._urgent if urgent else self._requests).append(request)
            self._wake.notify()
        return request.future

    def carry_out_here(self, name: str, work: Callable[[sqlite3.Cursor], T]) -> tuple[T] | None:
        """Run on the calling thread, without a thread switch; None, and nothing done, if it would have to wait.

        Queued requests go first, so the thread never starves. Every use of the connection is under `at_work`, so a fork
        finds it idle and the end of the thread closes it after us. An interrupt may come at any point: then the
        connection is closed, which rolls back what was not committed.
        """
        post, me = self._post, threading.get_ident()
        if self._here == me:
            raise called_inside(name)
        if self._in_hand or self._requests or self._urgent or post.at_work.locked():
            return None
        with post.at_work:
            try:
                self._here = me
                if self._stopping:
                    raise _closed()
                if post.connection is None or not begin_at_once(post.connection):
                    return None
                [(answer, failed)] = self._outcomes(post.connection, [Request(name, work)])
            except BaseException:
                post.close()
                raise
            finally:
                self._here = 0
        if isinstance(failed, Undecodable):
            return None  # the thread sets unreadable rows aside
        if failed is not None:
            raise failed
        self._after_commit({name})
        return (answer,)

    def stop(self) -> None:
        """Finish queued requests, then end the thread and close its connection."""
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
                        self._answer(live)
            except BaseException as error:  # whatever it was, this thread must survive and nobody may wait forever
                self._post.close()
                for request in live:
                    if not request.future.done():
                        request.future.set_exception(_unknown(request, error))
        with self._post.at_work:
            self._post.close()

    def _next_batch(self) -> list[Request]:
        with self._wake:
            self._in_hand = False
            while not (self._urgent or self._requests or self._stopping):
                self._wake.wait()
            batch: list[Request] = []
            for waiting in (self._urgent, self._requests):
                while waiting and len(batch) < REQUESTS_PER_COMMIT_MAX:
                    batch.append(waiting.popleft())
            self._in_hand = bool(batch)
            return batch

    def _connected(self) -> sqlite3.Connection:
        if self._post.connection is None:
            check(self._path, self._identity)
            self._post.connection = connect(self._path, synchronous=self._synchronous, patience=self._call_timeout)
        return self._post.connection

    def _answer(self, batch: list[Request]) -> None:
        """Run a batch and give each caller its result."""
        outcomes = self._carry_out(batch)
        if any(isinstance(failed, Undecodable) for _, failed in outcomes):
            outcomes = self._set_aside(batch, outcomes)
        for request, (answer, failed) in zip(batch, outcomes, strict=True):
            if failed is None:
                request.future.set_result(answer)
            else:
                request.future.set_exception(failed)
        done = {request.name for request, (_, failed) in zip(batch, outcomes, strict=True) if failed is None}
        if done:
            self._after_commit(done)

    def _set_aside(self, batch: list[Request], outcomes: list[Outcome]) -> list[Outcome]:
        """Set unreadable rows aside and rerun the requests that read one of them."""
        met = [place for place, (_, failed) in enumerate(outcomes) if isinstance(failed, Undecodable)]
        try:
            aside = flaws.set_aside(self._connected(), self._call_timeout)
        except sqlite3.Error as error:
            again: list[Outcome] = [(None, mapped(error, self._path))] * len(met)
        else:
            logs.rows_set_aside(aside)
            again = self._carry_out([batch[place] for place in met])
        outcomes = list(outcomes)
        for place, (answer, failed) in zip(met, again, strict=True):
            outcomes[place] = answer, BackendError(str(failed)) if isinstance(failed, Undecodable) else failed
        return outcomes

    def _refusal(self, error: Exception) -> Exception:
        """Why a request failed, as one of our errors."""
        if tolerant.is_undecodable(error):
            return Undecodable(
                f"{os.path.basename(self._path)}: text that is not UTF-8 ({error}). See `holdfast doctor`."
            )
        return mapped(error, self._path) if isinstance(error, sqlite3.Error) else error

    def _carry_out(self, batch: list[Request]) -> list[Outcome]:
        try:
            connection = self._connected()
            begin_immediate(connection, self._call_timeout)
        except Exception as error:
            refused = mapped(error, self._path) if isinstance(error, sqlite3.Error) else error
            return [(None, refused)] * len(batch)
        return self._outcomes(connection, batch)

    def _outcomes(self, connection: sqlite3.Connection, batch: list[Request]) -> list[Outcome]:
        """Run the batch in the open transaction and end the transaction."""
        answers = self._apply(connection, batch)
        if not connection.in_transaction:
            # A single request was refused, or SQLite itself rolled everything back (disk full, I/O error).
            gone = answers[-1][1] or BackendUnavailable(
                "SQLite rolled the transaction back. Nothing was changed; try again."
            )
            undone: list[Outcome] = [(None, failed or gone) for _, failed in answers]
            rest = batch[len(answers) :]
            return [*undone, *self._carry_out(rest)] if rest else undone
        # Last chance to notice that the path no longer names this file; a commit now would be lost with it.
        refusal = None if self._identity is None else replaced(self._path, self._identity)
        if refusal is not None:
            self._undo(connection)
            self._post.close()
            return [(None, failed or refusal) for _, failed in answers]
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            restored, cause = self._undo(connection), mapped(error, self._path)
            # If the disk was full, nothing reached the file. After any other error it may have, and may reappear.
            known = restored and is_full(error)
            return [(None, cause if known else _unknown(request, cause)) for request in batch]
        return answers

    def _apply(self, connection: sqlite3.Connection, batch: list[Request]) -> list[Outcome]:
        """Run each request in its own savepoint; stops early if the whole transaction is gone."""
        cursor = connection.cursor()
        alone = len(batch) == 1  # then the transaction is its savepoint
        answers: list[Outcome] = []
        for request in batch:
            if not alone:
                cursor.execute("SAVEPOINT request")
            try:
                answers.append((request.work(cursor), None))
            except Exception as error:
                answers.append((None, self._refusal(error)))
                if not connection.in_transaction:
                    break
                cursor.execute("ROLLBACK" if alone else "ROLLBACK TO request")
            if not alone:
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


def called_inside(name: str) -> BackendUnavailable:
    """The error of a call from inside another one."""
    return BackendUnavailable(
        f"{name} was called in the middle of another one on the same thread, as by a signal handler: neither "
        "can wait for the other. Nothing was changed. Let the handler set a flag and call it later."
    )


def _closed() -> BackendUnavailable:
    return BackendUnavailable("the store was closed while this call was made. Open it again.")


def _unknown(request: Request, cause: BaseException) -> OutcomeUnknown:
    failure = OutcomeUnknown(request.name)
    failure.__cause__ = cause
    return failure


class ReaderThread(StoreThread):
    """Reads on its own connection: one consistent snapshot per request, never waiting for the writer."""

    role = "reader"

    def _answer(self, batch: list[Request]) -> None:
        for request in batch:
            try:
                request.future.set_result(patiently(partial(self._read, request.work), self._call_timeout))
            except Exception as error:
                failure = mapped(error, self._path) if isinstance(error, sqlite3.Error) else error
                request.future.set_exception(failure)

    def _read(self, work: Work) -> Any:
        try:
            check(self._path, self._identity)
        except StoreReplaced:
            self._post.close()
            raise
        connection = self._connected()
        connection.execute("BEGIN")
        try:
            return work(connection.cursor())
        except sqlite3.OperationalError as error:
            if not tolerant.is_undecodable(error):
                raise
            with tolerant.garbled_text(connection) as cursor:
                return work(cursor)
        finally:
            connection.execute("ROLLBACK")


# ----------------------------------------------------------------------------------------------------------------------
# Bounded waiting for a writer's result, from a coroutine or a thread. The writer itself gives up on the write lock; a
# longer wait means that the disk hangs. A request that has not begun is then withdrawn; else its outcome is unknown.


async def answered(verb: str, future: Future[T], seconds: float) -> T:
    """The result. If the caller is cancelled earlier, the work is still done and its result dropped."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile: nobody waits there any more
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(tell)
    timer = loop.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()
    if future.done():
        return future.result()
    raise _gave_up(verb, future)


def answered_here(verb: str, future: Future[T], seconds: float) -> T:
    """Like `answered`, for a blocking thread."""
    try:
        return future.result(seconds)
    except TimeoutError:
        raise _gave_up(verb, future) from None
    except BaseException:
        future.cancel()  # an interrupt here must not leave the work queued
        raise


def _gave_up(verb: str, future: Future[Any]) -> BackendUnavailable | OutcomeUnknown:
    if future.cancel():
        return BackendUnavailable(f"{verb} found the store busy for too long. Nothing was changed; try again.")
    return OutcomeUnknown(verb)
