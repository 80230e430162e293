"""Conformance of enqueue where a key is held: replace, debounce and raise, with windows, scopes and in one batch.

Called by run_case. The plain conflicts of a key held until its job has finished are in enqueue.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...errors import DuplicateJob
from ...lifecycle import FINISHED, UNSTARTED, Ending, State
from ...records import Enqueued, NewJob, Revival
from .compare import changed_columns, same
from .keys import WINDOW, holders, kept, rival
from .registry import case, case_for_each
from .world import FOREVER, World

# ---------------------------------------------------------------------- extend


@case_for_each(sorted(State))
async def a_call_that_extends_a_window_prolongs_it_from_now_whatever_the_state(world: World, state: State) -> None:
    """R102."""
    holder = await world.put(state, key="k", key_window=WINDOW)
    before = await world.row(holder.id)
    beside = {"group": before["group"]}  # a key is unique within a shard
    world.advance(400.0)
    same(await rival(world, on_conflict="extend", key_window=WINDOW, **beside), Enqueued(holder.id, False), "answer")
    after = await world.get(holder.id)
    same(after.created_at + (after.key_window or 0.0), world.now + WINDOW, "the end of the window")
    changed = changed_columns(before, await world.row(holder.id))
    same(changed - {"prune_at"}, {"key_window"}, "what changed")
    async with world.unchanged("a shorter one"):
        same(await rival(world, on_conflict="extend", key_window=5.0, **beside), Enqueued(holder.id, False), "answer")
    world.advance(WINDOW - 1.0)
    await kept(world, holder.id, **beside)
    world.advance(1.0)
    assert (await rival(world, **beside)).created, "the window has passed"


@case
async def an_extended_window_keeps_its_finished_job_from_prune(world: World) -> None:
    holder = await world.put(State.SUCCEEDED, key="k", key_window=WINDOW)
    world.advance(400.0)
    await rival(world, on_conflict="extend", key_window=30 * WINDOW)
    world.advance(30 * WINDOW - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned within the window")
    await kept(world, holder.id)
    world.advance(1.0)
    same(await world.backend.prune(now=world.now), 1, "pruned when it has passed")


@case_for_each([(None, 50.0), (WINDOW, None)], name=lambda p: f"of {p[0]} by {p[1]}")
async def extend_is_keep_where_either_has_no_window(world: World, windows: tuple[float | None, float | None]) -> None:
    holder = await world.enqueue(key="k", key_window=windows[0])
    async with world.unchanged("an extension without a window"):
        same(await rival(world, on_conflict="extend", key_window=windows[1]), Enqueued(holder, False), "answer")


# ---------------------------------------------------------------------- replace


@case
async def replace_takes_over_everything_but_who_the_job_is(world: World) -> None:
    job_id = await world.enqueue(key="k", wait_max=500.0, delay=5.0)
    before = await world.row(job_id)
    world.advance(3.0)
    fields: dict[str, Any] = {
        "args": b"[2]",
        "priority": 4,
        "max_stalls": 1,
        "revival": Revival(after=7.0),
        "options": b'{"timeout":1}',
        "key_until": "started",
        "key_window": 40.0,
        "on_expire": "drop",
    }
    answer = await rival(world, on_conflict="replace", delay=50.0, expires=9.0, wait_max=1.0, **fields)
    same(answer, Enqueued(job_id, False, True), "answer")
    after = await world.get(job_id)
    for name, value in fields.items():
        same(getattr(after, name), value, f"{name} of the new call")
    same((after.due_at, after.expires_at), (world.now + 50.0, world.now + 59.0), "its times")
    stays = {"id", "seq", "queue", "task", "key", "created_at", "due_max", "holds_key", "state", "attempts"}
    changed = changed_columns(before, await world.row(job_id))
    same(changed & stays, set(), "what it keeps")


@case
async def replace_keeps_the_counters_of_a_job_that_failed_before(world: World) -> None:
    job_id = await world.enqueue(key="k", max_stalls=2)
    await world.end(await world.claim_one(job_id, lease=FOREVER), Ending.RETRY, delay=0.0)
    world.advance(1.0)
    await world.end(await world.claim_one(job_id), Ending.STALLED, alone=True)
    same(await rival(world, on_conflict="replace", max_stalls=0), Enqueued(job_id, False, True), "answer")
    await world.counters(job_id, 2, 1, 1)
    same((await world.get(job_id)).max_stalls, 1, "max_stalls is never below the stalls it suffered")
    await kept(world, job_id)


@case_for_each(product(("replace", "debounce"), (None, "g")), name=lambda p: f"{p[0]}, {p[1] and 'grouped'}")
async def a_job_that_is_replaced_again_and_again_keeps_its_turn(world: World, how: tuple[Any, str | None]) -> None:
    """A new one each time would put it behind all others: in a busy queue, busy callers would starve it."""
    word, group = how
    job_id = await world.enqueue(key="k", group=group, wait_max=0.0)
    turn = (await world.row(job_id))["turn"]
    for number in range(3):
        world.advance(1.0)
        await world.enqueue()
        answer = await rival(world, on_conflict=word, group=group, args=b"[%d]" % number)
        same(answer, Enqueued(job_id, False, True), "answer")
        row = await world.row(job_id)
        same((row["state"], row["turn"]), (State.READY, turn), f"its place after call {number}")


@case
async def a_job_that_replace_puts_into_another_group_or_rank_gets_a_new_turn(world: World) -> None:
    job_id = await world.enqueue(key="k")
    for fields in ({"priority": 1}, {"priority": 1, "group": "g"}, {"priority": 1, "group": "h"}, {"group": "h"}):
        before = (await world.row(job_id))["turn"]
        world.advance(1.0)
        await rival(world, on_conflict="replace", **fields)
        assert (await world.row(job_id))["turn"] > before, f"{fields}: its turn must be a new one"


@case
async def a_job_that_gets_a_new_turn_by_replace_takes_its_place_in_the_batch(world: World) -> None:
    job_id = await world.enqueue(key="k", priority=7)
    batch = [
        world.job(id="before"),
        world.job(id="again", key="k", on_conflict="replace"),
        world.job(id="after"),
    ]
    answers = await world.backend.enqueue(batch, now=world.now)
    same([answer.id for answer in answers], ["before", job_id, "after"], "answers")
    turns = [(await world.row(one))["turn"] for one in ("before", job_id, "after")]
    if not world.backend.sharded:  # each shard issues its own
        same(turns, sorted(turns), "turns")


@case
async def a_window_given_by_replace_counts_from_the_creation(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=1000.0)
    world.advance(30.0)
    await rival(world, on_conflict="replace", delay=1000.0, key_window=60.0)
    world.advance(29.0)
    await kept(world, job_id)
    world.advance(1.0)
    await world.enqueue(key="k")


@case_for_each(["in one batch", "one after the other"])
async def a_window_given_by_replace_may_have_passed_at_once(world: World, how: str) -> None:
    first = await world.enqueue(key="k", delay=1000.0)
    world.advance(100.0)
    jobs = [world.job(key="k", on_conflict="replace", key_window=60.0), world.job(key="k", on_conflict="replace")]
    batches = [jobs] if how == "in one batch" else [[job] for job in jobs]
    answers = [one for batch in batches for one in await world.backend.enqueue(batch, now=world.now)]
    same(answers, [Enqueued(first, False, True), Enqueued(jobs[1].id, True)], "answers")
    same(await holders(world), [jobs[1].id], "holders")


@case
async def replace_may_let_a_window_go_for_a_key_until_finished(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=1000.0, key_window=60.0)
    await rival(world, on_conflict="replace", delay=1000.0)
    world.advance(100.0)
    await kept(world, job_id)


NOT_UNSTARTED = sorted({State.RUNNING, *FINISHED})


@case_for_each(product(("replace", "debounce"), NOT_UNSTARTED), name=lambda p: f"{p[0]}, {p[1]}")
async def a_holder_that_has_started_is_kept_as_it_is(world: World, param: tuple[str, State]) -> None:
    word, state = param
    start = await world.put(state, key="k", key_window=WINDOW)
    await kept(world, start.id, on_conflict=word, args=b"[2]", delay=5.0, wait_max=1.0)


@case_for_each(["replace", "debounce"])
async def a_job_whose_window_has_passed_is_not_replaced_but_followed(world: World, word: str) -> None:
    first = await world.enqueue(key="k", key_window=60.0, args=b"[1]", delay=500.0)
    world.advance(60.0)
    second = world.job(key="k", key_window=60.0, args=b"[2]", on_conflict=word)
    same(await world.backend.enqueue([second], now=world.now), [Enqueued(second.id, True)], "answer")
    same((await world.get(first)).args, b"[1]", "arguments of the first")
    same(await holders(world), [second.id], "holders")
    await rival(world, on_conflict=word, args=b"[3]", key_window=60.0)
    same([(await world.get(job_id)).args for job_id in (first, second.id)], [b"[1]", b"[3]"], "the holder is replaced")


@case
async def replace_of_a_global_key_leaves_the_job_in_its_queue(world: World) -> None:
    job_id = await world.enqueue(key="k", key_scope="global")
    answer = await rival(world, on_conflict="replace", key_scope="global", queue="other", args=b"[2]", priority=3)
    same(answer, Enqueued(job_id, False, True), "answer")
    job = await world.get(job_id)
    same((job.queue, job.args, job.priority), ("default", b"[2]", 3), "the job")
    await world.claim_none(queues=("other",))
    await world.claim_one(job_id)


@case
async def replace_of_a_global_key_joins_the_group_of_its_own_queue(world: World) -> None:
    head = await world.enqueue(group="g")
    job_id = await world.enqueue(key="k", key_scope="global")
    await rival(world, on_conflict="replace", key_scope="global", queue="other", group="g")
    await world.is_in(job_id, State.WAITING)
    await world.end(await world.claim_one(head))
    await world.claim_one(job_id)


# ---------------------------------------------------------------------- debounce


@case_for_each(sorted(UNSTARTED))
async def debounce_pushes_an_unstarted_job_on(world: World, state: State) -> None:
    start = await world.put(state, key="k")
    group = (await world.get(start.id)).group
    world.advance(5.0)
    answer = await rival(world, on_conflict="debounce", delay=70.0, args=b"[2]", group=group)
    same(answer, Enqueued(start.id, False, True), "answer")
    job = await world.get(start.id)
    same((job.state, job.due_at, job.args), (State.SCHEDULED, world.now + 70.0, b"[2]"), "the job")
    same(await holders(world), [start.id], "holders")


@case
async def a_first_debounce_makes_a_job_like_any_other(world: World) -> None:
    job = world.job(key="k", on_conflict="debounce", delay=30.0, wait_max=100.0)
    same(await world.backend.enqueue([job], now=world.now), [Enqueued(job.id, True)], "answer")
    found = await world.get(job.id)
    same((found.due_at, found.due_max), (world.now + 30.0, world.now + 100.0), "its times")


@case
async def debounce_pushes_on_up_to_a_maximum_and_then_begins_anew(world: World) -> None:
    created = world.now
    fields: dict[str, Any] = {"on_conflict": "debounce", "delay": 30.0, "wait_max": 100.0}
    job_id = await world.enqueue(key="k", args=b"[0]", **fields)
    for n in range(1, 5):
        world.advance(20.0)
        await world.claim_none(lease=FOREVER)
        same(await rival(world, args=b"[%d]" % n, **fields), Enqueued(job_id, False, True), "answer")
        job = await world.get(job_id)
        same((job.due_at, job.due_max), (min(world.now + 30.0, created + 100.0), created + 100.0), "its times")
    world.advance(20.0)
    lease = await world.claim_one(job_id)
    same(lease.args, b"[4]", "arguments that run, at the maximum")
    await world.end(lease)
    second = world.job(key="k", **fields)
    same(await world.backend.enqueue([second], now=world.now), [Enqueued(second.id, True)], "the next one")
    same((await world.get(second.id)).due_max, world.now + 100.0, "has a maximum of its own")


@case
async def debounce_without_a_maximum_pushes_on_for_ever(world: World) -> None:
    job_id = await world.enqueue(key="k", on_conflict="debounce", delay=30.0)
    for _ in range(20):
        world.advance(29.0)
        await rival(world, on_conflict="debounce", delay=30.0)
        await world.claim_none(lease=FOREVER)
    same((await world.get(job_id)).due_at, world.now + 30.0, "due_at")


@case_for_each([None, 5.0, 9000.0], name=lambda wait_max: f"a later call says {wait_max}")
async def the_maximum_is_that_of_the_first_call(world: World, wait_max: float | None) -> None:
    created = world.now
    job_id = await world.enqueue(key="k", delay=30.0, wait_max=100.0)  # "keep" sets it as well
    world.advance(20.0)
    await rival(world, on_conflict="debounce", delay=200.0, wait_max=wait_max)
    job = await world.get(job_id)
    same((job.due_at, job.due_max), (created + 100.0, created + 100.0), "its times")


@case
async def a_job_made_without_a_maximum_never_gets_one(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=30.0)
    await rival(world, on_conflict="debounce", delay=200.0, wait_max=50.0)
    job = await world.get(job_id)
    same((job.due_at, job.due_max), (world.now + 200.0, None), "its times")


@case
async def replace_is_not_bound_by_the_maximum(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=30.0, wait_max=100.0)
    due_max = (await world.get(job_id)).due_max
    await rival(world, on_conflict="replace", delay=500.0)
    job = await world.get(job_id)
    same((job.due_at, job.due_max), (world.now + 500.0, due_max), "its times")


@case_for_each(["delay", "due_at"])
async def an_expiry_counts_from_where_the_push_ended(world: World, how: str) -> None:
    created = world.now
    job_id = await world.enqueue(key="k", delay=30.0, wait_max=100.0)
    later: dict[str, Any] = {"delay": 400.0} if how == "delay" else {"due_at": world.now + 400.0}
    await rival(world, on_conflict="debounce", expires=20.0, **later)
    job = await world.get(job_id)
    same((job.due_at, job.expires_at), (created + 100.0, created + 120.0), "its times")


@case
async def a_push_after_the_maximum_lets_the_job_run_with_the_newest_arguments(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=90.0, wait_max=100.0, expires=20.0)
    world.advance(150.0)  # nobody promoted it meanwhile, nor found that it expired
    answer = await rival(world, on_conflict="debounce", delay=90.0, args=b"[2]", expires=20.0)
    same(answer, Enqueued(job_id, False, True), "answer")
    job = await world.get(job_id)
    same((job.state, job.due_at, job.args), (State.READY, world.now, b"[2]"), "the job")
    same(job.expires_at, world.now + 20.0, "a call that just came has all its time to be claimed")
    await world.claim_one(job_id)


@case
async def a_push_may_bring_a_job_forward(world: World) -> None:
    job_id = await world.enqueue(key="k", delay=90.0)
    await rival(world, on_conflict="debounce", delay=10.0)
    same((await world.get(job_id)).due_at, world.now + 10.0, "due_at")
    await rival(world, on_conflict="debounce")
    await world.claim_one(job_id)


@case
async def a_push_of_a_groups_head_lets_the_next_of_the_group_come(world: World) -> None:
    head = await world.enqueue(key="k", group="g")
    behind = await world.enqueue(group="g")
    await rival(world, on_conflict="debounce", delay=60.0, group="g")
    same(await world.states([head, behind]), [State.SCHEDULED, State.READY], "states")
    await world.claim_one(behind)


# ---------------------------------------------------------------------- raise


@case_for_each(sorted(State))
async def raise_is_refused_within_a_window_whatever_became_of_the_job(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_window=WINDOW)
    group = (await world.get(start.id)).group
    batch = [world.job(), world.job(key="k", on_conflict="raise", group=group)]
    async with world.refused(DuplicateJob, "a second job within the window") as raised:
        await world.backend.enqueue(batch, now=world.now)
    [error] = raised
    assert isinstance(error, DuplicateJob), "the error of a duplicate"
    same((error.key, error.existing_id), ("k", start.id), "what the error carries")


@case_for_each(["a window that has passed", "a key until started"])
async def raise_is_no_conflict_where_nobody_holds_the_key(world: World, how: str) -> None:
    fields: dict[str, Any] = {"key_window": 60.0} if "window" in how else {"key_until": "started"}
    first = await world.enqueue(key="k", **fields)
    await world.claim_one(first, lease=FOREVER)
    world.advance(60.0)
    second = world.job(key="k", on_conflict="raise")
    same(await world.backend.enqueue([second], now=world.now), [Enqueued(second.id, True)], "answer")


@case
async def raise_hears_of_a_global_key_in_another_queue(world: World) -> None:
    await world.enqueue(key="k", key_scope="global")
    async with world.refused(DuplicateJob, "a second job of a global key"):
        await rival(world, key_scope="global", queue="other", on_conflict="raise")
    await world.enqueue(key="k", queue="other", on_conflict="raise")


# ---------------------------------------------------------------------- several in one batch


def _two(world: World, word: str, **fields: Any) -> list[NewJob]:
    """Two jobs of one key, the second with that word on conflicts."""
    return [world.job(key="k", args=b"[1]", **fields), world.job(key="k", args=b"[2]", on_conflict=word, **fields)]


@case_for_each(["keep", "replace", "debounce"])
async def the_second_of_a_batch_meets_the_first_as_if_it_came_later(world: World, word: str) -> None:
    first, second = _two(world, word, delay=20.0, key_until="started")
    answers = await world.backend.enqueue([first, second], now=world.now)
    same(answers, [Enqueued(first.id, True), Enqueued(first.id, False, word != "keep")], "answers")
    same((await world.get(first.id)).args, b"[1]" if word == "keep" else b"[2]", "arguments")
    same(await holders(world), [first.id], "holders")


@case
async def raise_hears_of_a_key_taken_earlier_in_its_batch(world: World) -> None:
    old = await world.enqueue(key="k", key_window=10.0)
    world.advance(10.0)
    batch = [world.job(), *_two(world, "raise", key_window=10.0)]
    async with world.refused(DuplicateJob, "a batch with a key twice"):
        await world.backend.enqueue(batch, now=world.now)
    same(await holders(world), [old], "nobody took the key")


@case
async def a_batch_may_hold_one_key_in_both_scopes_and_in_two_queues(world: World) -> None:
    jobs = [world.job(key="k"), world.job(key="k", key_scope="global"), world.job(key="k", queue="other")]
    again = [world.job(key="k"), world.job(key="k", key_scope="global"), world.job(key="k", queue="other")]
    answers = await world.backend.enqueue([*jobs, *again], now=world.now)
    made = [Enqueued(job.id, True) for job in jobs]
    same(answers, [*made, *(Enqueued(job.id, False) for job in jobs)], "answers")


@case
async def a_job_replaced_twice_in_one_batch_has_the_last_call(world: World) -> None:
    job_id = await world.enqueue(key="k")
    batch = [world.job(key="k", args=b"[%d]" % n, on_conflict="replace", delay=10.0 * n) for n in (1, 2, 3)]
    answers = await world.backend.enqueue(batch, now=world.now)
    same(answers, [Enqueued(job_id, False, True)] * 3, "answers")
    job = await world.get(job_id)
    same((job.args, job.due_at, job.state), (b"[3]", world.now + 30.0, State.SCHEDULED), "the job")
