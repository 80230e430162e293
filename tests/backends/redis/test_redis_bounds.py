"""What one claim hands out and does on Redis is bounded: it reads no body that it does not hand out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

BIG = b"x" * 100_000
NUMBER = 40


def _request(call: int, bytes_max: int, *, most: int = NUMBER, grouped: bool = False) -> ClaimRequest:
    held = NUMBER if grouped else None  # what a claim heeds only on the general path
    return ClaimRequest(worker="w", call=call, queues=("default",), most=most, bytes_max=bytes_max, most_by_group=held)


def _bodies_read(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(name, {}).get("calls", 0) for name in ("cmdstat_hget", "cmdstat_hmget"))


async def _filled(backend: RedisBackend) -> None:
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
    for number in range(NUMBER):
        await backend.enqueue([NewJob(id=f"j{number}", task="t", args=BIG)])


@pytest.mark.parametrize("is_old", [False, True], ids=["new store", "store made before"])
@pytest.mark.parametrize("general", [False, True], ids=["fast path", "general path"])
def test_a_claim_reads_only_the_bodies_it_hands_out(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str, general: bool, is_old: bool
) -> None:
    async def scenario() -> None:
        backend = make()
        await _filled(backend)
        if is_old:
            client.hdel(f"{{{prefix}}}:meta", "body_max")
        before = _bodies_read(client)
        got = await backend.claim(_request(1, 5 * len(BIG), grouped=general))
        assert [lease.id for lease in got.leases] == [f"j{number}" for number in range(5)]
        assert _bodies_read(client) - before < 30
        again = await backend.claim(_request(1, 2 * len(BIG), grouped=general))
        assert [lease.id for lease in again.leases] == ["j0", "j1"]
        rest = await backend.claim(_request(2, 10**9, most=2, grouped=general))
        assert [lease.id for lease in rest.leases] == ["j2", "j3"]
        await backend.close()

    asyncio.run(scenario())


def test_options_do_not_count_as_arguments(make: Callable[..., RedisBackend]) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
        options = b'{"timeout": 5}'
        jobs = [NewJob(id=f"j{number}", task="t", args=b"y" * 5000, options=options) for number in range(4)]
        await backend.enqueue(jobs)
        assert len((await backend.claim(_request(1, 15_000))).leases) == 3
        await backend.close()

    asyncio.run(scenario())
