"""All connections to an unreachable server retry at one shared pace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from holdfast.backends.postgres.connection import Connections
from holdfast.errors import BackendUnavailable


def test_many_who_come_while_the_server_is_away_hear_of_one_try() -> None:
    tries: list[None] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listening.accept()
                tries.append(None)
                line.close()

    threading.Thread(target=hang_up, daemon=True).start()
    conninfo = f"postgresql://user@127.0.0.1:{listening.getsockname()[1]}/db?sslmode=disable&gssencmode=disable"

    async def body() -> None:
        connections = Connections(conninfo, call_timeout=5.0)

        async def failed() -> None:
            with pytest.raises(BackendUnavailable):
                await connections.connect()

        await failed()
        alone = len(tries)
        assert alone >= 1
        await asyncio.gather(*(failed() for _ in range(50)))
        assert len(tries) == 2 * alone

    asyncio.run(asyncio.wait_for(body(), 60.0))
    listening.close()
