"""A Valkey or Redis cluster of the tests' own: three primaries on loopback ports, gone at the end of the run.

`shared_cluster` is for tests that leave the nodes alone; who kills one, moves a slot or promotes a replica makes a
`Cluster`. Every slot is given out by ourselves: the server's own tool would bring replicas and questions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.crc import key_slot

from holdfast.backends.redis.cluster import ClusterBackend

from .valkey import PATIENCE_SECONDS, Server, ServerMissing, _strict

SLOTS = 16384
READY_SECONDS_MAX = 90.0
MEET_AGAIN_SECONDS = 3.0


class Cluster:
    """A number of primaries, each with a number of replicas."""

    def __init__(self, *, primaries: int = 3, replicas: int = 0, on_disk: bool = False, **settings: str) -> None:
        words = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": "1500",
            "cluster_require_full_coverage": "no",
            "cluster_allow_replica_migration": "no",
            "repl_diskless_sync_delay": "0",
            **settings,
        }
        self.primaries = [Server(tcp=True, on_disk=on_disk, **words) for _ in range(primaries)]
        self.replicas = [Server(tcp=True, on_disk=on_disk, **words) for _ in range(primaries * replicas)]
        self._told_at = -math.inf  # when the nodes were last told to meet (monotonic)

    @property
    def nodes(self) -> list[Server]:
        return [*self.primaries, *self.replicas]

    @property
    def plain_url(self) -> str:
        """As ClusterBackend takes it."""
        return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)

    def url(self, prefix: str = "holdfast") -> str:
        return f"{self.plain_url.replace('redis', 'redis+cluster', 1)}/?prefix={prefix}"

    def start(self) -> Cluster:
        for node in self.nodes:
            node.start()
        for place, node in enumerate(self.primaries):
            low, high = (SLOTS * place // len(self.primaries), SLOTS * (place + 1) // len(self.primaries) - 1)
            self.tell(node, "CLUSTER", "ADDSLOTSRANGE", low, high)
            self.tell(node, "CLUSTER", "SET-CONFIG-EPOCH", place + 1)
        self.wait(self._have_met, "the nodes to meet")
        for place, node in enumerate(self.replicas):
            primary = self.primaries[place % len(self.primaries)]
            # Known nodes include those whose names are not known yet: until then this is refused.
            self.wait(functools.partial(self._replicate, node, self.name(primary)), "a replica to be taken")
        self.wait(self.is_sound, "the cluster to be sound")
        return self

    def _have_met(self) -> bool:
        """Whether every node knows all others. A node that does not is told again: on a busy machine its handshake may
        take longer than the servers allow, and nobody repeats it."""
        apart = [node for node in self.nodes if self._size_of(node) != len(self.nodes)]
        if apart and time.monotonic() - self._told_at > MEET_AGAIN_SECONDS:
            self._told_at = time.monotonic()
            for node in self.nodes[1:]:
                self.tell(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        return not apart

    def _replicate(self, node: Server, name: str) -> bool:
        self.tell(node, "CLUSTER", "REPLICATE", name)
        return True

    def tell(self, node: Server, *words: object) -> object:
        with node.client() as client:
            return client.execute_command(*words)

    def name(self, node: Server) -> str:
        """The node's id in the cluster."""
        said = self.tell(node, "CLUSTER", "MYID")
        return said.decode() if isinstance(said, bytes) else str(said)

    def facts(self, node: Server) -> dict[str, str]:
        said = self.tell(node, "CLUSTER", "INFO")
        text = said.decode() if isinstance(said, bytes) else str(said)
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def _size_of(self, node: Server) -> int:
        return int(self.facts(node)["cluster_known_nodes"])

    def is_sound(self) -> bool:
        """Every slot has an owner whom every node knows, and every replica is linked."""
        for node in self.nodes:
            facts = self.facts(node)
            if facts["cluster_state"] != "ok" or facts["cluster_slots_ok"] != str(SLOTS):
                return False
        for node in self.replicas:
            with node.client() as client:
                if client.info("replication").get("master_link_status") != "up":
                    return False
        return True

    def wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            with contextlib.suppress(redis.exceptions.RedisError):
                if true():
                    return
            if time.monotonic() > deadline:
                raise ServerMissing(f"waited too long for {what}")
            threading.Event().wait(0.02)

    def owner(self, prefix: str) -> Server:
        """The primary that has the keys of a store's shard."""
        slot = key_slot(f"{{{prefix}}}".encode())
        with self.nodes[0].client() as client:
            found = client.execute_command("CLUSTER", "SLOTS")
        ports = [part[2][1] for part in found if part[0] <= slot <= part[1]]
        return next(node for node in self.nodes if node.port in ports)

    def empty(self) -> None:
        for node in self.primaries:
            node.cleaner.flushall()

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


@functools.cache
def _shared() -> Cluster:
    cluster = Cluster(cluster_node_timeout="30000")  # nobody kills a node; on a busy machine one may be slow
    atexit.register(cluster.remove)
    return cluster.start()


def shared_cluster() -> Cluster:
    """The run's one cluster. Skips where there is none, and fails instead where the run is to be complete."""
    try:
        return _shared()
    except (ServerMissing, OSError) as error:
        if _strict():
            raise
        pytest.skip(f"no Redis or Valkey cluster: {error}")


def fresh_cluster_stores() -> Callable[[str], ClusterBackend]:
    """How to make backends on empty stores: the same name, the same store. Ends the use of all earlier ones."""
    cluster = shared_cluster()
    cluster.empty()
    return lambda store: ClusterBackend(cluster.plain_url, prefix=store, call_timeout=PATIENCE_SECONDS)


def own_cluster(**settings: object) -> Iterator[Cluster]:
    """For a fixture: a cluster whose nodes may be killed."""
    shared_cluster()  # skips or fails where there is none
    cluster = Cluster(**settings)  # type: ignore[arg-type]
    try:
        yield cluster.start()
    finally:
        cluster.remove()
