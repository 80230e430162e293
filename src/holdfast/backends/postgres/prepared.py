"""Prepared statements that return one row, executed from the event loop by libpq calls instead of psycopg's cursor.

Called by backend.py and wakeups.py for the hottest statements; it costs the client a third of what the cursor does. The
caller owns the connection meanwhile. connection.py bounds the time and maps the errors. Behind a pooler, where no
session state may persist, the cursor is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncCursor, pq
from psycopg.errors import error_from_result

from .connection import FINE, PREPARE_AFTER, PooledCursor, decisive
from .enqueue import sent

_PARAMETER = re.compile(r"%\((\w+)\)s")
CANCEL_SECONDS = 1.0


class PreparedCall:
    """A statement with numbered parameters that returns one row: a text, optionally followed by bytes."""

    def __init__(self, name: str, statement: str) -> None:
        self._name, self._statement = f"holdfast_{name}".encode(), statement
        self._names = tuple(dict.fromkeys(_PARAMETER.findall(statement)))
        self._numbered = _PARAMETER.sub(lambda found: f"${self._names.index(found[1]) + 1}", statement).encode()
        self._uses: WeakKeyDictionary[AsyncConnection[Any], int] = WeakKeyDictionary()

    async def ask(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> str:
        return (await self.ask_both(cursor, given))[0]

    async def ask_both(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> tuple[str, bytes]:
        """The first few calls on a connection use the cursor: a short-lived connection is not worth preparing on."""
        connection = cursor.connection
        uses = self._uses.get(connection, 0)
        if uses < PREPARE_AFTER or isinstance(cursor, PooledCursor):
            self._uses[connection] = uses + 1
            await cursor.execute(self._statement, given, prepare=False, binary=not isinstance(cursor, PooledCursor))
            row: Any = await cursor.fetchone()
            return str(row[0]), (row[1] or b"") if len(row) > 1 else b""
        try:
            if uses == PREPARE_AFTER:
                connection.pgconn.send_prepare(self._name, self._numbered)
                await _answer(connection.pgconn)
                self._uses[connection] = uses + 1  # not counted if PREPARE failed, so it is prepared again
            return await self._execute(connection.pgconn, given)
        except asyncio.CancelledError:
            with contextlib.suppress(psycopg.Error):  # the caller is gone; cancel the statement if possible
                await connection.cancel_safe(timeout=CANCEL_SECONDS)
            raise

    async def _execute(self, line: Any, given: Mapping[str, Any]) -> tuple[str, bytes]:
        values = [given[name] for name in self._names]
        formats = [int(isinstance(value, bytes)) for value in values]
        line.send_query_prepared(self._name, [sent(value) for value in values], formats, pq.Format.BINARY)
        result = await _answer(line)
        content = result.get_value(0, 1) if result.nfields > 1 else None
        return (result.get_value(0, 0) or b"").decode(), content or b""


async def hints(connection: AsyncConnection[Any]) -> AsyncIterator[str]:
    """Payloads of notifications on the channels this connection listens to, as they arrive."""
    line, loop = connection.pgconn, asyncio.get_running_loop()
    while True:
        while (hint := line.notifies()) is not None:
            yield hint.extra.decode(errors="replace")
        await _ready(loop, line, writing=False)


async def _answer(line: Any) -> Any:
    """Read all results of the request; raise if any of them is an error."""
    loop = asyncio.get_running_loop()
    while line.flush():
        await _ready(loop, line, writing=True)
    found = None
    while True:
        while line.is_busy():
            await _ready(loop, line, writing=False)
        result = line.get_result()
        if result is None:
            break
        found = decisive(found, result)
    if found is None:
        raise psycopg.OperationalError("the connection was lost")
    if found.status not in FINE:
        raise error_from_result(found)
    return found


async def _ready(loop: asyncio.AbstractEventLoop, line: Any, *, writing: bool) -> None:
    """Wait until the socket is readable (or writable, if `writing`), then read what has arrived."""
    done: asyncio.Future[None] = loop.create_future()
    socket = line.socket

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(socket, wake)
    if writing:
        loop.add_writer(socket, wake)
    try:
        await done
    finally:
        loop.remove_reader(socket)
        if writing:
            loop.remove_writer(socket)
    line.consume_input()
