"""connection= through the app, with every driver: a job exists if and only if the caller commits, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Task
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, DuplicateJob, StateConflict
from holdfast.records import Revival

from ...servers.postgres import Server
from ..callers import ASYNC, SYNC, Caller

Open = Callable[..., Any]
KINDS = (*SYNC, *ASYNC)
PATIENCE = 90.0


@pytest.fixture
def app(server: Server, schema: str) -> Iterator[Holdfast]:
    with Holdfast(server.url(schema, call_timeout="2")) as made:
        yield made


@pytest.fixture
def note(app: Holdfast) -> Task[[int], int]:
    @app.task(name="note")
    def note(n: int) -> int:
        return n

    return note


@pytest.fixture
def caller(server: Server) -> Open:
    """Open a caller of a kind; it is closed at the end of the block."""

    @asynccontextmanager
    async def opened(kind: str, database: str = "postgres", **options: Any) -> AsyncIterator[Caller]:
        host = quote(str(server.home), safe="")
        address = f"postgresql+psycopg://postgres@/{database}?host={host}"
        made = await Caller(kind, address, f"postgresql://postgres@/{database}?host={host}").open(**options)
        try:
            yield made
        finally:
            await made.close()

    return opened


def run(work: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_exists_if_and_only_if_the_caller_commits(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            lost = await mine.enqueue(note, 1)
            assert (lost.created, lost.state) == (True, "scheduled")
            assert await app.acounts() == {}
            await mine.rollback()
            assert await app.acounts() == {}
            kept = await mine.enqueue(note, 2, group="g")
            assert await app.acounts() == {}
            await mine.commit()
            assert (await app.awork(drain=True)).succeeded == 1
            assert await (await app.ajob(kept.id)).aresult(timeout=5) == 2

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_transaction_stalls_no_worker_and_no_producer(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            await mine.enqueue(note, 1, group="g", key="mine")
            await mine.enqueue(note, 2)
            for number in range(3):
                await note.using(group="g").aenqueue(number)
            await note.using(key="theirs").aenqueue(3)
            assert (await app.awork(drain=True)).succeeded == 4  # the transaction is still open
            await mine.commit()
            assert (await app.awork(drain=True)).succeeded == 2

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_many_calls_go_in_one_step_and_known_ones_are_told(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            await mine.begin()
            using = note.using(connection=mine.connection)
            calls = [using.bind(n) for n in range(30)]
            calls += [calls[0], using.using(key="k").bind(1), using.using(key="k").bind(2)]
            told = await app.aenqueue_many(calls) if mine.is_async else app.enqueue_many(calls)
            assert (told.created, told.kept) == (31, 2)
            await mine.commit()
            assert (await app.awork(drain=True)).succeeded == 31

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_enqueue_leaves_the_callers_transaction_usable(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    async def scene() -> None:
        live = await note.using(key="k").aenqueue(0)
        async with caller(kind) as mine:
            assert (await mine.enqueue(note, 1, key="k")).id == live.id
            with pytest.raises(DuplicateJob) as refusal:
                await mine.enqueue(note, 1, key="k", on_conflict="raise")
            assert refusal.value.existing_id == live.id
            with pytest.raises(ConfigurationError, match="replace"):
                await mine.enqueue(note, 1, key="k", on_conflict="replace")
            assert (await mine.enqueue(note, 2)).created
            await mine.commit()
        assert (await app.awork(drain=True)).succeeded == 2

    run(scene())


# ---------------------------------------------------------------------- the same key in two places at once


@pytest.mark.parametrize("commits", [True, False])
def test_a_plain_enqueue_of_the_same_key_waits_and_answers_right(
    app: Holdfast, note: Task[[int], int], caller: Open, commits: bool
) -> None:
    async def scene() -> None:
        async with caller("psycopg async") as mine:
            joined = await mine.enqueue(note, 1, key="k", group="g")
            rival = asyncio.create_task(note.using(key="k", group="g").aenqueue(2))
            # It holds nothing while it waits: others of its group and key stripe come and go.
            for number in range(20):
                await note.using(group="g").aenqueue(number)
            assert (await app.awork(drain=True)).succeeded == 20
            assert not rival.done()
            await (mine.commit() if commits else mine.rollback())
            answer = await rival
        assert (answer.id == joined.id, answer.created) == ((True, False) if commits else (False, True))

    run(scene())


def test_a_plain_enqueue_gives_up_in_time_when_the_other_never_ends(
    app: Holdfast, note: Task[[int], int], caller: Open
) -> None:
    async def scene() -> None:
        async with caller("psycopg async") as mine:
            await mine.enqueue(note, 1, key="k")
            with pytest.raises(BackendUnavailable, match="another session"):
                await note.using(key="k").aenqueue(2)

    run(scene())


def test_of_two_open_transactions_with_one_key_the_second_is_told_in_time_and_goes_on(
    app: Holdfast, note: Task[[int], int], caller: Open
) -> None:
    async def scene() -> None:
        async with caller("psycopg async") as first, caller("sqlalchemy async session") as second:
            await first.enqueue(note, 1, key="k")
            await second.enqueue(note, 5)
            with pytest.raises(BackendUnavailable, match="same id or key"):
                await second.enqueue(note, 2, key="k")
            await first.commit()
            assert not (await second.enqueue(note, 2, key="k")).created
            await second.commit()
        assert (await app.awork(drain=True)).succeeded == 2

    run(scene())


def test_a_revival_whose_key_is_on_its_way_elsewhere_stalls_no_claim(
    app: Holdfast, note: Task[[int], int], caller: Open
) -> None:
    async def scene() -> None:
        using = note.using(key="k", revive=Revival(after=0.0))
        dead = await using.aenqueue(1)
        await app.abury(dead.id, reason="test")
        async with caller("psycopg async") as mine:
            joined = await mine.enqueue(note, 2, key="k")
            await note.aenqueue(3)
            assert (await app.awork(drain=True)).succeeded == 1  # each of its claims met the letter that is due
            with pytest.raises(BackendUnavailable):
                await app.dead.arevive(dead.id)
            await mine.commit()
        with pytest.raises(StateConflict) as refusal:
            await app.dead.arevive(dead.id)
        assert refusal.value.live_id == joined.id
        assert not (await app.aaudit()).violations

    run(scene())


# ---------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_twin_is_named(app: Holdfast, note: Task[[int], int], caller: Open, kind: str) -> None:
    async def scene() -> None:
        async with caller(kind) as mine:
            using = note.using(connection=mine.connection)
            if mine.is_async:
                with pytest.raises(ConfigurationError, match=r"aenqueue\(\)"):
                    using.enqueue(1)
            else:
                with pytest.raises(ConfigurationError, match=r"Use enqueue\(\)"):
                    await using.aenqueue(1)
        assert await app.acounts() == {}

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_in_autocommit_mode_has_no_transaction_to_join(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if "sqlalchemy" in kind else {"autocommit": True}

    async def scene() -> None:
        async with caller(kind, **options) as mine:
            with pytest.raises(ConfigurationError, match="autocommit"):
                await mine.enqueue(note, 1)
        assert await app.acounts() == {}

    run(scene())


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"])
def test_a_transaction_block_on_an_autocommit_connection_is_joined(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str
) -> None:
    async def scene() -> None:
        async with caller(kind, autocommit=True) as mine:
            if mine.is_async:
                async with mine.connection.transaction():
                    await mine.enqueue(note, 1)
            else:
                with mine.connection.transaction():
                    await mine.enqueue(note, 1)
        assert (await app.awork(drain=True)).succeeded == 1

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_another_database_is_refused(
    app: Holdfast, note: Task[[int], int], caller: Open, kind: str, server: Server, schema: str
) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {schema}_other")

    async def scene() -> None:
        await app.aopen()
        async with caller(kind, f"{schema}_other") as mine:
            with pytest.raises(ConfigurationError, match="no store of this version"):
                await mine.enqueue(note, 1)
        async with Holdfast(server.url(schema).replace("@/postgres", f"@/{schema}_other")) as other:
            await other.aopen()  # a store of the same name, and yet another one
            async with caller(kind, f"{schema}_other") as mine:
                with pytest.raises(ConfigurationError, match="different database"):
                    await mine.enqueue(note, 1)
                await mine.commit()
            assert await other.acounts() == {}
        assert await app.acounts() == {}

    try:
        run(scene())
    finally:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {schema}_other WITH (FORCE)")


def test_other_stores_and_other_things_say_what_to_do(app: Holdfast, note: Task[[int], int], caller: Open) -> None:
    async def scene() -> None:
        with pytest.raises(ConfigurationError, match=r"psycopg\.Connection, or a SQLAlchemy"):
            note.using(connection=object()).enqueue(1)
        with pytest.raises(ConfigurationError, match=r"an asyncpg\.Connection"):
            await note.using(connection=object()).aenqueue(1)
        async with Holdfast("memory://") as memory, caller("psycopg") as mine:
            with pytest.raises(ConfigurationError, match="memory:// cannot join"):
                memory.enqueue(note.using(connection=mine.connection).bind(1))

    run(scene())


def test_an_asyncpg_connection_of_a_pool_is_taken_and_a_closed_one_refused(
    app: Holdfast, note: Task[[int], int], server: Server
) -> None:
    async def scene() -> None:
        address = f"postgresql://postgres@/postgres?host={quote(str(server.home), safe='')}"
        async with asyncpg.create_pool(address, min_size=1, max_size=1) as pool:
            async with pool.acquire() as connection, connection.transaction():
                with pytest.raises(RuntimeError):  # noqa: PT012 - a savepoint takes its job back
                    async with connection.transaction():
                        await note.using(connection=connection).aenqueue(1)
                        raise RuntimeError
                await note.using(connection=connection).aenqueue(2)
            async with pool.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                with pytest.raises(asyncpg.PostgresError):
                    await connection.execute("SELECT 1 / 0")
                with pytest.raises(BackendError, match="already failed"):
                    await note.using(connection=connection).aenqueue(3)
                await transaction.rollback()
        alone = await asyncpg.connect(address)
        await alone.close()
        with pytest.raises(ConfigurationError, match="is closed"):
            await note.using(connection=alone).aenqueue(4)
        assert (await app.awork(drain=True)).succeeded == 1

    run(scene())


def test_a_transaction_that_has_failed_already_is_told_so(
    app: Holdfast, note: Task[[int], int], session: psycopg.Connection
) -> None:
    app.open()
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.execute("SELECT 1 / 0")
    with pytest.raises(Exception, match="already failed"):
        app.enqueue(note.bind(1), connection=session)


def test_the_rights_the_docs_name_are_enough_and_needed(
    app: Holdfast, note: Task[[int], int], server: Server, schema: str
) -> None:
    app.open()
    role = f"{schema}_producer"
    as_role = server.conninfo.replace("postgres@", f"{role}@")
    with psycopg.connect(server.conninfo, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        try:
            with psycopg.connect(as_role) as mine, pytest.raises(ConfigurationError, match="Grant it USAGE"):
                app.enqueue(note.bind(1), connection=mine)
            owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            owner.execute(f"GRANT SELECT, INSERT ON {schema}.jobs, {schema}.ids TO {role}")
            owner.execute(f"GRANT SELECT ON {schema}.pauses, {schema}.bounds, {schema}.schema_version TO {role}")
            with psycopg.connect(as_role) as mine, pytest.raises(ConfigurationError, match="SELECT and UPDATE on seal"):
                app.enqueue(note.bind(1), connection=mine)
            owner.execute(f"GRANT SELECT, UPDATE ON {schema}.seal TO {role}")
            with psycopg.connect(as_role) as mine:
                assert app.enqueue(note.using(group="g", key="k").bind(1), connection=mine).created
                assert not app.enqueue(note.using(group="g", key="k").bind(1), connection=mine).created
        finally:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")
    assert app.work(drain=True).succeeded == 1
