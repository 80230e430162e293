"""A seal and the callers' own transactions on PostgreSQL: nothing commits into a store that was sealed and read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.seals import written
from holdfast.errors import BackendUnavailable, StoreSealed
from holdfast.records import ClaimRequest, NewJob, Pause, Seal, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
SEAL = Seal(move="m", role="source", other="store://there")
JOB = NewJob(id="mine", task="t", group="g")


async def ready(make: Make, **options: float) -> PostgresBackend:
    backend = make(**options)
    await backend.open()
    return backend


def until_somebody_waits(server: Server) -> None:
    """Return once a session waits for a lock; the server does the pausing."""
    with psycopg.connect(server.conninfo, autocommit=True) as watcher:
        for _ in range(1000):
            row = watcher.execute("SELECT count(*), pg_sleep(0.01) FROM pg_locks WHERE NOT granted").fetchone()
            if row is not None and row[0]:
                return
    raise AssertionError("nobody waits")


def test_an_open_transaction_that_enqueued_is_waited_for_and_delays_no_worker(
    make: Make, session: psycopg.Connection
) -> None:
    async def run() -> None:
        backend = await ready(make, call_timeout=0.6)
        backend.enqueue_on(session, [JOB])
        await backend.enqueue([NewJob(id="other", task="t")])
        await backend.register(WorkerRecord(id="w"))
        sealing = asyncio.create_task(backend.seal(SEAL, instead_of=None))
        claimed = await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=5))
        assert [lease.id for lease in claimed.leases] == ["other"]
        await backend.pause(Pause(queue="q"))  # who needs the rules alone does not wait for the caller either
        with pytest.raises(BackendUnavailable):
            await sealing
        assert await backend.sealed() is None
        session.commit()
        assert await backend.seal(SEAL, instead_of=None)
        assert "mine" in [job.id for job in (await backend.export("jobs")).jobs]
        await backend.close()

    asyncio.run(run())


def test_a_seal_that_waits_gets_in_when_the_caller_commits(
    make: Make, session: psycopg.Connection, server: Server
) -> None:
    async def run() -> None:
        backend = await ready(make)
        backend.enqueue_on(session, [JOB])
        sealing = asyncio.create_task(backend.seal(SEAL, instead_of=None))
        await asyncio.to_thread(until_somebody_waits, server)
        session.commit()
        assert await sealing
        assert [job.id for job in (await backend.export("jobs")).jobs] == ["mine"]
        await backend.close()

    asyncio.run(run())


def test_a_sealed_store_refuses_the_callers_own_insert(make: Make, session: psycopg.Connection) -> None:
    async def run() -> None:
        backend = await ready(make)
        assert await backend.seal(SEAL, instead_of=None)
        with pytest.raises(StoreSealed, match="store://there"):
            backend.enqueue_on(session, [JOB])
        session.rollback()
        assert await backend.get("mine") is None
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_snapshot_from_before_the_seal_cannot_slip_a_job_in(
    make: Make, session: psycopg.Connection, level: psycopg.IsolationLevel, schema: str
) -> None:
    async def run() -> None:
        backend = await ready(make)
        session.isolation_level = level
        session.execute(f"SELECT count(*) FROM {schema}.jobs")  # the snapshot is taken here
        assert await backend.seal(SEAL, instead_of=None)
        with pytest.raises(BackendUnavailable):
            backend.enqueue_on(session, [JOB])
        session.rollback()
        assert await backend.get("mine") is None
        await backend.close()

    asyncio.run(run())


def test_a_caller_that_waits_for_a_seal_under_way_is_refused_by_it(make: Make, server: Server, schema: str) -> None:
    """The seal has the row and is not committed yet; the caller comes in between and must see it."""

    async def run() -> None:
        backend = await ready(make)
        refused: list[BaseException] = []
        with psycopg.connect(server.conninfo) as holder, psycopg.connect(server.conninfo) as caller:
            holder.execute(f"SELECT 1 FROM {schema}.seal FOR UPDATE")
            record = written(SEAL)
            holder.execute(f"UPDATE {schema}.seal SET closed = true, record = %s", (record,))

            def enqueue() -> None:
                try:
                    backend.enqueue_on(caller, [JOB])
                except BaseException as error:
                    refused.append(error)

            thread = threading.Thread(target=enqueue)
            thread.start()
            await asyncio.to_thread(until_somebody_waits, server)
            holder.commit()
            thread.join(10)
            caller.rollback()
        assert [type(error) for error in refused] == [StoreSealed]
        await backend.close()

    asyncio.run(run())
