"""The router and a plain store on the same random walk return the same at every step and hold the same after it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.records import WorkerRecord
from holdfast.testing.conformance import World
from holdfast.testing.conformance.portrait import WorkerStatus, portray, unlike
from holdfast.testing.conformance.walk import QUEUES, Walk

from ...reference.backend import ReferenceBackend
from .shelves import Page, memory_shard

STEPS = 250


class Model(ReferenceBackend):
    """The plain reference; the walk repeats ids on it as it does on shards."""

    sharded = True

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await super().register(replace(worker, queues=QUEUES), now)


class Router(ShardedBackend):
    """Workers say at once what they serve, as real ones do; a shard they come to later has a later deadline."""

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await super().register(replace(worker, queues=QUEUES), now)


class Swept(Walk):
    """A walk that sweeps before it claims: a claim by itself sweeps only the shards it visits."""

    async def exchange(self) -> object:
        await self.world.backend.recover(now=self.world.now)
        await self.world.backend.promote(now=self.world.now)
        return await super().exchange()


def _without_order(portrait: WorkerStatus) -> WorkerStatus:
    """Shards have no order among them: jobs by id, turns by queue, workers as they come."""
    queues = {job.id: job.queue for job in portrait.jobs}
    return replace(
        portrait,
        jobs=tuple(sorted(portrait.jobs, key=lambda job: job.id)),
        turns=tuple(sorted(portrait.turns, key=lambda job_id: queues[job_id])),
    )


def _gave_other_turns(one: WorkerStatus, two: WorkerStatus, ready: frozenset[str]) -> bool:
    """Only the turns differ, and only of jobs that became ready in this step: the contract leaves their order open."""
    before = [[job_id for job_id in portrait.turns if job_id in ready] for portrait in (one, two)]
    differ = one.turns != two.turns and sorted(one.turns) == sorted(two.turns) and before[0] == before[1]
    return differ and not unlike(one, replace(two, turns=one.turns))


async def _walk_both(seed: int) -> int:
    model = await World.create(lambda store: Model())
    other = await World.create(lambda store: Router(Page(), memory_shard))
    walks = Swept(model, seed), Swept(other, seed)
    ready: frozenset[str] = frozenset()
    for number in range(STEPS):
        (name, expected), (_, answer) = [await walk.step() for walk in walks]
        if name == "repeat" and expected and not expected[0]:  # type: ignore[index]
            # the router still knows the first answers to the settlements; in one store they went with the worker's row
            answer, expected = answer[0], expected[0]  # type: ignore[index]
        assert answer == expected, f"seed {seed}, step {number}, {name}: {answer} instead of {expected}"
        portraits = [_without_order(await portray(world.backend, world.now)) for world in (model, other)]
        if _gave_other_turns(portraits[0], portraits[1], ready):
            return number
        lines = unlike(*portraits)
        assert not lines, f"seed {seed}, step {number}, {name} → {answer}:\n" + "\n".join(lines[:8])
        ready = frozenset(portraits[0].turns)
    return STEPS


@pytest.mark.parametrize("seed", range(2000, 2020))
def test_the_router_walks_like_memory(seed: int) -> None:
    assert asyncio.run(_walk_both(seed)) > 5
