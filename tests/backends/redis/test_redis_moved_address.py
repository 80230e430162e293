"""A failover behind an address that moves: connections to the old server are left, on every path."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.blocking import BlockingCalls
from holdfast.backends.redis.connection import Connections, packed_command
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import Server, shared_server
from .pair import Pair, wait_for

PATIENCE = 60.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared_server()  # skips or fails where there is none
    pair = Pair()
    yield pair
    pair.remove()


def connections_to(server: Server) -> int:
    with server.client() as client:
        return sum(one["name"] == "holdfast" for one in client.client_list())


def job(name: str) -> list[NewJob]:
    return [NewJob(id=name, task="t")]


async def opened(pair: Pair) -> RedisBackend:
    backend = RedisBackend(pair.plain_url)
    await backend.open()
    return backend


async def fill_pool(backend: RedisBackend) -> None:
    """As many connections as there may be, all of them idle."""
    await asyncio.gather(*(backend.enqueue(job(f"warm{n}")) for n in range(20)))


def test_the_next_write_goes_to_the_new_primary_and_all_connections_to_the_old_one_are_closed(pair: Pair) -> None:
    async def body() -> None:
        backend = await opened(pair)
        await fill_pool(backend)
        await asyncio.to_thread(pair.change_over)
        assert connections_to(pair.replica) > 1
        assert [one.created for one in await backend.enqueue(job("a"))] == [True]
        await asyncio.to_thread(wait_for, lambda: connections_to(pair.replica) == 0, "the old server to be left")
        assert (await backend.get("a")) is not None
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_calls_under_way_together_all_find_the_new_primary(pair: Pair) -> None:
    async def body() -> None:
        backend = await opened(pair)
        await fill_pool(backend)
        await asyncio.to_thread(pair.change_over)
        answers = await asyncio.gather(*(backend.enqueue(job(f"a{n}")) for n in range(20)))
        assert all(one.created for [one] in answers)
        await asyncio.to_thread(wait_for, lambda: connections_to(pair.replica) == 0, "the old server to be left")
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_a_thread_that_enqueues_finds_the_new_primary(pair: Pair) -> None:
    backend = asyncio.run(opened(pair))
    for name in "ab":
        backend.enqueue_here(job(name))
    pair.change_over()
    assert [one.created for one in backend.enqueue_here(job("c")) or []] == [True]
    asyncio.run(backend.close())


def test_who_only_reads_does_not_read_from_the_old_primary_for_ever(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.redis.connection.PRIMARY_SECONDS", 0.0)

    async def body() -> None:
        writer, reader = await opened(pair), await opened(pair)
        assert await reader.get("a") is None
        await asyncio.to_thread(pair.change_over)
        with pair.replica.client() as old:
            old.replicaof("127.0.0.1", str(1))  # it hears nothing of what is written from now on
        await writer.enqueue(job("a"))
        assert await reader.get("a") is not None
        assert (await reader.count())["default"]
        await writer.close()
        await reader.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_a_worker_that_waits_is_woken_by_the_new_primary(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waited while the servers changed places, so the old one had nobody to turn away."""
    monkeypatch.setattr("holdfast.backends.redis.wakeups.BLOCK_SECONDS", 0.05)

    async def body() -> None:
        backend, other = await opened(pair), await opened(pair)
        await backend.wait_for_work(("default",), 0.1)  # its reader of hints connects
        await asyncio.to_thread(pair.change_over)
        with pair.replica.client() as old:
            old.replicaof("127.0.0.1", str(1))
        waiting = asyncio.create_task(backend.wait_for_work(("default",), PATIENCE))

        def reads_hints() -> bool:
            with pair.primary.client() as client:
                return any(one["cmd"] == "xread" for one in client.client_list())

        await asyncio.to_thread(wait_for, reads_hints, "hints to be read from the new primary")
        await other.enqueue(job("a"))
        await asyncio.wait_for(waiting, PATIENCE / 2)
        await backend.close()
        await other.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_a_worker_claims_on_the_new_primary(pair: Pair) -> None:
    async def body() -> None:
        backend = await opened(pair)
        await backend.register(WorkerRecord(id="w", lease_seconds=30.0))
        await asyncio.to_thread(pair.change_over)
        answer = await backend.exchange((), (), ClaimRequest(worker="w", call=1, queues=("default",), most=1))
        assert answer.known
        assert (await backend.renew("w", [], seen_call=1)).known
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_opening_again_after_a_replica_was_met_finds_the_new_primary(pair: Pair) -> None:
    async def body() -> None:
        backend = RedisBackend(f"unix://{pair.replica.socket}")
        with pytest.raises(BackendUnavailable, match="primary"):
            await backend.open()
        await asyncio.to_thread(wait_for, lambda: connections_to(pair.replica) == 0, "the replica to be left")
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


# ---------------------------------------------------------------------- a server that is played


SILENCE = b""


class Played:
    """A server that sends scripted replies to each connection's commands in turn; counts connections."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._scripts = list(scripts)
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                threading.Thread(target=self._answer, args=(line, list(script)), daemon=True).start()

    def _answer(self, line: socket.socket, script: list[bytes]) -> None:
        with line, contextlib.suppress(OSError):
            while content := line.recv(65536):
                for part in content.split(b"*")[1:]:
                    if b"CLIENT" in part:
                        line.sendall(b"+OK\r\n")
                    elif said := script.pop(0) if len(script) > 1 else script[0]:
                        line.sendall(said + b"\r\n")

    def close(self) -> None:
        self._listening.close()


REFUSALS = ["READONLY You can't write", "LOADING loading", "MASTERDOWN link is down", "NOREPLICAS not enough"]


def call_both_ways(server: Played, times: int) -> list[Any]:
    """The same calls on the two kinds of connections; what each answered."""
    said: list[Any] = []
    direct = BlockingCalls(server.url, call_timeout=5.0, most=4)
    command = packed_command("X")

    async def pooled() -> None:
        connections = Connections(server.url, prefix="p", call_timeout=5.0)
        for _ in range(times):
            try:
                said.append(await connections.call("enqueue", command, writes=True))
            except BackendUnavailable as error:
                said.append(str(error))
        connections.abandon()

    asyncio.run(pooled())
    for _ in range(times):
        try:
            said.append(direct.call("enqueue", command, lambda: command))
        except BackendUnavailable as error:
            said.append(str(error))
    direct.close()
    return said


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_by_the_wrong_server_is_followed_by_one_more_try_elsewhere(refusal: str) -> None:
    astray = [b"+one", f"-{refusal}".encode()]
    server = Played(astray, [b"+other"], astray, [b"+other"])
    assert call_both_ways(server, 3) == [b"one", b"other", b"other"] * 2
    assert server.connections == 4
    server.close()


@pytest.mark.parametrize("refusal", ["BUSY another script", "OOM full", "MISCONF disk", "UNKILLABLE script"])
def test_a_refusal_by_the_right_server_closes_nothing(refusal: str) -> None:
    server = Played([f"-{refusal}".encode()])
    assert all("refuses enqueue" in str(said) for said in call_both_ways(server, 3))
    assert server.connections == 2
    server.close()


def test_a_new_connection_that_leads_to_the_wrong_server_is_not_followed_by_another_at_once() -> None:
    server = Played([b"-READONLY replica"])
    assert all("primary" in str(said) for said in call_both_ways(server, 3))
    assert server.connections == 6  # one for each call
    server.close()


def test_a_silent_server_costs_one_call_its_time_and_not_one_for_each_connection() -> None:
    """As behind a firewall that dropped idle connections: the server is well, but does not reply on those."""
    server = Played(*[[b"+well", SILENCE]] * 4, [b"+again"])

    async def body() -> None:
        connections = Connections(server.url, prefix="p", call_timeout=5.0)
        await asyncio.gather(*(connections.call("x", packed_command("X"), writes=True) for _ in range(4)))
        assert server.connections == 4
        connections.call_timeout = 0.01
        with pytest.raises(OutcomeUnknown):
            await connections.call("x", packed_command("X"), writes=True)
        connections.call_timeout = 5.0
        assert await connections.call("x", packed_command("X"), writes=True) == b"again"
        connections.abandon()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))
    server.close()
