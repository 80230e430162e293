"""Conformance of settle: what each ending writes, which counters change, and the effect of a requested cancel.

Called by run_case. What a death writes into the dead letter is looked at in dead_letters.
"""

from __future__ import annotations

from itertools import product

from ...lifecycle import SETTLES, Ending, Failure, State, allowed
from ...records import ERRORS_KEPT_MAX, Answer, Held, Release
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, NO_TOKEN, World

FAILURE = Failure(reason="timeout", type="builtins.TimeoutError", text="too slow", traceback="Traceback …")


@case
async def success_stores_the_value(world: World) -> None:
    start = await world.put(State.RUNNING)
    world.advance(3.0)
    await world.end(start.held, Ending.SUCCEEDED, value=b'{"n":1}', retain=5000.0)
    job = await world.get(start.id)
    same((job.state, job.value, job.finished_at), (State.SUCCEEDED, b'{"n":1}', world.now), "the job")
    same((job.worker, job.reason, job.errors), (None, None, ()), "what a success leaves empty")
    await world.counters(start.id, 1, 0, 0)
    same((await world.row(start.id))["prune_at"], world.now + 5000.0, "prune_at")


@case
async def a_failure_to_be_retried_is_due_after_its_delay(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.RETRY, delay=42.0)
    job = await world.get(start.id)
    same((job.state, job.due_at, job.worker), (State.SCHEDULED, world.now + 42.0, None), "the job")
    await world.counters(start.id, 1, 1, 0)
    world.advance(41.0)
    await world.claim_none()
    world.advance(2.0)
    same((await world.claim_one(start.id)).attempt, 2, "the next attempt")


@case
async def a_retry_without_delay_is_scheduled_and_due_at_once(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.RETRY, delay=0.0)
    await world.is_in(start.id, State.SCHEDULED)
    await world.claim_one(start.id)


@case
async def a_retry_that_is_no_failure_spends_no_retry(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.RETRY, failed=False, failure=None)
    await world.counters(start.id, 1, 0, 0)


@case
async def a_snooze_counts_an_attempt_and_no_failure(world: World) -> None:
    job_id = await world.enqueue()
    for done in range(1, 6):
        await world.end(await world.claim_one(job_id, lease=FOREVER), Ending.SNOOZED, delay=10.0)
        job = await world.get(job_id)
        same((job.state, job.due_at, job.errors), (State.SCHEDULED, world.now + 10.0, ()), "the job")
        await world.counters(job_id, done, 0, 0)
        world.advance(11.0)


@case
async def a_burial_ends_the_job_with_its_reason(world: World) -> None:
    start = await world.put(State.RUNNING)
    world.advance(1.0)
    await world.end(start.held, Ending.BURIED, reason="undecodable", failed=False)
    job = await world.get(start.id)
    same((job.state, job.reason, job.finished_at), (State.DEAD, "undecodable", world.now), "the job")
    same(job.worker, None, "worker")
    await world.counters(start.id, 1, 0, 0)
    same((await world.row(start.id))["prune_at"], None, "prune_at of a dead job that holds its letter")


@case
async def a_burial_after_the_last_retry_counts_its_failure(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.BURIED)
    await world.counters(start.id, 1, 1, 0)


@case
async def settling_as_cancelled_needs_no_request(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.end(start.held, Ending.CANCELLED, retain=0.0)
    job = await world.get(start.id)
    same((job.state, job.finished_at, job.worker), (State.CANCELLED, world.now, None), "the job")
    await world.counters(start.id, 1, 0, 0)


@case
async def the_store_completes_the_failure(world: World) -> None:
    job_id = await world.enqueue()
    await world.end(await world.claim_one(job_id), Ending.SNOOZED, delay=0.0)
    lease = await world.claim_one(job_id)
    began = world.now
    world.advance(7.0)
    await world.end(lease, Ending.RETRY, failure=FAILURE)
    [failure] = (await world.get(job_id)).errors
    same((failure.at, failure.attempt, failure.fence), (world.now, 2, lease.fence), "at, attempt, fence")
    same((failure.worker, failure.started_at), ("w1", began), "worker, started_at")
    said = (failure.reason, failure.type, failure.text, failure.traceback)
    same(said, (FAILURE.reason, FAILURE.type, FAILURE.text, FAILURE.traceback), "what the worker said")


@case
async def only_the_newest_errors_are_kept(world: World) -> None:
    job_id = await world.enqueue()
    total = ERRORS_KEPT_MAX + 3
    for n in range(total):
        lease = await world.claim_one(job_id, lease=FOREVER)
        await world.end(lease, Ending.RETRY, delay=0.0, failure=Failure(text=f"error {n}"))
    errors = (await world.get(job_id)).errors
    same([e.text for e in errors], [f"error {n}" for n in range(3, total)], "errors kept, oldest first")
    await world.counters(job_id, total, total, 0)


@case
async def an_attempt_that_was_given_back_has_no_place_in_the_history(world: World) -> None:
    job_id = await world.enqueue()
    await world.give_back(await world.claim_one(job_id))
    await world.end(await world.claim_one(job_id), Ending.RETRY)
    [failure] = (await world.get(job_id)).errors
    same(failure.attempt, 1, "attempt of the first failure")


@case
async def one_bad_token_leaves_its_neighbours_settled(world: World) -> None:
    await world.enqueue_many(4)
    a, b, c, d = await world.claim(4)
    batch = [
        world.settlement(a, Ending.SUCCEEDED, value=b"1"),
        world.settlement(Held(b.id, NO_TOKEN), Ending.BURIED),
        world.settlement(c, Ending.RETRY),
        world.settlement(d, Ending.BURIED),
    ]
    answers = await world.backend.settle(batch, now=world.now)
    same(answers, [Answer.OK, Answer.LOST, Answer.OK, Answer.OK], "answers")
    expected = [State.SUCCEEDED, State.RUNNING, State.SCHEDULED, State.DEAD]
    same(await world.states([x.id for x in (a, b, c, d)]), expected, "states")
    await world.end(b)


@case_for_each(product(Ending, Ending), name=lambda p: f"{p[0]}, then {p[1]}")
async def of_two_settlements_of_one_lease_the_first_counts(world: World, pair: tuple[Ending, Ending]) -> None:
    start = await world.put(State.RUNNING)
    batch = [world.settlement(start.held, ending) for ending in pair]
    same(await world.backend.settle(batch, now=world.now), [Answer.OK, Answer.LOST], "answers")
    goal = allowed(SETTLES[pair[0]], State.RUNNING)
    assert goal is not None and await world.state(start.id) in goal, f"{pair[0]} was settled first and must stand"
    failed, stalled = pair[0] in (Ending.RETRY, Ending.BURIED), pair[0] is Ending.STALLED
    await world.counters(start.id, 1, int(failed), 0, shared=int(stalled))


@case_for_each(Ending)
async def a_lease_settled_and_released_in_one_exchange_is_settled(world: World, ending: Ending) -> None:
    start = await world.put(State.RUNNING)
    release = Release(id=start.id, token=start.held.token)
    answer = await world.exchange([world.settlement(start.held, ending)], [release])
    same(answer.answers, (Answer.OK, Answer.LOST), "answers")
    same((await world.get(start.id)).attempts, 1, "attempts")


@case_for_each(Ending)
async def settle_is_accepted_after_the_deadline_while_nobody_recovered(world: World, ending: Ending) -> None:
    start = await world.put(State.RUNNING)
    await world.expire_worker("holder")
    await world.end(start.held, ending)
    failed, stalled = ending in (Ending.RETRY, Ending.BURIED), ending is Ending.STALLED
    await world.counters(start.id, 1, int(failed), 0, shared=int(stalled))
    same(await world.backend.recover(now=world.now), [], "nothing is left to recover")


@case_for_each(sorted(set(Ending) - {Ending.CANCELLED, Ending.STALLED}))
async def after_a_cancel_only_settling_as_cancelled_is_accepted(world: World, ending: Ending) -> None:
    start = await world.put(State.RUNNING, group="g")
    behind = await world.enqueue(group="g")
    marked = await world.backend.cancel(start.id, now=world.now)
    same((marked.state, marked.cancel_requested), (State.RUNNING, True), "a running job is only marked")
    async with world.unchanged(f"settle {ending} after a cancel"):
        same(await world.settle(start.held, ending), Answer.CANCELLED, "answer")
    await world.is_in(behind, State.WAITING)
    await world.end(start.held, Ending.CANCELLED)
    same(await world.states([start.id, behind]), [State.CANCELLED, State.READY], "states")
    await world.counters(start.id, 1, 0, 0)


@case
async def settling_refills_the_group_in_the_same_step(world: World) -> None:
    start = await world.put(State.RUNNING, group="g")
    behind = await world.enqueue_many(2, group="g")
    await world.end(start.held)
    same(await world.states(behind), [State.READY, State.WAITING], "states behind it")


@case
async def an_empty_batch_settles_nothing(world: World) -> None:
    await world.put(State.RUNNING)
    async with world.unchanged("empty batches"):
        same(await world.backend.settle([], now=world.now), [], "settle")
        same(await world.backend.release([], now=world.now), [], "release")
        same(await world.backend.begin([], now=world.now), [], "begin")
        same(await world.backend.report([], now=world.now), [], "report")
        same((await world.exchange()).answers, (), "exchange")
