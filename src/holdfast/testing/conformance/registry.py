"""Where the conformance cases are collected: a decorator each, and the one way to run a case.

Called by the theme files beside it (they register) and by tests of a backend (they run). Never knows a store:
the caller hands in how to make one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ...errors import StoreSealed
from .soundness import sound
from .world import MakeBackend, World

Case = Callable[[World], Awaitable[None]]
T = TypeVar("T")

CASES: dict[str, Case] = {}


def case(fn: Case) -> Case:
    """Register one case under its function's name, which is a sentence."""
    _register(getattr(fn, "__name__", ""), fn)
    return fn


def case_for_each(
    values: Iterable[T], *, name: Callable[[T], str] = str
) -> Callable[[Callable[[World, T], Awaitable[None]]], Callable[[World, T], Awaitable[None]]]:
    """Register one case per value; `name(value)` completes the sentence in brackets."""

    def register(fn: Callable[[World, T], Awaitable[None]]) -> Callable[[World, T], Awaitable[None]]:
        for value in values:
            _register(f"{getattr(fn, '__name__', '')}[{name(value)}]", _bound(fn, value))
        return fn

    return register


def _bound(fn: Callable[[World, T], Awaitable[None]], value: T) -> Case:
    async def run(world: World) -> None:
        await fn(world, value)

    return run


def _register(name: str, fn: Case) -> None:
    assert name and name not in CASES, f"two conformance cases are named {name!r}"
    CASES[name] = fn


def run_case(case: Case | str, make_backend: MakeBackend, *, scale: float = 1.0) -> None:
    """Run one case on a fresh store; raises AssertionError where the backend breaks the contract.

    `make_backend(name)` answers an unopened backend on the store of that name: the same name, the same store. A case
    asks for a second name to compare two histories, and for the same name again to act as another process would.
    """
    fn = CASES[case] if isinstance(case, str) else case
    asyncio.run(_run(fn, make_backend, scale))


async def _run(fn: Case, make_backend: MakeBackend, scale: float) -> None:
    world = await World.create(make_backend, scale=scale)
    try:
        await fn(world)
        with contextlib.suppress(StoreSealed):  # whoever seals a store rearranges first
            while await world.backend.rearrange(now=world.now):
                pass
        await sound(world.backend, "after the case")
    finally:
        await world.close()
