"""The embedded worker as users meet it: app.work, app.awork, app.worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest
from tests.worker.worker_bench import WAIT_SECONDS

from holdfast import Context, Holdfast
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.errors import BackendUnavailable
from holdfast.worker.embedded import Drained
from holdfast.worker.keeper.drain import Drain


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


def test_work_drains_here_and_now(url: str) -> None:
    with Holdfast(url) as app:

        @app.task(name="double")
        async def double(ctx: Context, n: int) -> int:
            return 2 * n

        @app.task(name="half")
        def half(n: int) -> float:
            return n / 2

        one, two = double.enqueue(21), half.enqueue(7)
        assert app.work(drain=True) == Drained(succeeded=2, failed=0, left=0)
        assert (one.result(timeout=WAIT_SECONDS), two.result(timeout=WAIT_SECONDS)) == (42, 3.5)


def test_a_drain_that_cannot_count_does_not_say_that_nothing_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unheard(self: Drain) -> int:
        raise BackendUnavailable("the store does not answer.")

    monkeypatch.setattr(Drain, "left", unheard)
    with Holdfast(url) as app:
        assert app.work(drain=True, queues=["default"]) == Drained(succeeded=0, failed=0, left=None)


def test_a_drain_beside_blocked_groups_asks_for_no_list_of_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: object, *args: object, **options: object) -> NoReturn:
        raise AssertionError("a list of groups costs what is in them")

    for backend in (MemoryBackend, SqliteBackend):
        monkeypatch.setattr(backend, "groups", refused)
    with Holdfast(url) as app:

        @app.task(name="work")
        def work() -> None:
            return None

        app.pause(queue="default", group="a")
        work.using(group="a").enqueue()
        work.enqueue()
        assert app.work(drain=True) == Drained(succeeded=1, failed=0, left=1)


def test_awork_drains_on_the_callers_loop(url: str) -> None:
    app = Holdfast(url)

    @app.task(name="where")
    async def where() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> None:
        async with app:
            job = await where.aenqueue()
            await app.awork(drain=True)
            assert await job.aresult(timeout=WAIT_SECONDS) == id(asyncio.get_running_loop())

    asyncio.run(main())


def test_worker_runs_in_the_background_of_a_block(url: str) -> None:
    app = Holdfast(url)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="sync")
    def sync() -> str:
        return "thread"

    async def main() -> None:
        async with app, app.worker(slots=10):
            jobs = [await add.aenqueue(n, n) for n in range(20)]
            assert [await job.aresult(timeout=WAIT_SECONDS) for job in jobs] == [2 * n for n in range(20)]
            assert await (await sync.aenqueue()).aresult(timeout=WAIT_SECONDS) == "thread"

    asyncio.run(main())


def test_a_handler_may_enqueue_and_wait_for_another_job(url: str) -> None:
    app = Holdfast(url)

    @app.task(name="child")
    async def child(n: int) -> int:
        return n + 1

    @app.task(name="parent")
    async def parent(n: int) -> int:
        return await (await child.aenqueue(n)).aresult(timeout=WAIT_SECONDS) + 1

    @app.task(name="sync_parent")
    def sync_parent(n: int) -> int:
        return child.enqueue(n).result(timeout=WAIT_SECONDS) + 1

    async def main() -> None:
        async with app:
            first, second = await parent.aenqueue(1), await sync_parent.aenqueue(5)
            await app.awork(drain=True)
            assert (await first.aresult(timeout=WAIT_SECONDS), await second.aresult(timeout=WAIT_SECONDS)) == (3, 7)

    asyncio.run(main())


def test_asked_to_stop_before_it_runs_a_worker_ends_at_once() -> None:
    app = Holdfast("memory://")

    @app.task(name="never")
    async def never() -> None:
        raise AssertionError

    never.enqueue()
    worker = app.worker()
    worker.request_stop()
    assert asyncio.run(asyncio.wait_for(worker.run(), WAIT_SECONDS)) == Drained(succeeded=0, failed=0, left=1)
    app.close()
