"""Conformance of claim: who is leased, in which order, with what in hand; tokens and fences.

Called by run_case. Groups and lanes have files of their own.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
from ...records import ClaimRequest
from .compare import CALLED, same
from .registry import case
from .world import FOREVER, HOUR, World


@case
async def claim_leases_a_ready_job_and_says_all_about_it(world: World) -> None:
    job_id = await world.enqueue(task="mail", args=b"[1]", priority=3, key="k", max_stalls=2, options=b"{}")
    world.advance(5.0)
    lease = await world.claim_one(job_id)
    job = await world.get(job_id)
    same((job.state, job.worker, job.fence, job.begun), (State.RUNNING, "w1", lease.fence, False), "the job")
    same((job.started_at, lease.started_at), (world.now, world.now), "started_at")
    same((lease.task, lease.queue, lease.args, lease.priority), ("mail", "default", b"[1]", 3), "the lease")
    same((lease.key, lease.group, lease.max_stalls, lease.created_at), ("k", None, 2, job.created_at), "the lease")
    same((lease.attempt, lease.failures, lease.stalls), (1, 0, 0), "counters in the lease")
    same(lease.options, b"{}", "options given for this call alone")
    assert lease.token, "a lease has a token"
    same((await world.row(job_id))["token"], lease.token, "token stored")


@case
async def the_lease_tells_the_counters_so_far(world: World) -> None:
    job_id = await world.enqueue(max_stalls=5)
    await world.end(await world.claim_one(job_id), Ending.RETRY, delay=0.0)
    await world.end(await world.claim_one(job_id), Ending.SNOOZED, delay=0.0)
    await world.claim_one(job_id)
    await world.expire_worker()
    lease = await world.claim_one(job_id, "w2")
    same((lease.attempt, lease.failures, lease.stalls), (4, 1, 1), "attempt, failures, stalls")


@case
async def claim_takes_at_most_what_is_asked(world: World) -> None:
    ids = await world.enqueue_many(5)
    await world.register("w1")
    async with world.unchanged("a claim for no job", besides=CALLED):
        await world.claim(0)
    same(await world.claim_ids(2), ids[:2], "the first two")
    same(await world.claim_ids(10), ids[2:], "the rest")
    await world.claim_none()


@case
async def claim_serves_only_the_queues_named_in_their_order(world: World) -> None:
    a = await world.enqueue_many(2, queue="a")
    b = await world.enqueue_many(2, queue="b")
    await world.enqueue_many(2, queue="c")
    same(await world.claim_ids(3, queues=("b", "a")), [*b, a[0]], "b first, then a")
    same(await world.claim_ids(9, queues=("b", "a")), [a[1]], "the rest of a and b, nothing of c")


@case
async def claim_takes_at_most_what_a_queue_may_have(world: World) -> None:
    a = await world.enqueue_many(4, queue="a")
    b = await world.enqueue_many(4, queue="b")
    got = await world.claim_ids(6, queues=("a", "b"), most_by_queue={"a": 1})
    same(got, [a[0], *b], "one of a, all of b")
    same(await world.claim_ids(6, queues=("a", "b"), most_by_queue={"a": 0}), [], "none of a")
    same(await world.claim_ids(2, queues=("a", "b"), most_by_queue={"a": 10}), a[1:3], "most bounds them all")


@case
async def higher_priority_goes_first_then_the_older(world: World) -> None:
    low = await world.enqueue(priority=-5)
    first, second = await world.enqueue_many(2)
    high = await world.enqueue(priority=5)
    same(await world.claim_ids(4), [high, first, second, low], "order in one claim")


@case
async def single_claims_keep_the_same_order(world: World) -> None:
    low = await world.enqueue(priority=-5)
    first, second = await world.enqueue_many(2)
    high = await world.enqueue(priority=5)
    for job_id in (high, first, second, low):
        await world.claim_one(job_id)


@case
async def claim_brings_due_jobs_into_play(world: World) -> None:
    later = await world.enqueue(delay=20.0)
    job_id = await world.enqueue(delay=10.0)
    world.advance(10.5)
    same(await world.claim_ids(5), [job_id], "due jobs are claimed without a sweep")
    await world.is_in(later, State.SCHEDULED)


@case
async def a_job_takes_its_turn_when_it_becomes_ready(world: World) -> None:
    delayed = await world.enqueue(delay=10.0)
    at_once = await world.enqueue()
    world.advance(11.0)
    same(await world.claim_ids(5), [at_once, delayed], "who was ready earlier goes earlier")


@case
async def an_expired_job_is_buried_by_claim_and_not_leased(world: World) -> None:
    job_id = await world.enqueue(expires=30.0)
    fine = await world.enqueue()
    world.advance(31.0)
    same(await world.claim_ids(5), [fine], "leased")
    job = await world.get(job_id)
    same((job.state, job.reason, job.finished_at), (State.DEAD, "expired", world.now), "the expired job")
    await world.counters(job_id, 0, 0, 0)
    same((await world.letter(job_id)).reason, "expired", "reason in its dead letter")


@case
async def no_crowd_of_expired_jobs_gets_one_of_them_leased(world: World) -> None:
    """More than claim's own promote pass buries: those met in the lanes are buried too."""
    expired = await world.enqueue_many(300, expires=30.0)
    world.advance(31.0)
    fine = await world.enqueue(priority=-100)
    leased = [job_id for _ in range(3) for job_id in await world.claim_ids(2, lease=FOREVER)]
    same(leased, [fine], "leased")
    await world.promote_all()
    same(set(await world.states(expired)), {State.DEAD}, "states of the expired")


@case
async def a_job_is_claimable_until_it_expires(world: World) -> None:
    job_id = await world.enqueue(delay=10.0, expires=30.0)
    world.advance(39.0)
    lease = await world.claim_one(job_id)
    world.advance(20.0)
    await world.promote_all()
    await world.end(lease)
    await world.is_in(job_id, State.SUCCEEDED)


@case
async def an_unknown_worker_gets_nothing_and_changes_nothing(world: World) -> None:
    await world.enqueue()
    await world.enqueue(delay=1.0)
    await world.enqueue(expires=1.0)
    world.advance(2.0)
    async with world.unchanged("claim by a worker that never registered"):
        request = ClaimRequest(worker="stranger", call=1, queues=("default",), most=5)
        answer = await world.backend.claim(request, now=world.now)
        same((answer.known, answer.leases), (False, ()), "answer to a stranger")


@case
async def two_workers_never_hold_one_job(world: World) -> None:
    ids = await world.enqueue_many(4)
    same(await world.claim_ids(3, "w1"), ids[:3], "w1")
    same(await world.claim_ids(3, "w2"), ids[3:], "w2")


@case
async def tokens_are_never_used_twice(world: World) -> None:
    await world.enqueue_many(4)
    seen: set[str] = set()
    for _ in range(25):
        for lease in await world.claim(4, lease=FOREVER):
            assert lease.token not in seen, f"token of {lease.id} was issued before"
            seen.add(lease.token)
            await world.give_back(lease)
    same(len(seen), 100, "leases")


@case
async def the_fence_grows_with_every_lease_of_a_job(world: World) -> None:
    job_id = await world.enqueue()
    last = 0
    for step in range(12):
        lease = await world.claim_one(job_id, lease=FOREVER)
        assert lease.fence > last, f"fence {lease.fence} follows {last}"
        same((await world.get(job_id)).fence, lease.fence, "fence stored")
        last = lease.fence
        if step % 3 == 0:
            await world.end(lease, Ending.RETRY, delay=0.0)
        else:
            await world.give_back(lease)


@case
async def the_fence_grows_along_a_group_and_across_jobs(world: World) -> None:
    ids = await world.enqueue_many(5, group="g")
    fences = []
    for job_id in ids:
        lease = await world.claim_one(job_id)
        fences.append(lease.fence)
        await world.end(lease)
    assert fences == sorted(set(fences)), f"fences of a group must grow strictly, got {fences}"


@case
async def the_fence_grows_when_the_clock_goes_back_an_hour(world: World) -> None:
    job_id = await world.enqueue(group="g")
    lease = await world.claim_one(job_id, lease=FOREVER)
    first = lease.fence
    await world.give_back(lease)
    world.advance(-HOUR)
    lease = await world.claim_one(job_id)
    assert lease.fence > first, f"fence {lease.fence} after the clock went back must exceed {first}"


@case
async def the_fence_is_never_below_the_wall_clock_in_microseconds(world: World) -> None:
    for _ in range(2):
        await world.enqueue()
        lease = await world.claim_one(lease=FOREVER)
        assert lease.fence >= int(world.now) * 1_000_000, f"fence {lease.fence} at {world.now}"
        world.advance(HOUR)


@case
async def ten_thousand_waiting_jobs_of_a_blocked_group_hide_nobody(world: World) -> None:
    number = world.sized(10_000)
    blocker = await world.enqueue(group="blocked")
    await world.claim_one(blocker, "w0", lease=FOREVER)
    for start in range(0, number, 1000):
        await world.enqueue_many(min(1000, number - start), group="blocked", priority=50)
    other = await world.enqueue(group="other")
    alone = await world.enqueue()
    same(sorted(await world.claim_ids(10)), sorted([other, alone]), "claimable beside the blocked group")


@case
async def an_ungrouped_backlog_delays_no_group(world: World) -> None:
    await world.enqueue_many(world.sized(1000), priority=50)
    grouped = await world.enqueue(group="g")
    got = await world.claim_ids(2)
    assert grouped in got, "of two slots one belongs to the grouped lane"
