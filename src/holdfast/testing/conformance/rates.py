"""Conformance of rates: how many jobs of a queue, of a task, start in how long; what is charged, and when it opens.

Called by run_case. Rates of groups are in group_rates. Times are compared with what rates.py reckons, to the bit.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...lifecycle import State
from ...rates import Rate, charged, opens_at
from ...records import Pause, QueueRule, TaskRule
from .compare import CALLED, same
from .flow import (
    answer,
    crowd,
    flow_shown,
    limit,
    queue_shown,
    reckoned,
    rule,
    spent,
    task_rule,
    task_shown,
    walked,
)
from .groups import WAYS
from .registry import case, case_for_each
from .world import DAY, FOREVER, HOUR, World

KINDS = ("queue", "task")
BOTH = ("default", "other")
SLOW = Rate(1, 1000.0)
BURST = Rate(1, 1000.0, 3)
STEP = 1 / 32  # seconds; sums of it are exact

# rate, steps, slots of each claim
WALKS: list[tuple[Rate, int, int]] = [
    (Rate(5, 4.0), 400, 10),
    (Rate(5, 4.0), 200, 1),
    (Rate(1, 1.0), 200, 3),
    (Rate(64, 1.0), 80, 10),
    (Rate(4, 2.0, 3), 200, 10),
    (Rate(3, 2.0, 1), 200, 2),
    (Rate(1000, 8.0), 24, 100),
]


async def _rated(world: World, kind: str, rate: Rate | None, **fields: Any) -> None:
    """Queue "default" or task "work" has that rate."""
    await (rule(world, rate=rate, **fields) if kind == "queue" else task_rule(world, rate=rate, **fields))


# ---------------------------------------------------------------------- how many, exactly


@case_for_each(product(KINDS, WALKS), name=lambda p: f"{p[0]}, {p[1][0]}, {p[1][1]} steps, {p[1][2]} slots")
async def jobs_start_exactly_as_the_rate_allows(world: World, param: tuple[str, tuple[Rate, int, int]]) -> None:
    kind, (rate, steps, most) = param
    expected = reckoned(rate, world.now, steps, STEP, most)
    await _rated(world, kind, rate)
    await world.enqueue_many(len(expected) + 5)
    times = [time for time, _ in await walked(world, steps, STEP, most)]
    same(times, expected, "times at which jobs started")
    most_seen = rate.count if rate.burst is None else rate.count + rate.burst - 1
    assert crowd(times, rate.seconds) <= most_seen, f"a window of {rate.seconds} s saw {crowd(times, rate.seconds)}"


@case
async def a_tasks_rate_counts_over_all_queues(world: World) -> None:
    rate = Rate(5, 4.0)
    expected = reckoned(rate, world.now, 300, STEP, 4)
    await task_rule(world, rate=rate)
    for queue in BOTH:
        await world.enqueue_many(len(expected), queue=queue)
    starts = await walked(world, 300, STEP, 4, queues=BOTH)
    same([time for time, _ in starts], expected, "times at which jobs started")


@case
async def the_rates_of_queue_and_task_bind_together(world: World) -> None:
    queue, task = Rate(8, 4.0), Rate(4, 4.0)
    await world.backend.declare([QueueRule(name="default", rate=queue)], [TaskRule(name="a", rate=task)], now=world.now)
    await world.enqueue_many(60, task="a")
    await world.enqueue_many(60, task="b")
    starts = await walked(world, 384, STEP, 5)
    times = [time for time, _ in starts]
    of_task = [time for time, lease in starts if lease.task == "a"]
    assert crowd(times, 4.0) <= 8 and crowd(of_task, 4.0) <= 4, "no window sees more than either rate says"
    assert len(times) >= 22 and len(of_task) >= 10, f"{len(times)} started, {len(of_task)} of the task: too few in 12 s"


FRESH = [
    (SLOW, 1),
    (Rate(100, 60.0), 1),
    (Rate(1000, 10.0), 10),
    (BURST, 3),
    (Rate(9, 1.0, 1), 1),
    (Rate(9, 0.5, 7), 7),
    (Rate(100, 60.0, 20), 20),
]


@case_for_each(product(KINDS, FRESH), name=lambda p: f"{p[0]}, {p[1][0]}")
async def a_fresh_bucket_lets_a_hundredth_start_or_its_burst(world: World, param: tuple[str, tuple[Rate, int]]) -> None:
    kind, (rate, expected) = param
    await _rated(world, kind, rate)
    await world.enqueue_many(25)
    same(len(await world.claim(25)), expected, "started at once")
    await world.claim_none()


@case_for_each(KINDS)
async def a_burst_is_there_again_after_a_rest(world: World, kind: str) -> None:
    await _rated(world, kind, Rate(2, 10.0, 4))
    await world.enqueue_many(30)
    same(len(await world.claim(9, lease=FOREVER)), 4, "the burst")
    world.advance(5.0)
    same(len(await world.claim(9)), 1, "one more after the time of one")
    world.advance(HOUR)
    same(len(await world.claim(9)), 4, "the burst, and no more than the burst")
    await world.claim_none()


@case_for_each(KINDS)
async def a_rate_and_a_limit_bind_together(world: World, kind: str) -> None:
    await _rated(world, kind, Rate(1, 10.0, 3), limit=2)
    await world.enqueue_many(9)
    leases = await world.claim(9, lease=FOREVER)
    same(len(leases), 2, "the limit")
    for lease in leases:
        await world.end(lease)
    same(len(await world.claim(9)), 1, "what is left of the burst")
    await world.claim_none()


@case_for_each(KINDS)
async def the_highest_priority_starts_first_when_the_bucket_opens(world: World, kind: str) -> None:
    await _rated(world, kind, Rate(1, 10.0, 1))
    await world.enqueue_many(3)
    await world.claim(9, lease=FOREVER)
    urgent = await world.enqueue(priority=9)
    world.advance(10.0)
    same(await world.claim_ids(9), [urgent], "started")


@case
async def an_empty_bucket_delays_no_other_task_and_no_other_queue(world: World) -> None:
    await task_rule(world, "slow", rate=SLOW)
    await rule(world, "slow", rate=SLOW)
    await world.enqueue_many(world.sized(1000), task="slow", priority=50)
    await world.enqueue_many(world.sized(1000), queue="slow", priority=50)
    fine = await world.enqueue_many(5)
    got = await world.claim_ids(9, queues=("slow", "default"))
    same(sorted(job_id for job_id in got if job_id in fine), fine, "all others")
    same(len(got), 7, "and one of each slow kind")


# ---------------------------------------------------------------------- what is charged


@case_for_each(KINDS)
async def a_claim_charges_once_for_all_it_leased(world: World, kind: str) -> None:
    rate = Rate(3, 7.0, 5)
    await _rated(world, kind, rate)
    await world.enqueue_many(9)
    same(len(await world.claim(3, lease=FOREVER)), 3, "leased")
    bucket = charged(rate, 0.0, world.now, 3)
    same(await spent(world, kind), bucket, "spent_until")
    world.advance(1.0)
    same(len(await world.claim(2)), 2, "leased")
    same(await spent(world, kind), charged(rate, bucket, world.now, 2), "spent_until")


@case
async def every_lane_charges_the_queue_and_only_its_own_jobs_the_task(world: World) -> None:
    rate = Rate(1, 10.0, 20)
    await world.backend.declare(
        [QueueRule(name="default", rate=rate)], [TaskRule(name="work", rate=rate)], now=world.now
    )
    await world.enqueue_many(2)
    await world.enqueue_many(3, task="other")
    await world.enqueue(task="other", group="g")
    await world.enqueue(queue="other")
    same(len(await world.claim(20, queues=BOTH)), 7, "leased")
    same(await spent(world, "queue"), charged(rate, 0.0, world.now, 6), "the queue's six")
    same(await spent(world, "task"), charged(rate, 0.0, world.now, 3), "the task's three")


@case_for_each(product(KINDS, WAYS), name=lambda p: f"{p[0]}, {p[1]}")
async def nothing_is_given_back_to_a_bucket_however_a_lease_ends(world: World, param: tuple[str, str]) -> None:
    kind, ended = param
    way, max_stalls, _ = WAYS[ended]
    await _rated(world, kind, SLOW)
    await world.enqueue(max_stalls=max_stalls)
    await world.enqueue_many(2)
    lease = (await world.claim(9))[0]
    before = await flow_shown(world, kind)
    await way(world, lease)
    await world.claim_none("w9")
    same(await flow_shown(world, kind), before, "the bucket")


@case_for_each(KINDS)
async def a_claim_that_leases_nothing_charges_nothing(world: World, kind: str) -> None:
    await _rated(world, kind, SLOW)
    await world.register("w1", lease=FOREVER)
    async with world.unchanged("claims of an empty queue", besides=CALLED):
        await world.claim_none()
        await world.claim_none()
    await world.enqueue_many(3)
    await world.claim(9)
    async with world.unchanged("claims of an empty bucket", besides=CALLED):
        await world.claim_none()
        world.advance(500.0)
        await world.claim_none()


@case_for_each(KINDS)
async def a_repeated_claim_is_charged_once(world: World, kind: str) -> None:
    await _rated(world, kind, BURST)
    await world.enqueue_many(5)
    await world.register("w1")
    request = world.request("w1", 2)
    first = await world.backend.claim(request, now=world.now)
    async with world.unchanged("the same call again"):
        again = await world.backend.claim(request, now=world.now)
    same([x.token for x in again.leases], [x.token for x in first.leases], "leases")
    same(len(await world.claim(9)), 1, "left of the burst")


@case_for_each(KINDS)
async def an_expired_job_met_by_a_claim_is_not_charged(world: World, kind: str) -> None:
    await _rated(world, kind, SLOW)
    await world.enqueue_many(300, expires=10.0)
    world.advance(11.0)
    fine = await world.enqueue(priority=-1)
    got = [job_id for _ in range(3) for job_id in await world.claim_ids(2, lease=FOREVER)]
    same(got, [fine], "leased")
    same(await spent(world, kind), charged(SLOW, 0.0, world.now, 1), "charged for one")


@case
async def where_there_is_no_rate_nothing_is_written_down(world: World) -> None:
    await rule(world, limit=5)
    await task_rule(world, "other", limit=5)
    await world.enqueue_many(2)
    await world.enqueue_many(2, task="other")
    await world.enqueue(group="g")
    same(len(await world.claim(9)), 5, "leased")
    same((await world.tables())["flows"], [], "buckets")


@case_for_each(KINDS)
async def a_bucket_is_forgotten_once_it_is_full_again(world: World, kind: str) -> None:
    rate = Rate(1, 60.0)
    await _rated(world, kind, rate)
    await world.enqueue_many(2)
    await world.claim(9, lease=FOREVER)
    world.advance(30.0)
    await world.backend.prune(now=world.now)
    await world.claim_none()
    same(len((await world.tables())["flows"]), 1, "buckets while it fills")
    world.advance(DAY)
    await world.backend.prune(now=world.now)
    same((await world.tables())["flows"], [], "buckets once it is full")
    same(len(await world.claim(9)), 1, "and the rate still holds")


@case_for_each(KINDS)
async def the_rate_and_its_bucket_are_shown(world: World, kind: str) -> None:
    await _rated(world, kind, BURST)
    await world.enqueue_many(2)
    same(await flow_shown(world, kind), None, "before the first start")
    await world.claim(1)
    shown = (await queue_shown(world)).rate if kind == "queue" else (await task_shown(world)).rule.rate
    same(shown, BURST, "rate")
    flow = await flow_shown(world, kind)
    assert flow is not None, "a bucket that was charged is shown"
    same(
        (flow.queue, flow.group, flow.task), ("default", None, None) if kind == "queue" else (None, None, "work"), "of"
    )
    same((flow.spent_until, flow.shut_until), (charged(BURST, 0.0, world.now, 1), 0.0), "its times")
    same(flow.wakes_at, None, "only groups are woken")


# ---------------------------------------------------------------------- a changed rate, a clock set back


@case_for_each(KINDS)
async def a_lowered_rate_holds_from_the_next_start_on(world: World, kind: str) -> None:
    await _rated(world, kind, Rate(1000, 1.0))
    await world.enqueue_many(40)
    await world.claim(3, lease=FOREVER)
    await _rated(world, kind, Rate(1, 100.0))
    world.advance(1.0)
    same(len(await world.claim(9)), 1, "the bucket had filled")
    world.advance(99.0)
    await world.claim_none()
    world.advance(2.0)
    same(len(await world.claim(9)), 1, "the next")


@case_for_each(KINDS)
async def a_raised_rate_does_not_wait_for_the_old_one(world: World, kind: str) -> None:
    """The bucket is as far ahead as one start an hour brings it; at ten a second it opens within two tenths."""
    await _rated(world, kind, Rate(1, HOUR))
    await world.enqueue_many(40)
    await world.claim(9, lease=FOREVER)
    await _rated(world, kind, Rate(10, 1.0))
    await world.claim_none()
    world.advance(0.25)
    same(len(await world.claim(9)), 1, "started")


@case_for_each(KINDS)
async def a_clock_set_back_does_not_shut_a_bucket(world: World, kind: str) -> None:
    await _rated(world, kind, Rate(10, 1.0))
    await world.enqueue_many(9)
    await world.claim(9, lease=FOREVER)
    world.advance(-DAY)
    await world.claim_none()
    world.advance(0.25)
    same(len(await world.claim(9)), 1, "started")


@case_for_each(KINDS)
async def a_rate_that_is_declared_away_holds_nobody(world: World, kind: str) -> None:
    await _rated(world, kind, SLOW)
    ids = await world.enqueue_many(4)
    await world.claim(9)
    await _rated(world, kind, None)
    same(await world.claim_ids(9), ids[1:], "started")


# ---------------------------------------------------------------------- opens_in


@case_for_each(KINDS)
async def a_claim_that_a_rate_holds_back_says_when_it_opens(world: World, kind: str) -> None:
    rate = Rate(2, 10.0)
    await _rated(world, kind, rate)
    await world.enqueue_many(3)
    first = await answer(world)
    same(len(first.leases), 1, "leased")
    opens = opens_at(rate, await spent(world, kind))
    same(first.opens_in, opens - world.now, "said by the claim that emptied the bucket")
    world.advance(2.0)
    same((await answer(world)).opens_in, opens - world.now, "said by a claim that got nothing")
    world.now = opens
    same(len((await answer(world)).leases), 1, "started when it said")


@case
async def a_claim_that_nothing_holds_back_says_nothing(world: World) -> None:
    await rule(world, rate=BURST, limit=2)
    await task_rule(world, "other", rate=BURST)
    same((await answer(world)).opens_in, None, "of an empty queue")
    await world.enqueue_many(2)
    same((await answer(world, 1)).opens_in, None, "where the worker had no more room")
    same((await answer(world, 5)).opens_in, None, "where all were leased")
    await world.enqueue_many(2)
    same((await answer(world, 5)).opens_in, None, "where a limit holds back")
    same((await answer(world, 5, queues=("elsewhere",))).opens_in, None, "where another queue is asked for")


@case
async def the_first_of_several_to_open_is_said(world: World) -> None:
    slow, fast = Rate(1, 100.0), Rate(1, 10.0)
    await rule(world, "slow", rate=slow)
    await task_rule(world, "fast", rate=fast)
    await world.enqueue_many(2, queue="slow")
    await world.enqueue_many(2, task="fast")
    found = await answer(world, queues=("slow", "default"))
    same(len(found.leases), 2, "leased")
    same(found.opens_in, opens_at(fast, charged(fast, 0.0, world.now, 1)) - world.now, "opens_in")
    same(
        (await answer(world, queues=("slow",))).opens_in,
        opens_at(slow, charged(slow, 0.0, world.now, 1)) - world.now,
        "opens_in of the slow one alone",
    )


@case
async def a_paused_queue_and_a_parked_task_open_at_no_time(world: World) -> None:
    await rule(world, rate=SLOW)
    await task_rule(world, "other", rate=SLOW)
    await world.enqueue_many(2)
    await world.enqueue_many(2, task="other", queue="other")
    same(len((await answer(world, queues=BOTH)).leases), 2, "leased")
    await world.backend.pause(Pause(queue="default"), now=world.now)
    await world.backend.pause(Pause(task="other"), now=world.now)
    same((await answer(world, queues=BOTH)).opens_in, None, "opens_in")


@case_for_each(KINDS)
async def jobs_that_a_rate_holds_back_stay_as_they_are(world: World, kind: str) -> None:
    await _rated(world, kind, SLOW)
    ids = await world.enqueue_many(4)
    await world.claim(9, lease=FOREVER)
    same(await world.states(ids), [State.RUNNING, *[State.READY] * 3], "states")
    before = (await world.tables())["jobs"]
    for _ in range(3):
        await world.claim_none()
        world.advance(1.0)
    same((await world.tables())["jobs"], before, "jobs")


@case
async def an_operators_rate_is_charged_like_a_declared_one(world: World) -> None:
    rate = Rate(5, 4.0)
    expected = reckoned(rate, world.now, 100, STEP, 4)
    await limit(world, queue="default", rate=rate)
    await world.enqueue_many(len(expected) + 5)
    same([time for time, _ in await walked(world, 100, STEP, 4)], expected, "times at which jobs started")
