"""Wake-ups by LISTEN/NOTIFY: hints, sent separately from the work, at most one a millisecond, and fewer when many calls
create work.

Called by backend.py. NOTIFY serializes commits, so it is never part of the transaction that created the work. A pooler
in transaction mode does not support LISTEN; waiters then sleep until their timeout. Correctness rests on polling, never
on a hint. Waiters on this loop are always woken directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncCursor

from ...errors import HoldfastError
from .connection import Connections
from .prepared_calls import PreparedCall, hints

HINT_SECONDS_MIN = 0.001  # between two hints of one process, times the calls that shared the last one
HINT_SECONDS_MAX = 0.005
QUEUES_PER_HINT_MAX = 50
LISTEN_AGAIN_SECONDS = 1.0
CLOSE_SECONDS_MAX = 1.0
EVERY_QUEUE = "*"
# A hint need not survive a crash, so its commit does not wait for the disk.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)::text FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hint
"""


class Wakeups:
    """Sends wake-ups to other processes and waits for theirs. Belongs to the loop it is used on."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._channel = f"holdfast_{schema}"
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()  # in a forked child no thread runs its loop
        self._hint = PreparedCall("hint", NOTIFY)
        self._pending: set[str] = set()
        self._calls = 0  # that created work since the last hint
        self._telling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._generation = connections.generation  # of the connections, when listening began
        self._heard = asyncio.Event()
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}

    # ------------------------------------------------------------------ send

    def tell(self, queues: Iterable[str]) -> None:
        """Announce possible work in these queues; sent soon, batched with other pending hints."""
        named = list(queues)
        self._calls += 1
        self._pending.update(named)
        self._wake(named)
        if self._pending and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell())

    def tell_from_elsewhere(self, queues: Sequence[str]) -> None:
        """Like `tell`, from another thread. Queues already pending are skipped: their hint is still to be sent."""
        if self._pending.issuperset(queues):
            self._calls += 1
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: others find the work by polling
                self.loop.call_soon_threadsafe(self.tell, queues)

    async def _tell(self) -> None:
        while self._pending:
            calls, self._calls = self._calls, 0
            await self._tell_once()
            await asyncio.sleep(min(HINT_SECONDS_MAX, HINT_SECONDS_MIN * max(1, calls)))

    async def _tell_once(self) -> None:
        queues = sorted(self._pending)
        self._pending.clear()
        named = queues if len(queues) <= QUEUES_PER_HINT_MAX else [EVERY_QUEUE]
        said = {"channel": self._channel, "payload": json.dumps(named)}
        try:
            with contextlib.suppress(HoldfastError):  # a lost hint only costs one poll interval
                await self._connections.call("notify", partial(_ask, self._hint, said), writes=False)
        except asyncio.CancelledError:
            self._pending.update(queues)  # close() sends them
            raise

    # ------------------------------------------------------------------ wait

    async def listening(self) -> None:
        """Make sure we are listening, if possible: hints sent after this returns wake the waiters."""
        if self._connections.pooled:
            return
        if self._listening is not None and self._generation != self._connections.generation:
            self._listening.cancel()  # it may be connected to a demoted server and never receive anything
            self._listening = None
        if self._listening is None or self._listening.done():
            self._generation = self._connections.generation
            self._heard.clear()
            self._listening = asyncio.create_task(self._listen())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connections.call_timeout):
                    await self._heard.wait()

    @contextlib.contextmanager
    def hearing(self, queues: Sequence[str]) -> Iterator[asyncio.Event]:
        """An event that is set whenever a hint names one of these queues."""
        event = asyncio.Event()
        self._waiting[event] = frozenset(queues)
        try:
            yield event
        finally:
            del self._waiting[event]

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._connections.connect()
            except HoldfastError:
                self._heard.set()  # do not block callers on an unreachable server
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
                continue
            try:
                await connection.execute(f'LISTEN "{self._channel}"')
                self._heard.set()
                self._wake([EVERY_QUEUE])  # hints sent while we were not listening are lost
                async for payload in hints(connection):
                    self._wake(_queues_of(payload))
            except psycopg.Error:
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            finally:
                connection.pgconn.finish()

    def _wake(self, queues: list[str]) -> None:
        for event, wanted in self._waiting.items():
            if EVERY_QUEUE in queues or not wanted.isdisjoint(queues):
                event.set()

    async def close(self) -> None:
        """Send pending hints, then stop listening."""
        if self._telling is not None and not self._telling.done():
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._tell_once()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


async def _ask(question: PreparedCall, said: dict[str, str], cursor: AsyncCursor[Any]) -> None:
    await question.ask(cursor, said)


def _queues_of(payload: str) -> list[str]:
    """Anyone may NOTIFY on our channel: a foreign payload wakes every waiter, which is harmless."""
    try:
        named: Any = json.loads(payload)
    except ValueError:
        return [EVERY_QUEUE]
    return [str(name) for name in named] if isinstance(named, list) else [EVERY_QUEUE]


async def work_at_hand(
    cursor: AsyncCursor[Any], sql: Mapping[str, str], queues: list[str], floors: str | None = None
) -> tuple[float | None, bool]:
    """Seconds until there may be work in these queues (0: now, None: none is due at a known time), and whether a limit,
    a rate or a slow-down holds ready jobs back."""
    await cursor.execute(sql["wait_for_work.call"], {"queues": queues, "floors": floors})
    [(seconds, held_back)] = await cursor.fetchall()
    return None if seconds is None else max(0.0, float(seconds)), held_back
