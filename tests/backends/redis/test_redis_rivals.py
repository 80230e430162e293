"""Servers and sessions that are in the way: cut connections, forgotten scripts, a stopped server, full memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import keys_of
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, JobQuery, Lease, NewJob, QueueRule, Seal, WorkerRecord
from holdfast.testing.conformance.soundness import sound

from ...servers.valkey import Server

Make = Callable[..., RedisBackend]
PATIENCE_SECONDS = 90.0


async def claim(backend: RedisBackend, call: int, most: int = 10, done: tuple[Lease, ...] = ()) -> tuple[Lease, ...]:
    settled = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in done]
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=most)
    return (await backend.exchange(settled, [], request)).leases


def test_idle_connections_closed_by_the_server_are_replaced_unnoticed(make: Make, client: redis.Redis) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        for number in range(5):
            await backend.enqueue([NewJob(id=f"{number}", task="t")])
            client.client_kill_filter(skipme=True, _type="normal")
        assert (await backend.count())["default"] == {State.READY: 5}
        await backend.close()

    asyncio.run(run())


def test_a_stopped_server_holds_no_call_for_ever(mortal: Server) -> None:
    async def run() -> None:
        backend = RedisBackend(mortal.plain_url, call_timeout=0.3)
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        mortal.send(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(OutcomeUnknown, match="enqueue"):
                await backend.enqueue([NewJob(id="a", task="t")])
            with pytest.raises((OutcomeUnknown, BackendUnavailable)):
                await backend.renew("w", [], seen_call=0)
            with pytest.raises(BackendUnavailable):
                await backend.get("a")
        mortal.send(signal.SIGCONT)
        await backend.enqueue([NewJob(id="a", task="t")])
        assert (await backend.count())["default"] == {State.READY: 1}
        await backend.close()

    asyncio.run(run())


def test_a_renewal_does_not_queue_behind_calls_that_are_stuck(make: Make) -> None:
    async def run() -> None:
        backend = make(connections=1)
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        async with backend._connections._slots:  # a call that is stuck
            renewal = await asyncio.wait_for(backend.renew("w", [], seen_call=0), PATIENCE_SECONDS)
        assert renewal.known
        await backend.close()

    asyncio.run(run())


def test_scripts_the_server_forgot_are_sent_again(make: Make, client: redis.Redis) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        total = 300
        flushing = True

        async def flush() -> None:
            while flushing:
                await asyncio.to_thread(client.script_flush)

        forgetting = asyncio.create_task(flush())
        for number in range(total):
            [answer] = await backend.enqueue([NewJob(id=f"{number}", task="t", group=f"g{number % 5}")])
            assert answer.created
        ran: list[str] = []
        leases: tuple[Lease, ...] = ()
        call = 0
        while leases or call == 0:
            call += 1
            leases = await claim(backend, call, done=leases)
            ran += [lease.id for lease in leases]
        flushing = False
        await forgetting
        assert sorted(ran) == sorted(str(number) for number in range(total))
        assert {row["attempts"] for row in (await backend.dump()).tables["jobs"]} == {1}
        await backend.close()

    asyncio.run(run())


def test_a_full_server_refuses_new_jobs_clearly_and_drains(mortal: Server) -> None:
    async def run() -> None:
        backend = RedisBackend(mortal.plain_url)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        with mortal.client() as client:
            used = int(client.info("memory")["used_memory"])
            client.config_set("maxmemory", used + 2_000_000)
        stored = 0
        with pytest.raises(BackendUnavailable, match="memory is full"):  # noqa: PT012
            while True:
                jobs = [NewJob(id=f"{stored + n}", task="t", args=b"x" * 500, group=f"g{n % 3}") for n in range(100)]
                await backend.enqueue(jobs)
                stored += 100
        assert await backend.get(str(stored)) is None  # nothing of the refused batch
        done: tuple[Lease, ...] = ()
        ran = call = 0
        while done or call == 0:
            call += 1
            done = await claim(backend, call, 50, done)
            ran += len(done)
        assert ran == stored
        assert (await backend.count())["default"] == {State.SUCCEEDED: stored}
        starting = RedisBackend(mortal.plain_url)
        await starting.open()  # a worker may start on a full server
        await starting.close()
        await backend.declare([QueueRule(name="other", group_limit=2, group_order="relaxed")])
        assert await backend.prune(limit=10 * stored, now=await backend.clock() + 10 * 86400.0) == stored
        await backend.enqueue([NewJob(id="again", task="t")])
        await sound(backend, "after it was full")
        await backend.close()

    asyncio.run(run())


def test_a_backend_may_be_used_on_one_loop_after_another(make: Make) -> None:
    backend = make()
    asyncio.run(backend.open())
    asyncio.run(backend.enqueue([NewJob(id="a", task="t")]))
    assert asyncio.run(backend.get("a")) is not None
    asyncio.run(backend.close())


def test_a_forked_child_leaves_the_parents_connections_alone(make: Make, client: redis.Redis) -> None:
    async def look(backend: RedisBackend) -> str | None:
        await backend.wait_for_work(("other",), 0.01)
        record = await backend.get("a")
        return None if record is None else record.id

    def ours() -> set[str]:
        return {one["id"] for one in client.client_list() if one["name"] == "holdfast"}

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.wait_for_work(("other",), 0.01)
        await backend.enqueue([NewJob(id="a", task="t")])
        before = ours()
        child = os.fork()
        if child == 0:
            asyncio._set_running_loop(None)
            os._exit(0 if asyncio.run(look(backend)) == "a" else 1)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the child is to be gone before the parent goes on
        assert os.waitstatus_to_exitcode(status) == 0
        assert await look(backend) == "a"
        assert before <= ours()
        await backend.close()

    asyncio.run(run())


def test_a_call_given_up_in_the_middle_costs_its_connection_and_no_other_calls_reply(make: Make) -> None:
    async def run() -> None:
        backend = make(connections=1)
        await backend.open()
        for number in range(50):
            calling = asyncio.create_task(backend.enqueue([NewJob(id=f"{number}", task="t")]))
            for _ in range(number % 6):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            assert await backend.clock() > 0
            assert (await backend.queues()) is not None
        await backend.close()

    asyncio.run(run())


def test_a_hint_wakes_a_waiter_elsewhere(make: Make) -> None:
    async def run() -> None:
        here, there = make(), make()
        await here.open()
        await there.open()
        for queue in ("other", "third"):
            waiting = asyncio.create_task(there.wait_for_work((queue,), 10 * PATIENCE_SECONDS))
            async with asyncio.timeout(PATIENCE_SECONDS):
                number = 0
                while not waiting.done():
                    number += 1
                    await here.enqueue([NewJob(id=f"{queue}{number}", task="t", queue=queue)])
                    await asyncio.wait({waiting}, timeout=0.05)
        await here.close()
        await there.close()

    asyncio.run(run())


def test_jobs_that_a_worker_has_no_room_for_wake_others(make: Make, client: redis.Redis) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        start = 2_000_000_000.0
        await backend.register(WorkerRecord(id="w"), now=start)
        await backend.enqueue([NewJob(id=f"{n}", task="t", delay=10.0) for n in range(5)], now=start)
        hints = f"{{{backend.prefix}}}:wake"
        client.delete(hints)
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10, most_by_queue={"default": 1})
        assert len((await backend.claim(request, now=start + 10)).leases) == 1  # all five became due in this step
        assert client.xlen(hints) == 1
        await backend.close()

    asyncio.run(run())


def test_work_at_hand_and_work_soon_due_end_a_wait(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await backend.enqueue([NewJob(id="soon", task="t", delay=0.2)])
            await backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS)
            await backend.enqueue([NewJob(id="now", task="t", queue="other")])
            await backend.wait_for_work(("other",), 10 * PATIENCE_SECONDS)
        await backend.close()

    asyncio.run(run())


def test_waiting_goes_on_after_the_server_was_gone(mortal: Server) -> None:
    async def run() -> None:
        here, there = RedisBackend(mortal.plain_url), RedisBackend(mortal.plain_url)
        await here.open()
        await there.open()
        await there.wait_for_work(("default",), 0.01)
        mortal.end()
        mortal.start()
        waiting = asyncio.create_task(there.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not waiting.done():
                await here.enqueue([NewJob(id="a", task="t")])
                await here.cancel("a")
                await here.retry("a")
                await asyncio.wait({waiting}, timeout=0.05)
        await waiting
        await here.close()
        await there.close()

    asyncio.run(run())


def test_names_with_zero_bytes_stay_in_their_own_place(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        names = ["a", "a\0", "a\1", "a\0b", "\0", "\1", "a\1\1", "é"]
        jobs = [NewJob(id=f"{q}-{g}-{n}", task="t", queue=qn, group=gn)
                for q, qn in enumerate(names) for g, gn in enumerate(names) for n in range(2)]  # fmt: skip
        await backend.enqueue(jobs)
        assert (await backend.count()) == {
            name: {State.READY: len(names), State.WAITING: len(names)} for name in sorted(names)
        }
        groups = await backend.groups(limit=1000)
        assert [(one.queue, one.name) for one in groups] == sorted((q, g) for q in names for g in names)
        assert {(one.limit, *one.counts.values()) for one in groups} == {(1, 1, 1)}
        found = await backend.find(JobQuery(queue="a\0", group="\1", states=(State.WAITING,), limit=10))
        assert [one.id for one in found] == ["1-5-1"]
        request = ClaimRequest(worker="w", call=1, queues=("a\0",), most=100)
        leases = (await backend.claim(request)).leases
        assert {lease.queue for lease in leases} == {"a\0"}
        assert len(leases) == len(names)
        await sound(backend, "with odd names")
        await backend.close()

    asyncio.run(run())


def test_arguments_and_values_may_be_any_bytes(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        every = bytes(range(256)) * 300
        await backend.enqueue([NewJob(id=name, task="t", args=every, options=b"\xff\0") for name in "ab"])
        one, two = await claim(backend, 1)
        assert (one.args, one.options) == (every, b"\xff\0")
        await backend.settle(
            [
                Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED, value=every),
                Settlement(id=two.id, token=two.token, ending=Ending.BURIED, reason="failed"),
            ]
        )
        record, letter = await backend.get(one.id), await backend.letter(two.id)
        assert record is not None
        assert letter is not None
        assert (record.value, letter.args) == (every, every)
        await backend.close()

    asyncio.run(run())


def test_a_letter_keeps_its_arguments_byte_by_byte(make: Make, client: redis.Redis) -> None:
    """The server need not look at each of them: a death must not take longer for arguments in Chinese."""

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        bodies = ["字".encode() * 30_000, bytes(range(256)) * 300, b"\xff" * 200, b"\xfe" * 20, b""]
        for call, args in enumerate(bodies, 1):
            await backend.enqueue([NewJob(id=f"{call}", task="t", key="k", args=args)])
            [lease] = await claim(backend, call)
            await backend.settle([Settlement(id=lease.id, token=lease.token, ending=Ending.BURIED, reason="failed")])
        letter = await backend.letter("5")
        assert letter is not None
        assert [*(past.args for past in letter.history), letter.args] == bodies
        [kept] = client.hvals(f"{{{backend.prefix}}}:letters")
        assert len(kept) < sum(map(len, bodies)) + 2000

        seal = Seal(move="m", role="target", other="memory://")
        other = RedisBackend(f"unix://{client.connection_pool.connection_kwargs['path']}", prefix=f"{backend.prefix}_2")
        await other.open()
        try:
            assert await other.seal(seal, instead_of=None)
            await other.carry("m", await backend.export("letters"))
            assert await other.letter("5") == letter
        finally:
            client.delete(*keys_of(other.prefix))
        await other.close()
        await backend.close()

    asyncio.run(run())


def test_after_a_clock_was_set_back_the_dead_are_found_among_any_number_of_the_living(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        now = await backend.clock()
        await backend.register(WorkerRecord(id="dead", lease_seconds=600.0), now=now + 3600.0)  # before it went back
        for first in range(0, 1001, 50):
            living = [WorkerRecord(id=f"{n}", lease_seconds=600.0) for n in range(first, first + 50)]
            await asyncio.gather(*(backend.register(worker) for worker in living))
        await backend.recover()
        [deadline] = [row["deadline"] for row in (await backend.dump()).tables["workers"] if row["id"] == "dead"]
        assert deadline < now + 600.0 + PATIENCE_SECONDS
        await backend.close()

    asyncio.run(run())


def test_a_clock_set_back_gives_a_worker_its_lease_anew(make: Make, client: redis.Redis) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        now = await backend.clock()
        await backend.register(WorkerRecord(id="w", lease_seconds=30.0), now=now + 3600.0)  # before the clock went back
        await backend.recover()
        [row] = (await backend.dump()).tables["workers"]
        assert now < row["deadline"] < now + 30.0 + PATIENCE_SECONDS
        await backend.close()

    asyncio.run(run())
