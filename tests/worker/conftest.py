"""What the worker's tests stand on: an app of its own per test, on both stores, and async tests that cannot hang."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast.backends.sqlite.memory import MemoryBackend

DEADLINE_SECONDS = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests, each on a loop of its own, with a deadline; close the app's store there."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def whole() -> None:
        try:
            await asyncio.wait_for(test(**given), DEADLINE_SECONDS)
        finally:
            for value in given.values():
                if isinstance(value, WorkerApp):
                    await value.close()

    asyncio.run(whole())
    return True


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerApp]:
    """An app without a face: tasks, a hub and a store the test can reach and break."""
    if request.param == "memory":
        shared = MemoryBackend()
        yield WorkerApp(lambda: shared)
    else:
        from holdfast.backends.sqlite.backend import SqliteBackend

        path = str(tmp_path / "jobs.db")
        yield WorkerApp(lambda: SqliteBackend(path))


@pytest.fixture
def memory_app() -> WorkerApp:
    shared = MemoryBackend()
    return WorkerApp(lambda: shared)
