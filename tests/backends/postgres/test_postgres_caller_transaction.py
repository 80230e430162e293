"""enqueue_on: in the caller's own psycopg transaction, seen if and only if it commits, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendUnavailable, ConfigurationError, DuplicateJob
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, QueueRule, WorkerRecord

T = TypeVar("T")
Make = Callable[..., PostgresBackend]


def with_backend(make: Make, work: Callable[[PostgresBackend], Awaitable[T]]) -> T:
    async def run() -> T:
        backend = make()
        await backend.open()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


async def claim(backend: PostgresBackend, call: int = 1) -> list[str]:
    await backend.register(WorkerRecord(id="w"))
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
    return [lease.id for lease in (await backend.claim(request)).leases]


def test_it_is_seen_if_and_only_if_the_caller_commits(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        assert backend.enqueue_on(session, [NewJob(id="a", task="t", group="g")])[0].created
        assert await backend.get("a") is None
        session.rollback()
        assert await backend.get("a") is None
        backend.enqueue_on(session, [NewJob(id="b", task="t", group="g", args=b'{"n":1}')])
        session.commit()
        record = await backend.get("b")
        assert record is not None
        assert (record.state, record.args) == (State.SCHEDULED, b'{"n":1}')
        assert await claim(backend) == ["b"]

    with_backend(make, run)


def test_an_open_transaction_stalls_nobody_of_its_group(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        backend.enqueue_on(session, [NewJob(id="open", task="t", group="g"), NewJob(id="alone", task="t")])
        await backend.enqueue([NewJob(id="later", task="t", group="g")])
        assert await claim(backend) == ["later"]
        session.commit()

    with_backend(make, run)


def test_a_plain_enqueue_made_later_does_not_overtake_it(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        backend.enqueue_on(session, [NewJob(id="first", task="t", group="g")])
        session.commit()
        await backend.enqueue([NewJob(id="second", task="t", group="g")])
        assert await claim(backend) == ["first"]

    with_backend(make, run)


def test_its_order_is_kept_and_waits_for_lower_ones(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        await backend.declare([QueueRule(name="slow", order_window=3600.0)])
        jobs = [NewJob(id=f"{queue}-{order}", task="t", queue=queue, group="g", order=order)
                for queue in ("default", "slow") for order in (2, 1)]  # fmt: skip
        assert all(answer.created for answer in backend.enqueue_on(session, jobs))
        session.commit()
        staged = await backend.get("slow-2")
        assert staged is not None
        assert (staged.order, staged.state, staged.due_at - staged.created_at) == (2, State.SCHEDULED, 3600.0)
        assert await claim(backend) == ["default-1"]

    with_backend(make, run)


def test_an_id_twice_in_one_call_is_made_where_no_key_keeps_it(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        await backend.enqueue([NewJob(id="live", task="t", key="k")])
        kept, made = NewJob(id="again", task="t", key="k"), NewJob(id="again", task="t")
        answers = backend.enqueue_on(session, [kept, made, made])
        given = [(answer.id, answer.created) for answer in answers]
        assert given == [("live", False), ("again", True), ("again", False)]
        session.commit()

    with_backend(make, run)


def test_the_same_id_makes_one_job_and_a_key_is_respected(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        assert backend.enqueue_on(session, [NewJob(id="a", task="t", key="k")])[0].created
        assert not backend.enqueue_on(session, [NewJob(id="a", task="t", key="k")])[0].created
        kept = backend.enqueue_on(session, [NewJob(id="b", task="t", key="k")])[0]
        assert (kept.id, kept.created) == ("a", False)
        with pytest.raises(DuplicateJob):
            backend.enqueue_on(session, [NewJob(id="c", task="t", key="k", on_conflict="raise")])
        with pytest.raises(ConfigurationError, match="replace"):
            backend.enqueue_on(session, [NewJob(id="c", task="t", key="k", on_conflict="replace")])

    with_backend(make, run)


def test_another_driver_or_a_store_that_is_not_there_is_refused(make: Make, session: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match=r"psycopg\.Connection"):
        make().enqueue_on(object(), [NewJob(id="a", task="t")])
    with pytest.raises(ConfigurationError, match="no store of this version in the schema"):
        make().enqueue_on(session, [NewJob(id="a", task="t")])


@pytest.mark.parametrize("word", ["replace", "debounce"])
def test_a_way_to_meet_a_key_that_moves_a_job_is_refused(make: Make, session: psycopg.Connection, word: str) -> None:
    async def run(backend: PostgresBackend) -> None:
        await backend.enqueue([NewJob(id="a", task="t", key="k")])
        moving = msgspec.structs.replace(NewJob(id="b", task="t", key="k", delay=5.0), on_conflict=word)
        with pytest.raises(ConfigurationError, match="connection="):
            backend.enqueue_on(session, [moving])
        session.commit()
        record = await backend.get("a")
        assert record is not None
        assert record.state is State.READY

    with_backend(make, run)


def test_a_key_over_all_queues_and_one_until_started_are_respected(make: Make, session: psycopg.Connection) -> None:
    async def run(backend: PostgresBackend) -> None:
        wide = NewJob(id="wide", task="t", key="k", key_scope="global", key_until="started", wait_max=9.0)
        backend.enqueue_on(session, [wide])
        session.commit()
        again = NewJob(id="again", task="t", key="k", key_scope="global", queue="other")
        assert [one.id for one in backend.enqueue_on(session, [again])] == ["wide"]
        assert backend.enqueue_on(session, [NewJob(id="own", task="t", key="k")])[0].created, "another scope"
        session.rollback()
        record = await backend.get("wide")
        assert record is not None
        assert record.due_max == record.created_at + 9.0
        assert await claim(backend) == ["wide"]
        assert backend.enqueue_on(session, [again])[0].created, "it let its key go when it started"
        session.commit()

    with_backend(make, run)


def test_a_key_whose_window_has_passed_is_taken(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run(backend: PostgresBackend) -> None:
        first = NewJob(id="first", task="t", key="k", key_window=600.0)
        backend.enqueue_on(session, [first])
        session.commit()
        second = NewJob(id="second", task="t", key="k", key_window=600.0)
        assert [one.id for one in backend.enqueue_on(session, [second])] == ["first"]
        session.execute(f"UPDATE {schema}.jobs SET created_at = created_at - 600")
        session.commit()
        assert backend.enqueue_on(session, [second, NewJob(id="third", task="t", key="k")])[0].created
        session.commit()
        records = [await backend.get(job_id) for job_id in ("first", "second", "third")]
        assert [None if one is None else one.holds_key for one in records] == [False, True, None]

    with_backend(make, run)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_stricter_transaction_that_meets_another_says_that_it_must_be_run_again(
    make: Make, session: psycopg.Connection, level: psycopg.IsolationLevel
) -> None:
    """Its snapshot does not show the job that took the key meanwhile, so nobody could answer which job has it."""

    async def run(backend: PostgresBackend) -> None:
        again = NewJob(id="again", task="t", key="k", on_conflict="keep")
        session.isolation_level = level
        session.execute("SELECT 1")  # its snapshot is taken
        await backend.enqueue([NewJob(id="first", task="t", key="k")])
        with pytest.raises(BackendUnavailable, match=r"conflicts with another one\. Roll it back and run it again"):
            backend.enqueue_on(session, [again])
        session.rollback()
        assert await backend.get("again") is None
        [found] = backend.enqueue_on(session, [again])
        session.commit()
        assert (found.id, found.created) == ("first", False)

    with_backend(make, run)
