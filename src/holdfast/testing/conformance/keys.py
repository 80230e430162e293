"""Conformance of keys: which job holds one, for how long and over which queues, and which verbs never check it.

Called by run_case. What enqueue does where a key is held is in key_conflicts, coming back with a key in key_returns.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...errors import JobNotFound, StateConflict
from ...lifecycle import FINISHED, LIVE, TRANSITIONS, UNSTARTED, Ending, State, Verb
from ...records import Enqueued, Lease, Mark
from .compare import changed_columns, same
from .registry import case, case_for_each
from .transitions import ACTS, CHANGES
from .world import DAY, FOREVER, World

WINDOW = 5000.0  # longer than anything a starting state needs


async def rival(world: World, **fields: Any) -> Enqueued:
    """Enqueue another job of key k, which may be refused, kept or made."""
    [answer] = await world.backend.enqueue([world.job(**{"key": "k", **fields})], now=world.now)
    return answer


async def kept(world: World, holder: str, **fields: Any) -> None:
    """Another job of key k must be answered with the holder and change nothing."""
    async with world.unchanged(f"another job of a key that {holder} holds"):
        same(await rival(world, **fields), Enqueued(holder, False), "answer")


async def holders(world: World) -> list[str]:
    """The ids of all jobs whose flag says that they hold their key."""
    return [row["id"] for row in (await world.tables())["jobs"] if row["holds_key"]]


# ---------------------------------------------------------------------- until it finished, until it started


@case
async def a_new_job_holds_its_key_and_one_without_a_key_holds_none(world: World) -> None:
    keyed = await world.enqueue(key="k")
    await world.enqueue(key_window=60.0, key_until="started")
    same(await holders(world), [keyed], "holders")
    same((await world.get(keyed)).holds_key, True, "the flag that is shown")


@case
async def how_a_key_holds_is_stored_with_its_job(world: World) -> None:
    plain = await world.get(await world.enqueue())
    same((plain.key_scope, plain.key_until, plain.key_window), ("queue", "finished", None), "unless told otherwise")
    same((plain.due_max, plain.on_expire), (None, "bury"), "unless told otherwise")
    fields: dict[str, Any] = {"key_scope": "global", "key_until": "started", "key_window": 12.5, "on_expire": "drop"}
    job = await world.get(await world.enqueue(key="k", wait_max=90.0, **fields))
    for name, value in fields.items():
        same(getattr(job, name), value, f"stored {name}")
    same(job.due_max, world.now + 90.0, "due_max")
    [found] = [row for row in (await world.tables())["jobs"] if row["key"] == "k"]
    same({name: found[name] for name in fields}, fields, "in the dump")


@case_for_each(sorted(State))
async def a_key_is_held_until_its_job_has_finished(world: World, state: State) -> None:
    start = await world.put(state, key="k")
    same((await world.get(start.id)).holds_key, state in LIVE, "the flag")


@case_for_each(sorted(UNSTARTED))
async def a_key_until_started_is_held_by_a_job_that_has_not(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_until="started")
    same((await world.get(start.id)).holds_key, True, "the flag")
    await kept(world, start.id, group=(await world.get(start.id)).group)


@case
async def a_key_until_started_is_free_from_the_first_lease(world: World) -> None:
    first = await world.enqueue(key="k", key_until="started")
    await world.claim_one(first)
    same((await world.get(first)).holds_key, False, "the flag of the running job")
    second = await world.enqueue(key="k", key_until="started")
    same(await holders(world), [second], "holders")
    await kept(world, second)


@case
async def with_keys_until_started_one_runs_and_one_waits_with_the_newest_arguments(world: World) -> None:
    fields: dict[str, Any] = {"key_until": "started", "on_conflict": "replace"}
    first = await world.enqueue(key="k", args=b"[0]", **fields)
    lease = await world.claim_one(first)
    answers = [await rival(world, id=f"call-{n}", args=b"[%d]" % n, **fields) for n in range(1, 5)]
    again = Enqueued("call-1", False, True)
    same(answers, [Enqueued("call-1", True), again, again, again], "answers")
    same((await world.get("call-1")).args, b"[4]", "arguments of the one that waits")
    same((await world.get(first)).args, b"[0]", "arguments of the one that runs")
    await world.end(lease)
    same((await world.claim_one("call-1")).args, b"[4]", "arguments that run next")
    await world.claim_none()


@case
async def a_key_is_compared_to_the_letter(world: World) -> None:
    names = ("k", "K", "k ", " k", "kk", "ké", "%", "_")
    made = [await world.enqueue(key=name) for name in names]
    for name, job_id in zip(names, made, strict=True):
        same(await rival(world, key=name), Enqueued(job_id, False), f"another job of the key {name!r}")


@case_for_each(["queue", "global"])
async def names_that_read_alike_in_a_row_are_different_keys(world: World, scope: str) -> None:
    for queue, task, key in (
        ("a", "b:c", "d"),
        ("a:b", "c", "d"),
        ("a", "b", "c:d"),
        ("a", "b/c", "d"),
        ("a", "b", "c/d"),
        ("a", "b|c", "d"),
        ("a", "b", "c|d"),
    ):
        await world.enqueue(queue=queue, task=task, key=key, key_scope=scope)
    assert len(await holders(world)) == 7, "every one of them holds a key of its own"


# ---------------------------------------------------------------------- never asked again

GOES_ON = ("retry", "snooze", "release", "release for later", "stall", "recover", "retire", "not named")


async def _goes_on(world: World, lease: Lease, how: str, worker: str = "w1") -> None:
    """The lease ends and its job does not."""
    if how in ("retry", "snooze", "stall"):
        ending = {"retry": Ending.RETRY, "snooze": Ending.SNOOZED, "stall": Ending.STALLED}[how]
        await world.end(lease, ending)
    elif how.startswith("release"):
        await world.give_back(lease, 10.0 if "later" in how else 0.0)
    elif how == "recover":
        await world.backend.recover(dead=[worker], now=world.now)
    elif how == "retire":
        await world.backend.retire(worker, now=world.now)
    else:
        same((await world.renew(worker)).released, (lease.id,), "given back by renewing")


@case_for_each(product(("started", "window"), GOES_ON), name=lambda p: f"{p[1]}, {p[0]}")
async def a_job_whose_key_another_holds_goes_on_all_the_same(world: World, param: tuple[str, str]) -> None:
    kind, how = param
    fields: dict[str, Any] = {"key_until": "started"} if kind == "started" else {"key_window": 20.0}
    first = await world.enqueue(key="k", **fields)
    lease = await world.claim_one(first, lease=FOREVER)
    world.advance(21.0)
    second = await world.enqueue(key="k", **fields)
    await _goes_on(world, lease, how)
    assert (await world.state(first)).live, f"{how} leaves the job on its way"
    same(await holders(world), [second], "holders")
    world.advance(15.0)  # a back-off is over, the second window is not
    same(sorted(await world.claim_ids(5, "w2", lease=FOREVER)), [first, second], "both run")
    same(await holders(world), [second] if kind == "window" else [], "holders while both run")


@case
async def a_key_until_finished_is_held_through_every_attempt(world: World) -> None:
    job_id = await world.enqueue(key="k", max_stalls=9)
    for how in GOES_ON:
        lease = await world.claim_one(job_id, worker=f"who will {how}", lease=FOREVER)
        await _goes_on(world, lease, how, f"who will {how}")
        await kept(world, job_id)
        world.advance(15.0)


# ---------------------------------------------------------------------- windows


@case_for_each(sorted(State))
async def a_window_holds_whatever_became_of_its_job(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_window=WINDOW)
    same((await world.get(start.id)).holds_key, True, "the flag")
    await kept(world, start.id, group=(await world.get(start.id)).group, key_window=WINDOW)


@case_for_each(sorted(State))
async def a_window_that_has_passed_lets_the_next_job_in(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_window=WINDOW)
    before = await world.row(start.id)
    world.advance(WINDOW)
    same(await holders(world), [start.id], "the flag stays while nobody takes the key")
    second = await world.enqueue(key="k", group=before["group"])
    after = await world.row(start.id)
    same(changed_columns(before, after), {"holds_key"}, "what changed of the first job")
    same(await holders(world), [second], "holders")


@case
async def a_window_has_passed_at_its_very_end(world: World) -> None:
    first = await world.enqueue(key="k", key_window=60.0)
    world.advance(59.5)
    await kept(world, first)
    world.advance(0.5)
    await world.enqueue(key="k")


@case
async def a_window_counts_from_the_creation_and_not_from_the_latest_call(world: World) -> None:
    first = await world.enqueue(key="k", key_window=60.0)
    for _ in range(2):
        world.advance(25.0)
        await kept(world, first, key_window=60.0)
    world.advance(10.0)
    await world.enqueue(key="k", key_window=60.0)


@case
async def a_window_lets_one_call_through_each_time(world: World) -> None:
    made = []
    for _ in range(12):
        made.append((await rival(world, key_window=30.0)).created)
        world.advance(10.0)
    same(made, [True, False, False] * 4, "created, a call every 10 s, a window of 30 s")
    same(len((await world.tables())["jobs"]), 4, "jobs")


@case
async def with_a_window_the_start_of_the_job_frees_nothing(world: World) -> None:
    first = await world.enqueue(key="k", key_window=60.0, key_until="started")
    lease = await world.claim_one(first, lease=FOREVER)
    await kept(world, first)
    await world.end(lease)
    await kept(world, first)
    world.advance(60.0)
    await world.enqueue(key="k")


@case
async def a_window_that_passes_under_a_running_job_takes_nothing_from_it(world: World) -> None:
    start = await world.put(State.RUNNING, worker="w1", key="k", key_window=10.0)
    world.advance(11.0)
    second = await world.enqueue(key="k", key_window=1000.0)
    await world.end(start.held, value=b'"done"')
    same((await world.get(start.id)).value, b'"done"', "value of the first")
    await kept(world, second)


@case
async def sweeps_leave_the_flag_of_a_passed_window_alone(world: World) -> None:
    job_id = await world.enqueue(key="k", key_window=10.0)
    await world.end(await world.claim_one(job_id), retain=400 * DAY)
    world.advance(DAY)
    async with world.unchanged("a round of sweeps"):
        await world.backend.promote(now=world.now)
        await world.backend.refill(now=world.now)
        await world.backend.prune(now=world.now)
    same(await holders(world), [job_id], "holders")


ENDED = ("succeeded", "cancelled", "discarded", "superseded", "dropped", "cancelled before its start")


async def _ended(world: World, how: str) -> str:
    """A finished job with a window of three days, whose retention is as short as can be."""
    expires = {"expires": 5.0, "on_expire": "drop"} if how == "dropped" else {}
    job_id = await world.enqueue(key="k", key_window=3 * DAY, **expires)
    if how == "dropped":
        world.advance(6.0)
        same((await world.backend.promote(now=world.now)).expired, 1, "dropped")
    elif how == "cancelled before its start":
        await world.backend.cancel(job_id, now=world.now)
    else:
        lease = await world.claim_one(job_id, lease=FOREVER)
        ending = Ending(how) if how in ("succeeded", "cancelled") else Ending.BURIED
        await world.end(lease, ending, retain=0.0)
    if how == "discarded":
        await world.backend.discard(job_id, now=world.now)
    elif how == "superseded":  # by a job that dies with the same key in the other scope
        await world.end(await world.claim_one(await world.enqueue(key="k", key_scope="global")), Ending.BURIED)
    assert (await world.state(job_id)).finished, "it has finished"
    return job_id


@case_for_each(ENDED)
async def a_job_is_not_pruned_before_its_window_has_passed(world: World, how: str) -> None:
    job_id = await _ended(world, how)
    ends = (await world.get(job_id)).created_at + 3 * DAY
    same((await world.row(job_id))["prune_at"], ends, "prune_at")
    world.now = ends - 1.0
    async with world.unchanged("prune within the window"):
        same(await world.backend.prune(now=world.now), 0, "pruned")
        same(await world.backend.prune(older_than=0.0, now=world.now), 0, "pruned on request")
    await kept(world, job_id)
    world.now = ends + 1.0
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")
    await world.enqueue(key="k")


@case
async def a_window_shorter_than_the_retention_changes_nothing_about_it(world: World) -> None:
    job_id = await world.enqueue(key="k", key_window=10.0)
    await world.end(await world.claim_one(job_id), retain=5000.0)
    same((await world.row(job_id))["prune_at"], world.now + 5000.0, "prune_at")


@case_for_each(sorted(FINISHED))
async def a_job_brought_back_is_kept_as_long_as_its_window_again(world: World, state: State) -> None:
    start = await world.put(state, key="k", key_window=WINDOW)
    await world.backend.retry(start.id, now=world.now)
    await world.end(await world.claim_one(start.id), retain=0.0)
    created = (await world.get(start.id)).created_at
    same((await world.row(start.id))["prune_at"], created + WINDOW, "prune_at")


# ---------------------------------------------------------------------- scope


@case
async def a_global_key_is_one_over_all_queues(world: World) -> None:
    first = await world.enqueue(key="k", key_scope="global")
    await kept(world, first, key_scope="global", queue="other")
    await kept(world, first, key_scope="global")
    await world.end(await world.claim_one(first))
    second = await world.enqueue(key="k", key_scope="global", queue="other")
    await kept(world, second, key_scope="global")


@case
async def a_global_key_belongs_to_its_task(world: World) -> None:
    await world.enqueue(key="k", key_scope="global")
    await world.enqueue(key="k", key_scope="global", task="other")
    await world.enqueue(key="l", key_scope="global")
    same(len(await holders(world)), 3, "holders")


@case
async def the_two_scopes_know_nothing_of_each_other(world: World) -> None:
    wide = await world.enqueue(key="k", key_scope="global")
    here = await world.enqueue(key="k")
    there = await world.enqueue(key="k", queue="other")
    await kept(world, here)
    await kept(world, there, queue="other")
    await kept(world, wide, key_scope="global")
    await world.end(await world.claim_one(wide))
    same(await holders(world), [here, there], "holders once the global one has finished")
    await world.enqueue(key="k", key_scope="global")
    await kept(world, here)


# ---------------------------------------------------------------------- freed by an operator


@case_for_each(sorted(LIVE))
async def a_freed_key_is_the_next_jobs_and_its_former_holder_goes_on(world: World, state: State) -> None:
    """R101."""
    former = await world.put(state, key="k")
    before = await world.row(former.id)
    freed = await world.backend.free_key(former.id, world.now, by="ann")
    same((freed.holds_key, freed.state), (False, state), "the former holder")
    same(changed_columns(before, await world.row(former.id)) - {"marks"}, {"holds_key"}, "what changed")
    same((await world.backend.marks(former.id))[-1], Mark(kind="free_key", at=world.now, by="ann"), "mark")
    async with world.unchanged("freeing what is free"):
        await world.backend.free_key(former.id, world.now, by="bob")
    heir = (await rival(world, queue=freed.queue, group=freed.group)).id  # a key is unique within a shard
    assert heir != former.id
    if state is State.RUNNING:
        assert former.lease is not None
        await world.end(former.lease)
        await world.is_in(former.id, State.SUCCEEDED)
    else:
        await world.backend.cancel(former.id, world.now)
    await kept(world, heir, queue=freed.queue, group=freed.group)
    async with world.refused(StateConflict, "retry while the heir is live"):
        await world.backend.retry(former.id, world.now)


@case
async def a_window_can_be_freed_after_its_job_has_finished(world: World) -> None:
    done = await world.put(State.SUCCEEDED, key="k", key_window=WINDOW)
    await kept(world, done.id)
    await world.backend.free_key(done.id, world.now)
    heir = (await rival(world, key_window=WINDOW)).id
    same(await holders(world), [heir], "holders")


@case
async def a_job_that_comes_back_takes_its_freed_key_again(world: World) -> None:
    job = await world.enqueue(key="k")
    await world.backend.free_key(job, world.now)
    await world.backend.bury(job, "", world.now)
    await world.backend.revive(job, world.now)
    await kept(world, job)


@case
async def freeing_a_key_is_nothing_to_a_job_without_one_and_refused_for_nobody(world: World) -> None:
    job = await world.enqueue()
    async with world.unchanged("freeing no key"):
        await world.backend.free_key(job, world.now)
    async with world.refused(JobNotFound, "an unknown job"):
        await world.backend.free_key("nobody", world.now)


# ----------------------------------------------------------------------------------------------------------------------
# The key's flag to every legal verb: what a verb does to who holds the key, and that it does no more.


# that a key until finished is held exactly while its job is live is judged after every case
KINDS: dict[str, dict[str, Any]] = {
    "until started": {"key_until": "started"},
    "within its window": {"key_window": 1_000_000.0},
}
LEGAL = [
    (verb, state, kind)
    for verb in ACTS
    if verb not in (Verb.REFILL, Verb.PRUNE, Verb.BEGIN, Verb.RENEW, Verb.REPORT)
    for state in State
    if state in TRANSITIONS[verb]
    for kind in KINDS
]
AGAIN = (Verb.REVIVE, Verb.RETRY)


def _holds(kind: str, verb: Verb, before: State, after: State) -> bool:
    """Whether a job still, or again, holds its key."""
    if kind == "within its window":
        return True
    return verb in AGAIN or (before in UNSTARTED and after in UNSTARTED)


@case_for_each(LEGAL, name=lambda p: f"{p[0]} from {p[1]}, {p[2]}")
async def a_verb_leaves_the_key_where_it_belongs(world: World, param: tuple[Verb, State, str]) -> None:
    verb, state, kind = param
    start = await world.put(state, key="k", expires=100.0 if verb is Verb.EXPIRE else None, **KINDS[kind])
    await world.register("actor")
    before = await world.row(start.id)
    assert await ACTS[verb](world, start), f"{verb} from {state} is legal and was refused"
    after = await world.row(start.id)
    same(after["holds_key"], _holds(kind, verb, state, State(after["state"])), f"the flag after {verb}")
    stray = changed_columns(before, after) - CHANGES[verb] - {"holds_key"}
    same(stray, set(), f"what {verb} changed besides")
