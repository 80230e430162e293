"""What a connection's server replies, read from the socket into the parser without copies in between.

Made by connection.py for each connection that redis-py has opened; it takes the place of redis-py's streams. Those keep
what they read twice before the parser sees it, which costs more than everything else where arguments are large. One
call at a time: whoever gives up waiting must close the connection. It never sends anything by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

READ_BYTES = 1 << 14  # of the buffer at first
READ_BYTES_MAX = 1 << 18  # it grows up to this size as long as replies fill it


class Replies(asyncio.BufferedProtocol):
    """Receives the replies to one call at a time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parser = hiredis.Reader()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._answers: list[Any] = []
        self._count = 0
        self._lost: BaseException | None = None  # why the connection is of no use any more

    async def to(self, command: bytes, count: int) -> list[Any]:
        """Send a command and return its `count` replies, errors included."""
        if self._lost is not None:
            raise self._lost
        self._parser = hiredis.Reader(replyError=ResponseError)
        self._answers, self._count = [], count
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(command)
            return await self._waiter
        finally:
            self._waiter = None

    # ------------------------------------------------------------------ called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        waiter, parser = self._waiter, self._parser
        if waiter is None or waiter.done():  # a reply that nobody asked for: the next one would be the wrong one
            self._transport.abort()
            return
        parser.feed(cast("bytes", self._buffer[:nbytes]))  # it takes any buffer, and copies it
        if nbytes == len(self._buffer) < READ_BYTES_MAX:
            self._buffer = memoryview(bytearray(4 * nbytes))
        try:
            while (answer := parser.gets()) is not False:
                self._answers.append(answer)
                if len(self._answers) == self._count:
                    waiter.set_result(self._answers)
                    return
        except hiredis.HiredisError:  # this is no reply of Redis
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = exc or EOFError()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._lost)


def receive(connection: AbstractConnection) -> None:
    """From now on, read this connection's replies here."""
    if connection._writer is not None:
        transport = connection._writer.transport
        transport.set_protocol(Replies(cast("asyncio.Transport", transport)))


async def replies_to(connection: AbstractConnection, command: bytes, count: int) -> list[Any]:
    """Send and read `count` replies, errors included."""
    if connection._writer is None:
        raise EOFError
    return await cast("Replies", connection._writer.transport.get_protocol()).to(command, count)
