"""A proxy of the tests' own that cuts a reply off after the server did what was asked.

Used by the tests of lost replies on each server's store. It listens where the test says and never alters a byte.
"""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    """Between a backend and the server; when told to, it swallows the next reply and hangs up."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self.cutting = False
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        from_server, to_server = await asyncio.open_unix_connection(self._socket)

        async def forth() -> None:
            while content := await reader.read(65536):
                to_server.write(content)

        async def back() -> None:
            while content := await from_server.read(65536):
                if self.cutting:
                    self.cutting = False
                    break
                writer.write(content)

        ways = [asyncio.create_task(forth()), asyncio.create_task(back())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for one in (writer, to_server):
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()

    async def over(self) -> None:
        await asyncio.gather(*self._serving)
