"""Replies cut off after the server did what was asked: the call says so, and repeating it takes effect at most once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from holdfast.backends.redis.assembler import load_scripts
from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Held, NewJob, WorkerRecord

from ...servers.proxy import Proxy
from ...servers.valkey import Server

T = TypeVar("T")
TIMES = 200


@contextlib.asynccontextmanager
async def behind_a_proxy(server: Server, prefix: str) -> AsyncIterator[tuple[RedisBackend, Proxy]]:
    proxy = Proxy(server.socket)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    backend = RedisBackend(f"redis://127.0.0.1:{port}/0", prefix=prefix, connections=1)
    with server.client() as client:
        for script in load_scripts().values():  # so that no reply cut off is the question for a script
            client.script_load(script.text)
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    try:
        yield backend, proxy
    finally:
        await backend.close()
        listening.close()
        await proxy.over()


async def twice(backend: RedisBackend, proxy: Proxy, call: Callable[[], Awaitable[T]]) -> T:
    """The call with its reply cut off, then once more."""
    await backend.clock()  # connects, so that the reply cut off is the call's own
    proxy.cutting = True
    with pytest.raises(OutcomeUnknown):
        await call()
    assert not proxy.cutting, "the reply was not the one cut off"
    return await call()


def test_enqueue_makes_one_job(server: Server, prefix: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, prefix) as (backend, proxy):
            for n in range(TIMES):
                job = NewJob(id=f"{n}", task="t", group="g" if n % 2 else None)
                [answer] = await twice(backend, proxy, lambda job=job: backend.enqueue([job]))  # type: ignore[misc]
                assert (answer.id, answer.created) == (job.id, False)
            assert sum((await backend.count())["default"].values()) == TIMES

    asyncio.run(run())


def test_settle_and_claim_take_effect_once(server: Server, prefix: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, prefix) as (backend, proxy):
            await backend.enqueue([NewJob(id=f"{n:03d}", task="t", group="g") for n in range(TIMES)])
            done: list[Settlement] = []
            ran: list[str] = []
            for call in range(1, TIMES + 2):
                request = ClaimRequest(worker="w", call=call, queues=("default",), most=3)

                async def exchange(done: list[Settlement] = done, request: ClaimRequest = request) -> Exchanged:
                    return await backend.exchange(done, [], request)

                answer = await twice(backend, proxy, exchange)
                assert answer.answers == ("ok",) * len(done)
                ran += [lease.id for lease in answer.leases]
                done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
            assert ran == [f"{n:03d}" for n in range(TIMES)]
            assert (await backend.count())["default"] == {State.SUCCEEDED: TIMES}
            assert {row["attempts"] for row in (await backend.dump()).tables["jobs"]} == {1}

    asyncio.run(run())


def test_renew_and_a_lone_settle_may_be_repeated(server: Server, prefix: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, prefix) as (backend, proxy):
            await backend.enqueue([NewJob(id=f"{n}", task="t") for n in range(TIMES)])
            request = ClaimRequest(worker="w", call=1, queues=("default",), most=TIMES)
            leases = list((await backend.claim(request)).leases)
            for lease in leases:
                held = [Held(one.id, one.token) for one in leases[leases.index(lease) :]]
                renewal = await twice(backend, proxy, lambda held=held: backend.renew("w", held, seen_call=1))  # type: ignore[misc]
                assert renewal.known
                assert (renewal.lost, renewal.released) == ((), ())
                settled = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)]
                assert await twice(backend, proxy, lambda settled=settled: backend.settle(settled)) == ["lost"]  # type: ignore[misc]
            assert (await backend.count())["default"] == {State.SUCCEEDED: TIMES}
            assert {row["attempts"] for row in (await backend.dump()).tables["jobs"]} == {1}

    asyncio.run(run())


def test_a_read_whose_reply_is_lost_may_be_tried_again(server: Server, prefix: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, prefix) as (backend, proxy):
            await backend.clock()
            proxy.cutting = True
            with pytest.raises(BackendUnavailable, match="Try again"):
                await backend.get("a")
            assert await backend.get("a") is None

    asyncio.run(run())
