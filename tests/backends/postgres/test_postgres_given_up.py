"""A caller that gives up returns at once, and the next caller reuses its session or its connection attempt.

On a machine so busy that connecting and a first call take longer than a worker waits, starting over after every timeout
would never get anywhere: each new session compiles all functions again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.connection import Connections, Session
from holdfast.backends.postgres.prepared_calls import PREPARE_AFTER
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.postgres import Server
from .test_postgres_rivals import PATIENCE_SECONDS, until_blocked

Make = Callable[..., PostgresBackend]
STEPS = 20  # of the loop: nobody could have waited for the server meanwhile


def claim(backend: PostgresBackend, call: int) -> Awaitable[object]:
    return backend.claim(ClaimRequest(worker="w", call=call, queues=("default",), most=1))


CALLS: dict[str, tuple[str, Callable[[PostgresBackend], Awaitable[object]]]] = {
    "a single statement": ("jobs", lambda backend: backend.cancel("a")),
    "a prepared statement": ("workers", lambda backend: claim(backend, 100)),
}


def pids(backend: PostgresBackend) -> list[int]:
    return sorted(one.pgconn.backend_pid for one in backend._connections._idle)


async def at_rest(backend: PostgresBackend) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while backend._connections._resting:
            await asyncio.gather(*backend._connections._resting)


@pytest.mark.parametrize("call", CALLS)
def test_the_session_of_a_call_that_was_given_up_serves_the_next_one(
    make: Make, session: psycopg.Connection, schema: str, call: str
) -> None:
    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS, connections=1)
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        for number in range(1, PREPARE_AFTER + 3):
            await claim(backend, number)
        before = pids(backend)
        table, work = CALLS[call]
        session.execute(f"LOCK TABLE {schema}.{table}")
        given_up = asyncio.ensure_future(work(backend))
        await until_blocked(session)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        await at_rest(backend)
        session.rollback()
        await work(backend)
        assert pids(backend) == before
        assert not backend._connections.pooled
        await backend.close()

    asyncio.run(run())


def test_a_transaction_that_was_given_up_ends_on_the_server_too(
    make: Make, session: psycopg.Connection, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS, connections=1)
        await backend.open()
        (before,) = pids(backend)
        session.execute(f"LOCK TABLE {schema}.jobs")
        given_up = asyncio.ensure_future(backend.dump())
        await until_blocked(session)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        await at_rest(backend)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while session.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (before,)).fetchall():
                session.execute("SELECT pg_stat_clear_snapshot()")
                await asyncio.sleep(0)
        session.rollback()
        assert await backend.get("a") is None
        await backend.close()

    with caplog.at_level(logging.WARNING, logger="psycopg"):
        asyncio.run(run())
    assert not caplog.records


def test_who_gives_up_does_not_wait_for_a_server_that_hangs(mortal: Server) -> None:
    async def run() -> None:
        backend = PostgresBackend(mortal.conninfo, call_timeout=PATIENCE_SECONDS)
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        mortal.signal_all(signal.SIGSTOP)
        try:
            calls = [asyncio.ensure_future(backend.cancel("a")) for _ in range(2)]  # one on a session, one connects
            for _ in range(STEPS):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            for _ in range(STEPS):
                await asyncio.sleep(0)
            assert all(call.done() for call in calls)
        finally:
            mortal.signal_all(signal.SIGCONT)
        await backend.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_connect_that_was_given_up_is_finished_for_the_next_caller(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, begun, may_go_on = Connections.connect, 0, asyncio.Event()

    async def slowly(self: Connections) -> Session:
        nonlocal begun
        begun += 1
        await may_go_on.wait()
        return await connect(self)

    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS)
        await backend.open()
        backend._connections.abandon()
        monkeypatch.setattr(Connections, "connect", slowly)
        for _ in range(3):
            given_up = asyncio.ensure_future(backend.get("a"))
            for _ in range(STEPS):
                await asyncio.sleep(0)
            given_up.cancel()
            with suppress(asyncio.CancelledError):
                await given_up
        assert begun == 1
        served = asyncio.ensure_future(backend.get("a"))
        await asyncio.sleep(0)
        may_go_on.set()
        assert await served is None
        assert begun == 1
        await backend.close()

    asyncio.run(run())


def test_a_connect_that_nobody_waits_for_any_more_is_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS)
        await backend.open()
        backend._connections.abandon()
        given_up = asyncio.ensure_future(backend.get("a"))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        (opening,) = backend._connections._opening
        await opening
        await asyncio.sleep(0)
        (kept,) = pids(backend)
        assert await backend.get("a") is None
        assert pids(backend) == [kept]
        await backend.close()

    asyncio.run(run())


def test_a_loop_that_ends_during_a_call_leaves_no_session_open(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    backend, under_way = make(call_timeout=PATIENCE_SECONDS), list[asyncio.Future[object]]()

    async def end_during_a_call() -> None:
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        session.execute(f"LOCK TABLE {schema}.jobs")
        under_way.append(asyncio.ensure_future(backend.cancel("a")))
        await until_blocked(session)

    asyncio.run(end_during_a_call())  # which cancels what is under way
    assert under_way[0].cancelled()
    left = list(backend._connections._resting.values())
    session.rollback()
    assert asyncio.run(backend.get("a")) is not None
    assert left and all(connection.closed for connection in left)
    asyncio.run(backend.close())
