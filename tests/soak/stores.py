"""The stores of a soak: real servers behind faulty proxies, and what can befall each of them.

Each has a URL for workers and producers, faults of its own, and `outages`: when nobody could have started a job.
A switch of servers is orderly (the old one hands over everything it acknowledged), so nothing acknowledged may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis

from tests.servers import postgres, valkey
from tests.servers.valkey_cluster import Cluster
from tests.soak.proxy import FaultyProxy
from tests.soak.verdict import Window

POSTGRES_SOCKET = ".s.PGSQL.5432"
STREAM_SECONDS_MAX = 120.0
SWITCH_MILLIS = 20_000
QUIET_SECONDS = 30.0  # after a change of servers, the longest lease a store reckons with


class Store:
    """What the soak needs of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outages: list[Window] = []
        self.proxies: list[FaultyProxy] = []

    @property
    def url(self) -> str:
        raise NotImplementedError

    def faults(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def is_held_by(self, pids: Sequence[int]) -> bool:
        """Whether nobody can write while these processes are stopped."""
        return False

    def calm(self) -> None:
        for proxy in self.proxies:
            proxy.calm()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()

    @contextlib.contextmanager
    def outage(self, quiet_seconds: float = 0.0) -> Iterator[None]:
        """What happens within is an outage; after it the store may hand out nothing for some seconds, by design."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.outages.append((start, time.monotonic() + quiet_seconds))

    def _bad_line(self) -> None:
        """For some seconds replies are cut off and held back."""
        for proxy in self.proxies:
            proxy.cut_rate, proxy.hold_rate = random.choice([(0.02, 0.0), (0.0, 0.1), (0.01, 0.05), (0.2, 0.2)])
        time.sleep(random.uniform(2.0, 10.0))
        self.calm()


class SqliteStore(Store):
    """One file; another process takes its write lock now and then."""

    @property
    def url(self) -> str:
        return f"sqlite:////{str(self.folder / 'jobs.db').lstrip('/')}"

    def faults(self) -> list[Callable[[], None]]:
        return [self._locked]

    def is_held_by(self, pids: Sequence[int]) -> bool:
        """A process that is stopped in the middle of a transaction keeps the write lock; only its end or going on
        releases it (docs/how-to/deploy.md says so). The kernel tells who has it: WAL_WRITE_LOCK is byte 120 of the
        shared index.
        """
        index = str((self.folder / "jobs.db-shm").stat().st_ino)
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        locks = [fields for fields in lines if len(fields) == 8 and "EOF" not in fields]  # longer ones wait
        return any(
            int(pid) in pids and file.endswith(f":{index}") and mode == "WRITE" and int(first) <= 120 <= int(last)
            for _, _, _, mode, pid, file, first, last in locks
        )

    def _locked(self) -> None:
        other = sqlite3.connect(self.folder / "jobs.db", timeout=10.0, isolation_level=None)
        with contextlib.closing(other), contextlib.suppress(sqlite3.OperationalError), self.outage():
            other.execute("BEGIN IMMEDIATE")
            time.sleep(random.uniform(0.2, 4.0))
            other.execute("ROLLBACK")


class PostgresStore(Store):
    """A primary whose standby takes over now and then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._place = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
        self._place.chmod(0o755)
        self._servers = [postgres.Server(durable=True).start()]
        path = str(self._place / POSTGRES_SOCKET)
        self.proxies = [FaultyProxy(self._connect, path=path)]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self._servers[-1].home / POSTGRES_SOCKET))

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self._place), safe='')}&schema=soak"

    def faults(self) -> list[Callable[[], None]]:
        return [self._bad_line, self._bad_line, self._crash, self._freeze, self._switch]

    def _crash(self) -> None:
        with self.outage():
            self._servers[-1].end(signal.SIGKILL)
            self._servers[-1].start()

    def _freeze(self) -> None:
        with self.outage():
            self._servers[-1].signal_all(signal.SIGSTOP)
            time.sleep(random.uniform(0.5, 4.0))
            self._servers[-1].signal_all(signal.SIGCONT)

    def _switch(self) -> None:
        """The primary ends in an orderly way, which sends all it has to a standby that listens; that one takes over."""
        old = self._servers[-1]
        new = postgres.Server(durable=True, copy_of=old.home).start()
        self._wait_for_stream(old)
        with self.outage(QUIET_SECONDS):
            old.end()
            with psycopg.connect(new.conninfo, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            self._servers.append(new)
        old.remove()

    def _wait_for_stream(self, primary: postgres.Server) -> None:
        """A standby that accepts queries need not be connected to its primary yet: it would miss the last writes."""
        deadline = time.monotonic() + STREAM_SECONDS_MAX
        with psycopg.connect(primary.conninfo, autocommit=True) as connection:
            while connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no standby streams from {primary.home}")
                time.sleep(0.1)

    def close(self) -> None:
        super().close()
        self._servers[-1].remove()
        shutil.rmtree(self._place, ignore_errors=True)


class RedisStore(Store):
    """Two servers that change places now and then; the one that steps down stays up and refuses writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = {"appendfsync": "always", "repl_diskless_sync_delay": "0"}
        self._servers = [valkey.Server(tcp=True, **settings).start() for _ in range(2)]
        self._follow()
        self._path = str(self._servers[0].home / "proxy.sock")
        self.proxies = [FaultyProxy(self._connect, path=self._path)]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._servers[0].socket)

    def _follow(self) -> None:
        with self._servers[1].client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self._servers[0].port)

    @property
    def url(self) -> str:
        return f"redis+unix://{quote(self._path)}?prefix=soak&trust_restarts=true"

    def faults(self) -> list[Callable[[], None]]:
        return [self._bad_line, self._bad_line, self._crash, self._freeze, self._switch]

    def _crash(self) -> None:
        with self.outage():
            self._servers[0].end()
            self._servers[0].start()

    def _freeze(self) -> None:
        with self.outage():
            self._servers[0].send(signal.SIGSTOP)
            time.sleep(random.uniform(0.5, 4.0))
            self._servers[0].send(signal.SIGCONT)

    def _switch(self) -> None:
        """The primary waits for its replica and hands over. If the replica does not catch up in time it stays primary:
        whoever took the replica for one would lose what it lacks.
        """
        with self.outage(QUIET_SECONDS), contextlib.suppress(redis.exceptions.RedisError):
            with self._servers[0].client() as client:
                client.execute_command("FAILOVER", "TO", "127.0.0.1", self._servers[1].port, "TIMEOUT", SWITCH_MILLIS)
                self._until(lambda: client.info("replication")["master_failover_state"] == "no-failover")
                handed_over = client.info("replication")["role"] == "slave"
            if handed_over:
                self._servers.reverse()

    @staticmethod
    def _until(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30.0
        while not true() and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self) -> None:
        super().close()
        for server in self._servers:
            server.remove()


class ClusterStore(Store):
    """Three primaries with a replica each; every node announces a faulty proxy as its own port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = Cluster(replicas=1, appendfsync="always", cluster_node_timeout="5000")
        for node in self._cluster.nodes:
            port = valkey.free_port()
            node._settings |= {"cluster_announce_port": str(port), "cluster_announce_bus_port": str(node.port + 10000)}
            self.proxies.append(FaultyProxy(_to_port(node.port), port=port))
        self._ports = [int(node._settings["cluster_announce_port"]) for node in self._cluster.primaries]
        self._cluster.start()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+cluster://{hosts}/?prefix=soak&trust_restarts=true"

    def faults(self) -> list[Callable[[], None]]:
        return [self._bad_line, self._bad_line, self._freeze, self._switch]

    def _freeze(self) -> None:
        node = random.choice(self._cluster.primaries)
        with self.outage():
            node.send(signal.SIGSTOP)
            time.sleep(random.uniform(0.5, 3.0))
            node.send(signal.SIGCONT)

    def _switch(self) -> None:
        node = random.choice(self._cluster.replicas)
        with self.outage(QUIET_SECONDS), contextlib.suppress(redis.exceptions.RedisError):
            self._cluster.tell(node, "CLUSTER", "FAILOVER")
            time.sleep(1.0)

    def close(self) -> None:
        super().close()
        self._cluster.remove()


def _to_port(port: int) -> Any:
    return lambda: asyncio.open_connection("127.0.0.1", port)


STORES: dict[str, type[Store]] = {
    "sqlite": SqliteStore,
    "postgres": PostgresStore,
    "redis": RedisStore,
    "cluster": ClusterStore,
}
