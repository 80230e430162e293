"""Calls to Redis from a thread that waits for the answer: a blocking connection, no loop in between.

Used by backend.py for enqueueing one job from sync code, where two changes of thread would cost more than the call.
redis-py connects; what is sent and read after that is bounded and judged here, as in connection.py. Threads share the
idle connections; each is one thread's while it is used. Nothing is ever sent a second time, but a script the server did
not know: that one was not carried out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.connection import parse_url as parse_driver_url
from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, RedisError, ResponseError
from redis.retry import Retry

from ...errors import BackendUnavailable, OutcomeUnknown
from .connection import READ_BYTES, is_quiet, keep_inherited, mapped, words_of


class Direct:
    """A few blocking connections to one server."""

    def __init__(self, url: str, *, call_timeout: float, most: int) -> None:
        settings: dict[str, Any] = dict(parse_driver_url(url))  # type: ignore[no-untyped-call]
        self._class: type[AbstractConnection] = settings.pop("connection_class", Connection)
        # What the server says of itself first over TLS looks like an unasked answer on a connection that rests.
        self.usable = not issubclass(self._class, SSLConnection)
        ours = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "client_name": "holdfast"}
        bounds = {"socket_timeout": call_timeout, "socket_connect_timeout": 2 * call_timeout}
        self._settings = {**settings, **ours, **bounds}
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: list[AbstractConnection] = []

    def call(self, verb: str, command: bytes, whole: Callable[[], bytes]) -> Any:
        """Send a write and wait for its reply; `whole` is the command with the script's text."""
        connection, idle = self._take()
        try:
            line = _socket_of(connection)
            try:
                answer = _converse(line, command)
            except ResponseError as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                answer = _converse(line, whole())
        except (ResponseError, BusyLoadingError) as error:
            self._put(connection, idle)
            raise mapped(error, verb) from error
        except (RedisError, OSError, EOFError) as error:
            _let_go(connection)
            raise OutcomeUnknown(verb) from error
        except BaseException:
            _let_go(connection)  # interrupted in the middle: its reply would be taken for another's
            raise
        self._put(connection, idle)
        return answer

    def close(self) -> None:
        """Let go of idle connections; one that is in use goes when its call ends."""
        idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                _let_go(connection)

    # ------------------------------------------------------------------ connections

    def _take(self) -> tuple[AbstractConnection, list[AbstractConnection]]:
        """A connection, and where it goes afterwards."""
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: a word on these sockets would be taken for the parent's
            self._begin()
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was first
                break
            if is_quiet(_socket_of(connection).fileno()):
                return connection, idle
            _let_go(connection)
        return self._connect(), idle

    def _put(self, connection: AbstractConnection, idle: list[AbstractConnection]) -> None:
        if idle is not self._idle or len(idle) >= self._most:  # closed meanwhile, or enough of them
            _let_go(connection)
        else:
            idle.append(connection)

    def _connect(self) -> AbstractConnection:
        connection = self._class(**self._settings)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            _let_go(connection)
            raise mapped(error, "the connection") from error
        except (RedisError, OSError) as error:
            _let_go(connection)
            raise BackendUnavailable(f"Redis cannot be reached: {words_of(error)}") from error
        except BaseException:
            _let_go(connection)
            raise
        return connection


def _socket_of(connection: AbstractConnection) -> socket.socket:
    line: socket.socket | None = connection._sock
    if line is None:
        raise EOFError
    return line


def _converse(line: socket.socket, command: bytes) -> Any:
    line.sendall(command)
    parser = hiredis.Reader(replyError=ResponseError)
    while True:
        content = line.recv(READ_BYTES)
        if not content:
            raise EOFError
        parser.feed(content)
        answer = parser.gets()
        if answer is not False:
            if isinstance(answer, ResponseError):
                raise answer
            return answer


def _let_go(connection: AbstractConnection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]
