"""Conformance of automatic revival: a cooldown that grows from the latest failure, a cap of cycles, no multiplying.

Called by run_case. Every revival here is promote's doing.
"""

from __future__ import annotations

from ...lifecycle import LIVE, Ending, State
from ...records import LetterQuery, Revival
from .compare import same
from .dead_letters import die
from .registry import case
from .world import DAY, FOREVER, HOUR, World

POLICY = Revival(after=100.0, factor=2.0, cap=300.0, cycles=4)


@case
async def the_cooldown_counts_from_the_latest_failure_and_grows(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    for cycle in range(POLICY.cycles):
        await die(world, job_id)
        cooldown = POLICY.cooldown(cycle)
        assert cooldown is not None
        letter = await world.letter(job_id)
        same((letter.cycles, letter.revive_at), (cycle, world.now + cooldown), "cycles and next revival")
        world.advance(cooldown - 1.0)
        same((await world.backend.promote(now=world.now)).revived, 0, "revived before its time")
        await world.is_in(job_id, State.DEAD)
        world.advance(2.0)
        same((await world.backend.promote(now=world.now)).revived, 1, "revived")
        letter = await world.letter(job_id)
        same((letter.cycles, letter.revive_at, letter.revived_at), (cycle + 1, None, world.now), "the letter")
        await world.counters(job_id, 0, 0, 0)
        await world.is_in(job_id, State.READY)
    await die(world, job_id)
    letter = await world.letter(job_id)
    same((letter.revive_at, letter.failure_count), (None, POLICY.cycles + 1), "after the last cycle")
    world.advance(400 * DAY)
    await world.promote_all()
    await world.is_in(job_id, State.DEAD)


@case
async def promote_revives_only_once_per_cooldown(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.backend.promote(now=world.now)
    async with world.unchanged("a second pass"):
        same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    world.advance(HOUR)
    async with world.unchanged("a later pass while it is live"):
        same((await world.backend.promote(now=world.now)).revived, 0, "revived")


@case
async def claim_revives_inline_as_it_promotes(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.claim_one(job_id)


@case
async def a_job_without_a_policy_stays_dead(world: World) -> None:
    start = await world.put(State.DEAD)
    world.advance(400 * DAY)
    await world.promote_all()
    await world.is_in(start.id, State.DEAD)


@case
async def reviving_by_hand_takes_the_automatic_one_back(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    await world.backend.revive(job_id, now=world.now)
    letter = await world.letter(job_id)
    same((letter.revive_at, letter.cycles), (None, 0), "the letter")
    await world.claim_one(job_id, lease=FOREVER)
    world.advance(HOUR)
    same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    await world.is_in(job_id, State.RUNNING)


@case
async def nothing_is_revived_while_the_key_is_live(world: World) -> None:
    dead = await world.enqueue(key="k", revival=POLICY)
    await die(world, dead)
    live = await world.enqueue(key="k", revival=POLICY)
    world.advance(HOUR)
    await world.promote_all()
    same(await world.states([dead, live]), [State.DEAD, State.READY], "states")
    await world.claim_one(live)
    await world.claim_none()


@case
async def success_ends_the_cycles(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    world.advance(101.0)
    await world.backend.promote(now=world.now)
    await world.end(await world.claim_one(job_id))
    world.advance(400 * DAY)
    same((await world.backend.promote(now=world.now)).revived, 0, "revived")
    same(await world.backend.letters(LetterQuery()), [], "letters")


@case
async def a_discarded_letter_is_never_revived(world: World) -> None:
    job_id = await world.enqueue(revival=POLICY)
    await die(world, job_id)
    await world.backend.discard(job_id, now=world.now)
    world.advance(HOUR)
    await world.promote_all()
    await world.is_in(job_id, State.DEAD)


@case
async def an_automatic_revival_obeys_the_group(world: World) -> None:
    job_id = await world.enqueue(group="g", revival=POLICY)
    await die(world, job_id)
    await world.claim_one(await world.enqueue(group="g"), lease=FOREVER)
    world.advance(HOUR)
    await world.promote_all()
    await world.is_in(job_id, State.WAITING)


@case
async def ten_cycles_of_a_hundred_poison_jobs_are_never_more_than_a_hundred(world: World) -> None:
    number, cycles = world.sized(100), 10
    policy = Revival(after=10.0, factor=1.0, cap=10.0, cycles=cycles)
    ids = await world.enqueue_many(number, revival=policy)
    for cycle in range(cycles + 1):
        leases = await world.claim(number * 2, lease=FOREVER)
        same(sorted(lease.id for lease in leases), ids, f"jobs that run in cycle {cycle}")
        batch = [world.settlement(lease, Ending.BURIED) for lease in leases]
        await world.backend.settle(batch, now=world.now)
        counts = (await world.backend.count())["default"]
        same(dict(counts), {State.DEAD: number}, f"all jobs there are after cycle {cycle}")
        world.advance(11.0)
        await world.promote_all()
        live = sum(found for state, found in (await world.backend.count())["default"].items() if state in LIVE)
        same(live, number if cycle < cycles else 0, "live again")
    letters = await world.backend.letters(LetterQuery(limit=number * 2))
    same((len(letters), {letter.failure_count for letter in letters}), (number, {cycles + 1}), "letters and counts")
