"""Enqueueing on a waiting thread, on a blocking connection: the same results, the same handling of lost replies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendUnavailable, OutcomeUnknown, StoreSealed
from holdfast.records import Enqueued, NewJob, Revival, Seal

from ...servers.postgres import Server
from .loop_thread import Loop

Make = Callable[..., PostgresBackend]


@pytest.fixture
def backend(make: Make, loop: Loop) -> Iterator[PostgresBackend]:
    backend = make()
    opened(backend, loop)
    yield backend
    loop.run(backend.close())


def opened(backend: PostgresBackend, loop: Loop) -> PostgresBackend:
    """Opened, and used once through the general path."""
    loop.run(backend.open())
    loop.run(backend.enqueue(one("first")))
    return backend


def one(id: str) -> list[NewJob]:
    return [NewJob(id=id, task="t")]


def ids(backend: PostgresBackend, loop: Loop) -> list[str]:
    return sorted(row["id"] for row in loop.run(backend.dump()).tables["jobs"] if row["id"] != "first")


def test_it_answers_as_enqueue_does(backend: PostgresBackend, loop: Loop) -> None:
    assert backend.enqueue_here(one("a")) == [Enqueued("a", True)]
    assert backend.enqueue_here(one("a")) == loop.run(backend.enqueue(one("a"))) == [Enqueued("a", False)]
    assert ids(backend, loop) == ["a"]


def test_every_field_arrives_as_by_the_longer_ways(backend: PostgresBackend, loop: Loop) -> None:
    job = NewJob(
        id="",
        task="t",
        queue="q",
        args='{"a":"\\u0000 é"}'.encode(),
        priority=-3,
        delay=60.5,
        expires=30.25,
        max_stalls=7,
        revival=Revival(cycles=2),
        options=b'{"timeout":3}',
    )
    backend.enqueue_here([replace(job, id="here")])
    loop.run(backend.enqueue([replace(job, id="there")]))
    loop.run(backend.enqueue([replace(job, id="among"), *one("others")]))
    rows = {row["id"]: row for row in loop.run(backend.dump()).tables["jobs"]}
    differing = ("id", "seq", "created_at", "due_at", "expires_at")
    plain = [{k: v for k, v in rows[id].items() if k not in differing} for id in ("here", "there", "among")]
    assert plain[0] == plain[1] == plain[2]
    assert rows["here"]["due_at"] - rows["here"]["created_at"] == pytest.approx(60.5)
    assert rows["here"]["expires_at"] - rows["here"]["due_at"] == pytest.approx(30.25)


@pytest.mark.parametrize(
    "jobs",
    [[], [*one("a"), *one("b")], [NewJob(id="a", task="t", group="g")], [NewJob(id="a", task="t", key="k")]],
    ids=["none", "two", "grouped", "with a key"],
)
def test_what_is_more_than_one_plain_job_goes_the_longer_way(backend: PostgresBackend, jobs: list[NewJob]) -> None:
    assert backend.enqueue_here(jobs) is None


def test_a_sealed_store_refuses_and_keeps_the_connection(backend: PostgresBackend, loop: Loop) -> None:
    backend.enqueue_here(one("a"))
    held = list(backend._direct._idle)
    closed = Seal(role="source", stage="moving", move="m", other="elsewhere")
    loop.run(backend.seal(closed, instead_of=None))
    with pytest.raises(StoreSealed):
        backend.enqueue_here(one("b"))
    loop.run(backend.seal(None, instead_of=closed))
    assert backend.enqueue_here(one("b")) == [Enqueued("b", True)]
    assert backend._direct._idle == held


def test_a_store_that_is_not_open_is_not_asked(make: Make) -> None:
    with pytest.raises(BackendUnavailable):
        make().enqueue_here(one("a"))


def test_before_the_first_call_and_behind_a_pooler_there_is_no_short_way(make: Make, loop: Loop) -> None:
    backend = make(pooled=True)
    loop.run(backend.open())
    assert backend.enqueue_here(one("a")) is None
    loop.run(backend.enqueue(one("b")))
    assert backend.enqueue_here(one("a")) is None
    loop.run(backend.close())


def test_who_waits_for_work_is_woken(backend: PostgresBackend, loop: Loop) -> None:
    waiting = asyncio.run_coroutine_threadsafe(backend.wait_for_work(("quiet",), 600.0), loop.loop)
    backend.enqueue_here([NewJob(id="a", task="t", queue="quiet")])
    waiting.result(timeout=30)


def test_a_connection_the_server_closed_is_not_used_again(
    backend: PostgresBackend, loop: Loop, session: psycopg.Connection
) -> None:
    assert backend.enqueue_here(one("a")) == [Enqueued("a", True)]
    session.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND application_name = 'holdfast' AND query LIKE %s",
        (f'%"{backend.schema}".enqueue_single($1%',),
    )
    assert backend.enqueue_here(one("b")) == [Enqueued("b", True)]
    assert ids(backend, loop) == ["a", "b"]


def test_a_job_that_another_transaction_is_about_to_make_is_waited_for(
    backend: PostgresBackend, loop: Loop, session: psycopg.Connection
) -> None:
    backend.enqueue_on(session, one("a"))
    with ThreadPoolExecutor(1) as pool:
        meanwhile = pool.submit(backend.enqueue_here, one("a"))
        session.commit()
        assert meanwhile.result(timeout=30) == [Enqueued("a", False)]
    assert ids(backend, loop) == ["a"]


class Snatched(list[Any]):
    """Idle connections of which another thread takes each at once, and finds it broken."""

    def append(self, connection: Any) -> None:
        connection.pgconn.finish()


def test_what_the_server_gave_up_is_no_lost_reply_whatever_becomes_of_the_connection(
    backend: PostgresBackend, loop: Loop, session: psycopg.Connection
) -> None:
    backend._direct._idle = Snatched()
    session.execute(
        f'CREATE OR REPLACE FUNCTION "{backend.schema}".keep_up(at double precision) RETURNS void LANGUAGE plpgsql '
        "AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$"
    )
    session.execute(f"SELECT setval('\"{backend.schema}\".ticks', 1)")  # so that it is called
    session.commit()
    with pytest.raises(BackendUnavailable, match="conflicted"):
        backend.enqueue_here(one("a"))
    assert ids(backend, loop) == []


def test_a_reply_that_never_comes_leaves_the_fate_unknown(mortal: Server, loop: Loop) -> None:
    patient = opened(PostgresBackend(mortal.conninfo), loop)  # sets it up, which may take longer on a busy machine
    loop.run(patient.close())
    backend = opened(PostgresBackend(mortal.conninfo, call_timeout=0.3), loop)
    backend.enqueue_here(one("a"))
    with psycopg.connect(mortal.conninfo, autocommit=True) as session:
        [[pid]] = session.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%.enqueue_single($1%' AND pid <> pg_backend_pid()"
        ).fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknown):
            backend.enqueue_here(one("b"))
    finally:
        os.kill(pid, signal.SIGCONT)
    made = backend.enqueue_here(one("b"))  # the same call again makes one job
    assert made is not None and made[0].id == "b"
    assert ids(backend, loop) == ["a", "b"]
    loop.run(backend.close())


def test_a_server_that_is_gone_is_said_to_be_unreachable(mortal: Server, loop: Loop) -> None:
    backend = opened(PostgresBackend(mortal.conninfo), loop)
    mortal.end()
    with pytest.raises(BackendUnavailable):
        backend.enqueue_here(one("a"))
    loop.run(backend.close())


def test_a_forked_child_goes_the_longer_way_and_then_has_connections_of_its_own(
    backend: PostgresBackend, loop: Loop
) -> None:
    backend.enqueue_here(one("a"))
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        fine = False
        try:
            fine = backend.enqueue_here(one("b")) is None and _beginning_anew(backend)
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.enqueue_here(one("d")) == [Enqueued("d", True)]
    assert ids(backend, loop) == ["a", "b", "c", "d"]


def _beginning_anew(backend: PostgresBackend) -> bool:
    async def work() -> bool:
        await backend.enqueue(one("b"))
        return await asyncio.to_thread(backend.enqueue_here, one("c")) == [Enqueued("c", True)]

    return asyncio.run(work())
