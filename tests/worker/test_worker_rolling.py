"""Rolling deploys on every store: new jobs run on new workers beside an old one, and what a killed one left lapses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tests.servers import postgres, valkey, valkey_cluster
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast.backends.contract import Backend
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.records import Override, QueueRule, WorkerRecord
from holdfast.worker.keeper.runners import Runners
from holdfast.worker.keeper.store_client import StoreClient
from holdfast.worker.keeper.unknown_tasks import UnknownTasks
from holdfast.worker_status import TASKS_SHOWN_MAX, draw

Make = Callable[[], Backend]
JOBS = 20


def _memory(folder: Path) -> Make:
    shared = MemoryBackend()
    return lambda: shared


def _sqlite(folder: Path) -> Make:
    return lambda: SqliteBackend(str(folder / "jobs.db"))


def _postgres(folder: Path) -> Make:
    stores = postgres.fresh_stores()
    return lambda: stores("rolling")


def _redis(folder: Path) -> Make:
    stores = valkey.fresh_stores()
    return lambda: stores("rolling")


def _cluster(folder: Path) -> Make:
    stores = valkey_cluster.fresh_cluster_stores()
    return lambda: stores("rolling")


STORES = {"memory": _memory, "sqlite": _sqlite, "postgres": _postgres, "redis": _redis, "cluster": _cluster}


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return STORES[request.param](tmp_path)


async def test_a_new_task_runs_on_the_new_worker_beside_an_old_one(make: Make) -> None:
    old, new = WorkerApp(make), WorkerApp(make)
    ran, done = list[int](), asyncio.Event()

    @new.task(name="fresh")
    async def fresh(n: int) -> None:
        ran.append(n)
        if len(ran) == JOBS:
            done.set()

    for app in (old, new):
        app.rules.append(QueueRule(name="default", shards=3))  # heeded by the cluster alone

        @app.task(name="both")
        async def both() -> None: ...

    unknown = old.listen("unknown_task")
    async with old.worker(slots=4):
        await new.put(*(new.tasks["fresh"].bind(n=n) for n in range(JOBS)))
        await unknown.next()
        async with new.worker(slots=4):
            await asyncio.wait_for(done.wait(), WAIT_SECONDS)
    assert sorted(ran) == list(range(JOBS))
    assert await apart(await new.store()) == set(), "what it set goes with it"
    for app in (old, new):
        await app.close()


async def apart(store: Backend) -> set[str]:
    return {one.rule.name for one in await store.tasks() if one.override is not None and one.override.apart}


async def opened(make: Make, *tasks: str) -> tuple[Backend, UnknownTasks]:
    """A store in which tasks have a dedicated lane, and what a worker does about it."""
    store = make()
    await store.open()
    for task in tasks:
        await store.limit(Override(task=task, apart=True))
    return store, UnknownTasks(StoreClient(store, SystemClock(), 30.0), cast("Runners", None), 30.0)


async def show(store: Backend, worker: str, portrait: bytes | None, lease: float = 300.0) -> None:
    await store.register(WorkerRecord(id=worker, lease_seconds=lease))
    assert (await store.renew(worker, [], seen_call=0, portrait=portrait)).known


async def test_what_a_killed_worker_left_lapses_when_no_live_one_needs_it(make: Make) -> None:
    store, unknown = await opened(make, "fresh", "needed")
    await store.limit(Override(task="fresh", limit=3))
    await show(store, "alive", draw((), unknown=("needed",)))
    await show(store, "quiet", None)
    await unknown.lapse()
    assert await apart(store) == {"fresh", "needed"}, "one look is not enough: who needs it may not show it yet"
    await unknown.lapse()
    assert await apart(store) == {"needed"}
    [limit] = [one.override.limit for one in await store.tasks() if one.rule.name == "fresh" and one.override]
    assert limit == 3, "what an operator said stays"
    await store.retire("alive")
    await unknown.lapse()
    await unknown.lapse()
    assert await apart(store) == set()
    await store.close()


async def test_it_stays_while_a_worker_may_need_it() -> None:
    full = draw((), unknown=[f"t{n}" for n in range(TASKS_SHOWN_MAX)])
    for portrait in (full, b"what a later version shows"):
        store, unknown = await opened(MemoryBackend, "fresh")
        await show(store, "w", portrait)
        for _ in range(3):
            await unknown.lapse()
        assert await apart(store) == {"fresh"}


async def test_one_that_came_to_be_needed_between_two_looks_stays_and_is_looked_at_afresh() -> None:
    store, unknown = await opened(MemoryBackend, "fresh")
    await unknown.lapse()
    await show(store, "w", draw((), unknown=("fresh",)))
    await unknown.lapse()
    await store.retire("w")
    await unknown.lapse()
    assert await apart(store) == {"fresh"}
    await unknown.lapse()
    assert await apart(store) == set()


async def test_a_working_worker_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.keeper.keeper.LAPSE_SWEEPS", 1)
    store = MemoryBackend()
    app = WorkerApp(lambda: store)

    @app.task(name="both")
    async def both() -> None: ...

    await store.limit(Override(task="fresh", apart=True))
    async with app.worker(sweep_every=0.02), asyncio.timeout(WAIT_SECONDS):
        while await apart(store):
            await store.wait_for_work(["none"], 0.01)
