"""Another session locks rows of ours, such as an operator's psql: other jobs continue, these are settled later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg

from holdfast import Holdfast
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Held, Lease, NewJob, Release, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
PATIENCE = 90.0


def hold(session: psycopg.Connection, schema: str, *ids: str) -> None:
    session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = ANY (%s) FOR UPDATE", (list(ids),))


def done(lease: Lease, ending: Ending = Ending.SUCCEEDED) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=ending)


async def two_running(backend: PostgresBackend, *more: NewJob) -> tuple[Lease, Lease]:
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    await backend.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t"), *more])
    request = ClaimRequest(worker="w", call=1, queues=("default",), most=2)
    first, second = sorted((await backend.claim(request)).leases, key=lambda lease: lease.id)
    return first, second


async def state_of(backend: PostgresBackend, id: str) -> State:
    record = await backend.get(id)
    assert record is not None
    return record.state


def test_an_outcome_of_a_held_job_is_busy_and_its_neighbours_are_taken(make: Make, session: psycopg.Connection) -> None:
    async def run() -> None:
        backend = make()
        a, b = await two_running(backend, NewJob(id="c", task="t"))
        hold(session, backend.schema, "a")
        for call in (2, 3):  # the second time it is on its guard
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=1)
            answer = await backend.exchange([done(a), done(b)], [], request)
            assert answer.answers == (Answer.BUSY, Answer.OK if call == 2 else Answer.LOST)
            assert [lease.id for lease in answer.leases] == (["c"] if call == 2 else [])
        assert await backend.release([Release(id="a", token=a.token)]) == [Answer.BUSY]
        assert await state_of(backend, "a") is State.RUNNING
        session.rollback()
        assert await backend.settle([done(a)]) == [Answer.OK]
        record = await backend.get("a")
        assert record is not None
        assert (record.state, record.attempts, record.stalls) == (State.SUCCEEDED, 1, 0)
        await backend.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_renewal_never_fails_for_a_held_job(make: Make, session: psycopg.Connection) -> None:
    async def run() -> None:
        backend = make()
        a, b = await two_running(backend)
        hold(session, backend.schema, "a")
        renewal = await backend.renew("w", [Held(b.id, b.token)], seen_call=1)  # `a` is to be given back, and cannot be
        assert (renewal.known, renewal.released) == (True, ())
        session.rollback()
        assert (await backend.renew("w", [Held(b.id, b.token)], seen_call=1)).released == ("a",)
        assert a.id == "a"
        await backend.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_claims_promotions_refills_and_recoveries_pass_over_held_rows(make: Make, session: psycopg.Connection) -> None:
    async def run() -> None:
        backend = make()
        await two_running(backend)
        places = [("ready", None, None), ("later", None, -1.0), ("head", "g", None), ("next", "g", None)]
        await backend.enqueue(
            [NewJob(id=id, task="t", group=group, due_at=due, priority=-9) for id, group, due in places]
        )
        await backend.enqueue([NewJob(id="free", task="t"), NewJob(id="other", task="t", group="h")])
        hold(session, backend.schema, "a", "ready", "later", "head", "next")
        await backend.register(WorkerRecord(id="v", lease_seconds=600.0))
        answer = await backend.claim(ClaimRequest(worker="v", call=1, queues=("default",), most=9))
        assert sorted(lease.id for lease in answer.leases) == ["free", "other"]
        assert {one.id for one in await backend.recover(dead=["w"])} == {"b"}
        await backend.promote()
        await backend.refill()
        await backend.prune()
        session.rollback()
        assert {one.id for one in await backend.recover(dead=["w"])} == {"a"}
        answer = await backend.claim(ClaimRequest(worker="v", call=2, queues=("default",), most=9))
        assert sorted(lease.id for lease in answer.leases) == ["a", "b", "head", "later", "ready"]
        await backend.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_worker_goes_on_with_others_and_finishes_held_jobs_later(
    server: Server, schema: str, session: psycopg.Connection
) -> None:
    with Holdfast(server.url(schema)) as app:
        began, may_end = threading.Event(), threading.Event()

        @app.task(name="slow")
        def slow() -> str:
            began.set()
            assert may_end.wait(PATIENCE)
            return "slow"

        @app.task(name="quick")
        def quick(n: int) -> int:
            return n

        async def run() -> None:
            held = await slow.aenqueue()
            async with app.worker(slots=2, lease=4.0):
                assert await asyncio.to_thread(began.wait, PATIENCE)
                await asyncio.to_thread(hold, session, schema, held.id)
                may_end.set()
                others = [await quick.aenqueue(n) for n in range(20)]
                assert [await job.aresult(timeout=PATIENCE) for job in others] == list(range(20))
                assert (await held.arefresh()).state == "running"
                session.rollback()
                assert await held.aresult(timeout=PATIENCE) == "slow"
            await held.arefresh()
            assert (held.attempts, held.stalls, held.failures) == (1, 0, 0)

        asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE))
        assert not app.audit().violations
