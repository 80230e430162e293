"""Stores for moves: two of them in any pairing, furnished, and a way to run the mover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.backends import open_backend, parse_url
from holdfast.backends.contract import Backend
from holdfast.moving import Moved, Mover, Side, Step
from holdfast.testing.conformance import World
from holdfast.testing.conformance.comparing import Tables
from holdfast.testing.conformance.moving import content, furnish

from ..servers import postgres, valkey

_numbers = count(1)


def fresh_url(kind: str, folder: Path) -> str:
    """The URL of a store that nobody used before."""
    number = next(_numbers)
    if kind == "sqlite":
        return f"sqlite:///{folder / f'store-{number}.db'}"
    if kind == "redis":
        return valkey.shared_server().url(f"moving-{folder.name}-{number}")
    return postgres.shared_server().url(f"moving_{folder.name.replace('-', '_')[-30:]}_{number}")


def name_of(url: str) -> str:
    return parse_url(url).store_name


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
    """Fill a store with a bit of everything, no live lease; answers what it holds."""
    world = await World.create(lambda store: open_backend(url))
    try:
        await furnish(world)
        for _ in range(times - 1):
            await world.enqueue_many(10, queue="more", group="g", args=b'{"a":"' + b"x" * 50 + b'"}')
        return await content(world)
    finally:
        await world.close()


async def tables(url: str) -> Tables:
    world = await World.create(lambda store: open_backend(url))
    try:
        return await content(world)
    finally:
        await world.close()


async def move(source: str, target: str, *, wait: float = 10.0, say: Callable[[Step], None] | None = None) -> Moved:
    async def through(one: Backend) -> Moved:
        async def to(two: Backend) -> Moved:
            sides = Side(one, name_of(source)), Side(two, name_of(target))
            return await Mover(*sides, wait=wait, say=say or (lambda step: None)).run()

        answer: Moved = await with_store(target, to)
        return answer

    moved: Moved = await with_store(source, through)
    return moved
