"""A statement that bypasses the driver's cursor returns, fails and is abandoned like one that does not."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncCursor

from holdfast.backends.postgres.connection import Connections
from holdfast.backends.postgres.prepared_calls import PREPARE_AFTER, PreparedBodies, PreparedCall
from holdfast.backends.postgres.prepared_calls import answer as results_of
from holdfast.errors import BackendError, OutcomeUnknown, SchemaMismatch

from ...servers.postgres import Server

Ask = Callable[[PreparedCall, dict[str, Any]], Awaitable[str]]
OFTEN = PREPARE_AFTER + 3  # the first by a cursor, one prepares, the last are prepared
ECHO = "SELECT concat(%(word)s::text, '|', %(content)s::bytea, '|', %(number)s::float8, '|', %(said)s::boolean)::text"


def asking(server: Server, use: Callable[[Ask, Connections], Awaitable[None]]) -> None:
    async def run() -> None:
        connections = Connections(server.conninfo, call_timeout=5.0, most=1)

        async def ask(question: PreparedCall, given: dict[str, Any]) -> str:
            answer: str = await connections.call("ask", lambda cursor: question.ask(cursor, given), writes=True)
            return answer

        try:
            await use(ask, connections)
        finally:
            connections.abandon()

    asyncio.run(run())


def test_the_same_answer_however_often_it_is_asked(server: Server) -> None:
    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedCall("echo", ECHO)
        for given, answer in (
            ({"word": "größer €", "content": b"\x00\xff", "number": 1e-7, "said": True}, "größer €|\\x00ff|1e-07|t"),
            ({"word": None, "content": None, "number": None, "said": None}, "|||"),
            ({"word": "x" * 3_000_000, "content": b"", "number": 2, "said": False}, "x" * 3_000_000 + "|\\x|2|f"),
        ):
            assert [await ask(question, given) for _ in range(OFTEN)] == [answer] * OFTEN

    asking(server, use)


BODIES = "SELECT n, convert_to(repeat(n::text, (100 / (n - 7))::integer), 'UTF8') FROM unnest(%(numbers)s::bigint[]) n"
NUMBERS = [8, 1 << 40, *range(100, 4000)]  # so many that they arrive in pieces


def test_rows_of_bytes_are_the_same_however_often_they_are_asked_for(server: Server) -> None:
    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedBodies(
            "bodies", "SELECT n, convert_to(repeat(n::text, 50), 'UTF8') FROM unnest(%(numbers)s::bigint[]) n"
        )
        for _ in range(OFTEN):
            found = await connections.call("ask", lambda cursor: question.ask(cursor, NUMBERS), writes=True)
            assert found == {number: str(number).encode() * 50 for number in NUMBERS}
            assert await connections.call("ask", lambda cursor: question.ask(cursor, []), writes=True) == {}
        assert len(connections._idle) == 1

    asking(server, use)


def test_a_refusal_behind_rows_that_came_leaves_none_of_them(server: Server) -> None:
    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedBodies("bodies", BODIES)
        for _ in range(OFTEN):
            with pytest.raises(BackendError, match="division by zero"):
                await connections.call("ask", lambda cursor: question.ask(cursor, [*NUMBERS, 7]), writes=True)
            assert await connections.call("ask", lambda cursor: question.ask(cursor, [8]), writes=True) == {
                8: b"8" * 100
            }
        assert len(connections._idle) == 1

    asking(server, use)


def test_what_the_server_refuses_is_told_and_the_next_call_goes_on(server: Server) -> None:
    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedCall("divide", "SELECT (1 / %(by)s::integer)::text")
        for _ in range(OFTEN):
            with pytest.raises(BackendError, match="division by zero"):
                await ask(question, {"by": 0})
            assert await ask(question, {"by": 1}) == "1"
        assert len(connections._idle) == 1

    asking(server, use)


def test_a_statement_that_could_not_be_prepared_is_prepared_later(server: Server, session: psycopg.Connection) -> None:
    session.autocommit = True
    session.execute("CREATE FUNCTION public.asked(n integer) RETURNS integer LANGUAGE sql AS 'SELECT n'")

    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedCall("asked", "SELECT public.asked(%(n)s)::text")
        for n in range(PREPARE_AFTER):
            assert await ask(question, {"n": n}) == str(n)
        session.execute("DROP FUNCTION public.asked")
        for _ in range(2):
            with pytest.raises(SchemaMismatch):
                await ask(question, {"n": 1})
        session.execute("CREATE FUNCTION public.asked(n integer) RETURNS integer LANGUAGE sql AS 'SELECT n'")
        for n in range(3):
            assert await ask(question, {"n": n}) == str(n)

    try:
        asking(server, use)
    finally:
        session.execute("DROP FUNCTION IF EXISTS public.asked")


def test_given_up_it_is_ended_in_the_server_too(server: Server, session: psycopg.Connection) -> None:
    session.autocommit = True
    held = 7_001_001
    session.execute("SELECT pg_advisory_lock(%s)", (held,))
    waiting = "SELECT count(*), pg_sleep(0.01) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"

    def look(number: int) -> None:
        deadline = time.monotonic() + 30
        while (row := session.execute(waiting, (held,)).fetchone()) is None or row[0] != number:
            assert time.monotonic() < deadline, "the server does not say so"

    async def use(ask: Ask, connections: Connections) -> None:
        question = PreparedCall("held", "SELECT pg_advisory_xact_lock(%(n)s::bigint)::text")
        for _ in range(OFTEN):
            await ask(question, {"n": 1})
        task = asyncio.ensure_future(ask(question, {"n": held}))
        await asyncio.to_thread(look, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(look, 0)

    try:
        asking(server, use)
    finally:
        session.execute("SELECT pg_advisory_unlock(%s)", (held,))


def test_a_connection_that_is_lost_leaves_the_outcome_unknown(server: Server) -> None:
    async def use(ask: Ask, connections: Connections) -> None:
        ends = "CASE WHEN %(ends)s::boolean THEN pg_terminate_backend(pg_backend_pid())::text ELSE 'alive' END"
        question = PreparedCall("ends", f"SELECT {ends}")
        for _ in range(2):
            for _ in range(OFTEN):
                assert await ask(question, {"ends": False}) == "alive"
            with pytest.raises(OutcomeUnknown):
                await ask(question, {"ends": True})

    asking(server, use)


def test_the_socket_of_a_lost_connection_is_left_to_whoever_gets_its_number_next() -> None:
    """libpq closes the socket when it notices, and another task may open one before the caller's task runs."""

    async def run() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        (ours, theirs), (new, peer) = socket.socketpair(), socket.socketpair()
        number = ours.fileno()

        def rival() -> None:
            os.dup2(new.fileno(), number)
            loop.add_reader(number, heard.set)

        class Line:
            socket = number

            def flush(self) -> int:
                return 0

            def is_busy(self) -> int:
                return 1

            def consume_input(self) -> None:
                ours.close()
                loop.call_soon(rival)
                raise psycopg.OperationalError("the server closed the connection")

        theirs.close()
        with pytest.raises(psycopg.OperationalError, match="closed the connection"):
            await results_of(Line())
        peer.send(b"x")
        async with asyncio.timeout(10):
            await heard.wait()
        loop.remove_reader(number)
        os.close(number)
        new.close()
        peer.close()

    asyncio.run(run())


def test_a_verb_goes_where_it_was_done_before(server: Server) -> None:
    """The first time, a session makes functions and plans for it."""

    async def scene() -> None:
        connections = Connections(server.conninfo, call_timeout=5.0)
        both = asyncio.Barrier(2)

        async def pid(cursor: AsyncCursor[Any]) -> int:
            return cursor.connection.info.backend_pid

        async def together(cursor: AsyncCursor[Any]) -> int:
            await both.wait()
            return await pid(cursor)

        one, other = await asyncio.gather(
            connections.call("one", together, writes=False), connections.call("other", together, writes=False)
        )
        assert one != other
        for verb, usual in [("one", one), ("other", other), ("other", other), ("one", one), ("one", one)]:
            assert await connections.call(verb, pid, writes=False) == usual
        assert await connections.call("new", pid, writes=False) == one  # whichever was used last
        connections.abandon()

    asyncio.run(scene())
