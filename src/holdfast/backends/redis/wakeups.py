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
from typing import Any, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ...errors import HoldfastError
from .connection import ROLE, Connections, ask, check_primary, converse, last_of, let_go, packed_command

BLOCK_SECONDS = 5.0
AGAIN_SECONDS = 1.0
HINTS_MAX = 64  # as many as scripts keep: a reader that gets this many may have missed some

AtHand = Callable[[], Awaitable[tuple[float | None, str]]]


class Held(NamedTuple):
    """An XREAD that the server holds until there is a hint."""

    connection: AbstractConnection
    reply: asyncio.Future[list[Any]]


class Wakeups:
    """Waits for hints. Belongs to the loop it is used on."""

    def __init__(self, connections: Connections, key: str) -> None:
        self._connections, self._key = connections, key
        self.loop, self.process = asyncio.get_running_loop(), os.getpid()
        self._last = "0-0"
        self._listening: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._at_rest = 0  # waits that only a hint or their timeout ends
        self._block_seconds = BLOCK_SECONDS
        self._held: Held | None = None

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
            self._block_seconds = min(BLOCK_SECONDS, timeout)
            await self._rest(event, timeout, seconds)
            return False
        finally:
            del self._waiting[event]
            if not self._waiting:
                self._wanted.clear()

    async def _rest(self, event: asyncio.Event, timeout: float, seconds: float | None) -> None:
        """Wait for a hint, for as long as there can be no work by itself."""
        only_hints = seconds is None or seconds >= timeout
        self._at_rest += only_hints
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, timeout if seconds is None else min(timeout, seconds))):
                    await event.wait()
        finally:
            self._at_rest -= only_hints

    @property
    def at_rest(self) -> bool:
        return self._held is not None and self._at_rest > 0

    async def behind_hint(self, command: bytes, give_up: asyncio.Event) -> tuple[Any, bool]:
        """Send a command behind the XREAD that the server holds: it is carried out as soon as that ends. Return its
        reply, None if there is none, and whether there was a hint. Once `give_up` is set nobody waits for the reply."""
        held = self._held
        if held is None:
            return None, False
        try:
            waiter = ask(held.connection, command, 1)
            giving_up = asyncio.create_task(_give_up(waiter, give_up))
            try:
                answers = await waiter
            finally:
                giving_up.cancel()
        except (RedisError, OSError, EOFError):
            return None, False
        return answers[0] if answers else None, bool(answers) and held.reply.result() != [None]

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
            millis = max(1, int(self._block_seconds * 1000))
            words = ("XREAD", "COUNT", HINTS_MAX, "BLOCK", millis, "STREAMS", self._key, self._last)
            async with asyncio.timeout(BLOCK_SECONDS + 2 * self._connections.call_timeout):
                self._held = Held(connection, ask(connection, packed_command(*words), 1))
                try:
                    reply = last_of(await self._held.reply)
                finally:
                    self._held = None
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


async def _give_up(waiter: asyncio.Future[list[Any]], event: asyncio.Event) -> None:
    await event.wait()
    if not waiter.done():
        waiter.set_result([])
