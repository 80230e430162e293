"""Connections to PostgreSQL: opening, pooling, timeouts and retries, and the mapping of driver errors to ours.

Called by backend.py, blocking.py and wakeups.py. A set of connections belongs to the event loop it was first used on;
on another loop it starts over. Nothing here knows about jobs, and no psycopg error leaves this package unmapped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor, Connection, IsolationLevel, waiting
from psycopg.pq import ConnStatus, TransactionStatus

from ...errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    DuplicateJob,
    HoldfastError,
    JobNotFound,
    OutcomeUnknown,
    ParentNotFound,
    SchemaMismatch,
    StoreSealed,
)
from ...lifecycle import state_conflict
from ..reconnect import Pace, is_ready
from ..seals import strict_limit, too_many_commands, too_many_signals
from ..urls import tellable
from .prepared_calls import PREPARE_AFTER, answer

Work = Callable[[AsyncCursor[Any]], Awaitable[Any]]

SCHEMA_VERSION = 11
TRIES_MAX = 8  # for a transaction that the server aborted for a deadlock or a conflicting change
CONNECTIONS_MAX = 4
LENGTHY = 60  # reading the whole store may take this many call timeouts
WAIT_SECONDS = 0.1  # psycopg looks up so often from waiting for the server
OPENING_SECONDS = 2.0  # an attempt to connect that its caller gave up is waited for until it is this old
# Our functions lock first and read afterwards, which needs a snapshot per statement, whatever the database's default.
ISOLATION = "read committed"
# Our own objects are schema-qualified, so nobody's functions can shadow the server's.
SEARCH_PATH = "pg_catalog,pg_temp"


def _state_conflict(facts: dict[str, Any]) -> HoldfastError:
    """lifecycle.py words the refusal; the advice that functions of an older version still send is ignored."""
    names = ("job_id", "verb", "state", "live_id", "heir_id", "letter_id", "child_id")
    return state_conflict(**{name: facts[name] for name in names if name in facts})


_REFUSED: Mapping[str, Callable[[Any], HoldfastError]] = {
    "HF001": lambda facts: JobNotFound(**facts),
    "HF002": _state_conflict,
    "HF003": lambda facts: DuplicateJob(**facts),
    "HF004": lambda facts: ConfigurationError(facts),
    "HF005": lambda facts: StoreSealed(facts["role"], facts["stage"], facts["other"]),
    "HF007": lambda facts: too_many_commands(facts["worker"]),
    "HF006": lambda facts: strict_limit(facts["queue"], facts["limit"]),
    "HF008": lambda facts: ParentNotFound(**facts),
    "HF009": lambda facts: too_many_signals(**facts),
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
    "53300": "the server has no free connection. Raise max_connections, or use fewer workers.",
}
LENT = ("26000", "42P05")  # our prepared statement is missing, or exists before we made it: a pooler's session
# The session is stale: its server was demoted, or its prepared statements are missing or outdated. The request was
# rolled back, and a new session may execute it.
STALE = (READ_ONLY, *LENT, "0A000")
NO_STORE = ("3F000", "42P01", "42883", "42704")
FORBIDDEN = "42501"
COUNTER_AT_END = "2200H"
COUNTER_ADVICE = "Nothing was changed. See 'A counter at its end' in how-to/postgres.md."


class SessionStale(Exception):
    """A reused session has gone stale; nothing was changed, so the call may be retried on another one at once."""


def mapped(error: psycopg.Error, verb: str, *, writes: bool, broken: bool) -> HoldfastError:
    """The one place where driver errors become ours. `broken`: the connection was lost before the result arrived."""
    state = error.sqlstate or ""
    if state in _REFUSED:
        facts = msgspec.json.decode(error.diag.message_detail or "{}")
        if state == "HF002" and verb == "retry":
            facts["verb"] = verb  # retrying a dead job runs as revive
        return _REFUSED[state](facts)
    if state in SAFE:
        return BackendUnavailable(f"PostgreSQL: {SAFE[state]}")
    if state in NO_STORE:
        return SchemaMismatch(0, SCHEMA_VERSION)
    if state == COUNTER_AT_END:
        return BackendError(f"PostgreSQL refused {verb}: {error_text(error)}. {COUNTER_ADVICE}")
    if broken:
        if writes:
            return OutcomeUnknown(verb)
        return BackendUnavailable(f"the connection to PostgreSQL was lost during {verb}. Try again.")
    if state in AGAIN:
        return BackendUnavailable(
            f"{verb} conflicted with other transactions too often. Nothing was changed; try again."
        )
    if state in LENT:
        return ConfigurationError(
            f"{verb} got a session that a pooler also lends to others: it may be another one for each transaction. "
            "Remove pooled=false from the URL. Nothing was changed."
        )
    return BackendError(f"PostgreSQL failed during {verb} ({state or type(error).__name__}): {error_text(error)}")


def is_held(error: HoldfastError) -> bool:
    """Whether a call failed because it could not get a lock in time."""
    return isinstance(error.__cause__, psycopg.Error) and error.__cause__.sqlstate == HELD


_DENIED = re.compile(r"permission denied for (schema|table|sequence|function|database) ")
_RIGHTS = {  # the privileges we need on each kind of object
    "schema": 'USAGE ON SCHEMA "{schema}"',
    "table": 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}"',
    "sequence": 'USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA "{schema}"',
    "function": 'EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}"',
    "database": "CREATE ON DATABASE {database}",
}


def forbidden(error: psycopg.Error, verb: str, schema: str, given: Mapping[str, Any]) -> ConfigurationError:
    """The role lacks a privilege: name it and the GRANT that fixes it. `given`: the URL's parts."""
    role, database = given.get("user") or "ROLE", given.get("dbname") or "NAME"
    denied = _DENIED.match(error_text(error))
    kinds = [denied[1]] if denied else ["schema", "table", "sequence", "function"]
    grants = " ".join(f"GRANT {_RIGHTS[kind]} TO {role};".format(schema=schema, database=database) for kind in kinds)
    advice = f"Let the owner of the schema execute: {grants}"
    if kinds == ["database"]:
        advice = f"Let a role that may create the schema run `holdfast migrate`, or execute: {grants}"
    elif denied is None and "owner" in error_text(error):
        advice = "Run `holdfast migrate` as the role that owns the schema."
    return ConfigurationError(f"PostgreSQL refuses {verb}: {error_text(error)}. Nothing was changed. {advice}")


def error_text(error: psycopg.Error) -> str:
    """The server's message in one line. Never the statement's parameters: those may be a job's arguments."""
    return (error.diag.message_primary or str(error)).strip().splitlines()[0]


_BAD_VALUE = re.compile(r'invalid (\w+) value: "|invalid integer value .* option "(\w+)"|invalid (port) number')


def unreached(conninfo: str, error: psycopg.OperationalError) -> HoldfastError:
    """Connecting failed. Contains libpq's message unless that quotes a secret; its error is not kept as a cause."""
    words = error_text(error)
    if bad := _BAD_VALUE.search(words):
        name = next(filter(None, bad.groups()))
        return ConfigurationError(f"the PostgreSQL URL is invalid: libpq does not accept this value of {name}.")
    return BackendUnavailable(
        f"PostgreSQL cannot be reached: {words if tellable(conninfo, words) else 'libpq refuses an option of the URL.'}"
        f"{'' if words.endswith('.') else '.'} Check that it runs and that the URL is right."
    )


def not_understood() -> ConfigurationError:
    """libpq cannot parse the URL. Its message may quote any part of it, even the password, so it is dropped."""
    return ConfigurationError(
        "libpq cannot parse the PostgreSQL URL. Check the names and values of its options; "
        "docs: PostgreSQL, Connection URIs."
    )


class PooledCursor(AsyncClientCursor[Any]):
    """For a session borrowed from a pooler: SET LOCALs precede each statement and end with its transaction.

    Both go in one simple-protocol request, so it is still one round trip; parameters are interpolated client-side
    because such a request cannot carry them. A transaction of several statements got its isolation when it began.
    """

    bounds = ""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> PooledCursor:
        bounds = self.bounds
        if self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
            bounds += f"SET LOCAL transaction_isolation = '{ISOLATION}'; "
        await super().execute(bounds + query, params, **options)
        while self.nextset():
            pass  # skip to the result of the statement itself
        return self


async def _is_pooled(connection: AsyncConnection[Any]) -> bool:
    """Whether a pooler is in between: another backend process responds than at start-up, or without our settings."""
    text = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation')"
    row = await (await connection.execute(text)).fetchone()
    return row != (connection.pgconn.backend_pid, ISOLATION)


class Session(AsyncConnection[Any]):
    """A connection that survives a caller who gives up.

    A caller's timeout is much shorter than the server's. psycopg would not release the caller before the statement is
    cancelled, up to ten seconds later. Here the caller returns at once, and `rest` makes the session usable again: a
    new one costs the server ten times as much as a call, because it compiles all functions again.
    """

    _abandoned = False  # by the caller of the statement under way
    _in_block = False  # of a transaction, whose end psycopg insists on making itself

    async def wait(self, gen: Any, interval: float = WAIT_SECONDS, timeout: float | None = None) -> Any:
        if self._abandoned:
            self._in_block = True
            return False
        bound = {} if timeout is None else {"timeout": timeout}  # psycopg 3.2 does not know it
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, **bound)
        except asyncio.CancelledError:
            self._abandoned = self.pgconn.transaction_status == TransactionStatus.ACTIVE
            raise

    async def rest(self) -> None:
        """Cancel the running statement and read its results. If it was in a transaction block, close the session."""
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await self.cancel_safe(timeout=0)
            with contextlib.suppress(psycopg.Error):  # usually that it was cancelled
                await answer(self.pgconn)
        if self._in_block or self.pgconn.transaction_status != TransactionStatus.IDLE:
            self.pgconn.finish()
            return
        self._abandoned = False
        await self.execute("SELECT")  # a cancellation that came too late must not hit the next caller


_inherited: list[Any] = []  # kept forever in a forked child: never used, never closed


def keep_inherited(something: Any) -> None:
    """Keep a parent's connections alive in a forked child: closing them would end the parent's sessions."""
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
        self.generation = 0  # of connections: when one proves useless, all older ones are given up
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop, self._process = loop, os.getpid()
        self._idle: list[Session] = []  # all of one generation
        self._idle_generation = self.generation
        self._opening: dict[asyncio.Task[Session], float] = {}  # nobody waits for these; when they began
        self._resting: dict[asyncio.Task[None], Session] = {}  # sessions whose caller gave up
        self._served: WeakKeyDictionary[AsyncConnection[Any], set[str]] = WeakKeyDictionary()  # verbs it has run
        self._slots = asyncio.Semaphore(self.most)

    async def connect(self) -> Session:
        """Open a connection in autocommit mode; the server, too, enforces a timeout on every statement."""
        await self.pace.turn()
        try:
            connection = await self._connect()
        except HoldfastError as error:
            self.pace.failed(error)
            raise
        self.pace.succeeded()
        return connection

    async def _connect(self) -> Session:
        try:
            return await self._reach()
        except psycopg.OperationalError as error:
            # A pooler without session state rejects session settings at start-up.
            if self._pooled is not None or "unsupported startup parameter" not in str(error):
                raise unreached(self._conninfo, error) from None
        except psycopg.ProgrammingError:
            raise not_understood() from None
        except TimeoutError:
            raise BackendUnavailable("PostgreSQL did not accept the connection in time. Try again.") from None
        self._pooled = True
        return await self._connect()

    def settings(self) -> tuple[str, dict[str, Any]]:
        """The connection string and our defaults for what it leaves unset."""
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
        """SETs to execute on a new connection. With pooled=false we trust that sessions are ours, but cannot know
        whether a pooler in between passed on the start-up settings."""
        if not self._trusting:
            return None
        ours = "".join(f"SET {name} = {value}; " for name, value in self._bounds.items())
        return f"{ours}SET search_path = {SEARCH_PATH}; SET default_transaction_isolation = '{ISOLATION}'"

    async def _reach(self) -> Session:
        conninfo, settings = self.settings()
        async with asyncio.timeout(2 * self.call_timeout):
            connection = await Session.connect(
                conninfo, autocommit=True, prepare_threshold=None if self._pooled else PREPARE_AFTER, **settings
            )
            try:
                if self._pooled is None:
                    self._pooled = await _is_pooled(connection)
                    connection.prepare_threshold = None if self._pooled else PREPARE_AFTER
                if self.said_again is not None:
                    await connection.execute(self.said_again)
                await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)  # for transactions psycopg begins
            except BaseException:
                connection.pgconn.finish()
                raise
        return connection

    def mapped(self, error: psycopg.Error, verb: str, *, writes: bool, broken: bool) -> HoldfastError:
        """Like the function `mapped`; a missing privilege is reported with its schema and role."""
        if error.sqlstate == FORBIDDEN:
            return forbidden(error, verb, self._schema, psycopg.conninfo.conninfo_to_dict(self._conninfo))
        return mapped(error, verb, writes=writes, broken=broken)

    @property
    def pooled(self) -> bool:
        """Whether sessions are shared, as behind a pooler in transaction mode: then no session state may persist.

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
        """Run `work` on one of our connections. Retries deadlocks and serialization failures, with jitter; a call that
        fails on a stale session is retried on a new one.

        An urgent call does not queue behind others: if all connections are busy it opens its own. A patient one retries
        for up to call_timeout, holding nothing meanwhile, while another session's transaction locks what it needs. A
        lengthy one consists of many statements, each with its own timeout. One that is not `planned` prepares nothing:
        it is planned on each call, for the store as it is then.
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
        raise AssertionError  # the loop either returns or raises

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
            self.give_up(generation)  # the server enforces its own timeout, so nobody is at the other end
            if writes:
                raise OutcomeUnknown(verb) from None
            raise BackendUnavailable(f"PostgreSQL did not answer {verb} in time. Try again.") from None
        except asyncio.CancelledError:
            self._let_rest(connection, generation)
            raise
        except BaseException:
            connection.pgconn.finish()
            raise
        self._put(connection, generation)
        return answer

    def give_up(self, generation: int, error: psycopg.Error | None = None) -> None:
        """A connection of that generation was lost or is stale: most likely so are all made before now.

        After a failover behind a moving address, all of them point to the old server. Thread-safe: each holder of idle
        connections drops them before its next use.
        """
        if error is not None and error.sqlstate in LENT and not self._trusting:
            self._pooled = True  # only a pooler could have touched our prepared statements
        if generation == self.generation:
            self.generation += 1

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            # The parent's: a message on these sockets would end its sessions.
            keep_inherited((self._idle, self._opening, self._resting))
            self._begin(loop)
        elif loop is not self._loop:
            self._end_unfinished()
            self.abandon()
            self._begin(loop)

    async def _take(self, verb: str) -> tuple[Session, bool]:
        """A connection, and whether it is new. Prefers one that has run this verb before: the first call in a session
        compiles functions and plans."""
        if self._idle_generation != self.generation:
            self.abandon()
            self._idle_generation = self.generation
        while self._idle:
            places = [place for place, one in enumerate(self._idle) if verb in self._served.get(one, ())]
            connection = self._idle.pop(places[-1] if places else -1)
            if is_sound(connection):
                return connection, False
            connection.pgconn.finish()
        return await self._open(), True

    async def _open(self) -> Session:
        """Open a connection, or wait for one that an earlier caller gave up on: otherwise no caller would ever get one
        from a server so busy that connecting takes longer than callers wait."""
        loop, generation = asyncio.get_running_loop(), self.generation
        young = [task for task, began in self._opening.items() if loop.time() - began < OPENING_SECONDS]
        began = self._opening.pop(young[0]) if young else loop.time()
        opening = young[0] if young else loop.create_task(self.connect())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._opening[opening] = began
            opening.add_done_callback(partial(self._opened, generation))
            raise

    def _opened(self, generation: int, opening: asyncio.Task[Session]) -> None:
        if self._opening.pop(opening, None) is None or opening.cancelled() or opening.exception() is not None:
            return  # somebody waits for it, or it failed: the next call tries again
        self._put(opening.result(), generation)

    def _let_rest(self, connection: Session, generation: int) -> None:
        """The caller gave up a call on this connection: make it usable again, beside other calls."""
        resting = asyncio.get_running_loop().create_task(self._rest(connection, generation))
        resting._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop may end first: see _end_unfinished
        self._resting[resting] = connection
        resting.add_done_callback(lambda task: self._resting.pop(task, None))

    def _end_unfinished(self) -> None:
        """Close the sessions that a loop left unfinished when it ended: asyncio.run cancels running calls."""
        opened = [task for task in self._opening if task.done() and not task.cancelled() and task.exception() is None]
        if self._process == os.getpid():
            for connection in [*self._resting.values(), *(task.result() for task in opened)]:
                connection.pgconn.finish()
        self._resting.clear()
        self._opening.clear()

    async def _rest(self, connection: Session, generation: int) -> None:
        try:
            async with asyncio.timeout(2 * self.call_timeout):
                await connection.rest()
        except (psycopg.Error, TimeoutError):
            connection.pgconn.finish()
        except BaseException:
            connection.pgconn.finish()
            raise
        self._put(connection, generation)

    async def close(self) -> None:
        """Close all connections, including those being opened, if they belong to this loop."""
        if self._process == os.getpid() and self._loop is asyncio.get_running_loop():
            pending = [*self._opening, *self._resting]
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        self._end_unfinished()
        self.abandon()

    def _put(self, connection: Session, generation: int) -> None:
        outlived = generation != self.generation or len(self._idle) >= self.most
        if outlived or connection.closed or connection.pgconn.transaction_status:
            connection.pgconn.finish()
        else:
            self._idle.append(connection)

    def abandon(self) -> None:
        """Close idle connections at once, without waiting: their loop may be gone."""
        if self._process == os.getpid():
            for connection in self._idle:
                connection.pgconn.finish()
        self._idle = []


def is_sound(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether an idle connection is still open. If the server closed it, something is readable before any request."""
    line = connection.pgconn
    if line.status != ConnStatus.OK:
        return False
    if not is_ready(line.socket):
        return True
    try:
        line.consume_input()
    except psycopg.Error:
        return False
    return not is_ready(line.socket) and line.status == ConnStatus.OK
