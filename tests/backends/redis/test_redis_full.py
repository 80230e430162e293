"""A full server opens again once its work is done: finished jobs give way, and their ids stay known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import BackendUnavailable
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import Server

NOW = 1_800_000_000.0
NUMBER = 1500
BIG = b"x" * 4000


async def _filled(backend: RedisBackend) -> int:
    for number in range(NUMBER):
        try:
            await backend.enqueue([NewJob(id=f"j{number}", task="t", args=BIG)], now=NOW)
        except BackendUnavailable:
            return number
    raise AssertionError("the server is not full")


async def _worked_off(backend: RedisBackend, client: redis.Redis) -> int:
    """Fill the server, and do all that is in it; the number of jobs that it took."""
    await backend.register(WorkerRecord(id="w", lease_seconds=3600.0), now=NOW)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + (4 << 20))
    number = await _filled(backend)
    for call in range(1, NUMBER):
        request = ClaimRequest(worker="w", call=call, queues=("default",), most=100)
        leases = (await backend.claim(request, now=NOW + 1)).leases
        if not leases:
            break
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED, value=b"[1]") for one in leases]
        await backend.settle(done, now=NOW + 1)
    return number


def _on(server: Server, test: Callable[[RedisBackend, redis.Redis], Awaitable[None]]) -> None:
    async def run() -> None:
        backend = RedisBackend(server.plain_url, call_timeout=30.0)
        await backend.open()
        with server.client() as client:
            await test(backend, client)
        await backend.close()

    asyncio.run(run())


def test_a_full_server_takes_jobs_again_once_its_work_is_done(mortal: Server) -> None:
    async def test(backend: RedisBackend, client: redis.Redis) -> None:
        number = await _worked_off(backend, client)
        with pytest.raises(BackendUnavailable, match="kept for 10 seconds"):  # somebody may wait for the results
            await backend.enqueue([NewJob(id="soon", task="t", args=BIG)], now=NOW + 5)
        for more in range(number // 2):
            [made] = await backend.enqueue([NewJob(id=f"k{more}", task="t", args=BIG)], now=NOW + 20)
            assert made.created
        [known] = await backend.enqueue([NewJob(id="j0", task="t", args=BIG)], now=NOW + 30)
        assert not known.created
        assert await backend.get("j0") is None
        assert await backend.flaws() == []

    _on(mortal, test)


def test_an_id_is_known_for_ten_minutes_and_no_longer(mortal: Server) -> None:
    async def test(backend: RedisBackend, client: redis.Redis) -> None:
        await _worked_off(backend, client)
        assert await backend.prune(now=NOW + 100) > 0, "the sweep lets finished jobs give way, too"
        client.config_set("maxmemory", 0)
        jobs = [NewJob(id="j0", task="t")]
        assert not (await backend.enqueue(jobs, now=NOW + 600))[0].created
        assert not (await backend.enqueue([*jobs, NewJob(id="other", task="t")], now=NOW + 600))[0].created
        await backend.prune(now=NOW + 602)
        assert (await backend.enqueue(jobs, now=NOW + 602))[0].created
        assert client.zcard("{holdfast}:remembered") == 0

    _on(mortal, test)


def test_nothing_gives_way_while_there_is_room(mortal: Server) -> None:
    async def test(backend: RedisBackend, client: redis.Redis) -> None:
        number = await _worked_off(backend, client)
        client.config_set("maxmemory", 0)
        assert await backend.prune(now=NOW + 100) == 0
        assert sum((await backend.count())["default"].values()) == number

    _on(mortal, test)
