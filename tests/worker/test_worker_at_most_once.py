"""At-most-once jobs (max_stalls=0) that were leased, and marked in the store, but never began: they cost nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast import Call
from holdfast.context import Ended, Stop
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Lease, Release
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.runner.attempt import Runner


@dataclass
class Nothing:
    pass


class Bench:
    """A runner whose attempts are taken back just before they begin, unless `taken` is False."""

    def __init__(self, app: WorkerApp, *, taken: bool) -> None:
        self.ended: list[Ended] = []
        self.begun: list[str] = []
        self._more = asyncio.Event()
        self.runner = Runner(
            find_handler=app._find_handler,
            hub=app._hub,
            slots=2,
            reports=Reports(),
            hand_over=self._hand_over,
            mark_begin=lambda token: not taken,
        )

        @app.task(name="coroutine")
        async def coroutine() -> None:
            self.begun.append("coroutine")

        @app.task(name="thread")
        def thread() -> None:
            self.begun.append("thread")

        @app.task(name="batch", batch=2, batch_of=Nothing)
        async def batch(calls: list[Call[Any]]) -> None:
            self.begun.append("batch")

    def _hand_over(self, batch: list[Ended]) -> None:
        self.ended += batch
        self._more.set()

    def start(self, task: str) -> None:
        leases = [Lease(f"j{n}", f"token {n}", n, task, "q", b"{}", max_stalls=0) for n in (1, 2)]
        (self.runner.start_batch if task == "batch" else self.runner.start)(leases)

    async def until_ended(self) -> None:
        while len(self.ended) < 2:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), WAIT_SECONDS)
        self.runner.close()


RELEASED = [Release(id=f"j{n}", token=f"token {n}") for n in (1, 2)]


@pytest.mark.parametrize("task", ["coroutine", "thread", "batch"])
async def test_one_that_is_taken_back_as_it_begins_is_released(memory_app: WorkerApp, task: str) -> None:
    bench = Bench(memory_app, taken=True)
    bench.start(task)
    await bench.until_ended()
    assert not bench.begun and sorted(bench.ended, key=lambda end: end.id) == RELEASED


@pytest.mark.parametrize("way", ["fence", "cancelled from outside"])
async def test_one_that_is_stopped_before_its_first_step_is_released(memory_app: WorkerApp, way: str) -> None:
    """The frame with the batch and the one that stops it are read together."""
    bench = Bench(memory_app, taken=False)
    bench.start("batch")
    if way == "fence":
        bench.runner.warn_all()
        bench.runner.stop_all(Stop.FENCED)
    else:
        [handle] = [task for task in asyncio.all_tasks() if task.get_name() == "j1"]
        handle.cancel()
    await bench.until_ended()
    assert not bench.begun and sorted(bench.ended, key=lambda end: end.id) == RELEASED


async def test_one_that_is_cancelled_before_its_first_step_is_cancelled(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app, taken=False)
    bench.start("batch")
    bench.runner.stop([("j1", "token 1"), ("j2", "token 2")], Stop.CANCELLED)
    await bench.until_ended()
    endings = [end.ending for end in bench.ended if isinstance(end, Settlement)]
    assert not bench.begun and endings == [Ending.CANCELLED] * 2


async def test_a_batch_is_not_cut_into_pieces_when_it_is_marked(memory_app: WorkerApp) -> None:
    seen: list[int] = []

    @memory_app.task(name="once", batch=7, batch_of=Nothing, max_stalls=0, retry=0)
    async def once(calls: list[Call[Any]]) -> None:
        seen.append(len(calls))

    await memory_app.put(*(once.bind() for _ in range(14)))
    await memory_app.drain(slots=2)
    assert seen == [7, 7]
