"""A worker with many slots fills them half by half: one half runs while the store settles and fills the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_bench import WorkerApp, soon

from holdfast.backends.memory.backend import MemoryBackend
from holdfast.records import ClaimRequest, Exchanged
from holdfast.worker.trading import CLAIM_JOBS_MIN


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


async def test_the_second_half_is_claimed_while_the_first_runs() -> None:
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


@pytest.mark.parametrize("slots", [1, 10, CLAIM_JOBS_MIN])
async def test_a_worker_with_few_slots_fills_them_at_once(slots: int) -> None:
    store = Watched()
    app = WorkerApp(lambda: store)

    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    await app.put(*(nothing.bind() for _ in range(slots)))
    assert (await app.drain(slots=slots)).succeeded == slots
    assert store.claims[0] == (slots, slots)
