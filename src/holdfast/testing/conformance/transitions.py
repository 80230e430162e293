"""Conformance to lifecycle.TRANSITIONS: every verb from every state, grouped and not, legal and refused.

Called by run_case. A legal verb must end in a state the table allows and change only what it is for; a refused one must
say so in the contract's way and leave the store as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

from ...errors import JobNotFound, StateConflict
from ...lifecycle import SETTLES, Ending, State, Verb, allowed
from ...records import Answer, Edit, Held, JobRecord
from ...steps import NewStep
from .compare import CALLED, changed_columns, row_of, same, same_tables
from .registry import case, case_for_each
from .world import DAY, FOREVER, NO_TOKEN, Start, World

# An act does the verb and answers True when the store took it, False when the store refused it.
Act = Callable[[World, Start], Awaitable[bool]]


async def _promote(world: World, start: Start) -> bool:
    world.advance(1001.0)
    return (await world.backend.promote(now=world.now)).due > 0


async def _refill(world: World, start: Start) -> bool:
    return await world.backend.refill(now=world.now) > 0


async def _claim(world: World, start: Start) -> bool:
    return start.id in await world.claim_ids(10, "actor")


async def _begin(world: World, start: Start) -> bool:
    return await world.begin(start.held) is Answer.OK


async def _renew(world: World, start: Start) -> bool:
    worker = "holder" if start.state is State.RUNNING else "actor"
    return start.id not in (await world.renew(worker, [start.held])).lost


async def _report(world: World, start: Start) -> bool:
    return await world.report(start.held, progress=0.5, text="half", lines=("a",)) is Answer.OK


async def _checkpoint(world: World, start: Start) -> bool:
    step = NewStep(kind="step", name="one", number=1, value=b"1")
    return await world.backend.checkpoint(start.held, [step], now=world.now) is Answer.OK


async def _release(world: World, start: Start) -> bool:
    return await world.release(start.held) is Answer.OK


async def _recover(world: World, start: Start) -> bool:
    world.advance(31.0)
    await world.renew("actor")  # the one who looks is alive
    return start.id in [r.id for r in await world.backend.recover(now=world.now)]


async def _expire(world: World, start: Start) -> bool:
    world.advance(10_000.0)
    for _ in range(3):  # a due and expired job may take one pass to come into play, one to go
        await world.backend.promote(now=world.now)
    return (await world.get(start.id)).reason == "expired"


async def _prune(world: World, start: Start) -> bool:
    world.advance(400 * DAY)
    return await world.backend.prune(now=world.now) > 0


def _settle(ending: Ending) -> Act:
    async def act(world: World, start: Start) -> bool:
        return await world.settle(start.held, ending) is Answer.OK

    return act


def _operate(method: str) -> Act:
    async def act(world: World, start: Start) -> bool:
        more: tuple[Any, ...] = {"bury": ("told to",), "signal": ("paid", b"1")}.get(method, ())
        try:
            answer: JobRecord = await getattr(world.backend, method)(start.id, *more, now=world.now)
        except StateConflict as refusal:
            same((refusal.job_id, refusal.state), (start.id, start.state), f"what the refusal of {method} carries")
            return False
        same(answer, await world.get(start.id), f"{method} answers the job as it is now")
        return True

    return act


async def _edit(world: World, start: Start) -> bool:
    changes = Edit(args=b'{"n":1}', priority=7)
    try:
        answer = await world.backend.edit(start.id, changes, now=world.now)
    except StateConflict as refusal:
        same((refusal.job_id, refusal.state), (start.id, start.state), "what the refusal of edit carries")
        return False
    same(answer, await world.get(start.id), "edit answers the job as it is now")
    same((answer.args, answer.priority), (changes.args, changes.priority), "the new values")
    return True


ACTS: dict[Verb, Act] = {
    Verb.PROMOTE: _promote,
    Verb.REFILL: _refill,
    Verb.CLAIM: _claim,
    Verb.BEGIN: _begin,
    Verb.RENEW: _renew,
    Verb.REPORT: _report,
    Verb.CHECKPOINT: _checkpoint,
    Verb.RELEASE: _release,
    Verb.RECOVER: _recover,
    Verb.EXPIRE: _expire,
    Verb.CANCEL: _operate("cancel"),
    Verb.BURY: _operate("bury"),
    Verb.RUN_NOW: _operate("run_now"),
    Verb.SIGNAL: _operate("signal"),
    Verb.REVIVE: _operate("revive"),
    Verb.RETRY: _operate("retry"),
    Verb.EDIT: _edit,
    Verb.PRUNE: _prune,
    **{verb: _settle(ending) for ending, verb in SETTLES.items()},
}

# What a verb may change of its job. Everything else, and every other job, stays.
_PLACE = {"state", "turn", "rank", "lane", "held"}
_LEASE = {"worker", "begun", "token", "claim_call", "cancel_requested"}
_END = {"finished_at", "prune_at"}
_COUNTS = {"attempts", "failures", "stalls", "shared_stalls"}
_RESET = _PLACE | _END | _COUNTS | {"due_at", "expires_at", "reason", "value", "started_at", "begun", "suspect"}
_RESET |= {"progress", "progress_text", "cancel_requested", "errors"}
CHANGES: dict[Verb, set[str]] = {
    Verb.PROMOTE: _PLACE,
    Verb.CLAIM: _PLACE | _LEASE | {"fence", "started_at"},
    Verb.BEGIN: {"begun"},
    Verb.RENEW: set(),
    Verb.REPORT: {"progress", "progress_text"},
    Verb.CHECKPOINT: set(),
    Verb.SETTLE_SUCCEEDED: _PLACE | _LEASE | _END | {"attempts", "value"},
    Verb.SETTLE_RETRY: _PLACE | _LEASE | {"attempts", "failures", "due_at", "errors"},
    Verb.SETTLE_SNOOZED: _PLACE | _LEASE | {"attempts", "due_at"},
    Verb.SETTLE_BURIED: _PLACE | _LEASE | _END | {"attempts", "failures", "errors", "reason"},
    Verb.SETTLE_CANCELLED: _PLACE | _LEASE | _END | {"attempts"},
    Verb.SETTLE_STALLED: _PLACE | _LEASE | {"attempts", "shared_stalls", "suspect", "errors"},
    Verb.RELEASE: _PLACE | _LEASE,
    Verb.RECOVER: _PLACE | _LEASE | {"attempts", "stalls", "suspect", "errors"},
    Verb.EXPIRE: _PLACE | _END | {"reason", "errors"},
    Verb.CANCEL: _PLACE | _END | {"cancel_requested"},
    Verb.BURY: _PLACE | _END | {"reason", "errors"},
    Verb.RUN_NOW: _PLACE | {"due_at"},
    Verb.SIGNAL: set(),  # steps.py has jobs that wait for it
    Verb.REVIVE: _RESET - {"errors"},
    Verb.RETRY: _RESET,
    Verb.EDIT: _PLACE | {"args", "priority"},
}
WHERE: dict[str, str | None] = {"alone": None, "in a group": "g"}
FENCED = (*SETTLES.values(), Verb.BEGIN, Verb.REPORT, Verb.CHECKPOINT, Verb.RELEASE)
STARTS = [
    (verb, state, where)
    for verb, state, where in product(ACTS, State, WHERE)
    if not (state is State.WAITING and where == "alone")
    and (verb, state) not in ((Verb.REFILL, State.WAITING), (Verb.REFILL, State.READY))
    and verb is not Verb.PRUNE
]


async def _stage(world: World, verb: Verb, state: State, where: str) -> Start:
    """The job in its state, with an idle worker to act and, elsewhere, bystanders nobody may touch."""
    expires = 100.0 if verb is Verb.EXPIRE else None
    start = await world.put(state, group=WHERE[where] or ("g" if state is State.WAITING else None), expires=expires)
    await world.enqueue(queue="elsewhere")
    await world.enqueue_many(2, queue="elsewhere", group="g", key=None)
    await world.claim(1, "bystander", lease=FOREVER, queues=("elsewhere",))
    await world.register("actor")
    return start


@case_for_each(STARTS, name=lambda p: f"{p[0]} from {p[1]}, {p[2]}")
async def a_verb_does_what_the_table_says(world: World, param: tuple[Verb, State, str]) -> None:
    verb, state, where = param
    start = await _stage(world, verb, state, where)
    goal = allowed(verb, state)
    before = await world.tables()
    taken = await ACTS[verb](world, start)
    after = await world.tables()
    if goal is None:
        assert not taken, f"{verb} from {state} must be refused"
        same_tables(_without(before), _without(after), f"{verb} from {state}, refused")
        return
    assert taken, f"{verb} from {state} is legal and was refused"
    old, new = row_of(before, "jobs", start.id), row_of(after, "jobs", start.id)
    assert old is not None and new is not None, f"{verb} must not remove the job"
    assert new["state"] in goal, f"{verb} from {state} led to {new['state']}, allowed: {sorted(goal)}"
    stray = changed_columns(old, new) - CHANGES[verb]
    assert not stray, f"{verb} from {state} changed {sorted(stray)}: {[(c, old[c], new[c]) for c in stray]}"
    others = [[row for row in tables["jobs"] if row["id"] != start.id] for tables in (before, after)]
    same(others[1], others[0], f"every other job after {verb}")


def _without(tables: dict[str, list[dict[str, object]]]) -> dict[str, list[dict[str, object]]]:
    """The tables without what a worker's call moves of its own row."""
    hidden = CALLED["workers"]
    workers = [{c: v for c, v in row.items() if c not in hidden} for row in tables["workers"]]
    return {**tables, "workers": workers}


@case_for_each(
    [start for start in STARTS if start[0] in FENCED and start[1] is State.RUNNING],
    name=lambda p: f"{p[0]}, {p[2]}",
)
async def a_verb_about_a_lease_needs_its_token(world: World, param: tuple[Verb, State, str]) -> None:
    verb, state, where = param
    start = await _stage(world, verb, state, where)
    stranger = Start(id=start.id, state=state)
    same(stranger.held, Held(start.id, NO_TOKEN), "a token nobody was given")
    async with world.unchanged(f"{verb} with a made-up token"):
        assert not await ACTS[verb](world, stranger), f"{verb} with a made-up token must be refused"


@case_for_each(product(State, WHERE), name=lambda p: f"{p[0]}, {p[1]}")
async def enqueue_of_a_known_id_changes_nothing_in_any_state(world: World, param: tuple[State, str]) -> None:
    state, where = param
    start = await world.put(state, group=WHERE[where] or ("g" if state is State.WAITING else None), key="k")
    repeat = world.job(id=start.id, args=b"[9]", priority=50, key="k")
    async with world.unchanged(f"enqueue of an id that is {state}"):
        [answer] = await world.backend.enqueue([repeat], now=world.now)
    same((answer.id, answer.created, answer.replaced), (start.id, False, False), "answer")


@case_for_each(["now", "later", "now, in a busy group", "later, in a busy group"])
async def enqueue_leads_where_the_table_says(world: World, when: str) -> None:
    if "busy" in when:
        await world.put(State.RUNNING, group="g")
    fields = {"group": "g" if "busy" in when else None, "delay": 60.0 if "later" in when else None}
    state = await world.state(await world.enqueue(**fields))
    goal = allowed(Verb.ENQUEUE, None)
    assert goal is not None and state in goal, f"a new job is {state}"
    expected = State.SCHEDULED if "later" in when else State.WAITING if "busy" in when else State.READY
    same(state, expected, "state of the new job")


@case_for_each(product(State, ("kept", "over")), name=lambda p: f"{p[0]}, retention {p[1]}")
async def prune_takes_what_the_table_says(world: World, param: tuple[State, str]) -> None:
    state, retention = param
    start = await world.put(state)
    if state is State.DEAD:
        await world.backend.discard(start.id, now=world.now)
    world.advance(400 * DAY if retention == "over" else 60.0)
    gone = retention == "over" and allowed(Verb.PRUNE, state) is not None
    same(await world.backend.prune(now=world.now), int(gone), "pruned")
    same(await world.backend.get(start.id) is None, gone, "gone")


@case_for_each(["cancel", "bury", "run_now", "revive", "retry", "edit", "delete", "discard"])
async def an_operators_verb_on_an_unknown_job_is_not_found(world: World, method: str) -> None:
    await world.enqueue()
    more = {"bury": ("told to",), "edit": (Edit(priority=1),)}.get(method, ())
    async with world.refused(JobNotFound, method) as raised:
        await getattr(world.backend, method)("nobody", *more, now=world.now)
    same(getattr(raised[0], "job_id", None), "nobody", "what the error carries")


@case
async def cancelling_twice_is_cancelling_once(world: World) -> None:
    running = await world.put(State.RUNNING)
    for job_id in (running.id, await world.enqueue(delay=5.0)):
        await world.backend.cancel(job_id, now=world.now)
        world.advance(1.0)
        async with world.unchanged("a second cancel"):
            await world.backend.cancel(job_id, now=world.now)


@case
async def a_refill_brings_waiting_to_ready_and_ready_to_waiting(world: World) -> None:
    """REFILL has no call of its own on a sound store: it shows where room appears and where it is taken away."""
    await world.relaxed(1)
    first, second = await world.enqueue_many(2, group="g")
    await world.relaxed(2)
    states = await world.states([first, second])
    same(states, [State.READY, State.READY], "room appeared")
    await world.relaxed(1)
    same(await world.states([first, second]), [State.READY, State.WAITING], "room was taken away")
