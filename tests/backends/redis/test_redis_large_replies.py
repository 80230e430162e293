"""Reading from the server's socket: replies of any size, and no unsolicited ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from holdfast.backends.redis.connection import (
    READ_BYTES_MAX,
    Connections,
    Replies,
    ask,
    converse,
    let_go,
    packed_command,
)
from holdfast.errors import BackendUnavailable

from ...servers.valkey import Server

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_replies_of_any_size_come_whole(server: Server) -> None:
    asyncio.run(_echo(server))


async def _echo(server: Server) -> None:
    connections = Connections(f"redis://127.0.0.1:{server.port}/0", prefix="p", call_timeout=30.0)
    connection = await connections.connect()
    for size in (0, 1, READ_BYTES_MAX // 2, READ_BYTES_MAX, 5 * READ_BYTES_MAX + 1):
        text = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert await converse(connection, packed_command("ECHO", text)) == text
    several = packed_command("ECHO", "a") + packed_command("NONSENSE") + packed_command("ECHO", "b")
    first, error, last = await ask(connection, several, 3)
    assert (first, last) == (b"a", b"b") and "unknown command" in str(error)
    let_go(connection)


async def _with_server(talk: Talk, check: Callable[[Connections], Awaitable[None]]) -> None:
    """A server that accepts a connection as Redis does, and then talks as it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _greet(reader, writer)
        await talk(reader, writer)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        await check(Connections(f"redis://127.0.0.1:{port}/0", prefix="p", call_timeout=30.0))
    finally:
        listener.close()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every command of the handshake is OK; the first PING or ECHO is left to the test."""
    while True:
        count = int((await reader.readline())[1:])
        words = []
        for _ in range(count):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        if words[0] == b"ECHO":
            return
        writer.write(b"+OK\r\n")


@pytest.mark.parametrize("reply", [b"", b"$5\r\nhel", b"!nonsense\r\n"])
def test_a_reply_that_never_ends_well_is_a_lost_connection(reply: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await writer.drain()
        if reply.startswith(b"!"):
            await reader.read()  # until the client is gone

    async def check(connections: Connections) -> None:
        with pytest.raises(BackendUnavailable, match="lost"):
            await connections.call("look", packed_command("ECHO", "a"), writes=False, replies=1)

    asyncio.run(_with_server(talk, check))


class Transport:
    """Records its calls."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, command: bytes) -> None:
        self.written.append(command)

    def abort(self) -> None:
        self.aborted = True


def test_a_reply_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    async def body() -> None:
        transport = Transport()
        replies = Replies(cast("asyncio.Transport", transport))

        def arrives(content: bytes) -> None:
            replies.get_buffer(-1)[: len(content)] = content
            replies.buffer_updated(len(content))

        asked = asyncio.ensure_future(replies.ask(b"ECHO", 1))
        await asyncio.sleep(0)
        arrives(b"$1\r\na\r\n")
        assert await asked == [b"a"] and transport.written == [b"ECHO"] and not transport.aborted
        arrives(b"$5\r\nstale\r\n")
        assert transport.aborted
        replies.connection_lost(None)
        with pytest.raises(EOFError):
            await replies.ask(b"ECHO", 1)
        assert transport.written == [b"ECHO"]

    asyncio.run(body())


def test_a_call_is_late_by_its_own_time_not_by_that_of_an_earlier_one() -> None:
    async def body() -> None:
        replies, loop = Replies(cast("asyncio.Transport", Transport())), asyncio.get_running_loop()
        first = asyncio.ensure_future(replies.ask(b"ECHO", 1, loop.time() + 0.01))
        replies.get_buffer(-1)[:7] = b"$1\r\na\r\n"
        replies.buffer_updated(7)
        assert await first == [b"a"]
        until = loop.time() + 0.05
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(replies.ask(b"ECHO", 1, until), 30)
        assert loop.time() >= until

    asyncio.run(body())


def test_a_time_that_passes_while_nothing_is_asked_does_no_harm() -> None:
    async def body() -> None:
        replies, loop = Replies(cast("asyncio.Transport", Transport())), asyncio.get_running_loop()
        replies.ask(b"ECHO", 1, loop.time()).cancel()
        replies.connection_lost(None)
        passed = loop.create_future()
        loop.call_at(loop.time() + 0.01, passed.set_result, None)
        await passed
        with pytest.raises(EOFError):
            await replies.ask(b"ECHO", 1)

    asyncio.run(body())
