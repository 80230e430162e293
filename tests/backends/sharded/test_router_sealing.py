"""The seal of a store of shards: half way, with a silent shard, with a rival; and what others see meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown, StoreSealed
from holdfast.records import ClaimRequest, NewJob, Pause, QueueRule, Seal, WorkerRecord

from .shelves import NOW, Shelf, split_store

SOURCE = Seal(move="m", role="source", other="store://there")
TARGET = Seal(move="m", role="target", other="store://here")
SPLIT = QueueRule(name="mail", group_order="relaxed", group_limit=2, shards=3)


def jobs(number: int) -> list[NewJob]:
    return [NewJob(id=f"j{n:03}", task="work", queue="mail") for n in range(number)]


def on_shelf(test: Callable[[Shelf, ShardedBackend], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a queue of three shards."""

    def run() -> None:
        async def whole() -> None:
            shelf = Shelf()
            router = shelf.router()
            await router.open()
            await router.declare([SPLIT], now=NOW)
            await test(shelf, router)

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def refuses(backend: Backend, number: int) -> bool:
    """Whether every shard that such jobs go to refuses them, each by itself."""
    refused = 0
    for job in jobs(number):
        try:
            await backend.enqueue([replace(job, id=f"{job.id}-probe")], now=NOW)
        except StoreSealed:
            refused += 1
    assert refused in (0, number), f"{refused} of {number} refused: some shards are sealed, some are not"
    return refused > 0


# ---------------------------------------------------------------------- seals half way


class Died(BaseException):
    """The process ends here."""


def die_at(shelf: Shelf, count: int) -> Callable[[], None]:
    """The process dies at the n-th change of a seal or of the registry; returns how to undo that."""
    left = [count]
    wholes = {name: shard.store.seal for name, shard in shelf.shards.items()}
    swap = shelf.page.swap

    def note() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Died

    def dying(whole: Any) -> Any:
        async def seal(*args: Any, **kwargs: Any) -> bool:
            if left[0] <= 0:
                raise Died
            note()
            return bool(await whole(*args, **kwargs))

        return seal

    async def dying_swap(before: bytes | None, after: bytes) -> bool:
        if left[0] <= 0:
            raise Died
        answer = await swap(before, after)
        note()
        return answer

    for shard in shelf.shards.values():
        shard.store.seal = dying(shard.store.seal)  # type: ignore[method-assign]
    shelf.page.swap = dying_swap  # type: ignore[method-assign]

    def live() -> None:
        shelf.page.swap = swap  # type: ignore[method-assign]
        for name, whole in wholes.items():
            shelf.shards[name].store.seal = whole  # type: ignore[method-assign]

    return live


CHANGES = {
    "seal": (None, SOURCE),
    "stage": (SOURCE, replace(SOURCE, stage="moved")),
    "unseal": (SOURCE, None),
    "target": (None, TARGET),
    "abandon": (TARGET, replace(TARGET, stage="abandoned")),
    "open": (TARGET, replace(TARGET, stage="moved")),
}


async def die_changing(change: str, place: int) -> Shelf:
    """1 the registry, 2 to 5 home and three shards, 6 the registry again, 7 nobody dies."""
    before, after = CHANGES[change]
    shelf, router = await split_store(3)
    await router.count()
    if before is not None:
        assert await router.seal(before, instead_of=None)
    live = die_at(shelf, place)
    try:
        assert await router.seal(after, instead_of=before)
        assert place == 7
    except Died:
        assert place < 7
    live()
    return shelf


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("looks", [True, False])
def test_a_change_of_the_seal_that_died_half_way_is_finished(change: str, place: int, looks: bool) -> None:
    """By a caller that reads the seal, and by one that opens the store."""
    after = CHANGES[change][1]
    closed = after is not None and after.closed

    async def whole() -> None:
        shelf = await die_changing(change, place)
        another = shelf.router()
        if looks:
            assert await another.sealed() == after
        else:
            await another.open()
        copies = [await shard.store.sealed() for shard in shelf.shards.values()]
        assert copies == [after if closed else None] * 4
        assert await refuses(another, 12) == closed
        assert await another.sealed() == after
        assert await another.seal(None, instead_of=after)
        assert not await refuses(another, 12)

    asyncio.run(whole())


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("change", ["unseal", "open"])
def test_a_store_that_was_opened_half_way_is_opened_by_who_uses_it(change: str, place: int) -> None:
    async def whole() -> None:
        shelf = await die_changing(change, place)
        used = shelf.router()
        await used.count()
        assert not await refuses(used, 12)

    asyncio.run(whole())


@pytest.mark.parametrize("mood", ["down", "mute"])
@pytest.mark.parametrize("shard", ["", "mail:0", "mail:2"])
def test_a_seal_that_a_shard_does_not_answer_leaves_the_store_open(mood: str, shard: str) -> None:
    async def whole() -> None:
        shelf, router = await split_store(3, jobs(12))
        await router.count()
        shelf.shards[shard].mood = mood
        with pytest.raises((BackendUnavailable, OutcomeUnknown)):
            await router.seal(SOURCE, instead_of=None)
        shelf.shards[shard].mood = "well"
        assert not await refuses(router, 12)
        await router.register(WorkerRecord(id="w", queues=("mail",)), now=NOW)
        answer = await router.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=24), now=NOW)
        assert (len(answer.leases), answer.sealed) == (24, None)
        assert await router.sealed() is None
        assert await router.seal(SOURCE, instead_of=None)
        assert await refuses(router, 12)

    asyncio.run(whole())


def test_a_worker_is_not_ended_by_a_shard_that_alone_is_sealed() -> None:
    async def whole() -> None:
        shelf, router = await split_store(3)
        await router.register(WorkerRecord(id="w", queues=("mail",)), now=NOW)
        assert await shelf.shards["mail:1"].store.seal(SOURCE, instead_of=None)
        answer = await router.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=6), now=NOW)
        assert answer.sealed is None and answer.known
        assert await shelf.shards["mail:1"].store.sealed() is None

    asyncio.run(whole())


def test_one_who_is_late_does_not_open_what_was_sealed_anew() -> None:
    """Its spreading stood still before its last word to a shard; meanwhile the store was opened and sealed again."""

    async def whole() -> None:
        shelf, router = await split_store(3)
        assert await router.seal(SOURCE, instead_of=None)
        shard = shelf.shards["mail:1"]
        real, go, reached = shard.store.seal, asyncio.Event(), asyncio.Event()

        async def slow(seal: Seal | None, *, instead_of: Seal | None) -> bool:
            reached.set()
            await go.wait()
            return await real(seal, instead_of=instead_of)

        shard.store.seal = slow  # type: ignore[method-assign]
        late = asyncio.create_task(router.seal(None, instead_of=SOURCE))
        await asyncio.wait_for(reached.wait(), 10)
        shard.store.seal = real  # type: ignore[method-assign]
        other = shelf.router()
        assert await other.sealed() is None
        again = replace(SOURCE, move="m2")
        assert await other.seal(again, instead_of=None)
        go.set()
        await late
        assert await router.sealed() == again
        assert await refuses(router, 12)

    asyncio.run(whole())


@pytest.mark.parametrize("filled", ["a job", "a pause"])
def test_a_target_found_in_use_half_way_gets_back_its_rules(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before finds nothing; a shard finds it in the step that seals it."""

    async def whole() -> None:
        shelf, router = await split_store(3)
        await router.declare([SPLIT], now=NOW)

        async def blind() -> None:
            if filled == "a job":
                await router.enqueue(jobs(1), now=NOW)
            else:
                await router.pause(Pause(queue="mail", group="g"), now=NOW)

        monkeypatch.setattr(router._sealing, "_refuse_unless_empty", blind)
        with pytest.raises(ConfigurationError, match="must be empty"):
            await router.seal(TARGET, instead_of=None)
        assert await router.sealed() is None
        assert not await refuses(router, 12)
        for shard in shelf.shards.values():
            [rule] = (await shard.store.export("rules")).queues
            assert (rule.name, rule.group_limit, rule.group_order) == ("mail", 2, "relaxed")

    asyncio.run(whole())


# ---------------------------------------------------------------------- what others see meanwhile


@on_shelf
async def test_a_batch_that_meets_a_seal_half_way_has_an_unknown_outcome(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(12), now=NOW)
    assert await router.seal(SOURCE, instead_of=None)
    with pytest.raises(StoreSealed):
        await router.enqueue(jobs(24), now=NOW)
    assert await shelf.shards["mail:1"].store.seal(None, instead_of=SOURCE)
    with pytest.raises(OutcomeUnknown):
        await router.enqueue(jobs(24), now=NOW)


@on_shelf
async def test_a_sealed_store_takes_in_no_queue(shelf: Shelf, router: ShardedBackend) -> None:
    assert await router.seal(SOURCE, instead_of=None)
    text = shelf.page.text
    for backend in (router, shelf.router()):
        await backend.register(WorkerRecord(id="w", queues=("new",)), now=NOW)
        answer = await backend.claim(ClaimRequest(worker="w", call=1, queues=("new",), most=5), now=NOW)
        assert (answer.known, answer.sealed, answer.leases) == (True, SOURCE, ())
        await backend.retire("w", now=NOW)
        with pytest.raises(StoreSealed):
            await backend.enqueue([NewJob(id="a", task="work", queue="new")], now=NOW)
        with pytest.raises(StoreSealed):
            await backend.declare([QueueRule(name="new")], now=NOW)
        with pytest.raises(StoreSealed):
            await backend.declare([replace(SPLIT, shards=4)], now=NOW)
        await backend.declare([SPLIT], now=NOW)
    assert shelf.page.text == text
