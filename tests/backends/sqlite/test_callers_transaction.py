"""enqueue_on: in the caller's own sqlite3 transaction, seen if and only if it commits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from holdfast import Holdfast
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.clock import ManualClock
from holdfast.errors import BackendUnavailable, ConfigurationError, DuplicateJob
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, Conflict, JobQuery, NewJob, QueueRule, WorkerRecord

from ..callers import ASYNC, Caller


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.close()
    backend = SqliteBackend(str(path), share=True)
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def mine(backend: SqliteBackend) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(backend.path)
    yield connection
    connection.close()


def test_it_is_seen_if_the_caller_commits(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO orders (id) VALUES (1)")
    assert backend.enqueue_on(mine, [NewJob(id="a", task="t", group="g")])[0].created
    assert asyncio.run(backend.get("a")) is None
    mine.commit()
    record = asyncio.run(backend.get("a"))
    assert record is not None
    assert record.state is State.SCHEDULED


def test_its_order_is_kept_and_waits_for_lower_ones(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    asyncio.run(backend.declare([QueueRule(name="slow", order_window=3600.0)]))
    mine.execute("INSERT INTO orders (id) VALUES (1)")
    jobs = [
        NewJob(id=f"{queue}-{order}", task="t", queue=queue, group="g", order=order)
        for queue in ("default", "slow")
        for order in (2, 1)
    ]
    assert all(answer.created for answer in backend.enqueue_on(mine, jobs))
    mine.commit()
    staged = asyncio.run(backend.get("slow-2"))
    assert staged is not None
    assert (staged.order, staged.state, staged.due_at - staged.created_at) == (2, State.SCHEDULED, 3600.0)
    asyncio.run(backend.register(WorkerRecord(id="w")))
    request = ClaimRequest(worker="w", call=1, queues=("default",), most=5)
    assert [lease.id for lease in asyncio.run(backend.claim(request)).leases] == ["default-1"]


def test_it_never_was_if_the_caller_rolls_back(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO orders (id) VALUES (1)")
    backend.enqueue_on(mine, [NewJob(id="a", task="t")])
    mine.rollback()
    assert asyncio.run(backend.get("a")) is None


def test_claim_brings_it_into_play(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    backend.enqueue_on(mine, [NewJob(id="a", task="t", group="g"), NewJob(id="b", task="t", group="g")])
    backend.enqueue_on(mine, [NewJob(id="c", task="t")])
    mine.commit()

    async def claim() -> list[str]:
        await backend.register(WorkerRecord(id="w"))
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10)
        return sorted(lease.id for lease in (await backend.claim(request)).leases)

    assert asyncio.run(claim()) == ["a", "c"]


def test_a_plain_enqueue_made_later_does_not_overtake_it(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    backend.enqueue_on(mine, [NewJob(id="first", task="t", group="g")])
    mine.commit()

    async def run() -> list[str]:
        await backend.enqueue([NewJob(id="second", task="t", group="g")])
        await backend.register(WorkerRecord(id="w"))
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10)
        return [lease.id for lease in (await backend.claim(request)).leases]

    assert asyncio.run(run()) == ["first"]


def test_a_rival_that_writes_meanwhile_makes_no_difference(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    """A transaction that has only read can no longer write once another one has."""
    rival = sqlite3.connect(backend.path, timeout=0)

    def write(statement: str) -> None:
        if "holdfast" in statement:
            with suppress(sqlite3.OperationalError):  # it may find the caller writing
                rival.execute("INSERT INTO orders DEFAULT VALUES")
                rival.commit()
            rival.rollback()

    mine.execute("BEGIN")
    mine.set_trace_callback(write)
    assert backend.enqueue_on(mine, [NewJob(id="a", task="t")])[0].created
    mine.set_trace_callback(None)
    mine.commit()
    rival.close()
    assert asyncio.run(backend.get("a")) is not None


def test_a_caller_that_read_before_a_rival_wrote_is_told_to_begin_anew(
    backend: SqliteBackend, mine: sqlite3.Connection
) -> None:
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM orders").fetchall()
    asyncio.run(backend.enqueue([NewJob(id="a", task="t")]))
    with pytest.raises(BackendUnavailable, match="Roll back, and run it again"):
        backend.enqueue_on(mine, [NewJob(id="b", task="t")])


def test_the_same_id_makes_one_job_and_a_key_is_respected(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    mine.row_factory = sqlite3.Row
    mine.text_factory = bytes
    assert backend.enqueue_on(mine, [NewJob(id="a", task="t", key="k")])[0].created
    assert not backend.enqueue_on(mine, [NewJob(id="a", task="t", key="k")])[0].created
    kept = backend.enqueue_on(mine, [NewJob(id="b", task="t", key="k")])[0]
    assert (kept.id, kept.created) == ("a", False)
    with pytest.raises(DuplicateJob):
        backend.enqueue_on(mine, [NewJob(id="c", task="t", key="k", on_conflict="raise")])
    with pytest.raises(ConfigurationError, match="replace"):
        backend.enqueue_on(mine, [NewJob(id="c", task="t", key="k", on_conflict="replace")])


@pytest.mark.parametrize("way", ["replace", "debounce"])
def test_a_way_to_meet_a_key_that_moves_a_job_is_refused(
    backend: SqliteBackend, mine: sqlite3.Connection, way: Conflict
) -> None:
    backend.enqueue_on(mine, [NewJob(id="a", task="t", key="k")])
    with pytest.raises(ConfigurationError, match=way):
        backend.enqueue_on(mine, [NewJob(id="b", task="t", key="k", on_conflict=way)])


def test_a_key_over_all_queues_is_respected(backend: SqliteBackend, mine: sqlite3.Connection) -> None:
    calls = [NewJob(id=queue, task="t", queue=queue, key="k", key_scope="global") for queue in ("one", "two")]
    assert [answer.id for answer in backend.enqueue_on(mine, calls)] == ["one", "one"]
    assert backend.enqueue_on(mine, [NewJob(id="here", task="t", queue="one", key="k")])[0].created


def test_a_key_whose_window_has_passed_is_taken(tmp_path: Path) -> None:
    clock = ManualClock(2_000_000_000.0)
    backend = SqliteBackend(str(tmp_path / "jobs.db"), clock=clock)
    asyncio.run(backend.open())
    mine = sqlite3.connect(backend.path)
    throttled = NewJob(id="a", task="t", key="k", key_window=60.0)
    assert backend.enqueue_on(mine, [throttled])[0].created
    clock.advance(59.0)
    assert backend.enqueue_on(mine, [replace(throttled, id="b")])[0].id == "a"
    clock.advance(1.0)
    assert backend.enqueue_on(mine, [replace(throttled, id="b")])[0].created
    assert backend.enqueue_on(mine, [replace(throttled, id="c")])[0].id == "b"
    mine.commit()
    mine.close()
    holders = [job.id for job in asyncio.run(backend.find(JobQuery())) if job.holds_key]
    assert holders == ["b"]
    asyncio.run(backend.close())


def test_another_database_or_another_driver_is_refused(backend: SqliteBackend, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigurationError, match="different database"):
        backend.enqueue_on(other, [NewJob(id="a", task="t")])
    other.close()
    with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
        backend.enqueue_on(object(), [NewJob(id="a", task="t")])


def test_a_connection_without_a_transaction_is_refused(backend: SqliteBackend) -> None:
    mine = sqlite3.connect(backend.path, isolation_level=None)
    with pytest.raises(ConfigurationError, match="autocommit"):
        backend.enqueue_on(mine, [NewJob(id="a", task="t")])
    mine.execute("BEGIN")
    assert backend.enqueue_on(mine, [NewJob(id="a", task="t")])[0].created
    mine.execute("COMMIT")
    mine.close()
    assert asyncio.run(backend.get("a")) is not None


@pytest.mark.parametrize("kind", ["sqlalchemy connection", "sqlalchemy session", *ASYNC[1:3]])
def test_sqlalchemy_carries_it_too(backend: SqliteBackend, kind: str) -> None:
    driver = "sqlite+aiosqlite" if kind in ASYNC else "sqlite"

    async def scene() -> None:
        async with Holdfast(f"sqlite:///{backend.path}?share=true") as app:
            note = app.task(name="note")(_note)
            await app.aopen()
            mine = await Caller(kind, f"{driver}:///{backend.path}").open()
            await mine.enqueue(note, 1)
            await mine.rollback()
            assert await app.acounts() == {}
            assert (await mine.enqueue(note, 2, key="k")).created
            with pytest.raises(DuplicateJob):
                await mine.enqueue(note, 3, key="k", on_conflict="raise")
            await mine.commit()
            assert (await app.awork(drain=True)).succeeded == 1
            await mine.close()

    asyncio.run(scene())


def test_scoped_sessions_carry_it_sync_and_async(backend: SqliteBackend) -> None:
    async def scene() -> None:
        async with Holdfast(f"sqlite:///{backend.path}?share=true") as app:
            note = app.task(name="note")(_note)
            await app.aopen()
            engine, other = (
                create_engine(f"sqlite:///{backend.path}"),
                create_async_engine(f"sqlite+aiosqlite:///{backend.path}"),
            )
            plain = scoped_session(sessionmaker(engine))
            note.using(connection=plain).enqueue(1)
            plain.commit()
            plain.remove()
            scoped = async_scoped_session(async_sessionmaker(other), scopefunc=asyncio.current_task)
            await note.using(connection=scoped).aenqueue(2)
            await scoped.commit()
            await scoped.remove()
            assert (await app.awork(drain=True)).succeeded == 2
            engine.dispose()
            await other.dispose()

    asyncio.run(scene())


def test_sqlalchemy_on_another_database_is_refused(backend: SqliteBackend, tmp_path: Path) -> None:
    async def scene() -> None:
        mine = await Caller("sqlalchemy session", f"sqlite:///{tmp_path}/other.db").open()
        with pytest.raises(ConfigurationError, match="different database"):
            backend.enqueue_on(mine.connection, [NewJob(id="a", task="t")])
        await mine.close()

    asyncio.run(scene())


def _note(n: int) -> int:
    return n
