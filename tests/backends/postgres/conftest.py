"""A store of its own on the run's server for every test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend

from ...servers.postgres import Server, own_server, shared_server
from .loop_thread import Loop

_numbers = count(1)


@pytest.fixture
def server() -> Server:
    return shared_server()


@pytest.fixture
def schema(server: Server) -> Iterator[str]:
    """A name nobody used before; what the test makes of it is dropped at its end."""
    name = f"test_{next(_numbers)}"
    yield name
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def make(server: Server, schema: str) -> Callable[..., PostgresBackend]:
    """Another backend on the same store, as another process would have it."""
    return lambda **options: PostgresBackend(server.conninfo, schema=schema, **options)


@pytest.fixture
def session(server: Server) -> Iterator[psycopg.Connection]:
    """A session of another client in the same database."""
    with psycopg.connect(server.conninfo) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def mortal() -> Iterator[Server]:
    """A server to be killed, which keeps what it promised to keep."""
    yield from own_server(durable=True)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.end()
