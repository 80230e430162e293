"""Conformance of jobs that are removed in the step of their success (R108).

Called by run_case.
"""

from __future__ import annotations

from ...lifecycle import REMOVED, Ending, State
from ...records import Answer, Held, NewJob, Report, TaskRule
from ...steps import NewStep
from .compare import same
from .registry import case, case_for_each
from .world import World


@case
async def a_job_goes_with_all_that_is_stored_about_it(world: World) -> None:
    job_id = await world.enqueue(args=b"[1]")
    lease = await world.claim_one(job_id)
    await world.backend.report([Report(id=job_id, token=lease.token, lines=("one",), progress=0.5)], now=world.now)
    held = Held(id=job_id, token=lease.token)
    await world.backend.checkpoint(held, [NewStep(kind="step", name="a", value=b"1")], now=world.now)
    await world.end(lease, retain=REMOVED, value=b'"result"')
    same(await world.backend.get(job_id), None, "the job")
    tables = await world.tables()
    left = {name: rows for name, rows in tables.items() if rows and name in ("jobs", "logs", "steps", "letters")}
    same(left, {}, "tables")
    same(await world.settle(lease), Answer.LOST, "a second settlement")
    same((await world.backend.enqueue([NewJob(id=job_id, task="work")], now=world.now))[0].created, True, "its id")


@case_for_each([1, 2, 5])
async def only_those_go_that_are_to_go(world: World, number: int) -> None:
    leases = await world.leased(2 * number)
    done = [
        world.settlement(lease, Ending.SUCCEEDED, value=b"1", retain=REMOVED if place % 2 else 3600.0)
        for place, lease in enumerate(leases)
    ]
    answer = await world.exchange(done, [], world.request("w1", 1))
    same(answer.answers, (Answer.OK,) * len(done), "answers")
    found = [await world.backend.get(lease.id) for lease in leases]
    same([None if one is None else one.state for one in found], [State.SUCCEEDED, None] * number, "states")


@case
async def a_stale_token_removes_nothing(world: World) -> None:
    job_id = await world.enqueue()
    stale = await world.claim_one(job_id)
    await world.give_back(stale)
    same(await world.settle(stale, Ending.SUCCEEDED, retain=REMOVED), Answer.LOST, "the stale one")
    lease = await world.claim_one(job_id)
    await world.backend.cancel(job_id, now=world.now)
    same(await world.settle(lease, Ending.SUCCEEDED, retain=REMOVED), Answer.CANCELLED, "cancel was requested")
    same((await world.get(job_id)).state, State.RUNNING, "the job")


@case
async def a_repeated_call_that_removed_a_job_returns_the_first_answers(world: World) -> None:
    [lease] = await world.leased(1)
    request = world.request("w1", 1)
    done = [world.settlement(lease, Ending.SUCCEEDED, retain=REMOVED)]
    first = await world.exchange(done, [], request)
    same(first.answers, (Answer.OK,), "answers")
    same(await world.exchange(done, [], request), first, "the repeat")


@case
async def its_key_and_its_group_are_free_and_its_letter_is_closed(world: World) -> None:
    await world.backend.declare([], [TaskRule(name="work", retain_count=1)], now=world.now)
    first = await world.enqueue(key="k", group="g")
    await world.end(await world.claim_one(first), Ending.BURIED)
    await world.backend.revive(first, now=world.now)
    behind = await world.enqueue(group="g")
    lease = await world.claim_one(first)
    await world.end(lease, retain=REMOVED)
    same(await world.backend.letter(first), None, "its letter")
    await world.claim_one(behind, "w2")
    assert await world.enqueue(key="k") != first, "its key is free"


@case
async def an_outcome_other_than_success_keeps_the_job(world: World) -> None:
    ids = await world.enqueue_many(2)
    for lease, ending in zip(await world.claim(2), (Ending.BURIED, Ending.RETRY), strict=True):
        await world.end(lease, ending, retain=REMOVED)
    same([(await world.get(job_id)).state for job_id in ids], [State.DEAD, State.SCHEDULED], "states")


@case
async def a_job_that_others_wait_for_is_kept(world: World) -> None:
    parent = await world.enqueue()
    child = await world.enqueue(after=(parent,))
    await world.end(await world.claim_one(parent), retain=REMOVED, value=b"7")
    same((await world.get(parent)).value, b"7", "its result")
    await world.end(await world.claim_one(child), retain=REMOVED)
    same((await world.get(child)).state, State.SUCCEEDED, "the child, which refers to it")


@case
async def a_key_with_a_window_keeps_the_job(world: World) -> None:
    job_id = await world.enqueue(key="k", key_window=3600.0)
    await world.end(await world.claim_one(job_id), retain=REMOVED)
    again = NewJob(id="again", task="work", key="k", key_window=3600.0)
    [answer] = await world.backend.enqueue([again], now=world.now)
    same((answer.id, answer.created), (job_id, False), "the holder")


@case
async def its_handlers_jobs_are_stored_in_the_same_step(world: World) -> None:
    job_id = await world.enqueue(key="k")
    lease = await world.claim_one(job_id)
    done = world.settlement(lease, Ending.SUCCEEDED, retain=REMOVED)
    following = NewJob(id="following", task="work", key="k")
    same(await world.backend.settle_with(done, [following], now=world.now), Answer.OK, "answer")
    same(await world.backend.get(job_id), None, "the job")
    await world.claim_one("following")
