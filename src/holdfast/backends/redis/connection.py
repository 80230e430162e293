"""Connections to Redis or Valkey: connecting, timeouts, pooling and error mapping.

Called by backend.py, read.py, server.py and wakeups.py. redis-py connects (TLS, users, sockets); sending, receiving,
timeouts and error mapping happen here. A set of connections belongs to the event loop it was first used on. Nothing
here knows about jobs, and no redis-py error leaves this package unmapped.

A call is resent only after a refusal that means it was not carried out: the server did not know the script, or the
connection leads to the wrong server. The latter happens after a failover behind an address that moves (a DNS name, a
virtual IP, a proxy): the old primary lives on as a replica, and so do the connections to it. Then all of them are
closed, and the call goes to where the address leads now. A replica also serves reads, possibly stale ones, so now and
then a read is sent together with a check that the server is a primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import hiredis
import msgspec
import redis
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.connection import parse_url as parse_driver_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,  # a refusal like any other, although redis-py counts it among lost connections
    NoPermissionError,
    RedisError,
    ResponseError,
)

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
)
from ...lifecycle import state_conflict
from .. import seals
from ..reconnect import Pace, is_ready
from ..seals import strict_limit, too_many_commands, too_many_signals
from ..urls import tellable
from .codec import STATES
from .keys import KEY_NAMES, SCHEMA_VERSION, keys_of
from .scripts import Script

CONNECTIONS_MAX = 4
READ_BYTES = 1 << 14  # of the buffer for replies at first
READ_BYTES_MAX = 1 << 18  # it grows up to this size as long as replies fill it
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# TCP keepalive for idle connections: NAT and proxies do not drop them, and dead ones are detected.
KEEPALIVE: Mapping[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
    },
}
try:  # newer versions read the driver's version from its installed files for each connection, unless they are told
    from redis.driver_info import DriverInfo

    DRIVER: Mapping[str, Any] = {"driver_info": DriverInfo(lib_version=redis.__version__)}
except ImportError:
    DRIVER = {}
NEVER = float("inf")
PRIMARY_SECONDS = 1.0  # a connection whose server was a primary this recently is not checked again

_SAFE = {  # refused before anything was carried out
    "OOM": "its memory is full (maxmemory), and no finished job can be removed early: each is kept for 10 seconds, and "
    "dead letters stay. It accepts jobs again once others are done. Discard dead letters, or give it more memory.",
    "BUSYLOADING": "it is still loading its files. Try again.",
    "BUSY": "another script keeps the server busy. Try again.",
    "LOADING": "it is still loading its files. Try again.",
    "MISCONF": "it cannot save to disk and refuses writes. Look at its log and at the disk.",
    "READONLY": "it is a replica and takes no writes. Name the primary in the URL.",
    "MASTERDOWN": "it is a replica that lost its primary. Name the primary in the URL.",
    "NOREPLICAS": "too few replicas are connected for a safe write. Try again.",
    "CLUSTERDOWN": "the cluster has lost some of its slots. Try again.",
    "TRYAGAIN": "the keys are moving to another node. Try again.",
    "MOVED": "it is one node of a cluster, and the store is on another. Write redis+cluster:// in the URL.",
    "ASK": "it is one node of a cluster, and the store is moving. Write redis+cluster:// in the URL.",
    "UNKILLABLE": "another script keeps the server busy. Try again.",
}
# These mean that the connection leads to the wrong server, or to one that is not ready: a replica, one that is
# starting, a primary cut off from its replicas, which may have a successor by now. The right one may be behind the same
# address.
_MISDIRECTED = ("READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS")
_FORBIDDEN = ("NOPERM", "NOAUTH", "WRONGPASS")

_REFUSED: Mapping[str, Callable[[dict[str, Any]], HoldfastError]] = {
    "SchemaMismatch": lambda facts: SchemaMismatch(facts["found"], SCHEMA_VERSION),
    "StoreSealed": lambda facts: seals.refusal(seals.read(facts["seal"])),
    "JobNotFound": lambda facts: JobNotFound(**facts),
    "DuplicateJob": lambda facts: DuplicateJob(**facts),
    "ParentNotFound": lambda facts: ParentNotFound(**facts),
    "TooManySignals": lambda facts: too_many_signals(**facts),
    "TooManyCommands": lambda facts: too_many_commands(facts["worker"]),
    "StateConflict": lambda facts: state_conflict(**{**facts, "state": STATES[facts["state"]]}),
    "not ours": lambda facts: ConfigurationError(
        f"the key {facts['key']!r} exists and belongs to no Holdfast store (it is a {facts['kind']}). "
        "Name another prefix: redis://…?prefix=NAME."
    ),
    "strict": lambda facts: strict_limit(facts["queue"], facts["limit"]),
}


def mapped(error: RedisError, verb: str) -> HoldfastError:
    """Map the server's error to one of ours. The server replied, so the outcome of the call is known."""
    reply = str(error)
    code = reply.partition(" ")[0]
    if code in _SAFE:
        return BackendUnavailable(f"Redis refuses {verb}: {_SAFE[code]}")
    if code in _FORBIDDEN or isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return ConfigurationError(f"Redis refuses {verb}: {words_of(error)}. {_advice(reply)}")
    return BackendError(f"Redis failed during {verb}: {words_of(error)}")


def _advice(reply: str) -> str:
    """Return what to do about missing rights, in the server's ACL syntax."""
    if found := re.search(r"run the '([^']+)' command", reply):
        names = ("eval", "evalsha") if found[1] in ("eval", "evalsha") else (found[1],)
        return f"Give the user the rights: ACL SETUSER <user> {' '.join(f'+{name}' for name in names)}"
    if "access a key" in reply or "access one of the keys" in reply:
        return "Give the user the rights to the store's keys: ACL SETUSER <user> ~{<prefix>}:*"
    return "Check the user, its password and its rights."


def is_misdirected(error: BaseException | None) -> bool:
    """Whether the refusal means that the address leads to the wrong server, or to a former primary."""
    return isinstance(error, ResponseError | BusyLoadingError) and str(error).startswith(_MISDIRECTED)


def words_of(error: BaseException) -> str:
    """Return the server's message as one line. It never contains the arguments: Redis does not repeat those."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _words_about(url: str, error: Exception) -> str:
    """Return the driver's message about a URL, unless it quotes something secret."""
    return f": {error}" if tellable(url, str(error)) else ". Check the names and values of its options."


def is_refusal(reply: Any) -> bool:
    """Whether the script itself refused, having changed nothing."""
    return isinstance(reply, list) and reply[:1] == [b"refused"]


def accepted(reply: list[Any]) -> list[Any]:
    """Return the script's reply; raise if the script itself refused."""
    if is_refusal(reply):
        raise _REFUSED[reply[1].decode()](msgspec.msgpack.decode(reply[2]))
    return reply


def may_not_be_named(error: RedisError, settings: Mapping[str, Any]) -> bool:
    """Whether connecting failed because the user may not set a client name, which is optional."""
    return bool(settings["client_name"]) and isinstance(error, NoPermissionError) and "setname" in str(error)


_inherited: list[Any] = []  # kept forever in a forked child: never used, never closed


def keep_inherited(something: Any) -> None:
    """Keep alive what a forked child inherited: finalizing it would reach into the parent's event loop."""
    _inherited.append(something)


class Unconfirmed(Exception):
    """A write is done, but too few replicas have it, or that is unknown, or the rest of its reply cannot be read."""


class Confirmation(msgspec.Struct, frozen=True):
    """Commands sent after a write, on the same connection, to learn how many replicas have it: `confirmation_by`."""

    command: bytes
    replies: int
    replicas: int

    def check(self, answers: Sequence[Any]) -> None:
        refused = next((one for one in answers if isinstance(one, ResponseError)), None)
        if refused is None and answers[-1] >= self.replicas:
            return
        why = words_of(refused) if refused is not None else f"{answers[-1]} of {self.replicas} replicas have it"
        raise Unconfirmed(f"the primary has stored the write, but it may not have reached the replicas: {why}")


def confirmation_by(replicas: int, key: str, call_timeout: float, of_cluster: bool) -> Confirmation:
    """Build the commands that wait for replicas. WAIT covers the connection's own latest write. A repeated call may
    find nothing left to write, so one more write is sent, which every replica gets after whatever the call repeats. It
    uses the same connection, because after a failover another server would report for this one."""
    mark = packed_command("HSET", key, "waited", "1")
    wait = packed_command("WAIT", replicas, max(1, int(call_timeout * 500)))
    before = packed_command("ASKING") if of_cluster else b""  # this node may not own a slot that was just moved to it
    return Confirmation(before + mark + wait, 3 if of_cluster else 2, replicas)


class Call(msgspec.Struct):
    """A command as it is sent, and the replies to expect."""

    verb: str
    command: bytes
    writes: bool
    replies: int
    whole: Callable[[], bytes] | None
    confirm: Confirmation | None
    bodies: str | None = None  # the key of bodies that the reply may name instead of containing: they are read after it


class Line(msgspec.Struct, eq=False):
    """A connection of the pool."""

    connection: AbstractConnection
    generation: int
    rested: bool = False  # it was idle in the pool: its address may lead elsewhere now
    primary_at: float = float("-inf")  # when its server was last known to be a primary


class Connections:
    """A few connections to one server, for one event loop at a time.

    `of_cluster`: a cluster's node itself reports that a key is elsewhere, and a replica may serve the map of slots.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        call_timeout: float,
        most: int = CONNECTIONS_MAX,
        of_cluster: bool = False,
        wait: int = 0,
        pace: Pace | None = None,
    ) -> None:
        try:
            settings: dict[str, Any] = dict(parse_driver_url(url))
        except ValueError as error:
            raise ConfigurationError(f"the Redis URL cannot be parsed{_words_about(url, error)}") from None
        self._class: type[AbstractConnection] = settings.pop("connection_class", Connection)
        ours = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "client_name": "holdfast", "socket_timeout": None}
        self._settings = {**DRIVER, **(KEEPALIVE if issubclass(self._class, Connection) else {}), **settings, **ours}
        try:
            self._class(**self._settings)  # does not connect; finds options that the driver does not have
        except (TypeError, ValueError, RedisError) as error:
            text = f"the Redis URL has an option that the driver does not accept{_words_about(url, error)}"
            raise ConfigurationError(text) from None
        self.user: str = settings.get("username") or "default"
        self._most = most
        self.call_timeout = call_timeout
        self.of_cluster = of_cluster
        self.keys = keys_of(prefix)
        self.confirmation = confirmation_by(wait, self.keys[0], call_timeout, of_cluster) if wait else None
        self._heads: dict[str, bytes] = {}
        self._generation = 0
        self._pace = pace or Pace()
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop, self._process = loop, os.getpid()
        self._idle: list[Line] = []
        self._generation += 1
        self._slots = asyncio.Semaphore(self._most)

    # ------------------------------------------------------------------ calls

    async def run(
        self,
        script: Script,
        values: Sequence[Any],
        pieces: Sequence[bytes] = (),
        *,
        urgent: bool = False,
        confirm: bool = False,
        long_bodies: bool = False,
    ) -> list[Any]:
        """Run a script by its SHA1, or by its text if the server does not know it; raise if the script itself refuses.

        `values` are sent packed, `pieces` as they are, because the server's msgpack has text but no binary. `confirm`:
        wait for replicas, if the store is configured to. `long_bodies`: read those that the reply only names.
        """
        command, whole = self.spelled(script, values, pieces)
        how: dict[str, Any] = {"confirm": self.confirmation} if confirm and self.confirmation is not None else {}
        how["bodies"] = self.keys[KEY_NAMES.index("bodies")] if long_bodies else None
        reply = await self.call(script.verb, command, writes=script.writes, urgent=urgent, whole=whole, **how)
        return accepted(reply)

    def spelled(
        self, script: Script, values: Sequence[Any], pieces: Sequence[bytes]
    ) -> tuple[bytes, Callable[[], bytes]]:
        """Encode a script call by SHA1, and return how to encode the one with its text."""
        count = b"*%d\r\n" % (len(script.keys) + 4 + len(pieces))
        rest = b"".join(map(_bulk, [msgspec.msgpack.encode(values), *pieces]))

        def whole() -> bytes:  # rarely: once after the server was restarted
            return count + self._head("EVAL", script.text, script.keys) + rest

        head = self._heads.get(script.sha)
        if head is None:
            head = self._heads[script.sha] = self._head("EVALSHA", script.sha, script.keys)
        return count + head + rest, whole

    def _head(self, command: str, script: str, names: Sequence[str]) -> bytes:
        keys = [self.keys[KEY_NAMES.index(name)] for name in names]
        return b"".join(map(_bulk, [command, script, str(len(keys)), *keys]))

    async def command(self, verb: str, *words: str | bytes | float) -> Any:
        """Run one plain command that only reads."""
        return await self.call(verb, packed_command(*words), writes=False)

    async def call(
        self,
        verb: str,
        command: bytes,
        *,
        writes: bool,
        urgent: bool = False,
        replies: int = 1,
        whole: Callable[[], bytes] | None = None,
        confirm: Confirmation | None = None,
        bodies: str | None = None,
    ) -> Any:
        """Send a command and return the last of its replies. An urgent call does not queue behind others: if all
        connections are busy, it gets a new one."""
        self._adopt_loop()
        call = Call(verb, command, writes, replies, whole, confirm, bodies)
        if urgent:
            return await self._ask(call)
        slots = self._slots
        if slots.locked():
            await self._wait_for_slot(slots, verb)
        else:
            await slots.acquire()  # at once
        try:
            return await self._ask(call)
        finally:
            slots.release()

    async def _wait_for_slot(self, slots: asyncio.Semaphore, verb: str) -> None:
        try:
            async with asyncio.timeout(2 * self.call_timeout):
                await slots.acquire()
        except TimeoutError:
            raise BackendUnavailable(f"{verb} found all connections busy for too long. Nothing was changed.") from None

    async def _ask(self, call: Call) -> Any:
        """Send once; once more on a new connection, if an idle one turned out to lead to the wrong server."""
        line = await self._take()
        try:
            return await self._once(line, call)
        except BackendUnavailable as error:
            if not (line.rested and is_misdirected(error.__cause__)):
                raise
        return await self._once(await self._take(), call)

    async def _once(self, line: Line, call: Call) -> Any:
        connection, verb = line.connection, call.verb
        try:
            answer = await self._conversation(line, call)
        except Unconfirmed as error:
            self._put(line)
            raise OutcomeUnknown(verb) from error
        except (ResponseError, BusyLoadingError) as error:
            refusal = mapped(error, verb)
            if is_misdirected(error):
                self._leave(line, refusal)
            else:
                self._put(line)
            raise refusal from error
        except TimeoutError:  # which is an OSError
            let_go(connection)
            self.abandon()  # the idle connections lead to the same silent server
            if call.writes:
                raise OutcomeUnknown(verb) from None
            raise BackendUnavailable(f"Redis did not answer {verb} in time. Try again.") from None
        except (RedisError, OSError, EOFError) as error:
            let_go(connection)
            if call.writes:
                raise OutcomeUnknown(verb) from error
            raise BackendUnavailable(f"the connection to Redis was lost during {verb}. Try again.") from error
        except BaseException:
            let_go(connection)  # cancelled midway: its reply would be taken for that of the next call
            raise
        self._put(line)
        return answer

    async def _conversation(self, line: Line, call: Call) -> Any:
        connection, now = line.connection, time.monotonic()
        command, replies, whole = call.command, call.replies, call.whole
        until = asyncio.get_running_loop().time() + self.call_timeout
        try:
            if call.writes or self.of_cluster or now - line.primary_at < PRIMARY_SECONDS:
                answer = last_of(await ask(connection, command, replies, until))
            else:
                role, *answers = await ask(connection, ROLE + command, replies + 1, until)
                check_primary(role)
                answer = last_of(answers)
        except ResponseError as error:
            if whole is None or not str(error).startswith("NOSCRIPT"):
                raise
            text = await asyncio.to_thread(whole)  # it may have to be assembled
            answer = last_of(await ask(connection, text, replies, until))
        line.primary_at = now
        if is_refusal(answer):
            return answer
        if call.confirm is not None:
            call.confirm.check(await ask(connection, call.confirm.command, call.confirm.replies, until))
        if call.bodies is not None and (ids := left_out(answer)):
            return joined(answer, await self._read_bodies(connection, call.bodies, ids, until))
        return answer

    async def _read_bodies(
        self, connection: AbstractConnection, key: str, ids: Sequence[bytes], until: float
    ) -> Sequence[Any]:
        before = packed_command("ASKING") if self.of_cluster else b""  # as in confirmation_by
        command = before + packed_command("HMGET", key, *ids)
        found: Any = (await ask(connection, command, 2 if self.of_cluster else 1, until))[-1]
        if not isinstance(found, list):  # an error; the leases are made: their arguments come with a repeat
            raise Unconfirmed(f"the arguments of leased jobs cannot be read: {words_of(found)}")
        return found

    # ------------------------------------------------------------------ connections

    async def connect(self) -> AbstractConnection:
        """Open a new connection, ready for commands. The caller closes it."""
        await self._pace.turn()
        try:
            connection = await self._connect()
        except HoldfastError as error:
            self._pace.failed(error)
            raise
        self._pace.succeeded()
        return connection

    async def _connect(self) -> AbstractConnection:
        connection = self._class(**self._settings)
        try:
            async with asyncio.timeout(2 * self.call_timeout):
                await connection.connect()  # type: ignore[no-untyped-call]
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            let_go(connection)
            if not may_not_be_named(error, self._settings):
                raise mapped(error, "the connection") from error
        except TimeoutError:
            let_go(connection)
            raise BackendUnavailable("Redis did not accept the connection in time. Try again.") from None
        except (RedisError, OSError) as error:
            let_go(connection)
            raise BackendUnavailable(
                f"Redis cannot be reached: {words_of(error)}. Check that it runs and that the URL is right."
            ) from error
        except BaseException:
            let_go(connection)
            raise
        else:
            receive(connection)
            return connection
        self._settings["client_name"] = None
        return await self._connect()

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: bytes sent on these sockets would be taken for the parent's
            self._begin(loop)
        elif loop is not self._loop:
            self.abandon()
            self._begin(loop)

    async def _take(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if _is_sound(line.connection):
                return line
            let_go(line.connection)
        generation = self._generation
        return Line(await self.connect(), generation)

    def _put(self, line: Line) -> None:
        current = line.generation == self._generation
        if not current or not line.connection.is_connected or len(self._idle) >= self._most:
            let_go(line.connection)
        else:
            line.rested = True
            self._idle.append(line)

    def _leave(self, line: Line, refusal: HoldfastError) -> None:
        """Its server is the wrong one, and so is the server of every connection opened before this was known."""
        let_go(line.connection)
        if not line.rested:
            self._pace.failed(refusal)  # the address still leads to that server
        if line.generation == self._generation:
            self._generation += 1
            self.abandon()

    def abandon(self) -> None:
        """Close idle connections at once, without waiting: their loop may be gone."""
        if self._process == os.getpid():
            for line in self._idle:
                let_go(line.connection)
        self._idle = []


def _bulk(word: str | bytes) -> bytes:
    content = word.encode() if isinstance(word, str) else word
    return b"$%d\r\n%b\r\n" % (len(content), content)


def packed_command(*words: str | bytes | float) -> bytes:
    """Encode a command for the server."""
    spelled = [word if isinstance(word, str | bytes) else str(word) for word in words]
    return b"*%d\r\n" % len(spelled) + b"".join(map(_bulk, spelled))


REPLICA = "READONLY this server is a replica"  # the error it would return for a write
ROLE = packed_command("INFO", "replication")


def check_primary(role: Any) -> None:
    """Raise, by its reply to ROLE, the error with which a replica refuses writes."""
    if isinstance(role, bytes) and b"role:slave" in role:
        raise ResponseError(REPLICA)


async def converse(connection: AbstractConnection, command: bytes, replies: int = 1) -> Any:
    """Send, read `replies` replies and return the last. An error among them is raised once all have been read."""
    return last_of(await ask(connection, command, replies))


def last_of(answers: Sequence[Any]) -> Any:
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers[-1]


# ----------------------------------------------------------------------------------------------------------------------
# The server hashes and copies every string that a script touches. So a claim returns a list with the id in place of a
# long body (BODY_OR_NAME in lua/fragments.lua), which is read beside the script, on the same connection, in the same
# call. The leases are made by then: if their bodies cannot be read, the call has no reply, and a repeat returns both.


LEASES = 3  # their place in the reply of an exchange


def left_out(reply: Sequence[Any]) -> list[bytes]:
    """The ids of the jobs whose bodies are not in an exchange's reply."""
    return [piece[0] for piece in reply[LEASES][1::2] if isinstance(piece, list)]


def joined(reply: Sequence[Any], bodies: Sequence[bytes | None]) -> list[Any]:
    """The reply with those bodies. One that is gone by now belonged to a job that is, too: its lease is void."""
    rest = iter(bodies)
    pieces = [next(rest) if isinstance(piece, list) else piece for piece in reply[LEASES]]
    return [*reply[:LEASES], pieces, *reply[LEASES + 1 :]]


# ----------------------------------------------------------------------------------------------------------------------
# Replies are read from the socket into the parser, bypassing redis-py's streams: those buffer what they read twice
# before a parser sees it, which costs more than everything else if arguments are large.


class Replies(asyncio.BufferedProtocol):
    """Receives the replies to calls, in their order. Who cancels the wait for one must close the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parser = hiredis.Reader()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._expected: deque[tuple[asyncio.Future[list[Any]], int]] = deque()  # who waits for how many replies
        self._answers: list[Any] = []  # to the first of them, so far
        self._lost: BaseException | None = None  # why the connection is unusable
        self._until = NEVER  # when what is expected is overdue
        self._timer: asyncio.TimerHandle | None = None  # one for many calls: setting one costs as much as sending

    def ask(self, command: bytes, count: int, until: float = NEVER) -> asyncio.Future[list[Any]]:
        """Send a command behind those under way and return what will have its replies. If that is given a result
        before they come, they are dropped. What has no replies by `until` (the loop's time) raises TimeoutError."""
        if self._lost is not None:
            raise self._lost
        if not self._expected:
            self._parser = hiredis.Reader(replyError=ResponseError)
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._expected.append((waiter, count))
        self._until = until
        if self._timer is None and until < NEVER:
            self._timer = loop.call_at(until, self._check_time, loop)
        self._transport.write(command)
        return waiter

    def _check_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._expected or self._until == NEVER:
            return  # the next call sets another
        if loop.time() < self._until:  # it was set for an earlier call, which has been answered
            self._timer = loop.call_at(self._until, self._check_time, loop)
            return
        for waiter, _ in self._expected:
            if not waiter.done():
                waiter.set_exception(TimeoutError())

    # ------------------------------------------------------------------ called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        expected, parser = self._expected, self._parser
        if not expected or expected[0][0].cancelled():  # an unsolicited reply: the next call would take it
            self._transport.abort()
            return
        parser.feed(cast("bytes", self._buffer[:nbytes]))  # it takes any buffer, and copies it
        if nbytes == len(self._buffer) < READ_BYTES_MAX:
            self._buffer = memoryview(bytearray(4 * nbytes))
        complete: list[tuple[asyncio.Future[list[Any]], list[Any]]] = []
        try:
            while expected and (answer := parser.gets()) is not False:
                self._answers.append(answer)
                if len(self._answers) == expected[0][1]:
                    complete.append((expected.popleft()[0], self._answers))
                    self._answers = []
        except hiredis.HiredisError:  # not a reply of Redis
            self._transport.abort()
        for waiter, answers in reversed(complete):  # the last first: a job that was claimed, not the hint before it
            if not waiter.done():
                waiter.set_result(answers)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = exc or EOFError()
        if self._timer is not None:
            self._timer.cancel()
        for waiter, _ in self._expected:
            if not waiter.done():
                waiter.set_exception(self._lost)
        self._expected.clear()


def receive(connection: AbstractConnection) -> None:
    """From now on, read this connection's replies here."""
    if connection._writer is not None:
        transport = connection._writer.transport
        transport.set_protocol(Replies(cast("asyncio.Transport", transport)))


def ask(connection: AbstractConnection, command: bytes, count: int, until: float = NEVER) -> asyncio.Future[list[Any]]:
    """Send, behind what is under way, and return what will have the replies, errors included: see Replies.ask."""
    if connection._writer is None:
        raise EOFError
    return cast("Replies", connection._writer.transport.get_protocol()).ask(command, count, until)


def let_go(connection: AbstractConnection) -> None:
    """Close at once, waiting for nothing. If its loop is already closed, only the socket is left to close."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is None:
        return
    with contextlib.suppress(RuntimeError, OSError):
        writer.transport.abort()
        return
    line = getattr(writer.transport, "_sock", None)
    if line is not None:
        line.close()
        writer.transport._sock = None  # type: ignore[attr-defined]


def _is_sound(connection: AbstractConnection) -> bool:
    """Whether the server left it open while it was idle. A closed one is readable before anything was sent."""
    writer = connection._writer
    if writer is None or writer.transport.is_closing():
        return False
    return is_quiet(writer.get_extra_info("socket").fileno())


def is_quiet(number: int) -> bool:
    """Whether there is nothing to read on a socket."""
    return not is_ready(number)
