"""kill -9 of real workers: the group drains in order whoever notices, nothing overlaps, counters are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, WorkerRecord
from tests.chaos.scene import Scene, overlaps, until

pytestmark = pytest.mark.chaos


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def fill(scene: Scene) -> list[str]:
    """One job that never ends by itself at the head of a group, two more behind it."""
    with scene.app() as app:
        head = app.named("stuck", group="orders").enqueue(group="orders", number=0)
        rest = [app.named("step", group="orders").enqueue(group="orders", number=n) for n in (1, 2)]
    return [head.id, *(job.id for job in rest)]


def kill_in_mid_job(scene: Scene, job_id: str) -> None:
    worker = scene.start_worker()
    until(lambda: scene.starts(job=job_id), what="the head starts")
    worker.kill()
    worker.wait()


def comparable(rows: Any) -> list[dict[str, Any]]:
    """A dump's jobs without what may differ between two histories: ids, times, tokens, fences, texts."""
    kept = ("state", "group", "attempts", "failures", "stalls", "held", "begun", "cancel_requested", "seq", "lane")
    return [{name: row[name] for name in kept} | {"errors": len(row["errors"])} for row in rows]


async def lapse(backend: SqliteBackend) -> None:
    """Wait until the dead worker's deadline has passed on the store's own clock."""
    async with asyncio.timeout(30):
        while not all(worker.expired for worker in await backend.workers()):  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.05)


def test_found_first_by_claim_or_by_the_sweep_leaves_the_same_store(tmp_path: Path) -> None:
    async def by_claim(backend: SqliteBackend) -> None:
        await backend.register(WorkerRecord(id="finder", lease_seconds=60.0))
        got = await backend.claim(ClaimRequest(worker="finder", call=1, queues=("another",), most=1))
        assert [one.counted for one in got.recovered] == [True]

    async def by_sweep(backend: SqliteBackend) -> None:
        await backend.register(WorkerRecord(id="finder", lease_seconds=60.0))
        assert len(await backend.recover()) == 1

    async def found(folder: Path, finder: Any) -> tuple[list[dict[str, Any]], list[str]]:
        backend = SqliteBackend(str(folder / "jobs.db"))
        await backend.open()
        await lapse(backend)
        await finder(backend)
        tables = (await backend.dump()).tables
        await backend.retire("finder")
        await backend.close()
        return comparable(tables["jobs"]), [row["id"] for row in tables["workers"]]

    outcomes = []
    for name, finder in (("claim", by_claim), ("sweep", by_sweep)):
        folder = tmp_path / name
        folder.mkdir()
        scene = Scene(folder)
        try:
            ids = fill(scene)
            kill_in_mid_job(scene, ids[0])
            outcomes.append(asyncio.run(found(folder, finder)))
            scene.open_gate()
            scene.start_worker(drain=True).wait(60)
            with scene.app() as app:
                assert [app.job(job_id).state for job_id in ids] == [State.SUCCEEDED] * 3
                assert app.audit().violations == []
            order = [line["number"] for line in scene.journal() if line["what"] == "end"]
            assert order == [0, 1, 2]
            assert overlaps(scene.journal(), "group") == []
        finally:
            scene.close()
    assert outcomes[0] == outcomes[1]
    jobs, workers = outcomes[0]
    assert workers == ["finder"]
    assert [(job["state"], job["stalls"], job["attempts"]) for job in jobs] == [
        (State.READY, 1, 1),
        (State.WAITING, 0, 0),
        (State.WAITING, 0, 0),
    ]


def test_a_starting_worker_recovers_at_once_what_a_dead_one_of_its_host_left(scene: Scene) -> None:
    ids = fill(scene)
    worker = scene.start_worker(lease=60.0)
    until(lambda: scene.starts(job=ids[0]), what="the head starts")
    worker.kill()
    worker.wait()
    scene.open_gate()
    scene.start_worker(lease=60.0, drain=True).wait(30)  # far sooner than the lease
    with scene.app() as app:
        assert [app.job(job_id).state for job_id in ids] == [State.SUCCEEDED] * 3
        assert (app.job(ids[0]).stalls, app.job(ids[0]).failures) == (1, 0)


def test_a_live_worker_finds_the_dead_one_by_itself(scene: Scene) -> None:
    ids = fill(scene)
    survivor = scene.start_worker(queues=["elsewhere", "default"], slots=1, lease=2.0)
    until(lambda: scene.starts(job=ids[0]), what="the head starts")
    second = scene.start_worker(lease=2.0)
    survivor.kill()
    survivor.wait()
    until(lambda: len(scene.starts(job=ids[0])) == 2, what="the head runs again")
    scene.open_gate()
    with scene.app() as app:
        until(lambda: app.job(ids[2]).state is State.SUCCEEDED, what="the group drains")
        assert app.audit().violations == []
    assert overlaps(scene.journal(), "group") == []
    second.terminate()
    assert second.wait(30) == 0


def test_an_at_most_once_job_that_began_is_never_started_again(scene: Scene) -> None:
    with scene.app() as app:
        job_id = app.named("once", max_stalls=0).enqueue(number=1).id
        worker = scene.start_worker()
        until(lambda: scene.starts(job=job_id), what="it starts")
        worker.kill()
        worker.wait()
        scene.open_gate()
        scene.start_worker(drain=True).wait(30)
        job = app.job(job_id)
        assert (job.state, job.reason, job.stalls) == (State.DEAD, "stalled", 1)
        assert len(app.dead.list()) == 1
    assert len(scene.starts(job=job_id)) == 1


def test_a_handler_that_blocks_the_loop_for_three_leases_runs_once(scene: Scene) -> None:
    with scene.app() as app:
        job_id = app.named("blocks_the_loop").enqueue(seconds=6.0).id
        scene.start_worker(lease=2.0)
        until(lambda: scene.starts(job=job_id), what="it starts")
        scene.start_worker(lease=2.0)  # a rival that would take it if the lease lapsed
        until(lambda: app.job(job_id).state is State.SUCCEEDED, what="it ends")
        assert (app.job(job_id).stalls, app.job(job_id).attempts) == (0, 1)
    assert len(scene.starts(job=job_id)) == 1


def test_a_stopping_worker_gives_back_at_no_cost(scene: Scene) -> None:
    with scene.app() as app:
        job_id = app.named("blocks_the_loop").enqueue(seconds=0.01).id
        idle = scene.start_worker()
        until(lambda: app.job(job_id).state is State.SUCCEEDED, what="it ends")
        idle.terminate()
        assert idle.wait(30) == 0
        assert app.audit().violations == []


def test_thirty_kills_lose_nothing_and_overlap_nothing(scene: Scene) -> None:
    groups = [f"g{n}" for n in range(4)]
    with scene.app() as app:
        jobs = [
            app.named("step", group=group, max_stalls=1000).bind(group=group, number=number)
            for number in range(150)
            for group in groups
        ]
        app.enqueue_many(jobs)
        for _ in range(30):
            seen = len(scene.journal())
            worker = scene.start_worker(slots=4)
            until(partial(lambda seen: len(scene.journal()) > seen + 3 or not live(app), seen), what="it works")
            worker.kill()
            worker.wait()
        scene.start_worker(drain=True).wait(60)
        assert live(app) == 0
        assert app.audit().violations == []
    journal = scene.journal()
    assert overlaps(journal, "group") == []
    for group in groups:
        firsts: list[int] = []
        for line in journal:
            if line["what"] == "end" and line["group"] == group and line["number"] not in firsts:
                firsts.append(line["number"])
        assert firsts == list(range(150))


def live(app: Any) -> int:
    counts = app.counts()
    return sum(number for states in counts.values() for state, number in states.items() if not State(state).finished)
