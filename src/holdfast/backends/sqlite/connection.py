"""Connections to the SQLite file, the threads that use them (one writer and one reader per process), and Transaction.

Called by backend.py, schema.py and the wake-ups; the verb modules get a Transaction. Every connection checks the schema
it finds. Of jobs it only knows that a transaction refills the groups it touched before it ends. No sqlite3 error leaves
this package unmapped.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ... import logs
from ...dependencies import PROPAGATE_MAX
from ...errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    OutcomeUnknown,
    SchemaMismatch,
    StoreReplaced,
)
from ...lazy import import_lazily
from ...records import Seal
from .. import seals
from . import codec
from .codec import SQL
from .fork import Post
from .groups import Rules, refill

if TYPE_CHECKING:
    import asyncio
else:
    import_lazily(globals(), "asyncio")

T = TypeVar("T")

# ----------------------------------------------------------------------------------------------------------------------
# Opening a connection, its locks, and SQLite's errors as ours.


SCHEMA_VERSION = 13
SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL")

# journal_size_limit: a WAL that grew because of a long-running reader shrinks again.
_PRAGMAS = ("temp_store = MEMORY", "cache_size = -20000", "journal_size_limit = 67108864")
LOCK_PAUSE_SECONDS_MIN, LOCK_PAUSE_SECONDS_MAX = 0.0001, 0.004  # between two attempts to take the write lock
LOCK_PAUSE_GROWTH = 1.5
LOCK_MOMENT_SECONDS = 0.02  # how long a caller's own thread tries, before the writer thread does
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_OURS = {sqlite3.SQLITE_NOTADB}
_TEXTS = {
    sqlite3.SQLITE_FULL: "the disk is full. Free some space; nothing was changed.",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only. Give this user write permission.",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened. Check that its folder exists and that this user may use it.",
    sqlite3.SQLITE_PERM: "permission denied. Check the owner and mode of the file.",
    sqlite3.SQLITE_IOERR: "the disk reported an input/output error.",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore it from a backup.",
}


def mapped(error: sqlite3.Error, path: str) -> HoldfastError:
    """The one place that maps SQLite's errors to ours."""
    primary = primary_code(error)
    name = os.path.basename(path)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return BackendUnavailable(
            f"{name}: others have written since your transaction first read, so it can no longer write. Roll back, and "
            "run it again; with BEGIN IMMEDIATE this does not happen."
        )
    if primary in _BUSY:
        return BackendUnavailable(
            f"{name}: another process holds the write lock for too long. Nothing was changed; try again."
        )
    if primary in _NOT_OURS:
        return ConfigurationError(f"{name} is not a SQLite database. Name another file in the URL.")
    if primary in _TEXTS:
        kind = BackendUnavailable if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN) else BackendError
        return kind(f"{name}: {_TEXTS[primary]}")
    if primary == sqlite3.SQLITE_ERROR and _names_ours(error):
        return SchemaMismatch(SCHEMA_VERSION, SCHEMA_VERSION, other_tables(error))
    return BackendError(f"{name}: SQLite failed ({type(error).__name__}: {error}).")


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None if the sqlite3 module itself raised, e.g. for text that is not UTF-8."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _names_ours(error: sqlite3.Error) -> bool:
    """Whether a table, column or index of this schema is missing."""
    text = str(error).replace(": main.", ": ", 1)  # so a trigger names its tables
    return text.startswith(("no such table: holdfast_", "no such index: holdfast_", "no such column"))


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk was full."""
    return primary_code(error) == sqlite3.SQLITE_FULL


@contextmanager
def errors_mapped(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise mapped(error, path) from error


def connect(
    path: str, *, synchronous: str = "FULL", check_schema: bool = True, patience: float = 0.0
) -> sqlite3.Connection:
    """A connection in autocommit mode, with our pragmas; checks the schema unless it is about to be created. It never
    creates a file: one that was deleted while in use must not come back empty.

    `patience`: seconds to wait while another connection has the file locked exclusively.
    """
    with errors_mapped(path):
        name = f"{Path(os.path.abspath(path)).as_uri()}?mode=rw"
        connection = sqlite3.connect(
            name, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=0.02
        )
        try:
            for pragma in (f"synchronous = {synchronous}", *_PRAGMAS):
                patiently(partial(connection.execute, f"PRAGMA {pragma}"), patience)
            if check_schema:
                found = patiently(partial(schema_version, connection), patience)
                if found != SCHEMA_VERSION:
                    raise SchemaMismatch(found or 0, SCHEMA_VERSION)
        except BaseException:
            connection.close()
            raise
    return connection


def schema_version(connection: sqlite3.Connection) -> int | None:
    """The schema version of this store; None if the file contains no store."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_schema'").fetchone():
        return None
    row = connection.execute("SELECT version FROM holdfast_schema").fetchone()
    if row is None or not isinstance(row[0], int) or row[0] < 1:
        advice = "The number in holdfast_schema is missing or not a number. Restore the file from a backup."
        raise SchemaMismatch(0, SCHEMA_VERSION, advice)
    return int(row[0])


def begin_immediate(connection: sqlite3.Connection, seconds: float) -> None:
    """Take the write lock, retrying with jitter for `seconds`; then the busy error is raised.

    Most transactions hold it for a fraction of a millisecond, so the first pauses are shorter than those that SQLite
    would make by itself.
    """
    deadline, pause = time.monotonic() + seconds, LOCK_PAUSE_SECONDS_MIN
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(pause / 2, pause))
        pause = min(pause * LOCK_PAUSE_GROWTH, LOCK_PAUSE_SECONDS_MAX)


def begin_at_once(connection: sqlite3.Connection) -> bool:
    """Take the write lock; False if another connection holds it for more than a moment, or if SQLite fails."""
    try:
        begin_immediate(connection, LOCK_MOMENT_SECONDS)
    except sqlite3.Error:
        return False
    return True


def other_tables(error: sqlite3.Error) -> str:
    return f"But its tables are not those of that schema ({error}). Restore the file from a backup."


def patiently(call: Callable[[], T], seconds: float) -> T:
    """Call, retrying for `seconds` while another connection has the file locked exclusively, even against readers.

    That connection may be setting the file up, be the first after a crash, or the last to close: these process the
    whole WAL.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.01))


# ----------------------------------------------------------------------------------------------------------------------
# The identity of a store's file, so that a process notices when it was deleted, moved or replaced while in use.
# Checked by the writer before every commit, by the reader before every read and whenever a connection is opened: one
# stat each, about a microsecond. An open connection keeps writing to the file it opened, whatever happened to its
# name; what it then acknowledges would be in no file that anybody opens again. It never repairs anything: a file that
# replaces one in use may be paired with the other's write-ahead log, so only a restart accepts it.


Identity = tuple[int, int]  # device and inode


def identity_of(path: str) -> Identity | None:
    """The file with this name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def replaced(path: str, opened: Identity) -> StoreReplaced | None:
    """The error if the path no longer names the file that was opened."""
    found = identity_of(path)
    if found == opened:
        return None
    return StoreReplaced(os.path.basename(path), gone=found is None)


def check(path: str, opened: Identity | None) -> None:
    refusal = None if opened is None else replaced(path, opened)
    if refusal is not None:
        raise refusal


# ----------------------------------------------------------------------------------------------------------------------
# The one writer thread of a process: requests that arrive together share a transaction (group commit). Each request
# runs in its own savepoint, so a failing one does not affect the others; all of them get their results after the one
# COMMIT. Renewals go first. A caller that would only wait may run its request on its own thread, with the writer's
# connection, while nobody else needs it. Also the reader thread, which never writes.


Work = Callable[[sqlite3.Cursor], Any]
Outcome = tuple[Any, Exception | None]  # its result, or why it was refused
REQUESTS_PER_COMMIT_MAX = 64


class Undecodable(Exception):
    """A request read text that is not UTF-8. Never leaves this module."""


class Request:
    """One piece of work and the future its caller waits on; without one if the caller's thread runs it itself."""

    __slots__ = ("future", "name", "work")

    def __init__(self, name: str, work: Work, future: Future[Any] | None = None) -> None:
        self.name, self.work = name, work
        if future is not None:
            self.future = future


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
        self._in_hand = False  # the thread is running requests
        self._here = 0  # the thread that runs its request itself, if any
        self._stopping = False
        self._post = Post(rank=0)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{self.role}", daemon=True)
        self._thread.start()

    role = "writer"

    def submit(self, name: str, work: Callable[[sqlite3.Cursor], T], *, urgent: bool = False) -> Future[T]:
        future: Future[T] = Future()
        request = Request(name, work, future)
        with self._wake:
            if self._stopping:
                raise _closed()
            (self._urgent if urgent else self._requests).append(request)
            self._wake.notify()
        return future

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
            self._post.connection.execute("PRAGMA busy_timeout = 0")  # begin_immediate and patiently wait instead
        return self._post.connection

    def _answer(self, batch: list[Request]) -> None:
        """Run a batch and give each caller its result."""
        changes = self._changes
        outcomes = self._carry_out(batch)
        if any(isinstance(failed, Undecodable) for _, failed in outcomes):
            outcomes = self._set_aside(batch, outcomes)
        for request, (answer, failed) in zip(batch, outcomes, strict=True):
            if failed is None:
                request.future.set_result(answer)
            else:
                request.future.set_exception(failed)
        done = {request.name for request, (_, failed) in zip(batch, outcomes, strict=True) if failed is None}
        if done and self._changes != changes:  # else nobody needs to look: most sweeps find nothing to do
            self._after_commit(done)

    @property
    def _changes(self) -> int:
        return -1 if self._post.connection is None else self._post.connection.total_changes

    def _set_aside(self, batch: list[Request], outcomes: list[Outcome]) -> list[Outcome]:
        """Set unreadable rows aside and rerun the requests that read one of them."""
        from . import flaws  # not at the top: it imports the verbs, which import this module

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
        if codec.is_undecodable(error):
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
        f"{name} was called during another call on the same thread, as a signal handler does: neither can wait "
        "for the other. Nothing was changed. Let the handler set a flag and call it later."
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
            if not codec.is_undecodable(error):
                raise
            with codec.garbled_text(connection) as cursor:
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


# ----------------------------------------------------------------------------------------------------------------------
# One write transaction: its time and counter, the seal, the rules in force, and the groups it touched. It commits
# nothing: the writer does.


_CLOSED = SQL["seal.closed"]
_STORE_TICK = SQL["limit.store_tick"]
_CREATE_TICK = SQL["limit.create_tick"]
_ENDED = SQL["dependencies.ended"]

Leased = dict[str, tuple[str, str] | None]  # by token, of jobs that this process leased: queue and group, if it has one
TICK_MAX = 1 << 62  # microseconds: no clock comes near it, and there is room to keep counting


class Transaction:
    """What the verbs of one request share. `steady` and `boot` are the clock of lease deadlines."""

    __slots__ = ("_rules", "_tick", "_touched", "boot", "cursor", "leased", "line", "now", "settling", "steady")

    def __init__(
        self, cursor: sqlite3.Cursor, now: float, steady: float, boot: str, leased: Leased | None = None
    ) -> None:
        self.cursor, self.now, self.steady, self.boot = cursor, now, steady, boot
        self.leased = {} if leased is None else leased
        self._touched: dict[tuple[str, str], bool] = {}
        self._tick: int | None = None
        self._rules: Rules | None = None
        self.line: dict[str, bool] = {}  # jobs that ended and that others wait for; whether each is stored as such
        self.settling = False  # a lease ends together with jobs that are to be stored: settle_with

    # ------------------------------------------------------------------ the growing counter

    def ticks(self, count: int) -> int:
        """Reserve `count` numbers above every earlier one and above the wall clock; returns the first."""
        if self._tick is None:
            stored = self.rules.tick if self.rules.tick < TICK_MAX else 0  # damaged: use the clock instead
            self._tick = max(stored, int(self.now * 1_000_000))
        first = self._tick + 1
        self._tick += count
        return first

    def close(self) -> None:
        """End of the request: notify jobs whose parents ended, refill the touched groups, store the counter."""
        self.propagate()
        self.refill()
        if self._tick is not None and not self.cursor.execute(_STORE_TICK, (self._tick,)).rowcount:
            self.cursor.execute(_CREATE_TICK, (self._tick,))  # damaged: the row is gone

    # ------------------------------------------------------------------ the seal

    @property
    def closed_by(self) -> Seal | None:
        """The seal that closes this store for work; None while it is open."""
        if self._rules is not None:
            record = self._rules.closed
        else:
            row = self.cursor.execute(_CLOSED).fetchone()
            record = None if row is None else row[0]
        return None if record is None else seals.read(record)

    def refuse_sealed(self) -> None:
        """First call of every verb that accepts work, starts it, or changes jobs that are not running (R26)."""
        seal = None if self.settling else self.closed_by
        if seal is not None:
            raise seals.refusal(seal)

    # ------------------------------------------------------------------ dependencies

    def ended(self, seqs: Sequence[int]) -> None:
        """These jobs have finished, or came back: jobs that wait for them must be notified before the request ends."""
        if self.rules.any_edge:
            for (parent,) in self.cursor.execute(_ENDED, (codec.encoded(seqs).decode(),)):
                self.line.setdefault(parent, False)

    def propagate(self) -> None:
        """Notify the jobs that wait for those that ended, within the bound of one step."""
        if self.line and not self.settling:
            from .dependencies import propagate

            propagate(self, PROPAGATE_MAX)

    # ------------------------------------------------------------------ groups, rules and places

    def touch(self, queue: str, group: str, *, changed: bool = False) -> None:
        """This group must be refilled before the request ends; `changed`: jobs of it may have to be withdrawn."""
        self._touched[queue, group] = changed or self._touched.get((queue, group), False)

    @property
    def touched(self) -> Mapping[tuple[str, str], bool]:
        """The groups to refill, and whether one of their rules changed."""
        return self._touched

    def refilled(self) -> None:
        """The touched groups have been refilled by other means."""
        self._touched = {}

    def refill(self, *, due: bool | None = None) -> int:
        """Refill every touched group; returns how many jobs became ready. `due`: whether a scheduled job is due, if the
        caller has just checked."""
        if not self._touched:
            return 0
        touched, self._touched = self._touched, {}
        return refill(self, touched, due)

    @property
    def rules(self) -> Rules:
        if self._rules is None:
            self._rules = Rules(self.cursor)
        return self._rules

    def rules_changed(self) -> None:
        """A limit, an order or a pause was written in this transaction: read the rules again."""
        self._rules = None
