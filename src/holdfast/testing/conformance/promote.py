"""Conformance of promote: due jobs come into play, expired ones go, in bounded passes.

Called by run_case. Automatic revival, the third thing promote does, is in revival.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...lifecycle import UNSTARTED, Ending, State
from ...records import Enqueued, LetterQuery, Pause
from .compare import changed_columns, same
from .keys import holders, kept, rival
from .registry import case, case_for_each
from .world import DAY, FOREVER, World


@case
async def promote_says_what_it_did(world: World) -> None:
    due = await world.enqueue(delay=10.0)
    expired = await world.enqueue(expires=5.0)
    later = await world.enqueue(delay=1000.0)
    world.advance(11.0)
    done = await world.backend.promote(now=world.now)
    same((done.due, done.expired, done.revived, done.more), (1, 1, 0, False), "what the pass did")
    expected = [State.READY, State.DEAD, State.SCHEDULED]
    same(await world.states([due, expired, later]), expected, "states")
    async with world.unchanged("a pass with nothing to do"):
        done = await world.backend.promote(now=world.now)
    same((done.due, done.expired, done.more), (0, 0, False), "what the second pass did")


@case_for_each(["due", "expired"])
async def promote_is_bounded_and_says_when_to_call_again(world: World, what: str) -> None:
    fields = {"delay": 10.0} if what == "due" else {"expires": 10.0}
    ids = await world.enqueue_many(7, **fields)
    world.advance(11.0)
    passes = []
    for _ in range(10):
        done = await world.backend.promote(limit=3, now=world.now)
        passes.append(getattr(done, what))
        if not done.more:
            break
    assert max(passes) <= 3, f"a pass went beyond its bound: {passes}"
    same(sum(passes), 7, "jobs handled once no more was said to be left")
    same(set(await world.states(ids)), {State.READY if what == "due" else State.DEAD}, "states")


@case
async def jobs_promoted_earlier_go_first(world: World) -> None:
    third = await world.enqueue(delay=30.0)
    first = await world.enqueue(delay=10.0)
    second = await world.enqueue(delay=20.0)
    for _ in range(3):
        world.advance(10.5)
        await world.promote_all()
    same(await world.claim_ids(5), [first, second, third], "order of claims")


@case
async def a_job_due_long_ago_is_not_lost_when_the_clock_goes_back(world: World) -> None:
    job_id = await world.enqueue(delay=10.0)
    world.advance(11.0)
    await world.promote_all()
    world.advance(-3600.0)
    await world.claim_one(job_id)


@case
async def an_expired_scheduled_job_is_buried_and_never_ready(world: World) -> None:
    job_id = await world.enqueue(delay=10.0, expires=5.0)
    world.advance(16.0)
    await world.claim_none()
    await world.promote_all()
    job = await world.get(job_id)
    same((job.state, job.reason, job.fence), (State.DEAD, "expired", 0), "the job")


@case
async def an_expired_waiting_job_is_buried_behind_its_group(world: World) -> None:
    start = await world.put(State.RUNNING, group="g")
    waiting = await world.enqueue(group="g", expires=5.0)
    last = await world.enqueue(group="g")
    world.advance(6.0)
    await world.promote_all()
    same(await world.states([waiting, last]), [State.DEAD, State.WAITING], "states")
    await world.end(start.held)
    await world.claim_one(last)


# ----------------------------------------------------------------------------------------------------------------------
# Expiry: a job that was not claimed in time dies or is dropped, as its call says, from wherever it is.


DROP: dict[str, Any] = {"expires": 30.0, "on_expire": "drop"}


@case_for_each(product(("bury", "drop"), sorted(UNSTARTED)), name=lambda p: f"{p[0]}, {p[1]}")
async def an_unstarted_job_expires_as_its_call_says(world: World, param: tuple[str, State]) -> None:
    word, state = param
    start = await world.put(state, expires=30.0, on_expire=word)
    bystander = await world.enqueue(queue="other", expires=5000.0, on_expire=word)
    before = await world.row(start.id)
    world.now = (await world.get(start.id)).expires_at or 0.0
    done = await world.backend.promote(now=world.now)
    same((done.expired, done.due), (1, 0), "what promote says")
    job = await world.get(start.id)
    same((job.reason, job.finished_at, job.fence), ("expired", world.now, 0), "the job")
    await world.counters(start.id, 0, 0, 0)
    letters = [letter.id for letter in await world.backend.letters(LetterQuery())]
    if word == "bury":
        same((job.state, letters, len(job.errors)), (State.DEAD, [start.id], 1), "buried with a letter")
    else:
        same((job.state, letters, job.errors), (State.CANCELLED, [], ()), "dropped without a letter")
        same((await world.row(start.id))["prune_at"], world.now + DAY, "prune_at")
        stray = changed_columns(before, await world.row(start.id))
        stray -= {"state", "reason", "finished_at", "prune_at", "turn", "lane", "rank"}
        same(stray, set(), "what else changed")
    await world.is_in(bystander, State.READY)


@case_for_each(["bury", "drop"])
async def a_claim_ends_what_expired_and_leases_the_next(world: World, word: str) -> None:
    expired = await world.enqueue(expires=30.0, on_expire=word)
    fresh = await world.enqueue()
    world.advance(31.0)
    same(await world.claim_ids(5), [fresh], "claimed")
    await world.is_in(expired, State.DEAD if word == "bury" else State.CANCELLED)


@case
async def no_crowd_of_jobs_to_drop_gets_one_of_them_leased(world: World) -> None:
    """More than the promote inside claim takes at once."""
    crowd = await world.enqueue_many(300, **DROP)
    fresh = await world.enqueue(priority=-1)
    world.advance(31.0)
    got: list[str] = []
    for _ in range(5):
        got += await world.claim_ids(3)
    same(got, [fresh], "claimed")
    same(set(await world.states(crowd)), {State.CANCELLED}, "states of the crowd")


@case
async def promote_drops_and_buries_within_one_bound(world: World) -> None:
    ids = [await world.enqueue(expires=10.0, on_expire=("bury", "drop")[n % 2]) for n in range(7)]
    world.advance(11.0)
    done = [await world.backend.promote(limit=3, now=world.now) for _ in range(3)]
    same([one.expired for one in done], [3, 3, 1], "expired per pass")
    same([one.more for one in done[:2]], [True, True], "more to do")
    same(await world.states(ids), [(State.DEAD, State.CANCELLED)[n % 2] for n in range(7)], "states")


@case_for_each(["ready", "waiting"])
async def a_dropped_job_leaves_its_group_to_the_next(world: World, where: str) -> None:
    head = await world.enqueue(group="g", **(DROP if where == "ready" else {}))
    second = await world.enqueue(group="g", **(DROP if where == "waiting" else {}))
    third = await world.enqueue(group="g")
    world.advance(31.0)
    await world.promote_all()
    if where == "ready":
        same(await world.states([head, second, third]), [State.CANCELLED, State.READY, State.WAITING], "states")
        await world.claim_one(second)
    else:
        same(await world.states([head, second, third]), [State.READY, State.CANCELLED, State.WAITING], "states")
        await world.end(await world.claim_one(head))
        await world.claim_one(third)


@case_for_each(["queue", "group", "task"])
async def a_pause_does_not_keep_a_job_from_expiring(world: World, what: str) -> None:
    job_id = await world.enqueue(group="g", **DROP)
    pauses = {
        "queue": Pause(queue="default"),
        "group": Pause(queue="default", group="g"),
        "task": Pause(task="work"),
    }
    await world.backend.pause(pauses[what], now=world.now)
    world.advance(31.0)
    same((await world.backend.promote(now=world.now)).expired, 1, "expired")
    await world.is_in(job_id, State.CANCELLED)


@case
async def a_dropped_job_is_kept_for_a_day(world: World) -> None:
    job_id = await world.enqueue(**DROP)
    world.advance(31.0)
    await world.promote_all()
    world.advance(DAY - 1.0)
    same(await world.backend.prune(now=world.now), 0, "pruned")
    world.advance(2.0)
    same(await world.backend.prune(now=world.now), 1, "pruned")
    same(await world.backend.get(job_id), None, "the job")


@case
async def a_dropped_job_frees_its_key(world: World) -> None:
    await world.enqueue(key="k", **DROP)
    world.advance(31.0)
    await world.promote_all()
    same(await holders(world), [], "holders")
    assert (await rival(world)).created, "the key is free"


@case
async def a_dropped_job_holds_its_window_on(world: World) -> None:
    job_id = await world.enqueue(key="k", key_window=100.0, **DROP)
    world.advance(31.0)
    await world.promote_all()
    await kept(world, job_id)


@case
async def dropping_closes_the_letter_of_its_key_like_any_cancellation(world: World) -> None:
    dead = await world.put(State.DEAD, key="k")
    await world.enqueue(key="k", **DROP)
    world.advance(31.0)
    await world.promote_all()
    same(await world.backend.letters(LetterQuery()), [], "letters")
    same((await world.get(dead.id)).reason, "superseded", "reason of the dead job")


@case
async def a_dropped_job_can_be_retried_and_then_does_not_expire(world: World) -> None:
    job_id = await world.enqueue(key="k", **DROP)
    world.advance(31.0)
    await world.promote_all()
    job = await world.backend.retry(job_id, now=world.now)
    same((job.state, job.reason, job.expires_at, job.holds_key), (State.READY, None, None, True), "the job")
    same(job.on_expire, "drop", "on_expire")
    world.advance(DAY)
    await world.claim_one(job_id)


@case
async def a_running_job_does_not_expire(world: World) -> None:
    job_id = await world.enqueue(**DROP)
    lease = await world.claim_one(job_id, lease=FOREVER)
    world.advance(31.0)
    same((await world.backend.promote(now=world.now)).expired, 0, "expired")
    await world.end(lease, Ending.RETRY, delay=100.0)
    world.advance(50.0)
    same((await world.backend.promote(now=world.now)).expired, 0, "expired while it backs off")
    await world.is_in(job_id, State.SCHEDULED)


@case_for_each(["bury", "drop"])
async def a_job_given_back_unstarted_still_expires(world: World, word: str) -> None:
    job_id = await world.enqueue(expires=30.0, on_expire=word)
    await world.give_back(await world.claim_one(job_id))
    world.advance(31.0)
    same((await world.backend.promote(now=world.now)).expired, 1, "expired")
    await world.is_in(job_id, State.DEAD if word == "bury" else State.CANCELLED)


@case_for_each(["bury", "drop"])
async def what_happens_at_expiry_is_the_newest_calls_word(world: World, word: str) -> None:
    job_id = await world.enqueue(key="k", expires=30.0, on_expire="drop" if word == "bury" else "bury")
    answer = await rival(world, on_conflict="replace", expires=30.0, on_expire=word)
    same(answer, Enqueued(job_id, False, True), "answer")
    world.advance(31.0)
    await world.promote_all()
    await world.is_in(job_id, State.DEAD if word == "bury" else State.CANCELLED)
