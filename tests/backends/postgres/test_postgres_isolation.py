"""Our transactions are READ COMMITTED whatever the database's default is, and a commit that fails is no success."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.prepared_calls import PREPARE_AFTER
from holdfast.errors import BackendError
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, NewJob, Pause, QueueRule, Seal, WorkerRecord

from ...servers.pgbouncer import Pooler
from ...servers.postgres import Server
from ...servers.relay import Relay

OFTEN = PREPARE_AFTER + 3  # the first by a cursor, one prepares, the last are prepared
LEVELS = ["serializable", "repeatable read"]
_numbers = count(1)
# Who writes a row of any of our tables leaves word of its isolation.
_SPY = """
CREATE TABLE public.levels (level text, what text);
CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.levels VALUES (current_setting('transaction_isolation'), TG_OP || ' ' || TG_TABLE_NAME);
    RETURN NULL;
END $$;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' LOOP
        EXECUTE format('CREATE TRIGGER spy AFTER INSERT OR UPDATE OR DELETE ON holdfast.%I '
                       'EXECUTE FUNCTION public.spy()', name);
    END LOOP;
END $$
"""
_FAILING_COMMITS = """
CREATE FUNCTION holdfast.fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the commit failed';
END $$;
CREATE CONSTRAINT TRIGGER fails AFTER INSERT OR UPDATE ON holdfast.jobs DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.queue = 'doomed') EXECUTE FUNCTION holdfast.fail()
"""


@pytest.fixture(params=LEVELS)
def conninfo(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own with another default, for everybody who says nothing."""
    yield from database(server, request.param)


@pytest.fixture
def plain(server: Server) -> Iterator[str]:
    yield from database(server, "read committed")


def database(server: Server, level: str) -> Iterator[str]:
    name = f"isolation_{next(_numbers)}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        given = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        connection.execute(given.format(sql.Identifier(name), level))
        yield server.conninfo.replace("/postgres?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def many_verbs(backend: PostgresBackend) -> None:
    await backend.declare([QueueRule(name="default", limit=10)])
    await backend.register(WorkerRecord(id="w"))
    done: list[Settlement] = []
    for call in range(1, OFTEN + 1):
        await backend.enqueue([NewJob(id=f"single-{call}", task="t")])
        await backend.enqueue([NewJob(id=f"a{call}-{n}", task="t", group="g", key=f"{call}-{n}") for n in range(3)])
        await asyncio.to_thread(backend.enqueue_here, [NewJob(id=f"here-{call}", task="t")])
        request = ClaimRequest(worker="w", call=call, queues=("default",), most=5)
        got = await backend.exchange(done, [], request)
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases]
        await backend.renew("w", [], seen_call=call)
    await backend.pause(Pause(queue="default"))
    await backend.resume(Pause(queue="default"))
    await backend.cancel("a1-2")
    closed = Seal(role="source", stage="moving", move="m", other="elsewhere")
    assert await backend.seal(closed, instead_of=None)
    assert await backend.seal(None, instead_of=closed)
    await backend.retire("w")


async def levels(backend: PostgresBackend, conninfo: str) -> set[str]:
    """The isolation of whatever a backend does that is open."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_SPY)
        await many_verbs(backend)
        seen = {row[0] for row in connection.execute("SELECT level FROM public.levels")}

    async def read(cursor: psycopg.AsyncCursor[Any]) -> str:
        await cursor.execute("SELECT current_setting('transaction_isolation')")
        row: Any = await cursor.fetchone()
        return str(row[0])

    seen.add(await backend._connections.call("look", read, writes=False))
    assert len((await backend.dump()).tables["jobs"]) == OFTEN * (4 if backend._connections.pooled else 5)
    assert await backend.groups()
    assert await backend.queues()
    return seen


@pytest.mark.parametrize("pooled", [None, False, True], ids=["found out", "not pooled", "pooled"])
def test_whatever_the_database_says_our_transactions_are_read_committed(conninfo: str, pooled: bool | None) -> None:
    async def run() -> set[str]:
        backend = PostgresBackend(conninfo, pooled=pooled)
        await backend.open()
        try:
            return await levels(backend, conninfo)
        finally:
            await backend.close()

    assert asyncio.run(run()) == {"read committed"}


def test_what_the_url_says_of_isolation_does_not_hold_for_us(plain: str) -> None:
    async def run() -> set[str]:
        stricter = f"{plain}&options=-c%20default_transaction_isolation%3Dserializable"
        backend = PostgresBackend(stricter)
        await backend.open()
        assert not backend._connections.pooled
        try:
            return await levels(backend, plain)
        finally:
            await backend.close()

    assert asyncio.run(run()) == {"read committed"}


@pytest.mark.parametrize("pooled", [None, True], ids=["found out", "pooled"])
def test_eight_may_set_up_a_store_at_once_whatever_the_default(conninfo: str, pooled: bool | None) -> None:
    """The second looks for the store after the first has committed it, in the transaction that waited."""

    async def run() -> None:
        backends = [PostgresBackend(conninfo, pooled=pooled) for _ in range(8)]
        await asyncio.gather(*(one.open() for one in backends))
        for one in backends:
            await one.close()

    asyncio.run(run())


def test_behind_pgbouncer_our_transactions_are_read_committed(server: Server, conninfo: str) -> None:
    pooler = Pooler(server, "ignore_startup_parameters = options")
    try:
        name = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]

        async def run() -> set[str]:
            backend = PostgresBackend(pooler.conninfo.replace("/postgres?", f"/{name}?"))
            await backend.open()
            assert backend._connections.pooled
            try:
                return await levels(backend, conninfo)
            finally:
                await backend.close()

        assert asyncio.run(run()) == {"read committed"}
    finally:
        pooler.remove()


@pytest.mark.parametrize("pooled", [None, False], ids=["found out", "not pooled"])
def test_who_swallows_our_settings_does_not_change_the_isolation(
    server: Server, conninfo: str, pooled: bool | None
) -> None:
    async def run() -> set[str]:
        backend = PostgresBackend(relay.conninfo(name), pooled=pooled)
        await backend.open()
        assert backend._connections.pooled is (pooled is None)  # such a session is taken for a lent one
        try:
            return await levels(backend, conninfo)
        finally:
            await backend.close()

    name = str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])
    with Relay(server, swallows=(b"options",)) as relay:
        assert asyncio.run(run()) == {"read committed"}


# ---------------------------------------------------------------------- a commit that fails


class Doomed:
    """A store whose commits fail for jobs of one queue, and every way of reaching it."""

    def __init__(self, conninfo: str, pooled: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.backend = PostgresBackend(conninfo, pooled=pooled, connections=1)
        self.run(self.backend.open())
        self.run(self.backend.enqueue([NewJob(id="first", task="t", queue="other")]))
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(_FAILING_COMMITS)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def end(self) -> None:
        self.run(self.backend.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def one(id: str) -> list[NewJob]:
    return [NewJob(id=id, task="t", queue="doomed")]


WAYS: dict[str, Callable[[Doomed, str], Any]] = {
    "single": lambda doomed, name: doomed.run(doomed.backend.enqueue(one(name))),
    "several": lambda doomed, name: doomed.run(doomed.backend.enqueue([*one(name), *one(f"{name} too")])),
    "direct": lambda doomed, name: doomed.backend.enqueue_here(one(name)),
    "statement": lambda doomed, name: doomed.run(doomed.backend.cancel("there")),
}


@pytest.mark.parametrize("pooled", [False, True], ids=["not pooled", "pooled"])
@pytest.mark.parametrize("way", WAYS)
def test_a_commit_that_fails_after_the_row_was_returned_is_no_success(plain: str, way: str, pooled: bool) -> None:
    if pooled and way == "direct":
        pytest.skip("there is no such way behind a pooler")
    doomed = Doomed(plain, pooled)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER fails")
        doomed.run(doomed.backend.enqueue(one("there")))
        connection.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER fails")
    try:
        for number in range(OFTEN):
            with pytest.raises(BackendError, match="the commit failed"):
                WAYS[way](doomed, f"job-{number}")
        stored = {row["id"] for row in doomed.run(doomed.backend.dump()).tables["jobs"]}
        assert stored == {"first", "there"}
    finally:
        doomed.end()


@pytest.mark.parametrize("pooled", [False, True], ids=["not pooled", "pooled"])
def test_a_claim_whose_commit_fails_hands_out_no_lease(plain: str, pooled: bool) -> None:
    doomed = Doomed(plain, pooled)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER fails")
        doomed.run(doomed.backend.enqueue(one("there")))
        connection.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER fails")
    try:
        doomed.run(doomed.backend.register(WorkerRecord(id="w")))
        request = ClaimRequest(worker="w", call=1, queues=("doomed",), most=5)
        for _ in range(OFTEN):
            with pytest.raises(BackendError, match="the commit failed"):
                doomed.run(doomed.backend.claim(request))
        record = doomed.run(doomed.backend.get("there"))
        assert (record.state, record.attempts) == ("ready", 0)
    finally:
        doomed.end()
