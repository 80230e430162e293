"""Replies cut off after the server did what was asked: the call says so, and repeating it takes effect at most once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Held, NewJob, WorkerRecord

from ...servers.postgres import Server
from ...servers.proxy import Proxy

T = TypeVar("T")
TIMES = 50  # each with a session of its own, which costs the server more than all else


@contextlib.asynccontextmanager
async def behind_a_proxy(server: Server, schema: str) -> AsyncIterator[tuple[PostgresBackend, Proxy]]:
    proxy = Proxy(f"{server.home}/.s.PGSQL.5432")
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
    # A server that gave up a call on a slow machine has not done it, and its refusal would be the reply cut off.
    backend = PostgresBackend(url, schema=schema, connections=1, call_timeout=60.0)
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    try:
        yield backend, proxy
    finally:
        await backend.close()
        listening.close()
        await proxy.over()


async def twice(proxy: Proxy, call: Callable[[], Awaitable[T]]) -> T:
    """The call with its reply cut off, then once more."""
    proxy.cutting = True
    with pytest.raises(OutcomeUnknown):
        await call()
    assert not proxy.cutting, "the reply was not the one cut off"
    return await call()


def test_enqueue_makes_one_job(server: Server, schema: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, schema) as (backend, proxy):
            backend._watching().tell = lambda queues: None  # type: ignore[method-assign]  # hints are cut as well
            for n in range(TIMES):
                job = NewJob(id=f"{n}", task="t", group="g" if n % 2 else None)
                [answer] = await twice(proxy, lambda job=job: backend.enqueue([job]))  # type: ignore[misc]
                assert (answer.id, answer.created) == (job.id, False)
            assert sum((await backend.count())["default"].values()) == TIMES

    asyncio.run(run())


def test_settle_and_claim_take_effect_once(server: Server, schema: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, schema) as (backend, proxy):
            backend._watching().tell = lambda queues: None  # type: ignore[method-assign]
            await backend.enqueue([NewJob(id=f"{n:03d}", task="t", group="g") for n in range(TIMES)])
            done: list[Settlement] = []
            ran: list[str] = []
            for call in range(1, TIMES + 2):
                request = ClaimRequest(worker="w", call=call, queues=("default",), most=3)

                async def exchange(done: list[Settlement] = done, request: ClaimRequest = request) -> Exchanged:
                    return await backend.exchange(done, [], request)

                answer = await twice(proxy, exchange)
                assert answer.answers == ("ok",) * len(done)
                ran += [lease.id for lease in answer.leases]
                done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
            assert ran == [f"{n:03d}" for n in range(TIMES)]
            assert (await backend.count())["default"] == {State.SUCCEEDED: TIMES}
            assert {row["attempts"] for row in (await backend.dump()).tables["jobs"]} == {1}

    asyncio.run(run())


def test_renew_and_a_lone_settle_may_be_repeated(server: Server, schema: str) -> None:
    async def run() -> None:
        async with behind_a_proxy(server, schema) as (backend, proxy):
            backend._watching().tell = lambda queues: None  # type: ignore[method-assign]
            await backend.enqueue([NewJob(id=f"{n}", task="t") for n in range(TIMES)])
            request = ClaimRequest(worker="w", call=1, queues=("default",), most=TIMES)
            leases = list((await backend.claim(request)).leases)
            for lease in leases:
                held = [Held(one.id, one.token) for one in leases[leases.index(lease) :]]
                renewal = await twice(proxy, lambda held=held: backend.renew("w", held, seen_call=1))  # type: ignore[misc]
                assert renewal.known
                assert (renewal.lost, renewal.released) == ((), ())
                settled = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)]
                assert await twice(proxy, lambda settled=settled: backend.settle(settled)) == ["lost"]  # type: ignore[misc]
            assert (await backend.count())["default"] == {State.SUCCEEDED: TIMES}
            assert {row["attempts"] for row in (await backend.dump()).tables["jobs"]} == {1}

    asyncio.run(run())
