"""Conformance of edit (R71 to R73): what one change does, what stays, and what is refused.

Called by run_case.
"""

from __future__ import annotations

from ...errors import ConfigurationError, StateConflict
from ...lifecycle import Ending, State
from ...records import Edit, JobRecord
from .compare import changed_columns, row_of, same
from .registry import case, case_for_each
from .world import World


async def _edit(world: World, job_id: str, **changes: object) -> JobRecord:
    answer = await world.backend.edit(job_id, Edit(**changes), now=world.now)  # type: ignore[arg-type]
    same(answer, await world.get(job_id), "edit answers the job as it is now")
    return answer


async def _changed(world: World, job_id: str, **changes: object) -> set[str]:
    """The columns of the job that an edit changed; no other row of any table may change."""
    before = await world.tables()
    await _edit(world, job_id, **changes)
    after = await world.tables()
    old, new = row_of(before, "jobs", job_id), row_of(after, "jobs", job_id)
    assert old is not None and new is not None, "edit must not remove the job"
    others = [[row for row in tables["jobs"] if row["id"] != job_id] for tables in (before, after)]
    same(others[1], others[0], "every other job after edit")
    same(after["letters"], before["letters"], "the dead letters after edit")
    return changed_columns(old, new)


@case_for_each([State.SCHEDULED, State.WAITING, State.READY])
async def new_arguments_move_nothing(world: World, state: State) -> None:
    start = await world.put(state, key="k", options=b'{"retry":{"limit":9}}')
    changed = await _changed(world, start.id, args=b'{"n":2,"text":"longer than before"}')
    same(changed, {"args"}, "columns changed")
    same((await world.get(start.id)).args, b'{"n":2,"text":"longer than before"}', "the arguments")


@case_for_each([State.SCHEDULED, State.WAITING, State.READY])
async def an_edit_without_changes_changes_nothing(world: World, state: State) -> None:
    start = await world.put(state)
    same(await _changed(world, start.id), set(), "columns changed")


@case
async def the_new_arguments_are_the_ones_that_run(world: World) -> None:
    job_id = await world.enqueue(args=b'{"n":1}')
    await _edit(world, job_id, args=b'{"n":2}')
    same((await world.claim_one(job_id)).args, b'{"n":2}', "arguments of the lease")


@case
async def a_job_rescheduled_later_leaves_play_and_comes_back_when_due(world: World) -> None:
    job_id = await world.enqueue(expires=100.0)
    world.advance(10.0)
    due = world.now + 60.0
    answer = await _edit(world, job_id, due_at=due)
    same((answer.state, answer.due_at, answer.expires_at), (State.SCHEDULED, due, due + 100.0), "rescheduled")
    await world.claim_none()
    world.advance(61.0)
    await world.claim_one(job_id, "w2")  # the lease of w1, which claimed before, has expired


@case
async def a_job_rescheduled_to_now_is_in_play(world: World) -> None:
    job_id = await world.enqueue(delay=500.0)
    same((await _edit(world, job_id, delay=0.0)).state, State.READY, "due now")
    same((await world.get(job_id)).due_at, world.now, "due_at")
    await world.claim_one(job_id)


@case
async def a_scheduled_job_can_be_scheduled_anew(world: World) -> None:
    job_id = await world.enqueue(delay=500.0)
    answer = await _edit(world, job_id, delay=20.0)
    same((answer.state, answer.due_at), (State.SCHEDULED, world.now + 20.0), "scheduled anew")
    same(await _changed(world, job_id, due_at=world.now + 90.0), {"due_at"}, "columns changed")


@case
async def a_head_that_is_rescheduled_lets_its_group_go_on(world: World) -> None:
    first, second = await world.enqueue_many(2, group="g")
    await _edit(world, first, delay=100.0)
    same(await world.states([first, second]), [State.SCHEDULED, State.READY], "the next one is ready")
    await world.claim_one(second)


@case
async def a_head_in_back_off_keeps_its_place_when_rescheduled(world: World) -> None:
    first, second = await world.enqueue_many(2, group="g")
    await world.end(await world.claim_one(first), Ending.RETRY, delay=10.0)
    answer = await _edit(world, first, delay=50.0)
    same((answer.held, answer.state), (True, State.SCHEDULED), "held in back-off")
    await world.is_in(second, State.WAITING)


@case
async def a_changed_priority_reorders_the_queue(world: World) -> None:
    first, second, third = await world.enqueue_many(3)
    await _edit(world, third, priority=5)
    same(await world.claim_ids(3), [third, first, second], "claimed")


@case
async def a_lowered_head_lets_the_next_of_its_group_go_first(world: World) -> None:
    first, second = await world.enqueue_many(2, group="g")
    await _edit(world, first, priority=-5)
    same(await world.states([first, second]), [State.WAITING, State.READY], "the higher one is ready")
    await world.claim_one(second)


@case
async def a_raised_job_of_a_group_waits_for_the_one_that_is_ready(world: World) -> None:
    first, second, third = await world.enqueue_many(3, group="g")
    await _edit(world, third, priority=5)
    same(await world.states([first, second, third]), [State.READY, State.WAITING, State.WAITING], "states")
    await world.end(await world.claim_one(first))
    await world.claim_one(third)


@case
async def a_job_that_changes_its_group_frees_one_slot_and_queues_for_the_other(world: World) -> None:
    a1, a2 = await world.enqueue_many(2, group="a")
    b1 = await world.enqueue(group="b")
    if world.backend.sharded:
        return  # the router's own tests say when a group may change there
    await _edit(world, a1, group="b")
    same(await world.states([a1, a2, b1]), [State.WAITING, State.READY, State.READY], "states")
    await _edit(world, a1, group=None)
    same(await world.state(a1), State.READY, "without a group it waits for nobody")
    same((await world.get(a1)).group, None, "group")


@case
async def an_older_job_that_joins_a_group_goes_by_its_seq(world: World) -> None:
    if world.backend.sharded:
        return
    loner = await world.enqueue(delay=100.0)
    first, second = await world.enqueue_many(2, group="g")
    await _edit(world, loner, group="g", delay=0.0)
    await world.end(await world.claim_one(first))
    await world.claim_one(loner)
    await world.is_in(second, State.WAITING)


@case
async def a_group_whose_job_left_while_held_is_not_blocked(world: World) -> None:
    if world.backend.sharded:
        return
    first, second = await world.enqueue_many(2, group="g")
    await world.end(await world.claim_one(first), Ending.RETRY, delay=10.0)
    answer = await _edit(world, first, group="h")
    same((answer.held, answer.state), (False, State.SCHEDULED), "it holds no place in the other group")
    await world.is_in(second, State.READY)


@case
async def a_job_moves_to_another_queue(world: World) -> None:
    job_id, other = await world.enqueue_many(2, group="g")
    if world.backend.sharded:
        async with world.refused(ConfigurationError, "edit to another queue of a sharded store"):
            await world.backend.edit(job_id, Edit(queue="elsewhere"), now=world.now)
        return
    answer = await _edit(world, job_id, queue="elsewhere")
    same((answer.queue, answer.state), ("elsewhere", State.READY), "moved")
    await world.is_in(other, State.READY)
    same(await world.claim_ids(9), [other], "claimed here")
    same(await world.claim_ids(9, queues=("elsewhere",)), [job_id], "claimed there")


@case
async def a_key_moves_with_its_job_and_stays_unique(world: World) -> None:
    if world.backend.sharded:
        return
    job_id = await world.enqueue(key="k")
    there = await world.enqueue(key="k", queue="elsewhere")
    async with world.refused(StateConflict, "edit into a queue where the key is held") as raised:
        await world.backend.edit(job_id, Edit(queue="elsewhere"), now=world.now)
    same(getattr(raised[0], "live_id", None), there, "who holds it")
    await world.backend.cancel(there, now=world.now)
    await _edit(world, job_id, queue="elsewhere")
    again = world.job(key="k", queue="elsewhere")
    [answer] = await world.backend.enqueue([again], now=world.now)
    same((answer.id, answer.created), (job_id, False), "the key is held there")
    await world.enqueue(key="k")  # and free here


@case
async def a_key_window_that_has_passed_there_does_not_refuse(world: World) -> None:
    if world.backend.sharded:
        return
    there = await world.enqueue(key="k", queue="elsewhere", key_window=10.0)
    world.advance(20.0)
    job_id = await world.enqueue(key="k")
    await _edit(world, job_id, queue="elsewhere")
    same(((await world.get(job_id)).holds_key, (await world.get(there)).holds_key), (True, False), "who holds it")


@case
async def a_global_key_is_held_in_whichever_queue_its_job_is(world: World) -> None:
    if world.backend.sharded:
        return
    job_id = await world.enqueue(key="k", key_scope="global")
    await _edit(world, job_id, queue="elsewhere")
    [answer] = await world.backend.enqueue([world.job(key="k", key_scope="global")], now=world.now)
    same((answer.id, answer.created), (job_id, False), "the key is held")


@case_for_each(["dead", "dead, to another queue", "revived", "ready"])
async def a_dead_job_is_revived_with_new_values_in_one_step(world: World, how: str) -> None:
    state = State.READY if how == "ready" else State.DEAD
    start = await world.put(state, args=b'{"n":1}', key="k")
    if how == "revived":
        await world.backend.revive(start.id, now=world.now)
    world.advance(5.0)
    changes: dict[str, object] = {"args": b'{"n":2}', "delay": 30.0, "revive": True}
    if "queue" in how and not world.backend.sharded:
        changes["queue"] = "elsewhere"
    answer = await _edit(world, start.id, **changes)
    same((answer.state, answer.args, answer.due_at), (State.SCHEDULED, b'{"n":2}', world.now + 30.0), "the job")
    same((answer.attempts, answer.holds_key), (0, True), "fresh budgets, and its key")
    if how != "ready":
        letter = await world.letter(start.id)
        same((letter.queue, letter.revived_at is not None), (answer.queue, True), "its letter")


@case
async def a_letter_does_not_move_onto_another(world: World) -> None:
    if world.backend.sharded:
        return
    here = await world.put(State.DEAD, key="k")
    there = await world.put(State.DEAD, key="k", queue="elsewhere")
    async with world.refused(StateConflict, "edit of a job whose letter would meet another"):
        await world.backend.edit(here.id, Edit(queue="elsewhere", revive=True), now=world.now)
    await world.backend.discard(there.id, now=world.now)
    await _edit(world, here.id, queue="elsewhere", revive=True)
    await world.end(await world.claim_one(here.id, queues=("elsewhere",)), Ending.BURIED)
    same((await world.letter(here.id)).failure_count, 2, "deaths in its one letter")


@case
async def a_dead_job_whose_key_is_held_is_neither_revived_nor_edited(world: World) -> None:
    dead = await world.put(State.DEAD, key="k")
    live = await world.enqueue(key="k")
    async with world.refused(StateConflict, "edit that would revive a job whose key is held") as raised:
        await world.backend.edit(dead.id, Edit(args=b"{}", revive=True), now=world.now)
    same(getattr(raised[0], "live_id", None), live, "who holds it")


@case
async def an_edit_that_comes_after_the_claim_says_so(world: World) -> None:
    start = await world.put(State.RUNNING)
    async with world.refused(StateConflict, "edit of a running job") as raised:
        await world.backend.edit(start.id, Edit(args=b"{}"), now=world.now)
    assert "claimed" in str(raised[0]), str(raised[0])


@case
async def an_edit_is_marked_with_what_was_changed_and_by_whom(world: World) -> None:
    start = await world.put(State.DEAD)
    await world.backend.edit(start.id, Edit(args=b"{}", delay=5.0, revive=True), now=world.now, by="ann")
    await world.backend.edit(start.id, Edit(), now=world.now, by="bob")  # changes nothing
    await world.backend.edit(start.id, Edit(priority=3), now=world.now)
    marks = [(mark.kind, mark.by, mark.text) for mark in await world.backend.marks(start.id)]
    same(marks, [("revive", "ann", ""), ("edit", "ann", "args, due"), ("edit", "", "priority")], "marks")
