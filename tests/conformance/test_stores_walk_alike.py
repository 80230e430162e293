"""Two stores on the same random walk return the same at every step and hold the same after every few.

The reference is the plainest reading of the contract, so the stores are held against it. All that is stored is in a
dump, so every few steps the dumps are compared. All verbs that read are asked, which takes ten times as long, where
the dumps differ in more than chance explains, and now and then in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sqlite import enqueue
from holdfast.lifecycle import State
from holdfast.records import Dump
from holdfast.testing.conformance import MakeBackend, World
from holdfast.testing.conformance.compare import Tables, ranked, tables_of
from holdfast.testing.conformance.portrait import WorkerStatus, portray, unlike
from holdfast.testing.conformance.walk import (
    LOOK_EVERY,
    ChainWalk,
    DependencyWalk,
    DyingWalk,
    FlowWalk,
    KeyWalk,
    OrderWalk,
    Walk,
)

from ..reference.backend import ReferenceBackend
from ..servers import postgres, sqlite, valkey

WALKS = (Walk, FlowWalk, ChainWalk, DependencyWalk, OrderWalk, DyingWalk)
SEEDS = range(1000, 1020)
STEPS = 150
PORTRAY_EVERY = 4 * LOOK_EVERY
BY_CHANCE = {"jobs": {"token", "fence", "turn", "seq", "lane"}, "marks": {"fence"}, "steps": {"fence"}}


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
            dumps = [_plain(await world.backend.dump()) for world in (model, other)]
            if dumps[0] == dumps[1] and number % PORTRAY_EVERY:
                ready = frozenset(dumps[0][1])
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


def _plain(dump: Dump) -> tuple[Tables, list[str]]:
    """What is stored, without what chance decides, and the ready jobs in order of their turn."""
    tables = tables_of(dump, besides=BY_CHANCE)
    for row in tables["jobs"]:
        row["errors"] = [_without_fence(error) for error in row["errors"]]
    for row in tables["letters"]:
        row["error"] = _without_fence(row["error"])
    tables["letters"].sort(key=lambda row: str(row["id"]))
    return tables, ranked([row for row in dump.tables["jobs"] if row["state"] == State.READY], "turn")


def _without_fence(error: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (error or {}).items() if name != "fence"}


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


@pytest.mark.turn
@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_sqlite_walks_like_the_reference(seed: int, kind: type[Walk], tmp_path: Path) -> None:
    asyncio.run(walk_both(seed, STEPS, lambda store: sqlite.store_at(tmp_path / f"{store}.db"), kind))


@pytest.mark.turn
@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_sqlite_walks_like_the_reference_with_bodies(
    seed: int, kind: type[Walk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of any size are stored beside their jobs, as large ones are."""
    monkeypatch.setattr(enqueue, "ARGS_INLINE_MAX", 0)
    asyncio.run(walk_both(seed, STEPS, lambda store: sqlite.store_at(tmp_path / f"{store}.db"), kind))


class UngroupedDyingWalk(DyingWalk):
    """A claim of PostgreSQL that buries a job has not locked the group of its copy: the next one places it."""

    groups = (None,)


@pytest.mark.turn
@pytest.mark.parametrize("kind", [*WALKS[:-1], UngroupedDyingWalk])
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_walks_like_the_reference(seed: int, kind: type[Walk]) -> None:
    asyncio.run(walk_both(seed, STEPS, postgres.fresh_stores(), kind))


@pytest.mark.turn
@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_redis_walks_like_the_reference(seed: int, kind: type[Walk]) -> None:
    asyncio.run(walk_both(seed, STEPS, valkey.fresh_stores(), kind))


@pytest.mark.parametrize("seed", SEEDS[:4])
@pytest.mark.parametrize("make", [postgres.fresh_stores, valkey.fresh_stores], ids=["postgres", "redis"])
def test_keys_that_are_freed_and_extended_walk_like_the_reference(seed: int, make: Callable[[], MakeBackend]) -> None:
    asyncio.run(walk_both(seed, STEPS, make(), KeyWalk))


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_keys_that_are_freed_and_extended_walk_alike_on_sqlite(seed: int, tmp_path: Path) -> None:
    asyncio.run(walk_both(seed, STEPS, lambda store: sqlite.store_at(tmp_path / f"{store}.db"), KeyWalk))
