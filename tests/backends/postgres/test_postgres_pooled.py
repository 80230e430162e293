"""Behind a pooler in transaction mode: everything works, and no state of ours stays in a borrowed session."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendUnavailable
from holdfast.records import ClaimRequest, NewJob, QueueRule, WorkerRecord

from ...servers.pgbouncer import Pooler
from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
ACCEPTS_OPTIONS = "ignore_startup_parameters = options"  # and forgets them: found out in another way


@pytest.fixture(params=["", ACCEPTS_OPTIONS], ids=["refuses options", "ignores options"])
def pooler(server: Server, request: pytest.FixtureRequest) -> Iterator[Pooler]:
    made = Pooler(server, request.param)
    yield made
    made.remove()


def test_ten_lines_of_code_run_behind_pgbouncer(pooler: Pooler, schema: str) -> None:
    with Holdfast(pooler.url(schema)) as app:

        @app.task(name="note", group=lambda n: f"g{n % 2}")
        def note(n: int) -> int:
            return n * 2

        jobs = [note.enqueue(n) for n in range(30)]
        with psycopg.connect(pooler.conninfo, prepare_threshold=None) as mine:
            note.using(connection=mine).enqueue(30)
        assert app.work(drain=True).succeeded == 31
        assert [job.result(timeout=5) for job in jobs] == [n * 2 for n in range(30)]
        assert not app.audit().violations


def test_several_backends_share_three_sessions_of_pgbouncer(pooler: Pooler, schema: str) -> None:
    async def work(number: int) -> int:
        backend = PostgresBackend(pooler.conninfo, schema=schema)
        await backend.open()
        await backend.register(WorkerRecord(id=f"w{number}"))
        taken = 0
        for call in range(1, 11):
            await backend.enqueue([NewJob(id=f"{number}-{call}-{n}", task="t") for n in range(5)])
            await backend.renew(f"w{number}", [], seen_call=0)
            request = ClaimRequest(worker=f"w{number}", call=call, queues=("default",), most=5)
            taken += len((await backend.claim(request)).leases)
        await backend.close()
        return taken

    async def run() -> int:
        taken = sum(await asyncio.gather(*(work(number) for number in range(6))))
        backend = PostgresBackend(pooler.conninfo, schema=schema)
        await backend.open()
        await backend.register(WorkerRecord(id="last"))
        # A claim comes back short where a rival took its jobs and its snapshot is too old to see the rival's own.
        rest = await backend.claim(ClaimRequest(worker="last", call=1, queues=("default",), most=300))
        await backend.close()
        return taken + len(rest.leases)

    assert asyncio.run(run()) == 6 * 10 * 5


_LEFT_BEHIND = """
SELECT 'prepared ' || name FROM pg_prepared_statements
UNION ALL SELECT 'listening to ' || channel FROM pg_listening_channels() channel
UNION ALL SELECT 'set ' || name FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction_%'
UNION ALL SELECT 'timeout ' || reset_val FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout')
          AND reset_val <> '0'
UNION ALL SELECT 'lock on ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'temporary ' || relname FROM pg_class WHERE relpersistence = 't'
"""


def test_nothing_of_ours_stays_in_a_lent_session(make: Make) -> None:
    async def left_behind(cursor: psycopg.AsyncCursor[tuple[str]]) -> list[str]:
        plain = await cursor.connection.execute(_LEFT_BEHIND)  # without what travels with our own statements
        return [row[0] for row in await plain.fetchall()]

    async def run(pooled: bool) -> list[str]:
        backend = make(pooled=pooled, connections=1)
        await backend.open()
        await backend.declare([QueueRule(name="default")])
        await backend.register(WorkerRecord(id="w"))
        for call in range(1, 11):
            await backend.enqueue([NewJob(id=f"{pooled}-{call}", task="t", group="g", key=str(call))])
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=5)
            await backend.claim(request)
            await backend.renew("w", [], seen_call=call)
        await backend.wait_for_work(["default"], 0.01)
        await backend.queues()
        await backend.dump()
        await backend.retire("w")
        sockets = [one.pgconn.backend_pid for one in backend._connections._idle]
        found: list[str] = await backend._connections.call("look", left_behind, writes=False)
        assert [one.pgconn.backend_pid for one in backend._connections._idle] == sockets  # it was the same session
        await backend.close()
        return found

    assert asyncio.run(run(True)) == []
    assert asyncio.run(run(False)) != []  # the look can see something


def test_a_lent_session_is_bounded_in_time_all_the_same(make: Make, session: psycopg.Connection) -> None:
    async def run() -> None:
        backend = make(pooled=True, call_timeout=0.5)
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        session.execute(f"LOCK TABLE {backend.schema}.jobs")
        with pytest.raises(BackendUnavailable, match="another session holds a lock"):
            await backend.cancel("a")
        session.rollback()
        assert (await backend.cancel("a")).state == "cancelled"
        await backend.close()

    asyncio.run(run())


# ---------------------------------------------------------------------- finding out


class Doorman:
    """Between a backend and the server, with a pooler's manners: it refuses `options`, or tells a pid of its own."""

    def __init__(self, server: Server, *, refuses: bool) -> None:
        self._socket, self._refuses = f"{server.home}/.s.PGSQL.5432", refuses

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [length] = struct.unpack("!I", await reader.readexactly(4))
        greeting = await reader.readexactly(length - 4)
        if self._refuses and b"\0options\0" in greeting:
            said = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            writer.write(b"E" + struct.pack("!I", len(said) + 4) + said)
        else:
            from_server, to_server = await asyncio.open_unix_connection(self._socket)
            to_server.write(struct.pack("!I", length) + greeting)
            await self._welcome(from_server, writer)
            ways = [asyncio.create_task(_pass(reader, to_server)), asyncio.create_task(_pass(from_server, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_server.close()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the server is ready; its process id is replaced: a pooler's greeting belongs to no server process."""
        kind = b""
        while kind != b"Z":
            head = await reader.readexactly(5)
            kind, [length] = head[:1], struct.unpack("!I", head[1:])
            body = await reader.readexactly(length - 4)
            writer.write(head + (struct.pack("!I", 1) + body[4:] if kind == b"K" else body))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(65536):
        writer.write(content)


@contextlib.asynccontextmanager
async def at_the_door(doorman: Doorman) -> AsyncIterator[str]:
    serving = await asyncio.start_server(doorman.serve, "127.0.0.1", 0)
    port = serving.sockets[0].getsockname()[1]
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
    serving.close()


@pytest.mark.parametrize("refuses", [True, False])
def test_a_pooler_is_noticed_at_the_first_connection(server: Server, schema: str, refuses: bool) -> None:
    async def run() -> None:
        async with at_the_door(Doorman(server, refuses=refuses)) as conninfo:
            backend = PostgresBackend(conninfo, schema=schema)
            await backend.open()
            assert backend._connections.pooled
            assert (await backend.enqueue([NewJob(id="a", task="t")]))[0].created
            await backend.close()
            if not refuses:
                trusting = PostgresBackend(conninfo, schema=schema, pooled=False)  # as for one in session mode
                await trusting.open()
                assert not trusting._connections.pooled
                await trusting.close()
        direct = PostgresBackend(server.conninfo, schema=schema)
        await direct.open()
        assert not direct._connections.pooled
        await direct.close()

    asyncio.run(run())
