"""On a busy worker the next exchange leaves before the answer to the last one is worked through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from worker_bench import WorkerApp, soon

from holdfast.backends.memory.backend import MemoryBackend
from holdfast.lifecycle import State
from holdfast.options import WorkerOptions
from holdfast.records import Exchanged, Lease
from holdfast.worker.embedded import EmbeddedWorker
from holdfast.worker.local import LocalLink

SLOTS, JOBS = 400, 1000


class Busy(MemoryBackend):
    """Answers the first settlements when more outcomes wait at the worker; notes what happened in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.full, self.settling = asyncio.Event(), asyncio.Event()  # all slots are taken; the first half has ended
        self.loop = asyncio.get_running_loop()
        self.worker: EmbeddedWorker | None = None
        self.forget = False  # the worker, while an answer waits to be worked through
        self._held = False

    async def exchange(self, settlements: Any, releases: Any, request: Any, now: float | None = None) -> Exchanged:
        assert self.worker is not None and self.worker._keeper is not None
        trader = self.worker._keeper._trader
        self.seen.append("exchange")
        if settlements and not self._held:
            self._held = True
            self.loop.call_soon_threadsafe(self.settling.set)
            while len(trader.inbox) < SLOTS // 2:  # noqa: ASYNC110 - the other half of the slots ends meanwhile
                await asyncio.sleep(0)
            self.seen.append("answer")
        elif trader._behind is not None and self.forget:
            self.forget = False
            self.seen.append("forgotten")
            await self.recover(dead=[request.worker])
            await trader._tenure.forgotten(request.worker)
        answer = await super().exchange(settlements, releases, request, now)
        if self.seen.count("exchange") == 2:
            self.loop.call_soon_threadsafe(self.full.set)
        return answer


async def run(monkeypatch: pytest.MonkeyPatch, store: Busy) -> tuple[list[str], list[str]]:
    """Run the jobs; answers their ids and the handlers' calls."""
    monkeypatch.setattr(LocalLink, "apart", True)
    start = LocalLink.start

    def noted(self: LocalLink, leases: Sequence[Lease]) -> None:
        store.seen.append("start")
        start(self, leases)

    monkeypatch.setattr(LocalLink, "start", noted)
    app = WorkerApp(lambda: store)
    runs: list[str] = []

    @app.task(name="one")
    async def one(number: int) -> None:
        runs.append(str(number))
        if number < SLOTS:
            await soon(store.full if number < SLOTS // 2 else store.settling)

    ids = await app.put(*(one.bind(number) for number in range(JOBS)))
    store.worker = EmbeddedWorker(app, WorkerOptions(slots=SLOTS, drain=True, poll_every=0.05))
    drained = await store.worker.run(signals=False)
    assert (drained.succeeded, drained.failed, drained.left) == (JOBS, 0, 0)
    for job_id in ids:
        assert (await app.job(job_id)).state is State.SUCCEEDED
    return ids, runs


async def test_the_store_has_its_next_work_before_the_runners_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Busy()
    _, runs = await run(monkeypatch, store)
    answered = store.seen.index("answer")
    assert store.seen[answered + 1 : answered + 3] == ["exchange", "start"]
    assert sorted(runs, key=int) == [str(number) for number in range(JOBS)]  # each job once


async def test_a_lease_lost_before_the_runners_heard_of_it_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Busy()
    store.forget = True
    _, runs = await run(monkeypatch, store)
    assert "forgotten" in store.seen
    lost = len(runs) - JOBS  # had ended, and its settlement was on the way
    assert sorted(set(runs), key=int) == [str(number) for number in range(JOBS)]
    assert lost <= SLOTS // 2
