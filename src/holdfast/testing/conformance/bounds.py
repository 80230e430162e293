"""Conformance of bounds: what one claim hands out in bytes, what one pass does, and repeats that ask for less.

Called by run_case. A call that cannot be carried out in time is repeated with smaller bounds; it must then do less.
"""

from __future__ import annotations

from ...lifecycle import State
from ...records import Revival
from .compare import same
from .flow import task_rule
from .registry import case, case_for_each
from .world import FOREVER, World

BIG = b'"' + b"x" * 998 + b'"'  # a thousand bytes of arguments


@case_for_each(["ungrouped", "grouped", "apart"])
async def a_claim_hands_out_no_more_bytes_than_asked_for(world: World, shape: str) -> None:
    if shape == "apart":
        await task_rule(world, limit=50)
    for number in range(6):
        await world.enqueue(args=BIG, group=f"g{number}" if shape == "grouped" else None)
    same(len(await world.claim(10, bytes_max=3500)), 3, "jobs within 3,500 bytes")
    same(len(await world.claim(10, bytes_max=2000)), 2, "jobs within 2,000 bytes, the bound included")
    same(len(await world.claim(10, bytes_max=10)), 1, "one job always fits")


@case_for_each(["ungrouped", "grouped", "apart"])
async def every_lease_has_the_arguments_of_its_job_whatever_their_size(world: World, shape: str) -> None:
    if shape == "apart":
        await task_rule(world, limit=50)
    given = {}
    for number, size in enumerate([10, 40_000, 3, 50_000, 1000, 70_000]):
        args, queue = b'"%s"' % (b"%d" % number * size), "other" if number % 2 else "default"
        group = f"g{number}" if shape == "grouped" else None
        given[await world.enqueue(args=args, queue=queue, group=group)] = args
    leases = await world.claim(4, queues=("default", "other"))
    leases += await world.claim(4, queues=("default", "other"))
    same({lease.id: lease.args for lease in leases}, given, "arguments")


@case
async def jobs_of_a_second_queue_count_against_the_same_bytes(world: World) -> None:
    for _ in range(2):
        await world.enqueue(args=BIG * 50)
        await world.enqueue(args=BIG * 30, queue="other")
    leases = await world.claim(10, queues=("default", "other"), bytes_max=140_000)
    same([len(lease.args) for lease in leases], [50_000, 50_000, 30_000], "bytes of arguments")


@case
async def the_first_job_is_leased_whatever_its_size(world: World) -> None:
    big = await world.enqueue(args=BIG)
    small = await world.enqueue(args=b"[1]")
    same(await world.claim_ids(10, bytes_max=100), [big], "the first job")
    same(await world.claim_ids(10, bytes_max=100), [small], "the next claim goes on behind it")


@case
async def a_repeat_that_asks_for_less_gives_the_rest_back_free(world: World) -> None:
    ids = [await world.enqueue(args=BIG) for _ in range(4)]
    await world.register("w1", lease=FOREVER)
    first = world.request(most=4)
    await world.backend.claim(first, now=world.now)
    less = world.request(most=4, call=first.call, bytes_max=2500)
    answer = await world.backend.claim(less, now=world.now)
    same([lease.id for lease in answer.leases], ids[:2], "what fits, in order")
    same(await world.states(ids), [State.RUNNING, State.RUNNING, State.READY, State.READY], "the rest is ready again")
    again = await world.backend.claim(first, now=world.now)
    same([lease.id for lease in again.leases], ids[:2], "a late first try gives nothing back and claims nothing")
    jobs = [await world.get(job_id) for job_id in ids]
    same([(job.attempts, job.stalls) for job in jobs], [(0, 0)] * 4, "counters")


@case
async def a_repeat_that_asks_for_fewer_jobs_gives_the_rest_back_free(world: World) -> None:
    ids = await world.enqueue_many(4)
    await world.register("w1", lease=FOREVER)
    first = world.request(most=4)
    await world.backend.claim(first, now=world.now)
    answer = await world.backend.claim(world.request(most=1, call=first.call), now=world.now)
    same([lease.id for lease in answer.leases], ids[:1], "what fits, in order")
    same(await world.states(ids), [State.RUNNING, *[State.READY] * 3], "the rest is ready again")


@case
async def one_pass_of_promote_is_bounded_over_all_it_does(world: World) -> None:
    await world.enqueue_many(10, delay=5.0)
    await world.enqueue_many(10, expires=5.0)
    world.advance(20.0)
    done = await world.backend.promote(limit=10, now=world.now)
    same((done.due, done.expired, done.revived, done.more), (0, 10, 0, True), "the first pass: what expired")
    done = await world.backend.promote(limit=10, now=world.now)
    same((done.due, done.expired, done.revived), (10, 0, 0), "the second pass: what is due")


@case
async def a_claim_sweeps_no_more_than_it_is_told_to(world: World) -> None:
    ids = await world.enqueue_many(6, delay=5.0)
    world.advance(20.0)
    same(len(await world.claim(10, sweep_max=2)), 2, "jobs that came into play and were leased")
    same((await world.states(ids)).count(State.SCHEDULED), 4, "jobs left for the next pass")


@case
async def a_claim_recovers_no_more_than_it_is_told_to(world: World) -> None:
    ids = await world.enqueue_many(6)
    same(len(await world.claim(6, lease=30.0)), 6, "leases")
    await world.register("w2", lease=FOREVER)
    world.advance(100.0)
    answer = await world.backend.claim(world.request("w2", most=0, sweep_max=4), now=world.now)
    same(len(answer.recovered), 2, "leases ended")
    same((await world.states(ids)).count(State.RUNNING), 4, "leases left for the next pass")


@case
async def revivals_count_towards_the_bound(world: World) -> None:
    revival = Revival(after=10.0, cycles=3)
    for _ in range(5):
        await world.backend.bury(await world.enqueue(revival=revival), "x", now=world.now)
    world.advance(60.0)
    done = await world.backend.promote(limit=3, now=world.now)
    same((done.revived, done.more), (3, True), "the first pass")
    done = await world.backend.promote(limit=3, now=world.now)
    same(done.revived, 2, "the second pass")
