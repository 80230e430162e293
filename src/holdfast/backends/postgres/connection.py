"""Connections to PostgreSQL: how they are made, bounded in time, handed out, and how the driver's errors become ours.

Called by backend.py and schema.py. A set of connections belongs to the event loop it was first used on; on another loop
it starts anew. Nothing here knows about jobs, and no psycopg error leaves this package unmapped.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor, Connection, IsolationLevel
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from ...errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    DuplicateJob,
    HoldfastError,
    JobNotFound,
    OutcomeUnknown,
    SchemaMismatch,
    StoreSealed,
)
from ...lifecycle import state_conflict
from ..connects import Pace, is_ready
from ..urls import tellable
from ..validate import strict_limit

Work = Callable[[AsyncCursor[Any]], Awaitable[Any]]

SCHEMA_VERSION = 3
TRIES_MAX = 8  # of a transaction the server gave up to end a deadlock, or that met a job in motion
CONNECTIONS_MAX = 4
LENGTHY = 60  # call timeouts: how long reading the whole store may take
PREPARE_AFTER = 5  # calls of one statement on one connection
FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
# Statements lock first and look afterwards, which needs a snapshot per statement, whatever the database's default is.
ISOLATION = "read committed"
# All that is ours is named with its schema: nobody's functions can take the place of the server's own.
SEARCH_PATH = "pg_catalog,pg_temp"


def _state_conflict(facts: dict[str, Any]) -> HoldfastError:
    """What a refusal says is decided at home; functions of an older version gave advice, which is not looked at."""
    names = ("job_id", "verb", "state", "live_id", "heir_id")
    return state_conflict(**{name: facts[name] for name in names if name in facts})


_REFUSED: Mapping[str, Callable[[Any], HoldfastError]] = {
    "HF001": lambda facts: JobNotFound(**facts),
    "HF002": _state_conflict,
    "HF003": lambda facts: DuplicateJob(**facts),
    "HF004": lambda facts: ConfigurationError(facts),
    "HF005": lambda facts: StoreSealed(facts["role"], facts["stage"], facts["other"]),
    "HF006": lambda facts: strict_limit(facts["queue"], facts["limit"]),
}
AGAIN = ("40001", "40P01")
HELD = "55P03"
READ_ONLY = "25006"
SAFE = {  # the transaction was rolled back, so nothing was changed
    HELD: "another session holds a lock we need. Look for a long transaction; try again.",
    "57014": "the statement took longer than call_timeout. Nothing was changed; try again.",
    READ_ONLY: "the server is read-only: a standby, or a primary being demoted. Name the primary in the URL.",
    "53100": "the server's disk is full. Free some space; nothing was changed.",
    "53200": "the server is out of memory. Nothing was changed; try again.",
    "53300": "the server has no connection left for us. Raise max_connections, or use fewer workers.",
}
LENT = ("26000", "42P05")  # our prepared statement is gone, or is there before we made it: a session somebody lent us
# The session is not what it was: its server was demoted, or its statements are gone or out of date. What was asked was
# rolled back, and a new session may do it.
STALE = (READ_ONLY, *LENT, "0A000")
NO_STORE = ("3F000", "42P01", "42883", "42704")
FORBIDDEN = "42501"
COUNTER_AT_END = "2200H"
COUNTER_ADVICE = "Nothing was changed. See 'A counter at its end' in how-to/postgres.md."


class SessionStale(Exception):
    """A session that was used before has gone stale; nothing was changed, so another may be asked at once."""


def mapped(error: psycopg.Error, verb: str, *, writes: bool, broken: bool) -> HoldfastError:
    """The one place where the driver's errors become ours. `broken`: the connection is gone, and the answer with it."""
    state = error.sqlstate or ""
    if state in _REFUSED:
        facts = msgspec.json.decode(error.diag.message_detail or "{}")
        if state == "HF002" and verb == "retry":
            facts["verb"] = verb  # of a dead job it is carried out as revive
        return _REFUSED[state](facts)
    if state in SAFE:
        return BackendUnavailable(f"PostgreSQL: {SAFE[state]}")
    if state in NO_STORE:
        return SchemaMismatch(0, SCHEMA_VERSION)
    if state == COUNTER_AT_END:
        return BackendError(f"PostgreSQL refused {verb}: {said(error)}. {COUNTER_ADVICE}")
    if broken:
        if writes:
            return OutcomeUnknown(verb)
        return BackendUnavailable(f"the connection to PostgreSQL was lost during {verb}. Try again.")
    if state in AGAIN:
        return BackendUnavailable(f"{verb} met too many rivals at once. Nothing was changed; try again.")
    if state in LENT:
        return ConfigurationError(
            f"{verb} met a session that is not ours alone: a pooler lends us another one for each transaction. "
            "Leave pooled=false out of the URL. Nothing was changed."
        )
    return BackendError(f"PostgreSQL failed during {verb} ({state or type(error).__name__}): {said(error)}")


def is_held(error: HoldfastError) -> bool:
    """Whether a call failed because a lock it needs was not given in time."""
    return isinstance(error.__cause__, psycopg.Error) and error.__cause__.sqlstate == HELD


_DENIED = re.compile(r"permission denied for (schema|table|sequence|function|database) ")
_RIGHTS = {  # what we need of each kind of object
    "schema": 'USAGE ON SCHEMA "{schema}"',
    "table": 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}"',
    "sequence": 'USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA "{schema}"',
    "function": 'EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}"',
    "database": "CREATE ON DATABASE {database}",
}


def forbidden(error: psycopg.Error, verb: str, schema: str, given: Mapping[str, Any]) -> ConfigurationError:
    """The role lacks a right: which one, and what gives it. `given`: the URL's parts."""
    role, database = given.get("user") or "ROLE", given.get("dbname") or "NAME"
    denied = _DENIED.match(said(error))
    kinds = [denied[1]] if denied else ["schema", "table", "sequence", "function"]
    grants = " ".join(f"GRANT {_RIGHTS[kind]} TO {role};".format(schema=schema, database=database) for kind in kinds)
    advice = f"Let the owner of the schema execute: {grants}"
    if kinds == ["database"]:
        advice = f"Let a role that may create the schema run `holdfast migrate`, or execute: {grants}"
    elif denied is None and "owner" in said(error):
        advice = "Run `holdfast migrate` as the role that owns the schema."
    return ConfigurationError(f"PostgreSQL refuses {verb}: {said(error)}. Nothing was changed. {advice}")


def said(error: psycopg.Error) -> str:
    """The server's words in one line. Never the statement's parameters: those may be arguments."""
    return (error.diag.message_primary or str(error)).strip().splitlines()[0]


_BAD_VALUE = re.compile(r'invalid (\w+) value: "|invalid integer value .* option "(\w+)"|invalid (port) number')


def unreached(conninfo: str, error: psycopg.OperationalError) -> HoldfastError:
    """No connection. libpq's words, unless they quote what must not be shown; its error is not kept as a cause."""
    words = said(error)
    if bad := _BAD_VALUE.search(words):
        name = next(filter(None, bad.groups()))
        return ConfigurationError(f"the PostgreSQL URL is not understood: libpq knows no such value of {name}.")
    return BackendUnavailable(
        f"PostgreSQL cannot be reached: {words if tellable(conninfo, words) else 'libpq refuses an option of the URL.'}"
    )


def not_understood() -> ConfigurationError:
    """libpq cannot read the URL. Its words may quote any part of it, the password too, and are not passed on."""
    return ConfigurationError(
        "the PostgreSQL URL is not understood by libpq. Check the names and values of its options; "
        "docs: PostgreSQL, Connection URIs."
    )


def decisive(found: Any, result: Any) -> Any:
    """Which of a call's results counts, so far and with one more: an error wins.

    The server sends the row before it commits, so a commit that fails says so in a result of its own.
    """
    return result if found is None or (found.status in FINE and result.status not in FINE) else found


class PooledCursor(AsyncClientCursor[Any]):
    """For a session that is only lent: what bounds a statement travels with it and is gone with its transaction.

    Both are one request, so still one round trip; values are put in here, as such a request cannot carry them apart.
    A transaction of several statements got its isolation when it began.
    """

    bounds = ""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> PooledCursor:
        bounds = self.bounds
        if self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
            bounds += f"SET LOCAL transaction_isolation = '{ISOLATION}'; "
        await super().execute(bounds + query, params, **options)
        while self.nextset():
            pass  # to the answer of the statement itself
        return self


async def _is_pooled(connection: AsyncConnection[Any]) -> bool:
    """Whether somebody stands between: another process answers than the one that greeted, or not with our settings."""
    text = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation')"
    row = await (await connection.execute(text)).fetchone()
    return row != (connection.pgconn.backend_pid, ISOLATION)


_inherited: list[Any] = []  # kept for ever in a forked child: never used, never closed


def keep_inherited(something: Any) -> None:
    """Keep what a forked child has of its parent's: its end would reach into the parent's sessions."""
    _inherited.append(something)


class Connections:
    """A few connections to one server, for one event loop at a time."""

    def __init__(
        self,
        conninfo: str,
        *,
        call_timeout: float,
        most: int = CONNECTIONS_MAX,
        pooled: bool | None = None,
        schema: str = "holdfast",
    ) -> None:
        self._conninfo, self.most, self._pooled, self._schema = conninfo, most, pooled, schema
        self._trusting = pooled is False
        self.call_timeout = call_timeout
        millis = int(call_timeout * 1000)
        self._bounds = {"statement_timeout": millis, "lock_timeout": millis // 2, "jit": "off"}
        self.pace = Pace()
        self.generation = 0  # of connections: when one proves to be of no use, all made before are given up
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop, self._process = loop, os.getpid()
        self._idle: list[AsyncConnection[Any]] = []  # all of one generation
        self._idle_generation = self.generation
        self._served: WeakKeyDictionary[AsyncConnection[Any], set[str]] = WeakKeyDictionary()  # verbs
        self._slots = asyncio.Semaphore(self.most)

    async def connect(self) -> AsyncConnection[Any]:
        """A connection in autocommit mode, every call on it bounded by the server as well."""
        await self.pace.turn()
        try:
            connection = await self._connect()
        except HoldfastError as error:
            self.pace.failed(error)
            raise
        self.pace.succeeded()
        return connection

    async def _connect(self) -> AsyncConnection[Any]:
        try:
            return await self._reach()
        except psycopg.OperationalError as error:
            # A pooler that does not know a session cannot accept settings for one.
            if self._pooled is not None or "unsupported startup parameter" not in str(error):
                raise unreached(self._conninfo, error) from None
        except psycopg.ProgrammingError:
            raise not_understood() from None
        except TimeoutError:
            raise BackendUnavailable("PostgreSQL did not answer the connection in time. Try again.") from None
        self._pooled = True
        return await self._connect()

    def settings(self) -> tuple[str, dict[str, Any]]:
        """What a connection is made with: the caller's words, and ours where they say nothing."""
        settings: dict[str, Any] = {
            "connect_timeout": max(2, round(self.call_timeout)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int(2000 * self.call_timeout),
            "application_name": "holdfast",
        }
        given = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        settings = {name: value for name, value in settings.items() if name not in given}
        if not self._pooled:
            ours = "".join(f" -c {name}={value}" for name, value in self._bounds.items())
            isolation = ISOLATION.replace(" ", "\\ ")
            settings["client_encoding"] = "UTF8"
            pinned = f"-c default_transaction_isolation={isolation} -c search_path={SEARCH_PATH}"
            settings["options"] = f"{ours} {given.get('options') or ''} {pinned}"
        return self._conninfo, settings

    @property
    def said_again(self) -> str | None:
        """What is to be executed on a new connection: told that a session is ours, we cannot know if a pooler in
        between passed on what the connection was made with."""
        if not self._trusting:
            return None
        ours = "".join(f"SET {name} = {value}; " for name, value in self._bounds.items())
        return f"{ours}SET search_path = {SEARCH_PATH}; SET default_transaction_isolation = '{ISOLATION}'"

    async def _reach(self) -> AsyncConnection[Any]:
        conninfo, settings = self.settings()
        async with asyncio.timeout(2 * self.call_timeout):
            connection = await AsyncConnection.connect(
                conninfo, autocommit=True, prepare_threshold=None if self._pooled else PREPARE_AFTER, **settings
            )
            try:
                if self._pooled is None:
                    self._pooled = await _is_pooled(connection)
                    connection.prepare_threshold = None if self._pooled else PREPARE_AFTER
                if self.said_again is not None:
                    await connection.execute(self.said_again)
                await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)  # of transactions psycopg begins
            except BaseException:
                connection.pgconn.finish()
                raise
        return connection

    def mapped(self, error: psycopg.Error, verb: str, *, writes: bool, broken: bool) -> HoldfastError:
        """As `mapped`, and a missing right is told with the schema and the role it is about."""
        if error.sqlstate == FORBIDDEN:
            return forbidden(error, verb, self._schema, psycopg.conninfo.conninfo_to_dict(self._conninfo))
        return mapped(error, verb, writes=writes, broken=broken)

    @property
    def pooled(self) -> bool:
        """Whether sessions are shared with strangers, as behind a pooler in transaction mode: nothing may stay in one.

        Known once a connection was made.
        """
        return bool(self._pooled)

    def _cursor(self, connection: AsyncConnection[Any]) -> AsyncCursor[Any]:
        if not self._pooled:
            return connection.cursor()
        cursor = PooledCursor(connection)
        bounds = {**self._bounds, "search_path": SEARCH_PATH}
        cursor.bounds = "".join(f"SET LOCAL {name} = {value}; " for name, value in bounds.items())
        return cursor

    async def call(
        self,
        verb: str,
        work: Work,
        *,
        writes: bool,
        urgent: bool = False,
        patient: bool = False,
        lengthy: bool = False,
        planned: bool = True,
    ) -> Any:
        """Carry out `work` on a connection of ours; what the server gave up for a rival is tried again, with jitter.
        What a session refuses that has gone stale is tried again on a new one.

        An urgent call does not queue behind others: where all connections are busy it gets one of its own. A patient
        one asks again, holding nothing meanwhile, until a transaction of somebody else that is in its way has ended.
        A lengthy one is made of many statements, each of which is bounded. One that is not `planned` prepares nothing:
        it is planned each time, for the store as it is then.
        """
        seconds = (LENGTHY if lengthy else 2) * self.call_timeout
        patience_ends = asyncio.get_running_loop().time() + self.call_timeout
        for attempt in itertools.count(1):
            try:
                self._adopt_loop()
                if urgent:
                    return await self._once(verb, work, seconds, writes=writes, planned=planned)
                async with self._slot(verb):
                    return await self._once(verb, work, seconds, writes=writes, planned=planned)
            except SessionStale as stale:
                if attempt >= TRIES_MAX:
                    raise self.mapped(stale.args[0], verb, writes=writes, broken=False) from stale.args[0]
                continue
            except psycopg.Error as error:
                in_the_way = patient and error.sqlstate == HELD and asyncio.get_running_loop().time() < patience_ends
                if not in_the_way and (error.sqlstate not in AGAIN or attempt >= TRIES_MAX):
                    raise self.mapped(error, verb, writes=writes, broken=False) from error
            await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, TRIES_MAX)))
        raise AssertionError  # the loop either answers or raises

    @asynccontextmanager
    async def _slot(self, verb: str) -> AsyncIterator[None]:
        slots = self._slots
        try:
            async with asyncio.timeout(2 * self.call_timeout):
                await slots.acquire()
        except TimeoutError:
            raise BackendUnavailable(f"{verb} found all connections busy for too long. Nothing was changed.") from None
        try:
            yield
        finally:
            slots.release()

    async def _once(self, verb: str, work: Work, seconds: float, *, writes: bool, planned: bool = True) -> Any:
        generation = self.generation
        connection, is_new = await self._take(verb)
        self._served.setdefault(connection, set()).add(verb)
        connection.prepare_threshold = PREPARE_AFTER if planned and not self._pooled else None
        try:
            async with asyncio.timeout(seconds):
                answer = await work(self._cursor(connection))
        except psycopg.Error as error:
            broken = connection.closed or connection.broken
            if broken or error.sqlstate in STALE:
                self.give_up(generation, error)
            self._put(connection, generation)
            if broken:
                raise self.mapped(error, verb, writes=writes, broken=True) from error
            if error.sqlstate in STALE and not is_new:
                raise SessionStale(error) from error
            raise
        except TimeoutError:
            connection.pgconn.finish()
            self.give_up(generation)  # the server bounds its statements itself: nobody is at the other end
            if writes:
                raise OutcomeUnknown(verb) from None
            raise BackendUnavailable(f"PostgreSQL did not answer {verb} in time. Try again.") from None
        except BaseException:
            connection.pgconn.finish()  # given up in the middle: what it is doing is unknown
            raise
        self._put(connection, generation)
        return answer

    def give_up(self, generation: int, error: psycopg.Error | None = None) -> None:
        """A connection of that generation was lost or is stale: so are, most likely, all made before now.

        After a failover behind an address that moves, every one of them is with the old server. From any thread: who
        holds idle ones lets go of them before the next use.
        """
        if error is not None and error.sqlstate in LENT and not self._trusting:
            self._pooled = True  # nobody but a pooler could have touched our statements
        if generation == self.generation:
            self.generation += 1

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: a word on these sockets would end its sessions
            self._begin(loop)
        elif loop is not self._loop:
            self.abandon()
            self._begin(loop)

    async def _take(self, verb: str) -> tuple[AsyncConnection[Any], bool]:
        """A connection, and whether it is new. If there is one that has done this before, that one: the first time, a
        session makes functions and plans for it."""
        if self._idle_generation != self.generation:
            self.abandon()
            self._idle_generation = self.generation
        while self._idle:
            places = [place for place, one in enumerate(self._idle) if verb in self._served.get(one, ())]
            connection = self._idle.pop(places[-1] if places else -1)
            if is_sound(connection):
                return connection, False
            connection.pgconn.finish()
        return await self.connect(), True

    def _put(self, connection: AsyncConnection[Any], generation: int) -> None:
        outlived = generation != self.generation or len(self._idle) >= self.most
        if outlived or connection.closed or connection.pgconn.transaction_status:
            connection.pgconn.finish()
        else:
            self._idle.append(connection)

    def abandon(self) -> None:
        """Let go of idle connections at once, without waiting: their loop may be gone."""
        if self._process == os.getpid():
            for connection in self._idle:
                connection.pgconn.finish()
        self._idle = []


def is_sound(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Has the server closed it while it was idle? Then something is readable on it, before anything was asked."""
    if connection.closed or connection.pgconn.status != ConnStatus.OK:
        return False
    if not is_ready(connection.fileno()):
        return True
    try:
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return not is_ready(connection.fileno()) and connection.pgconn.status == ConnStatus.OK
