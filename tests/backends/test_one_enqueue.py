"""One job enqueued through an app, by the store's fast path: the same on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import State

from ..servers import postgres, valkey

_numbers = count(1)
_PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda folder: postgres.shared_server().url(f"one_enqueue_{next(_numbers)}"),
    "redis": lambda folder: valkey.shared_server().url(f"one-enqueue-{next(_numbers)}"),
}


@pytest.fixture(params=list(_PLACES))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(_PLACES[request.param](tmp_path)) as app:
        yield app


def test_many_threads_store_each_job_once(app: Holdfast) -> None:
    @app.task(name="nothing")
    async def nothing(number: int) -> None:
        pass

    calls = [nothing.bind(number) for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(app.enqueue, calls + calls))
    assert sum(job.created for job in jobs) == 200
    assert app.counts()["default"][State.READY] == 200


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_rule_declared_after_the_first_job_is_stored_before_the_next(app: Holdfast, way: str) -> None:
    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    for _ in range(2):  # the second takes the fast path
        nothing.enqueue()
    app.queue("mail", limit=3)
    late = nothing.using(queue="mail")
    job = late.enqueue() if way == "sync" else asyncio.run(late.aenqueue())
    assert job.created
    assert [queue.limit for queue in app.queues.list() if queue.name == "mail"] == [3]
