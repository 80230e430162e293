"""Enqueueing on a waiting thread, on a blocking connection: the same results, the same handling of lost replies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.blocking import BlockingCalls
from holdfast.errors import BackendUnavailable, ConfigurationError, DuplicateJob, OutcomeUnknown
from holdfast.records import Enqueued, NewJob

from ...chaos.scene import until
from ...servers.valkey import Server, own_server

Make = Callable[..., RedisBackend]


@pytest.fixture
def backend(make: Make) -> Iterator[RedisBackend]:
    backend = make()
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def mine() -> Iterator[Server]:
    yield from own_server()


def opened(server: Server, **options: float) -> RedisBackend:
    backend = RedisBackend(server.plain_url, **options)  # type: ignore[arg-type]
    asyncio.run(backend.open())
    return backend


def one(id: str) -> list[NewJob]:
    return [NewJob(id=id, task="t")]


def ids(backend: RedisBackend) -> list[str]:
    async def look() -> list[str]:
        dump = await backend.dump()
        return sorted(row["id"] for row in dump.tables["jobs"])

    return asyncio.run(look())


def connections(client: redis.Redis) -> int:
    return sum(one["name"] == "holdfast" for one in client.client_list())


def test_it_answers_as_enqueue_does(backend: RedisBackend) -> None:
    first = NewJob(id="a", task="t", key="k")
    assert backend.enqueue_here([first, *one("b")]) == [Enqueued("a", True), Enqueued("b", True)]
    again = [first, NewJob(id="c", task="t", key="k")]
    assert backend.enqueue_here(again) == asyncio.run(backend.enqueue(again))
    assert backend.enqueue_here([]) == []
    with pytest.raises(DuplicateJob):
        backend.enqueue_here([NewJob(id="d", task="t", key="k", on_conflict="raise")])
    assert ids(backend) == ["a", "b"]


def test_a_store_that_is_not_open_is_not_asked(make: Make) -> None:
    with pytest.raises(BackendUnavailable):
        make().enqueue_here(one("a"))


def test_a_server_that_forgot_the_script_is_sent_its_text(backend: RedisBackend, client: redis.Redis) -> None:
    assert backend.enqueue_here(one("a")) == [Enqueued("a", True)]
    client.script_flush()
    assert backend.enqueue_here(one("b")) == [Enqueued("b", True)]


def test_a_connection_the_server_closed_is_not_used_again(mine: Server) -> None:
    backend = opened(mine)
    assert backend.enqueue_here(one("a")) == [Enqueued("a", True)]
    with mine.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert backend.enqueue_here(one("b")) == [Enqueued("b", True)]
    asyncio.run(backend.close())


def test_a_reply_that_never_comes_leaves_the_fate_unknown(mine: Server) -> None:
    backend = opened(mine, call_timeout=0.2)
    backend.enqueue_here(one("a"))
    mine.send(signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknown):
            backend.enqueue_here(one("b"))
    finally:
        mine.send(signal.SIGCONT)
    patient = opened(mine)
    made = patient.enqueue_here(one("b"))  # the same call again makes one job
    assert made is not None and made[0].id == "b"
    assert ids(patient) == ["a", "b"]
    for store in (backend, patient):
        asyncio.run(store.close())


def test_a_server_that_is_gone_is_said_to_be_unreachable(mine: Server) -> None:
    backend = opened(mine)
    mine.end()
    with pytest.raises(BackendUnavailable):
        backend.enqueue_here(one("a"))
    asyncio.run(backend.close())


def test_a_user_without_rights_gets_an_error_that_says_so(mine: Server) -> None:
    backend = opened(mine)
    with mine.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-evalsha")
        with pytest.raises(ConfigurationError):
            backend.enqueue_here(one("a"))
    asyncio.run(backend.close())


def test_closing_lets_the_connections_go(mine: Server) -> None:
    backend = opened(mine)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: backend.enqueue_here(one(f"{n}")), range(100)))
    assert len(ids(backend)) == 100
    with mine.client() as client:
        assert connections(client) >= 1
        asyncio.run(backend.close())
        until(lambda: connections(client) == 0)  # the server learns of it in its own time


def test_a_forked_child_has_a_connection_of_its_own(mine: Server) -> None:
    direct = BlockingCalls(mine.plain_url, call_timeout=5.0, most=4)
    ping = b"*1\r\n$4\r\nPING\r\n"
    assert direct.call("ping", ping, bytes) == b"PONG"
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        fine = direct.call("ping", ping, bytes) == b"PONG"
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert direct.call("ping", ping, bytes) == b"PONG"
    with mine.client() as client:
        until(lambda: connections(client) == 1)  # the child's went with it
    direct.close()


def test_over_tls_the_app_goes_its_longer_way() -> None:
    assert not BlockingCalls("rediss://localhost:1/0", call_timeout=1.0, most=1).usable
    assert BlockingCalls("redis://localhost:1/0", call_timeout=1.0, most=1).usable
