"""Where a store can be measured: a server of our own, or a file, and the figures it reports about itself.

Used by measuring.py and workers.py. Each place starts and ends its own servers and touches no others.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import psycopg
import redis
from tests.servers.postgres import Server as PostgresServer
from tests.servers.valkey import Server as ValkeyServer
from tests.servers.valkey_cluster import Cluster

from .watching import thread_seconds, tree_seconds

STORES = ("postgres", "redis", "cluster", "sqlite")


class Place(ABC):
    """One server, cluster or folder. `fresh` creates an empty store there and returns its URL."""

    def __init__(self) -> None:
        self.number = 0

    def fresh(self) -> str:
        self.number += 1
        return self._url(f"s{self.number}")

    @abstractmethod
    def _url(self, name: str) -> str: ...

    @abstractmethod
    def seconds(self) -> float:
        """Processor seconds that the store has used."""

    @abstractmethod
    def written(self) -> int:
        """Bytes written so that a crash loses nothing: WAL, append-only file."""

    @abstractmethod
    def kept(self) -> int:
        """Bytes that the jobs of the store of `fresh` occupy: on disk, on Redis in memory."""

    def calls(self) -> int:
        """Calls served so far; 0 if they are not counted."""
        return 0

    def facts(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def remove(self) -> None: ...


class PostgresPlace(Place):
    """PostgreSQL with its defaults: a commit waits for the disk, autovacuum is on."""

    def __init__(self) -> None:
        super().__init__()
        self.server = PostgresServer(durable=True).start()
        self.connection = psycopg.connect(self.server.conninfo, autocommit=True)

    def _url(self, name: str) -> str:
        return str(self.server.url(name, call_timeout="60"))

    def _number(self, question: str) -> int:
        row = self.connection.execute(question).fetchone()
        assert row is not None
        return int(row[0])

    def seconds(self) -> float:
        assert self.server._process is not None
        return tree_seconds(self.server._process.pid)

    def written(self) -> int:
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")

    def kept(self) -> int:
        return self._number(f"SELECT pg_total_relation_size('s{self.number}.jobs')")

    def index_bytes(self) -> int:
        return self._number(f"SELECT pg_indexes_size('s{self.number}.jobs')")

    def claim_index_bytes(self) -> int:
        return self._number(f"SELECT pg_relation_size('s{self.number}.jobs_ready')")

    def vacuum(self, how: str = "") -> None:
        self.connection.execute(f"VACUUM {how} s{self.number}.jobs")

    def calls(self) -> int:
        self.connection.execute("SELECT pg_stat_clear_snapshot()")
        return self._number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")

    def facts(self) -> dict[str, str]:
        return {"server": f"PostgreSQL {self.connection.info.server_version // 10000}"}

    def remove(self) -> None:
        self.connection.close()
        self.server.remove()


class RedisPlace(Place):
    """One server, append-only file synced every second."""

    def __init__(self) -> None:
        super().__init__()
        self.server = ValkeyServer(on_disk=True, auto_aof_rewrite_percentage="0").start()
        self.client: redis.Redis = self.server.client()

    def _url(self, name: str) -> str:
        self.client.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]  # else memory of the last store is still being freed
        return str(self.server.url(name, call_timeout="60"))

    def seconds(self) -> float:
        return tree_seconds(self.server.pid)

    def written(self) -> int:
        return int(self.client.info("persistence")["aof_current_size"])

    def kept(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def calls(self) -> int:
        return scripts_called(self.client)

    def facts(self) -> dict[str, str]:
        return server_facts(self.client)

    def remove(self) -> None:
        self.client.close()
        self.server.remove()


class ClusterPlace(Place):
    """Three primaries of one Redis Cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(on_disk=True, cluster_node_timeout="30000", auto_aof_rewrite_percentage="0").start()
        self.clients: list[redis.Redis] = [node.client() for node in self.cluster.primaries]

    def _url(self, name: str) -> str:
        self.cluster.empty()
        return f"{self.cluster.url(name)}&call_timeout=60"

    def seconds(self) -> float:
        return sum(self.seconds_by_node())

    def seconds_by_node(self) -> list[float]:
        return [tree_seconds(node.pid) for node in self.cluster.primaries]

    def written(self) -> int:
        return sum(int(client.info("persistence")["aof_current_size"]) for client in self.clients)

    def kept(self) -> int:
        return sum(int(client.info("memory")["used_memory"]) for client in self.clients)

    def calls(self) -> int:
        return sum(scripts_called(client) for client in self.clients)

    def facts(self) -> dict[str, str]:
        return server_facts(self.clients[0])

    def remove(self) -> None:
        for client in self.clients:
            client.close()
        self.cluster.remove()


class SqlitePlace(Place):
    """A file. The store runs in threads of its user, so its seconds are those of this process's threads."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-scale-"))

    def _url(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db?call_timeout=60"

    def seconds(self) -> float:
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-writer")]
        return sum(thread_seconds(os.getpid(), thread.native_id or 0) for thread in threads)

    def written(self) -> int:
        """Everything this process wrote; while it is measured, that is only the file."""
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["wchar"])

    def kept(self) -> int:
        path = self.folder / f"s{self.number}.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            used = connection.execute(
                "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
            )
            pages = int(used.fetchone()[0])
            size = int(connection.execute("PRAGMA page_size").fetchone()[0])
        connection.close()
        return pages * size

    def calls(self) -> int:
        """Claims of the current workers: each has the number of its last one in its row."""
        connection = sqlite3.connect(self.folder / f"s{self.number}.db", timeout=60)
        total = connection.execute("SELECT coalesce(sum(last_call), 0) FROM holdfast_workers").fetchone()[0]
        connection.close()
        return int(total)

    def facts(self) -> dict[str, str]:
        return {"server": f"SQLite {sqlite3.sqlite_version}"}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def scripts_called(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


def server_facts(client: redis.Redis) -> dict[str, str]:
    facts = client.info()
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version", facts["redis_version"])
    return {"server": f"{name} {version}", "allocator": str(facts.get("mem_allocator", ""))}


def place_of(store: str) -> Place:
    kinds: dict[str, type[Place]] = {
        "postgres": PostgresPlace,
        "redis": RedisPlace,
        "cluster": ClusterPlace,
        "sqlite": SqlitePlace,
    }
    return kinds[store]()
