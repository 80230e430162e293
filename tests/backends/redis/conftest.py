"""A store of its own on the run's server for every test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend

from ...servers.valkey import Server, empty, own_server, shared_server

_numbers = count(1)


@pytest.fixture
def server() -> Server:
    return shared_server()


@pytest.fixture
def prefix(server: Server) -> Iterator[str]:
    """A prefix nobody used before; what the test makes of it is removed at its end."""
    name = f"test_{next(_numbers)}"
    yield name
    empty(server, name)


@pytest.fixture
def make(server: Server, prefix: str) -> Callable[..., RedisBackend]:
    """Another backend on the same store, as another process would have it."""
    return lambda **options: RedisBackend(server.plain_url, prefix=prefix, **options)


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """Another client of the same server."""
    with server.client() as somebody:
        yield somebody


@pytest.fixture
def mortal() -> Iterator[Server]:
    """A server to be killed, stopped or configured."""
    yield from own_server(tcp=True)


@pytest.fixture
def cautious() -> Iterator[Server]:
    """A server to be killed, which writes to disk before it answers."""
    yield from own_server(appendfsync="always")
