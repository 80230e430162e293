"""Conformance of refill: however a lease ends, the group's next job comes, and no group is ever left wedged.

Called by run_case. One case per way a lease can end times strict and relaxed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from ...lifecycle import Ending, State
from ...records import Lease, Release
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World

Way = Callable[[World, Lease], Awaitable[object]]
DELAY = 40.0


async def _recover(world: World, lease: Lease) -> None:
    await world.expire_worker()
    same(len(await world.backend.recover(now=world.now)), 1, "recovered")


async def _recover_named(world: World, lease: Lease) -> None:
    same(len(await world.backend.recover(dead=["w1"], now=world.now)), 1, "recovered")


async def _expire(world: World, lease: Lease) -> None:
    await world.expire_worker()


async def _unname(world: World, lease: Lease) -> None:
    await world.renew("w1", [])


async def _retire(world: World, lease: Lease) -> None:
    await world.backend.retire("w1", now=world.now)


async def _cancel_then_release(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await world.give_back(lease)


async def _cancel_then_recover(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await _recover(world, lease)


async def _cancel_then_stall(world: World, lease: Lease) -> None:
    await world.backend.cancel(lease.id, now=world.now)
    await world.end(lease, Ending.STALLED)


async def _exchange(world: World, lease: Lease) -> None:
    await world.exchange([], [Release(id=lease.id, token=lease.token)], None)


def _settle(ending: Ending) -> Way:
    async def end(world: World, lease: Lease) -> None:
        await world.end(lease, ending, delay=DELAY if ending in (Ending.RETRY, Ending.SNOOZED) else 0.0)

    return end


def _release(delay: float) -> Way:
    async def end(world: World, lease: Lease) -> None:
        await world.give_back(lease, delay)

    return end


# how it ended → (the step, max_stalls of the job, what becomes of the job: over, back at once, or back later)
WAYS: dict[str, tuple[Way, int, str]] = {
    "succeeded": (_settle(Ending.SUCCEEDED), 3, "over"),
    "retry": (_settle(Ending.RETRY), 3, "later"),
    "snoozed": (_settle(Ending.SNOOZED), 3, "later"),
    "buried": (_settle(Ending.BURIED), 3, "over"),
    "cancelled": (_settle(Ending.CANCELLED), 3, "over"),
    "stalled": (_settle(Ending.STALLED), 3, "back"),
    "stalled, at most once": (_settle(Ending.STALLED), 0, "over"),
    "released": (_release(0.0), 3, "back"),
    "released by exchange": (_exchange, 3, "back"),
    "released for later": (_release(DELAY), 3, "later"),
    "recovered": (_recover, 3, "back"),
    "recovered by name": (_recover_named, 3, "back"),
    "recovered by the next claim": (_expire, 3, "back"),
    "recovered, never begun": (_recover, 0, "back"),
    "given back by renew": (_unname, 3, "back"),
    "retired": (_retire, 3, "back"),
    "cancelled, then released": (_cancel_then_release, 3, "over"),
    "cancelled, then recovered": (_cancel_then_recover, 3, "over"),
    "cancelled, then stalled": (_cancel_then_stall, 3, "over"),
}


async def _drain(world: World, first: list[str], *, worker: str = "w9") -> list[str]:
    """Claim and finish one by one until all are finished; answers the order. Time passes only where nothing comes."""
    order: list[str] = []
    for _ in range(4 * len(first)):
        leases = await world.claim(1, worker, lease=FOREVER)
        if not leases:
            world.advance(DELAY + 1.0)
            continue
        order.append(leases[0].id)
        await world.end(leases[0])
    left = [job_id for job_id in first if not (await world.state(job_id)).finished]
    same(left, [], "jobs the group never got to")
    return order


@case_for_each(product(("strict", "relaxed"), WAYS), name=lambda p: f"{p[0]}, {p[1]}")
async def the_next_job_comes_however_a_lease_ends(world: World, param: tuple[str, str]) -> None:
    order, ended = param
    way, max_stalls, fate = WAYS[ended]
    await (world.strict() if order == "strict" else world.relaxed(1))
    head = await world.enqueue(group="g", max_stalls=max_stalls)
    second, third = await world.enqueue_many(2, group="g")
    await way(world, await world.claim_one(head))
    if fate == "over":
        assert (await world.state(head)).finished, f"a lease that was {ended} ends its job"
        expected = [second, third]
    elif fate == "back" or order == "strict":
        expected = [head, second, third]
    else:
        expected = [second, third, head]
    same(await _drain(world, [head, second, third]), expected, f"order after the head was {ended}")
    same(await world.backend.refill(now=world.now), 0, "refill, the safety net, finds nothing to do")


@case_for_each([True, False], name=lambda begun: "begun" if begun else "not begun")
async def a_head_stalled_once_too_often_frees_its_group(world: World, begun: bool) -> None:
    head = await world.enqueue(group="g", max_stalls=0 if begun else 1)
    behind = await world.enqueue(group="g")
    for _ in range(1 if begun else 2):
        lease = await world.claim_one(head)
        if begun:
            await world.begin(lease)
        await world.backend.recover(dead=["w1"], now=world.now)
        await world.register("w1")
    await world.is_in(head, State.DEAD)
    await world.claim_one(behind)


@case
async def refill_is_bounded_and_finds_nothing_in_a_sound_store(world: World) -> None:
    await world.relaxed(2)
    for n in range(5):
        await world.enqueue_many(3, group=f"g{n}")
    async with world.unchanged("refill of a sound store"):
        same(await world.backend.refill(limit=1, now=world.now), 0, "made ready")
        same(await world.backend.refill(now=world.now), 0, "made ready")


@case
async def a_strict_group_keeps_its_order_through_every_trouble(world: World) -> None:
    """Every job of a group meets every ending that is not its end, one after the other, and the order stands."""
    troubles = [name for name, (_, _, fate) in WAYS.items() if fate != "over" and "never begun" not in name]
    ids = await world.enqueue_many(3, group="g", max_stalls=50)
    order = []
    for job_id in ids:
        for trouble in troubles:
            await world.register("w1")
            await WAYS[trouble][0](world, await world.claim_one(job_id))
            world.advance(DELAY + 1.0)
            await world.backend.recover(now=world.now)
        lease = await world.claim_one(worker="w9", lease=FOREVER)
        order.append(lease.id)
        await world.end(lease)
    same(order, ids, "order of the group")
