"""A stale session is abandoned: its server was demoted, or its prepared statements are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.prepared_calls import PREPARE_AFTER
from holdfast.errors import BackendUnavailable, ConfigurationError
from holdfast.records import NewJob, WorkerRecord

from ...servers.postgres import Server, own_server
from ...servers.relay import Relay
from .loop_thread import Loop

Make = Callable[..., PostgresBackend]
OFTEN = PREPARE_AFTER + 3  # the first by a cursor, one prepares, the last are prepared


@pytest.fixture
def old() -> Iterator[Server]:
    yield from own_server()


def demote(server: Server) -> None:
    """As a tool does that fences the old primary; its sessions stay."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
    while True:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            if connection.execute("SHOW transaction_read_only").fetchone() == ("on",):
                return


def one(id: str) -> list[NewJob]:
    return [NewJob(id=id, task="t")]


WAYS: dict[str, Callable[[PostgresBackend, Loop, str], Any]] = {
    "single": lambda backend, loop, name: loop.run(backend.enqueue(one(name))),
    "several": lambda backend, loop, name: loop.run(backend.enqueue([*one(name), *one(f"{name}, too")])),
    "direct": lambda backend, loop, name: backend.enqueue_here(one(name)),
    "renew": lambda backend, loop, name: loop.run(backend.renew("w", [], seen_call=0)),
    "statement": lambda backend, loop, name: loop.run(backend.register(WorkerRecord(id=name))),
    "transaction": lambda backend, loop, name: loop.run(backend.seal(None, instead_of=None)),
}


@pytest.mark.parametrize("pooled", [False, True], ids=["not pooled", "pooled"])
@pytest.mark.parametrize("way", WAYS)
def test_after_a_failover_behind_a_moving_address_every_way_follows_it(
    old: Server, server: Server, schema: str, loop: Loop, way: str, pooled: bool
) -> None:
    if pooled and way == "direct":
        pytest.skip("there is no such way behind a pooler")
    with Relay(old) as relay:
        backend = PostgresBackend(relay.conninfo(), schema=schema, pooled=pooled)
        loop.run(backend.open())
        loop.run(backend.enqueue(one("first")))
        loop.run(asyncio.wait_for(crowd(backend), 60))
        for n in range(OFTEN):
            WAYS[way](backend, loop, f"old-{n}")
        other = PostgresBackend(server.conninfo, schema=schema)
        loop.run(other.open())
        demote(old)
        relay.server = server
        for n in range(3):
            WAYS[way](backend, loop, f"new-{n}")
        for _ in range(OFTEN):  # none of the others is left with the old server
            loop.run(crowd(backend))
        with psycopg.connect(old.conninfo, autocommit=True) as connection:
            text = "SELECT count(*), pg_sleep(0.01) FROM pg_stat_activity WHERE application_name = 'holdfast'"
            while connection.execute(text).fetchone() != (0, ""):
                pass
        loop.run(other.close())
        loop.run(backend.close())


async def crowd(backend: PostgresBackend) -> None:
    """Use all connections at once."""
    await asyncio.gather(*(backend.register(WorkerRecord(id="w")) for _ in range(8)))


def test_who_listens_follows_the_address_too(old: Server, server: Server, schema: str, loop: Loop) -> None:
    with Relay(old) as relay:
        backend, other = (
            PostgresBackend(relay.conninfo(), schema=schema),
            PostgresBackend(server.conninfo, schema=schema),
        )
        loop.run(backend.open())
        loop.run(other.open())
        loop.run(backend.wait_for_work(["default"], 0.01))
        demote(old)
        relay.server = server
        loop.run(backend.register(WorkerRecord(id="w")))
        waiting = asyncio.run_coroutine_threadsafe(backend.wait_for_work(["default"], 600.0), loop.loop)
        listens = f"SELECT count(*), pg_sleep(0.01) FROM pg_stat_activity WHERE query = 'LISTEN \"holdfast_{schema}\"'"
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            while connection.execute(listens).fetchone() == (0, ""):
                pass
        loop.run(other.enqueue(one("a")))
        waiting.result(timeout=60)
        loop.run(backend.close())
        loop.run(other.close())


def test_a_standby_is_left_as_soon_as_the_address_names_the_primary(server: Server, schema: str, loop: Loop) -> None:
    primary = PostgresBackend(server.conninfo, schema=schema)
    loop.run(primary.open())
    standby = Server(copy_of=server.home).start()
    try:
        with Relay(standby) as relay:
            backend = PostgresBackend(relay.conninfo(), schema=schema)
            loop.run(backend.open())
            assert loop.run(backend.get("a")) is None  # to look is no fault
            for n in range(3):
                with pytest.raises(BackendUnavailable, match="read-only"):
                    loop.run(backend.enqueue(one(f"a-{n}")))
            before = relay.accepted
            relay.server = server
            assert loop.run(backend.enqueue(one("b")))[0].created
            assert relay.accepted <= before + 2  # one for the job, one to tell of it
            loop.run(backend.close())
    finally:
        standby.remove()
        loop.run(primary.close())


def test_a_server_that_hangs_is_waited_for_once_and_not_once_per_connection(
    old: Server, server: Server, schema: str, loop: Loop
) -> None:
    with Relay(old) as relay:
        backend = PostgresBackend(relay.conninfo(), schema=schema, call_timeout=0.5)
        other = PostgresBackend(server.conninfo, schema=schema)
        loop.run(backend.open())
        loop.run(other.open())
        loop.run(crowd(backend))
        relay.server = server
        old.signal_all(signal.SIGSTOP)
        try:
            failed = 0
            for n in range(4):
                try:
                    loop.run(backend.register(WorkerRecord(id=f"w{n}")))
                except Exception:
                    failed += 1
            assert failed == 1
        finally:
            old.signal_all(signal.SIGCONT)
        loop.run(backend.close())
        loop.run(other.close())


def test_connections_are_kept_alive_so_that_a_silent_firewall_is_noticed(
    server: Server, schema: str, loop: Loop
) -> None:
    with Relay(server) as relay:
        backend = PostgresBackend(relay.conninfo(), schema=schema)
        loop.run(backend.open())
        loop.run(backend.enqueue(one("first")))
        backend.enqueue_here(one("a"))
        for connection in (*backend._connections._idle, *backend._direct._idle):
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        loop.run(backend.close())


# ---------------------------------------------------------------------- prepared statements


async def forget(backend: PostgresBackend) -> None:
    """What a pooler does to a session before it lends it to somebody else; psycopg does not notice."""
    for connection in (*backend._connections._idle, *backend._direct._idle):
        connection.pgconn.exec_(b"DISCARD ALL")


@pytest.mark.parametrize("said", [None, False], ids=["found out", "not pooled"])
@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_lost_its_statements_is_left_and_nothing_is_done_twice(
    make: Make, loop: Loop, way: str, said: bool | None
) -> None:
    backend = make(pooled=said)
    loop.run(backend.open())
    loop.run(backend.enqueue(one("first")))
    loop.run(crowd(backend))
    for n in range(OFTEN):
        WAYS[way](backend, loop, f"before-{n}")
    stored = len(loop.run(backend.dump()).tables["jobs"])
    for n in range(OFTEN):
        loop.run(forget(backend))
        made = WAYS[way](backend, loop, f"after-{n}")
        if isinstance(made, list):
            assert all(one.created for one in made)
            stored += len(made)
        elif way == "direct":  # the way is closed: a pooler was noticed
            assert made is None and said is None
    assert len(loop.run(backend.dump()).tables["jobs"]) == stored
    loop.run(backend.close())


def test_a_plan_whose_result_has_changed_is_made_anew(make: Make, loop: Loop, session: psycopg.Connection) -> None:
    session.autocommit = True
    backend = make()
    loop.run(backend.open())
    for n in range(OFTEN):
        loop.run(backend.register(WorkerRecord(id=f"w{n}")))
        assert len(loop.run(backend._call("look", look(backend.schema)))[0]) == 2
    session.execute(f"ALTER TABLE {backend.schema}.looked ADD COLUMN more integer")
    assert len(loop.run(backend._call("look", look(backend.schema)))[0]) == 3
    loop.run(backend.close())


def look(schema: str) -> Any:
    async def work(cursor: Any) -> Any:
        await cursor.execute(f"CREATE TABLE IF NOT EXISTS {schema}.looked (a integer, b integer)", prepare=False)
        await cursor.execute(f"INSERT INTO {schema}.looked VALUES (1, 2)", prepare=False)
        await cursor.execute(f"SELECT * FROM {schema}.looked LIMIT 1")
        return await cursor.fetchall()

    return work


def test_a_pooler_that_was_said_not_to_be_there_is_named(make: Make, loop: Loop) -> None:
    backend = make(pooled=False)
    loop.run(backend.open())
    loop.run(backend.enqueue(one("first")))
    connect = backend._direct._connect

    def lent() -> Any:
        connection = connect()
        connection.pgconn.exec_(b"DISCARD ALL")
        return connection

    backend._direct._connect = lent  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="pooled=false"):
        backend.enqueue_here(one("a"))
    assert loop.run(backend.get("a")) is None
    loop.run(backend.close())
