"""Conformance of the rates of groups: a group has no more ready jobs than its bucket allows, and wakes when it opens.

Called by run_case. What rates of queues and tasks have in common with them is in rates.
"""

from __future__ import annotations

from ...lifecycle import Ending, State
from ...rates import NO_RATE, UNLIMITED, Rate, charged, opens_at
from ...records import Pause
from .compare import same
from .flow import crowd, flow_shown, group_shown, in_state, limit, reckoned, rule, spent, turns, walked
from .groups import WAYS
from .registry import case, case_for_each
from .world import DAY, FOREVER, World

SLOW = Rate(1, 1000.0)
STEP = 1 / 32
WALKS = [(Rate(5, 4.0), 300), (Rate(1, 1.0), 150), (Rate(32, 2.0), 100), (Rate(4, 2.0, 3), 150)]


async def _rated(world: World, rate: Rate | None, group_limit: int = UNLIMITED) -> None:
    await rule(world, group_order="relaxed", group_limit=group_limit, group_rate=rate)


@case_for_each(WALKS, name=lambda p: str(p[0]))
async def each_group_starts_exactly_as_its_rate_allows(world: World, param: tuple[Rate, int]) -> None:
    rate, steps = param
    expected = reckoned(rate, world.now, steps, STEP, 20, woken=True)
    await _rated(world, rate)
    for name in "gh":
        await world.enqueue_many(len(expected) + 5, group=name)
    starts = await walked(world, steps, STEP, 50)
    for name in "gh":
        times = [time for time, lease in starts if lease.group == name]
        same(times, expected, f"times at which jobs of {name} started")
        most = rate.count if rate.burst is None else rate.count + rate.burst - 1
        assert crowd(times, rate.seconds) <= most, f"a window of {rate.seconds} s saw more than {most}"


@case
async def no_more_are_ready_than_the_bucket_allows(world: World) -> None:
    await _rated(world, Rate(1, 10.0, 3))
    ids = await world.enqueue_many(6, group="g")
    same(await in_state(world, ids, State.READY), ids[:3], "ready: the burst")
    await world.claim(2, lease=FOREVER)
    same(await in_state(world, ids, State.READY), ids[2:3], "ready once two started")
    world.advance(10.0)
    await world.promote_all()
    same(await in_state(world, ids, State.READY), ids[2:4], "ready after the time of one")


@case
async def a_groups_rate_holds_no_other_group_and_no_ungrouped_job(world: World) -> None:
    await _rated(world, SLOW)
    g, h = await world.enqueue_many(3, group="g"), await world.enqueue_many(3, group="h")
    alone = await world.enqueue_many(3)
    same(sorted(await world.claim_ids(20)), sorted([g[0], h[0], *alone]), "started")


@case
async def a_store_tells_whether_a_rate_keeps_a_group_of_these_queues_waiting(world: World) -> None:
    await _rated(world, Rate(2, 10.0))
    await world.enqueue_many(2, group="g")
    await world.enqueue_many(2, group="h", queue="other")  # waits for its turn, no rate
    same(await world.backend.waking(["default", "other"]), False, "before its rate is used up")
    await world.claim(9, lease=FOREVER)
    same(await world.backend.waking(["default"]), True, "of the queue")
    same(await world.backend.waking(["other"]), False, "of another")
    same(await world.backend.waking([]), False, "of none")


@case
async def a_group_that_its_rate_holds_back_says_when_it_wakes(world: World) -> None:
    rate = Rate(2, 10.0)
    await _rated(world, rate)
    ids = await world.enqueue_many(3, group="g")
    await world.claim(9, lease=FOREVER)
    flow = await flow_shown(world, "group")
    assert flow is not None, "a bucket that was charged is shown"
    bucket = charged(rate, 0.0, world.now, 1)
    same((flow.spent_until, flow.wakes_at), (bucket, opens_at(rate, bucket)), "spent_until and wakes_at")
    world.now = opens_at(rate, bucket)
    await world.promote_all()
    same(await in_state(world, ids, State.READY), ids[1:2], "ready when it said")


@case
async def claim_wakes_a_group_without_any_sweep(world: World) -> None:
    await _rated(world, Rate(1, 10.0))
    ids = await world.enqueue_many(3, group="g")
    for job_id in ids:
        same(await world.claim_ids(9, lease=FOREVER), [job_id], "started")
        await world.claim_none()
        world.advance(10.125)


@case
async def a_group_that_only_its_limit_holds_back_is_not_woken(world: World) -> None:
    await _rated(world, Rate(1, 10.0, 5), group_limit=2)
    ids = await world.enqueue_many(4, group="g")
    leases = await world.claim(9, lease=FOREVER)
    same([lease.id for lease in leases], ids[:2], "the limit")
    flow = await flow_shown(world, "group")
    same(None if flow is None else flow.wakes_at, None, "wakes_at")
    await world.end(leases[0])
    same(await in_state(world, ids, State.READY), ids[2:3], "ready: the place came free")


@case_for_each(WAYS)
async def nothing_is_given_back_to_a_groups_bucket(world: World, ended: str) -> None:
    way, max_stalls, _ = WAYS[ended]
    await _rated(world, SLOW)
    await world.enqueue(group="g", max_stalls=max_stalls)
    await world.enqueue_many(2, group="g")
    lease = await world.claim_one()
    before = await spent(world, "group")
    await way(world, lease)
    await world.claim_none("w9")
    same(await spent(world, "group"), before, "spent_until")


@case
async def a_job_given_back_goes_first_when_its_group_wakes(world: World) -> None:
    await _rated(world, Rate(1, 10.0))
    ids = await world.enqueue_many(3, group="g")
    await world.give_back(await world.claim_one(ids[0], lease=FOREVER))
    await world.claim_none()
    world.advance(10.125)
    same(await world.claim_ids(9), ids[:1], "started")


@case
async def a_lowered_rate_withdraws_ready_jobs(world: World) -> None:
    await _rated(world, Rate(1, 10.0, 4))
    ids = await world.enqueue_many(5, group="g")
    before = await turns(world, ids[:4])
    await _rated(world, Rate(1, 10.0, 2))
    same(await in_state(world, ids, State.READY), ids[:2], "ready: the first stay")
    same(await turns(world, ids[:4]), before, "turns")
    await _rated(world, Rate(1, 10.0, 5))
    same(await in_state(world, ids, State.READY), ids, "ready once it is raised")
    same(await turns(world, ids[:4]), before, "turns")
    same(await world.claim_ids(9), ids, "order")


@case
async def a_raised_rate_wakes_a_group_at_once(world: World) -> None:
    await _rated(world, Rate(1, DAY))
    ids = await world.enqueue_many(9, group="g")
    await world.claim(9, lease=FOREVER)
    await _rated(world, Rate(10, 1.0))
    await world.claim_none()
    world.advance(0.25)
    same(await world.claim_ids(9), ids[1:2], "started")


@case
async def a_clock_set_back_does_not_put_a_group_to_sleep_for_long(world: World) -> None:
    await _rated(world, Rate(10, 1.0))
    ids = await world.enqueue_many(9, group="g")
    await world.claim(9, lease=FOREVER)
    world.advance(-DAY)
    same(await world.backend.refill(now=world.now), 0, "made ready by the sweep that finds it")
    world.advance(0.25)
    same(await world.claim_ids(9), ids[1:2], "started")


@case
async def a_rate_that_is_declared_away_fills_the_groups(world: World) -> None:
    await _rated(world, SLOW)
    ids = await world.enqueue_many(4, group="g")
    await world.claim(9, lease=FOREVER)
    await _rated(world, None)
    same(await in_state(world, ids, State.READY), ids[1:], "ready")
    same(await world.claim_ids(9), ids[1:], "started")


@case
async def the_word_on_a_groups_rate_is_for_that_group_alone(world: World) -> None:
    await _rated(world, SLOW)
    g, h = await world.enqueue_many(4, group="g"), await world.enqueue_many(4, group="h")
    await limit(world, queue="default", group="g", rate=Rate(1, 1000.0, 3))
    same(await in_state(world, [*g, *h], State.READY), [*g[:3], h[0]], "ready")
    shown = await group_shown(world)
    same((shown.rate, shown.rate_override), (Rate(1, 1000.0, 3), Rate(1, 1000.0, 3)), "shown")
    same(((await group_shown(world, "h")).rate, (await group_shown(world, "h")).rate_override), (SLOW, None), "of h")
    await limit(world, queue="default", group="g", rate=NO_RATE)
    same(await in_state(world, g, State.READY), g, "ready once it is lifted")
    shown = await group_shown(world)
    same((shown.rate, shown.rate_override), (None, NO_RATE), "shown: none in force, as the operator said")
    await limit(world, queue="default", group="g", rate=None)
    same(await in_state(world, g, State.READY), g[:1], "ready once it is reset")


@case
async def a_strict_group_heeds_its_rate(world: World) -> None:
    await rule(world, group_rate=Rate(1, 10.0, 2))
    ids = await world.enqueue_many(4, group="g")
    for job_id in ids[:2]:
        await world.end(await world.claim_one(job_id, lease=FOREVER))
    await world.claim_none()
    world.advance(10.0)
    lease = await world.claim_one(ids[2])
    world.advance(20.0)
    await world.claim_none()
    await world.end(lease)
    same(await world.claim_ids(9), ids[3:], "one at a time")


@case
async def an_undeclared_queues_group_can_be_given_a_rate(world: World) -> None:
    ids = await world.enqueue_many(3, group="g")
    await limit(world, queue="default", group="g", rate=Rate(1, 10.0))
    await world.end(await world.claim_one(ids[0], lease=FOREVER))
    await world.claim_none()
    world.advance(10.125)
    await world.claim_one(ids[1])


@case
async def a_failing_head_of_a_strict_group_is_charged_for_every_start(world: World) -> None:
    await rule(world, group_rate=Rate(1, 10.0))
    head, behind = await world.enqueue_many(2, group="g")
    await world.end(await world.claim_one(head, lease=FOREVER), Ending.RETRY, delay=1.0)
    world.advance(2.0)
    await world.claim_none()
    world.advance(8.125)
    await world.end(await world.claim_one(head))
    world.advance(10.125)
    await world.claim_one(behind)


@case
async def a_paused_group_does_not_wake(world: World) -> None:
    await _rated(world, Rate(1, 10.0))
    ids = await world.enqueue_many(3, group="g")
    await world.claim(9, lease=FOREVER)
    pause = Pause(queue="default", group="g")
    await world.backend.pause(pause, now=world.now)
    world.advance(60.0)
    await world.claim_none()
    await world.backend.resume(pause, now=world.now)
    same(await world.claim_ids(9), ids[1:2], "once it is resumed")


@case
async def a_sleeping_groups_bucket_is_not_forgotten(world: World) -> None:
    await _rated(world, Rate(1, 10.0))
    ids = await world.enqueue_many(3, group="g")
    await world.claim(9, lease=FOREVER)
    world.advance(DAY)
    await world.backend.prune(now=world.now)
    same(await world.claim_ids(9), ids[1:2], "it wakes all the same")


@case
async def a_groups_bucket_is_forgotten_once_it_is_full_again(world: World) -> None:
    await _rated(world, Rate(1, 10.0))
    await world.end((await world.leased(1, group="g"))[0])
    world.advance(DAY)
    await world.backend.prune(now=world.now)
    same((await world.tables())["flows"], [], "buckets")


@case
async def a_thousand_sleeping_groups_wake_and_none_is_lost(world: World) -> None:
    number = world.sized(300)
    await _rated(world, Rate(1, 10.0))
    for n in range(number):
        await world.enqueue_many(2, group=f"g{n}")
    same(len(await world.claim(2 * number, lease=FOREVER)), number, "heads")
    world.advance(10.125)
    got = [job_id for _ in range(5) for job_id in await world.claim_ids(2 * number)]
    same(len(set(got)), number, "the second of each group")
    same(await world.backend.refill(now=world.now), 0, "refill, the safety net, finds nothing to do")
