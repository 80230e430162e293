"""The lifespan helper under FastAPI, Starlette and Litestar: opened, closed, and a worker inside for development."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar
from starlette.applications import Starlette

from holdfast import ConfigurationError, Holdfast, State
from holdfast.asgi import lifespan

Enter = Callable[[], AbstractAsyncContextManager[Any]]


def fastapi(jobs: Holdfast, **settings: Any) -> Enter:
    api = FastAPI(lifespan=lifespan(jobs, **settings))
    return lambda: api.router.lifespan_context(api)


def starlette(jobs: Holdfast, **settings: Any) -> Enter:
    web = Starlette(lifespan=lifespan(jobs, **settings))
    return lambda: web.router.lifespan_context(web)


def litestar(jobs: Holdfast, **settings: Any) -> Enter:
    return Litestar(lifespan=[lifespan(jobs, **settings)], logging_config=None).lifespan


@pytest.fixture
def jobs(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db")


@pytest.mark.parametrize("framework", [fastapi, starlette, litestar])
def test_the_store_is_open_while_the_program_runs(jobs: Holdfast, framework: Callable[..., Enter]) -> None:
    async def run() -> None:
        async with framework(jobs)():
            assert jobs._store.is_open
            assert await jobs.acounts() == {}
        assert not jobs._store.is_open

    asyncio.run(run())


@pytest.mark.parametrize("framework", [fastapi, litestar])
def test_a_worker_runs_in_the_program_and_ends_with_it(jobs: Holdfast, framework: Callable[..., Enter]) -> None:
    loops: list[object] = []

    @jobs.task(name="work")
    async def work() -> int:
        loops.append(asyncio.get_running_loop())
        return 7

    async def run() -> None:
        async with framework(jobs, worker=True, slots=2, poll_every=0.05)():
            job = await work.aenqueue()
            assert await job.aresult(timeout=60) == 7
            assert loops == [asyncio.get_running_loop()]
            assert [worker.slots for worker in await jobs.aworkers()] == [2]
        assert await jobs.aworkers() == []
        await jobs.aclose()

    asyncio.run(run())


def test_it_fits_into_a_lifespan_of_one_s_own_and_closes_after_an_error(jobs: Holdfast) -> None:
    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[None]:
        async with lifespan(jobs)(api):
            yield

    async def run() -> None:
        api = FastAPI(lifespan=own)
        with pytest.raises(RuntimeError, match="of the program"):
            async with api.router.lifespan_context(api):
                raise RuntimeError("of the program")
        assert not jobs._store.is_open

    asyncio.run(run())


def test_a_store_that_cannot_be_opened_ends_the_program_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "foreign.db").write_text("not a database, and long enough to be one: " + "x" * 2000)
    jobs = Holdfast(f"sqlite:///{tmp_path}/foreign.db")

    async def run() -> None:
        async with starlette(jobs)():
            raise AssertionError("it must not start")

    with pytest.raises(ConfigurationError):
        asyncio.run(run())


def test_a_worker_that_cannot_start_ends_the_program_and_no_job_is_tried(jobs: Holdfast) -> None:
    @jobs.on_startup
    def refuse(resources: Any) -> None:
        raise ConnectionError("away")

    @jobs.task(name="work")
    def work() -> None: ...

    async def run() -> State:
        job = await work.aenqueue()
        with pytest.raises(Exception, match="refuse failed: ConnectionError"):
            async with starlette(jobs, worker=True)():
                raise AssertionError("it must not start")
        state = (await job.arefresh()).state
        await jobs.aclose()
        return state

    assert asyncio.run(run()) is State.READY
