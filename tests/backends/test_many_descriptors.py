"""A process with thousands of open descriptors, as a busy web server is: select() takes none above 1023, we do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import State

from ..servers import postgres, valkey

OPEN = 1100
_numbers = count(1)
_PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda folder: postgres.shared_server().url(f"descriptors_{next(_numbers)}"),
    "postgres, pooled": lambda folder: postgres.shared_server().url(f"descriptors_{next(_numbers)}", pooled="true"),
    "redis": lambda folder: valkey.shared_server().url(f"descriptors-{next(_numbers)}"),
}
_APP = """
from holdfast import Holdfast

app = Holdfast()


@app.task(name="nothing")
def nothing(n: int) -> int:
    return n
"""

_CROWDED = f"""
import os, runpy
kept = [os.open(os.devnull, os.O_RDONLY) for _ in range({OPEN})]
runpy.run_module("holdfast.cli", run_name="__main__")
"""


@pytest.fixture(params=list(_PLACES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _PLACES[request.param](tmp_path)


@pytest.fixture
def allowed() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def many_open() -> Iterator[None]:
    numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(OPEN)]
    try:
        yield
    finally:
        for number in numbers:
            os.close(number)


@pytest.mark.parametrize("opened", ["before", "meanwhile"])
def test_enqueue_and_work_go_on_above_1023(url: str, allowed: None, opened: str) -> None:
    with contextlib.ExitStack() as stack:
        if opened == "meanwhile":
            stack.enter_context(many_open())
        app = stack.enter_context(Holdfast(url))

        @app.task(name="nothing")
        def nothing(n: int) -> int:
            return n

        nothing.enqueue(-1)
        if opened == "before":
            stack.enter_context(many_open())
        for n in range(10):
            nothing.enqueue(n)
        app.enqueue_many(nothing.bind(n) for n in range(10, 20))
        asyncio.run(aenqueue_some(app))
        assert app.work(drain=True).succeeded == 31
        assert app.counts()["default"][State.SUCCEEDED] == 31


async def aenqueue_some(app: Holdfast) -> None:
    for n in range(20, 30):
        await app.named("nothing").aenqueue(n)


def test_a_process_worker_whose_descriptors_are_above_1023_works(url: str, allowed: None, tmp_path: Path) -> None:
    (tmp_path / "crowded.py").write_text(_APP)
    with Holdfast(url) as app:

        @app.task(name="nothing")
        def nothing(n: int) -> int:
            return n

        app.enqueue_many(nothing.bind(n) for n in range(20))
        ended = subprocess.run(
            [sys.executable, "-c", _CROWDED, "work", "crowded:app", "--url", url, "--drain", "--runners", "1"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert app.counts()["default"][State.SUCCEEDED] == 20
