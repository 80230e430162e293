"""Conformance of suspects: which jobs are charged when a process with several jobs dies, and which run alone next.

Called by run_case. Processes die here by their owner's word (settle stalled) or with their worker (recover).
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...lifecycle import SHARED_STALLS_MAX, Ending, Failure, State
from ...records import Answer, Lease, LetterQuery, Pause, Revival
from .compare import CHANCE, same, same_tables
from .registry import case, case_for_each
from .world import FOREVER, World

CRASH = Failure(reason="crash", text="killed by SIGKILL", traceback="Current thread …")


async def crash(world: World, job_id: str, *, alone: bool = False, **fields: Any) -> Lease:
    """Lease the job to a worker that isolates and let the process die; returns the lease."""
    await world.register("keeper", lease=FOREVER, isolates=True)
    lease = await world.claim_one(job_id, "keeper")
    await world.end(lease, Ending.STALLED, alone=alone, **fields)
    return lease


async def lose(world: World, job_id: str, *, isolates: bool) -> None:
    """Lease the job to a worker that then dies as a whole."""
    await world.register("gone", lease=FOREVER, isolates=isolates)
    await world.claim_one(job_id, "gone")
    same(len(await world.backend.recover(dead=["gone"], now=world.now)), 1, "recovered")


async def is_suspect(world: World, job_id: str, expected: bool = True) -> None:
    same((await world.get(job_id)).suspect, expected, f"whether {job_id} is a suspect")


# ---------------------------------------------------------------------- the owner's word


@case_for_each([True, False], name=lambda alone: "alone" if alone else "among others")
async def a_crash_is_counted_and_the_job_is_a_suspect(world: World, alone: bool) -> None:
    job_id = await world.enqueue(expires=100.0)
    await is_suspect(world, job_id, False)
    began = world.now
    lease = await crash(world, job_id, alone=alone, failure=CRASH)
    same((lease.suspect, lease.shared_stalls), (False, 0), "the first lease")
    job = await world.get(job_id)
    same((job.state, job.worker, job.suspect, job.expires_at), (State.READY, None, True, None), "the job")
    await world.counters(job_id, 1, 0, int(alone), shared=int(not alone))
    [failure] = job.errors
    said = (failure.reason, failure.text, failure.traceback)
    same(said, (CRASH.reason, CRASH.text, CRASH.traceback), "what the owner said")
    same((failure.at, failure.attempt, failure.fence), (world.now, 1, lease.fence), "at, attempt, fence")
    same((failure.worker, failure.started_at), ("keeper", began), "worker, started_at")
    again = await world.claim_one(job_id)
    same((again.suspect, again.attempt), (True, 2), "the next lease")
    same((again.stalls, again.shared_stalls), (int(alone), int(not alone)), "counters in the lease")


@case_for_each(
    [None, Failure(), Failure(reason="memory")], name=lambda given: given.reason if given else "nothing said"
)
async def the_failures_reason_is_the_reason_of_death(world: World, given: Failure | None) -> None:
    job_id = await world.enqueue(max_stalls=0)
    await crash(world, job_id, failure=given)
    job = await world.get(job_id)
    reason = given.reason if given else "crash"
    same((job.reason, [failure.reason for failure in job.errors]), (reason, [reason]), "reason and error")
    same((await world.letter(job_id)).reason, reason, "reason in the letter")


@case
async def a_job_is_buried_at_one_crash_alone_too_many(world: World) -> None:
    job_id = await world.enqueue(max_stalls=2, key="k")
    for stalls in (1, 2):
        await crash(world, job_id, alone=True)
        await world.counters(job_id, stalls, 0, stalls)
    world.advance(5.0)
    await crash(world, job_id, alone=True, failure=Failure(reason="memory", text="too much"))
    await world.counters(job_id, 3, 0, 3)
    job = await world.get(job_id)
    same((job.state, job.reason, job.finished_at), (State.DEAD, "memory", world.now), "the job")
    letter = await world.letter(job_id)
    assert letter.error is not None, "a letter keeps the latest error"
    same((letter.reason, letter.error.text, letter.failure_count), ("memory", "too much", 1), "the letter")


@case
async def a_crash_spends_no_retry(world: World) -> None:
    job_id = await world.enqueue()
    await crash(world, job_id, failed=True, delay=60.0)
    await world.counters(job_id, 1, 0, 0, shared=1)
    await world.is_in(job_id, State.READY)


@case
async def a_death_by_crash_merges_into_the_letter_of_its_key(world: World) -> None:
    first = await world.enqueue(key="k", max_stalls=0)
    await crash(world, first)
    world.advance(1.0)
    second = await world.enqueue(key="k", max_stalls=0)
    await crash(world, second)
    [letter] = await world.backend.letters(LetterQuery())
    same((letter.id, letter.failure_count, letter.reason), (second, 2, "crash"), "the letter")
    same([(past.job_id, past.reason) for past in letter.history], [(first, "crash")], "its history")
    same((await world.get(first)).reason, "superseded", "the older job")


@case
async def a_crashed_job_keeps_its_turn(world: World) -> None:
    first, second = await world.enqueue_many(2)
    turn = (await world.row(first))["turn"]
    await crash(world, first)
    same((await world.row(first))["turn"], turn, "turn")
    same(await world.claim_ids(2), [first, second], "order")


@case
async def a_crashed_head_stays_first_in_its_strict_group(world: World) -> None:
    head, behind = await world.enqueue_many(2, group="g")
    ahead = await world.enqueue(group="g", priority=5)
    for _ in range(3):
        await crash(world, head)
        same(await world.states([head, behind, ahead]), [State.READY, State.WAITING, State.WAITING], "states")
        same((await world.get(head)).held, True, "whether it is the head")
    await world.end(await world.claim_one(head, "keeper"))
    await world.claim_one(ahead, "keeper")


@case_for_each([True, False], name=lambda alone: "alone" if alone else "among others")
async def a_crashed_job_whose_cancel_was_asked_for_is_cancelled(world: World, alone: bool) -> None:
    start = await world.put(State.RUNNING, group="g", max_stalls=0)
    behind = await world.enqueue(group="g")
    await world.backend.cancel(start.id, now=world.now)
    same(await world.settle(start.held, Ending.STALLED, alone=alone, retain=5000.0), Answer.OK, "answer")
    same(await world.states([start.id, behind]), [State.CANCELLED, State.READY], "states")
    await world.counters(start.id, 1, 0, int(alone), shared=int(not alone))
    same((await world.row(start.id))["prune_at"], world.now + 5000.0, "prune_at")
    same(await world.backend.letter(start.id), None, "a cancelled job leaves no letter")


@case
async def a_crash_can_be_settled_and_its_job_claimed_in_one_step(world: World) -> None:
    one, two = await world.leased(2)
    batch = [world.settlement(one, Ending.STALLED), world.settlement(two, Ending.SUCCEEDED)]
    request = world.request(most=1)
    answer = await world.exchange(batch, [], request)
    same(answer.answers, (Answer.OK, Answer.OK), "answers")
    same([(x.id, x.suspect, x.shared_stalls) for x in answer.leases], [(one.id, True, 1)], "leases")
    async with world.unchanged("the repeat"):
        again = await world.exchange(batch, [], request)
    same((again.answers, again.leases), (answer.answers, answer.leases), "the repeat")


# ---------------------------------------------------------------------- with the whole worker


@case_for_each(product((True, False), (True, False)), name=lambda p: f"isolates {p[0]}, a suspect {p[1]}")
async def only_a_stall_suffered_alone_counts_towards_max_stalls(world: World, param: tuple[bool, bool]) -> None:
    isolates, suspect = param
    job_id = await world.enqueue()
    if suspect:
        await crash(world, job_id)
    await lose(world, job_id, isolates=isolates)
    alone = suspect or not isolates
    await world.counters(job_id, 1 + suspect, 0, int(alone), shared=int(suspect) + int(not alone))
    await is_suspect(world, job_id)
    same((await world.get(job_id)).errors[-1].reason, "stalled", "reason in the history")


@case
async def recover_says_both_counters(world: World) -> None:
    job_id = await world.enqueue()
    for stalls in (0, 1):
        await world.register("gone", isolates=True)
        await world.claim_one(job_id, "gone")
        await world.expire_worker("gone")
        [recovered] = await world.backend.recover(now=world.now)
        same((recovered.stalls, recovered.shared_stalls, recovered.counted), (stalls, 1, True), "recovered")


@case
async def registering_again_does_not_change_whether_a_worker_isolates(world: World) -> None:
    job_id = await world.enqueue()
    await world.register("gone", isolates=True)
    await world.claim_one(job_id, "gone")
    await world.register("gone", isolates=False)
    same([worker.isolates for worker in await world.backend.workers(now=world.now)], [True], "isolates")
    await world.backend.recover(dead=["gone"], now=world.now)
    await world.counters(job_id, 1, 0, 0, shared=1)


# ---------------------------------------------------------------------- both ways

WAYS = ("settled", "recovered")


async def _stall(world: World, job_id: str, way: str, *, alone: bool) -> None:
    """One stall by either way; for recover, the job's mark must fit: it tells whether it was alone."""
    if way == "settled":
        await crash(world, job_id, alone=alone)
    else:
        await lose(world, job_id, isolates=not alone)


async def _innocent(world: World, job_id: str) -> None:
    """An attempt that ends by itself, so that the job is no suspect any more."""
    await world.end(await world.claim_one(job_id, lease=FOREVER), Ending.SNOOZED, delay=0.0)
    await is_suspect(world, job_id, False)


@case_for_each(WAYS)
async def shared_stalls_have_a_cap_of_their_own(world: World, way: str) -> None:
    job_id = await world.enqueue(max_stalls=1)
    for shared in range(1, SHARED_STALLS_MAX + 1):
        await _stall(world, job_id, way, alone=False)
        await world.counters(job_id, 2 * shared - 1, 0, 0, shared=shared)
        await world.is_in(job_id, State.READY)
        await _innocent(world, job_id)
    await world.promote_all()
    await _stall(world, job_id, way, alone=False)
    await world.is_in(job_id, State.DEAD)
    await world.counters(job_id, 2 * SHARED_STALLS_MAX + 1, 0, 0, shared=SHARED_STALLS_MAX + 1)
    reason = "crash" if way == "settled" else "stalled"
    same(((await world.get(job_id)).reason, (await world.letter(job_id)).reason), (reason, reason), "reasons")


@case
async def the_two_counters_of_stalls_do_not_add_up(world: World) -> None:
    job_id = await world.enqueue(max_stalls=2)
    for _ in range(SHARED_STALLS_MAX):
        await crash(world, job_id)
    for _ in range(2):
        await crash(world, job_id, alone=True)
    await world.is_in(job_id, State.READY)
    await world.counters(job_id, SHARED_STALLS_MAX + 2, 0, 2, shared=SHARED_STALLS_MAX)


@case_for_each(product(WAYS, (True, False), (True, False)), name=lambda p: f"{p[0]}, begun {p[1]}, alone {p[2]}")
async def at_most_once_a_stall_after_the_beginning_is_the_end(world: World, param: tuple[str, bool, bool]) -> None:
    """Whoever settles a stall says that it had begun, whether or not the mark was stored."""
    way, begun, alone = param
    job_id = await world.enqueue(max_stalls=0)
    await world.register("keeper", isolates=not alone)
    lease = await world.claim_one(job_id, "keeper")
    if begun:
        same(await world.begin(lease), Answer.OK, "begin")
    if way == "settled":
        await world.end(lease, Ending.STALLED, alone=alone)
    else:
        await world.backend.recover(dead=["keeper"], now=world.now)
    free = way == "recovered" and not begun
    await world.is_in(job_id, State.READY if free else State.DEAD)
    await is_suspect(world, job_id, not free)
    await world.counters(job_id, int(not free), 0, int(alone and not free), shared=int(not alone and not free))


KINDS: dict[str, dict[str, Any]] = {
    "ungrouped": {},
    "in a group": {"group": "g"},
    "its last": {"max_stalls": 1, "key": "k"},
    "at most once": {"max_stalls": 0, "group": "g", "key": "k"},
    "cancelled": {"group": "g", "key": "k"},
}


async def _fall(world: World, kind: str, way: str, alone: bool) -> None:
    """One job of that kind stalls that way, with others before, behind and beside it."""
    old = await world.enqueue(max_stalls=0, key=KINDS[kind].get("key"))
    await crash(world, old)
    job_id = await world.enqueue(expires=500.0, **KINDS[kind])
    if kind == "its last":
        await lose(world, job_id, isolates=False)
        await _innocent(world, job_id)
        await world.promote_all()
    await world.enqueue_many(2, group="g")
    await world.enqueue()
    await world.register("holder", lease=FOREVER, isolates=not alone)
    lease = next(lease for lease in await world.claim(9, "holder") if lease.id == job_id)
    await world.begin(lease)
    if kind == "cancelled":
        await world.backend.cancel(job_id, now=world.now)
    world.advance(3.0)
    if way == "settled":
        stalled = Failure(reason="stalled", text="")
        await world.end(lease, Ending.STALLED, alone=alone, failure=stalled)
        await world.backend.retire("holder", now=world.now)
        return
    await world.renew("holder", [lease])  # the others are given back before the worker dies
    await world.backend.recover(dead=["holder"], now=world.now)


@case_for_each(product(KINDS, (True, False)), name=lambda p: f"{p[0]}, alone {p[1]}")
async def a_stall_settled_and_a_stall_recovered_end_alike(world: World, param: tuple[str, bool]) -> None:
    kind, alone = param
    other = await world.another()
    await _fall(world, kind, "settled", alone)
    await _fall(other, kind, "recovered", alone)
    hidden = {**CHANCE, "letters": ("error", "history")}
    same_tables(await world.tables(besides=hidden), await other.tables(besides=hidden), "settled, recovered")
    ours, theirs = [
        [[(e["reason"], e["attempt"]) for e in row["errors"]] for row in (await each.tables())["jobs"]]
        for each in (world, other)
    ]
    same(ours, theirs, "error histories")


@case
async def a_stall_ends_a_lease_once_whoever_tells_first(world: World) -> None:
    one, two = await world.leased(2)
    await world.end(one, Ending.STALLED, alone=True)
    same([r.id for r in await world.backend.recover(dead=["w1"], now=world.now)], [two.id], "recovered")
    async with world.unchanged("a late word about a recovered lease"):
        same(await world.settle(two, Ending.STALLED, alone=True), Answer.LOST, "answer")
    await world.counters(one.id, 1, 0, 1)
    await world.counters(two.id, 1, 0, 1)


# ---------------------------------------------------------------------- the mark


@case_for_each(sorted(set(Ending) - {Ending.STALLED}))
async def any_other_outcome_clears_the_suspect(world: World, ending: Ending) -> None:
    job_id = await world.enqueue()
    await crash(world, job_id)
    await world.end(await world.claim_one(job_id, "keeper"), ending)
    await is_suspect(world, job_id, False)
    await world.counters(job_id, 2, int(ending in (Ending.RETRY, Ending.BURIED)), 0, shared=1)


@case
async def many_successes_at_once_clear_their_suspects(world: World) -> None:
    leases = await world.leased(3)
    batch = [world.settlement(lease, Ending.STALLED) for lease in leases]
    same(await world.backend.settle(batch, now=world.now), [Answer.OK] * 3, "answers to the crashes")
    leases = await world.claim(3)
    same([lease.suspect for lease in leases], [True] * 3, "suspects")
    batch = [world.settlement(lease, Ending.SUCCEEDED) for lease in leases]
    same(await world.backend.settle(batch, now=world.now), [Answer.OK] * 3, "answers")
    for lease in leases:
        await is_suspect(world, lease.id, False)


@case_for_each(["released", "released for later", "given back by renew", "retired", "paused", "replaced"])
async def a_suspect_that_was_not_run_stays_one(world: World, way: str) -> None:
    job_id = await world.enqueue(key="k")
    await crash(world, job_id)
    if way == "replaced":
        job = world.job(key="k", on_conflict="replace", args=b"[2]", max_stalls=0)
        [answer] = await world.backend.enqueue([job], now=world.now)
        same(answer.replaced, True, "replaced")
    elif way == "paused":
        await world.backend.pause(Pause(task="work"), now=world.now)
        await world.claim_none()
        await world.backend.resume(Pause(task="work"), now=world.now)
    else:
        lease = await world.claim_one(job_id)
        if way == "given back by renew":
            await world.renew("w1", [])
        elif way == "retired":
            await world.backend.retire("w1", now=world.now)
        else:
            await world.give_back(lease, 60.0 if way == "released for later" else 0.0)
    await is_suspect(world, job_id)
    await world.counters(job_id, 1, 0, 0, shared=1)
    world.advance(61.0)
    lease = await world.claim_one(job_id, "w2")
    same((lease.suspect, lease.shared_stalls), (True, 1), "the lease")


@case_for_each(["revive", "retry", "by itself"])
async def a_job_brought_back_is_no_suspect(world: World, way: str) -> None:
    job_id = await world.enqueue(max_stalls=1, revival=Revival(after=100.0) if way == "by itself" else None)
    await crash(world, job_id)
    for _ in range(2):
        await crash(world, job_id, alone=True)
    await world.is_in(job_id, State.DEAD)
    if way == "by itself":
        world.advance(101.0)
        await world.promote_all()
    else:
        await getattr(world.backend, way)(job_id, now=world.now)
    await is_suspect(world, job_id, False)
    await world.counters(job_id, 0, 0, 0)
    same(len((await world.get(job_id)).errors), 3, "errors are kept")
    lease = await world.claim_one(job_id, "keeper")
    same((lease.suspect, lease.stalls, lease.shared_stalls), (False, 0, 0), "the lease")


@case
async def a_succeeded_job_run_again_starts_with_no_shared_stalls(world: World) -> None:
    job_id = await world.enqueue()
    await crash(world, job_id)
    await world.end(await world.claim_one(job_id))
    await world.backend.retry(job_id, now=world.now)
    await world.counters(job_id, 0, 0, 0)
    await is_suspect(world, job_id, False)


@case
async def suspects_are_claimed_in_their_turn_like_others(world: World) -> None:
    ids = await world.enqueue_many(4)
    await crash(world, ids[0])
    leases = await world.claim(3, "w1")
    same([lease.id for lease in leases], ids[:3], "order")
    same([lease.suspect for lease in leases], [True, False, False], "suspects")
    same(await world.claim_ids(3, "w2"), ids[3:], "the rest")
