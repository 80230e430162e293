"""An asynchronous standby is promoted after its link was cut: what is lost is what the docs say; nothing overlaps."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, Exchanged, Held, Lease, NewJob, WorkerRecord

from ...servers.postgres import Server

pytestmark = pytest.mark.chaos
PATIENCE = 60.0
SOCKET = ".s.PGSQL.5432"


class Link:
    """The wire between primary and standby, which can be cut for good."""

    def __init__(self, primary: Server) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="holdfast-link-"))
        self.home.chmod(0o777)
        self._target = str(primary.home / SOCKET)
        self._ends: list[socket.socket] = []
        self._guard = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.home / SOCKET))
        (self.home / SOCKET).chmod(0o777)
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._target)
            except OSError:
                near.close()
                continue
            with self._guard:
                self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        self._listening.close()
        (self.home / SOCKET).unlink(missing_ok=True)
        with self._guard:
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := one.recv(65536):
            other.sendall(content)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


class Pair:
    """A primary and its asynchronous standby."""

    def __init__(self) -> None:
        self.primary = Server(durable=True).start()
        self._link = Link(self.primary)
        self.standby = Server(durable=True, copy_of=self._link.home).start()

    @property
    def conninfo(self) -> str:
        hosts = quote(f"{self.primary.home},{self.standby.home}", safe="")
        return f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"

    def caught_up(self) -> None:
        """Wait until the standby has all there is."""
        text = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        with psycopg.connect(self.primary.conninfo, autocommit=True) as connection:
            for _ in range(100_000):
                row = connection.execute(text).fetchone()
                if row == (1,):
                    return
        raise AssertionError("the standby did not catch up")

    def cut(self) -> None:
        self._link.cut()

    def fail_over(self) -> None:
        self.primary.end(signal.SIGKILL)
        with psycopg.connect(self.standby.conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def remove(self) -> None:
        self._link.cut()
        self.standby.remove()
        self.primary.remove()
        self._link.home.rmdir()


@pytest.fixture
def pair(server: Server) -> Iterator[Pair]:
    made = Pair()
    yield made
    made.remove()


async def a_moment() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)


class Claims:
    """A worker's claims, numbered, repeated until they are answered."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend, self.call = backend, 0

    async def next(self, *done: Settlement) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker="w", call=self.call, queues=("default",), most=1)
        while True:
            try:
                return await self.backend.exchange(done, [], request)
            except (OutcomeUnknown, BackendError):
                await a_moment()


def test_what_the_standby_did_not_get_is_lost_and_nothing_is_given_out_before_all_know(pair: Pair) -> None:
    async def run() -> None:
        backend = PostgresBackend(pair.conninfo, call_timeout=2.0)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=20.0))
        claims = Claims(backend)
        await backend.enqueue([NewJob(id="a", task="t", priority=2), NewJob(id="b", task="t", priority=1)])
        [a] = (await claims.next()).leases
        pair.caught_up()
        pair.cut()
        [b] = (await claims.next(Settlement(id="a", token=a.token, ending=Ending.SUCCEEDED))).leases
        assert (a.id, b.id) == ("a", "b")
        assert (await backend.enqueue([NewJob(id="lost", task="t")]))[0].created
        pair.fail_over()

        answer = await claims.next()
        assert answer.known and not answer.leases and 0 < answer.quiet_seconds <= 30.0
        assert await backend.get("lost") is None  # acknowledged, and lost with the primary
        assert await backend.recover(dead=["w"]) == []
        renewal = await backend.renew("w", [Held("b", b.token)], seen_call=claims.call)
        assert renewal.lost == ("b",)  # so its handler is stopped before anyone may start it again
        assert renewal.released == ("a",)  # its outcome is lost: it runs again, and no retry was spent
        assert await backend.settle([Settlement(id="b", token=b.token, ending=Ending.SUCCEEDED)]) == [Answer.LOST]

        # A long lease of earlier times would keep it quiet for as long; here the test need not wait for 30 s.
        with psycopg.connect(pair.standby.conninfo, autocommit=True) as connection:
            connection.execute("UPDATE holdfast.incarnation SET quiet_until = quiet_until - 28")
        again: list[Lease] = []
        while len(again) < 2:
            again += (await claims.next()).leases
            await a_moment()
        assert [lease.id for lease in again] == ["a", "b"]
        assert min(lease.fence for lease in again) > max(a.fence, b.fence)
        assert [lease.attempt for lease in again] == [1, 1]
        await backend.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_worker_lives_through_a_failover_and_its_two_runs_do_not_overlap(pair: Pair) -> None:
    steps: list[int] = []

    with Holdfast(f"{pair.conninfo}&call_timeout=1") as app:

        @app.task(name="stay", group="g")
        async def stay() -> str:
            steps.append(+1)
            try:
                if steps.count(+1) == 1:
                    await asyncio.Event().wait()  # until it is stopped: its claim was lost with the primary
                return "done"
            finally:
                steps.append(-1)

        async def result(id: str) -> str:
            while True:
                try:
                    return str(await (await app.ajob(id)).aresult(timeout=PATIENCE))
                except (OutcomeUnknown, BackendError):
                    await a_moment()

        async def run() -> None:
            held = await stay.aenqueue()
            with psycopg.connect(pair.primary.conninfo, autocommit=True) as connection:
                connection.execute("UPDATE holdfast.incarnation SET lease_max = 3")  # as if no worker had ever had more
            pair.caught_up()
            pair.cut()
            async with app.worker(slots=2, lease=3.0):  # its registration and its claim never reach the standby
                while not steps:
                    await a_moment()
                await asyncio.to_thread(pair.fail_over)
                assert await result(held.id) == "done"
            await held.arefresh()
            assert (held.attempts, held.stalls, held.failures) == (1, 0, 0)

        asyncio.run(asyncio.wait_for(run(), PATIENCE))
        assert steps == [+1, -1, +1, -1]
        assert not app.audit().violations
