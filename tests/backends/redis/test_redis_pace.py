"""All connections to an unreachable server retry at one shared pace, and idle ones are kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.backends import reconnect
from holdfast.backends.reconnect import Pace
from holdfast.backends.redis.blocking import BlockingCalls
from holdfast.backends.redis.connection import Connections, let_go, packed_command
from holdfast.errors import BackendUnavailable

from ...servers.valkey import Server

COMMAND = packed_command("PING")


class Shut:
    """A server that hangs up on everybody, and counts them."""

    def __init__(self) -> None:
        self.tries = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                self.tries += 1
                line.close()

    def close(self) -> None:
        self._listening.close()


async def failed(connections: Connections) -> None:
    with pytest.raises(BackendUnavailable):
        await connections.call("ping", COMMAND, writes=False)


def test_many_who_come_while_the_server_is_away_hear_of_one_try() -> None:
    async def body() -> None:
        server, turns = Shut(), Pace()
        connections = Connections(server.url, prefix="p", call_timeout=5.0, most=50, pace=turns)
        direct = BlockingCalls(server.url, call_timeout=5.0, most=4, pace=turns)
        await failed(connections)
        assert server.tries == 1
        await asyncio.gather(*(failed(connections) for _ in range(50)))
        assert server.tries == 2
        with ThreadPoolExecutor(8) as threads:

            def call() -> None:
                with pytest.raises(BackendUnavailable):
                    direct.call("enqueue", COMMAND, lambda: COMMAND)

            calls = [asyncio.wrap_future(threads.submit(call)) for _ in range(8)]
            await asyncio.gather(*calls, *(failed(connections) for _ in range(8)))
        assert server.tries <= 2 + 8  # threads that began after a try ended wait for the next
        server.close()

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_turns_are_a_gap_apart_only_while_connections_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    turns = Pace()
    assert [turns._seconds(0) for _ in range(3)] == [0.0] * 3
    turns.failed(BackendUnavailable("away. Try again."))
    assert turns._seconds(1) >= reconnect.GAP_SECONDS
    now += 2 * reconnect.GAP_SECONDS
    assert turns._seconds(1) == 0.0  # its turn
    assert turns._seconds(1) >= reconnect.GAP_SECONDS  # the next one's is later
    turns.failed(BackendUnavailable("away, still. Try again."))
    with pytest.raises(BackendUnavailable, match="still"):
        turns._seconds(1)  # who waited meanwhile
    turns.succeeded()
    assert [turns._seconds(1) for _ in range(3)] == [0.0] * 3


def test_connections_over_tcp_are_kept_alive_while_they_rest(server: Server) -> None:
    url = f"redis://127.0.0.1:{server.port}/0"

    async def body() -> None:
        connections = Connections(url, prefix="p", call_timeout=5.0)
        connection = await connections.connect()
        assert connection._writer is not None
        line: socket.socket = connection._writer.get_extra_info("socket")
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        let_go(connection)

    asyncio.run(body())
    direct = BlockingCalls(url, call_timeout=5.0, most=4)
    direct.call("ping", COMMAND, lambda: COMMAND)
    [resting] = direct._idle
    line: Any = resting._sock
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    direct.close()
