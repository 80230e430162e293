"""A prepared statement from the event loop, one row back: libpq's own calls, without the driver's cursor.

Called by backend.py and wakeups.py for what workers and producers call most; it costs the client a third of a cursor's
way. The connection is the caller's alone meanwhile. Time is bounded and errors become ours in connection.py. Behind a
pooler, where nothing may stay in a session, a cursor does it.
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
    """A statement that returns one row, a text and perhaps bytes beside it, with its parameters numbered."""

    def __init__(self, name: str, statement: str) -> None:
        self._name, self._statement = f"holdfast_{name}".encode(), statement
        self._names = tuple(dict.fromkeys(_PARAMETER.findall(statement)))
        self._numbered = _PARAMETER.sub(lambda found: f"${self._names.index(found[1]) + 1}", statement).encode()
        self._uses: WeakKeyDictionary[AsyncConnection[Any], int] = WeakKeyDictionary()

    async def ask(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> str:
        return (await self.ask_both(cursor, given))[0]

    async def ask_both(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> tuple[str, bytes]:
        """The first few times on a connection it is asked by the cursor: it may not live to be worth more."""
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
                self._uses[connection] = uses + 1  # not if it was refused: then it is to be prepared again
            return await self._execute(connection.pgconn, given)
        except asyncio.CancelledError:
            with contextlib.suppress(psycopg.Error):  # nobody waits for it any more
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
    """What is told on the channels this connection listens to, as it comes."""
    line, loop = connection.pgconn, asyncio.get_running_loop()
    while True:
        while (hint := line.notifies()) is not None:
            yield hint.extra.decode(errors="replace")
        await _ready(loop, line, writing=False)


async def _answer(line: Any) -> Any:
    """The result of what was sent; an error, if one is among its results."""
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
    """Wait until there is something to read, and read it; or until more can be written."""
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
