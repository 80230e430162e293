"""Renewals in flight together with claims: an older renewal never releases what was handed out since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.lease import HOME
from holdfast.errors import OutcomeUnknown
from holdfast.lifecycle import State
from holdfast.records import Answer, ClaimRequest, Held, Lease, NewJob, Renewal, WorkerRecord

from .shelves import NOW, Moody, Shelf, split_store


class Delayed:
    """The next call of a verb to a shard waits on its way there, or its reply on the way back, until it is let go."""

    def __init__(self, shard: Moody, verb: str, *, carried_out: bool = False) -> None:
        self.sent, self.go = asyncio.Event(), asyncio.Event()
        real: Callable[..., Awaitable[Any]] = getattr(shard, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            delattr(shard, verb)  # this one alone
            self.sent.set()
            if not carried_out:
                await self.go.wait()
            answer = await real(*args, **kwargs)
            if carried_out:
                await self.go.wait()
            return answer

        setattr(shard, verb, call)


def ask(call: int, most: int = 4, worker: str = "a") -> ClaimRequest:
    return ClaimRequest(worker=worker, call=call, queues=("mail",), most=most)


def no_slot(call: int) -> ClaimRequest:
    """The worker has free slots, but none for this queue."""
    return replace(ask(call), most_by_queue={"mail": 0})


def named(*leases: Lease) -> list[Held]:
    return [Held(lease.id, lease.token) for lease in leases]


async def scene() -> tuple[Shelf, ShardedBackend, ShardedBackend]:
    """A queue of two shards, one at-most-once job in it, two workers, each with a router of its own."""
    shelf, one = await split_store(2, [NewJob(id="once", task="work", queue="mail", max_stalls=0)])
    two = shelf.router()
    for router, worker in ((one, "a"), (two, "b")):
        await router.register(WorkerRecord(id=worker, lease_seconds=30.0, queues=("mail",)), now=NOW)
    return shelf, one, two


async def lose_the_claim(shelf: Shelf, router: ShardedBackend, call: int) -> Moody:
    """The job is leased in its shard, but the answer is lost."""
    shard = shelf.holder("once")
    shard.mood = "mute"
    assert (await router.claim(ask(call), now=NOW)).leases == ()
    shard.mood = "well"
    assert shard.store._store.jobs["once"].state is State.RUNNING
    return shard


def test_a_lease_that_came_late_is_safe_from_a_renewal_that_was_sent_before() -> None:
    async def whole() -> None:
        shelf, a, b = await scene()
        shard = await lose_the_claim(shelf, a, 1)
        delayed = Delayed(shard, "renew")
        renewal = asyncio.ensure_future(a.renew("a", [], seen_call=1, now=NOW))  # nothing held, call 1 seen
        await delayed.sent.wait()
        leases = (await a.claim(ask(2), now=NOW)).leases
        begun = await a.begin(named(*leases), now=NOW)
        delayed.go.set()
        await renewal
        rival = (await b.claim(ask(1, worker="b"), now=NOW)).leases
        assert (begun, rival) == ([Answer.OK] * len(leases), ()) or (leases, len(rival)) == ((), 1)

    asyncio.run(whole())


def test_a_renewal_put_together_before_a_late_lease_was_handed_out_does_not_give_it_back() -> None:
    async def whole() -> None:
        shelf, a, b = await scene()
        await lose_the_claim(shelf, a, 1)
        renewal = a.renew("a", [], seen_call=1, now=NOW)  # made, not sent
        [lease] = (await a.claim(ask(2), now=NOW)).leases
        assert await a.begin(named(lease), now=NOW) == [Answer.OK]
        assert await renewal == Renewal()
        assert (await b.claim(ask(1, worker="b"), now=NOW)).leases == ()
        assert await a.renew("a", named(lease), seen_call=2, now=NOW) == Renewal()
        assert (await a.renew("a", [], seen_call=2, now=NOW)).released == ("once",)

    asyncio.run(whole())


@pytest.mark.parametrize("carried_out", [False, True])
def test_what_a_renewal_may_give_back_is_not_handed_out_by_an_answer_that_is_on_its_way(carried_out: bool) -> None:
    """The lost call is being repeated when the renewal is put together: it names nothing of it, and may win."""

    async def whole() -> None:
        shelf, a, b = await scene()
        shard = await lose_the_claim(shelf, a, 1)
        repeat = Delayed(shard, "exchange", carried_out=carried_out)
        second = asyncio.ensure_future(a.claim(ask(2), now=NOW))
        await repeat.sent.wait()
        await a.renew("a", [], seen_call=1, now=NOW)
        repeat.go.set()
        leases = (await second).leases
        rival = (await b.claim(ask(1, worker="b"), now=NOW)).leases
        assert len(leases) + len(rival) == 1

    asyncio.run(whole())


def test_a_worker_that_makes_no_new_call_does_not_keep_what_it_was_never_told_of() -> None:
    async def whole() -> None:
        shelf, a, b = await scene()
        await lose_the_claim(shelf, a, 1)
        assert (await a.renew("a", [], seen_call=1, now=NOW)).released == ("once",)
        [lease] = (await b.claim(ask(1, worker="b"), now=NOW)).leases
        assert (await a.claim(ask(2), now=NOW)).leases == ()
        assert await b.begin(named(lease), now=NOW) == [Answer.OK]

    asyncio.run(whole())


def test_a_renewal_through_a_router_that_made_no_call_gives_nothing_back() -> None:
    """It cannot know what the router that made them handed out."""

    async def whole() -> None:
        _, a, b = await scene()
        [lease] = (await a.claim(ask(1), now=NOW)).leases
        assert (await b.renew("a", named(lease), seen_call=1, now=NOW)) == Renewal()
        assert (await b.renew("a", [], seen_call=1, now=NOW)).released == ()

    asyncio.run(whole())


def test_late_leases_that_cannot_be_released_do_not_fail_the_call() -> None:
    async def whole() -> None:
        shelf, a, _ = await scene()
        shard = await lose_the_claim(shelf, a, 1)

        async def lost(*args: Any, **kwargs: Any) -> Any:
            raise OutcomeUnknown("release")

        shard.release = lost
        assert (await a.claim(no_slot(2), now=NOW)).leases == ()
        assert (await a.renew("a", [], seen_call=2, now=NOW)).released == ("once",)

    asyncio.run(whole())


def test_a_call_repeated_after_it_was_given_up_brings_no_more_than_is_free() -> None:
    async def whole() -> None:
        shelf, a, _ = await scene()
        [other] = [shard for name, shard in shelf.shards.items() if name != HOME and shard is not shelf.holder("once")]
        other.mood = "mute"
        await lose_the_claim(shelf, a, 1)
        other.mood = "well"
        repeat = Delayed(other, "exchange")
        second = asyncio.ensure_future(a.claim(no_slot(2), now=NOW))
        await repeat.sent.wait()
        await asyncio.sleep(0)  # the shard that has the job has answered
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert (await a.claim(no_slot(2), now=NOW)).leases == ()

    asyncio.run(whole())
