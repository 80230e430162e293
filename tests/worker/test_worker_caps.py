"""Claims capped by task: all jobs of capped tasks are done, never more at once than there is room for, none waits here.

The store of these tests keeps the caps by giving back what is over; the runners distribute slots as the pool does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.lifecycle import Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Lease, Release
from holdfast.worker.keeper.runners import InProcessRunners
from holdfast.worker.processes.pool import IsolatedSlots

TASKS = ("pdf", "scan", "video")


class Capping(MemoryBackend):
    """Keeps caps by task, and counts the claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        answer = await super().exchange(settlements, releases, request, now)
        if request is None:
            return answer
        self.claims += 1
        taken, kept, over = Counter[str](), list[Lease](), list[Lease]()
        for lease in answer.leases:
            taken[lease.task] += 1
            fits = taken[lease.task] <= request.most_by_task.get(lease.task, 10**9)
            (kept if fits else over).append(lease)
        await self.release([Release(id=lease.id, token=lease.token) for lease in over])
        return Exchanged(answers=answer.answers, leases=tuple(kept), known=answer.known, recovered=answer.recovered)


@pytest.mark.parametrize("room", [1, 2, 3, 5])
@pytest.mark.parametrize("numbers", [(7, 7, 7), (9, 0, 0), (0, 0, 9), (0, 1, 0), (0, 0, 0)])
async def test_a_drain_does_them_all_and_never_more_at_once(
    monkeypatch: pytest.MonkeyPatch, room: int, numbers: tuple[int, ...]
) -> None:
    store, dealing, here, most = Capping(), IsolatedSlots(), Counter[str](), Counter[str]()
    app = WorkerApp(lambda: store)

    def distributed(runners: InProcessRunners) -> Mapping[str, int]:
        return dealing.distribute(room - here.total(), TASKS)

    def left_some(runners: InProcessRunners, caps: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        here.update(lease.task for lease in leases if lease.task in TASKS)
        most["at once"] = max(most["at once"], here.total())
        return dealing.may_be_more(caps, (lease.task for lease in leases))

    monkeypatch.setattr(InProcessRunners, "most_by_task", distributed)
    monkeypatch.setattr(InProcessRunners, "left_some", left_some)
    tasks: dict[str, Any] = {}
    for name in TASKS:

        @app.task(name=name)
        async def heavy(name: str) -> None:
            await asyncio.sleep(0)
            here[name] -= 1

        tasks[name] = heavy

    @app.task(name="light")
    async def light() -> None:
        await asyncio.sleep(0)

    calls = [tasks[name].bind(name) for name, number in zip(TASKS, numbers, strict=True) for _ in range(number)]
    jobs = await app.put(*calls, *(light.bind() for _ in range(20)))
    await app.drain()
    assert [(await app.job(job)).state for job in jobs] == [State.SUCCEEDED] * len(jobs)
    assert most["at once"] <= room
    assert store.claims < 20 * (len(jobs) + 1)
    await app.close()
