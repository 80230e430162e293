"""A cluster under load while its slots move and its nodes die: nothing lost, nothing doubled, the others go on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest
from redis.crc import key_slot

from holdfast.backends import open_backend
from holdfast.backends.redis.keys import keys_of
from holdfast.backends.sharded import registry
from holdfast.backends.sharded.places import place_of
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.records import NewJob, QueueRule

from ...servers.valkey import Server, shared_server
from ...servers.valkey_cluster import Cluster, own_cluster, shared_cluster
from . import cluster_claimer
from .cluster_load import NAMES, PREFIX, QUEUE, SHARDS, Load, a_moment, until
from .pair import end_quiet

pytestmark = pytest.mark.chaos

PATIENCE_SECONDS = 90.0


@pytest.fixture
def mortal() -> Iterator[Cluster]:
    """Its nodes write to disk before they answer: else a killed one may have put off the write of its last second."""
    yield from own_cluster(appendfsync="always")


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    yield from own_cluster(replicas=1)


# ---------------------------------------------------------------------- many processes


@pytest.mark.parametrize(("limit", "processes", "total"), [(1, 4, 600), (2, 8, 2000)])
def test_many_processes_never_exceed_a_groups_limit(limit: int, processes: int, total: int) -> None:
    cluster, ledger = shared_cluster(), shared_server()
    cluster.empty()
    url = cluster.url(f"limit{limit}")

    async def fill() -> None:
        backend = open_backend(url)
        await backend.open()
        order: Literal["strict", "relaxed"] = "strict" if limit == 1 else "relaxed"
        await backend.declare([QueueRule(name="default", group_limit=limit, group_order=order, shards=SHARDS)])
        groups = [None if n % 4 == 0 else f"g{n % 23}" for n in range(total)]
        jobs = [NewJob(id=f"{n:05}", task="t", group=group) for n, group in enumerate(groups)]
        await backend.enqueue(jobs)
        await backend.close()

    asyncio.run(fill())
    owners = {cluster.owner(f"limit{limit}:default:{place}").port for place in range(SHARDS)}
    assert len(owners) > 1, "the shards of this test's prefix must be on several nodes"
    with ledger.client() as client:
        client.delete(cluster_claimer.LEDGER)
        command = [sys.executable, cluster_claimer.__file__, url, ledger.socket]
        started = [subprocess.Popen([*command, f"w{n}", str(total)]) for n in range(processes)]
        assert [process.wait(PATIENCE_SECONDS) for process in started] == [0] * processes
        events = [line.decode().split(" ") for line in client.lrange(cluster_claimer.LEDGER, 0, -1)]
    assert sorted(job for step, job, _ in events if step == "+") == [f"{n:05}" for n in range(total)]
    running: Counter[str] = Counter()
    began: dict[str, list[str]] = {}
    for step, job, group in events:
        if group:
            running[group] += 1 if step == "+" else -1
            assert running[group] <= limit, f"group {group} had {running[group]} at once, limit {limit}"
            if step == "+":
                began.setdefault(group, []).append(job)
    if limit == 1:
        assert all(jobs == sorted(jobs) for jobs in began.values())


# ---------------------------------------------------------------------- a slot moves


class Move:
    """The move of one store's slot to another node, in the steps an operator's tool takes."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster, self._prefix = cluster, prefix
        self._slot = key_slot(f"{{{prefix}}}".encode())
        self._source = cluster.owner(prefix)
        place = cluster.primaries.index(self._source)
        self._target = cluster.primaries[(place + 1) % len(cluster.primaries)]

    def begin(self) -> None:
        names = self._cluster.name(self._source), self._cluster.name(self._target)
        self._cluster.tell(self._target, "CLUSTER", "SETSLOT", self._slot, "IMPORTING", names[0])
        self._cluster.tell(self._source, "CLUSTER", "SETSLOT", self._slot, "MIGRATING", names[1])

    def carry(self, keys: list[str]) -> None:
        words = ("MIGRATE", "127.0.0.1", self._target.port, "", 0, 5000, "KEYS", *keys)
        self._cluster.tell(self._source, *words)

    def end(self) -> None:
        name = self._cluster.name(self._target)
        others = [node for node in self._cluster.primaries if node not in (self._source, self._target)]
        for node in (self._target, self._source, *others):
            self._cluster.tell(node, "CLUSTER", "SETSLOT", self._slot, "NODE", name)


def test_slots_that_move_under_load_lose_and_double_nothing(mortal: Cluster) -> None:
    async def run() -> None:
        load = Load(mortal, total=1500)
        async with load.going_on():
            for round, name in enumerate([*NAMES[:4], "", *NAMES[:2]]):
                done = len(load.ran)
                await until(lambda: len(load.ran) > done + 50, "some work between two moves")  # noqa: B023
                prefix = f"{PREFIX}:{name}" if name else PREFIX
                move = Move(mortal, prefix)
                keys = keys_of(prefix)
                await asyncio.to_thread(move.begin)
                await asyncio.to_thread(move.carry, keys[: len(keys) // 2])
                if round == 1:  # half here, half there: the other shards go on
                    done = len(load.ran)
                    await until(lambda: len(load.ran) > done + 50, "work in the other shards")  # noqa: B023
                await asyncio.to_thread(move.carry, keys[len(keys) // 2 :])
                await asyncio.to_thread(move.end)
        await load.judge()
        await load.close()

    asyncio.run(run())


# ---------------------------------------------------------------------- a node dies, and comes back


@pytest.mark.parametrize("home", [False, True])
def test_a_node_killed_and_started_again_under_load_loses_and_doubles_nothing(
    mortal: Cluster, home: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FRESH_SECONDS", 0.1)  # the registry at home is looked for all the time
    at_home = mortal.owner(PREFIX)
    owners = {name: mortal.owner(f"{PREFIX}:{name}") for name in NAMES}
    victim = at_home if home else next(node for node in owners.values() if node is not at_home)

    async def run() -> None:
        load = Load(mortal, total=1500)
        async with load.going_on():
            await until(lambda: len(load.ran) > 200, "some work before the crash")
            await asyncio.to_thread(victim.end, signal.SIGKILL)
            elsewhere = [f"x{n}" for n in range(300) if owners[f"{QUEUE}:{place_of(f'x{n}', SHARDS)}"] is not victim]
            load.total += len(elsewhere)
            assert elsewhere
            await asyncio.gather(*(_put(load, job_id) for job_id in elsewhere))
            await until(lambda: set(elsewhere) <= set(load.ran), "the other nodes to go on")
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(mortal.wait, mortal.is_sound, "the node to be back")
            for name in (name for name, owner in owners.items() if owner is victim):
                await asyncio.to_thread(end_quiet, victim, f"{PREFIX}:{name}")
        await load.judge()
        await load.close()

    asyncio.run(run())


async def _put(load: Load, job_id: str) -> None:
    await load.enqueue([NewJob(id=job_id, task="t", queue=QUEUE)])


# ---------------------------------------------------------------------- a node dies, and its replica takes over


def test_a_replica_that_takes_over_goes_on_where_its_primary_stopped(replicated: Cluster) -> None:
    """With nothing on its way to the replica, nothing is lost; everybody's map of slots is wrong at once."""
    owners = {name: replicated.owner(f"{PREFIX}:{name}") for name in NAMES}
    victim = owners[NAMES[0]]

    async def run() -> None:
        load = Load(replicated, total=900, workers=6)
        async with load.going_on():
            await until(load.over, "the first jobs")
            load.total += 300
            with victim.client() as client:
                await asyncio.to_thread(client.wait, 1, 5000)
            await asyncio.to_thread(victim.end, signal.SIGKILL)
            await asyncio.gather(*(_put(load, f"y{n:03}") for n in range(300)))
            for name in (name for name, owner in owners.items() if owner is victim):
                await asyncio.to_thread(end_quiet, _replica_of(replicated, victim), f"{PREFIX}:{name}")
        await load.judge()
        await load.close()

    async def hold() -> None:
        await asyncio.wait_for(run(), PATIENCE_SECONDS)

    asyncio.run(hold())


def test_a_failover_loses_only_what_the_replica_had_not_heard(replicated: Cluster) -> None:
    """What docs/how-to/cluster.md says: jobs acknowledged after the last word that reached the replica are gone."""
    owners = {name: replicated.owner(f"{PREFIX}:{name}") for name in NAMES}
    victim = owners[NAMES[0]]
    deaf = _replica_of(replicated, victim)

    async def run() -> None:
        load = Load(replicated, total=0, workers=0)
        async with load.going_on():
            pass
        await asyncio.gather(*(_put(load, f"a{n:03}") for n in range(120)))
        with victim.client() as client:
            await asyncio.to_thread(client.wait, 1, 5000)
        deaf.send(signal.SIGSTOP)
        await asyncio.to_thread(replicated.tell, victim, "CLIENT", "KILL", "TYPE", "replica")  # else it hears it later
        await asyncio.gather(*(_put(load, f"b{n:03}") for n in range(120)))
        await asyncio.to_thread(victim.end, signal.SIGKILL)
        deaf.send(signal.SIGCONT)
        await until(lambda: replicated.facts(deaf)["cluster_state"] == "ok" and _is_primary(deaf), "the replica")
        found: set[str] = set()
        while not found:
            try:
                found = {row["id"] for row in (await load.producer.dump()).tables["jobs"]}
            except (BackendError, OutcomeUnknown):
                await a_moment()
        gone = set(load.acknowledged) - found
        assert gone and all(job_id.startswith("b") for job_id in gone)
        assert {owners[f"{QUEUE}:{place_of(job_id, SHARDS)}"] for job_id in gone} == {victim}
        await asyncio.gather(*(_put(load, job_id) for job_id in sorted(gone)))
        assert len((await load.producer.dump()).tables["jobs"]) == 240
        await load.close()

    asyncio.run(run())


def _replica_of(cluster: Cluster, primary: Server) -> Server:
    return cluster.replicas[cluster.primaries.index(primary) % len(cluster.primaries)]


def _is_primary(node: Server) -> bool:
    with node.client() as client:
        return bool(client.info("replication")["role"] == "master")
