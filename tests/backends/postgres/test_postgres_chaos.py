"""Many processes on few groups, and a server that is killed under load: never one too many, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal

import psycopg
import pytest

from holdfast import BoundCall, Holdfast, Job
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, Lease, NewJob, QueueRule, WorkerRecord

from ...servers.postgres import Server
from . import claimer

Make = Callable[..., PostgresBackend]
PATIENCE_SECONDS = 90.0

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(("limit", "processes", "total"), [(1, 4, 600), (2, 8, 2000)])
def test_many_processes_never_exceed_a_groups_limit(
    make: Make, server: Server, schema: str, limit: int, processes: int, total: int
) -> None:
    async def fill() -> None:
        backend = make()
        await backend.open()
        order: Literal["strict", "relaxed"] = "strict" if limit == 1 else "relaxed"
        await backend.declare([QueueRule(name="default", group_limit=limit, group_order=order)])
        groups = [None if n % 4 == 0 else f"g{n % 7}" for n in range(total)]
        await backend.enqueue([NewJob(id=f"{n:05d}", task="t", group=group) for n, group in enumerate(groups)])
        await backend.close()

    asyncio.run(fill())
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {schema}.ledger (n bigserial, job text, grp text, step int, who text)")
        command = [sys.executable, claimer.__file__, server.conninfo, schema]
        started = [subprocess.Popen([*command, f"w{n}", str(total)]) for n in range(processes)]
        assert [process.wait(PATIENCE_SECONDS) for process in started] == [0] * processes
        events = connection.execute(f"SELECT job, grp, step FROM {schema}.ledger ORDER BY n").fetchall()
        states = connection.execute(f"SELECT state, attempts, count(*) FROM {schema}.jobs GROUP BY 1, 2").fetchall()
    assert states == [("succeeded", 1, total)]
    assert sorted(job for job, _, step in events if step == 1) == [f"{n:05d}" for n in range(total)]
    running: Counter[str] = Counter()
    began: dict[str, list[str]] = {}
    for job, group, step in events:
        if group is not None:
            running[group] += step
            assert running[group] <= limit, f"group {group} had {running[group]} at once, limit {limit}"
            if step == 1:
                began.setdefault(group, []).append(job)
    if limit == 1:
        assert all(jobs == sorted(jobs) for jobs in began.values())


async def a_moment() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)


class Persistent:
    """A worker that repeats a call whose fate is unknown, and one that could not be made, until it is answered."""

    def __init__(self, backend: PostgresBackend, name: str) -> None:
        self.backend, self.name, self.call = backend, name, 0
        self.ran: list[str] = []

    async def exchange(self, done: list[Settlement]) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker=self.name, call=self.call, queues=("default",), most=5)
        while True:
            try:
                return await self.backend.exchange(done, [], request)
            except (OutcomeUnknown, BackendError):
                await a_moment()

    async def run(self, over: Callable[[], bool]) -> None:
        done: list[Settlement] = []
        while done or not over():
            answer = await self.exchange(done)
            assert answer.known
            assert set(answer.answers) <= {Answer.OK}
            leases: tuple[Lease, ...] = answer.leases
            self.ran += [lease.id for lease in leases]
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]


async def enqueue_for_sure(backend: PostgresBackend, jobs: list[NewJob]) -> None:
    while True:
        try:
            await backend.enqueue(jobs)
            return
        except (OutcomeUnknown, BackendError):
            await a_moment()


async def under_load(mortal: Server, harm: Callable[[], None]) -> None:
    """Producers and workers on a server that is harmed twice: what was acknowledged ran, once each."""
    batches, size = 60, 20

    async def produce(backend: PostgresBackend, acknowledged: list[str]) -> None:
        for number in range(batches):
            groups = [None, "g", "h"]
            jobs = [NewJob(id=f"{number:03d}-{n:02d}", task="t", group=groups[n % 3]) for n in range(size)]
            await enqueue_for_sure(backend, jobs)
            acknowledged += [job.id for job in jobs]

    backends = [PostgresBackend(mortal.conninfo, call_timeout=3.0) for _ in range(4)]
    for backend in backends:
        await backend.open()
    workers = [Persistent(backend, f"w{n}") for n, backend in enumerate(backends[1:])]
    for worker in workers:
        await worker.backend.register(WorkerRecord(id=worker.name, lease_seconds=600.0))
    acknowledged: list[str] = []

    def over() -> bool:
        return len({job for worker in workers for job in worker.ran}) >= batches * size

    everyone = asyncio.gather(produce(backends[0], acknowledged), *(worker.run(over) for worker in workers))
    for fraction in (0.2, 0.5):
        while len(acknowledged) < fraction * batches * size:
            await asyncio.wait({everyone}, timeout=0.01)
        await asyncio.to_thread(harm)
    await asyncio.wait_for(everyone, PATIENCE_SECONDS)
    assert sorted(acknowledged) == sorted(job for worker in workers for job in worker.ran)
    assert (await backends[0].count())["default"] == {State.SUCCEEDED: batches * size}
    assert {row["attempts"] for row in (await backends[0].dump()).tables["jobs"]} == {1}
    for backend in backends:
        await backend.close()


def test_a_server_killed_and_started_again_under_load_loses_and_doubles_nothing(mortal: Server) -> None:
    def kill_it() -> None:
        mortal.end(signal.SIGKILL)
        mortal.start()

    asyncio.run(under_load(mortal, kill_it))


def test_one_process_of_the_server_killed_under_load_loses_and_doubles_nothing(mortal: Server) -> None:
    """The server then ends all its sessions and recovers, as it cannot trust its shared memory."""

    def kill_one() -> None:
        with psycopg.connect(mortal.conninfo) as connection:
            ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' ORDER BY backend_start LIMIT 1"
            row = connection.execute(ours).fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGKILL)

    asyncio.run(under_load(mortal, kill_one))


# ---------------------------------------------------------------------- a server that stands still


async def every_call(backend: PostgresBackend) -> list[str]:
    """Make one call of every kind; returns the names of those that were not refused."""
    request = ClaimRequest(worker="w", call=99, queues=("default",), most=1)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "clock": backend.clock,
        "enqueue": lambda: backend.enqueue([NewJob(id="frozen", task="t")]),
        "declare": lambda: backend.declare([QueueRule(name="other")]),
        "register": lambda: backend.register(WorkerRecord(id="v")),
        "exchange": lambda: backend.exchange([], [], request),
        "renew": lambda: backend.renew("w", [], seen_call=0),
        "recover": backend.recover,
        "promote": backend.promote,
        "refill": backend.refill,
        "prune": backend.prune,
        "cancel": lambda: backend.cancel("a"),
        "get": lambda: backend.get("a"),
        "dump": backend.dump,
    }
    answered: list[str] = []
    for name, call in calls.items():
        try:
            await call()
            answered.append(name)
        except (OutcomeUnknown, BackendError):
            continue
    return answered


async def _open(backend: PostgresBackend) -> bool:
    try:
        await backend.open()
    except BackendError:
        return False
    return True


def test_every_call_ends_in_time_on_a_server_that_stands_still(mortal: Server) -> None:
    async def run() -> None:
        patient = PostgresBackend(mortal.conninfo, call_timeout=PATIENCE_SECONDS)
        await patient.open()  # which makes the store: on a busy machine that takes longer than the other waits
        await patient.register(WorkerRecord(id="w", lease_seconds=600.0))
        await patient.enqueue([NewJob(id="a", task="t")])
        backend = PostgresBackend(mortal.conninfo, call_timeout=0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _open(backend):
                pass
        mortal.signal_all(signal.SIGSTOP)
        try:
            assert await asyncio.wait_for(every_call(backend), PATIENCE_SECONDS) == []
        finally:
            mortal.signal_all(signal.SIGCONT)
        assert len(await every_call(patient)) == 13
        await patient.close()
        await backend.close()

    asyncio.run(run())


def test_a_worker_says_loudly_that_the_server_stands_still_and_goes_on_after_it(mortal: Server) -> None:
    with Holdfast(mortal.url(call_timeout="0.5")) as app:
        told: dict[str, threading.Event] = {name: threading.Event() for name in ("renewal_failed", "store_blocked")}
        for name, event in told.items():
            app._hub.on(name)(lambda _, event=event: event.set())

        @app.task(name="note")
        def note(n: int) -> int:
            return n

        async def run() -> None:
            async with app.worker(lease=4.0):
                assert await (await note.aenqueue(1)).aresult(timeout=PATIENCE_SECONDS) == 1
                mortal.signal_all(signal.SIGSTOP)
                try:
                    for event in told.values():
                        assert await asyncio.to_thread(event.wait, PATIENCE_SECONDS)
                finally:
                    mortal.signal_all(signal.SIGCONT)
                jobs = [await persistently(note.bind(n)) for n in range(20)]
                assert [await job.aresult(timeout=PATIENCE_SECONDS) for job in jobs] == list(range(20))

        async def persistently(call: BoundCall[int]) -> Job[int]:
            while True:
                try:
                    return await app.aenqueue(call)
                except (OutcomeUnknown, BackendError):
                    await a_moment()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
        assert not app.audit().violations
