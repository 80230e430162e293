"""Flaws of a store of shards: those of every shard and of the home; a silent shard is not taken for a sound one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.lease import HOME
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.inspection import audit
from holdfast.records import Flaw

from .shelves import Shelf, split_store

SHARDS = 3


def flawed(test: Callable[[Shelf, ShardedBackend], Awaitable[None]]) -> None:
    """Run a test on a queue of three shards; each of them, and the home, has a flaw."""

    async def whole() -> None:
        shelf, router = await split_store(SHARDS)
        for name, shard in shelf.shards.items():
            _spoil(shard.store, name)
        await test(shelf, router)

    asyncio.run(whole())


def _spoil(store: object, name: str) -> None:
    async def flaws(*, limit: int = 1000) -> list[Flaw]:
        return [Flaw(place="jobs", id=f"in {name}", field="seq", text=f"number {n}") for n in range(2)][:limit]

    store.flaws = flaws  # type: ignore[attr-defined]


def test_the_flaws_of_all_shards_are_listed_with_their_shard() -> None:
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        found = await router.flaws()
        assert len(found) == 2 * (SHARDS + 1)
        for place in range(SHARDS):
            name = f"mail:{place}"
            assert Flaw(place="jobs", id=f"in {name}", field="seq", text=f"number 1 (shard {name})") in found
        assert Flaw(place="jobs", id=f"in {HOME}", field="seq", text="number 0") in found
        assert len(await router.flaws(limit=3)) == 3

    flawed(test)


@pytest.mark.parametrize("name", ["mail:1", HOME])
@pytest.mark.parametrize(("mood", "error"), [("down", BackendUnavailable), ("mute", OutcomeUnknown)])
def test_a_silent_shard_is_not_taken_for_one_without_flaws(name: str, mood: str, error: type[Exception]) -> None:
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        shelf.shards[name].mood = mood
        with pytest.raises(error):
            await router.flaws()
        with pytest.raises(error):
            await audit(router)
        shelf.shards[name].mood = "well"
        assert len(await router.flaws()) == 2 * (SHARDS + 1)
        assert len((await audit(router)).violations) == 2 * (SHARDS + 1)

    flawed(test)
