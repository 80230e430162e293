"""Where jobs live: names, shares, pages over shards, and which rules a new or changed number of shards gets."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded import places
from holdfast.errors import ConfigurationError, DuplicateJob
from holdfast.inspection.audit import RULES, fences_are_distinct
from holdfast.inspection.snapshot import picture_of
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, Dump, Edit, JobQuery, NewJob, Override, Pause, QueueRule, WorkerRecord

from .shelves import Shelf, split_store

NOW = 2_000_000_000.0


def test_a_place_never_changes_from_version_to_version() -> None:
    assert [places.place_of(name, 6) for name in ("a", "customer-17", "ü", "")] == [5, 1, 3, 0]


def test_groups_are_spread_evenly() -> None:
    counts = Counter(places.place_of(f"customer-{n}", 6) for n in range(6000))
    assert len(counts) == 6 and min(counts.values()) > 850


def test_a_job_goes_by_its_group_else_its_key_else_its_id() -> None:
    job = NewJob(id="i", task="t", group="g", key="k")
    assert places.place_of_job(job, 100) == places.place_of("g", 100)
    assert places.place_of_job(NewJob(id="i", task="t", key="k"), 100) == places.place_of("k", 100)
    assert places.place_of_job(NewJob(id="i", task="t"), 100) == places.place_of("i", 100)


def test_every_queue_has_a_sound_name_of_its_own() -> None:
    dice = Random(1)
    letters = "ab_-.:/ 5fü{}%"
    queues = {"".join(dice.choice(letters) for _ in range(dice.randint(1, 6))) for _ in range(3000)}
    queues |= {"ü" * 200, "ü" * 199 + "ö", "x" * 200, "_" * 100, "_" * 99 + "."}
    names = {places.shard_name(queue, place) for queue in queues for place in (0, 1)}
    assert len(names) == 2 * len(queues)
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]{1,300}:[01]", name) for name in names)


def test_a_token_comes_back_with_its_shard() -> None:
    assert places.parted(places.signed("mail:3", "abc")) == ("mail:3", "abc")
    assert places.parted("no-such-token")[0] == ""


def test_a_calls_numbers_grow_and_keep_its_parity() -> None:
    numbers = [places.number_of(call, round) for call in range(1, 50) for round in range(places.ROUNDS_MAX)]
    assert all(one < two for one, two in pairwise(numbers))
    assert all(number % 2 == places.call_of(number) % 2 for number in numbers)
    assert places.last_number_of(7) == places.number_of(8, 0) - 1
    assert places.number_of(7, places.ROUNDS_MAX - 1) <= places.last_number_of(7)


@pytest.mark.parametrize(("total", "names", "expected"), [(10, "abc", [4, 3, 3]), (2, "abc", [1, 1]), (0, "a", [])])
def test_shares_are_even(total: int, names: str, expected: list[int]) -> None:
    assert list(places.shares(total, names).values()) == expected


def test_pages_show_every_job_once_and_in_one_order() -> None:
    async def whole() -> None:
        router = Shelf().router()
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        for n in range(40):  # several jobs at each instant, in several shards
            batch = [NewJob(id=f"{n:02}-{m}", task="work", queue=("mail", "other")[m % 2]) for m in range(5)]
            await router.enqueue(batch, now=NOW + n // 2)
        whole_page = await router.find(JobQuery(limit=1000))
        assert [job.created_at for job in whole_page] == sorted((job.created_at for job in whole_page), reverse=True)
        assert len({job.seq for job in whole_page}) == len({job.id for job in whole_page}) == 200
        for size in (1, 7, 50):
            seen, before = [], None
            while page := await router.find(JobQuery(limit=size, before=before)):
                seen += page
                before = page[-1].seq
            assert seen == whole_page
        some = await router.find(JobQuery(queue="other", limit=10, before=whole_page[99].seq))
        assert some == [job for job in whole_page[100:] if job.queue == "other"][:10]

    asyncio.run(whole())


def test_a_job_looked_at_again_is_asked_for_in_its_shard_only() -> None:
    async def whole() -> None:
        shelf = Shelf()
        router = shelf.router()
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        await router.enqueue([NewJob(id=f"j{n}", task="work", queue="mail", group=f"g{n}") for n in range(9)], now=NOW)
        assert (await router.get("j5")) == (await router.get("j5")) is not None
        for shard in shelf.shards.values():
            shard.calls.clear()
        assert (await router.get("j5")) is not None
        assert [shard.calls for shard in shelf.shards.values() if shard.calls] == [["get"]]
        await router.cancel("j5", now=NOW)
        assert await router.prune(older_than=0.0, now=NOW + 700) == 1
        assert await router.get("j5") is None

    asyncio.run(whole())


def test_every_shard_gets_its_share_of_a_claim() -> None:
    async def whole() -> None:
        router = Shelf().router()
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        await router.enqueue([NewJob(id=f"j{n}", task="work", queue="mail") for n in range(600)], now=NOW)
        await router.register(WorkerRecord(id="w", queues=("mail",)), now=NOW)
        taken: Counter[str] = Counter()
        for call in range(1, 13):
            request = ClaimRequest(worker="w", call=call, queues=("mail",), most=2)
            leases = (await router.claim(request, now=NOW)).leases
            assert len(leases) == 2
            taken.update(lease.token.partition("/")[0] for lease in leases)
        assert len(taken) == 6 and max(taken.values()) == 4

    asyncio.run(whole())


def test_what_a_shard_cannot_use_goes_to_one_that_has_more() -> None:
    async def whole() -> None:
        shelf = Shelf()
        router = shelf.router()
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        batch = [NewJob(id=f"g{n}", task="work", queue="mail") for n in range(500)]
        await router.enqueue([job for job in batch if places.place_of(job.id, 6) == 4], now=NOW)
        await router.register(WorkerRecord(id="w", queues=("mail",)), now=NOW)
        shelf.shards["mail:4"].calls.clear()
        answer = await router.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=60), now=NOW)
        assert len(answer.leases) == 60
        assert shelf.shards["mail:4"].calls == ["exchange", "exchange"]

    asyncio.run(whole())


def test_equal_fences_in_different_shards_are_no_fault() -> None:
    async def whole() -> None:
        router = Shelf().router()
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        await router.enqueue([NewJob(id=f"j{n}", task="work", queue="mail", group=f"g{n}") for n in range(40)], now=NOW)
        await router.register(WorkerRecord(id="w", queues=("mail",)), now=NOW)
        leases = (await router.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=40), now=NOW)).leases
        assert len({lease.fence for lease in leases}) < len(leases) == 40
        dump = await router.dump()
        assert [fault.text for rule in RULES for fault in rule(picture_of(dump))] == []
        # in one group it is one
        rows = tuple({**row, "group": "g"} for row in dump.tables["jobs"])
        broken = picture_of(Dump(tables={**dump.tables, "jobs": rows}, sharded=True))
        assert {fault.rule for fault in fences_are_distinct(broken)} == {"fences_are_distinct"}

    asyncio.run(whole())


def test_a_queue_that_comes_later_obeys_the_pause_of_a_task() -> None:
    async def whole() -> None:
        router = Shelf().router()
        await router.pause(Pause(task="mail"), now=NOW)
        await router.declare([QueueRule(name="late", shards=3)], now=NOW)
        await router.enqueue([NewJob(id=f"j{n}", task="mail", queue="late") for n in range(9)], now=NOW)
        await router.enqueue([NewJob(id="i", task="mail", queue="undeclared")], now=NOW)
        await router.register(WorkerRecord(id="w"), now=NOW)
        queues = ("late", "undeclared")
        request = ClaimRequest(worker="w", call=1, queues=queues, most=50)
        assert (await router.claim(request, now=NOW)).leases == ()
        assert await router.resume(Pause(task="mail"), now=NOW)
        request = ClaimRequest(worker="w", call=2, queues=queues, most=50)
        assert len((await router.claim(request, now=NOW)).leases) == 10

    asyncio.run(whole())


def test_a_queue_with_jobs_keeps_its_number_of_shards() -> None:
    async def whole() -> None:
        shelf = Shelf()
        router = shelf.router()
        await router.declare([QueueRule(name="mail", shards=3)], now=NOW)
        await router.enqueue([NewJob(id="j", task="work", queue="mail")], now=NOW)
        for refused in (1, 6):
            with pytest.raises(ConfigurationError, match="3 shards and 1 jobs"):
                await router.declare([QueueRule(name="mail", shards=refused)], now=NOW)
        await router.declare([QueueRule(name="mail", shards=3, group_order="relaxed", group_limit=2)], now=NOW)
        await router.cancel("j", now=NOW)
        with pytest.raises(ConfigurationError):  # its id is still remembered, in its old place
            await router.declare([QueueRule(name="mail", shards=6)], now=NOW)
        assert await router.prune(older_than=600.0, now=NOW + 601) == 1
        await router.declare([QueueRule(name="mail", shards=6)], now=NOW + 601)
        assert [row["shards"] for row in (await router.dump()).tables["queues"]] == [6]

    asyncio.run(whole())


def test_with_a_new_number_of_shards_pauses_and_limits_move_along() -> None:
    async def whole() -> None:
        shelf = Shelf()
        router = shelf.router()
        relaxed = QueueRule(name="mail", group_order="relaxed", group_limit=2)
        await router.declare([relaxed], now=NOW)
        groups = [f"g{n}" for n in range(12)]
        for group in groups[:6]:
            await router.limit(Override(queue="mail", group=group, limit=3), now=NOW)
        for group in groups[6:]:
            await router.pause(Pause(queue="mail", group=group), now=NOW)
        await router.declare([QueueRule(name="mail", group_order="relaxed", group_limit=2, shards=4)], now=NOW)
        await router.enqueue(
            [NewJob(id=f"{group}-{n}", task="work", queue="mail", group=group) for group in groups for n in range(5)],
            now=NOW,
        )
        found = {record.name: record for record in await router.groups("mail")}
        assert {found[group].counts.get("ready") for group in groups[:6]} == {3}
        assert {found[group].counts.get("ready") for group in groups[6:]} == {None}
        assert all(found[group].pause is not None for group in groups[6:])
        for group in groups[6:]:
            assert await router.resume(Pause(queue="mail", group=group), now=NOW)
        assert (await router.count())["mail"][State.READY] == 6 * 3 + 6 * 2

    asyncio.run(whole())


def test_another_process_learns_of_queues_it_did_not_make() -> None:
    async def whole() -> None:
        shelf = Shelf()
        one, two = shelf.router(), shelf.router()
        await one.open()
        await two.open()
        await one.declare([QueueRule(name="mail", shards=6)], now=NOW)
        await one.enqueue([NewJob(id=f"j{n}", task="work", queue="mail") for n in range(12)], now=NOW)
        found = await two.get("j7")
        assert found is not None and found.queue == "mail"
        assert len(await two.find(JobQuery())) == 12
        await two.enqueue([NewJob(id=f"j{n}", task="work", queue="mail") for n in range(12)], now=NOW)
        assert len(await one.find(JobQuery())) == 12

    asyncio.run(whole())


def test_two_who_declare_at_once_agree_in_the_end() -> None:
    async def whole() -> None:
        shelf = Shelf()
        routers = [shelf.router() for _ in range(6)]
        rules = [QueueRule(name="mail", group_order="relaxed", group_limit=n + 1, shards=3) for n in range(6)]
        declared = (router.declare([rule], now=NOW) for router, rule in zip(routers, rules, strict=True))
        await asyncio.gather(*declared)
        kept = {(await shelf.shards[f"mail:{n}"].store.queues())[0].group_limit for n in range(3)}
        assert len(kept) == 1
        assert [record.group_limit for record in await routers[0].queues()] == list(kept)

    asyncio.run(whole())


@pytest.mark.parametrize("stored", [0, 400])
def test_a_keyed_batch_that_may_raise_looks_once_into_each_shard_however_many_jobs_are_there(stored: int) -> None:
    async def whole() -> None:
        shelf, router = await split_store(3, [NewJob(id=f"old-{n}", task="work", queue="mail") for n in range(stored)])
        batch = [
            NewJob(id=f"new-{n}", task="work", queue="mail", key=f"k{n}", on_conflict="raise", args=b"[%d]" % n)
            for n in range(30)
        ]
        for shard in shelf.shards.values():
            shard.calls.clear()
        assert all(one.created for one in await router.enqueue(batch, now=NOW))
        calls = [shard.calls for name, shard in shelf.shards.items() if name]
        assert calls == [["enqueue", "enqueue"]] * 3
        found = await router.find(JobQuery(limit=1000))
        assert len(found) == stored + len(batch)
        assert {job.args for job in found if job.key is not None} == {job.args for job in batch}
        with pytest.raises(DuplicateJob) as caught:
            await router.enqueue([replace(job, id=f"again-{job.id}") for job in batch], now=NOW)
        assert caught.value.existing_id.startswith("new-")
        assert len(await router.find(JobQuery(limit=1000))) == stored + len(batch)
        assert not any(one.created for one in await router.enqueue(batch, now=NOW))  # known ids

    asyncio.run(whole())


def test_an_edit_never_moves_a_job_to_another_shard() -> None:
    async def walk() -> None:
        jobs = [NewJob(id=f"j{number}", task="t", queue="mail", group=f"g{number}") for number in range(12)]
        _, store = await split_store(4, jobs)
        near = [number for number in range(12) if places.place_of(f"g{number}", 4) == places.place_of("g0", 4)]
        assert 1 < len(near) < 12
        for number in range(12):
            if number in near:
                assert (await store.edit(f"j{number}", Edit(group="g0"), now=NOW)).group == "g0"
                continue
            with pytest.raises(ConfigurationError, match="another shard"):
                await store.edit(f"j{number}", Edit(group="g0"), now=NOW)
            found = await store.get(f"j{number}")
            assert found is not None and found.group == f"g{number}"
        with pytest.raises(ConfigurationError, match="shards of its own"):
            await store.edit("j0", Edit(queue="other"), now=NOW)
        assert (await store.edit("j0", Edit(queue="mail", args=b"[1]"), now=NOW)).args == b"[1]"
        await store.delete("j0", now=NOW)
        assert await store.get("j0") is None
        await store.close()

    asyncio.run(walk())
