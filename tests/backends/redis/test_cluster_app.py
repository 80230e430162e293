"""The public API, the worker and the command line on a cluster: the same code, another URL, and a failing node."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from holdfast import Context, Holdfast
from holdfast.backends.redis.keys import keys_of
from holdfast.backends.sharded.places import place_of
from holdfast.errors import ConfigurationError

from ...cli.shells import Shell
from ...servers.valkey import Server, shared_server
from ...servers.valkey_cluster import Cluster, own_cluster, shared_cluster
from .test_cluster_faults import Move

_numbers = count(1)
PATIENCE_SECONDS = 60.0
SHARDS = 6


@pytest.fixture
def prefix() -> str:
    return f"app_{next(_numbers)}"


@pytest.fixture
def mortal() -> Iterator[Cluster]:
    yield from own_cluster()


def test_ten_lines_of_code_run_on_a_cluster_too(prefix: str) -> None:
    app = Holdfast(shared_cluster().url(prefix))
    app.queue("default", shards=SHARDS)
    seen: list[int] = []

    @app.task(name="note", group=lambda n: f"g{n % 10}")
    def note(n: int) -> int:
        seen.append(n)
        return n * 2

    jobs = [note.enqueue(n) for n in range(60)]
    drained = app.work(drain=True)
    assert drained.succeeded == 60
    assert [job.result(timeout=5) for job in jobs] == [n * 2 for n in range(60)]
    for group in range(10):
        assert [n for n in seen if n % 10 == group] == list(range(group, 60, 10))
    assert app.audit().violations == []
    app.close()


def test_commands_answer_on_a_cluster(prefix: str, tmp_path: Path) -> None:
    url = shared_cluster().url(prefix)
    shell = Shell(tmp_path, url)
    job_id = shell.job("mail.send", queue="mail", group="ann")
    assert job_id in str(shell.json("jobs", "-u", url))
    assert job_id in str(shell.json("job", job_id[:20], "-u", url))
    assert "mail" in str(shell.json("queues", "-u", url))
    assert "ann" in str(shell.json("groups", "-u", url))


def test_limits_and_cron_hold_on_a_queue_of_several_shards(prefix: str) -> None:
    """Two workers serve it; each tick is one job, and never more of the task run than its limit."""
    app = Holdfast(shared_cluster().url(prefix))
    app.queue("default", shards=3)
    more = threading.Condition()
    running: list[int] = []
    most: list[int] = []
    ticks: list[str] = []

    @app.task(name="limited", limit=4)
    async def limited(n: int) -> None:
        running.append(n)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(n)

    @app.cron(every=1, name="often")
    @app.task(name="ticked")
    async def ticked(ctx: Context) -> None:
        with more:
            ticks.append(ctx.id)
            more.notify_all()

    def act() -> None:
        jobs = [limited.enqueue(n) for n in range(60)]
        for job in jobs:
            job.result(timeout=PATIENCE_SECONDS)
        with more:
            assert more.wait_for(lambda: len(ticks) >= 3, PATIENCE_SECONDS)

    async def whole() -> None:
        async with app.worker(slots=20), app.worker(slots=20):
            await asyncio.to_thread(act)

    asyncio.run(asyncio.wait_for(whole(), 2 * PATIENCE_SECONDS))
    assert len(most) == 60 and max(most) <= 4
    assert len(ticks) == len(set(ticks))
    assert app.audit().violations == []
    app.close()


def test_a_server_that_is_no_cluster_is_refused() -> None:
    server = shared_server()
    app = Holdfast(f"redis+cluster://127.0.0.1:{server.port}")
    with pytest.raises(ConfigurationError, match="not part of a cluster"):
        app.counts()
    app.close()


class Scene:
    """An app on a cluster, and groups by the node they are on."""

    def __init__(self, cluster: Cluster, lease: float) -> None:
        self.cluster = cluster
        self.app = Holdfast(cluster.url("scene"))
        self.app.queue("default", shards=SHARDS)
        self.lease = lease
        self.running: set[str] = set()
        self.faults: list[str] = []
        self.ended: list[str] = []
        self.more = threading.Condition()
        self.hold = threading.Event()

        @self.app.task(name="work", group=lambda name: name, max_stalls=50)
        async def work(ctx: Context, name: str) -> None:
            await self._work(ctx, name)

        self.work = work

    def shard(self, name: str) -> str:
        return f"scene:default:{place_of(name, SHARDS)}"

    def groups(self, node: Server, *, on: bool) -> list[str]:
        """Names of groups that are on a node, or on the others."""
        owners = {place: self.cluster.owner(f"scene:default:{place}") for place in range(SHARDS)}
        return [f"g{n}" for n in range(60) if (owners[place_of(f"g{n}", SHARDS)] is node) == on]

    async def _work(self, ctx: Context, name: str) -> None:
        with self.more:
            if name in self.running:
                self.faults.append(f"two of group {name} at once")
            self.running.add(name)
            self.more.notify_all()
        try:
            while name.endswith("long") and not self.hold.is_set():
                ctx.raise_if_cancelled()
                await asyncio.to_thread(self.hold.wait, 0.02)
        finally:
            with self.more:
                self.running.discard(name)
                self.more.notify_all()
        with self.more:
            self.ended.append(name)
            self.more.notify_all()

    def wait(self, names: list[str], times: int = 1) -> None:
        with self.more:
            done = self.more.wait_for(lambda: all(self.ended.count(n) >= times for n in names), PATIENCE_SECONDS)
        assert done, f"waited too long for {[n for n in names if self.ended.count(n) < times][:5]}"


def _in_background(scene: Scene, act: object) -> None:
    """Run the app's worker while `act` goes on in a thread."""

    async def whole() -> None:
        async with scene.app.worker(slots=20, lease=scene.lease):
            await asyncio.to_thread(act)  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(whole(), 2 * PATIENCE_SECONDS))


@pytest.mark.chaos
def test_a_node_that_hangs_does_not_hold_up_the_others(mortal: Cluster) -> None:
    scene = Scene(mortal, lease=10.0)
    victim = next(
        node for node in mortal.primaries if node is not mortal.owner("scene") and scene.groups(node, on=True)
    )
    there, elsewhere = scene.groups(victim, on=True), scene.groups(victim, on=False)

    def act() -> None:
        scene.app.enqueue_many(scene.work.bind(name) for name in [*there, *elsewhere])
        scene.wait([*there, *elsewhere])
        victim.send(signal.SIGSTOP)
        try:
            for times in (2, 3, 4):
                scene.app.enqueue_many(scene.work.bind(name) for name in elsewhere)
                scene.wait(elsewhere, times)
        finally:
            victim.send(signal.SIGCONT)
        scene.app.enqueue_many(scene.work.bind(name) for name in there)
        scene.wait(there, 2)

    _in_background(scene, act)
    assert scene.faults == []
    assert scene.app.audit().violations == []
    scene.app.close()


@pytest.mark.chaos
def test_a_slot_half_moved_for_two_leases_stops_its_own_jobs_only(mortal: Cluster) -> None:
    scene = Scene(mortal, lease=1.5)
    moving = scene.shard("a-long")
    stays = next(name for name in (f"{n}-long" for n in range(100)) if scene.shard(name) != moving)
    elsewhere = [f"g{n}" for n in range(60) if scene.shard(f"g{n}") != moving]

    def act() -> None:
        scene.app.enqueue_many(scene.work.bind(name) for name in ("a-long", stays))
        with scene.more:
            assert scene.more.wait_for(lambda: len(scene.running) == 2, PATIENCE_SECONDS)
        move, keys = Move(mortal, moving), keys_of(moving)
        move.begin()
        move.carry(keys[:10])
        with scene.more:  # its renewals are refused, so it is told to stop
            assert scene.more.wait_for(lambda: "a-long" not in scene.running, PATIENCE_SECONDS)
        for times in range(1, 30):  # well beyond its lease
            scene.app.enqueue_many(scene.work.bind(name) for name in elsewhere[:5])
            scene.wait(elsewhere[:5], times)
            threading.Event().wait(0.1)
        with scene.more:
            assert stays in scene.running
        move.carry(keys[10:])
        move.end()
        with scene.more:
            assert scene.more.wait_for(lambda: "a-long" in scene.running, PATIENCE_SECONDS)
        scene.hold.set()
        scene.wait(["a-long", stays])

    _in_background(scene, act)
    assert scene.faults == []
    assert scene.ended.count("a-long") == scene.ended.count(stays) == 1
    assert scene.app.audit().violations == []
    scene.app.close()


@pytest.mark.chaos
def test_a_node_that_hangs_for_two_leases_stops_its_own_jobs_only(mortal: Cluster) -> None:
    scene = Scene(mortal, lease=1.5)
    at_home = mortal.owner("scene")
    names = [f"{n}-long" for n in range(100)]
    there = next(name for name in names if mortal.owner(scene.shard(name)) is not at_home)
    victim = mortal.owner(scene.shard(there))
    stays = next(name for name in names if mortal.owner(scene.shard(name)) is not victim)
    elsewhere = scene.groups(victim, on=False)[:5]

    def act() -> None:
        scene.app.enqueue_many(scene.work.bind(name) for name in (there, stays))
        with scene.more:
            assert scene.more.wait_for(lambda: len(scene.running) == 2, PATIENCE_SECONDS)
        victim.send(signal.SIGSTOP)
        try:
            with scene.more:
                assert scene.more.wait_for(lambda: there not in scene.running, PATIENCE_SECONDS)
            for times in range(1, 30):  # well beyond its lease
                scene.app.enqueue_many(scene.work.bind(name) for name in elsewhere)
                scene.wait(elsewhere, times)
                threading.Event().wait(0.1)
            with scene.more:
                assert stays in scene.running
        finally:
            victim.send(signal.SIGCONT)
        with scene.more:
            assert scene.more.wait_for(lambda: there in scene.running, PATIENCE_SECONDS)
        scene.hold.set()
        scene.wait([there, stays])

    _in_background(scene, act)
    assert scene.faults == []
    assert scene.ended.count(there) == scene.ended.count(stays) == 1
    scene.app.close()


def test_a_wrong_password_is_named() -> None:
    cluster = shared_cluster()
    app = Holdfast(cluster.url("secret").replace("//", "//nobody:wrong@", 1))
    with pytest.raises(ConfigurationError, match="password") as caught:
        app.counts()
    assert "wrong@" not in str(caught.value)
    app.close()
