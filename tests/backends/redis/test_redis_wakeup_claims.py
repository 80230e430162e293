"""Claims sent ahead: the server carries them out when it would wake the worker, once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from holdfast import Holdfast
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.wakeup_claims import Woken
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import Server

PATIENCE = 20.0
WAIT = 600.0
Make = Callable[..., RedisBackend]


def request(call: int, most: int = 10) -> ClaimRequest:
    return ClaimRequest(worker="w", call=call, queues=("default",), most=most)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def waiting(make: Make, wait: float = WAIT) -> AsyncIterator[RedisBackend]:
    """A backend with a worker that waits for work."""
    backend = make()
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    await backend.exchange((), (), None)  # the server knows the script
    listening = asyncio.create_task(backend.wait_for_work(("default",), wait))
    try:
        await until(lambda: backend.awaits_wakeup)
        yield backend
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await backend.close()


async def sent(backend: RedisBackend, call: int, give_up: asyncio.Event) -> asyncio.Task[Woken]:
    """A claim that the server holds."""
    claim = asyncio.create_task(backend.claim_on_wakeup(request(call), give_up))
    await asyncio.sleep(0)
    await backend.clock()  # the server has read what was sent before
    return claim


async def state(backend: RedisBackend, job: str) -> State:
    found = await backend.get(job)
    assert found is not None
    return found.state


def leased(woken: Woken) -> list[str]:
    assert woken.answer is not None
    return [lease.id for lease in woken.answer.leases]


def test_it_is_carried_out_when_a_job_comes(make: Make) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            claim = await sent(backend, 1, asyncio.Event())
            assert not claim.done()
            await backend.enqueue([NewJob(id="a", task="t")])
            woken = await asyncio.wait_for(claim, PATIENCE)
            assert leased(woken) == ["a"] and woken.hinted
            assert [lease.id for lease in (await backend.claim(request(1))).leases] == ["a"]  # R38

    asyncio.run(body())


def test_it_is_carried_out_when_the_time_to_wait_is_over(make: Make) -> None:
    async def body() -> None:
        async with waiting(make, 0.2) as backend:
            woken = await asyncio.wait_for(await sent(backend, 1, asyncio.Event()), PATIENCE)
            assert leased(woken) == [] and not woken.hinted

    asyncio.run(body())


def test_one_that_was_given_up_takes_nothing_once_it_was_repeated(make: Make) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            give_up = asyncio.Event()
            claim = await sent(backend, 1, give_up)
            give_up.set()
            assert await asyncio.wait_for(claim, PATIENCE) == Woken(None)
            assert (await backend.claim(request(1))).leases == ()
            await backend.enqueue([NewJob(id="a", task="t")])  # now the server carries it out, as a repeat
            assert await state(backend, "a") is State.READY
            assert [lease.id for lease in (await backend.claim(request(2))).leases] == ["a"]
            await backend.enqueue([NewJob(id="b", task="t")])
            assert await state(backend, "b") is State.READY

    asyncio.run(body())


@pytest.mark.parametrize("most", [10, 0])
def test_what_it_took_as_it_was_given_up_comes_with_the_repeat_or_goes_back(make: Make, most: int) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            give_up = asyncio.Event()
            claim = await sent(backend, 1, give_up)
            backend.enqueue_here([NewJob(id="a", task="t")])  # blocks: its claim is carried out, and nobody has read it
            give_up.set()
            woken = await asyncio.wait_for(claim, PATIENCE)
            again = await backend.claim(request(1, most))
            if woken.answer is not None:  # the reply was read first
                assert leased(woken) == ["a"]
            assert [lease.id for lease in again.leases] == (["a"] if most else [])
            assert await state(backend, "a") is (State.RUNNING if most else State.READY)

    asyncio.run(body())


def test_after_one_was_given_up_the_next_one_gets_its_own_reply(make: Make) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            give_up = asyncio.Event()
            first = await sent(backend, 1, give_up)
            give_up.set()
            assert await asyncio.wait_for(first, PATIENCE) == Woken(None)
            await backend.claim(request(1))
            second = await sent(backend, 2, asyncio.Event())
            await backend.enqueue([NewJob(id="a", task="t")])
            assert leased(await asyncio.wait_for(second, PATIENCE)) == ["a"]

    asyncio.run(body())


def test_a_lost_connection_and_an_unknown_script_leave_it_to_the_repeat(make: Make, client: redis.Redis) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            claim = await sent(backend, 1, asyncio.Event())
            client.script_flush()
            await backend.enqueue([NewJob(id="a", task="t")])
            assert (await asyncio.wait_for(claim, PATIENCE)).answer is None
            assert [lease.id for lease in (await backend.claim(request(1))).leases] == ["a"]
        async with waiting(make) as backend:
            claim = await sent(backend, 2, asyncio.Event())
            blocked: Any = client.client_list()
            for one in blocked:
                if one["name"] == "holdfast" and one["cmd"] == "xread":
                    client.client_kill_filter(_id=one["id"])
            assert (await asyncio.wait_for(claim, PATIENCE)).answer is None
            await backend.enqueue([NewJob(id="b", task="t")])
            assert [lease.id for lease in (await backend.claim(request(2))).leases] == ["b"]

    asyncio.run(body())


def test_long_arguments_come_with_the_repeat(make: Make) -> None:
    async def body() -> None:
        async with waiting(make) as backend:
            claim = await sent(backend, 1, asyncio.Event())
            await backend.enqueue([NewJob(id="a", task="t", args=b"[" + b"1," * 200_000 + b"1]")])
            assert (await asyncio.wait_for(claim, PATIENCE)).answer is None
            [lease] = (await backend.claim(request(1))).leases
            assert len(lease.args) == 400_003

    asyncio.run(body())


def test_nothing_is_sent_ahead_while_a_job_falls_due_before_the_wait_ends(make: Make) -> None:
    async def body() -> None:
        backend = make()
        await backend.open()
        assert not backend.awaits_wakeup
        await backend.enqueue([NewJob(id="a", task="t", delay=300.0)])
        listening = asyncio.create_task(backend.wait_for_work(("default",), WAIT))
        await until(lambda: backend._wakeups is not None and backend._wakeups._held is not None)
        await backend.clock()
        assert not backend.awaits_wakeup
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await backend.close()

    asyncio.run(body())


# ---------------------------------------------------------------------- a worker


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the claims sent ahead so far."""
    calls: list[int] = []
    through = RedisBackend.claim_on_wakeup

    async def counted(self: RedisBackend, request: ClaimRequest, give_up: asyncio.Event) -> Woken:
        calls.append(request.call)
        return await through(self, request, give_up)

    monkeypatch.setattr(RedisBackend, "claim_on_wakeup", counted)
    return calls


def made(server: Server, prefix: str) -> tuple[Holdfast, list[int], Callable[..., Any]]:
    app, ran = Holdfast(server.url(prefix)), list[int]()

    @app.task(name="note")
    async def note(number: int) -> None:
        ran.append(number)

    return app, ran, note.aenqueue


def test_a_worker_that_is_idle_gets_each_job_by_a_claim_sent_ahead(
    server: Server, prefix: str, ahead: list[int]
) -> None:
    app, ran, enqueue = made(server, prefix)

    async def body() -> None:
        async with app.worker(["default"], slots=4):
            for number in range(20):
                before = len(ahead)
                job = await enqueue(number)
                await job.aresult(timeout=PATIENCE)
                await until(lambda before=before: len(ahead) > before)  # type: ignore[misc]
            assert ran == list(range(20))

    asyncio.run(body())
    assert app.audit().violations == [] and app.counts()["default"]["succeeded"] == 20
    app.close()


def test_a_job_for_a_worker_paused_or_stopped_with_a_claim_sent_ahead_waits(
    server: Server, prefix: str, ahead: list[int]
) -> None:
    app, ran, enqueue = made(server, prefix)

    async def body() -> None:
        async with app.worker(["default"], slots=4, lease=3.0, renew_every=0.25, call_timeout=0.25):
            [worker] = await app.aworkers()
            await (await enqueue(1)).aresult(timeout=PATIENCE)
            await until(lambda: bool(ahead))
            assert await app.apause_worker(worker.id) == "paused: 0 running"
            job = await enqueue(2)
            assert await app.aresume_worker(worker.id) == "resumed"
            await job.aresult(timeout=PATIENCE)
            before = len(ahead)
            await until(lambda: len(ahead) > before)
        await enqueue(3)
        assert (await app.acounts())["default"]["ready"] == 1 and ran == [1, 2]

    asyncio.run(body())
    app.close()
