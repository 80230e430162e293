"""Conformance of what jobs keep between their attempts (R91 to R94): steps, signals, and snoozes that wait for one.

Called by run_case. Soundness checks after every case that every step has its job.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...errors import ConfigurationError, JobNotFound, StateConflict, StoreSealed
from ...lifecycle import Ending, State
from ...records import Answer, Held, Lease, Seal
from ...steps import SIGNALS_MAX, NewStep, Step
from .compare import same
from .registry import case, case_for_each
from .world import DAY, FOREVER, NO_TOKEN, World

STEP = NewStep(kind="step", name="charge", number=1, value=b'{"paid":"\xc3\xa9"}')
WAIT = NewStep(kind="wait", name="paid", number=2, delay=1000.0)
AWAITS: dict[str, Any] = {"delay": 1000.0, "reason": "paid"}


async def running(world: World, **fields: Any) -> Lease:
    """A new job, leased by a worker that lives as long as the case."""
    await world.register("w1", lease=FOREVER)
    return await world.claim_one(await world.enqueue(**fields))


async def keep(world: World, lease: Lease | Held, *steps: NewStep) -> None:
    answer = await world.backend.checkpoint(Held(lease.id, lease.token), steps, now=world.now)
    same(answer, Answer.OK, "checkpoint of a live lease")


async def signal(world: World, job_id: str, name: str = "paid", value: bytes = b"7") -> State:
    """Send a signal; returns the job's state after it."""
    answer = await world.backend.signal(job_id, name, value, now=world.now, by="ann")
    same(answer, await world.get(job_id), "signal answers the job as it is now")
    return answer.state


async def known(world: World, job_id: str) -> list[Step]:
    return list((await world.backend.steps(job_id)).steps)


async def names(world: World, job_id: str) -> list[str]:
    return [f"{step.kind} {step.name}" for step in await known(world, job_id)]


async def asleep(world: World, **fields: Any) -> Lease:
    """A job that waits for the signal "paid"."""
    lease = await running(world, **fields)
    await keep(world, lease, WAIT)
    await world.end(lease, Ending.SNOOZED, **AWAITS)
    await world.is_in(lease.id, State.SCHEDULED)
    return lease


# ----------------------------------------------------------------------------------------------------------------------
# Steps


@case
async def a_step_is_stored_with_its_time_its_fence_and_its_end(world: World) -> None:
    lease = await running(world)
    world.advance(3.0)
    sleep = NewStep(kind="sleep", name="sleep-2", number=2, delay=60.5)
    await keep(world, lease, STEP, sleep)
    found = {step.name: step for step in await known(world, lease.id)}
    facts: dict[str, Any] = {"job_id": lease.id, "at": world.now, "fence": lease.fence}
    charge = Step(kind="step", name="charge", number=1, value=STEP.value, **facts)
    same(found["charge"], charge, "the step")
    slept = Step(kind="sleep", name="sleep-2", number=2, until=world.now + 60.5, **facts)
    same(found["sleep-2"], slept, "the sleep")
    rows = (await world.backend.dump()).tables["steps"]
    same([(row["kind"], row["name"]) for row in rows], [("sleep", "sleep-2"), ("step", "charge")], "the dump")


@case
async def a_step_replaces_the_one_of_its_kind_and_name(world: World) -> None:
    lease = await running(world)
    await keep(world, lease, STEP, NewStep(kind="version", name="charge", value=b"1"))
    world.advance(1.0)
    await keep(world, lease, NewStep(kind="step", name="charge", number=4, value=b"[]"))
    found = [(step.kind, step.number, step.value, step.at) for step in await known(world, lease.id)]
    same(found, [("step", 4, b"[]", world.now), ("version", 0, b"1", world.now - 1.0)], "the steps")


@case
async def a_step_changes_nothing_of_its_job_nor_of_others(world: World) -> None:
    lease = await running(world, group="g")
    before = await world.tables()
    await keep(world, lease, STEP)
    after = await world.tables()
    same({**after, "steps": []}, {**before, "steps": []}, "everything but the steps")
    same(await names(world, lease.id), ["step charge"], "the steps")


@case_for_each([state for state in State if state is not State.RUNNING])
async def a_step_needs_a_running_job(world: World, state: State) -> None:
    start = await world.put(state)
    async with world.unchanged(f"checkpoint of a job that is {state}"):
        answer = await world.backend.checkpoint(start.held, [STEP], now=world.now)
    same(answer, Answer.LOST, "the answer")


@case
async def a_step_needs_the_token_of_the_latest_lease(world: World) -> None:
    old = await running(world)
    await world.give_back(old)
    lease = await world.claim_one(old.id)
    for token in (old.token, NO_TOKEN):
        async with world.unchanged("checkpoint with another token"):
            answer = await world.backend.checkpoint(Held(lease.id, token), [STEP], now=world.now)
        same(answer, Answer.LOST, "the answer")
    same(await world.backend.checkpoint(Held("nobody", lease.token), [STEP], now=world.now), Answer.LOST, "no such job")
    await keep(world, lease, STEP)


@case
async def a_requested_cancel_does_not_refuse_a_step(world: World) -> None:
    lease = await running(world)
    await world.backend.cancel(lease.id, now=world.now)
    await keep(world, lease, STEP)
    same(await names(world, lease.id), ["step charge"], "the steps")


@case_for_each(["retry", "snooze", "release", "stall", "recover", "death and revival", "cancel and retry"])
async def steps_stay_through(world: World, what: str) -> None:
    lease = await running(world) if what != "recover" else (await world.leased(1))[0]
    await keep(world, lease, STEP)
    if what in ("retry", "snooze"):
        await world.end(lease, Ending.RETRY if what == "retry" else Ending.SNOOZED)
        world.advance(11.0)
    elif what == "release":
        await world.give_back(lease)
    elif what == "stall":
        await world.end(lease, Ending.STALLED)
    elif what == "recover":
        await world.expire_worker()
        await world.backend.recover(now=world.now)
    elif what == "cancel and retry":
        await world.end(lease, Ending.CANCELLED)
        await world.backend.retry(lease.id, now=world.now)
    else:
        await world.end(lease, Ending.BURIED)
        await world.backend.revive(lease.id, now=world.now)
    again = await world.claim_one(lease.id, "w2", lease=FOREVER)
    same([(one.name, one.fence) for one in await known(world, again.id)], [("charge", lease.fence)], "the steps")
    await world.end(again)
    same(await names(world, again.id), ["step charge"], "they stay with the job that succeeded")


@case
async def a_job_that_succeeded_and_is_retried_begins_without_steps(world: World) -> None:
    lease = await running(world)
    other = await running(world)
    await keep(world, lease, STEP)
    await keep(world, other, STEP)
    await world.end(lease)
    await world.backend.retry(lease.id, now=world.now)
    same(await names(world, lease.id), [], "the steps")
    same(await names(world, other.id), ["step charge"], "those of another job")


@case_for_each(["delete", "prune"])
async def steps_go_with_their_job(world: World, how: str) -> None:
    lease, other = await running(world), await running(world, id="job-000001x")
    await keep(world, lease, STEP, WAIT)
    await keep(world, other, STEP)
    await world.end(lease)
    if how == "delete":
        await world.backend.delete(lease.id, now=world.now)
    else:
        world.advance(400 * DAY)
        same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await names(world, lease.id), [], "its steps")
    same(await names(world, other.id), ["step charge"], "those of a job whose id begins like it")


@case_for_each(["replace", "debounce"])
async def a_holder_with_steps_is_not_replaced(world: World, on_conflict: str) -> None:
    lease = await running(world, key="k")
    await keep(world, lease, STEP)
    await world.end(lease, Ending.SNOOZED)
    async with world.unchanged("a call of the same key"):
        job = world.job(key="k", on_conflict=on_conflict, args=b"[1]")
        [answer] = await world.backend.enqueue([job], now=world.now)
    same((answer.id, answer.created, answer.replaced), (lease.id, False, False), "the answer")


# ----------------------------------------------------------------------------------------------------------------------
# Signals


@case_for_each(list(State))
async def a_signal_to_a_job_in_each_state(world: World, state: State) -> None:
    start = await world.put(state, group="g" if state is State.WAITING else None)
    if state.finished:
        async with world.refused(StateConflict, "signal to a finished job") as raised:
            await world.backend.signal(start.id, "paid", b"1", now=world.now)
        same(getattr(raised[0], "state", None), state, "what the refusal carries")
        return
    same(await signal(world, start.id), state, "its state stays")
    [stored] = await known(world, start.id)
    same((stored.kind, stored.name, stored.value, stored.at), ("signal", "paid", b"7", world.now), "the signal")
    [mark] = await world.backend.marks(start.id)
    same((mark.kind, mark.text, mark.by, mark.at), ("signal", "paid", "ann", world.now), "the mark")


@case
async def a_signal_to_an_unknown_job_is_not_found(world: World) -> None:
    async with world.refused(JobNotFound, "signal"):
        await world.backend.signal("nobody", "paid", b"1", now=world.now)


@case
async def the_first_signal_of_a_name_counts(world: World) -> None:
    lease = await asleep(world)
    await signal(world, lease.id)
    async with world.unchanged("a second signal"):
        await signal(world, lease.id, value=b"8")
    same(len(await world.backend.marks(lease.id)), 2, "marks: snooze and signal")


@case
async def a_job_has_a_bounded_number_of_signals(world: World) -> None:
    job_id = await world.enqueue()
    for number in range(SIGNALS_MAX):
        await world.backend.signal(job_id, f"s{number}", b"1", now=world.now)
    async with world.refused(ConfigurationError, "one signal too many"):
        await world.backend.signal(job_id, "more", b"1", now=world.now)
    async with world.unchanged("one that is there"):
        await world.backend.signal(job_id, "s1", b"1", now=world.now)


@case_for_each(["alone", "in a group"])
async def a_signal_wakes_the_job_that_waits_for_it(world: World, where: str) -> None:
    lease = await asleep(world, group="g" if where == "in a group" else None)
    world.advance(1.0)
    same(await signal(world, lease.id), State.READY, "the state after the signal")
    same((await world.get(lease.id)).due_at, world.now, "its due time")
    again = await world.claim_one(lease.id)
    same(await names(world, lease.id), ["signal paid", "wait paid"], "what it remembers")
    await world.end(again)


@case
async def a_signal_before_the_snooze_makes_it_due_at_once(world: World) -> None:
    lease = await running(world)
    await keep(world, lease, WAIT)
    same(await signal(world, lease.id), State.RUNNING, "it is still running")
    await world.end(lease, Ending.SNOOZED, **AWAITS)
    same((await world.get(lease.id)).due_at, world.now, "its due time")
    await world.claim_one(lease.id)


@case
async def a_signal_before_the_first_attempt_counts(world: World) -> None:
    job_id = await world.enqueue()
    await signal(world, job_id)
    lease = await world.claim_one(job_id)
    await world.end(lease, Ending.SNOOZED, **AWAITS)
    await world.claim_one(job_id)


@case
async def another_signal_does_not_wake_it(world: World) -> None:
    lease = await asleep(world)
    due_at = (await world.get(lease.id)).due_at
    same(await signal(world, lease.id, "shipped"), State.SCHEDULED, "the state")
    same((await world.get(lease.id)).due_at, due_at, "its due time")
    world.advance(1001.0)
    await world.claim_one(lease.id)  # the time it gave is over


@case_for_each(["retry", "snooze of its own", "release"])
async def a_wait_of_an_earlier_lease_does_not_shorten(world: World, what: str) -> None:
    """Only the latest lease decides: a job that is scheduled for another reason keeps its due time."""
    first = await asleep(world)
    await world.backend.run_now(first.id, now=world.now)
    lease = await world.claim_one(first.id)
    if what == "release":
        await world.give_back(lease, delay=500.0)
    else:
        await world.end(lease, Ending.RETRY if what == "retry" else Ending.SNOOZED, delay=500.0)
    same(await signal(world, lease.id), State.SCHEDULED, "the state")
    same((await world.get(lease.id)).due_at, world.now + 500.0, "its due time")


@case
async def a_snooze_for_a_signal_that_never_came_keeps_its_delay(world: World) -> None:
    lease = await asleep(world)
    same((await world.get(lease.id)).due_at, world.now + 1000.0, "its due time")
    await world.claim_none()


@case
async def a_sealed_store_refuses_signals_and_takes_steps(world: World) -> None:
    lease, job_id = await running(world), await world.enqueue()
    assert await world.backend.seal(Seal(move="m", role="source", other="b"), instead_of=None)
    async with world.refused(StoreSealed, "signal to a sealed store"):
        await world.backend.signal(job_id, "paid", b"1", now=world.now)
    await keep(world, lease, STEP)


# ----------------------------------------------------------------------------------------------------------------------
# Moving


@case
async def steps_move_with_their_jobs(world: World) -> None:
    lease = await asleep(world)
    await signal(world, lease.id, "shipped")
    second = await running(world)
    await keep(world, second, STEP)
    await world.end(second)
    there = await world.another()
    await world.backend.seal(Seal(move="m", role="source", other="b"), instead_of=None)
    seal = Seal(move="m", role="target", other="a")
    await there.backend.seal(seal, instead_of=None)
    while seal.part is not None:
        piece = await world.backend.export(seal.part, seal.after, limit=2)
        for _ in range(2):  # a repeated shipment changes nothing
            await there.backend.carry("m", piece)
        seal = seal.moved_on(piece)
    for job_id in (lease.id, second.id):
        same(await known(there, job_id), await known(world, job_id), "the steps")


# ----------------------------------------------------------------------------------------------------------------------
# Rivals


@case
async def a_signal_at_the_moment_of_the_snooze_is_not_lost(world: World) -> None:
    """Whichever comes first, the job is due at once."""
    await world.register("w1", lease=FOREVER)
    leases = [await running(world) for _ in range(world.sized(24))]
    for lease in leases:
        await keep(world, lease, WAIT)
    other = world.make_backend(world.store)
    await other.open()

    async def snooze(lease: Lease) -> None:
        settlement = world.settlement(lease, Ending.SNOOZED, **AWAITS)
        for _ in range(100):  # a row that the other one has locked is busy for a moment
            [answer] = await world.backend.settle([settlement], now=world.now)
            if answer is not Answer.BUSY:
                break
        same(answer, Answer.OK, "the snooze")

    async def send(lease: Lease) -> None:
        await other.signal(lease.id, "paid", b"1", now=world.now)

    try:
        await asyncio.gather(*[work(lease) for lease in leases for work in (snooze, send)])
    finally:
        if other is not world.backend:
            await other.close()
    due = [(await world.get(lease.id)).due_at for lease in leases]
    same(due, [world.now] * len(leases), "when they are due")
    same(len(await world.claim(100, "w1")), len(leases), "all of them are claimed")
