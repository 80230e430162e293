"""A proxy of the soak's: it cuts replies off, holds them back, and can be led to another server.

It runs on a loop in a thread of its own, so that the soak's other faults cannot slow it down. It never alters a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
CHUNK_BYTES = 65536


class FaultyProxy:
    """Listens on a Unix socket or a loopback port; `connect` leads to the server of the moment."""

    def __init__(self, connect: Connect, *, path: str | None = None, port: int | None = None) -> None:
        self.connect = connect
        self.cut_rate = self.hold_rate = 0.0  # of replies
        self.hold_seconds_max = 2.0
        self.cuts = self.holds = 0
        self._where: dict[str, Any] = {"path": path, "port": port}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        carriers = asyncio.all_tasks() - {asyncio.current_task()}
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)

    async def _listen(self) -> None:
        if self._where["path"] is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._where["path"])
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._where["port"])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await self.connect()
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.ensure_future(self._carry(reader, to_server, faulty=False)),
            asyncio.ensure_future(self._carry(from_server, writer, faulty=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy ends
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for one in (writer, to_server):
            with contextlib.suppress(OSError):
                one.close()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, faulty: bool) -> None:
        while content := await source.read(CHUNK_BYTES):
            if faulty and random.random() < self.cut_rate:
                self.cuts += 1
                return
            if faulty and random.random() < self.hold_rate:
                self.holds += 1
                await asyncio.sleep(random.uniform(0.0, self.hold_seconds_max))
            target.write(content)
            await target.drain()

    def calm(self) -> None:
        self.cut_rate = self.hold_rate = 0.0

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
