"""Cron over many shards: home decides a tick, and its jobs reach their shards, each once, whatever breaks between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends.sharded import cron
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.lease import HOME
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.errors import BackendUnavailable, ConfigurationError, StoreSealed
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.mover import Mover, Side
from holdfast.records import (
    ClaimRequest,
    CronEntry,
    Enqueued,
    JobQuery,
    NewJob,
    QueueRule,
    Seal,
    TaskRule,
    Tick,
    Ticked,
    WorkerRecord,
)

from .shelves import NOW, Moody, Shelf

LATER = NOW + 10.0
ENTRY = CronEntry(name="e", every=60.0, next_at=NOW)
SOURCE = Seal(move="m", role="source", other="there")


def scene(test: Callable[[Shelf, ShardedBackend], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a store with a queue `mail` of four shards."""

    def run() -> None:
        async def whole() -> None:
            shelf = Shelf()
            router = shelf.router()
            await router.open()
            await router.declare([QueueRule(name="mail", shards=4)], now=NOW)
            await test(shelf, router)

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def job(number: int = 0, **fields: Any) -> NewJob:
    return NewJob(id=f"e@{number}", task="work", queue="mail", **fields)


async def tick(router: ShardedBackend, version: int, *jobs: NewJob, at: float = NOW, **fields: Any) -> Ticked:
    return await router.tick(Tick(name="e", version=version, entry=ENTRY, jobs=jobs, **fields), now=at)


async def shard_for(shelf: Shelf, router: ShardedBackend, probe: NewJob) -> Moody:
    """The shard that a job with this id, group and key belongs to."""
    await router.enqueue([probe], now=NOW - 9999.0)
    shard = shelf.holder(probe.id)
    await router.cancel(probe.id, now=NOW - 9999.0)
    assert await router.prune(older_than=600.0, now=NOW) == 1
    return shard


async def everything(router: ShardedBackend) -> list[str]:
    return sorted(found.id for found in await router.find(JobQuery(limit=1000)))


# ---------------------------------------------------------------------- placed like any other job


@scene
async def test_the_jobs_of_a_tick_are_where_enqueue_would_put_them(shelf: Shelf, router: ShardedBackend) -> None:
    alike = [job(n, **fields) for n, fields in enumerate([{}, {}, {}, {"group": "g"}, {"key": "k"}, {"group": "h"}])]
    other = Shelf()
    second = other.router()
    await second.declare([QueueRule(name="mail", shards=4)], now=NOW)
    await second.enqueue(alike, now=NOW)
    await tick(router, 0, *alike)
    for one in alike:
        [mine] = [name for name, shard in shelf.shards.items() if one.id in shard.store._store.jobs]
        [theirs] = [name for name, shard in other.shards.items() if one.id in shard.store._store.jobs]
        assert mine == theirs
        assert await router.get(one.id) is not None
    assert (await router.enqueue(alike, now=NOW)) == [Enqueued(one.id, created=False) for one in alike]


@scene
async def test_what_home_notes_is_shown_to_nobody(shelf: Shelf, router: ShardedBackend) -> None:
    await tick(router, 0, job(1), job(2))
    assert await everything(router) == ["e@1", "e@2"]
    assert [record.name for record in await router.queues()] == ["mail"]
    assert await router.count() == {"mail": {State.READY: 2}}
    assert {row["queue"] for row in (await router.dump()).tables["jobs"]} == {"mail"}
    assert await router.entries() == [CronEntry(name="e", every=60.0, next_at=NOW, version=1)]


@scene
async def test_home_forgets_what_it_noted(shelf: Shelf, router: ShardedBackend) -> None:
    await tick(router, 0, job(1), job(2, delay=5000.0))
    assert len(shelf.shards[HOME].store._store.jobs) == 2
    assert await router.prune(now=NOW + 601.0) == 0
    assert not shelf.shards[HOME].store._store.jobs
    assert await everything(router) == ["e@1", "e@2"]


@scene
async def test_a_tick_that_cannot_be_carried_out_is_refused_before_it_is_decided(
    shelf: Shelf, router: ShardedBackend
) -> None:
    await router.declare([QueueRule(name="bulk")], [TaskRule(name="work", limit=4)], now=NOW)
    await router.enqueue([job(9)], now=NOW)
    for refused in (job(1, key="k", key_scope="global"), NewJob(id="x", task="work", queue="bulk")):
        with pytest.raises(ConfigurationError):
            await tick(router, 0, refused)
    assert await router.entries() == [] and await everything(router) == ["e@9"]


# ---------------------------------------------------------------------- cut short


@pytest.mark.parametrize("mood", ["down", "mute"])
def test_a_job_whose_shard_is_silent_comes_later_and_once(mood: str) -> None:
    @scene
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        shard = await shard_for(shelf, router, job(1))
        shard.mood = mood
        answer = await tick(router, 0, job(1, args=b"[1]", delay=3.0))
        assert (answer.done, answer.enqueued) == (True, (Enqueued("e@1", True),))
        shard.mood = "well"
        assert await everything(router) == ([] if mood == "down" else ["e@1"])
        await router.promote(now=NOW + 1.0)  # too early: the process that made it may be about to hand it over
        assert await everything(router) == ([] if mood == "down" else ["e@1"])
        another = shelf.router()
        await another.open()
        await another.promote(now=LATER)
        await another.promote(now=LATER)
        found = await router.get("e@1")
        assert found is not None and (found.args, found.due_at) == (b"[1]", NOW + 3.0)
        assert await everything(router) == ["e@1"]

    test()


@scene
async def test_a_job_that_has_come_and_gone_does_not_come_again(shelf: Shelf, router: ShardedBackend) -> None:
    shard = await shard_for(shelf, router, job(1))
    shard.mood = "mute"
    await tick(router, 0, job(1))
    shard.mood = "well"
    await router.register(WorkerRecord(id="w", lease_seconds=60.0, queues=("mail",)), now=NOW)
    [lease] = (await router.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=5), now=NOW)).leases
    await router.settle([Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)], now=NOW)
    assert await router.prune(now=NOW + 40 * 86400.0) == 1  # it hands over first, so the id is still known
    await router.promote(now=NOW + 40 * 86400.0)
    assert await everything(router) == []


@scene
async def test_home_that_is_silent_decides_nothing(shelf: Shelf, router: ShardedBackend) -> None:
    shelf.shards[HOME].mood = "down"
    with pytest.raises(BackendUnavailable):
        await tick(router, 0, job(1))
    with pytest.raises(BackendUnavailable):  # it may have jobs that are still to be handed over
        await router.prune(now=NOW)
    await router.promote(now=NOW)
    shelf.shards[HOME].mood = "well"
    assert await router.entries() == [] and await everything(router) == []


@scene
async def test_more_jobs_than_one_page_are_handed_over(shelf: Shelf, router: ShardedBackend) -> None:
    for shard in list(shelf.shards):
        if shard != HOME:
            shelf.shards[shard].mood = "down"
    many = [job(n) for n in range(2 * cron.PAGE + 7)]
    assert (await tick(router, 0, *many)).done
    for one in shelf.shards.values():
        one.mood = "well"
    await router.promote(now=LATER)
    assert await everything(router) == sorted(wanted.id for wanted in many)


# ---------------------------------------------------------------------- rivals and overlap


def test_of_eight_processes_one_ticks() -> None:
    async def whole() -> None:
        shelf = Shelf()
        routers = [shelf.router() for _ in range(8)]
        await routers[0].declare([QueueRule(name="mail", shards=4)], now=NOW)
        for version in range(20):
            jobs = (job(2 * version), job(2 * version + 1))
            answers = await asyncio.gather(*(tick(router, version, *jobs) for router in routers))
            assert [answer.done for answer in answers].count(True) == 1
        assert len(await everything(routers[0])) == 40

    asyncio.run(whole())


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_a_previous_job_that_is_on_its_way_counts_as_live(overlap: str) -> None:
    @scene
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        shard = await shard_for(shelf, router, job(1))
        shard.mood = "down"
        await tick(router, 0, job(1))
        with pytest.raises(BackendUnavailable):  # nobody can tell now
            await tick(router, 1, job(2), overlap=overlap, previous="e@1", entry_if_skipped=ENTRY)
        shard.mood = "well"
        answer = await tick(router, 1, job(2), overlap=overlap, previous="e@1", entry_if_skipped=ENTRY)
        previous = await router.get("e@1")
        assert previous is not None
        if overlap == "skip":
            assert answer.skipped and previous.state is State.READY and await everything(router) == ["e@1"]
        else:
            assert previous.state is State.CANCELLED and await everything(router) == ["e@1", "e@2"]

    test()


@scene
async def test_who_hands_over_for_another_cancels_the_previous_job_first(shelf: Shelf, router: ShardedBackend) -> None:
    await tick(router, 0, job(1, key="k"))

    async def killed(*_: object) -> list[Enqueued]:
        raise BackendUnavailable("killed by the test. Nothing to do.")

    router._ticking._hand_over = killed  # type: ignore[method-assign,assignment]
    assert (await tick(router, 1, job(2, key="k"), overlap="cancel", previous="e@1")).done
    another = shelf.router()
    await another.open()
    await another.promote(now=LATER)
    states = {found.id: found.state for found in await another.find(JobQuery())}
    assert states == {"e@1": State.CANCELLED, "e@2": State.READY}


# ---------------------------------------------------------------------- sealed and moved


@scene
async def test_a_job_on_its_way_is_in_its_shard_before_that_is_sealed(shelf: Shelf, router: ShardedBackend) -> None:
    shard = await shard_for(shelf, router, job(1))
    shard.mood = "down"
    await tick(router, 0, job(1))
    with pytest.raises(BackendUnavailable):
        await router.seal(SOURCE, instead_of=None)
    shard.mood = "well"
    assert await router.sealed() is None
    assert await router.seal(SOURCE, instead_of=None)
    assert [found.id for found in (await router.export("jobs")).jobs] == ["e@1"]
    with pytest.raises(StoreSealed):
        await tick(router, 1, job(2))
    assert await router.seal(None, instead_of=SOURCE)
    await router.promote(now=LATER)
    assert await everything(router) == ["e@1"]


@scene
async def test_entries_and_what_is_said_of_tasks_move_to_other_numbers_of_shards(
    shelf: Shelf, router: ShardedBackend
) -> None:
    await router.declare([], [TaskRule(name="work", limit=8, retain_count=5)], now=NOW)
    await tick(router, 0, *(job(n) for n in range(40)))
    before = (await router.entries(), await router.tasks())
    other = Shelf()
    target = other.router()
    await target.declare([QueueRule(name="mail", shards=3)], now=NOW)
    plain = MemoryBackend()
    for source, into in ((router, plain), (plain, target)):
        mover = Mover(Side(source, "one://"), Side(into, "two://"), wait=5.0, say=lambda step: None)
        await mover.run()
        assert (await into.entries(), await into.tasks()) == before
    assert [other.shards[f"mail:{n}"].store._store.task_limit("work") for n in range(3)] == [3, 3, 2]
    assert not (await tick(target, 0, job(99))).done
    assert (await tick(target, 1, job(99))).done
    await target.register(WorkerRecord(id="w", lease_seconds=60.0, queues=("mail",)), now=NOW)
    claimed = await target.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=50), now=NOW)
    assert len(claimed.leases) == 8


def test_a_limit_that_the_target_cannot_divide_is_not_carried_into_it() -> None:
    async def whole() -> None:
        source, shelf = MemoryBackend(), Shelf()
        await source.declare([QueueRule(name="mail")], [TaskRule(name="work", limit=2)], now=NOW)
        await source.enqueue([job(1)], now=NOW)
        target = shelf.router()
        await target.declare([QueueRule(name="mail", shards=3)], now=NOW)
        mover = Mover(Side(source, "one://"), Side(target, "two://"), wait=5.0, say=lambda step: None)
        with pytest.raises(ConfigurationError, match="divided among 3 shards"):
            await mover.run()
        assert all("e@1" not in shard.store._store.jobs for shard in shelf.shards.values())

    asyncio.run(whole())
