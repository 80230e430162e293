"""Stores for moves: two of them in any pairing, furnished, and a way to run the mover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.backends import open_backend, parse_url
from holdfast.backends.contract import Backend
from holdfast.mover import Moved, Mover, Side, Step
from holdfast.records import QueueRule, TaskRule
from holdfast.testing.conformance import World
from holdfast.testing.conformance.compare import Tables
from holdfast.testing.conformance.move import content, furnish

from ..servers import postgres, valkey, valkey_cluster

QUEUES = ("default", "mail", "bulk", "more", "stall")
SHARDS = 3

_numbers = count(1)


def fresh_url(kind: str, folder: Path) -> str:
    """The URL of a store that nobody used before."""
    number = next(_numbers)
    if kind == "sqlite":
        return f"sqlite:///{folder / f'store-{number}.db'}"
    if kind == "cluster":
        return valkey_cluster.shared_cluster().url(f"moving-{folder.name}-{number}")
    if kind == "redis":
        return valkey.shared_server().url(f"moving-{folder.name}-{number}")
    return postgres.shared_server().url(f"moving_{folder.name.replace('-', '_')[-30:]}_{number}")


def _split_store(url: str) -> Backend:
    """A store whose queues have several shards, if it can have shards."""
    backend = open_backend(url)
    whole = backend.declare

    async def declare(rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None) -> None:
        await whole([replace(rule, shards=SHARDS) for rule in rules], tasks, now)

    if backend.sharded:
        backend.declare = declare  # type: ignore[method-assign]
    return backend


async def split(url: str) -> None:
    """Declare the queues of a store that nobody used before, split into shards where it can be."""
    backend = _split_store(url)
    await backend.open()
    if backend.sharded:
        await backend.declare([QueueRule(name=queue) for queue in QUEUES])
    await backend.close()


async def opened(url: str) -> Backend:
    backend = open_backend(url)
    await backend.open()
    return backend


async def with_store(url: str, work: Callable[[Backend], Awaitable[Any]]) -> Any:
    backend = await opened(url)
    try:
        return await work(backend)
    finally:
        await backend.close()


async def furnished(url: str, times: int = 1) -> Tables:
    """Fill a store with a bit of everything, no live lease; returns what it holds."""
    await split(url)
    world = await World.create(lambda store: _split_store(url))
    try:
        await furnish(world)
        for _ in range(times - 1):
            await world.enqueue_many(10, queue="more", group="g", args=b'{"a":"' + b"x" * 50 + b'"}')
    finally:
        await world.close()
    return await tables(url)


async def tables(url: str) -> Tables:
    """What a store holds; into how many shards it is split is its own affair."""
    world = await World.create(lambda store: open_backend(url))
    try:
        found = await content(world)
    finally:
        await world.close()
    for rule in found["queues"]:
        rule["shards"] = 1
    return found


async def move(source: str, target: str, *, wait: float = 10.0, say: Callable[[Step], None] | None = None) -> Moved:
    async def through(one: Backend) -> Moved:
        async def to(two: Backend) -> Moved:
            sides = Side(one, parse_url(source).store_name), Side(two, parse_url(target).store_name)
            return await Mover(*sides, wait=wait, say=say or (lambda step: None)).run()

        answer: Moved = await with_store(target, to)
        return answer

    moved: Moved = await with_store(source, through)
    return moved
