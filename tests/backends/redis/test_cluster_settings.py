"""The settings of every node of a cluster are checked: at the start, when a slot moves, when a node comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from holdfast.backends import open_backend, parse_url
from holdfast.backends.durability import ask_store
from holdfast.backends.redis import cluster as nodes
from holdfast.backends.redis.keys import keys_of
from holdfast.errors import ConfigurationError
from holdfast.inspection.store_health import StoreLook, judge_store
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import Server
from ...servers.valkey_cluster import Cluster, own_cluster
from .cluster_load import a_moment

PREFIX = "settings"
SHARD = f"{PREFIX}:default:0"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield from own_cluster(primaries=3)


def evicting(cluster: Cluster, node: Server, policy: str = "allkeys-lru") -> None:
    cluster.tell(node, "CONFIG", "SET", "maxmemory-policy", policy)


def move(cluster: Cluster, prefix: str, target: Server) -> None:
    """A store's slot, whole, to another node."""
    slot, source = key_slot(f"{{{prefix}}}".encode()), cluster.owner(prefix)
    with source.client() as client:
        keys = [key for key in keys_of(prefix) if client.exists(key)]
    cluster.tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.name(source))
    cluster.tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.name(target))
    cluster.tell(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, *(one for one in cluster.primaries if one is not target)):
        cluster.tell(node, "CLUSTER", "SETSLOT", slot, "NODE", cluster.name(target))


def elsewhere(cluster: Cluster) -> Server:
    """A node without a key of ours."""
    ours = {cluster.owner(PREFIX).port, cluster.owner(SHARD).port}
    return next(node for node in cluster.primaries if node.port not in ours)


def test_a_node_without_a_job_of_ours_is_checked_too(cluster: Cluster) -> None:
    node = elsewhere(cluster)
    evicting(cluster, node)

    async def body() -> None:
        backend = open_backend(cluster.url(PREFIX))
        with pytest.raises(ConfigurationError, match="allkeys-lru") as caught:
            await backend.open()
        assert f"127.0.0.1:{node.port}" in str(caught.value)
        await backend.close()
        allowed = open_backend(f"{cluster.url(PREFIX)}&allow_eviction=true")
        await allowed.open()
        await allowed.close()

    asyncio.run(body())


def test_a_slot_that_moved_to_an_unsafe_node_gets_no_new_jobs_and_those_it_has_are_worked_off(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = elsewhere(cluster)

    async def body() -> None:
        backend = open_backend(cluster.url(PREFIX))
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=30.0))
        await backend.enqueue([NewJob(id="a", task="t")])
        cluster.tell(node, "CONFIG", "SET", "appendonly", "no")
        stranger = open_backend(f"{cluster.url(PREFIX)}&allow_no_aof=true")
        await stranger.open()

        backend._nodes.node(("127.0.0.1", node.port))._inspect_at = 0.0  # type: ignore[attr-defined]  # as if it were new
        await asyncio.to_thread(move, cluster, SHARD, node)
        with caplog.at_level(logging.WARNING, "holdfast"), pytest.raises(ConfigurationError, match="appendonly"):
            await backend.enqueue([NewJob(id="b", task="t")])
        assert f"127.0.0.1:{node.port}" in caplog.text
        assert await backend.get("b") is None
        answer = await backend.exchange((), (), ClaimRequest(worker="w", call=1, queues=("default",), most=2))
        assert [lease.id for lease in answer.leases] == ["a"]
        assert (await stranger.enqueue([NewJob(id="c", task="t")]))[0].created

        monkeypatch.setattr(nodes, "INSPECT_SECONDS", 0.0)
        cluster.tell(node, "CONFIG", "SET", "appendonly", "yes")
        while True:  # it is asked again before long
            try:
                assert (await backend.enqueue([NewJob(id="b", task="t")]))[0].created
                break
            except ConfigurationError:
                await a_moment()
        for one in (backend, stranger):
            await one.close()

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_a_node_that_was_started_anew_is_looked_at_again(cluster: Cluster) -> None:
    node = cluster.owner(SHARD)

    async def body() -> None:
        backend = open_backend(f"{cluster.url(PREFIX)}&trust_restarts=true")
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        known = backend._nodes.node(("127.0.0.1", node.port))  # type: ignore[attr-defined]
        evicting(cluster, node)
        assert (await backend.enqueue([NewJob(id="b", task="t")]))[
            0
        ].created  # settings changed on the fly go unnoticed
        known.silent = True
        with pytest.raises(ConfigurationError, match="allkeys-lru"):
            await backend.enqueue([NewJob(id="c", task="t")])
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_the_doctor_asks_every_node(cluster: Cluster) -> None:
    node = elsewhere(cluster)
    cluster.tell(node, "CONFIG", "SET", "appendfsync", "no")
    address = parse_url(cluster.url(PREFIX))
    facts = asyncio.run(ask_store(address))
    assert len(facts.nodes) == 3
    look = StoreLook(url=address.safe_url, scheme=address.scheme, facts=facts)
    (found,) = [one for one in judge_store(look) if one.verdict != "fine"]
    assert found.verdict == "wrong" and found.facts["node"] == f"127.0.0.1:{node.port}"
