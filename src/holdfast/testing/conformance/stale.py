"""Conformance of fencing: a call that names a token which is no longer the current one changes nothing at all.

Called by run_case. One case per way a lease ended times call that comes too late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from ...lifecycle import Ending, State
from ...records import Answer, Held, Lease, Release
from .compare import CALLED, same
from .registry import case, case_for_each
from .world import FOREVER, NO_TOKEN, World

Named = Lease | Held
Step = Callable[[World, Named], Awaitable[object]]


async def _reclaimed(world: World, lease: Named) -> None:
    await world.give_back(lease)
    await world.claim_one(lease.id, "w2", lease=FOREVER)


async def _reclaimed_by_itself(world: World, lease: Named) -> None:
    await world.give_back(lease)
    await world.claim_one(lease.id)


async def _recovered(world: World, lease: Named) -> None:
    await world.expire_worker()
    same([r.id for r in await world.backend.recover(now=world.now)], [lease.id], "recovered")


async def _recovered_by_claim(world: World, lease: Named) -> None:
    await world.expire_worker()
    await world.claim_one(lease.id, "w2", lease=FOREVER)


async def _unnamed(world: World, lease: Named) -> None:
    same((await world.renew("w1", [])).released, (lease.id,), "given back")


async def _retired(world: World, lease: Named) -> None:
    await world.backend.retire("w1", now=world.now)


def _settled(ending: Ending) -> Step:
    async def end(world: World, lease: Named) -> None:
        await world.end(lease, ending)

    return end


def _released(delay: float) -> Step:
    async def end(world: World, lease: Named) -> None:
        await world.give_back(lease, delay)

    return end


ENDED: dict[str, Step] = {
    "released": _released(0.0),
    "released for later": _released(60.0),
    "reclaimed by another": _reclaimed,
    "reclaimed by the same worker": _reclaimed_by_itself,
    "recovered": _recovered,
    "recovered by a claim": _recovered_by_claim,
    "given back by renew": _unnamed,
    "retired": _retired,
    **{f"settled {ending}": _settled(ending) for ending in Ending},
}


async def _late_begin(world: World, lease: Named) -> None:
    same(await world.begin(lease), Answer.LOST, "begin")


async def _late_report(world: World, lease: Named) -> None:
    answer = await world.report(lease, progress=0.7, text="late", lines=("late",))
    same(answer, Answer.LOST, "report")


async def _late_release(world: World, lease: Named) -> None:
    same(await world.release(lease), Answer.LOST, "release")
    same(await world.release(lease, 60.0), Answer.LOST, "release for later")


async def _late_exchange(world: World, lease: Named) -> None:
    answer = await world.exchange(
        [world.settlement(lease, Ending.SUCCEEDED)], [Release(id=lease.id, token=lease.token)], None
    )
    same(answer.answers, (Answer.LOST, Answer.LOST), "exchange")


def _late_settle(ending: Ending) -> Step:
    async def settle(world: World, lease: Named) -> None:
        same(await world.settle(lease, ending, value=b'"late"'), Answer.LOST, f"settle {ending}")

    return settle


LATE: dict[str, Step] = {
    "begin": _late_begin,
    "report": _late_report,
    "release": _late_release,
    "exchange": _late_exchange,
    **{f"settle {ending}": _late_settle(ending) for ending in Ending},
}


async def _ended(world: World, ended: str) -> Lease:
    job_id = await world.enqueue(group="g", key="k")
    lease = await world.claim_one(job_id)
    await ENDED[ended](world, lease)
    return lease


@case_for_each(product(ENDED, LATE), name=lambda p: f"{p[1]} after it was {p[0]}")
async def a_stale_token_changes_nothing(world: World, param: tuple[str, str]) -> None:
    ended, late = param
    lease = await _ended(world, ended)
    async with world.unchanged(f"{late} under a lease that was {ended}"):
        await LATE[late](world, lease)


@case_for_each(ENDED)
async def renew_naming_a_stale_token_moves_only_the_deadline(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    await world.register("w3")
    for worker in ("w1", "w3"):
        async with world.unchanged(f"renew naming a lease that was {ended}", besides=CALLED):
            # seen_call 0: nothing this worker was handed since is given back, so only the naming is judged.
            renewal = await world.renew(worker, [lease], seen_call=0)
        assert not renewal.known or renewal.lost == (lease.id,), f"the stale lease must be told lost, got {renewal}"


@case_for_each(["recovered", "recovered by a claim", "retired"])
async def a_late_renew_of_a_worker_that_is_gone_answers_unknown(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    async with world.unchanged("a late renew"):
        same((await world.renew("w1", [lease])).known, False, "known")


@case_for_each(["recovered", "recovered by a claim", "retired"])
async def a_late_exchange_of_a_worker_that_is_gone_changes_nothing(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    await world.enqueue()
    async with world.unchanged("a late settle and claim"):
        answer = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], [], world.request(most=5))
    same((answer.known, answer.answers, answer.leases), (False, (Answer.LOST,), ()), "answer")


@case_for_each(LATE)
async def a_token_of_another_job_is_worth_nothing(world: World, late: str) -> None:
    one, two = await world.leased(2)
    crossed = Held(one.id, two.token)
    async with world.unchanged(f"{late} with another job's token"):
        await LATE[late](world, crossed)


@case_for_each(LATE)
async def a_job_that_does_not_exist_is_lost(world: World, late: str) -> None:
    await world.put(State.RUNNING)
    nobody = Held("nobody", NO_TOKEN)
    async with world.unchanged(f"{late} of a job that does not exist"):
        await LATE[late](world, nobody)


@case
async def an_empty_token_matches_no_job(world: World) -> None:
    """Jobs without a lease have no token: none at all must not equal an empty one."""
    ids = [await world.enqueue(), await world.enqueue(delay=60.0)]
    async with world.unchanged("calls with an empty token"):
        for job_id in ids:
            blank = Held(job_id, "")
            for late in LATE.values():
                await late(world, blank)
