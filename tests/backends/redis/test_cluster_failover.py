"""A shard of a cluster's store: quiet after its node was restarted or replaced, not after its slot moved elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import pytest
import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.cluster import Nodes, SlotConnections
from holdfast.backends.redis.keys import keys_of
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.records import ClaimRequest, Exchanged, Held, NewJob, WorkerRecord

from ...servers.valkey import Server
from ...servers.valkey_cluster import Cluster, own_cluster
from .cluster_load import a_moment
from .pair import wait_for
from .test_cluster_faults import Move

pytestmark = pytest.mark.chaos

PATIENCE_SECONDS = 90.0
PREFIX = "holdfast:mail:0"
USUAL = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield from own_cluster(replicas=1, appendfsync="always")


class Shard:
    """One shard's store, and a worker who repeats what was not answered."""

    def __init__(self, cluster: Cluster, *, trust_restarts: bool) -> None:
        self._nodes = Nodes(cluster.plain_url, prefix=PREFIX, call_timeout=2.0)
        through = SlotConnections(self._nodes, PREFIX)
        self.store = RedisBackend(cluster.plain_url, through=through, trust_restarts=trust_restarts)
        self.call = 0

    async def open(self, *jobs: str) -> None:
        await self.store.open()
        await self.store.register(WorkerRecord(id="w", lease_seconds=20.0))
        await self.store.enqueue([NewJob(id=job_id, task="t") for job_id in jobs])

    async def close(self) -> None:
        await self.store.close()
        self._nodes.abandon()

    async def next(self) -> Exchanged:
        self.call += 1
        request = ClaimRequest(worker="w", call=self.call, queues=("default",), most=1)
        while True:
            with contextlib.suppress(OutcomeUnknown, BackendError):
                return await self.store.exchange((), (), request)
            await a_moment()


def _replica_of(cluster: Cluster, primary: Server) -> Server:
    return cluster.replicas[cluster.primaries.index(primary)]


def _is_primary(node: Server) -> bool:
    try:
        with node.client() as client:
            return bool(client.info("replication")["role"] == "master")
    except redis.exceptions.RedisError:
        return False


@pytest.mark.parametrize("trusted", [False, True])
def test_a_node_started_again_is_quiet_unless_its_restarts_are_trusted(cluster: Cluster, trusted: bool) -> None:
    node = cluster.owner(PREFIX)

    async def body() -> None:
        shard = Shard(cluster, trust_restarts=trusted)
        await shard.open("a", "b")
        assert (await shard.next()).leases
        # without its replica, which would take its place
        await asyncio.to_thread(_replica_of(cluster, node).end, signal.SIGKILL)
        node.end(signal.SIGKILL)
        await asyncio.to_thread(node.start)
        answer = await shard.next()
        assert bool(answer.leases) == trusted
        assert (answer.quiet_seconds > 0) != trusted
        await shard.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


def test_a_replica_that_took_over_is_quiet_and_tells_which_claims_it_lacks(cluster: Cluster) -> None:
    node = cluster.owner(PREFIX)
    replica = _replica_of(cluster, node)

    async def body() -> None:
        shard = Shard(cluster, trust_restarts=True)  # which a failover is not
        await shard.open("a", "b")
        [a] = (await shard.next()).leases
        with node.client() as client:
            await asyncio.to_thread(client.wait, 1, 5000)
        replica.send(signal.SIGSTOP)
        cluster.tell(node, "CLIENT", "KILL", "TYPE", "replica")
        [b] = (await shard.next()).leases
        node.end(signal.SIGKILL)
        replica.send(signal.SIGCONT)
        await asyncio.to_thread(wait_for, lambda: _is_primary(replica), "the replica to take over")
        answer = await shard.next()
        assert answer.known and not answer.leases and 0 < answer.quiet_seconds <= USUAL
        held = [Held(lease.id, lease.token) for lease in (a, b)]
        assert (await shard.store.renew("w", held, seen_call=shard.call)).lost == ("b",)
        await shard.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


def test_a_slot_that_moves_is_no_reason_to_be_quiet_and_its_new_node_is_known_from_then_on(cluster: Cluster) -> None:
    async def body() -> None:
        shard = Shard(cluster, trust_restarts=False)
        await shard.open("a", "b", "c")
        assert (await shard.next()).leases
        move = Move(cluster, PREFIX)
        await asyncio.to_thread(move.begin)
        await asyncio.to_thread(move.carry, keys_of(PREFIX))
        await asyncio.to_thread(move.end)
        answer = await shard.next()
        assert [lease.id for lease in answer.leases] == ["b"] and not answer.quiet_seconds
        node = cluster.owner(PREFIX)
        with node.client() as client:
            await asyncio.to_thread(client.wait, 1, 5000)
        node.end(signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: _is_primary(_replica_of(cluster, node)), "the replica to take over")
        answer = await shard.next()
        assert not answer.leases and answer.quiet_seconds > 0
        await shard.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))
