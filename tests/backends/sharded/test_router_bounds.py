"""The bounds of a claim over shards: what they are given together is no more than what was asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded import lease
from holdfast.backends.sharded.places import parted, place_of
from holdfast.errors import ConfigurationError, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import (
    Answer,
    ClaimRequest,
    CronEntry,
    Flaw,
    JobQuery,
    NewJob,
    Override,
    Pause,
    QueueRule,
    TaskRule,
    Tick,
    WorkerRecord,
)

from .differing import BY_QUEUE, run_differing
from .shelves import NOW, Moody, Shelf, memory_stores, split_store

SHARDS = 4


def jobs(number: int, size: int = 2) -> list[NewJob]:
    return [NewJob(id=f"job-{n:03}", task="work", queue="mail", args=b"x" * size) for n in range(number)]


def ask(call: int = 1, most: int = 40, **fields: Any) -> ClaimRequest:
    return ClaimRequest(worker="w", call=call, queues=("mail",), most=most, **fields)


def asked(shard: Moody) -> list[ClaimRequest]:
    """Note the claims a shard gets."""
    seen: list[ClaimRequest] = []
    real = shard.exchange

    async def exchange(settlements: Any, releases: Any, request: ClaimRequest, now: float | None = None) -> Any:
        seen.append(request)
        return await real(settlements, releases, request, now)

    shard.exchange = exchange
    return seen


async def scene(number: int, size: int = 2) -> tuple[Shelf, Any, dict[str, list[ClaimRequest]]]:
    shelf, router = await split_store(SHARDS, jobs(number, size))
    await router.register(WorkerRecord(id="w", lease_seconds=30.0, queues=("mail",)), now=NOW)
    return shelf, router, {name: asked(shard) for name, shard in shelf.shards.items() if name}


@pytest.mark.parametrize("bytes_max", [1, 1000, 3500, 20_000])
def test_the_leases_of_a_call_carry_no_more_bytes_than_asked_for(bytes_max: int) -> None:
    async def whole() -> None:
        _, router, seen = await scene(30, 1000)
        leases = (await router.claim(ask(bytes_max=bytes_max), now=NOW)).leases
        assert len(leases) == max(1, bytes_max // 1000)
        first = [requests[0].bytes_max for requests in seen.values()]
        assert sum(first) <= max(bytes_max, SHARDS)
        running = await router.find(JobQuery(states=(State.RUNNING,), limit=100))
        assert {job.id for job in running} == {lease.id for lease in leases}

    asyncio.run(whole())


def test_a_claim_sweeps_no_more_over_all_its_shards_than_asked_for() -> None:
    async def whole() -> None:
        _, router, seen = await scene(40)
        await router.claim(ask(most=40, sweep_max=10), now=NOW)
        assert sum(request.sweep_max for requests in seen.values() for request in requests) == 10

    asyncio.run(whole())


def test_a_call_that_is_owed_is_repeated_with_less() -> None:
    async def whole() -> None:
        shelf, router, seen = await scene(40)
        quiet = shelf.shards["mail:1"]
        quiet.mood = "down"
        for call in range(1, 6):
            await router.claim(ask(call, sweep_max=160), now=NOW)
        first, *repeats = seen["mail:1"]
        assert {request.call for request in repeats} == {first.call}
        assert [(one.most, one.sweep_max) for one in seen["mail:1"]] == [(10, 40), (5, 20), (3, 10), (2, 5), (1, 2)]
        assert [one.bytes_max for one in repeats] == [first.bytes_max // 2**n for n in range(1, 5)]

    asyncio.run(whole())


async def words(stores: list[Any]) -> list[object]:
    return [said.apart for store in stores for said in (await store.export("rules")).overrides]


def test_an_operators_word_on_lanes_reaches_every_shard_and_goes_again() -> None:
    async def whole() -> None:
        shelf, router, _ = await scene(12)
        shards = [shard.store for name, shard in shelf.shards.items() if name]
        await router.limit(Override(task="work", apart=True), now=NOW)
        assert await words(shards) == [True] * SHARDS
        await router.declare([QueueRule(name="mail", shards=SHARDS, limit=100)], [TaskRule(name="work")], now=NOW)
        assert await words(shards) == [True] * SHARDS
        none = await router.claim(replace(ask(), most_by_task={"work": 0}), now=NOW)
        assert none.leases == ()
        await router.limit(Override(task="work", apart=None), now=NOW)
        assert await words(shards) == []

    asyncio.run(whole())


def test_what_rules_leave_to_do_is_carried_on_in_every_shard() -> None:
    async def whole() -> None:
        shelf, router, _ = await scene(8)
        limits: list[int] = []
        left = dict.fromkeys(shelf.shards, 3)

        def piecewise(name: str) -> Any:
            async def rearrange(*, limit: int, now: float | None = None) -> bool:
                limits.append(limit)
                left[name] = max(0, left[name] - 1)
                return left[name] > 0

            return rearrange

        for name, shard in shelf.shards.items():
            shard.rearrange = piecewise(name)
        passes = 1
        while await router.rearrange(limit=50, now=NOW):
            passes += 1
        assert (passes, set(limits), set(left.values())) == (3, {10}, {0})
        router.rule_step_max = 7
        await router.pause(Pause(task="work"), now=NOW)
        assert {shard.rule_step_max for shard in shelf.shards.values()} == {7}

    asyncio.run(whole())


def test_a_silent_shard_may_have_more_to_rearrange() -> None:
    async def whole() -> None:
        shelf, router, _ = await scene(8)
        shelf.shards["mail:0"].mood = "down"
        assert await router.rearrange(now=NOW)

    asyncio.run(whole())


def test_flaws_of_home_and_all_shards_are_listed_within_the_bound() -> None:
    async def whole() -> None:
        shelf, router, _ = await scene(8)

        async def flaws(*, limit: int) -> list[Flaw]:
            return [Flaw(place="ready", text="an entry without its job", id="x")] * min(3, limit)

        shelf.shards["mail:1"].flaws = flaws
        shelf.shards[""].flaws = flaws
        assert len(await router.flaws()) == 6
        assert len(await router.flaws(limit=4)) == 4

    asyncio.run(whole())


def test_a_tick_whose_job_is_refused_stops_no_sweep() -> None:
    """Its task got a limit that cannot be divided once the job's queue is counted, after home had taken the tick."""

    async def whole() -> None:
        _, router, _ = await scene(0)
        refused = True
        enqueue = router._ticking._enqueue

        async def refusing(jobs: list[NewJob], now: float | None) -> Any:
            if refused and jobs[0].task == "bad":
                raise ConfigurationError("cannot be divided")
            if refused:
                raise OutcomeUnknown("enqueue")
            return await enqueue(jobs, now)

        router._ticking._enqueue = refusing
        for name, task in (("a", "good"), ("b", "bad")):
            entry = CronEntry(name=name, call=b"{}")
            tick = Tick(name=name, version=0, entry=entry, jobs=(NewJob(id=name, task=task, queue="mail"),))
            assert (await router.tick(tick, now=NOW)).done
        await router.promote(now=NOW + 60)
        await router.prune(now=NOW + 60)
        refused = False
        await router.promote(now=NOW + 60)
        assert {job.id for job in await router.find(JobQuery())} == {"a", "b"}

    asyncio.run(whole())


def test_a_promote_says_that_a_shard_has_more_edges_to_follow() -> None:
    """The router counts jobs, and edges have a bound of their own."""
    run_differing("the_end_of_a_long_chain_is_reached_in_bounded_steps", memory_stores(), BY_QUEUE)


# ---------------------------------------------------------------------- a few shards at a time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The router's own time."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(lease, "PORTION_JOBS", 10)
    return found


def test_a_queue_that_has_enough_is_claimed_from_a_few_shards_and_each_has_its_turn(clock: SimpleNamespace) -> None:
    async def whole() -> None:
        _, router, seen = await scene(800)
        took, last = dict.fromkeys(seen, 0), dict.fromkeys(seen, clock.now)
        settled: list[Settlement] = []
        for call in range(1, 41):
            clock.now += 0.01
            before = {name: len(requests) for name, requests in seen.items()}
            got = await router.exchange(settled, (), ask(call, 10), now=NOW)
            assert len(got.leases) == 10 and set(got.answers) <= {Answer.OK}
            settled = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases]
            claims = [name for name, requests in seen.items() if any(one.most for one in requests[before[name] :])]
            assert len(claims) == SHARDS if call == 1 else len(claims) <= 2
            for name in claims:
                took[name] += 1
                last[name] = clock.now
            assert clock.now - min(last.values()) <= lease.ASKED_WITHIN_SECONDS + 0.01
        assert min(took.values()) >= 4 and sum(took.values()) < 2 * 40

    asyncio.run(whole())


def test_a_claim_that_comes_late_asks_every_shard(clock: SimpleNamespace) -> None:
    async def whole() -> None:
        _, router, seen = await scene(200)
        for call in (1, 2, 3):
            clock.now += lease.ASKED_WITHIN_SECONDS
            for requests in seen.values():
                requests.clear()
            assert len((await router.claim(ask(call, 12), now=NOW)).leases) == 12
            assert [[one.most for one in requests] for requests in seen.values()] == [[3]] * SHARDS

    asyncio.run(whole())


def test_where_a_few_shards_have_not_enough_the_others_are_asked(clock: SimpleNamespace) -> None:
    """And from then on all of them at once, until there is enough again."""

    async def whole() -> None:
        _, router, seen = await scene(40)
        assert len((await router.claim(ask(1, 20), now=NOW)).leases) == 20
        assert len((await router.claim(ask(2, 30), now=NOW)).leases) == 20
        for requests in seen.values():
            requests.clear()
        await router.enqueue([replace(one, id=f"more-{one.id}") for one in jobs(40)], now=NOW)
        assert len((await router.claim(ask(3, 20), now=NOW)).leases) == 20
        assert all(requests[0].most == 5 for requests in seen.values())

    asyncio.run(whole())


def test_all_shards_of_a_queue_that_has_enough_give_about_as_many_jobs(clock: SimpleNamespace) -> None:
    """Also if outcomes come two calls after their claims, so that two claims take turns: none keeps its shards."""

    async def whole() -> None:
        _, router = await split_store(6, jobs(4000))
        await router.register(WorkerRecord(id="w", lease_seconds=30.0, queues=("mail",)), now=NOW)
        took: Counter[str] = Counter()
        under_way: list[list[Settlement]] = [[], []]
        for call in range(1, 101):
            clock.now += 0.005
            got = await router.exchange(under_way.pop(0), (), ask(call, 20), now=NOW)
            under_way.append([Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases])
            took.update(parted(one.token)[0] for one in got.leases)
        assert took.total() == 2000 and len(took) == 6 and max(took.values()) < 1.3 * min(took.values())

    asyncio.run(whole())


def test_what_an_empty_shard_did_not_give_is_asked_of_one_that_did(clock: SimpleNamespace) -> None:
    """So its outcomes go in one call, too."""

    async def whole() -> None:
        shelf, router = await split_store(SHARDS, [one for one in jobs(800) if place_of(one.id, SHARDS) > 0])
        await router.register(WorkerRecord(id="w", lease_seconds=30.0, queues=("mail",)), now=NOW)
        seen = {name: asked(shard) for name, shard in shelf.shards.items() if name}
        turns = 0
        for call in range(1, 41):
            clock.now += 0.01
            for requests in seen.values():
                requests.clear()
            got = await router.claim(ask(call, 10), now=NOW)
            assert len(got.leases) == 10
            if call > 1 and seen["mail:0"]:
                turns += 1
                assert sorted(len(requests) for requests in seen.values()) == [0, 0, 1, 2]
        assert turns >= 3

    asyncio.run(whole())


def test_a_claim_is_sent_before_the_outcomes_of_other_shards(clock: SimpleNamespace) -> None:
    async def whole() -> None:
        shelf, router, seen = await scene(200)
        got = await router.exchange((), (), ask(1, 20), now=NOW)
        clock.now += 0.001
        for requests in seen.values():
            requests.clear()
        sent: list[int] = []
        for name, shard in shelf.shards.items():
            if name:
                shard.exchange = noting(shard.exchange, sent)
        outcomes = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases]
        again = await router.exchange(outcomes, (), ask(2, 10), now=NOW)
        assert again.answers == (Answer.OK,) * 20 and len(again.leases) == 10
        assert sent == [10, 0, 0, 0]

    asyncio.run(whole())


def noting(exchange: Any, sent: list[int]) -> Any:
    """An exchange that first notes for how many jobs it asks."""

    async def noted(settlements: Any, releases: Any, request: ClaimRequest, now: float | None = None) -> Any:
        sent.append(request.most)
        return await exchange(settlements, releases, request, now)

    return noted
