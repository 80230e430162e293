"""Walks with messages in flight on each store, and over shards.

HOLDFAST_FLIGHT_WALKS says how many over shards and per store; what CI runs is the same every
time. test_in_flight_mutants.py shows that so many find what is planted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from holdfast.backends.contract import Backend
from holdfast.backends.formulas import Numbering
from holdfast.backends.shard import Shard
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.records import QueueRule

from ..backends.sharded.shelves import Page
from ..reference.backend import ReferenceBackend
from .asking import START
from .flight import Air, Wire
from .in_flight import walk
from .test_random_walk import memory, postgres, redis, sqlite

WALKS = int(os.environ.get("HOLDFAST_FLIGHT_WALKS", "300"))
SHARDS = 2
PARTS = 3  # of the walks of a store

pytestmark = pytest.mark.timeout(600)


class OneStore:
    """All walks on one store, each in a queue of its own, one after the other in time."""

    def __init__(self, store: Backend) -> None:
        self.store = store

    async def connect(self, air: Air) -> Backend:
        return Wire(air, self.store)  # type: ignore[return-value]

    def stores(self) -> Sequence[Backend]:
        return [self.store]


class Shards:
    """A queue in several shards, every worker with a router of its own: one walk's."""

    def __init__(self, queue: str, router: type[ShardedBackend] = ShardedBackend) -> None:
        self.queue, self.router = queue, router
        self.page = Page()
        self.shards: dict[str, ReferenceBackend] = {}

    async def connect(self, air: Air) -> Backend:
        def shard(name: str, numbering: Numbering) -> Shard:
            store = self.shards.setdefault(name, ReferenceBackend(numbering=numbering))
            return Wire(air, store, name)  # type: ignore[return-value]

        router = self.router(self.page, shard)
        await router.declare([QueueRule(name=self.queue, shards=SHARDS)], now=air.now)
        return router

    def stores(self) -> Sequence[Backend]:
        return list(self.shards.values())


def walk_on(make: Callable[[Path], Backend], folder: Path, seeds: Iterable[int]) -> None:
    loop = asyncio.new_event_loop()
    store = make(folder / "store")
    loop.run_until_complete(store.open())
    start = START
    try:
        for seed in seeds:
            start = walk(OneStore(store), seed, loop, start)
    finally:
        loop.run_until_complete(store.close())
        loop.close()


def walk_over_shards(seeds: Iterable[int], router: type[ShardedBackend] = ShardedBackend) -> None:
    loop = asyncio.new_event_loop()
    try:
        for seed in seeds:
            walk(Shards(f"q{seed}", router), seed, loop, START)
    finally:
        loop.close()


@pytest.mark.parametrize("make", [memory, sqlite, postgres, redis], ids=lambda make: make.__name__)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_overlaps_is_doubled_or_lost_on(make: Callable[[Path], Backend], part: int, tmp_path: Path) -> None:
    walk_on(make, tmp_path, range(part, WALKS, PARTS))


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_overlaps_is_doubled_or_lost_over_shards(part: int) -> None:
    walk_over_shards(range(part, WALKS, PARTS))
