"""Long arguments are read after the claim that leased their jobs: what happens in between harms no job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from holdfast.backends.redis import connection
from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, Exchanged, NewJob, WorkerRecord

from ...servers.valkey import Server
from .test_redis_replies_lost import behind_a_proxy

GIVEN = {f"j{number}": b'"%s"' % (b"%d" % number * size) for number, size in enumerate([50_000, 3, 0, 30_000, 90_000])}
JOBS = [NewJob(id=name, task="t", args=args) for name, args in GIVEN.items()]
in_both_paths = pytest.mark.parametrize("general", [False, True], ids=["fast path", "general path"])


def _request(call: int, general: bool = False) -> ClaimRequest:
    held = 10 if general else None  # what a claim heeds only on the general path
    return ClaimRequest(worker="w", call=call, queues=("default",), most=9, most_by_group=held)


def _arguments(answer: Exchanged) -> dict[str, bytes]:
    return {lease.id: lease.args for lease in answer.leases}


def before_reading(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> list[list[bytes]]:
    """Do this once, between a claim and the reading of its long bodies. Returns the ids that were read."""
    left_out, seen = connection.left_out, list[list[bytes]]()

    def acting(reply: Sequence[Any]) -> list[bytes]:
        found = left_out(reply)
        if found and not seen:
            act()
        seen.append(found)
        return found

    monkeypatch.setattr(connection, "left_out", acting)
    return seen


async def _filled(backend: RedisBackend) -> None:
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    await backend.enqueue(JOBS)


@in_both_paths
def test_only_long_bodies_are_read_after_the_claim(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., RedisBackend], general: bool
) -> None:
    async def run() -> None:
        backend = make()
        await _filled(backend)
        seen = before_reading(monkeypatch, lambda: None)
        assert _arguments(await backend.claim(_request(1, general))) == GIVEN
        assert seen == [[b"j0", b"j3", b"j4"]]
        await backend.close()

    asyncio.run(run())


def test_a_job_that_comes_alone_costs_one_trip_unless_it_is_very_long(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., RedisBackend]
) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        seen = before_reading(monkeypatch, lambda: None)
        for call, size in enumerate([30_000, 500_000], 1):
            await backend.enqueue([NewJob(id=f"{size}", task="t", args=b"7" * size)])
            assert _arguments(await backend.claim(_request(call))) == {f"{size}": b"7" * size}
        assert seen == [[], [b"500000"]]
        await backend.close()

    asyncio.run(run())


@in_both_paths
def test_a_repeat_returns_the_same_leases_when_their_arguments_were_cut_off(
    monkeypatch: pytest.MonkeyPatch, server: Server, prefix: str, general: bool
) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, prefix) as (backend, proxy):
            await backend.enqueue(JOBS)
            seen = before_reading(monkeypatch, lambda: setattr(proxy, "cutting", True))
            with pytest.raises(OutcomeUnknown):
                await backend.claim(_request(1, general))
            assert len(seen) == 1 and not proxy.cutting
            again = await backend.claim(_request(1, general))
            assert _arguments(again) == GIVEN
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in again.leases]
            assert (await backend.exchange(done, [], None)).answers == ("ok",) * len(done)

    asyncio.run(run())


def test_the_outcome_is_unknown_if_the_server_refuses_to_read_them(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    bodies = f"{{{prefix}}}:bodies"

    def spoil() -> None:
        client.rename(bodies, f"{bodies}:kept")
        client.set(bodies, "of another kind")

    async def run() -> None:
        backend = make()
        await _filled(backend)
        before_reading(monkeypatch, spoil)
        with pytest.raises(OutcomeUnknown):
            await backend.claim(_request(1))
        client.rename(f"{bodies}:kept", bodies)
        assert _arguments(await backend.claim(_request(1))) == GIVEN
        await backend.close()

    asyncio.run(run())


def test_a_body_that_is_gone_by_then_costs_the_other_jobs_nothing(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def run() -> None:
        backend = make()
        await _filled(backend)
        before_reading(monkeypatch, lambda: client.hdel(f"{{{prefix}}}:bodies", "j3"))
        assert _arguments(await backend.claim(_request(1))) == {**GIVEN, "j3": b""}
        await backend.close()

    asyncio.run(run())
