"""A node of a cluster that hangs, as under a stopped process or a dead line: the other nodes' shards go on.

A paused node replies to PING and carries out no script, as before a failover by hand.

The call timeout is far longer here than the tests wait: a call that waited for it would fail them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, Held, Lease, NewJob, QueueRule, WorkerRecord

from ...servers.valkey import Server
from ...servers.valkey_cluster import Cluster, own_cluster
from .cluster_load import a_moment

CALL_SECONDS, PATIENCE_SECONDS = 600.0, 60.0
PREFIX, SHARDS, JOBS = "hanging", 6, 60


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield from own_cluster(cluster_node_timeout="60000")  # nobody is voted out meanwhile


class Worker:
    """Claims and settles, as a keeper does."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.call = backend, 0
        self.held: list[Lease] = []
        self.done: set[str] = set()

    async def step(self) -> None:
        self.call += 1
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in self.held]
        request = ClaimRequest(worker="w", call=self.call, queues=("default",), most=10)
        answer = await self.backend.exchange(done, (), request)
        settled = [one for one, said in zip(self.held, answer.answers, strict=True) if said is Answer.OK]
        self.done |= {one.id for one in settled}
        self.held = [one for one in self.held if one not in settled] + list(answer.leases)


def owners(cluster: Cluster) -> list[Server]:
    return [cluster.owner(f"{PREFIX}:default:{place}") for place in range(SHARDS)]


def stop(node: Server, how: str) -> None:
    if how == "stopped":
        node.send(signal.SIGSTOP)
        return
    with node.client() as client:
        client.client_pause(int(CALL_SECONDS * 1000), all=False)


def go_on(node: Server, how: str) -> None:
    if how == "stopped":
        node.send(signal.SIGCONT)
        return
    with node.client() as client:
        client.client_unpause()


@pytest.mark.parametrize("how", ["stopped", "paused"])
@pytest.mark.parametrize("home", [False, True])
def test_the_shards_of_other_nodes_go_on_while_one_hangs(cluster: Cluster, home: bool, how: str) -> None:
    at_home = cluster.owner(PREFIX)
    victim = at_home if home else next(node for node in owners(cluster) if node is not at_home)
    there = sum(owner is victim for owner in owners(cluster))

    async def body() -> None:
        backend = open_backend(f"{cluster.url(PREFIX)}&call_timeout={CALL_SECONDS}")
        await backend.open()
        await backend.declare([QueueRule(name="default", shards=SHARDS)])
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        await backend.enqueue([NewJob(id=f"{n:02}", task="t") for n in range(JOBS)])
        worker = Worker(backend)
        await worker.step()
        stop(victim, how)
        for _ in range(JOBS):
            await worker.step()
        elsewhere = len(worker.done)
        renewal = await backend.renew("w", [Held(one.id, one.token) for one in worker.held], seen_call=worker.call)
        assert renewal.known
        assert 0 < elsewhere < JOBS if there else elsewhere == JOBS
        late = [NewJob(id=f"late {n:02}", task="t") for n in range(JOBS)]
        storing = asyncio.create_task(backend.enqueue(late))  # a producer waits
        await a_moment()
        go_on(victim, how)
        assert len(await storing) == JOBS
        while len(worker.done) < 2 * JOBS:
            await worker.step()
            await a_moment()
        await backend.close()

    try:
        asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))
    finally:
        go_on(victim, how)
