"""connection= in a sandbox: jobs that wait for the caller's transaction, and how each kind of connection is followed.

Called by the sandbox's store. A job appears when the transaction it was enqueued in has committed and vanishes when it,
or a savepoint around the job, is rolled back. Nothing of Holdfast is written to the caller's database, and nothing here
commits or rolls back. How the end of a transaction is noticed:

* SQLAlchemy sessions and connections: by SQLAlchemy's own events.
* sqlite3: by the statements that the connection traces. It has one trace callback, which is ours until the transaction
  has ended.
* Django: by on_commit and the open atomic() blocks.
* psycopg and asyncpg: PostgreSQL is asked, through a connection of our own, how the (sub)transaction ended. To give it
  a number, a temporary table is created in it, and dropped when it commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..backends.caller_connections import (
    Caller,
    recognise,
    refuse_autocommit,
    refuse_kind,
    sqlalchemy_connection,
    sqlalchemy_errors,
    unscoped,
)
from ..backends.sqlite.connection import errors_mapped
from ..backends.sqlite.enqueue import check_begun, join_one
from ..backends.sqlite.memory import MemoryBackend
from ..backends.sqlite.settle import settle_in
from ..clock import Clock
from ..errors import BackendError, BackendNotInstalled, BackendUnavailable, ConfigurationError, HoldfastError
from ..job import fresh_record
from ..lifecycle import Settlement, State
from ..records import Answer, Enqueued, JobRecord, NewJob

_TAKES = "a sqlite3, psycopg or asyncpg connection, or a SQLAlchemy Connection or Session (sync or async)"


class Fate(Enum):
    """How a transaction with enqueued jobs ended."""

    PENDING = "pending"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Unit:
    """Jobs of one enqueue call, or the end of one lease, and how its transaction ended."""

    def __init__(
        self, jobs: Sequence[NewJob], at: float, owner: Follower, settlement: Settlement | None = None
    ) -> None:
        self.jobs, self.at, self.owner, self.settlement = tuple(jobs), at, owner, settlement
        self.fate = Fate.PENDING


class Follower(ABC):
    """Follows one connection while units wait for it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._levels: dict[Unit, Any] = {}  # of the units that wait
        self._guard = threading.Lock()  # the caller's thread and the store's both change them

    @property
    def waits(self) -> bool:
        return bool(self._levels)

    def begin(self) -> Any:
        """On the caller's thread: make sure that a transaction is open, and return its innermost level."""
        raise NotImplementedError

    async def abegin(self, given: Any) -> Any:
        """The same through the async connection that was given, on the caller's loop."""
        raise NotImplementedError

    def add(self, unit: Unit, level: Any) -> None:
        """Follow a unit that was enqueued at this level."""
        with self._guard:
            self._levels[unit] = level

    @abstractmethod
    def look(self) -> None:
        """Decide what can be decided now. Called on any thread."""

    def rest(self) -> None:
        """Nothing waits any more. Called on any thread."""
        return

    def stop(self) -> None:
        """The sandbox ends."""
        self.rest()

    def _decide(self, fate: Fate, units: Iterable[Unit] | None = None) -> None:
        with self._guard:
            for unit in list(self._levels) if units is None else list(units):
                unit.fate = fate
                self._levels.pop(unit, None)

    def _at(self, fits: Callable[[Any], bool]) -> list[Unit]:
        """The units whose level fits."""
        with self._guard:
            return [unit for unit, level in self._levels.items() if fits(level)]


# ----------------------------------------------------------------------------------------------------------------------
# Statements and savepoints: sqlite3 and SQLAlchemy's connections


_CONTROL = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?P<verb>commit|end|rollback|savepoint|release)\b"
    r"(?:\s+transaction\b)?(?P<to>\s+to\b)?(?:\s+savepoint\b)?\s*(?P<name>\"[^\"]*\"|\w+)?",
    re.IGNORECASE | re.DOTALL,
)


class _Statements(Follower):
    """Reads statements. A rollback to a savepoint undoes what came after it, so a unit's level is when it came, and so
    is a savepoint's. One that was set before we began to follow is unknown: every unit came after it."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._now = 0
        self._savepoints: list[tuple[str, int]] = []
        self._commits = False  # the last statement, as far as is known, was a COMMIT

    def add(self, unit: Unit, level: Any) -> None:
        self._now += 1
        super().add(unit, self._now)

    def _read(self, text: str) -> str:
        """Note a statement that sets, releases or restores a savepoint; returns the verb of any that controls."""
        found = _CONTROL.match(text)
        if found is None:
            return ""
        verb, name = found["verb"].lower(), (found["name"] or "").strip('"').lower()
        index = max((index for index, (known, _) in enumerate(self._savepoints) if known == name), default=-1)
        if verb == "savepoint":
            self._now += 1
            self._savepoints.append((name, self._now))
        elif verb == "release":
            del self._savepoints[max(0, index) :]
        elif verb == "rollback" and found["to"]:
            since = self._savepoints[index][1] if index >= 0 else 0
            del self._savepoints[index + 1 :]
            self._decide(Fate.ROLLED_BACK, self._at(lambda when: when > since))
        return verb

    def _end(self) -> None:
        self._savepoints.clear()
        self._decide(Fate.COMMITTED if self._commits else Fate.ROLLED_BACK)


# A connection has one trace callback, and perhaps followers of several sandboxes. They keep it alive, and so its id.
_traced: dict[int, list[_Sqlite3]] = {}


def _trace(connection: int, text: str) -> None:
    for follower in tuple(_traced.get(connection, ())):
        follower._statement(text)


class _Sqlite3(_Statements):
    """sqlite3 reports each statement when it begins; whether a transaction is open afterwards shows if it worked."""

    def begin(self) -> Any:
        connection: sqlite3.Connection = self.connection
        with errors_mapped("the database of the connection given"):
            check_begun(connection)
            if not connection.in_transaction:
                connection.execute(f"BEGIN {connection.isolation_level or ''}")  # as sqlite3 does before an INSERT

    def add(self, unit: Unit, level: Any) -> None:
        if not self.waits:
            self._commits, self._savepoints = False, []
            _traced.setdefault(id(self.connection), []).append(self)
            self.connection.set_trace_callback(partial(_trace, id(self.connection)))
        super().add(unit, level)

    def _statement(self, text: str) -> None:
        self.look()
        self._commits = self._read(text) in ("commit", "end", "release")

    def look(self) -> None:
        try:
            is_open = self.connection.in_transaction
        except sqlite3.ProgrammingError:  # closed
            is_open = False
        if not is_open:
            self._end()

    def rest(self) -> None:
        followers = _traced.get(id(self.connection), [])
        if self in followers:
            followers.remove(self)
        if not followers:
            _traced.pop(id(self.connection), None)
            with contextlib.suppress(sqlite3.ProgrammingError):  # closed, or another thread's: then it stays, idle
                self.connection.set_trace_callback(None)


class _Sqlalchemy(Follower):
    """Listens until the sandbox ends: SQLAlchemy's lists of listeners must not change while they are called."""

    _is_listening = False

    def begin(self) -> Any:
        with sqlalchemy_errors(lambda error: BackendError(f"the driver failed ({type(error).__name__}).")):
            driver = sqlalchemy_connection(self.connection).connection.dbapi_connection
            check_begun(driver)
            if getattr(driver, "autocommit", False) is True:
                refuse_autocommit()
        if not self._is_listening:
            self._is_listening = True
            self._listen(sys.modules["sqlalchemy.event"].listen)
        return self._level()

    async def abegin(self, given: Any) -> Any:
        return await unscoped(given).run_sync(lambda _: self.begin())

    @abstractmethod
    def _listen(self, act: Any) -> None:
        """Add or remove our listeners."""

    @abstractmethod
    def _level(self) -> Any: ...

    def stop(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._listen(sys.modules["sqlalchemy.event"].remove)


class _Connection(_Sqlalchemy, _Statements):
    """SQLAlchemy reports an end before it happens, and an error when it happens."""

    def _listen(self, act: Any) -> None:
        act(self.connection, "begin", self._on_begin)
        act(self.connection, "commit", self._on_commit)
        act(self.connection, "rollback", self._on_rollback)
        act(self.connection, "before_cursor_execute", self._on_statement)
        act(self.connection.engine, "handle_error", self._on_error)

    def _level(self) -> Any:
        self._commits = False
        return None

    def _on_begin(self, _: Any) -> None:
        self._end()  # the one before has ended

    def _on_commit(self, _: Any) -> None:
        self._commits = True

    def _on_rollback(self, _: Any) -> None:
        self._commits = False
        self._end()

    def _on_statement(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        self._read(statement)

    def _on_error(self, context: Any) -> None:
        if context.connection is self.connection:
            self._commits = False  # if it was the commit that failed

    def look(self) -> None:
        if self.connection.closed or not self.connection.in_transaction():
            self._end()


class _Session(_Sqlalchemy):
    """What counts is that the session commits, also one that is bound to a transaction which a test rolls back."""

    def _listen(self, act: Any) -> None:
        act(self.connection, "after_commit", self._on_commit)
        act(self.connection, "after_transaction_end", self._on_end)

    def _level(self) -> Any:
        session = self.connection
        return session.get_nested_transaction() or session.get_transaction()

    def _on_commit(self, _: Any) -> None:
        """A savepoint or the whole transaction was committed."""
        level = self._level()
        units = self._at(lambda found: found is level)
        if level is not None and level.nested:
            outer = level.parent
            while not outer.nested and outer.parent is not None:
                outer = outer.parent
            for unit in units:
                self.add(unit, outer)
        else:
            self._decide(Fate.COMMITTED, units)

    def _on_end(self, _: Any, level: Any) -> None:
        """It ended: what it still has was not committed."""
        self._decide(Fate.ROLLED_BACK, self._at(lambda found: found is level))

    def look(self) -> None:
        """The session has reported everything."""


# ----------------------------------------------------------------------------------------------------------------------
# PostgreSQL's drivers: the server knows how a transaction ended, also after its connection was closed.


_of_parents: list[object] = []  # in a forked child: connections that must not be closed here


class _Postgres(Follower):
    """A unit's level is the number of the subtransaction it was enqueued in; the server reports how that ended."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._own: Any = None  # our connection to that server
        self._process = os.getpid()

    @abstractmethod
    def _parameters(self) -> dict[str, Any]:
        """How to connect to the caller's server."""

    def look(self) -> None:
        psycopg = _psycopg()
        if self._process != os.getpid():  # a forked child leaves the connection to its parent
            _of_parents.append(self._own)
            self._own, self._process = None, os.getpid()
        try:
            if self._own is None:
                self._own = psycopg.connect(autocommit=True, **self._parameters())
            numbers = sorted(set(self._levels.values()))
            asked = self._own.execute("SELECT n, txid_status(n) FROM unnest(%s::bigint[]) AS n", (numbers,))
            statuses = dict(asked.fetchall())
        except psycopg.Error as error:
            self.rest()
            raise BackendUnavailable(
                "jobs of this sandbox wait for a transaction, and PostgreSQL cannot be asked whether it was committed "
                f"({type(error).__name__}): the sandbox connects with the parameters of your connection."
            ) from error
        self._decide(Fate.COMMITTED, self._at(lambda number: statuses[number] == "committed"))
        self._decide(Fate.ROLLED_BACK, self._at(lambda number: statuses[number] != "in progress"))

    def rest(self) -> None:
        own, self._own = self._own, None
        if own is None:
            return
        if self._process == os.getpid():
            own.close()
        else:
            _of_parents.append(own)


# Writing a row gives the current subtransaction a number, which is the row's xmin. One table serves a transaction.
_IS_MARKED = "SELECT to_regclass('pg_temp.holdfast_sandbox') IS NOT NULL"
_CREATE = "CREATE TEMPORARY TABLE holdfast_sandbox () ON COMMIT DROP"
_MARK = (
    "INSERT INTO pg_temp.holdfast_sandbox DEFAULT VALUES "
    "RETURNING (txid_current() >> 32 << 32) + CAST(CAST(xmin AS text) AS bigint)"
)


class _Psycopg(_Postgres):
    def _parameters(self) -> dict[str, Any]:
        return {"conninfo": self._dsn, "password": self._password}

    def _check(self) -> Any:
        connection, psycopg = self.connection, _psycopg()
        if connection.closed:
            raise ConfigurationError("the connection given is closed. Open it, or enqueue without connection=.")
        if connection.autocommit and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            refuse_autocommit()
        self._dsn, self._password = connection.info.dsn, connection.info.password or None
        return psycopg

    def begin(self) -> Any:
        psycopg = self._check()
        try:
            with self.connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                if not cursor.execute(_IS_MARKED).fetchone()[0]:
                    cursor.execute(_CREATE)
                return cursor.execute(_MARK).fetchone()[0]
        except psycopg.Error as error:
            raise _mapped(error) from error

    async def abegin(self, given: Any) -> Any:
        psycopg = self._check()
        try:
            async with self.connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                await cursor.execute(_IS_MARKED)
                if not (await cursor.fetchone())[0]:
                    await cursor.execute(_CREATE)
                await cursor.execute(_MARK)
                return (await cursor.fetchone())[0]
        except psycopg.Error as error:
            raise _mapped(error) from error


class _Asyncpg(_Postgres):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._found: dict[str, Any] = {}

    def _parameters(self) -> dict[str, Any]:
        return self._found

    async def abegin(self, given: Any) -> Any:
        _psycopg()
        asyncpg: Any = sys.modules["asyncpg"]
        try:
            if not given.is_in_transaction():
                refuse_autocommit()
            given.add_query_logger(self._on_query)  # the documented way to its address and parameters
            try:
                if not await given.fetchval(_IS_MARKED):
                    await given.execute(_CREATE)
                number = await given.fetchval(_MARK)
                await asyncio.sleep(0)  # the logger is called in the loop's next turn
            finally:
                given.remove_query_logger(self._on_query)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _mapped(error) from error
        return number

    def _on_query(self, record: Any) -> None:
        address, given = record.conn_addr, record.conn_params
        if isinstance(address, str):  # a Unix socket
            host, _, port = address.rpartition("/.s.PGSQL.")
        else:
            host, port = address[:2]
        password = given.password if isinstance(given.password, str) else None
        self._found = {"host": host, "port": port, "user": given.user, "password": password, "dbname": given.database}


def _mapped(error: BaseException) -> HoldfastError:
    from ..backends.postgres.caller_transaction import mapped_error

    if getattr(error, "sqlstate", None) == "42501":
        return ConfigurationError(
            "in a sandbox connection= needs the right to create temporary tables. GRANT TEMPORARY ON DATABASE … to the "
            "role of your connection, and roll its transaction back."
        )
    return mapped_error(error, "holdfast")


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise BackendNotInstalled("postgresql", "Install `holdfast[postgres]`.") from None
    return psycopg


# ----------------------------------------------------------------------------------------------------------------------
# The sandbox's store


def _subject(given: Any, caller: Caller) -> Any:
    """The object that begins and ends transactions: behind SQLAlchemy's async and scoped forms there is another."""
    if caller.library != "sqlalchemy":
        return given
    given = unscoped(given)
    if caller.is_async:
        given = getattr(given, "sync_session", None) or given.sync_connection
    if given is None:
        raise ConfigurationError("the connection given has not been started. Use `async with engine.connect()`.")
    return given


def _follower(subject: Any, caller: Caller) -> Follower:
    if caller.library == "sqlalchemy":
        return _Session(subject) if hasattr(subject, "get_bind") else _Connection(subject)
    if caller.library == "django":
        from .django_follower import DjangoFollower

        return DjangoFollower(subject)
    kind = _KINDS.get(caller.library)
    if kind is None:
        refuse_kind(caller, "a sandbox", _TAKES)
    return kind(subject)


_KINDS: dict[str, type[Follower]] = {"sqlite3": _Sqlite3, "psycopg": _Psycopg, "asyncpg": _Asyncpg}


class SandboxBackend(MemoryBackend):
    """The memory store, and jobs of open transactions beside it. Every call first stores what was committed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._units: list[Unit] = []  # in the order of their calls
        self._followers: weakref.WeakValueDictionary[int, Follower] = weakref.WeakValueDictionary()

    @contextlib.contextmanager
    def _section(self, verb: str) -> Iterator[sqlite3.Cursor]:
        with super()._section(verb) as cursor:
            if self._units:
                for follower in {unit.owner: None for unit in self._units}:
                    follower.look()
                self._store_committed(cursor)
            yield cursor

    def _store_committed(self, cursor: sqlite3.Cursor) -> None:
        decided = [unit for unit in self._units if unit.fate is not Fate.PENDING]
        self._units = [unit for unit in self._units if unit.fate is Fate.PENDING]
        committed = [unit for unit in decided if unit.fate is Fate.COMMITTED]
        if committed:
            cursor.execute("BEGIN")
            for unit in committed:
                for job in unit.jobs:
                    join_one(cursor.execute, replace(job, on_conflict="keep"), unit.at)
                if unit.settlement is not None:
                    settle_in(self._transaction(cursor, None), unit.settlement)
            cursor.execute("COMMIT")
            self._wake()
        for follower in {unit.owner: None for unit in decided if not unit.owner.waits}:
            follower.rest()

    # ------------------------------------------------------------------ in the caller's transaction

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        follower = self._following(connection)
        return self._join(follower, follower.begin(), jobs)

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        follower = self._following(connection)
        return self._join(follower, await follower.abegin(connection), jobs)

    def settle_on(self, connection: Any, settlement: Settlement) -> Answer:
        follower = self._following(connection)
        return self._settle(follower, follower.begin(), settlement)

    async def asettle_on(self, connection: Any, settlement: Settlement) -> Answer:
        follower = self._following(connection)
        return self._settle(follower, await follower.abegin(connection), settlement)

    def _settle(self, follower: Follower, level: Any, settlement: Settlement) -> Answer:
        """Try it on the store; then let it wait."""
        with self._section("settle") as cursor:
            cursor.execute("BEGIN")
            try:
                answer = settle_in(self._transaction(cursor, None), settlement)
            finally:
                cursor.execute("ROLLBACK")
            if answer is Answer.OK:
                unit = Unit((), self._clock.wall(), follower, settlement)
                follower.add(unit, level)
                self._units.append(unit)
            return answer

    def _following(self, connection: Any) -> Follower:
        caller = recognise(connection)
        subject = _subject(connection, caller)
        follower = self._followers.get(id(subject))  # while there is one, its subject lives and keeps its id
        if follower is None:
            follower = self._followers[id(subject)] = _follower(subject, caller)
        return follower

    def _join(self, follower: Follower, level: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Try the jobs on the store, beside those that wait for the same connection; then let them wait."""
        with self._section("enqueue") as cursor:
            at, ids = self._clock.wall(), {job.id for job in jobs}
            cursor.execute("BEGIN")
            try:
                for unit in self._units:
                    for job in unit.jobs if unit.owner is follower else ():
                        if job.key is not None or job.id in ids:
                            join_one(cursor.execute, job, unit.at)
                answers = [join_one(cursor.execute, job, at) for job in jobs]
            finally:
                cursor.execute("ROLLBACK")
            unit = Unit([job for job, answer in zip(jobs, answers, strict=True) if answer.created], at, follower)
            if unit.jobs:
                follower.add(unit, level)
                self._units.append(unit)
            return answers

    def pending(self) -> list[JobRecord]:
        """The jobs that wait for a commit, in the order of their calls."""
        with self._section("pending"):
            units = list(self._units)
        return [
            fresh_record(job, Enqueued(job.id, True), unit.at, State.SCHEDULED) for unit in units for job in unit.jobs
        ]

    def commit(self) -> None:
        """Store what still waits as if it had been committed."""
        with self._section("commit") as cursor:
            for unit in self._units:
                unit.owner._decide(Fate.COMMITTED, [unit])
            self._store_committed(cursor)

    def stop_following(self) -> None:
        """The sandbox ends: what still waits is dropped."""
        followers = list(self._followers.values())
        self._units = []
        for follower in followers:
            follower.stop()
