"""enqueue_many makes the next calls while a step is under way: one step at a time, none lost, none after a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import BackendUnavailable, Holdfast
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.producer import CHUNK_JOBS_MAX
from holdfast.records import NewJob

PATIENCE_SECONDS = 90.0


class Steps:
    """What reaches the store, step by step; `before` is awaited in each with its number from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: list[int] = []
        self.at_once = self.most_at_once = self.begun = 0
        real = MemoryBackend.enqueue
        steps = self

        async def enqueue(self: MemoryBackend, jobs: Sequence[NewJob], now: float | None = None) -> Any:
            steps.begun += 1
            steps.at_once += 1
            steps.most_at_once = max(steps.most_at_once, steps.at_once)
            try:
                await steps.before(steps.begun)
                answers = await real(self, jobs, now)
                steps.stored.append(len(jobs))
                return answers
            finally:
                steps.at_once -= 1

        monkeypatch.setattr(MemoryBackend, "enqueue", enqueue)

    async def before(self, number: int) -> None:
        return None


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("memory://") as app:
        app.open()
        yield app


def enqueue(app: Holdfast, calls: Iterator[Any], twin: str) -> Any:
    return app.enqueue_many(calls) if twin == "sync" else asyncio.run(app.aenqueue_many(calls))


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_the_next_calls_are_made_while_a_step_is_under_way(app: Holdfast, steps: Steps, twin: str) -> None:
    made_next = threading.Event()
    waited: list[bool] = []

    async def before(number: int) -> None:
        if number == 1:
            waited.append(await asyncio.to_thread(made_next.wait, PATIENCE_SECONDS))

    def calls() -> Iterator[Any]:
        for number in range(2 * CHUNK_JOBS_MAX + 7):
            if number == CHUNK_JOBS_MAX + 1:
                made_next.set()
            yield app.task_by_name("t").bind(number)

    steps.before = before  # type: ignore[method-assign]
    assert enqueue(app, calls(), twin).created == 2 * CHUNK_JOBS_MAX + 7
    assert waited == [True]
    assert steps.stored == [CHUNK_JOBS_MAX, CHUNK_JOBS_MAX, 7]
    assert steps.most_at_once == 1


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_what_was_begun_is_stored_and_told_where_making_a_call_raises(app: Holdfast, steps: Steps, twin: str) -> None:
    told: list[Any] = []
    app.on("enqueued")(told.append)

    def calls() -> Iterator[Any]:
        for number in range(CHUNK_JOBS_MAX + 5):
            yield app.task_by_name("t").bind(number)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        enqueue(app, calls(), twin)
    assert steps.stored == [CHUNK_JOBS_MAX]
    assert len(told) == CHUNK_JOBS_MAX


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_nothing_follows_a_step_that_failed(app: Holdfast, steps: Steps, twin: str) -> None:
    async def before(number: int) -> None:
        if number == 2:
            raise BackendUnavailable("gone")

    steps.before = before  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable, match="gone"):
        enqueue(app, (app.task_by_name("t").bind(number) for number in range(4 * CHUNK_JOBS_MAX)), twin)
    assert steps.stored == [CHUNK_JOBS_MAX]
    assert steps.begun == 2


@pytest.mark.parametrize("where", ["in the store", "between calls"])
def test_a_cancelled_caller_cancels_the_step_under_way(app: Holdfast, steps: Steps, where: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def before(number: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def calls() -> Any:
        for number in range(CHUNK_JOBS_MAX):
            yield app.task_by_name("t").bind(number)
        if where == "between calls":
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(app.aenqueue_many(calls()))
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE_SECONDS)

    steps.before = before  # type: ignore[method-assign]
    asyncio.run(main())
    assert ended.wait(PATIENCE_SECONDS)
    assert steps.stored == []
