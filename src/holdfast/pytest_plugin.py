"""The pytest plug-in: fixtures for tests of a program that uses Holdfast. pytest finds it by its entry point.

It imports nothing of Holdfast before a test asks for a fixture. The fixtures are plain functions, so they serve sync
tests and async ones alike, under any plug-in that runs those.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .app import Holdfast
    from .testing import Sandbox
    from .worker.embedded import EmbeddedWorker

STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05  # a sandbox's clock moves in steps that wake no waiter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("holdfast_app", "Your app as MODULE:APP, such as shop.jobs:app, for the fixtures of Holdfast.")


@pytest.fixture(scope="session")
def holdfast_app(request: pytest.FixtureRequest) -> Holdfast:
    """Your app: the ini option `holdfast_app = MODULE:APP`, or override this fixture and return the app."""
    from .cli.app_import import ImportFailed, import_app

    path = str(request.config.getini("holdfast_app"))
    if not path:
        pytest.fail(
            "Holdfast's fixtures do not know your app. Say `holdfast_app = MODULE:APP` in pytest's configuration, or "
            "define a fixture holdfast_app that returns it.",
            pytrace=False,
        )
    try:
        return import_app(path, str(request.config.rootpath))
    except ImportFailed as error:
        pytest.fail(f"holdfast_app = {path}: {error.text} {error.hint}".rstrip(), pytrace=False)


@pytest.fixture
def holdfast_sandbox(holdfast_app: Holdfast) -> Iterator[Sandbox]:
    """Your app on a store in memory, with a clock that moves only when advanced, for the length of one test."""
    from .testing import sandbox

    with sandbox(holdfast_app) as box:
        yield box


@pytest.fixture
def holdfast_worker(holdfast_sandbox: Sandbox) -> Iterator[EmbeddedWorker]:
    """A worker that runs the sandbox's jobs in a thread of its own while the test runs."""
    worker = holdfast_sandbox.app.worker(poll_every=POLL_SECONDS)
    ready = threading.Event()
    failures: list[BaseException] = []
    stops: list[Callable[[], object]] = []

    async def run() -> None:
        stop = asyncio.Event()
        async with worker:
            stops.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set))
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="holdfast-worker", daemon=True)
    thread.start()
    ready.wait()
    if failures:
        raise failures[0]
    yield worker
    with suppress(RuntimeError):  # its loop is closed: it has failed
        stops[0]()
    thread.join(STOP_SECONDS_MAX)
    if failures:
        raise failures[0]
    if thread.is_alive():
        pytest.fail(f"a handler has not ended {STOP_SECONDS_MAX:g} s after the test.", pytrace=False)
