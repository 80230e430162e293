"""Wake-ups by LISTEN/NOTIFY: a hint, sent apart from the work and at most once per few milliseconds.

Called by backend.py. NOTIFY makes commits wait for each other, so it never travels in the transaction that made the
work. Behind a pooler in transaction mode there is no LISTEN, and waiting simply lasts its time: polling is the truth.
Waiters on this loop are woken directly in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncCursor

from ...errors import HoldfastError
from .connection import Connections
from .prepared import PreparedCall, hints

HINT_SECONDS_MIN = 0.005  # between two hints of one process
QUEUES_PER_HINT_MAX = 50
LISTEN_AGAIN_SECONDS = 1.0
CLOSE_SECONDS_MAX = 1.0
EVERY_QUEUE = "*"
# A hint need not survive a crash, so its commit does not wait for the disk.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)::text FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hint
"""


class Wakeups:
    """Tells other processes of work, and waits to be told. Belongs to the loop it is used on."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._channel = f"holdfast_{schema}"
        self.process = os.getpid()  # in a forked child its loop is nobody's
        self._hint = PreparedCall("hint", NOTIFY)
        self._pending: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._generation = connections.generation  # of connections, when it began to listen
        self._heard = asyncio.Event()
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}

    # ------------------------------------------------------------------ telling

    def tell(self, queues: Iterable[str]) -> None:
        """There may be work in these queues; said soon, together with what else is to be said."""
        named = list(queues)
        self._pending.update(named)
        self._wake(named)
        if self._pending and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell())

    def tell_from_elsewhere(self, loop: asyncio.AbstractEventLoop, queues: Sequence[str]) -> None:
        """As `tell`, from another thread. What is still to be said is said after this, so it need not be said twice."""
        if not self._pending.issuperset(queues):
            with contextlib.suppress(RuntimeError):  # the loop is closed: polling is the truth
                loop.call_soon_threadsafe(self.tell, queues)

    async def _tell(self) -> None:
        while self._pending:
            await self._tell_once()
            await asyncio.sleep(HINT_SECONDS_MIN)

    async def _tell_once(self) -> None:
        queues = sorted(self._pending)
        self._pending.clear()
        named = queues if len(queues) <= QUEUES_PER_HINT_MAX else [EVERY_QUEUE]
        said = {"channel": self._channel, "payload": json.dumps(named)}
        try:
            with contextlib.suppress(HoldfastError):  # a hint that is lost costs a poll
                await self._connections.call("notify", partial(_ask, self._hint, said), writes=False)
        except asyncio.CancelledError:
            self._pending.update(queues)  # for close to say
            raise

    # ------------------------------------------------------------------ waiting

    async def listening(self) -> None:
        """Be heard from now on, as far as possible: what is told after this wakes who waits."""
        if self._connections.pooled:
            return
        if self._listening is not None and self._generation != self._connections.generation:
            self._listening.cancel()  # it may listen to a server that was demoted, and hear nothing for ever
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
        """An event that is set whenever one of these queues is told of."""
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
                self._heard.set()  # nobody waits for a server that is away
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
                continue
            try:
                await connection.execute(f'LISTEN "{self._channel}"')
                self._heard.set()
                self._wake([EVERY_QUEUE])  # what was told while nobody listened
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
        """Say what is still to be said, then end."""
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
    """Anyone may NOTIFY on our channel: what is not ours wakes everybody, which does no harm."""
    try:
        named: Any = json.loads(payload)
    except ValueError:
        return [EVERY_QUEUE]
    return [str(name) for name in named] if isinstance(named, list) else [EVERY_QUEUE]
