"""Set-up: twice, by many at once, cut off half-way, and what is not ours is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.backends import open_backend, parse_url
from holdfast.backends.postgres import backend
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.connection import SCHEMA_VERSION
from holdfast.backends.postgres.schema import STATEMENTS, set_up
from holdfast.errors import BackendNotInstalled, BackendUnavailable, ConfigurationError, SchemaMismatch
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]


def test_opening_creates_the_store_and_opening_again_keeps_it(make: Make) -> None:
    async def run() -> None:
        first, second = make(), make()
        await first.open()
        await first.enqueue([NewJob(id="a", task="t")])
        await first.open()
        await second.open()
        assert await second.migrate() == (SCHEMA_VERSION, SCHEMA_VERSION)
        assert await second.get("a") is not None
        await first.close()
        await second.close()

    asyncio.run(run())


def test_eight_may_set_it_up_at_once(make: Make) -> None:
    async def run() -> None:
        backends = [make() for _ in range(8)]
        await asyncio.gather(*(one.open() for one in backends))
        versions = await asyncio.gather(*(one.migrate() for one in backends))
        assert set(versions) == {(SCHEMA_VERSION, SCHEMA_VERSION)}
        for one in backends:
            await one.close()

    asyncio.run(run())


def test_set_up_cut_off_before_its_end_left_nothing(make: Make, server: Server, schema: str) -> None:
    async def cut_off() -> None:
        connection = await psycopg.AsyncConnection.connect(server.conninfo, autocommit=True)
        async with connection.transaction():  # around set-up's own, and never committed
            assert await set_up(connection.cursor(), schema) == (0, SCHEMA_VERSION)
            connection.pgconn.finish()

    async def run() -> None:
        with contextlib.suppress(psycopg.Error):
            await cut_off()
        backend = make()
        assert await backend.migrate() == (0, SCHEMA_VERSION)
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize(("found", "advice"), [(99, "Upgrade holdfast"), (1, "migrate"), (0, "No version")])
def test_another_version_is_refused_and_not_touched(make: Make, session: psycopg.Connection, found: int, advice: str,
                                                    schema: str) -> None:  # fmt: skip
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.close()
        session.execute(f"UPDATE {schema}.schema_version SET version = %s", (found,))
        session.commit()
        with pytest.raises(SchemaMismatch, match=advice):
            await backend.open()
        await backend.close()

    asyncio.run(run())


def test_migrate_refuses_a_newer_store(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        session.execute(f"UPDATE {schema}.schema_version SET version = {SCHEMA_VERSION + 1}")
        session.commit()
        with pytest.raises(SchemaMismatch):
            await backend.migrate()
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["DROP FUNCTION {}.exchange", "DELETE FROM {}.incarnation"])
def test_migrate_brings_back_what_a_store_of_this_version_has_lost(
    make: Make, session: psycopg.Connection, schema: str, lost: str
) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        session.execute(lost.format(schema))
        session.commit()
        before = await backend.migrate()
        assert before[0] == before[1]
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id="a", task="t")])
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=1)
        assert [lease.id for lease in (await backend.claim(request)).leases] == ["a"]
        await backend.close()

    asyncio.run(run())


def test_a_schema_with_something_else_in_it_is_left_alone(make: Make, session: psycopg.Connection, schema: str) -> None:
    session.execute(f"CREATE SCHEMA {schema} CREATE TABLE jobs (id int)")
    session.commit()
    refusing = make()
    with pytest.raises(ConfigurationError, match="not a Holdfast store"):
        asyncio.run(refusing.open())


@pytest.mark.parametrize("name", ["public", "pg_temp", "1st", 'a"b', "a.b", "", "x" * 49])
def test_names_that_cannot_be_ours_are_refused(server: Server, name: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresBackend(server.conninfo, schema=name)


def test_the_url_is_taken_apart(server: Server) -> None:
    address = parse_url("postgres://u:hunter2@host:5433/db?schema=Jobs&sslmode=require&call_timeout=2&connections=3")
    assert address.scheme == "postgresql"
    assert address.options == {"schema": "Jobs", "call_timeout": 2.0, "connections": 3}
    assert address.path == "postgresql://u:hunter2@host:5433/db?sslmode=require"
    assert "hunter2" not in repr(address)
    assert isinstance(open_backend(server.url("any")), PostgresBackend)


@pytest.mark.parametrize("query", ["schema=a%22b", "schema=a%20b", "connections=0", "call_timeout=no"])
def test_bad_options_are_refused(query: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_url(f"postgresql://host/db?{query}")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendNotInstalled, match=r"pip install 'holdfast\[postgres\]'"):
        open_backend("postgresql://host/db")


def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown(server: Server) -> None:
    refusing = PostgresBackend("postgresql://u:hunter2@/db?host=/nowhere", call_timeout=1.0)
    with pytest.raises(BackendUnavailable) as caught:
        asyncio.run(refusing.open())
    assert "hunter2" not in str(caught.value)
    other = PostgresBackend(server.conninfo.replace("/postgres?", "/no_such_db?"))
    with pytest.raises(BackendUnavailable, match="no_such_db"):
        asyncio.run(other.open())


def test_every_statement_is_used() -> None:
    sources = "".join(path.read_text() for path in Path(backend.__file__).parent.glob("*.py"))
    called = "".join(STATEMENTS[name] for name in STATEMENTS.names)
    unused = [name for name in STATEMENTS.names if ".function" not in name and f"{name}" not in sources]
    unused += [
        name
        for name in STATEMENTS.names
        if ".function" in name and called.count(name.partition("function_")[2] + "(") < 2
    ]
    assert unused == []
