"""What is special about sealing and moving a Redis store: steps in pages, odd ids, one counter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from holdfast.backends import parse_url
from holdfast.backends.formulas import ALONE, Numbering
from holdfast.backends.redis.backend import RedisBackend
from holdfast.errors import StoreSealed
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, Pause, QueueRule, Seal, Shipment, StoredJob, WorkerRecord

from ...servers import valkey

SOURCE = Seal(move="m", role="source", other="store://there")
TARGET = Seal(move="m", role="target", other="store://here")


def on_store(test: Callable[[RedisBackend], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = valkey.fresh_stores()("moving")
        await store.open()
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(whole())


def test_a_job_is_exported_in_the_lane_it_belongs_to() -> None:
    """A task's pause ends page by page. Where a seal comes between, no parked job must reach a store without pages."""

    async def test(store: RedisBackend) -> None:
        await store.enqueue([NewJob(id=f"j{n}", task="t") for n in range(6)])
        await store.pause(Pause(task="t"))
        assert {job.lane for job in (await store.export("jobs")).jobs} == {2}
        store.rule_step_max = 2
        assert await store.resume(Pause(task="t"))
        await store.seal(SOURCE, instead_of=None)
        assert {row["lane"] for row in (await store.dump()).tables["jobs"]} == {0, 2}, "the seal came in between"
        assert {job.lane for job in (await store.export("jobs")).jobs} == {0}

    on_store(test)


def test_a_rule_that_was_stored_is_not_called_refused() -> None:
    async def test(store: RedisBackend) -> None:
        await store.enqueue([NewJob(id=f"{n}-{m}", task="t", group=f"g{n}") for n in range(9) for m in range(3)])
        store.rule_step_max = 2
        relaxed = QueueRule(name="default", group_limit=2, group_order="relaxed")
        await store.declare([relaxed])
        await store.seal(SOURCE, instead_of=None)
        assert (await store.export("rules")).queues == (relaxed,)
        with pytest.raises(StoreSealed):
            await store.declare([replace(relaxed, group_limit=3)])

    on_store(test)


def test_letters_come_by_id_whatever_an_id_is_made_of() -> None:
    ids = sorted(["a", "a\0", "a\0b", "a\1", "a\1\0", "a\2", "aa", "ü", "\1", "z" * 300])

    async def test(store: RedisBackend) -> None:
        await store.enqueue([NewJob(id=one, task="t", key=f"k{n}" if n % 2 else None) for n, one in enumerate(ids)])
        for one in ids:
            await store.bury(one, "why")
        for limit in (1, 3, 100):
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                piece = await store.export("letters", after, limit=limit)
                found += [letter.id for letter in piece.letters]
                after = piece.after
            assert found == ids
        for one in ids:
            letter = await store.letter(one)
            assert letter is not None and letter.id == one
        assert await store.letter("none") is None

    on_store(test)


def test_what_is_no_text_is_carried_byte_by_byte() -> None:
    odd = bytes(range(256))

    async def test(store: RedisBackend) -> None:
        await store.enqueue([NewJob(id="a", task="t", args=odd, options=odd), NewJob(id="b", task="t", args=odd)])
        await store.bury("a", "why")
        pieces = [await store.export(part) for part in ("jobs", "letters")]
        target = RedisBackend(valkey.shared_server().plain_url, prefix="moving-bytes")
        valkey.empty(valkey.shared_server(), "moving-bytes")
        await target.open()
        await target.seal(TARGET, instead_of=None)
        for piece in pieces:
            await target.carry("m", piece)
        assert [await target.export(part) for part in ("jobs", "letters")] == pieces
        await target.close()

    on_store(test)


def test_everything_new_is_above_what_was_carried() -> None:
    async def test(store: RedisBackend) -> None:
        await store.seal(TARGET, instead_of=None)
        future = 4_000_000_000_000_000  # a clock that is far behind the other store's
        job = StoredJob(id="a", seq=future, task="t", queue="default", state=State.READY, args=b"{}", turn=future + 9)
        await store.carry("m", Shipment(part="jobs", jobs=(job,), tick=future + 9))
        seal = await store.sealed()
        assert seal is not None
        await store.seal(replace(seal, stage="moved"), instead_of=seal)
        await store.enqueue([NewJob(id="b", task="t")])
        found = await store.get("b")
        assert found is not None and found.seq > future
        await store.register(WorkerRecord(id="w"))
        leases = (await store.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=2))).leases
        assert [lease.id for lease in leases] == ["a", "b"]
        assert all(lease.fence > future + 9 for lease in leases)

    on_store(test)


@pytest.mark.parametrize(
    "numbering", [ALONE, Numbering(4096, 0), Numbering(4096, 4095, seq=9 * 10**14, tick=3 * 10**15)]
)
def test_the_script_gives_the_seqs_that_numbering_says(numbering: Numbering) -> None:
    async def test(store: RedisBackend) -> None:
        store._numbering = numbering
        walls = [2e9, 2e9, 2e9 + 0.0015, 2e9 - 5.0, 1.5e9, 2e9 + 60.123]
        last, wanted = numbering.seq, []
        for n, wall in enumerate(walls):
            await store.enqueue([NewJob(id=f"{n}-{m}", task="t") for m in range(20)], now=wall)
            for _ in range(20):
                last = numbering.after(last, wall)
                wanted.append(last)
        assert [job.seq for job in (await store.export("jobs")).jobs] == wanted
        assert (await store.export("rules")).tick > numbering.tick

    on_store(test)


def test_one_store_has_one_name() -> None:
    spellings = ("redis://box", "redis://box?prefix=holdfast", "redis://box?call_timeout=9&connections=2")
    assert {parse_url(url).store_name for url in spellings} == {"redis://box?prefix=holdfast"}
    assert parse_url("redis://:secret@box/1?prefix=p").store_name == "redis://:***@box/1?prefix=p"
