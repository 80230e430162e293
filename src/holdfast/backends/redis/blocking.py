"""Blocking calls to Redis: the calling thread waits for the reply, without an event loop in between.

Used by backend.py to enqueue one job from sync code, where two thread switches would cost more than the call. redis-py
connects; sending, receiving, timeouts and error mapping happen here, as in connection.py. Threads share the idle
connections; each belongs to one thread while in use. What is resent, and why, is as in connection.py.
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

from ...errors import BackendUnavailable, HoldfastError, OutcomeUnknown
from ..reconnect import Pace
from .connection import (
    DRIVER,
    KEEPALIVE,
    READ_BYTES_MAX,
    Call,
    Confirmation,
    Unconfirmed,
    is_misdirected,
    is_quiet,
    is_refusal,
    keep_inherited,
    last_of,
    mapped,
    may_not_be_named,
    words_of,
)


class BlockingCalls:
    """A few blocking connections to one server."""

    def __init__(self, url: str, *, call_timeout: float, most: int, pace: Pace | None = None) -> None:
        settings: dict[str, Any] = dict(parse_driver_url(url))  # type: ignore[no-untyped-call]
        self._class: type[AbstractConnection] = settings.pop("connection_class", Connection)
        # Over TLS, what the server sends after the handshake looks like an unsolicited reply on an idle connection.
        self.usable = not issubclass(self._class, SSLConnection)
        ours: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "client_name": "holdfast"}
        ours |= {"socket_timeout": call_timeout, "socket_connect_timeout": 2 * call_timeout}
        self._settings = {**DRIVER, **(KEEPALIVE if issubclass(self._class, Connection) else {}), **settings, **ours}
        self._pace = pace or Pace()
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: list[AbstractConnection] = []

    def call(self, verb: str, command: bytes, whole: Callable[[], bytes], confirm: Confirmation | None = None) -> Any:
        """Send a write and wait for its reply; `whole` builds the command with the script's text."""
        call = Call(verb, command, True, 1, whole, confirm)
        connection, idle, rested = self._take()
        try:
            return self._once(connection, idle, call)
        except BackendUnavailable as error:
            if not is_misdirected(error.__cause__):
                raise
            if not rested:
                self._pace.failed(error)  # the address still leads to that server
                raise
        connection, idle, _ = self._take()
        return self._once(connection, idle, call)

    def _once(self, connection: AbstractConnection, idle: list[AbstractConnection], call: Call) -> Any:
        verb = call.verb
        try:
            line = _socket_of(connection)
            try:
                answer = last_of(_replies_to(line, call.command))
            except ResponseError as error:
                if call.whole is None or not str(error).startswith("NOSCRIPT"):
                    raise
                answer = last_of(_replies_to(line, call.whole()))
            if call.confirm is not None and not is_refusal(answer):
                call.confirm.check(_replies_to(line, call.confirm.command, call.confirm.replies))
        except Unconfirmed as error:
            self._put(connection, idle)
            raise OutcomeUnknown(verb) from error
        except (ResponseError, BusyLoadingError) as error:
            if is_misdirected(error):
                _let_go(connection)
                self._leave(idle)
            else:
                self._put(connection, idle)
            raise mapped(error, verb) from error
        except (RedisError, OSError, EOFError) as error:
            _let_go(connection)
            if isinstance(error, TimeoutError):
                self._leave(idle)  # the idle connections lead to the same silent server
            raise OutcomeUnknown(verb) from error
        except BaseException:
            _let_go(connection)  # interrupted midway: its reply would be taken for that of the next call
            raise
        self._put(connection, idle)
        return answer

    def close(self) -> None:
        """Close idle connections; one in use is closed when its call ends."""
        idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                _let_go(connection)

    # ------------------------------------------------------------------ connections

    def _leave(self, idle: list[AbstractConnection]) -> None:
        """Drop all connections made before this was known; those in use are closed when their calls end."""
        if idle is self._idle:
            self.close()

    def _take(self) -> tuple[AbstractConnection, list[AbstractConnection], bool]:
        """Return a connection, the pool it goes back to, and whether it was idle there before."""
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: bytes sent on these sockets would be taken for the parent's
            self._begin()
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if is_quiet(_socket_of(connection).fileno()):
                return connection, idle, True
            _let_go(connection)
        return self._connect(), idle, False

    def _put(self, connection: AbstractConnection, idle: list[AbstractConnection]) -> None:
        if idle is not self._idle or len(idle) >= self._most:  # closed meanwhile, or the pool is full
            _let_go(connection)
        else:
            idle.append(connection)

    def _connect(self) -> AbstractConnection:
        self._pace.turn_here()
        try:
            connection = self._connect_now()
        except HoldfastError as error:
            self._pace.failed(error)
            raise
        self._pace.succeeded()
        return connection

    def _connect_now(self) -> AbstractConnection:
        connection = self._class(**self._settings)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            _let_go(connection)
            if not may_not_be_named(error, self._settings):
                raise mapped(error, "the connection") from error
        except (RedisError, OSError) as error:
            _let_go(connection)
            raise BackendUnavailable(
                f"Redis cannot be reached: {words_of(error)}. Check that it runs and that the URL is right."
            ) from error
        except BaseException:
            _let_go(connection)
            raise
        else:
            return connection
        self._settings["client_name"] = None
        return self._connect_now()


def _socket_of(connection: AbstractConnection) -> socket.socket:
    line: socket.socket | None = connection._sock
    if line is None:
        raise EOFError
    return line


def _replies_to(line: socket.socket, command: bytes, count: int = 1) -> list[Any]:
    line.sendall(command)
    parser = hiredis.Reader(replyError=ResponseError)
    answers: list[Any] = []
    while len(answers) < count:
        answer = parser.gets()
        if answer is not False:
            answers.append(answer)
            continue
        content = line.recv(READ_BYTES_MAX)
        if not content:
            raise EOFError
        parser.feed(content)
    return answers


def _let_go(connection: AbstractConnection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]
