"""A store of shards that is left and moved into: other numbers of shards, and one seq for each job."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.backends.formulas import Numbering
from holdfast.backends.sharded import places
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.errors import ConfigurationError, StoreSealed
from holdfast.lifecycle import Ending, Settlement
from holdfast.mover import Moved, Mover, Side
from holdfast.records import ClaimRequest, NewJob, Override, Pause, QueueRule, WorkerRecord

from .shelves import NOW, Shelf, split_store

SPLIT = QueueRule(name="mail", group_order="relaxed", group_limit=2, shards=3)


def jobs(number: int) -> list[NewJob]:
    return [NewJob(id=f"j{n:03}", task="work", queue="mail") for n in range(number)]


async def move(source: Backend, target: Backend) -> Moved:
    return await Mover(Side(source, "one://"), Side(target, "two://"), wait=5.0, say=lambda step: None).run()


# ---------------------------------------------------------------------- seqs


@pytest.mark.parametrize("wall", [NOW, NOW + 0.0004, 1_577_836_800.0, 0.0])
def test_no_two_shards_give_the_same_seq_and_each_gives_growing_ones(wall: float) -> None:
    given: set[int] = set()
    for rest in (0, 1, 7, places.NUMBERS_MAX - 1):
        numbering, last = Numbering(places.NUMBERS_MAX, rest, seq=5000), 5000
        for _ in range(50):
            seq = numbering.after(last, wall)
            assert seq > last and seq % places.NUMBERS_MAX == rest and seq not in given
            given.add(seq)
            last = seq
    assert max(given) < 2**53


def test_a_store_alone_counts_by_one() -> None:
    assert [Numbering().after(last, NOW) for last in (0, 1, 41)] == [1, 2, 42]


def test_seqs_of_all_shards_are_in_the_order_of_time() -> None:
    early = Numbering(places.NUMBERS_MAX, 4095).after(0, NOW)
    late = Numbering(places.NUMBERS_MAX, 0).after(0, NOW + 0.002)
    assert early < late


def test_one_instant_in_many_shards_makes_no_two_jobs_with_one_seq() -> None:
    async def whole() -> None:
        _, router = await split_store(3, jobs(60), [replace(job, id=f"o-{job.id}", queue="other") for job in jobs(60)])
        found: list[int] = []
        after: str | None = ""
        while after is not None:
            piece = await router.export("jobs", after, limit=7)
            assert len(piece.jobs) <= 7
            found += [job.seq for job in piece.jobs]
            after = piece.after
        assert len(found) == 120 and found == sorted(set(found))

    asyncio.run(whole())


# ---------------------------------------------------------------------- from and to other numbers of shards


async def order_of_groups(backend: Backend, queues: tuple[str, ...] = ("mail",)) -> dict[str, list[str]]:
    """Everything claimed and done, by group."""
    order: dict[str, list[str]] = {}
    await backend.register(WorkerRecord(id="w", lease_seconds=1e9, queues=queues), now=NOW)
    for call in range(1, 200):
        leases = (await backend.claim(ClaimRequest(worker="w", call=call, queues=queues, most=50), now=NOW)).leases
        if not leases:
            return order
        for lease in leases:
            order.setdefault(lease.group or "", []).append(lease.id)
            await backend.settle([Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)], now=NOW)
    raise AssertionError("the store never runs dry")


def grouped(number: int) -> list[NewJob]:
    return [NewJob(id=f"j{n:03}", task="work", queue="mail", group=f"g{n % 7}") for n in range(number)]


@pytest.mark.parametrize("shards", [(3, 0), (0, 5), (3, 5), (5, 3), (6, 1)])
def test_every_group_keeps_its_order_from_so_many_shards_to_so_many(shards: tuple[int, int]) -> None:
    """0: a store without shards."""

    async def whole() -> None:
        source, target = [(await split_store(number))[1] if number else MemoryBackend() for number in shards]
        await source.declare([replace(SPLIT, group_order="strict", shards=shards[0] or 1)], now=NOW)
        batch = grouped(70)
        for start in range(0, 70, 10):
            await source.enqueue(batch[start : start + 10], now=NOW)
        moved = await move(source, target)
        assert moved.done and moved.comparison is not None and moved.comparison.rows["jobs"] == 70
        await target.enqueue([replace(job, id=f"{job.id}-new") for job in batch], now=NOW)
        wanted = {f"g{n}": [job.id for job in batch if job.group == f"g{n}"] for n in range(7)}
        found = await order_of_groups(target)
        assert found == {group: [*ids, *(f"{one}-new" for one in ids)] for group, ids in wanted.items()}

    asyncio.run(whole())


@pytest.mark.parametrize("shards", [1, 4])
def test_a_carried_job_is_where_the_targets_rule_puts_it(shards: int) -> None:
    async def whole() -> None:
        _, source = await split_store(3, grouped(40), [replace(one, id=f"k{one.id}", group=None) for one in jobs(40)])
        shelf, target = await split_store(shards)
        assert (await move(source, target)).done
        for job in (await target.export("jobs", limit=100)).jobs:
            place = places.place_of_job(job, shards)
            assert shelf.holder(job.id) is shelf.shards[f"mail:{place}"]
        again = await target.enqueue(grouped(40), now=NOW)
        assert not any(answer.created for answer in again)

    asyncio.run(whole())


def test_a_target_without_a_word_of_its_own_gets_the_sources_shards() -> None:
    async def whole() -> None:
        _, source = await split_store(3, grouped(20))
        shelf = Shelf()
        target = shelf.router()
        await target.open()
        assert (await move(source, target)).done
        assert {name for name in shelf.shards if name.startswith("mail")} == {"mail:0", "mail:1", "mail:2"}
        assert (await target.export("rules")).queues == (await source.export("rules")).queues

    asyncio.run(whole())


def test_no_shard_of_a_target_gives_a_seq_that_was_carried_into_another() -> None:
    """The source's seqs are far ahead of the target's clock; some shards get no job, some are made later."""

    async def whole() -> None:
        _, source = await split_store(3)
        await source.enqueue(grouped(10), now=NOW + 1_000_000.0)
        shelf, target = await split_store(4)
        await target.declare([QueueRule(name="empty", shards=2)], now=NOW)
        other = shelf.router()  # another process, which has seen the shards before the move
        await other.open()
        await other.count()
        assert (await move(source, target)).done
        highest = max(job.seq for job in (await target.export("jobs", limit=100)).jobs)
        for router in (target, other):
            for queue in ("mail", "empty", "later"):
                names = [f"{queue}-{router is other}-{n}" for n in range(30)]
                await router.enqueue([NewJob(id=name, task="work", queue=queue) for name in names], now=NOW)
        seqs = [job.seq for job in (await target.export("jobs", limit=1000)).jobs]
        assert len(seqs) == len(set(seqs)) == 190
        assert sum(seq > highest for seq in seqs) == 180

    asyncio.run(whole())


def test_rules_pauses_and_limits_reach_shards_that_come_with_a_job() -> None:
    async def whole() -> None:
        source = MemoryBackend()
        await source.declare([QueueRule(name="mail", group_order="relaxed", group_limit=2)], now=NOW)
        await source.limit(Override(queue="mail", group="g1", limit=5), now=NOW)
        await source.pause(Pause(task="parked"), now=NOW)
        await source.pause(Pause(queue="late", group="g2"), now=NOW)
        batch = [NewJob(id=f"{q}-{g}-{n}", task=t, queue=q, group=g) for q in ("mail", "late") for g in ("g1", "g2")
                 for t in ("work", "parked") for n in (f"{t}1", f"{t}2", f"{t}3")]  # fmt: skip
        await source.enqueue(batch, now=NOW)
        _, target = await split_store(4)
        assert (await move(source, target)).done
        for one, two in zip(await source.groups(), await target.groups(), strict=True):
            assert (one.queue, one.name, one.limit, one.override, one.counts) == (
                two.queue, two.name, two.limit, two.override, two.counts)  # fmt: skip
        assert await target.resume(Pause(task="parked"), now=NOW) and await source.seal(
            None, instead_of=await source.sealed()
        )
        await source.resume(Pause(task="parked"), now=NOW)
        assert {key: sorted(ids) for key, ids in (await order_of_groups(target, ("mail", "late"))).items()} == {
            key: sorted(ids) for key, ids in (await order_of_groups(source, ("mail", "late"))).items()
        }

    asyncio.run(whole())


def test_a_letter_goes_where_its_job_is() -> None:
    """A revived job that was replaced has another group than its letter says."""

    async def whole() -> None:
        source = MemoryBackend()
        first = NewJob(id="a", task="work", queue="mail", key="k", group="old")
        await source.enqueue([first], now=NOW)
        await source.bury("a", "why", now=NOW)
        await source.revive("a", now=NOW)
        homes = {f"g{n}": places.place_of(f"g{n}", 4) for n in range(20)}
        group = next(name for name, place in homes.items() if place != places.place_of("old", 4))
        await source.enqueue([replace(first, id="b", group=group, on_conflict="replace")], now=NOW)
        shelf, target = await split_store(4)
        assert (await move(source, target)).done
        assert await shelf.holder("a").store.letter("a") == await source.letter("a")

    asyncio.run(whole())


def test_an_id_that_two_shards_hold_is_not_lost_silently() -> None:
    """One store cannot hold it twice; the comparison says so, and neither store opens."""

    async def whole() -> None:
        _, source = await split_store(3)
        groups = [f"g{n}" for n in range(20)]
        one, two = groups[0], next(g for g in groups if places.place_of(g, 3) != places.place_of(groups[0], 3))
        for group in (one, two):
            await source.enqueue([NewJob(id="same", task="work", queue="mail", group=group)], now=NOW)
        target = MemoryBackend()
        moved = await move(source, target)
        assert not moved.done and moved.comparison is not None
        assert moved.comparison.differences == ("queue mail: 2 ready jobs in the source, 1 in the target",)
        for backend in (source, target):
            with pytest.raises(StoreSealed):
                await backend.enqueue(jobs(1), now=NOW)
        _, split = await split_store(3)
        assert await source.seal(None, instead_of=await source.sealed())
        assert (await move(source, split)).done

    asyncio.run(whole())


def test_a_key_that_two_shards_hold_is_not_carried_into_one_store() -> None:
    async def whole() -> None:
        batch = [NewJob(id=f"j{n}", task="work", queue="mail", key="k", group=f"g{n}") for n in range(20)]
        _, source = await split_store(3, batch)
        target = MemoryBackend()
        with pytest.raises(ConfigurationError, match="same key"):
            await move(source, target)
        assert (await target.export("jobs")).jobs == ()
        with pytest.raises(StoreSealed):
            await source.enqueue(jobs(1), now=NOW)

    asyncio.run(whole())


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_letters_of_one_id_are_never_parted(limit: int) -> None:
    async def whole() -> None:
        _, source = await split_store(3)
        groups = {places.place_of(f"g{n}", 3): f"g{n}" for n in range(20)}
        for place, group in groups.items():
            for name in ("a", "same", "z"):
                await source.enqueue([NewJob(id=name, task="work", queue="mail", group=group)], now=NOW + place)
        for shard in ("mail:0", "mail:1", "mail:2"):
            for name in ("a", "same", "z"):
                await (await source._store(shard)).bury(name, "why", now=NOW)
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            piece = await source.export("letters", after, limit=limit)
            found += [letter.id for letter in piece.letters]
            after = piece.after
        assert found == ["a"] * 3 + ["same"] * 3 + ["z"] * 3

    asyncio.run(whole())
