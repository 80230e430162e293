"""Stores to measure on: a file, or servers that this run starts, durable, and removes at the end.

Opened by the runner once per scenario; every contender gets an empty area of its own for every turn. The servers are
those of the tests, from wheels. All contenders reach Redis over loopback TCP and PostgreSQL over its Unix socket.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.backends.redis.scripts import write_record

from .processes import processor_seconds

if TYPE_CHECKING:
    from tests.servers import valkey

STORES = ("sqlite", "postgres", "redis", "cluster")


class Reading(NamedTuple):
    """Counters of the store at one moment; the difference of two is what a run cost it."""

    server_seconds: float = 0.0  # on a processor
    calls: float = 0.0  # writing transactions; on Redis reads from a socket, which are round trips
    bytes: float = 0.0  # of WAL or AOF


class Area(Protocol):
    """Where one contender works during one turn: nothing of any other contender is left in it."""

    @property
    def ours(self) -> str:
        """The URL as Holdfast takes it."""
        ...

    @property
    def theirs(self) -> str:
        """The URL as a peer or the floor takes it."""
        ...

    def read(self) -> Reading: ...

    def analyse(self) -> None:
        """Let the store gather statistics of what is in it, if it would do so by itself."""


class Place(Protocol):
    version: str  # of the store, with the settings that matter
    pid: int  # of its server; 0 if it has none or several

    def area(self, name: str = "bench") -> contextlib.AbstractContextManager[Area]:
        """An empty area. Several may be open at once under different names, only for Holdfast."""
        ...


class NoStatistics:
    """A store that gathers none."""

    def analyse(self) -> None:
        pass


class SqliteArea(NoStatistics):
    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.db"
        self.ours = f"sqlite:///{self._file}"
        self.theirs = str(self._file)

    def read(self) -> Reading:
        """Writing transactions: a count in the header of the WAL index, which exists while the file is open."""
        try:
            count = int.from_bytes(Path(f"{self._file}-shm").read_bytes()[8:12], "little")
        except FileNotFoundError:
            count = 0
        return Reading(calls=count)


class SqlitePlace:
    version = f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL"
    pid = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def area(self, name: str = "bench") -> Iterator[SqliteArea]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            area = SqliteArea(Path(folder))
            yield area


class PostgresArea:
    def __init__(self, url: str, conninfo: str, pid: int) -> None:
        import psycopg

        self.ours, self.theirs, self._pid = url, conninfo, pid
        self._connection = psycopg.connect(conninfo, autocommit=True)

    def read(self) -> Reading:
        # Transaction ids are exact, whereas the statistics of a busy session lag behind; only writers get one.
        words = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8, pg_current_wal_lsn() - '0/0'"
        row = self._connection.execute(words).fetchone()
        assert row is not None
        return Reading(processor_seconds(self._pid), float(row[0]), float(row[1]))

    def analyse(self) -> None:
        self._connection.execute("ANALYZE")

    def close(self) -> None:
        self._connection.close()


class PostgresPlace:
    """Each area is a database of its own, so a peer that drops schemas does no harm."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        import psycopg
        from tests.servers.postgres import Server

        self._server = Server(durable=True, more=["-c", "shared_buffers=256MB", *more]).start()
        self.pid = self._server.pid
        with psycopg.connect(self._server.conninfo) as connection:
            number = connection.info.server_version // 10_000
        self.version = f"PostgreSQL {number}, fsync and synchronous_commit on, shared_buffers 256 MB"

    @contextlib.contextmanager
    def area(self, name: str = "bench") -> Iterator[PostgresArea]:
        import psycopg

        self._tell(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"')
        url, conninfo = (
            text.replace("/postgres?", f"/{name}?", 1) for text in (self._server.url(), self._server.conninfo)
        )
        area = PostgresArea(url, conninfo, self.pid)
        try:
            yield area
        finally:
            area.close()
            with contextlib.suppress(psycopg.Error):
                self._tell(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _tell(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(self._server.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def close(self) -> None:
        self._server.remove()


def _server_version(server: valkey.Server) -> str:
    with server.client() as client:
        facts = client.info("everything")
    name = "Valkey" if "valkey_version" in facts else "Redis"
    number = facts.get("valkey_version", facts["redis_version"])
    return f"{name} {number}, appendonly, appendfsync everysec, {facts['mem_allocator']}"


class RedisArea(NoStatistics):
    def __init__(self, ours: str, theirs: str, servers: Sequence[valkey.Server]) -> None:
        self.ours, self.theirs, self._servers = ours, theirs, servers

    def read(self) -> Reading:
        total = Reading()
        for server in self._servers:
            with server.client() as client:
                facts = client.info("everything")
            seconds = processor_seconds(server.pid)
            found = Reading(seconds, facts["total_reads_processed"], facts["aof_current_size"])
            total = Reading(*(mine + more for mine, more in zip(total, found, strict=True)))
        return total


class RedisPlace:
    """Each area is the whole server, emptied; further areas under other names are other prefixes."""

    def __init__(self) -> None:
        from tests.servers.valkey import Server

        self._server = Server(tcp=True, on_disk=True, auto_aof_rewrite_percentage="0").start()
        self.version, self.pid = _server_version(self._server), self._server.pid

    @contextlib.contextmanager
    def area(self, name: str = "bench") -> Iterator[RedisArea]:
        with self._server.client() as client:
            if name == "bench":
                client.flushall()
        address = f"redis://127.0.0.1:{self._server.port}"
        yield RedisArea(f"{address}/0?prefix={name}", f"{address}/0", [self._server])

    def close(self) -> None:
        self._server.remove()


class ClusterPlace:
    """Three primaries on this machine."""

    pid = 0

    def __init__(self) -> None:
        from tests.servers.valkey_cluster import Cluster

        self._cluster = Cluster(on_disk=True, auto_aof_rewrite_percentage="0").start()
        self.version = f"three nodes of {_server_version(self._cluster.primaries[0])}"

    @contextlib.contextmanager
    def area(self, name: str = "bench") -> Iterator[RedisArea]:
        nodes = self._cluster.primaries
        for node in nodes:
            with node.client() as client:
                client.flushall()
        bare = ",".join(f"redis://127.0.0.1:{node.port}" for node in nodes)
        yield RedisArea(self._cluster.url(name), bare, nodes)

    def close(self) -> None:
        for node in self._cluster.nodes:
            node.remove()


@contextlib.contextmanager
def opened(store: str, *, fresh: bool = False) -> Iterator[Place]:
    """A store of this kind. `fresh`: nothing in it is ever analysed, so it has no statistics."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            yield SqlitePlace(Path(folder))
        return
    place: PostgresPlace | RedisPlace | ClusterPlace
    if store == "postgres":
        place = PostgresPlace(["-c", "autovacuum=off"] if fresh else ())
    else:
        write_record()  # of the scripts as they are now: an installed package has one
        place = RedisPlace() if store == "redis" else ClusterPlace()
    try:
        yield place
    finally:
        place.close()
