"""The hottest statements, executed from the event loop by libpq's own calls instead of psycopg's cursor.

Used by backend.py and wakeups.py with a connection of theirs; `Connections` bounds the time and maps the errors. A call
costs the client a third of what the cursor takes. Behind a pooler, where no session state may persist, and for the
first calls on a connection the cursor is used: a short-lived connection is not worth preparing on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor, pq
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from .codec import sent

PREPARE_AFTER = 5  # executions of one statement on one connection
FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.SINGLE_TUPLE)
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Prepared:
    """A statement with numbered parameters, prepared on each connection that uses it often."""

    def __init__(self, name: str, statement: str) -> None:
        self._name, self._statement = f"holdfast_{name}".encode(), statement
        self._names = tuple(dict.fromkeys(_PARAMETER.findall(statement)))
        self._numbered = _PARAMETER.sub(lambda found: f"${self._names.index(found[1]) + 1}", statement).encode()
        self._uses: WeakKeyDictionary[AsyncConnection[Any], int] = WeakKeyDictionary()

    async def _executed(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> bool:
        """Whether the cursor has executed it, and has its rows."""
        connection, is_pooled = cursor.connection, isinstance(cursor, AsyncClientCursor)
        uses = self._uses.get(connection, 0)
        if uses < PREPARE_AFTER or is_pooled:
            self._uses[connection] = uses + 1
            await cursor.execute(self._statement, given, prepare=False, binary=not is_pooled)
            return True
        if uses == PREPARE_AFTER:
            await self._prepare(connection.pgconn)
            self._uses[connection] = uses + 1  # not counted if PREPARE failed, so it is prepared again
        return False

    async def _prepare(self, line: Any) -> None:
        line.send_prepare(self._name, self._numbered)
        try:
            await answer(line)
        except asyncio.CancelledError:
            line.finish()  # whether the name is taken is unknown
            raise

    def _send(self, line: Any, given: Mapping[str, Any]) -> None:
        values = [given[name] for name in self._names]
        formats = [int(isinstance(value, bytes)) for value in values]
        line.send_query_prepared(self._name, [sent(value) for value in values], formats, pq.Format.BINARY)


class PreparedCall(Prepared):
    """A statement that returns one row: a text, optionally followed by bytes."""

    async def ask(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> str:
        return (await self.ask_both(cursor, given))[0]

    async def ask_both(self, cursor: AsyncCursor[Any], given: Mapping[str, Any]) -> tuple[str, bytes]:
        if await self._executed(cursor, given):
            row: Any = await cursor.fetchone()
            return str(row[0]), (row[1] or b"") if len(row) > 1 else b""
        line = cursor.connection.pgconn
        self._send(line, given)
        result = await answer(line)
        content = result.get_value(0, 1) if result.nfields > 1 else None
        return (result.get_value(0, 0) or b"").decode(), content or b""


class PreparedBodies(Prepared):
    """A statement that returns a whole number and bytes in each row.

    Rows are taken one by one as they arrive. libpq would otherwise keep all of them until the last is there: megabytes
    that are taken from the system and given back for every claim.
    """

    async def ask(self, cursor: AsyncCursor[Any], numbers: Sequence[int]) -> dict[int, bytes]:
        given = {self._names[0]: f"{{{','.join(map(str, numbers))}}}"}
        if await self._executed(cursor, given):
            return dict(await cursor.fetchall())
        line, found = cursor.connection.pgconn, dict[int, bytes]()
        refused: list[Any] = []

        def take(result: Any) -> None:
            if result.status not in FINE:
                refused.append(result)
            elif result.ntuples:
                found[int.from_bytes(result.get_value(0, 0), "big")] = result.get_value(0, 1)

        self._send(line, given)
        line.set_single_row_mode()
        await _results(line, take)
        if refused:
            raise error_from_result(refused[0])
        return found


async def hints(connection: AsyncConnection[Any]) -> AsyncIterator[str]:
    """Payloads of notifications on the channels this connection listens to, as they arrive."""
    line = connection.pgconn
    while True:
        while (hint := line.notifies()) is not None:
            yield hint.extra.decode(errors="replace")
        await _ready(line, writing=False)


async def answer(line: Any) -> Any:
    """Read all results of the request; raise if any of them is an error."""
    found: list[Any] = [None]

    def take(result: Any) -> None:
        found[0] = decisive(found[0], result)

    await _results(line, take)
    if found[0] is None:
        raise psycopg.OperationalError("the connection was lost")
    if found[0].status not in FINE:
        raise error_from_result(found[0])
    return found[0]


def decisive(found: Any, result: Any) -> Any:
    """Which of two results of one call counts, the one found so far or the next: an error wins.

    The server sends the row before it commits, so a failed commit arrives as a separate result.
    """
    return result if found is None or (found.status in FINE and result.status not in FINE) else found


async def _results(line: Any, take: Callable[[Any], None]) -> None:
    """Send the request and hand over its results as they arrive.

    A reply of megabytes comes in dozens of pieces. So the socket is watched once for all of them, and the caller's task
    is woken when nothing more will come.
    """
    while line.flush():
        await _ready(line, writing=True)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def look() -> None:
        while not line.is_busy():
            result = line.get_result()
            if result is None:
                done.set_result(None)
                return
            take(result)

    def arrived() -> None:
        if done.done():
            return  # given up: its task has yet to run
        try:
            line.consume_input()
            look()
        except Exception as error:
            done.set_exception(error)
        if done.done():  # if libpq has closed the socket, its number may be another's before the task runs
            loop.remove_reader(socket)

    look()
    if done.done():
        return
    socket = line.socket
    loop.add_reader(socket, arrived)
    try:
        await done
    finally:
        if done.cancelled():
            loop.remove_reader(socket)


async def _ready(line: Any, *, writing: bool) -> None:
    """Wait until the socket is readable (or writable, if `writing`), then read what has arrived."""
    loop = asyncio.get_running_loop()
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
