"""A server restarted, or replaced by its replica: what is lost is what the docs say, and no two runs overlap."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, Exchanged, Held, NewJob, Seal, WorkerRecord

from ...servers.valkey import Server, shared_server
from .pair import Pair, meta_of, set_longest_lease, wait_for

pytestmark = pytest.mark.chaos
PATIENCE = 60.0
LEASE = 20.0
USUAL = 30.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared_server()  # skips or fails where there is none
    made = Pair()
    yield made
    made.remove()


async def a_moment() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.02)


class Claims:
    """A worker's claims, numbered, repeated until they are answered."""

    def __init__(self, backend: RedisBackend, worker: str = "w") -> None:
        self.backend, self.worker, self.call = backend, worker, 0

    async def register(self, lease: float = LEASE, now: float | None = None) -> Claims:
        await self.backend.open()
        await self.backend.register(WorkerRecord(id=self.worker, lease_seconds=lease), now)
        return self

    async def next(self, *done: Settlement, now: float | None = None, most: int = 1) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker=self.worker, call=self.call, queues=("default",), most=most)
        while True:
            try:
                return await self.backend.exchange(done, [], request, now)
            except (OutcomeUnknown, BackendError):
                await a_moment()


def succeeded(lease: Any) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)


def restart(server: Server, number: int = signal.SIGKILL) -> None:
    server.end(number)
    server.start()


def within_patience(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE))


# ---------------------------------------------------------------------- a restart


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_restart_nothing_is_given_out_for_the_longest_lease_and_all_else_goes_on(
    cautious: Server, how: int
) -> None:
    """Times are given here, so that no test waits for a lease."""

    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        claims = await Claims(backend).register(now=1000.0)
        await backend.enqueue([NewJob(id=name, task="t") for name in "abc"], 1000.0)
        a, b = (await claims.next(now=1000.0, most=2)).leases
        restart(cautious, how)

        answer = await claims.next(succeeded(a), now=1010.0)
        assert (answer.known, answer.answers, answer.leases) == (True, (Answer.OK,), ())
        assert answer.quiet_seconds == USUAL
        assert (await backend.enqueue([NewJob(id="d", task="t")], 1011.0))[0].created
        # past its deadline, and nobody is taken for dead: its renewal may be what was lost
        assert await backend.recover(dead=["w"], now=1025.0) == []
        answer = await claims.next(now=1025.0)
        assert answer.known and not answer.leases and answer.quiet_seconds == pytest.approx(1040.0 - 1025.0)
        renewal = await backend.renew("w", [Held("b", b.token)], seen_call=claims.call, now=1030.0)
        assert renewal.known and not renewal.lost
        assert await backend.settle([succeeded(b)], 1031.0) == [Answer.OK]

        answer = await claims.next(now=1040.0, most=5)
        assert [lease.id for lease in answer.leases] == ["c", "d"] and answer.quiet_seconds == 0
        await backend.close()

    within_patience(body)


def test_the_first_that_notices_sets_the_time_and_the_others_keep_it(cautious: Server) -> None:
    async def body() -> None:
        everyone = [await Claims(RedisBackend(cautious.plain_url), f"w{n}").register(now=1000.0) for n in range(3)]
        await everyone[0].backend.enqueue([NewJob(id="a", task="t")], 1000.0)
        restart(cautious)
        answers = [await claims.next(now=1001.0 + place) for place, claims in enumerate(everyone)]
        assert [answer.quiet_seconds for answer in answers] == [30.0, 29.0, 28.0]
        for claims in everyone:
            await claims.backend.close()

    within_patience(body)


def test_the_sweep_notices_a_restart_too(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        claims = await Claims(backend).register(now=1000.0)
        await backend.enqueue([NewJob(id="a", task="t")], 1000.0)
        assert (await claims.next(now=1000.0)).leases
        restart(cautious)
        assert await backend.recover(now=1030.0) == []
        assert await backend.recover(now=1059.0) == []
        [ended] = await backend.recover(now=1060.0)
        assert ended.id == "a"
        await backend.close()

    within_patience(body)


def test_a_longer_lease_makes_the_quiet_time_longer_and_a_clock_set_back_does_not(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        await Claims(backend, "long").register(lease=600.0, now=1000.0)
        await backend.retire("long", 1000.0)
        claims = await Claims(backend).register(now=1000.0)
        restart(cautious)
        assert (await claims.next(now=5000.0)).quiet_seconds == 600.0
        assert (await claims.next(now=4000.0)).quiet_seconds == 600.0
        assert (await claims.next(now=4599.0)).quiet_seconds == pytest.approx(1.0)
        await backend.close()

    within_patience(body)


def test_a_waiter_is_not_woken_by_jobs_that_are_not_handed_out(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id="a", task="t")])
        restart(cautious)
        assert not (await claims.next()).leases
        waiting = asyncio.create_task(backend.wait_for_work(("default",), PATIENCE))
        assert not (await asyncio.wait({waiting}, timeout=0.3))[0]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await backend.close()

    within_patience(body)


def test_a_trusted_restart_is_not_followed_by_a_quiet_time(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url, trust_restarts=True)
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id="a", task="t")])
        restart(cautious)
        answer = await claims.next()
        assert [lease.id for lease in answer.leases] == ["a"] and not answer.quiet_seconds
        await backend.close()

    within_patience(body)


def test_a_store_of_which_nobody_knows_the_server_it_came_from_is_quiet_first(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url, trust_restarts=True)
        claims = await Claims(backend).register()
        with cautious.client() as client:
            client.hdel(meta_of("holdfast"), "life", "server")
        assert (await claims.next()).quiet_seconds == USUAL
        assert (await claims.next()).quiet_seconds > 0
        await backend.close()

    within_patience(body)


def test_a_sealed_store_that_is_quiet_says_both(cautious: Server) -> None:
    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        claims = await Claims(backend).register()
        seal = Seal(move="m", role="source", stage="moving", other="memory://")
        assert await backend.seal(seal, instead_of=None)
        restart(cautious)
        answer = await claims.next()
        assert answer.sealed == seal and answer.quiet_seconds > 0
        await backend.close()

    within_patience(body)


def test_a_power_cut_that_takes_a_claim_does_not_start_its_job_a_second_time(cautious: Server) -> None:
    """The file of the server loses its end, as under a disk that had not written it."""
    file = cautious.home / "appendonlydir" / "appendonly.aof.1.incr.aof"

    async def body() -> None:
        backend = RedisBackend(cautious.plain_url)
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id="a", task="t")])
        size = file.stat().st_size
        [a] = (await claims.next()).leases
        assert (await backend.enqueue([NewJob(id="lost", task="t")]))[0].created
        cautious.end(signal.SIGKILL)
        _shorten(file, size)
        cautious.start()

        answer = await claims.next()
        assert answer.known and not answer.leases and answer.quiet_seconds > 0
        assert await backend.get("lost") is None
        renewal = await backend.renew("w", [Held("a", a.token)], seen_call=claims.call)
        assert renewal.lost == ("a",)  # its handler is stopped before anyone may start it again
        assert await backend.settle([succeeded(a)]) == [Answer.LOST]
        later = await backend.clock() + USUAL
        await backend.renew("w", [], seen_call=claims.call, now=later)
        [again] = (await claims.next(now=later)).leases
        assert (again.id, again.attempt) == ("a", 1) and again.fence > a.fence
        await backend.close()

    within_patience(body)


def _shorten(file: Path, size: int) -> None:
    with file.open("r+b") as content:
        content.truncate(size)


# ---------------------------------------------------------------------- a replica


def test_a_first_replica_that_comes_and_goes_is_no_reason_to_be_quiet(mortal: Server) -> None:
    """It gives the server a new replication id."""

    async def body() -> None:
        backend = RedisBackend(mortal.plain_url)
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id=name, task="t") for name in "ab"])
        with mortal.client() as client:
            before = client.info("replication")["master_replid"]
        replica = Server(repl_diskless_sync_delay="0").start()
        try:
            with replica.client() as client:
                client.replicaof("127.0.0.1", str(mortal.port))
            await asyncio.to_thread(_linked, mortal)
        finally:
            replica.remove()
        with mortal.client() as client:
            assert client.info("replication")["master_replid"] != before
        for name in "ab":
            answer = await claims.next()
            assert [lease.id for lease in answer.leases] == [name] and not answer.quiet_seconds
        await backend.close()

    within_patience(body)


def _linked(primary: Server) -> None:
    def linked() -> bool:
        with primary.client() as client:
            return bool(client.info("replication")["connected_slaves"])

    wait_for(linked, "the replica")


def test_what_the_replica_did_not_get_is_lost_and_nothing_is_given_out_before_all_know(pair: Pair) -> None:
    async def body() -> None:
        backend = RedisBackend(pair.plain_url, call_timeout=2.0, trust_restarts=True)  # which a failover is not
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id="a", task="t", priority=2), NewJob(id="b", task="t", priority=1)])
        [a] = (await claims.next()).leases
        await asyncio.to_thread(pair.caught_up)
        pair.cut()
        [b] = (await claims.next(succeeded(a))).leases
        assert (a.id, b.id) == ("a", "b")
        assert (await backend.enqueue([NewJob(id="lost", task="t")]))[0].created
        await asyncio.to_thread(pair.fail_over)

        answer = await claims.next()
        assert answer.known and not answer.leases and 0 < answer.quiet_seconds <= USUAL
        assert await backend.get("lost") is None  # acknowledged, and lost with the primary
        assert await backend.recover(dead=["w"]) == []
        renewal = await backend.renew("w", [Held("b", b.token)], seen_call=claims.call)
        assert renewal.lost == ("b",)  # so its handler is stopped before anyone may start it again
        assert renewal.released == ("a",)  # its outcome is lost: it runs again, and no retry was spent
        assert await backend.settle([succeeded(b)]) == [Answer.LOST]

        later = await backend.clock() + USUAL
        await backend.renew("w", [], seen_call=claims.call, now=later)
        again = (await claims.next(now=later, most=5)).leases
        assert [lease.id for lease in again] == ["a", "b"]
        assert min(lease.fence for lease in again) > max(a.fence, b.fence)
        assert [lease.attempt for lease in again] == [1, 1]
        await backend.close()

    within_patience(body)


def test_a_failover_to_a_replica_that_had_just_come_is_not_taken_for_a_restart() -> None:
    """The store does not know the id its primary got with its first replica: the write that recorded it is lost."""
    shared_server()  # skips or fails where there is none

    async def body() -> None:
        pair = Pair(follows=False)
        try:
            backend = RedisBackend(pair.plain_url, call_timeout=2.0, trust_restarts=True)
            claims = await Claims(backend).register()
            await backend.enqueue([NewJob(id="a", task="t")])
            await asyncio.to_thread(pair.follow, pair.replica, pair.primary)
            await asyncio.to_thread(pair.caught_up)
            pair.cut()
            assert [lease.id for lease in (await claims.next()).leases] == ["a"]
            await asyncio.to_thread(pair.fail_over)
            answer = await claims.next()
            assert not answer.leases and 0 < answer.quiet_seconds <= USUAL
            await backend.close()
        finally:
            pair.remove()

    within_patience(body)


def test_a_server_that_served_another_meanwhile_and_came_back_is_quiet(pair: Pair) -> None:
    """Its process is the one that is remembered, and the connection to it lived through it all."""

    async def body() -> None:
        backend = RedisBackend(pair.plain_url, trust_restarts=True)
        claims = await Claims(backend).register()
        await backend.enqueue([NewJob(id="a", task="t")])
        assert (await claims.next(most=0)).quiet_seconds == 0
        await asyncio.to_thread(pair.change_over)
        await asyncio.to_thread(pair.change_over)  # nobody claimed in between
        assert (await claims.next()).quiet_seconds > 0
        await backend.close()

    within_patience(body)


class Journal:
    """What handlers did, in the order they did it."""

    def __init__(self) -> None:
        self.running: dict[str, list[int]] = {}
        self.faults: list[str] = []
        self.begun: list[str] = []
        self.fences: dict[str, list[int]] = {}
        self.ended: set[str] = set()

    def begin(self, name: str, fence: int) -> None:
        self.begun.append(name)
        others = self.running.setdefault(name, [])
        if others:
            self.faults.append(f"{name} began while it ran")
        if fence <= max(self.fences.get(name, [0])):
            self.faults.append(f"the fence of {name} went back")
        others.append(fence)
        self.fences.setdefault(name, []).append(fence)

    def end(self, name: str, fence: int) -> None:
        self.running[name].remove(fence)


@pytest.mark.parametrize("accident", ["failover", "power cut"])
def test_workers_live_through_it_and_no_two_runs_overlap(accident: str, request: pytest.FixtureRequest) -> None:
    """Six handlers run on under claims that the store has lost, while a second worker has nothing to do but claim."""
    pair: Pair | None = request.getfixturevalue("pair") if accident == "failover" else None
    server: Server = pair.primary if pair is not None else request.getfixturevalue("cautious")
    url = pair.url if pair is not None else server.url()
    file = server.home / "appendonlydir" / "appendonly.aof.1.incr.aof"
    journal, names = Journal(), [f"g{n}" for n in range(6)]
    hold = asyncio.Event()

    def app() -> tuple[Holdfast, Any]:
        made = Holdfast(f"{url}&call_timeout=1")

        @made.task(name="stay", group=lambda name: name)
        async def stay(ctx: Context, name: str) -> None:
            journal.begin(name, ctx.fence)
            try:
                await hold.wait()
                journal.ended.add(name)
            finally:
                journal.end(name, ctx.fence)

        return made, stay

    async def all_begun(times: int) -> None:
        while any(journal.begun.count(name) < times for name in names):
            await a_moment()

    async def ended(job: Any) -> None:
        while True:
            with contextlib.suppress(OutcomeUnknown, BackendError):
                await job.aresult(timeout=PATIENCE)
                return
            await a_moment()

    async def body() -> None:
        (first, stay), (second, _) = app(), app()
        jobs = [await stay.aenqueue(name) for name in names]
        set_longest_lease(server, 4.0)
        if pair is not None:
            await asyncio.to_thread(pair.caught_up)
            pair.cut()
        size = file.stat().st_size
        async with first.worker(slots=6, lease=4.0):  # its registration and its claims will be lost
            await all_begun(1)
            async with second.worker(slots=6, lease=4.0):
                if pair is not None:
                    await asyncio.to_thread(pair.fail_over)
                else:
                    server.end(signal.SIGKILL)
                    _shorten(file, size)
                    await asyncio.to_thread(server.start)
                await all_begun(2)
                hold.set()
                for job in jobs:
                    await ended(job)
        for job in jobs:
            await job.arefresh()
            assert (job.attempts, job.stalls, job.failures) == (1, 0, 0)
        assert not (await first.aaudit()).violations
        await first.aclose()
        await second.aclose()

    within_patience(body)
    assert journal.faults == []
    assert journal.ended == set(names) and not any(journal.running.values())
