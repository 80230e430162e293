"""A shard that is cut off or loses its answers: the others go on, and nothing is lost, doubled or miscounted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.lease import HOME
from holdfast.errors import BackendUnavailable, DuplicateJob, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Held, JobQuery, Lease, NewJob, QueueRule, Release, WorkerRecord

from .shelves import Shelf

NOW = 2_000_000_000.0
MANY = 6


def scene(test: Callable[[Shelf, ShardedBackend], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a queue of six shards, with a worker registered."""

    def run() -> None:
        async def whole() -> None:
            shelf = Shelf()
            router = shelf.router()
            await router.open()
            await router.declare([QueueRule(name="mail", shards=MANY)], now=NOW)
            await router.register(WorkerRecord(id="w", lease_seconds=30.0, queues=("mail",)), now=NOW)
            await test(shelf, router)

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def jobs(number: int, **fields: Any) -> list[NewJob]:
    return [NewJob(id=f"job-{n:03}", task="work", queue="mail", **fields) for n in range(number)]


def ask(call: int, most: int = 50) -> ClaimRequest:
    return ClaimRequest(worker="w", call=call, queues=("mail",), most=most)


def success(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)


@scene
async def test_a_claim_gets_what_the_others_have(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    shelf.shards["mail:2"].mood = "down"
    there = set(shelf.shards["mail:2"].store._store.jobs)
    first = await router.claim(ask(1), now=NOW)
    assert {lease.id for lease in first.leases} == {job.id for job in jobs(30)} - there
    shelf.shards["mail:2"].mood = "well"
    second = await router.claim(ask(2), now=NOW)
    assert {lease.id for lease in second.leases} == there


@pytest.mark.parametrize("mood", ["down", "mute"])
def test_settlements_a_silent_shard_did_not_answer_are_answered_once_it_speaks(mood: str) -> None:
    @scene
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        await router.enqueue(jobs(30), now=NOW)
        leases = (await router.claim(ask(1), now=NOW)).leases
        shelf.shards["mail:2"].mood = mood
        done = await router.exchange([success(lease) for lease in leases], [], ask(2, 0), now=NOW)
        quiet = [word is Answer.UNHEARD for word in done.answers]
        assert quiet == [lease.token.startswith("mail:2/") for lease in leases]
        assert {word for word in done.answers if word is not Answer.UNHEARD} == {Answer.OK}
        owed = [success(lease) for lease, silent in zip(leases, quiet, strict=True) if silent]
        again = await router.exchange(owed, [], ask(3, 0), now=NOW)
        assert set(again.answers) == {Answer.UNHEARD}
        shelf.shards["mail:2"].mood = "well"
        last = await router.exchange(owed, [], ask(4, 0), now=NOW)
        assert set(last.answers) == {Answer.OK}  # also where the first time was carried out
        found = await router.find(JobQuery(limit=100))
        assert {(job.state, job.attempts) for job in found} == {(State.SUCCEEDED, 1)}

    test()


@scene
async def test_leases_whose_answer_was_lost_come_with_the_next_call(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    quiet = shelf.shards["mail:2"]
    there = set(quiet.store._store.jobs)
    quiet.mood = "mute"
    first = await router.claim(ask(1), now=NOW)
    assert not there & {lease.id for lease in first.leases}
    quiet.mood = "well"
    second = await router.claim(ask(2), now=NOW)
    assert {lease.id for lease in second.leases} == there
    answers = await router.settle([success(lease) for lease in second.leases], now=NOW)
    assert set(answers) == {Answer.OK}


@scene
async def test_late_leases_beyond_what_is_free_go_back_at_no_cost(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    shelf.shards["mail:2"].mood = "mute"
    await router.claim(ask(1), now=NOW)
    shelf.shards["mail:2"].mood = "well"
    second = await router.claim(ask(2, 1), now=NOW)
    assert len(second.leases) == 1
    rows = [job for job in await router.find(JobQuery(limit=100)) if shelf.holder(job.id) is shelf.shards["mail:2"]]
    states = sorted(job.state for job in rows)
    assert states.count(State.RUNNING) == 1 and set(states) == {State.RUNNING, State.READY}
    assert {(job.attempts, job.stalls) for job in rows} == {(0, 0)}


@pytest.mark.parametrize("free", [0, 1, 3])
def test_late_leases_count_against_the_free_slots_of_their_queue(free: int) -> None:
    @scene
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        await router.enqueue(jobs(30), now=NOW)
        shelf.shards["mail:2"].mood = "mute"
        await router.claim(replace(ask(1), most_by_queue={"mail": 12}), now=NOW)  # two of each shard
        shelf.shards["mail:2"].mood = "well"
        second = await router.claim(replace(ask(2), most_by_queue={"mail": free}), now=NOW)
        assert len(second.leases) == free
        found = await router.find(JobQuery(limit=100))
        rows = [job for job in found if shelf.holder(job.id) is shelf.shards["mail:2"]]
        held = {lease.id for lease in second.leases}
        assert {job.id for job in rows if job.state is State.RUNNING} <= held
        assert {(job.attempts, job.stalls) for job in rows} == {(0, 0)}

    test()


@scene
async def test_a_repeated_call_does_not_wait_for_home_or_for_one_shard(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(12), now=NOW)
    for shard in shelf.shards.values():
        shard.mood = "mute"
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await router.claim(ask(1), now=NOW)
    for name, shard in shelf.shards.items():
        shard.mood = "down" if name == HOME else "well"
    first = await router.claim(ask(1), now=NOW)
    assert {lease.id for lease in first.leases} == {job.id for job in jobs(12)}
    shelf.shards["mail:2"].mood = "down"
    again = await router.claim(ask(1), now=NOW)  # whether those of mail:2 are still ours, the next renewal tells
    assert again.leases == first.leases
    renewal = await router.renew("w", [Held(one.id, one.token) for one in again.leases], seen_call=1, now=NOW)
    assert set(renewal.unheard) == {lease.id for lease in again.leases if lease.token.startswith("mail:2/")}


@scene
async def test_where_no_shard_answers_the_call_fails_and_can_be_repeated(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(12), now=NOW)
    for shard in shelf.shards.values():
        shard.mood = "mute"
    with pytest.raises(OutcomeUnknown):
        await router.claim(ask(1), now=NOW)
    for shard in shelf.shards.values():
        shard.mood = "well"
    first = await router.claim(ask(1), now=NOW)
    assert {lease.id for lease in first.leases} == {job.id for job in jobs(12)}
    again = await router.claim(ask(1), now=NOW)
    assert sorted(lease.token for lease in again.leases) == sorted(lease.token for lease in first.leases)


@scene
async def test_outcomes_of_one_silent_shard_do_not_hold_up_a_call(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    leases = (await router.claim(ask(1), now=NOW)).leases
    shelf.shards["mail:2"].mood = "down"
    owed = [success(lease) for lease in leases if lease.token.startswith("mail:2/")]
    answer = await router.exchange(owed, [], ask(2, 0), now=NOW)
    assert answer.known and set(answer.answers) == {Answer.UNHEARD}


@scene
async def test_a_call_given_up_in_the_middle_claims_nothing_twice(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    plain = shelf.shards["mail:3"].store
    reached, never = asyncio.Event(), asyncio.Event()

    async def stuck(*args: Any) -> Any:
        answer = await plain.exchange(*args)
        reached.set()
        await never.wait()
        return answer

    shelf.shards["mail:3"].exchange = stuck
    call = asyncio.create_task(router.claim(ask(1, 12), now=NOW))
    await reached.wait()
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    del shelf.shards["mail:3"].exchange
    first = await router.claim(ask(1, 12), now=NOW)
    running = await router.find(JobQuery(states=(State.RUNNING,), limit=100))
    assert sorted(lease.id for lease in first.leases) == sorted(job.id for job in running)
    assert len(first.leases) <= 12


@scene
async def test_a_renewal_names_what_a_silent_shard_holds(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    leases = (await router.claim(ask(1), now=NOW)).leases
    held = [Held(lease.id, lease.token) for lease in leases]
    shelf.shards["mail:2"].mood = "down"
    answer = await router.renew("w", held, seen_call=1, now=NOW + 10)
    assert answer.known and not answer.lost and not answer.released
    assert set(answer.unheard) == {lease.id for lease in leases if lease.token.startswith("mail:2/")}
    ended = await router.recover(now=NOW + 31)  # the others were renewed
    assert ended == []
    shelf.shards["mail:2"].mood = "well"
    assert {end.id for end in await router.recover(now=NOW + 31)} == set(answer.unheard)
    answer = await router.renew("w", held, seen_call=1, now=NOW + 32)
    assert answer.known and {shelf.holder(job_id) for job_id in answer.lost} == {shelf.shards["mail:2"]}


@scene
async def test_a_shard_that_missed_a_renewal_gets_one_before_it_leases_again(
    shelf: Shelf, router: ShardedBackend
) -> None:
    """Its old deadline is near: a lease claimed under it would run out long before the worker expects."""
    quiet = shelf.shards["mail:2"]
    quiet.mood = "down"
    await router.renew("w", [], seen_call=0, now=NOW + 20)
    quiet.mood = "well"
    await router.enqueue(jobs(30), now=NOW + 29)
    leases = (await router.claim(ask(1), now=NOW + 29)).leases
    assert any(lease.token.startswith("mail:2/") for lease in leases)
    assert await router.recover(now=NOW + 49) == []


@scene
async def test_a_lease_that_came_while_a_renewal_was_on_its_way_is_named_too(
    shelf: Shelf, router: ShardedBackend
) -> None:
    await router.enqueue(jobs(30), now=NOW)
    quiet = shelf.shards["mail:2"]
    claimed: list[Lease] = []

    async def renew(*args: Any, **kwargs: Any) -> Any:
        claimed.extend((await router.claim(ask(1), now=NOW)).leases)
        raise OutcomeUnknown("renew")

    quiet.renew = renew
    answer = await router.renew("w", [], seen_call=0, now=NOW)
    assert set(answer.unheard) == {lease.id for lease in claimed if lease.token.startswith("mail:2/")} != set()


@scene
async def test_a_portrait_that_home_did_not_take_comes_with_the_next_renewal(
    shelf: Shelf, router: ShardedBackend
) -> None:
    shelf.shards[""].mood = "down"
    assert (await router.renew("w", [], seen_call=0, portrait=b"{}", now=NOW + 1)).known
    shelf.shards[""].mood = "well"
    assert [worker.portrait for worker in await router.workers(now=NOW + 1)] == [None]
    await router.renew("w", [], seen_call=0, now=NOW + 2)
    assert [worker.portrait for worker in await router.workers(now=NOW + 2)] == [b"{}"]
    assert [worker.portrait for worker in await shelf.shards["mail:0"].workers(now=NOW + 2)] == [None]


@scene
async def test_a_batch_that_lost_one_shard_is_completed_by_repeating_it(shelf: Shelf, router: ShardedBackend) -> None:
    shelf.shards["mail:2"].mood = "down"
    with pytest.raises(OutcomeUnknown):
        await router.enqueue(jobs(30), now=NOW)
    shelf.shards["mail:2"].mood = "well"
    answers = await router.enqueue(jobs(30), now=NOW)
    assert [answer.id for answer in answers] == [job.id for job in jobs(30)]
    assert len(await router.find(JobQuery(limit=100))) == 30
    shelf.shards["mail:2"].mood = "down"
    with pytest.raises(BackendUnavailable):  # nothing was stored, and that is known
        await router.enqueue([job for job in jobs(30) if shelf.holder(job.id) is shelf.shards["mail:2"]][:1], now=NOW)


@scene
async def test_a_taken_key_anywhere_in_a_batch_stores_nothing_of_it(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue([NewJob(id="first", task="work", queue="mail", key="k7")], now=NOW)
    batch = [NewJob(id=f"b{n}", task="work", queue="mail", key=f"k{n}", on_conflict="raise") for n in range(20)]
    with pytest.raises(DuplicateJob) as caught:
        await router.enqueue(batch, now=NOW)
    assert (caught.value.key, caught.value.existing_id) == ("k7", "first")
    assert [job.id for job in await router.find(JobQuery(limit=100))] == ["first"]
    twice = [NewJob(id=f"c{n}", task="work", queue="mail", key=f"x{n % 9}", on_conflict="raise") for n in range(10)]
    with pytest.raises(DuplicateJob):
        await router.enqueue(twice, now=NOW)
    assert len(await router.find(JobQuery(limit=100))) == 1


@scene
async def test_one_job_is_found_while_another_shard_is_down(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    shelf.shards["mail:2"].mood = "down"
    [gone] = [job.id for job in jobs(30) if shelf.holder(job.id) is shelf.shards["mail:2"]][:1]
    [here] = [job.id for job in jobs(30) if shelf.holder(job.id) is not shelf.shards["mail:2"]][:1]
    assert (await router.cancel(here, now=NOW)).state is State.CANCELLED
    found = await router.get(here)
    assert found is not None and found.state is State.CANCELLED
    for look in (router.get(gone), router.get("nobody"), router.cancel(gone, now=NOW), router.letter("nobody")):
        with pytest.raises(BackendUnavailable):  # not "there is none": that is not known
            await look


@scene
async def test_half_a_picture_is_not_shown(shelf: Shelf, router: ShardedBackend) -> None:
    shelf.shards["mail:2"].mood = "down"
    for look in (router.dump(), router.find(JobQuery()), router.count(), router.queues(), router.groups()):
        with pytest.raises(BackendUnavailable):
            await look


@scene
async def test_sweeps_go_on_in_the_other_shards(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30, delay=5.0), now=NOW)
    shelf.shards["mail:2"].mood = "down"
    there = len(shelf.shards["mail:2"].store._store.jobs)
    assert (await router.promote(now=NOW + 6)).due == 30 - there
    await router.claim(ask(1), now=NOW + 6)
    assert len(await router.recover(now=NOW + 60)) == 30 - there
    assert await router.prune(now=NOW + 60) == 0 and await router.refill(now=NOW + 60) == 0


@scene
async def test_releases_of_a_silent_shard_are_given_back_by_the_next_renewal(
    shelf: Shelf, router: ShardedBackend
) -> None:
    await router.enqueue(jobs(30), now=NOW)
    leases = (await router.claim(ask(1), now=NOW)).leases
    shelf.shards["mail:2"].mood = "down"
    back = [Release(id=lease.id, token=lease.token) for lease in leases]
    answers = (await router.exchange([], back, ask(2, 0), now=NOW)).answers
    assert set(answers) == {Answer.OK, Answer.UNHEARD}
    shelf.shards["mail:2"].mood = "well"
    released = (await router.renew("w", [], seen_call=2, now=NOW)).released
    assert len(released) == answers.count(Answer.UNHEARD)
    assert {job.state for job in await router.find(JobQuery(limit=100))} == {State.READY}
