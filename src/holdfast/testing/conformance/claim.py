"""Conformance of claim: which jobs are leased, in which order, with which fields; tokens and fences.

Called by run_case. Groups and lanes have files of their own.
"""

from __future__ import annotations

from collections import Counter

from ...lifecycle import Ending, State
from ...rates import UNLIMITED
from ...records import GROUP_LOOKS_MAX, READY_PER_GROUP_MAX, ClaimRequest, TaskRule
from .compare import CALLED, same
from .flow import end_all, in_state, task_rule
from .registry import case, case_for_each
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


# ----------------------------------------------------------------------------------------------------------------------
# What a worker asks for: its caps per task and per group.


# ---------------------------------------------------------------------- most_by_task


@case_for_each([0, 1, 3, 20])
async def a_worker_gets_no_more_of_a_task_than_it_asks_for(world: World, most: int) -> None:
    await task_rule(world, "a", apart=True)
    await world.enqueue_many(5, task="a")
    await world.enqueue_many(5, task="b")
    leases = await world.claim(20, most_by_task={"a": most})
    same(Counter(x.task for x in leases), Counter({"a": min(most, 5), "b": 5}), "leases")


@case
async def what_a_worker_asks_of_a_task_counts_over_all_queues(world: World) -> None:
    await task_rule(world, apart=True)
    for queue in ("a", "b", "c"):
        await world.enqueue_many(2, queue=queue)
    leases = await world.claim(20, queues=("a", "b", "c"), most_by_task={"work": 3})
    same(Counter(x.queue for x in leases), {"a": 2, "b": 1}, "leases")


@case
async def what_a_worker_asks_and_a_tasks_limit_bind_together(world: World) -> None:
    await task_rule(world, limit=3)
    await world.enqueue_many(9)
    same(len(await world.claim(9, "w1", most_by_task={"work": 2})), 2, "what it asks for")
    same(len(await world.claim(9, "w2", most_by_task={"work": 5})), 1, "what the limit has left")


@case
async def what_a_worker_asks_is_heeded_for_tasks_apart_alone(world: World) -> None:
    await world.enqueue_many(4)
    same(len(await world.claim(9, most_by_task={"work": 1})), 4, "a task that is not apart")


@case
async def a_task_of_which_a_worker_wants_none_takes_no_share(world: World) -> None:
    await world.backend.declare([], [TaskRule(name=name, apart=True) for name in ("a", "b")], now=world.now)
    await world.enqueue_many(9, task="a")
    b = await world.enqueue_many(9, task="b")
    same(await world.claim_ids(5, most_by_task={"a": 0}), b[:5], "all slots go to the other")


# ---------------------------------------------------------------------- most_by_group


@case_for_each([1, 2, 4])
async def a_worker_holds_no_more_of_a_group_than_it_says(world: World, most: int) -> None:
    await world.relaxed(UNLIMITED)
    for name in "gh":
        await world.enqueue_many(6, group=name)
    alone = await world.enqueue_many(3)
    leases = await world.claim(30, "w1", most_by_group=most)
    count = Counter(x.group for x in leases)
    same((count["g"], count["h"], count[None]), (most, most, len(alone)), "of g, of h, without a group")
    same(await world.claim_ids(30, "w1", most_by_group=most), [], "it has its share")
    count = Counter(x.group for x in await world.claim(30, "w2", most_by_group=most))
    same((count["g"], count["h"]), (min(most, 6 - most), min(most, 6 - most)), "another worker's share")


@case
async def a_worker_that_ends_a_job_of_a_group_may_have_the_next(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(6, group="g")
    leases = await world.claim(9, most_by_group=2)
    same([x.id for x in leases], ids[:2], "its share")
    await world.end(leases[0])
    same(await world.claim_ids(9, most_by_group=2), ids[2:3], "the next")


@case
async def the_group_of_one_queue_is_not_its_namesake_in_another(world: World) -> None:
    for queue in ("a", "b"):
        await world.relaxed(UNLIMITED, queue)
        await world.enqueue_many(3, queue=queue, group="g")
    leases = await world.claim(9, queues=("a", "b"), most_by_group=2)
    same(Counter(x.queue for x in leases), {"a": 2, "b": 2}, "leases")


@case
async def jobs_passed_over_keep_their_place(world: World) -> None:
    await world.relaxed(UNLIMITED)
    g, h = await world.enqueue_many(4, group="g"), await world.enqueue_many(4, group="h")
    same(await world.claim_ids(9, "w1", most_by_group=1), [g[0], h[0]], "w1")
    rows = (await world.tables())["jobs"]
    await world.claim_none("w1", most_by_group=1)
    same((await world.tables())["jobs"], rows, "jobs")
    same(await world.claim_ids(9, "w2"), [g[1], h[1], g[2], h[2], g[3], h[3]], "w2, in order")


async def _held_groups(world: World, number: int) -> str:
    """w1 holds one job of each of `number` groups, each with another job ready; returns a job behind all these."""
    await world.relaxed(2)
    for n in range(number):
        await world.enqueue(group=f"g{n:03d}")
    same(len(await world.claim(number, "w1", lease=FOREVER)), number, "held")
    for n in range(number):
        await world.enqueue(group=f"g{n:03d}")
    return await world.enqueue(group="other")


@case
async def a_claim_looks_past_groups_that_have_their_share(world: World) -> None:
    other = await _held_groups(world, GROUP_LOOKS_MAX - 4)
    same(await world.claim_ids(5, "w1", most_by_group=1), [other], "the group behind them")


@case
async def a_claim_does_not_look_past_more_than_a_bounded_number(world: World) -> None:
    other = await _held_groups(world, GROUP_LOOKS_MAX + 6)
    alone = await world.enqueue()
    same(await world.claim_ids(5, "w1", most_by_group=1), [alone], "the other lane is served")
    got = await world.claim_ids(200, "w2")
    assert other in got, "a worker that holds none of them gets the job behind them"


# ---------------------------------------------------------------------- ready at once


@case
async def no_group_has_more_than_a_bounded_number_ready(world: World) -> None:
    await world.relaxed(UNLIMITED)
    ids = await world.enqueue_many(READY_PER_GROUP_MAX + 20, group="g")
    same(await in_state(world, ids, State.READY), ids[:READY_PER_GROUP_MAX], "ready")
    leases = await world.claim(30, lease=FOREVER)
    same([lease.id for lease in leases], ids[:30], "claimed")
    same(len(await in_state(world, ids, State.READY)), READY_PER_GROUP_MAX - 10, "ready: all that are left")
    await end_all(world, leases)
    same(await world.claim_ids(500), ids[30:], "and all of them start")


@case
async def a_high_limit_is_no_reason_to_wait(world: World) -> None:
    """What runs does not count against what may be ready: all jobs of an unlimited group run at once."""
    await world.relaxed(UNLIMITED)
    number = 2 * READY_PER_GROUP_MAX + 50
    await world.enqueue_many(number, group="g")
    got = [job_id for _ in range(4) for job_id in await world.claim_ids(READY_PER_GROUP_MAX, lease=FOREVER)]
    same(len(set(got)), number, "running")
