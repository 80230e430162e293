"""connection= in a sandbox: a job appears when its transaction commits, and vanishes with it or with its savepoint."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from holdfast import Holdfast, Task
from holdfast.errors import BackendError, ConfigurationError, DuplicateJob
from holdfast.testing import Sandbox, sandbox

from ..backends.callers import ASYNC, SYNC, Caller
from ..servers.postgres import shared_server

Note = Task[[int], int]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="note")
    def note(n: int) -> int:
        return n

    with sandbox(app) as box:
        yield box


@pytest.fixture
def note(box: Sandbox) -> Note:
    return box.app.tasks["note"]


POSTGRES = [f"{kind} on postgres" for kind in (*SYNC, *ASYNC)]
SQLITE = ["sqlite3 on sqlite", *(f"{kind} on sqlite" for kind in (*SYNC[1:], *ASYNC[1:3]))]


class Undo(Exception):
    """Rolls a savepoint back."""


@pytest.fixture
def caller(tmp_path: Path) -> Callable[[str], Any]:
    """Open a caller of a kind, named by driver and database."""

    @asynccontextmanager
    async def opened(kind: str) -> AsyncIterator[Caller]:
        driver, _, database = kind.partition(" on ")
        if database == "sqlite":
            scheme = "sqlite+aiosqlite" if driver in ASYNC else "sqlite"
            made = Caller(driver, f"{scheme}:///{tmp_path}/own.db")
            if driver == "sqlite3":
                made.connection = sqlite3.connect(tmp_path / "own.db")
        else:
            host = quote(str(shared_server().home), safe="")
            address = f"postgresql+psycopg://postgres@/postgres?host={host}"
            made = Caller(driver, address, f"postgresql://postgres@/postgres?host={host}")
        if made.connection is None:
            await made.open()
        try:
            yield made
        finally:
            await made.close()

    return opened


@asynccontextmanager
async def savepoint(mine: Caller) -> AsyncIterator[None]:
    """A savepoint in the caller's own way; Undo rolls it back."""
    connection = mine.connection
    await mine.begin()
    with contextlib.suppress(Undo):
        if mine.kind == "sqlite3":
            connection.execute("SAVEPOINT a_name")
            try:
                yield
            except Undo:
                connection.execute("ROLLBACK TO a_name")
            connection.execute("RELEASE a_name")
            return
        made = connection.begin_nested() if "sqlalchemy" in mine.kind else connection.transaction()
        if mine.is_async:
            async with made:
                yield
        else:
            with made:
                yield


def names(box: Sandbox) -> list[int]:
    return [job.args["n"] for job in box.enqueued("note")]


def waiting(box: Sandbox) -> list[int]:
    return [job.args["n"] for job in box.pending("note")]


@pytest.mark.parametrize("kind", [*POSTGRES, *SQLITE])
def test_a_job_appears_with_the_commit_and_vanishes_with_the_rollback(
    box: Sandbox, note: Note, caller: Callable[[str], Any], kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            lost = await mine.enqueue(note, 1)
            assert (lost.created, lost.state) == (True, "scheduled")
            assert (names(box), waiting(box)) == ([], [1])
            await mine.rollback()
            assert (names(box), waiting(box)) == ([], [])
            kept = await mine.enqueue(note, 2)
            await mine.commit()
            await mine.enqueue(note, 3)  # at once another transaction, on the same connection
            await mine.rollback()
            assert (names(box), waiting(box)) == ([2], [])
            assert (await box.adrain()).succeeded == 1
            assert (await kept.arefresh()).value == 2
            await mine.enqueue(note, 4)
        assert (names(box), await until_none_waits(box)) == ([2], True)  # closed without a commit

    asyncio.run(scene())


async def until_none_waits(box: Sandbox) -> bool:
    """A server learns in its own time that a connection was closed."""
    for _ in range(1000):
        if not waiting(box):
            return True
        await asyncio.to_thread(threading.Event().wait, 0.03)
    return False


@pytest.mark.parametrize("kind", [*POSTGRES, *SQLITE])
def test_savepoints_take_their_jobs_back(box: Sandbox, note: Note, caller: Callable[[str], Any], kind: str) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            async with savepoint(mine):
                await mine.enqueue(note, 1)  # followed from here: the savepoint was there before
                raise Undo
            await mine.enqueue(note, 2)
            async with savepoint(mine):
                await mine.enqueue(note, 3)
                async with savepoint(mine):
                    await mine.enqueue(note, 4)
                    raise Undo
                async with savepoint(mine):
                    await mine.enqueue(note, 5)
            async with savepoint(mine):
                await mine.enqueue(note, 6)
                async with savepoint(mine):
                    await mine.enqueue(note, 7)
                raise Undo
            assert names(box) == []
            assert waiting(box) == [2, 3, 5]
            await mine.commit()
            assert (names(box), waiting(box)) == ([2, 3, 5], [])

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["asyncpg on postgres", "sqlite3 on sqlite", "sqlalchemy session on sqlite"])
def test_ids_and_keys_are_checked_as_in_a_real_store(
    box: Sandbox, note: Note, caller: Callable[[str], Any], kind: str
) -> None:
    async def scene() -> None:
        live = await note.using(key="k").aenqueue(0)
        async with caller(kind) as mine:
            assert (await mine.enqueue(note, 1, key="k")).id == live.id
            with pytest.raises(DuplicateJob):
                await mine.enqueue(note, 1, key="k", on_conflict="raise")
            with pytest.raises(ConfigurationError, match="replace"):
                await mine.enqueue(note, 1, key="k", on_conflict="replace")
            first = await mine.enqueue(note, 2, key="other")
            assert (await mine.enqueue(note, 3, key="other")).id == first.id  # known before the commit
            rival = await note.using(key="other").aenqueue(4)  # sees nothing of it
            await mine.commit()
        assert [job.id for job in box.enqueued()] == [live.id, rival.id]
        assert (await box.app.aaudit()).violations == []

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["psycopg on postgres", "asyncpg on postgres", "sqlalchemy connection on sqlite"])
def test_what_waits_can_be_taken_as_committed(
    box: Sandbox, note: Note, caller: Callable[[str], Any], kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            await mine.enqueue(note, 1)
            with pytest.raises(AssertionError, match=r"Nothing is enqueued.\nNot counted, .*\n  note\(n=1\)"):
                box.assert_enqueued(note, n=1)
            box.commit()
            assert (names(box), waiting(box)) == ([1], [])
            await mine.enqueue(note, 2)
            await mine.rollback()
            assert names(box) == [1]
        assert (await box.adrain(inline=True)).succeeded == 1

    asyncio.run(scene())


def test_a_session_that_joins_a_transaction_of_the_test_commits_on_its_own(box: Sandbox, note: Note) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.connect() as connection:
        outer = connection.begin()
        for mode in ("create_savepoint", "rollback_only", "conditional_savepoint"):
            with Session(connection, join_transaction_mode=mode) as session:
                session.execute(text("SELECT 1"))
                note.using(connection=session).enqueue(1)
                session.commit()
                box.assert_enqueued(note, n=1, count=1)
                box.drain()
                [done] = box.enqueued(note)
                box.app.delete(done)
        outer.rollback()
    engine.dispose()


def test_scoped_sessions_and_flushes_are_followed(box: Sandbox, note: Note) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    scoped = scoped_session(sessionmaker(engine))
    note.using(connection=scoped).enqueue(1)
    scoped.commit()
    note.using(connection=scoped).enqueue(2)
    scoped.remove()  # closes it: rolled back
    assert (names(box), waiting(box)) == ([1], [])
    with Session(engine) as session:
        with session.begin():
            note.using(connection=session).enqueue(3)
            session.flush()
        with pytest.raises(ZeroDivisionError), session.begin():
            note.using(connection=session).enqueue(1 // 0)
    engine.dispose()
    assert names(box) == [1, 3]

    async def scene() -> None:
        other = create_async_engine("sqlite+aiosqlite://")
        maker: async_sessionmaker[AsyncSession] = async_sessionmaker(other)
        here = async_scoped_session(maker, scopefunc=asyncio.current_task)
        await note.using(connection=here).aenqueue(4)
        await here.commit()
        await here.remove()
        await other.dispose()

    asyncio.run(scene())
    assert names(box) == [1, 3, 4]


def test_a_commit_that_fails_brings_nothing(box: Sandbox, note: Note, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    rules = "CREATE TABLE a (id INTEGER PRIMARY KEY); CREATE TABLE b (a REFERENCES a DEFERRABLE INITIALLY DEFERRED)"
    raw = sqlite3.connect(path)
    raw.executescript(rules)
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("INSERT INTO b VALUES (1)")
    note.using(connection=raw).enqueue(1)
    with pytest.raises(sqlite3.IntegrityError):
        raw.commit()
    assert waiting(box) == [1]  # SQLite keeps the transaction open
    raw.rollback()
    assert (names(box), waiting(box)) == ([], [])
    raw.close()
    engine = create_engine(f"sqlite:///{path}")
    for make in (engine.connect, lambda: Session(engine)):
        with make() as mine:
            mine.execute(text("PRAGMA foreign_keys = ON"))
            mine.execute(text("INSERT INTO b VALUES (1)"))
            note.using(connection=mine).enqueue(2)
            with pytest.raises(Exception, match="FOREIGN KEY"):
                mine.commit()
            mine.rollback()
        assert (names(box), waiting(box)) == ([], [])
    engine.dispose()


def test_a_psycopg_connection_may_be_closed_before_anybody_looks(box: Sandbox, note: Note) -> None:
    conninfo = shared_server().conninfo
    with psycopg.connect(conninfo) as connection:
        note.using(connection=connection).enqueue(1)
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine (n int)")
        with contextlib.suppress(Undo), connection.transaction():
            note.using(connection=connection).enqueue(2)
            raise Undo
        note.using(connection=connection).enqueue(3)
        connection.rollback()
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(BackendError, match="already failed"):
            note.using(connection=connection).enqueue(4)
    assert names(box) == [1]


def test_another_thread_may_look_and_another_may_commit(box: Sandbox, note: Note, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db", check_same_thread=False)
    note.using(connection=connection).enqueue(1)
    seen: list[list[int]] = []

    def elsewhere() -> None:
        seen.append(names(box))
        connection.commit()
        seen.append(names(box))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [[], [1]]
    connection.close()


def test_what_cannot_be_followed_is_refused(box: Sandbox, note: Note) -> None:
    plain = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(ConfigurationError, match="autocommit"):
        note.using(connection=plain).enqueue(1)
    plain.execute("BEGIN")
    note.using(connection=plain).enqueue(2)
    plain.execute("-- a comment\nCOMMIT")
    plain.close()
    with pytest.raises(ConfigurationError, match=r"a sqlite3, psycopg or asyncpg connection"):
        note.using(connection=object()).enqueue(3)
    with pytest.raises(ConfigurationError, match=r"aenqueue\(\)"):
        note.using(connection=create_async_engine("sqlite+aiosqlite://").connect()).enqueue(4)

    async def scene() -> None:
        connection = await asyncpg.connect(shared_server().conninfo)
        with pytest.raises(ConfigurationError, match="autocommit"):
            await note.using(connection=connection).aenqueue(5)
        await connection.close()

    asyncio.run(scene())
    assert names(box) == [2]


def test_nothing_is_left_on_the_connection_when_the_sandbox_ends(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    task = app.named("note")
    engine = create_engine("sqlite://", poolclass=StaticPool)
    connection, session = engine.connect(), Session(engine)
    raw = sqlite3.connect(":memory:")
    with sandbox(app) as box:
        for mine in (connection, session, raw):
            task.using(connection=mine).enqueue(1)
        assert len(box.pending()) == 3
    for event in ("begin", "commit", "rollback", "before_cursor_execute"):
        assert not list(getattr(connection.dispatch, event)), event
    assert not list(engine.dialect.dispatch.handle_error)
    assert not list(session.dispatch.after_commit)
    assert not list(session.dispatch.after_transaction_end)
    for mine in (connection, session, raw):
        mine.commit()
        mine.close()
    engine.dispose()
    with sandbox(app) as box:
        assert box.enqueued() == []
