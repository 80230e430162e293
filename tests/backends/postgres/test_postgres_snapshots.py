"""Who keeps dead rows from being removed is named, with age and cost, in a worker's log and by the doctor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast.backends import open_backend, parse_url
from holdfast.backends.postgres import snapshots
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.snapshots import OldSnapshot, oldest_snapshot
from holdfast.inspection.store_health import judge_store, look_at_store
from holdfast.records import NewJob

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLD_SECONDS", "YOUNG_SECONDS", "DEAD_ROWS_MIN", "DEAD_ROWS_FEW", "TRANSACTIONS_MIN"):
        monkeypatch.setattr(snapshots, name, 0)


def look(backend: PostgresBackend, *, kill: int = 50) -> OldSnapshot | None:
    """What is found after some jobs were changed."""

    async def run() -> OldSnapshot | None:
        await backend.open()
        await backend.enqueue([NewJob(id=f"{n}", task="t") for n in range(kill)])
        for n in range(kill):
            await backend.cancel(f"{n}")

        async def flush(cursor: psycopg.AsyncCursor[object]) -> None:
            await cursor.execute("SELECT pg_stat_force_next_flush()")

        await backend._call("look", flush)
        found: OldSnapshot | None = await backend._call("look", lambda cursor: oldest_snapshot(cursor, backend.schema))
        await backend.close()
        return found

    return asyncio.run(run())


def test_an_open_transaction_is_named_with_age_and_cost(make: Make, session: psycopg.Connection, at_once: None) -> None:
    session.execute("SET application_name = 'forgotten'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()")
    found = look(make(connections=1))
    assert found is not None
    assert (found.kind, found.name) == ("session", str(session.info.backend_pid))
    assert found.state == "idle in transaction" and found.who == "forgotten, postgres"
    assert found.transactions > 50 and found.dead_rows >= 50 and found.seconds is not None and found.seconds >= 0
    assert f"pid {session.info.backend_pid}" in found.text and "pg_terminate_backend" in found.advice


def test_nothing_young_or_cheap_is_told(make: Make, session: psycopg.Connection) -> None:
    session.execute("SELECT txid_current()")
    assert look(make(connections=1)) is None


@pytest.fixture
def preparing(server: Server) -> Iterator[Server]:
    made = Server(more=["-c", "max_prepared_transactions=5"]).start()
    yield made
    made.remove()


def test_a_prepared_transaction_is_named(preparing: Server, at_once: None) -> None:
    with psycopg.connect(preparing.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.t ()")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO public.t DEFAULT VALUES")
        connection.execute("PREPARE TRANSACTION 'forgotten'")
    found = look(PostgresBackend(preparing.conninfo, connections=1))
    assert found is not None
    assert (found.kind, found.name) == ("prepared transaction", "forgotten")
    assert "ROLLBACK PREPARED 'forgotten'" in found.advice


def test_a_worker_logs_it_now_and_then_and_the_doctor_shows_it(
    make: Make,
    server: Server,
    schema: str,
    session: psycopg.Connection,
    at_once: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session.execute("SELECT txid_current()")
    backend = make(connections=1)
    look(backend)

    async def sweep() -> None:
        await backend.open()
        for _ in range(3):
            await backend.prune()
        await backend.close()

    async def doctor() -> dict[str, str]:
        address = parse_url(server.url(schema))
        opened = open_backend(address.url)
        await opened.open()
        try:
            return {one.about: one.text for one in judge_store(await look_at_store(opened, address))}
        finally:
            await opened.close()

    pid = f"pid {session.info.backend_pid}"
    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(sweep())
    assert [pid in record.getMessage() for record in caplog.records] == [True]
    assert pid in asyncio.run(doctor())["vacuum"]
