"""Conformance of texts: what a store returns to a caller and writes into a history comes from lifecycle.py.

Called by run_case. Users read these words, test for them and search for them: a store that says the same thing in
words of its own is found out here.
"""

from __future__ import annotations

from itertools import product

from ...errors import ConfigurationError, DuplicateJob, HoldfastError, JobNotFound
from ...lifecycle import FAILURE_TEXTS, SHARED_STALLS_MAX, State, Verb, allowed, stall_text, state_conflict
from ...records import DeadLetter, Override
from .compare import same
from .dead_letters import die
from .registry import case, case_for_each
from .world import FOREVER, World

OPERATED = (Verb.CANCEL, Verb.BURY, Verb.RUN_NOW, Verb.REVIVE, Verb.RETRY)
REFUSED = [(verb, state) for verb, state in product(OPERATED, State) if allowed(verb, state) is None]


async def refused(world: World, verb: str, job_id: str, expected: HoldfastError) -> None:
    """The verb is refused in exactly these words, and with these facts."""
    more = ("told to",) if verb == Verb.BURY else ()
    async with world.refused(type(expected), f"{verb} of {job_id}") as raised:
        await getattr(world.backend, verb)(job_id, *more, now=world.now)
    same(str(raised[0]), str(expected), f"the words of the refusal of {verb}")
    same(vars(raised[0]), vars(expected), f"the facts of the refusal of {verb}")


@case_for_each(REFUSED, name=lambda p: f"{p[0]} from {p[1]}")
async def a_verb_refused_in_a_state_says_why_in_the_same_words(world: World, param: tuple[Verb, State]) -> None:
    verb, state = param
    start = await world.put(state, group="g" if state is State.WAITING else None)
    await refused(world, verb, start.id, state_conflict(start.id, verb, state))


@case_for_each([*OPERATED, "discard"])
async def an_unknown_job_is_not_found_in_the_same_words(world: World, verb: str) -> None:
    await refused(world, verb, "nobody", JobNotFound("nobody", "dead letter" if verb == "discard" else "job"))


@case
async def discard_of_a_revived_job_says_why_in_the_same_words(world: World) -> None:
    dead = await world.put(State.DEAD)
    await world.backend.revive(dead.id, now=world.now)
    await refused(world, "discard", dead.id, state_conflict(dead.id, "discard", State.READY))


@case_for_each([Verb.REVIVE, Verb.RETRY])
async def a_dead_job_whose_key_is_held_is_refused_in_the_same_words(world: World, verb: Verb) -> None:
    dead = await world.enqueue(key="k")
    await die(world, dead)
    live = await world.enqueue(key="k")
    await refused(world, verb, dead, state_conflict(dead, verb, State.DEAD, live_id=live))


@case
async def a_finished_job_whose_key_is_held_is_refused_in_the_same_words(world: World) -> None:
    done = await world.enqueue(key="k")
    await world.end(await world.claim_one(done))
    live = await world.enqueue(key="k")
    await refused(world, Verb.RETRY, done, state_conflict(done, "retry", State.SUCCEEDED, live_id=live))


@case_for_each([Verb.REVIVE, Verb.RETRY])
async def a_superseded_job_is_refused_in_the_same_words(world: World, verb: Verb) -> None:
    """Where its heir is live again, that is what is in the way; else the heir is the one to bring back."""
    old = await world.enqueue(key="k")
    await die(world, old)
    new = await world.enqueue(key="k")
    await die(world, new)
    await refused(world, verb, old, state_conflict(old, verb, State.DEAD, heir_id=new))
    await world.backend.revive(new, now=world.now)
    await refused(world, verb, old, state_conflict(old, verb, State.DEAD, live_id=new))


@case
async def a_taken_key_is_refused_in_the_same_words(world: World) -> None:
    holder = await world.enqueue(key="k")
    async with world.refused(DuplicateJob, "enqueue of a taken key") as raised:
        await world.backend.enqueue([world.job(key="k", on_conflict="raise")], now=world.now)
    same(str(raised[0]), str(DuplicateJob("k", holder)), "the words")


@case
async def a_limit_that_cannot_hold_is_refused_in_the_same_words(world: World) -> None:
    await world.strict()
    async with world.refused(ConfigurationError, "a group's limit on a strict queue") as raised:
        await world.backend.limit(Override(queue="default", group="g", limit=2), now=world.now)
    expected = "queue 'default' is strict: its groups run one job at a time, so 2 cannot hold. "
    same(str(raised[0]), expected + 'Declare the queue with group_order="relaxed" first.', "the words")


@case_for_each([True, False], name=lambda alone: "alone" if alone else "among others")
async def a_stall_is_written_down_in_the_same_words(world: World, alone: bool) -> None:
    job_id = await world.enqueue(max_stalls=2)
    for before in range(2):
        await world.register("gone", lease=FOREVER, isolates=not alone)
        await world.claim_one(job_id, "gone")
        if alone or not before:  # a suspect is alone, whoever ran it
            counts = {"stalls": before, "shared_stalls": 0} if alone else {"stalls": 0, "shared_stalls": 0}
            expected = stall_text(**counts, max_stalls=2, alone=alone)
        else:
            expected = stall_text(stalls=0, shared_stalls=1, max_stalls=2, alone=True)
        same(len(await world.backend.recover(dead=["gone"], now=world.now)), 1, "recovered")
        same((await world.get(job_id)).errors[-1].text, expected, "the words")
    assert str(SHARED_STALLS_MAX) in stall_text(stalls=0, shared_stalls=0, max_stalls=2, alone=False), "the bound"


def _said(letter: DeadLetter) -> str | None:
    return None if letter.error is None else letter.error.text


@case
async def an_expiry_is_written_down_in_the_same_words(world: World) -> None:
    job_id = await world.enqueue(expires=5.0)
    world.advance(10.0)
    await world.backend.promote(now=world.now)
    same((await world.get(job_id)).errors[-1].text, FAILURE_TEXTS["expired"], "the words")
    same(_said(await world.letter(job_id)), FAILURE_TEXTS["expired"], "the words of its letter")


@case_for_each(["", "told to"], name=lambda given: given or "no reason")
async def a_burial_is_written_down_in_the_same_words(world: World, given: str) -> None:
    job_id = await world.enqueue()
    record = await world.backend.bury(job_id, given, now=world.now)
    same(record.errors[-1].text, given or FAILURE_TEXTS["buried"], "the words")
    same(_said(await world.letter(job_id)), given or FAILURE_TEXTS["buried"], "the words of its letter")
