"""Conformance of exchange and of numbered calls: settle, release and claim in one step, repeatable after a lost reply.

Called by run_case. A "repeat" is the very same call made again because its answer never came.
"""

from __future__ import annotations

from ...lifecycle import Ending, Settlement, State
from ...records import Answer, ClaimRequest, Exchanged, Held, Lease, Release
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, NO_TOKEN, World

Call = tuple[list[Settlement], list[Release], ClaimRequest]


def _tokens(leases: tuple[Lease, ...] | list[Lease]) -> list[tuple[str, str, int]]:
    return sorted((lease.id, lease.token, lease.fence) for lease in leases)


@case
async def exchange_settles_releases_and_claims_in_that_order(world: World) -> None:
    ids = await world.enqueue_many(3, group="g", queue="a")
    done = await world.claim_one(ids[0], queues=("a",))
    await world.enqueue_many(2, queue="b")
    back, kept = await world.claim(2, queues=("b",))
    answer = await world.exchange(
        [world.settlement(done, Ending.SUCCEEDED)],
        [Release(id=back.id, token=back.token), Release(id=kept.id, token=NO_TOKEN)],
        world.request(most=5, queues=("a", "b")),
    )
    same(answer.answers, (Answer.OK, Answer.OK, Answer.LOST), "answers: settlements, then releases")
    same([lease.id for lease in answer.leases], [ids[1], back.id], "the successor and what was given back")
    same(answer.known, True, "known")


@case
async def exchange_without_a_request_claims_nothing(world: World) -> None:
    start = await world.put(State.RUNNING)
    waiting = await world.enqueue()
    answer = await world.exchange([world.settlement(start.held, Ending.SUCCEEDED)])
    same((answer.answers, answer.leases), ((Answer.OK,), ()), "answer")
    await world.is_in(waiting, State.READY)


@case
async def a_failed_job_due_at_once_may_be_claimed_in_the_same_exchange(world: World) -> None:
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id)
    answer = await world.exchange([world.settlement(lease, Ending.RETRY, delay=0.0)], [], world.request())
    [again] = answer.leases
    same((again.id, again.attempt), (job_id, 2), "the lease")
    assert again.token != lease.token, "a new lease has a new token"


@case
async def a_repeated_claim_answers_the_same_leases(world: World) -> None:
    await world.enqueue_many(5)
    await world.register("w1")
    request = world.request(most=3)
    first = await world.backend.claim(request, now=world.now)
    world.advance(2.0)
    async with world.unchanged("a repeated claim"):
        again = await world.backend.claim(request, now=world.now)
    same(sorted(again.leases, key=lambda x: x.id), sorted(first.leases, key=lambda x: x.id), "leases")


@case
async def a_repeat_answers_the_leases_of_its_own_call_only(world: World) -> None:
    ids = await world.enqueue_many(2)
    early = await world.claim_one(ids[0])
    request = world.request(most=1)
    [late] = (await world.backend.claim(request, now=world.now)).leases
    async with world.unchanged("the repeat"):
        again = await world.backend.claim(request, now=world.now)
    same(_tokens(again.leases), _tokens([late]), "leases")
    await world.end(early)


@case
async def a_repeated_claim_that_found_nothing_claims_nothing_new(world: World) -> None:
    await world.register("w1")
    request = world.request(most=3)
    same((await world.backend.claim(request, now=world.now)).leases, (), "first")
    job_id = await world.enqueue()
    same((await world.backend.claim(request, now=world.now)).leases, (), "repeat")
    await world.claim_one(job_id)


@case
async def a_claim_numbered_below_the_last_answers_no_leases(world: World) -> None:
    ids = await world.enqueue_many(4)
    await world.claim(1)
    await world.claim(1)
    stale = ClaimRequest(worker="w1", call=1, queues=("default",), most=5)
    async with world.unchanged("a claim that overtook itself"):
        same((await world.backend.claim(stale, now=world.now)).leases, (), "leases")
    same(await world.states(ids), [State.RUNNING] * 2 + [State.READY] * 2, "states")


@case
async def calls_are_numbered_per_worker(world: World) -> None:
    ids = await world.enqueue_many(2)
    await world.claim_one(ids[0], "w1", call=7)
    await world.claim_one(ids[1], "w2", call=7)


async def _exchanged(world: World) -> tuple[list[Lease], Call, Exchanged]:
    """Three held leases, one stale; settle two, release one, settle a stale one, claim two more."""
    await world.enqueue_many(6)
    held = await world.claim(3, lease=FOREVER)
    settlements = [
        world.settlement(held[0], Ending.SUCCEEDED, value=b"1"),
        world.settlement(held[1], Ending.RETRY, delay=50.0),
        world.settlement(Held(held[2].id, NO_TOKEN), Ending.RETRY),
    ]
    releases = [Release(id=held[2].id, token=held[2].token, delay=70.0)]
    request = world.request(most=2)
    first = await world.exchange(settlements, releases, request)
    same(first.answers, (Answer.OK, Answer.OK, Answer.LOST, Answer.OK), "first answers")
    same(len(first.leases), 2, "first leases")
    return held, (settlements, releases, request), first


async def _repeat(world: World, call: Call) -> Exchanged:
    settlements, releases, request = call
    return await world.exchange(settlements, releases, request)


@case
async def a_repeated_exchange_answers_as_the_first_time(world: World) -> None:
    held, call, first = await _exchanged(world)
    for _ in range(3):
        world.advance(1.0)
        async with world.unchanged("a repeated exchange"):
            again = await _repeat(world, call)
        same(again.answers, first.answers, "answers")
        same(_tokens(again.leases), _tokens(first.leases), "leases")
        same(again.known, True, "known")
    await world.counters(held[0].id, 1, 0, 0)
    await world.counters(held[1].id, 1, 1, 0)
    await world.counters(held[2].id, 0, 0, 0)


@case
async def leases_of_a_repeat_can_be_settled(world: World) -> None:
    _, call, _ = await _exchanged(world)
    for lease in (await _repeat(world, call)).leases:
        await world.end(lease)
        await world.counters(lease.id, 1, 0, 0)


@case_for_each(["settled", "released", "recovered", "cancelled and ended"])
async def a_repeat_leaves_out_a_lease_that_ended_in_between(world: World, way: str) -> None:
    await world.enqueue_many(3)
    done = await world.claim_one()
    settlements = [world.settlement(done, Ending.SUCCEEDED)]
    request = world.request(most=2)
    first = await world.exchange(settlements, [], request)
    gone, kept = first.leases
    if way == "settled":
        await world.end(gone)
    elif way == "released":
        await world.give_back(gone, delay=60.0)
    elif way == "cancelled and ended":
        await world.backend.cancel(gone.id, now=world.now)
        await world.end(gone, Ending.CANCELLED)
    else:
        await world.expire_worker()
        [recovered] = await world.backend.recover(limit=1, now=world.now)
        gone, kept = (gone, kept) if recovered.id == gone.id else (kept, gone)
        renewal = await world.renew("w1", [kept], seen_call=request.call - 1)
        same((renewal.known, renewal.lost), (True, ()), "the worker still has one lease")
    async with world.unchanged("the repeat"):
        again = await world.exchange(settlements, [], request)
    same(again.answers, (Answer.OK,), "answers")
    same(_tokens(again.leases), _tokens([kept]), "the leases still ours")
    await world.counters(done.id, 1, 0, 0)


@case
async def a_repeat_still_gives_a_lease_whose_cancel_was_asked_for(world: World) -> None:
    """The lease is still the worker's: it learns of the cancel by begin, renew or settle and ends it."""
    await world.enqueue_many(2)
    await world.register("w1")
    request = world.request(most=2)
    first = await world.exchange([], [], request)
    await world.backend.cancel(first.leases[0].id, now=world.now)
    async with world.unchanged("the repeat"):
        again = await world.exchange([], [], request)
    same(_tokens(again.leases), _tokens(first.leases), "leases")
    same(await world.begin(first.leases[0]), Answer.CANCELLED, "begin")


@case
async def a_repeat_after_the_worker_was_recovered_answers_unknown(world: World) -> None:
    await world.enqueue_many(2)
    done = await world.claim_one()
    settlements = [world.settlement(done, Ending.SUCCEEDED)]
    request = world.request(most=1)
    await world.exchange(settlements, [], request)
    await world.expire_worker()
    await world.backend.recover(now=world.now)
    async with world.unchanged("the repeat"):
        again = await world.exchange(settlements, [], request)
    same((again.known, again.leases), (False, ()), "answer")
    await world.counters(done.id, 1, 0, 0)


@case
async def a_lost_claim_is_given_back_free_by_the_next_renew(world: World) -> None:
    """The worker gave up repeating and went on: what it does not name is not left hanging."""
    await world.enqueue_many(2)
    await world.register("w1")
    lost = await world.backend.claim(world.request(most=2), now=world.now)
    renewal = await world.renew("w1", [])
    same(sorted(renewal.released), sorted(lease.id for lease in lost.leases), "given back")
    for lease in lost.leases:
        await world.counters(lease.id, 0, 0, 0)
