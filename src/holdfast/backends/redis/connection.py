"""Connections to Redis or Valkey: how they are made, bounded in time, handed out, and how errors become ours.

Called by backend.py, reading.py, server.py and watch.py. redis-py connects (TLS, users, sockets); what is sent and read
after that is bounded and judged here. A set of connections belongs to the event loop it was first used on. Nothing here
knows about jobs, and no redis-py error leaves this package unmapped. Nothing is ever sent a second time, but a script
the server did not know: that one was not carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import msgspec
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.connection import parse_url as parse_driver_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,  # a refusal like any, although redis-py counts it among lost connections
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
    SchemaMismatch,
    StateConflict,
)
from .. import sealing
from .keys import KEY_NAMES, SCHEMA_VERSION, keys_of
from .lua import Script
from .rows import STATES

CONNECTIONS_MAX = 4
READ_BYTES = 262144

_SAFE = {  # refused before anything was carried out
    "OOM": "its memory is full (maxmemory): it takes no new jobs until others are done or pruned. Give it more memory.",
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
_FORBIDDEN = ("NOPERM", "NOAUTH", "WRONGPASS")

_REFUSED: Mapping[str, Callable[[dict[str, Any]], HoldfastError]] = {
    "SchemaMismatch": lambda facts: SchemaMismatch(facts["found"], SCHEMA_VERSION),
    "StoreSealed": lambda facts: sealing.refusal(sealing.read(facts["seal"])),
    "JobNotFound": lambda facts: JobNotFound(**facts),
    "DuplicateJob": lambda facts: DuplicateJob(**facts),
    "StateConflict": lambda facts: StateConflict(**{**facts, "state": STATES.get(facts["state"], facts["state"])}),
    "not ours": lambda facts: ConfigurationError(
        f"the key {facts['key']!r} is there and is not of a store of ours (a {facts['kind']}). "
        "Name another prefix: redis://…?prefix=NAME."
    ),
    "strict": lambda facts: ConfigurationError(
        f"queue {facts['queue']!r} is strict: its groups run one job at a time, so {facts['limit']} cannot hold. "
        'Declare the queue with group_order="relaxed" first.'
    ),
}


def mapped(error: RedisError, verb: str) -> HoldfastError:
    """What the server said, as one of ours. It answered, so the fate of the call is known."""
    said = str(error)
    code = said.partition(" ")[0]
    if code in _SAFE:
        return BackendUnavailable(f"Redis refuses {verb}: {_SAFE[code]}")
    if code in _FORBIDDEN or isinstance(error, AuthenticationError | AuthorizationError):
        return ConfigurationError(
            f"Redis refuses {verb}: {words_of(error)}. Check the user, its password and its rights."
        )
    return BackendError(f"Redis failed during {verb}: {words_of(error)}")


def words_of(error: BaseException) -> str:
    """The server's words in one line. Never the arguments: Redis does not repeat those."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def accepted(reply: list[Any]) -> list[Any]:
    """What a script answered; a refusal of its own is raised."""
    if reply and reply[0] == b"refused":
        raise _REFUSED[reply[1].decode()](msgspec.msgpack.decode(reply[2]))
    return reply


_inherited: list[Any] = []  # kept for ever in a forked child: never used, never closed


def keep_inherited(something: Any) -> None:
    """Keep what a forked child has of its parent's: its end would reach into the parent's event loop."""
    _inherited.append(something)


class Connections:
    """A few connections to one server, for one event loop at a time."""

    def __init__(self, url: str, *, prefix: str, call_timeout: float, most: int = CONNECTIONS_MAX) -> None:
        try:
            settings: dict[str, Any] = dict(parse_driver_url(url))
        except ValueError as error:
            raise ConfigurationError(f"the Redis URL is not understood: {error}") from None
        self._class: type[AbstractConnection] = settings.pop("connection_class", Connection)
        ours = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "client_name": "holdfast", "socket_timeout": None}
        self._settings = {**settings, **ours}
        try:
            self._class(**self._settings)  # connects to nothing; finds an option the driver does not have
        except (TypeError, ValueError, RedisError) as error:
            raise ConfigurationError(f"the Redis URL has an option the driver does not take: {error}") from None
        self._most = most
        self.call_timeout = call_timeout
        self.keys = keys_of(prefix)
        self._heads: dict[str, bytes] = {}
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop, self._process = loop, os.getpid()
        self._idle: list[AbstractConnection] = []
        self._slots = asyncio.Semaphore(self._most)

    # ------------------------------------------------------------------ calls

    async def run(
        self, script: Script, values: Sequence[Any], pieces: Sequence[bytes] = (), *, urgent: bool = False
    ) -> list[Any]:
        """Run a script; a refusal of the script's own is raised. Known by its content; sent whole where it is not.

        `values` travel packed; `pieces` as they are: the server's packing knows text, but no other bytes.
        """
        command, whole = self.spelled(script, values, pieces)
        reply = await self.call(script.verb, command, writes=script.writes, urgent=urgent, whole=whole)
        return accepted(reply)

    def spelled(
        self, script: Script, values: Sequence[Any], pieces: Sequence[bytes]
    ) -> tuple[bytes, Callable[[], bytes]]:
        """A script's run as it is sent: with its name, and how to make the one with its text."""
        count = b"*%d\r\n" % (len(script.keys) + 4 + len(pieces))
        rest = b"".join(map(_bulk, [msgspec.msgpack.encode(values), *pieces]))

        def whole() -> bytes:
            return count + self._head("EVAL", script.text, script.keys) + rest

        return count + self._head("EVALSHA", script.sha, script.keys) + rest, whole

    def _head(self, command: str, script: str, names: Sequence[str]) -> bytes:
        head = self._heads.get(script)
        if head is None:
            keys = [self.keys[KEY_NAMES.index(name)] for name in names]
            head = b"".join(map(_bulk, [command, script, str(len(keys)), *keys]))
            self._heads[script] = head
        return head

    async def command(self, verb: str, *words: str | bytes | float) -> Any:
        """One plain command that only reads."""
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
    ) -> Any:
        """Send, and answer the last of so many replies. An urgent call does not queue behind others: where all
        connections are busy it gets one of its own."""
        self._adopt_loop()
        if urgent:
            return await self._once(verb, command, writes, replies, whole)
        async with self._slot(verb):
            return await self._once(verb, command, writes, replies, whole)

    @asynccontextmanager
    async def _slot(self, verb: str) -> AsyncIterator[None]:
        slots = self._slots
        if not slots.locked():
            await slots.acquire()  # at once
        else:
            try:
                async with asyncio.timeout(2 * self.call_timeout):
                    await slots.acquire()
            except TimeoutError:
                raise BackendUnavailable(f"{verb} found all connections busy too long. Nothing was changed.") from None
        try:
            yield
        finally:
            slots.release()

    async def _once(
        self, verb: str, command: bytes, writes: bool, replies: int, whole: Callable[[], bytes] | None
    ) -> Any:
        connection = await self._take()
        try:
            async with asyncio.timeout(self.call_timeout):
                try:
                    answer = await converse(connection, command, replies)
                except ResponseError as error:
                    if whole is None or not str(error).startswith("NOSCRIPT"):
                        raise
                    answer = await converse(connection, whole(), replies)
        except (ResponseError, BusyLoadingError) as error:
            self._put(connection)
            raise mapped(error, verb) from error
        except (RedisError, OSError, EOFError) as error:
            let_go(connection)
            if writes:
                raise OutcomeUnknown(verb) from error
            raise BackendUnavailable(f"the connection to Redis was lost during {verb}. Try again.") from error
        except TimeoutError:
            let_go(connection)
            if writes:
                raise OutcomeUnknown(verb) from None
            raise BackendUnavailable(f"Redis did not answer {verb} in time. Try again.") from None
        except BaseException:
            let_go(connection)  # given up in the middle: its reply would be taken for another's
            raise
        self._put(connection)
        return answer

    # ------------------------------------------------------------------ connections

    async def connect(self) -> AbstractConnection:
        """A new connection, ready for commands. Whoever gets it lets it go."""
        connection = self._class(**self._settings)
        try:
            async with asyncio.timeout(2 * self.call_timeout):
                await connection.connect()  # type: ignore[no-untyped-call]
        except (AuthenticationError, AuthorizationError) as error:
            let_go(connection)
            raise mapped(error, "the connection") from error
        except ResponseError as error:
            let_go(connection)
            raise mapped(error, "the connection") from error
        except (RedisError, OSError) as error:
            let_go(connection)
            raise BackendUnavailable(f"Redis cannot be reached: {words_of(error)}") from error
        except TimeoutError:
            let_go(connection)
            raise BackendUnavailable("Redis did not answer the connection in time. Try again.") from None
        except BaseException:
            let_go(connection)
            raise
        return connection

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: a word on these sockets would be taken for the parent's
            self._begin(loop)
        elif loop is not self._loop:
            self.abandon()
            self._begin(loop)

    async def _take(self) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            if _is_sound(connection):
                return connection
            let_go(connection)
        return await self.connect()

    def _put(self, connection: AbstractConnection) -> None:
        if not connection.is_connected or len(self._idle) >= self._most:
            let_go(connection)
        else:
            self._idle.append(connection)

    def abandon(self) -> None:
        """Let go of idle connections at once, without waiting: their loop may be gone."""
        if self._process == os.getpid():
            for connection in self._idle:
                let_go(connection)
        self._idle = []


def _bulk(word: str | bytes) -> bytes:
    content = word.encode() if isinstance(word, str) else word
    return b"$%d\r\n%b\r\n" % (len(content), content)


def packed_command(*words: str | bytes | float) -> bytes:
    """A command as the server reads it."""
    spelled = [word if isinstance(word, str | bytes) else str(word) for word in words]
    return b"*%d\r\n" % len(spelled) + b"".join(map(_bulk, spelled))


async def converse(connection: AbstractConnection, command: bytes, replies: int = 1) -> Any:
    """Send and read so many replies; answers the last. An error among them is raised once all have been read.

    Straight on the streams that redis-py made: its own way takes twice as long, most of it in bookkeeping.
    """
    writer, stream = connection._writer, connection._reader
    if writer is None or stream is None:
        raise EOFError
    writer.write(command)
    await writer.drain()
    parser = hiredis.Reader(replyError=ResponseError)
    answer: Any = None
    failed: ResponseError | None = None
    while replies:
        answer = parser.gets()
        if answer is False:
            content = await stream.read(READ_BYTES)
            if not content:
                raise EOFError
            parser.feed(content)
            continue
        replies -= 1
        if isinstance(answer, ResponseError):
            failed = failed or answer
    if failed is not None:
        raise failed
    return answer


def let_go(connection: AbstractConnection) -> None:
    """Close at once, waiting for nothing. Its loop may be closed already: then only the socket is left to close."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is None:
        return
    with contextlib.suppress(RuntimeError, OSError):
        writer.transport.abort()
        return
    socket = getattr(writer.transport, "_sock", None)
    if socket is not None:
        socket.close()
        writer.transport._sock = None  # type: ignore[attr-defined]


def _is_sound(connection: AbstractConnection) -> bool:
    """Has the server closed it while it was idle? Then something is readable on it, before anything was asked."""
    writer = connection._writer
    if writer is None or writer.transport.is_closing():
        return False
    return is_quiet(writer.get_extra_info("socket").fileno())


def is_quiet(number: int) -> bool:
    """Is there nothing to read on a socket?"""
    if not hasattr(select, "poll"):  # Windows
        return not select.select([number], [], [], 0)[0]
    looking = select.poll()  # unlike select, it takes a number above 1023
    looking.register(number, select.POLLIN)
    return not looking.poll(0)
