"""A worker with runner processes fills many slots half by half: one half runs while the other is settled and filled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp, soon

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.records import ClaimRequest, Exchanged
from holdfast.worker.keeper.exchange_loop import CLAIM_JOBS_MIN
from holdfast.worker.keeper.runners import InProcessRunners
from holdfast.worker.processes.pool import Pool


class Watched(MemoryBackend):
    """Notes how many jobs each claim may bring and how many it brought; tells when the second one begins."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[tuple[int, int]] = []
        self.second = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def exchange(self, settlements: Any, releases: Any, request: Any, now: float | None = None) -> Exchanged:
        if len(self.claims) == 1 and self.loop is not None:
            self.loop.call_soon_threadsafe(self.second.set)
        answer = await super().exchange(settlements, releases, request, now)
        if isinstance(request, ClaimRequest):
            self.claims.append((request.most, len(answer.leases)))
        return answer


async def test_the_second_half_is_claimed_while_the_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pool.in_processes
    monkeypatch.setattr(InProcessRunners, "in_processes", True)
    store = Watched()
    store.loop = asyncio.get_running_loop()
    app = WorkerApp(lambda: store)

    @app.task(name="waits")
    async def waits() -> None:
        await soon(store.second)

    await app.put(*(waits.bind() for _ in range(1000)))
    drained = await app.drain(slots=400)
    assert drained.succeeded == 1000
    assert store.claims[:2] == [(200, 200), (200, 200)]
    assert max(most for most, _ in store.claims) == 200


@pytest.mark.parametrize(("slots", "in_processes"), [(1, True), (10, True), (CLAIM_JOBS_MIN, True), (400, False)])
async def test_a_worker_with_few_slots_or_in_one_process_fills_them_at_once(
    monkeypatch: pytest.MonkeyPatch, slots: int, in_processes: bool
) -> None:
    monkeypatch.setattr(InProcessRunners, "in_processes", in_processes)
    store = Watched()
    app = WorkerApp(lambda: store)

    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    await app.put(*(nothing.bind() for _ in range(slots)))
    assert (await app.drain(slots=slots)).succeeded == slots
    assert store.claims[0] == (slots, slots)
