"""Two stores that go the same random way answer alike at every step and look alike after every few.

The reference is the plainest reading of the contract, so the stores are held against it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.testing.conformance import MakeBackend, World
from holdfast.testing.conformance.portrait import WorkerStatus, portray, unlike
from holdfast.testing.conformance.walk import LOOK_EVERY, ChainWalk, FlowWalk, Walk

from ..reference.backend import ReferenceBackend
from ..servers import postgres, sqlite, valkey

WALKS = (Walk, FlowWalk, ChainWalk)
SEEDS = range(1000, 1020)
STEPS = 150


async def walk_both(seed: int, steps: int, make: MakeBackend, kind: type[Walk] = Walk) -> None:
    model = await World.create(lambda store: ReferenceBackend())
    other = await World.create(make)
    ready: frozenset[str] = frozenset()
    try:
        walks = kind(model, seed), kind(other, seed)
        for number in range(steps):
            (name, expected), (_, answer) = [await walk.step() for walk in walks]
            if name in ("exchange", "repeat") and _chose_otherwise(expected, answer):
                return
            assert answer == expected, f"seed {seed}, step {number}, {name}: {answer} instead of {expected}"
            if number % LOOK_EVERY:
                continue
            one, two = await portray(model.backend, model.now), await portray(other.backend, other.now)
            if _gave_other_turns(one, two, ready):
                return
            lines = unlike(one, two)
            assert not lines, f"seed {seed}, step {number}, {name} → {answer}:\n" + "\n".join(lines[:8])
            ready = frozenset(one.turns)
    finally:
        await model.close()
        await other.close()


# Jobs of several groups that become ready in one step get their turns in an order the contract leaves open. Where two
# stores choose differently their ways part, and the walk ends there; the cases judge what the contract does fix.


def _gave_other_turns(one: WorkerStatus, two: WorkerStatus, ready: frozenset[str]) -> bool:
    """Only the turns differ, and only of jobs that became ready since the last look."""
    before = [[job_id for job_id in portrait.turns if job_id in ready] for portrait in (one, two)]
    differ = one.turns != two.turns and sorted(one.turns) == sorted(two.turns) and before[0] == before[1]
    return differ and not unlike(one, replace(two, turns=one.turns))


def _chose_otherwise(one: object, two: object) -> bool:
    """Two answers to an exchange that differ only in which jobs were leased, not in how many."""
    if not (isinstance(one, tuple) and isinstance(two, tuple)):
        return False
    (known, answers, leases, recovered, *_), (known2, answers2, leases2, recovered2, *_) = one, two
    alike = (known, answers, recovered, len(leases)) == (known2, answers2, recovered2, len(leases2))
    return bool(alike and leases != leases2)


@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_sqlite_walks_like_the_reference(seed: int, kind: type[Walk], tmp_path: Path) -> None:
    asyncio.run(walk_both(seed, STEPS, lambda store: sqlite.store_at(tmp_path / f"{store}.db"), kind))


@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_walks_like_the_reference(seed: int, kind: type[Walk]) -> None:
    asyncio.run(walk_both(seed, STEPS, postgres.fresh_stores(), kind))


@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_redis_walks_like_the_reference(seed: int, kind: type[Walk]) -> None:
    asyncio.run(walk_both(seed, STEPS, valkey.fresh_stores(), kind))
