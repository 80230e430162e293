"""Wake-ups: scripts append a short hint to a stream, and a waiting backend reads it with a blocking XREAD.

Called by backend.py. A stream wakes every waiter and loses nothing between two reads; a popped marker would wake one,
perhaps for another queue. Only a hint: polling is authoritative. Reads nothing while nobody waits. Disconnects from a
server that became a replica, which would keep replying for as long as it is connected to its primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ...errors import HoldfastError
from .connection import ROLE, Connections, check_primary, converse, let_go, packed_command

BLOCK_SECONDS = 5.0
AGAIN_SECONDS = 1.0
HINTS_MAX = 64  # as many as scripts keep: a reader that gets this many may have missed some

AtHand = Callable[[], Awaitable[tuple[float | None, str]]]


class Wakeups:
    """Waits for hints. Belongs to the loop it is used on."""

    def __init__(self, connections: Connections, key: str) -> None:
        self._connections, self._key = connections, key
        self.loop, self.process = asyncio.get_running_loop(), os.getpid()
        self._last = "0-0"
        self._listening: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}

    async def wait(self, queues: Sequence[str], timeout: float, at_hand: AtHand) -> bool:
        """Wait until these queues may have work, or the timeout; True if they had it already. `at_hand` checks for work
        and gets the last hint."""
        event = asyncio.Event()
        self._waiting[event] = frozenset(queues)
        try:
            seconds, last = await at_hand()
            if self._listening is None or self._listening.done():
                self._last = last
                self._listening = asyncio.create_task(self._listen())
            self._wanted.set()
            if seconds == 0.0:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, timeout if seconds is None else min(timeout, seconds))):
                    await event.wait()
            return False
        finally:
            del self._waiting[event]
            if not self._waiting:
                self._wanted.clear()

    async def _listen(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                connection = await self._connections.connect()
            except HoldfastError:
                await asyncio.sleep(random.uniform(0.5, 1.5) * AGAIN_SECONDS)
                continue
            try:
                await self._read_hints(connection)
            except (RedisError, OSError, EOFError, TimeoutError):
                await asyncio.sleep(random.uniform(0.5, 1.5) * AGAIN_SECONDS)
            finally:
                let_go(connection)

    async def _read_hints(self, connection: AbstractConnection) -> None:
        look_at = 0.0 if not self._connections.of_cluster else float("inf")
        while True:
            await self._wanted.wait()
            if time.monotonic() >= look_at:
                async with asyncio.timeout(self._connections.call_timeout):
                    check_primary(await converse(connection, ROLE))
                look_at = time.monotonic() + BLOCK_SECONDS
            words = ("XREAD", "COUNT", HINTS_MAX, "BLOCK", int(BLOCK_SECONDS * 1000), "STREAMS", self._key, self._last)
            async with asyncio.timeout(BLOCK_SECONDS + 2 * self._connections.call_timeout):
                reply = await converse(connection, packed_command(*words))
            if reply:
                hints: list[tuple[bytes, list[bytes]]] = reply[0][1]
                self._last = hints[-1][0].decode()
                queues = {queue.decode() for _, fields in hints for queue in fields[1::2]}
                self._wake(None if len(hints) >= HINTS_MAX else queues)

    def _wake(self, queues: set[str] | None) -> None:
        for event, wanted in self._waiting.items():
            if queues is None or not wanted.isdisjoint(queues):
                event.set()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
