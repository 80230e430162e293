"""Conformance of recover: leases whose worker is gone end once, by one routine, whichever caller notices first.

Called by run_case. Workers die here by the clock or by being named.
"""

from __future__ import annotations

from itertools import pairwise

from ...lifecycle import Ending, State
from ...records import Answer
from .compare import CHANCE, ranked, same, same_tables
from .registry import case, case_for_each
from .world import FOREVER, World


@case
async def a_stall_is_counted_and_the_job_runs_again(world: World) -> None:
    start = await world.put(State.RUNNING)
    began = world.now
    await world.expire_worker("holder")
    [recovered] = await world.backend.recover(now=world.now)
    same((recovered.id, recovered.state, recovered.worker), (start.id, State.READY, "holder"), "recovered")
    same((recovered.stalls, recovered.counted, recovered.group), (1, True, None), "recovered")
    same((recovered.task, recovered.queue), ("work", "default"), "recovered")
    await world.counters(start.id, 1, 0, 1)
    job = await world.get(start.id)
    [failure] = job.errors
    assert start.lease is not None
    same((failure.reason, failure.at, failure.attempt), ("stalled", world.now, 1), "the stall in the history")
    same((failure.fence, failure.worker, failure.started_at), (start.lease.fence, "holder", began), "the stall")
    same((job.state, job.worker), (State.READY, None), "the job")
    same(await world.backend.recover(now=world.now), [], "a second pass finds nothing")
    same((await world.claim_one(start.id)).attempt, 2, "the next attempt")


@case
async def nothing_is_recovered_before_the_deadline(world: World) -> None:
    await world.put(State.RUNNING)
    world.advance(29.0)
    async with world.unchanged("recover before the deadline"):
        same(await world.backend.recover(now=world.now), [], "recovered")


@case
async def only_the_workers_that_are_gone_lose_their_leases(world: World) -> None:
    await world.enqueue_many(4)
    gone = await world.claim(2, "gone")
    alive = await world.claim(2, "alive", lease=FOREVER)
    await world.expire_worker("gone")
    recovered = await world.backend.recover(now=world.now)
    same(sorted(r.id for r in recovered), sorted(lease.id for lease in gone), "recovered")
    same(await world.states([lease.id for lease in alive]), [State.RUNNING] * 2, "the others")
    same([w.id for w in await world.backend.workers(now=world.now)], ["alive"], "worker rows left")


@case
async def recover_takes_the_word_that_a_worker_is_dead(world: World) -> None:
    await world.enqueue_many(2)
    one = await world.claim_one(worker="one", lease=FOREVER)
    two = await world.claim_one(worker="two", lease=FOREVER)
    recovered = await world.backend.recover(dead=["one", "never-seen"], now=world.now)
    same([r.id for r in recovered], [one.id], "recovered")
    await world.counters(one.id, 1, 0, 1)
    await world.is_in(two.id, State.RUNNING)
    same((await world.renew("one", [one])).known, False, "renew of the dead")
    same(await world.settle(one), Answer.LOST, "settle of the dead")


@case
async def a_job_is_buried_at_one_stall_too_many(world: World) -> None:
    job_id = await world.enqueue(max_stalls=2)
    for stalls in (1, 2):
        await world.claim_one(job_id, "w1", lease=FOREVER)
        [recovered] = await world.backend.recover(dead=["w1"], now=world.now)
        same((recovered.state, recovered.stalls), (State.READY, stalls), "recovered")
        await world.register("w1", lease=FOREVER)
    await world.claim_one(job_id, "w1")
    world.advance(5.0)
    [recovered] = await world.backend.recover(dead=["w1"], now=world.now)
    same((recovered.state, recovered.stalls, recovered.counted), (State.DEAD, 3, True), "the last stall")
    await world.counters(job_id, 3, 0, 3)
    job = await world.get(job_id)
    same((job.reason, job.finished_at, len(job.errors)), ("stalled", world.now, 3), "the job")
    letter = await world.letter(job_id)
    same((letter.reason, letter.failure_count, letter.failed_at), ("stalled", 1, world.now), "the letter")


@case
async def stalls_and_failures_spend_separate_budgets(world: World) -> None:
    job_id = await world.enqueue(max_stalls=1)
    for _ in range(5):
        await world.end(await world.claim_one(job_id), Ending.RETRY, delay=0.0)
    await world.claim_one(job_id)
    await world.backend.recover(dead=["w1"], now=world.now)
    await world.is_in(job_id, State.READY)
    await world.counters(job_id, 6, 5, 1)


@case
async def at_most_once_a_lease_that_never_began_is_free(world: World) -> None:
    job_id = await world.enqueue(max_stalls=0)
    for _ in range(10):
        await world.claim_one(job_id, "w1", lease=FOREVER)
        [recovered] = await world.backend.recover(dead=["w1"], now=world.now)
        same((recovered.state, recovered.counted, recovered.stalls), (State.READY, False, 0), "recovered")
        await world.register("w1", lease=FOREVER)
    await world.counters(job_id, 0, 0, 0)
    same((await world.get(job_id)).errors, (), "errors")


@case
async def at_most_once_a_lease_that_began_is_buried_as_stalled(world: World) -> None:
    start = await world.put(State.RUNNING, max_stalls=0)
    same(await world.begin(start.held), Answer.OK, "begin")
    [recovered] = await world.backend.recover(dead=["holder"], now=world.now)
    same((recovered.state, recovered.counted), (State.DEAD, True), "recovered")
    await world.counters(start.id, 1, 0, 1)
    same((await world.get(start.id)).reason, "stalled", "reason")
    same((await world.letter(start.id)).reason, "stalled", "reason in the letter")
    await world.claim_none()


@case_for_each([(3, True), (3, False), (0, True), (0, False)], name=lambda p: f"max_stalls {p[0]}, begun {p[1]}")
async def a_stalled_job_whose_cancel_was_asked_for_is_cancelled(world: World, param: tuple[int, bool]) -> None:
    max_stalls, begun = param
    start = await world.put(State.RUNNING, max_stalls=max_stalls, group="g")
    behind = await world.enqueue(group="g")
    if begun:
        await world.begin(start.held)
    await world.backend.cancel(start.id, now=world.now)
    await world.expire_worker("holder")
    [recovered] = await world.backend.recover(now=world.now)
    same(recovered.state, State.CANCELLED, "recovered")
    same(await world.states([start.id, behind]), [State.CANCELLED, State.READY], "states")
    same(await world.backend.letter(start.id), None, "a cancelled job leaves no letter")
    await world.claim_none("w2", queues=("elsewhere",))


@case
async def a_recovered_job_keeps_its_turn(world: World) -> None:
    first, second = await world.enqueue_many(2)
    turn = (await world.row(first))["turn"]
    await world.claim_one(first)
    await world.expire_worker()
    await world.backend.recover(now=world.now)
    same((await world.row(first))["turn"], turn, "turn")
    same(await world.claim_ids(2, "w2"), [first, second], "order")


@case
async def recover_is_bounded_and_goes_on_where_it_stopped(world: World) -> None:
    ids = await world.enqueue_many(7)
    await world.claim(7)
    await world.expire_worker()
    seen: list[str] = []
    for expected in (3, 3, 1, 0):
        batch = await world.backend.recover(limit=3, now=world.now)
        same(len(batch), expected, "leases recovered in one pass")
        seen.extend(r.id for r in batch)
    same(sorted(seen), ids, "each recovered once")
    same(await world.backend.workers(now=world.now), [], "worker rows left")


@case
async def an_expired_worker_that_holds_nothing_is_removed(world: World) -> None:
    await world.register("idle")
    await world.expire_worker("idle")
    same(await world.backend.recover(now=world.now), [], "recovered")
    same(await world.backend.workers(now=world.now), [], "worker rows")
    same((await world.renew("idle")).known, False, "its late renewal")


@case
async def claim_recovers_inline_and_says_so(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.expire_worker("holder")
    await world.register("w2")
    answer = await world.backend.claim(world.request("w2"), now=world.now)
    same([(r.id, r.worker, r.counted) for r in answer.recovered], [(start.id, "holder", True)], "recovered")
    same([(lease.id, lease.attempt) for lease in answer.leases], [(start.id, 2)], "leased in the same step")


@case
async def claim_recovers_a_bounded_number_and_the_next_goes_on(world: World) -> None:
    ids = await world.enqueue_many(150)
    await world.claim(150)
    await world.expire_worker()
    await world.register("w2", lease=FOREVER)
    recovered: list[str] = []
    for _ in range(4):
        answer = await world.backend.claim(world.request("w2", 1), now=world.now)
        assert len(answer.recovered) <= 100, f"one claim recovered {len(answer.recovered)} leases"
        recovered.extend(r.id for r in answer.recovered)
    same(sorted(recovered), ids, "recovered by claims alone")


async def _crash(world: World) -> None:
    """A worker that dies over many kinds of jobs: grouped, cancelled, at its last stall, never begun, begun."""
    queues = ("a",)
    for fields in (
        {"group": "g"},
        {"group": "h", "max_stalls": 0},
        {"max_stalls": 0},
        {"max_stalls": 0, "key": "begun"},
        {},
        {"key": "cancelled"},
    ):
        await world.enqueue(queue="a", **fields)
    leases = await world.claim(20, queues=queues)
    for lease in leases:
        if lease.key == "begun" or lease.group == "h":
            await world.begin(lease)
        if lease.key == "cancelled":
            await world.backend.cancel(lease.id, now=world.now)
    await world.enqueue(queue="a", group="g")
    await world.enqueue(queue="a", group="h")
    await world.expire_worker()
    await world.register("w2")


@case
async def recovery_by_claim_and_by_the_sweep_end_alike(world: World) -> None:
    other = await world.another()
    await _crash(world)
    await _crash(other)
    swept = await world.backend.recover(now=world.now)
    await world.claim(20, "w2", queues=("a",))
    request = other.request("w2", 20, queues=("a",))
    claimed = (await other.backend.claim(request, now=other.now)).recovered
    same(sorted(r.id for r in claimed), sorted(r.id for r in swept), "what was recovered")
    same_tables(await world.tables(besides=CHANCE), await other.tables(besides=CHANCE), "sweep first, claim first")
    jobs, twins = (await world.tables())["jobs"], (await other.tables())["jobs"]
    same(ranked(jobs, "turn"), ranked(twins, "turn"), "turns")
    reasons = [
        [[e["reason"] if isinstance(e, dict) else e.reason for e in j["errors"]] for j in t] for t in (jobs, twins)
    ]
    same(reasons[0], reasons[1], "error histories")


@case
async def a_worker_that_was_recovered_is_told_so_everywhere(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.expire_worker("holder")
    await world.backend.recover(now=world.now)
    async with world.unchanged("the late calls of a recovered worker"):
        same((await world.renew("holder", [start.held])).known, False, "renew")
        same(await world.settle(start.held), Answer.LOST, "settle")
        same(await world.release(start.held), Answer.LOST, "release")
        same(await world.begin(start.held), Answer.LOST, "begin")
        same((await world.backend.claim(world.request("holder"), now=world.now)).known, False, "claim")
        same(await world.backend.retire("holder", now=world.now), 0, "retire")


@case
async def a_worker_past_its_deadline_is_not_handed_its_own_stalled_job(world: World) -> None:
    """Its handler may still be running: claim recovers it like any other and tells it that it is gone."""
    start = await world.put(State.RUNNING)
    await world.enqueue()
    await world.expire_worker("holder")
    answer = await world.backend.claim(world.request("holder", 5), now=world.now)
    same((answer.known, answer.leases), (False, ()), "answer to a worker past its deadline")
    same((await world.renew("holder", [start.held])).known, False, "its renewal after that")


@case
async def a_recovered_worker_may_register_anew_and_its_old_tokens_stay_void(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.expire_worker("holder")
    await world.backend.recover(now=world.now)
    await world.register("holder")
    same(await world.settle(start.held), Answer.LOST, "settle under the old token")
    same((await world.renew("holder", [start.held], seen_call=0)).lost, (start.id,), "lost")


@case
async def fences_grow_through_stalls(world: World) -> None:
    job_id = await world.enqueue(max_stalls=10)
    fences = []
    for n in range(4):
        fences.append((await world.claim_one(job_id, f"w{n}")).fence)
        await world.expire_worker(f"w{n}")
    assert all(a < b for a, b in pairwise(fences)), f"fences must grow strictly, got {fences}"
