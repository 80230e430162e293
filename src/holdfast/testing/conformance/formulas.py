"""Conformance of the formulas that stores spell in languages of their own: each against its reference, by table.

Called by run_case. The references are backends/formulas.py, lifecycle.stall_verdict and Revival.cooldown; the one for
GCRA is in `rates`. A table's row is played on every way on which a store writes the column, because a fast path may
spell it for itself: alone, in bulk, when due, after others of the group, and given back.
"""

from __future__ import annotations

from itertools import product

from ...backends import formulas
from ...lifecycle import Ending, StallVerdict, State, stall_verdict
from ...records import LIFO, SERIAL_PREFIX, GroupOrder, Override, Pause, Revival
from .compare import same
from .flow import rule, task_rule
from .registry import case_for_each
from .world import FOREVER, World

BULK = 25  # enough for every store's way for many jobs
NEAR = 1000  # ticks: how far apart turns are that were issued in one step
BOTH = (False, True)


async def _on_every_way(world: World, *, grouped: bool, priority: int = 0) -> dict[str, str]:
    """Ready jobs by the way on which each became ready."""
    names = iter(range(1000))

    def group() -> str | None:
        return f"g{next(names)}" if grouped else None

    jobs = [world.job(group=group(), priority=priority) for _ in range(BULK)]
    found = {"alone": await world.enqueue(group=group(), priority=priority), "in bulk": jobs[-1].id}
    await world.backend.enqueue(jobs, now=world.now)
    found["when due"] = await world.enqueue(group=group(), priority=priority, delay=5.0)
    found["with a key"] = await world.enqueue(group=group(), priority=priority, key="k")
    found["revived"] = await world.enqueue(group=group(), priority=priority)
    await world.backend.bury(found["revived"], "", now=world.now)
    await world.backend.revive(found["revived"], now=world.now)
    if grouped:
        first = await world.enqueue(group="line", priority=9)
        found["after another"] = await world.enqueue(group="line", priority=priority)
        await world.backend.cancel(first, now=world.now)
    world.advance(6.0)
    await world.promote_all()
    return found


@case_for_each(
    list(product(BOTH, BOTH, BOTH)),
    name=lambda p: (
        " ".join(word for word, is_so in zip(("paused", "apart", "grouped"), p, strict=True) if is_so) or "plain"
    ),
)
async def a_ready_job_is_in_the_lane_of_the_formula(world: World, param: tuple[bool, bool, bool]) -> None:
    parked, apart, grouped = param
    if apart:
        await task_rule(world, apart=True)
    if parked:
        await world.backend.pause(Pause(task="work"), now=world.now)
    found = await _on_every_way(world, grouped=grouped)
    if not parked:
        lease = await world.claim_one(worker="w-back", lease=FOREVER)
        await world.give_back(lease)
        found["given back"] = lease.id
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    lane = formulas.lane(parked=parked, apart=apart, grouped=grouped)
    states = {way: (rows[job_id]["state"], rows[job_id]["lane"]) for way, job_id in found.items()}
    same(states, dict.fromkeys(found, (State.READY, lane)), "lanes")


@case_for_each(
    [(grouped, aging, priority) for grouped in BOTH for aging in (None, 2.5, 0.3, LIFO) for priority in (-7, 0, 3)],
    name=lambda p: f"{'grouped' if p[0] else 'ungrouped'}, aging {p[1]}, priority {p[2]}",
)
async def a_ready_job_has_the_rank_and_turn_of_the_formula(world: World, param: tuple[bool, float | None, int]) -> None:
    grouped, aging, priority = param
    await rule(world, aging=aging)
    found = await _on_every_way(world, grouped=grouped, priority=priority)
    pair = [world.job(group=f"p{place}" if grouped else None, priority=place * priority) for place in range(2)]
    await world.backend.enqueue(pair, now=world.now)
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    ranks = {way: rows[job_id]["rank"] for way, job_id in found.items()}
    same(ranks, dict.fromkeys(found, formulas.rank(priority, aging)), "ranks")
    apart = rows[pair[1].id]["turn"] - rows[pair[0].id]["turn"]
    off = apart + formulas.age_shift(priority, aging)
    assert abs(off) <= NEAR, f"priority {priority} moved the turn by {apart} ticks, {off} off the formula"


DECLARED: list[tuple[GroupOrder, int]] = [("strict", 1), ("relaxed", 1), ("relaxed", 3)]
LIMITS: list[tuple[str, GroupOrder, int, int | None, bool]] = [
    (name, order, declared, said, paused)
    for name in ("g", f"{SERIAL_PREFIX}g")
    for order, declared in DECLARED
    for said in (None, 1, 2)
    for paused in BOTH
    if said != 2 or formulas.group_order(name, order) == "relaxed"  # a strict group refuses more than 1
]


@case_for_each(LIMITS, name=lambda p: f"{p[0]}, {p[1]} {p[2]}, said {p[3]}{', paused' if p[4] else ''}")
async def a_group_has_as_many_in_play_as_the_formula_allows(
    world: World, param: tuple[str, GroupOrder, int, int | None, bool]
) -> None:
    name, order, declared, said, paused = param
    await rule(world, group_order=order, group_limit=declared)
    if said is not None:
        await world.backend.limit(Override(queue="default", group=name, limit=said), now=world.now)
    if paused:
        await world.backend.pause(Pause(queue="default", group=name), now=world.now)
    limit = formulas.group_limit(formulas.group_order(name, order), declared, said, paused=paused)
    ids = await world.enqueue_many(5, group=name)
    same((await world.states(ids)).count(State.READY), limit, "ready after enqueue")
    leases = await world.claim(5, lease=FOREVER)
    same(len(leases), limit, "leased")
    for lease in leases:
        await world.end(lease)
    same(len(await world.claim(5, "w2", lease=FOREVER)), min(limit, 5 - limit), "leased after those ended")


@case_for_each(
    list(product((0.0, 599.0, 601.0, 5000.0), (None, 50.0, 20_000.0))),
    name=lambda p: f"retain {p[0]:g}, window {p[1]}",
)
async def a_finished_job_is_kept_as_long_as_the_formula_says(world: World, param: tuple[float, float | None]) -> None:
    retain, window = param
    created_at = world.now
    keys = (f"key-{place}" for place in range(100))
    ids = [await world.enqueue(key=None if window is None else next(keys), key_window=window) for _ in range(7)]
    world.advance(3.0)
    leases = await world.claim(6, lease=FOREVER)  # any six: shards have no order among them
    endings = [Ending.SUCCEEDED] * 5 + [Ending.CANCELLED]
    settled = [world.settlement(lease, ending, retain=retain) for lease, ending in zip(leases, endings, strict=True)]
    ended = [lease.id for lease in leases]
    (left,) = set(ids) - set(ended)
    await world.backend.exchange(settled[:1], (), None, now=world.now)  # one alone, four together, one otherwise
    await world.backend.exchange(settled[1:5], (), None, now=world.now)
    await world.backend.exchange(settled[5:], (), None, now=world.now)
    ends = formulas.window_end(None if window is None else "key", created_at, window)
    kept = formulas.prune_at(world.now, retain, ends)
    same([(await world.row(job_id))["prune_at"] for job_id in ended], [kept] * 6, "prune times")
    await world.backend.bury(left, "", now=world.now)
    same((await world.row(left))["prune_at"], None, "prune time of a dead job that holds its letter")
    await world.backend.discard(left, now=world.now)
    same((await world.row(left))["prune_at"], formulas.prune_at(world.now, 0.0, ends), "prune time without its letter")


STATES = {
    StallVerdict.FREE: State.READY,
    StallVerdict.AGAIN: State.READY,
    StallVerdict.BURY: State.DEAD,
    StallVerdict.CANCEL: State.CANCELLED,
}


@case_for_each(
    list(product((0, 1, 2), BOTH, BOTH, BOTH)),
    name=lambda p: f"max_stalls {p[0]}{' alone' * p[1]}{' begun' * p[2]}{' cancelled' * p[3]}",
)
async def a_stall_is_decided_by_the_formula(world: World, param: tuple[int, bool, bool, bool]) -> None:
    max_stalls, alone, begun, cancelled = param
    job_id = await world.enqueue(max_stalls=max_stalls)
    for attempt in range(3):
        worker = f"w{attempt}"
        await world.register(worker, isolates=not alone)
        before = await world.get(job_id)
        lease = await world.claim_one(job_id, worker)
        if begun:
            await world.begin(lease)
        if cancelled:
            await world.backend.cancel(job_id, now=world.now)
        verdict = stall_verdict(
            stalls=before.stalls,
            shared_stalls=before.shared_stalls,
            max_stalls=max_stalls,
            alone=alone or before.suspect,
            begun=begun,
            cancel_requested=cancelled,
        )
        await world.expire_worker(worker)
        await world.backend.recover(now=world.now)
        await world.is_in(job_id, STATES[verdict])
        if verdict is not StallVerdict.AGAIN:
            return


@case_for_each(
    [Revival(after=4.0, factor=3.0, cap=50.0, cycles=4), Revival(after=7.5, factor=1e200, cap=9.0, cycles=3)],
    name=lambda revival: f"factor {revival.factor:g}, cap {revival.cap:g}",
)
async def a_revival_waits_as_long_as_the_formula_says(world: World, revival: Revival) -> None:
    job_id = await world.enqueue(revival=revival)
    for done in range(revival.cycles + 1):
        await world.end(await world.claim_one(job_id, lease=FOREVER), Ending.BURIED)
        cooldown = revival.cooldown(done)
        expected = None if cooldown is None else world.now + cooldown
        same((await world.letter(job_id)).revive_at, expected, f"next revival after {done}")
        if cooldown is not None:
            world.advance(cooldown)
            await world.promote_all()
