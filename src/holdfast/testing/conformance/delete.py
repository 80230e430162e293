"""Conformance of delete (R74): everything about the job goes, nothing else does, and its id stays known for a while.

Called by run_case.
"""

from __future__ import annotations

from ...errors import JobNotFound, StateConflict
from ...lifecycle import State, Verb, allowed
from ...records import REMEMBER_SECONDS_MIN
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World

_STATES = [state for state in State if allowed(Verb.DELETE, state) is not None]


@case_for_each(_STATES)
async def a_job_is_deleted_with_everything_about_it(world: World, state: State) -> None:
    await world.enqueue(queue="elsewhere")
    await world.claim(1, "bystander", lease=FOREVER, queues=("elsewhere",))
    before = await world.tables()
    start = await world.put(state, key="k", args=b'{"secret":1}')
    was = await world.get(start.id)
    same(await world.backend.delete(start.id, now=world.now), was, "delete answers the job as it was")
    same(await world.backend.get(start.id), None, "the job")
    after = await world.tables()
    for table in ("letters", "logs", "marks"):
        same(after[table], before[table], f"{table} after delete")
    same([row for row in after["jobs"] if row["id"] == start.id], [], "rows of the job")
    same((await world.backend.count()).get("default", {}).get(state, 0), 0, "counted")
    await world.enqueue(key="k")  # the key is free


@case_for_each(_STATES)
async def a_deleted_id_stays_known_for_as_long_as_a_finished_one(world: World, state: State) -> None:
    start = await world.put(state)
    again = world.job(id=start.id, group=(await world.get(start.id)).group)  # in a cluster, ids belong to a shard
    world.advance(100.0)
    await world.backend.delete(start.id, now=world.now)
    known_for = REMEMBER_SECONDS_MIN - (100.0 if state.finished else 0.0)
    for seconds, created in ((0.0, False), (known_for - 1.0, False), (known_for + 1.0, True)):
        at = world.now + seconds
        if created:
            await world.backend.prune(now=at)
        [answer] = await world.backend.enqueue([again], now=at)
        same((answer.id, answer.created), (start.id, created), f"enqueue after {seconds} s")
        if not created:
            same(await world.backend.get(start.id), None, "the job")


@case
async def a_job_that_finished_long_ago_is_forgotten_at_once(world: World) -> None:
    start = await world.put(State.DEAD)
    world.advance(REMEMBER_SECONDS_MIN + 1.0)
    await world.backend.delete(start.id, now=world.now)
    await world.enqueue(id=start.id)


@case
async def prune_forgets_deleted_ids_in_time(world: World) -> None:
    job_id = await world.enqueue()
    await world.backend.delete(job_id, now=world.now)
    same(await world.backend.prune(now=world.now), 0, "pruned at once")
    [answer] = await world.backend.enqueue([world.job(id=job_id)], now=world.now)
    same(answer.created, False, "known after a prune")
    world.advance(REMEMBER_SECONDS_MIN + 1.0)
    same(await world.backend.prune(now=world.now), 0, "jobs pruned later")
    await world.enqueue(id=job_id)


@case
async def a_batch_with_a_deleted_id_stores_the_others(world: World) -> None:
    gone = await world.enqueue(group="g")
    await world.backend.delete(gone, now=world.now)
    jobs = [world.job(), world.job(id=gone, group="g"), world.job(key="k")]
    answers = await world.backend.enqueue(jobs, now=world.now)
    same([answer.created for answer in answers], [True, False, True], "created")


@case
async def a_deleted_head_makes_room_for_the_next_of_its_group(world: World) -> None:
    first, second, third = await world.enqueue_many(3, group="g")
    await world.backend.delete(first, now=world.now)
    same(await world.states([second, third]), [State.READY, State.WAITING], "states")
    await world.backend.delete(third, now=world.now)
    await world.end(await world.claim_one(second))
    await world.claim_none()


@case
async def a_running_job_is_not_deleted(world: World) -> None:
    start = await world.put(State.RUNNING)
    async with world.refused(StateConflict, "delete of a running job") as raised:
        await world.backend.delete(start.id, now=world.now)
    assert "Cancel" in str(raised[0]), str(raised[0])


@case
async def a_second_delete_finds_nothing(world: World) -> None:
    job_id = await world.enqueue()
    await world.backend.delete(job_id, now=world.now)
    async with world.refused(JobNotFound, "a second delete"):
        await world.backend.delete(job_id, now=world.now)


@case
async def the_letter_of_another_job_of_the_key_stays(world: World) -> None:
    dead = await world.put(State.DEAD, key="k")
    newer = await world.enqueue(key="k")
    await world.backend.delete(newer, now=world.now)
    same((await world.letter(dead.id)).id, dead.id, "the letter")
    await world.is_in(dead.id, State.DEAD)


@case
async def a_deleted_job_frees_the_window_of_its_key(world: World) -> None:
    start = await world.put(State.SUCCEEDED, key="k", key_window=1000.0)
    await world.backend.delete(start.id, now=world.now)
    await world.enqueue(key="k")
