"""A worker with runner processes fills many slots half by half: one half runs while the other is settled and filled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp, soon

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.records import ClaimRequest, Exchanged
from holdfast.worker.keeper import store_client
from holdfast.worker.keeper.exchange_loop import CLAIM_JOBS_MIN
from holdfast.worker.keeper.runners import InProcessRunners
from holdfast.worker.keeper.store_client import JOBS_MIN, Halves
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


async def test_jobs_of_groups_that_ended_together_come_back_half_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcessRunners, "in_processes", True)
    monkeypatch.setattr(store_client, "IDLE_EXCHANGES_MAX", float("inf"))
    store = Watched()
    app = WorkerApp(lambda: store)
    begun: dict[str, list[int]] = {}

    @app.task(name="noted", group=lambda name, number: name)
    async def noted(name: str, number: int) -> None:
        begun.setdefault(name, []).append(number)

    await app.put(*(noted.bind(f"g{group}", number) for number in range(4) for group in range(100)))
    assert (await app.drain(slots=400)).succeeded == 400
    assert store.claims[0] == (200, 100)
    assert store.claims[1] == (50, 50)  # all had ended
    assert store.claims[2][1] >= 50  # the other half, made ready by the exchange before
    assert set(map(tuple, begun.values())) == {(0, 1, 2, 3)} and len(begun) == 100


def claimed(number: int, taken: int = 0, *, full: bool = False) -> Halves:
    found = Halves()
    found.claimed(number, taken, 10.0, full=full)
    return found


def test_half_of_the_jobs_are_claimed_if_all_of_them_ended_soon_after_they_came() -> None:
    found = claimed(99)
    assert found.alternate(99, 0, 10.01, 0.005) and found.size == 50
    assert not found.alternate(99, 0, 10.03, 0.005)  # they ran for long, so the store is idle anyway
    assert not found.alternate(50, 49, 10.01, 0.005)  # there are two halves already
    assert not claimed(JOBS_MIN - 1).alternate(JOBS_MIN - 1, 0, 10.01, 0.005)
    assert not claimed(200, full=True).alternate(200, 0, 10.01, 0.005)  # there are more: slots are the bound


def test_a_claim_that_only_settled_says_nothing_of_how_many_there_are() -> None:
    found = claimed(30, 70)
    found.claimed(0, 60, 10.005, full=False)
    assert found.alternate(40, 0, 10.01, 0.005) and found.size == 50
