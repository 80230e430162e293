"""Conformance of chains: consecutive jobs of a strict group that one claim leases together, for one after the other.

Called by run_case. In most cases three jobs of a group are leased, the first of them running, the others behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

from ...errors import StateConflict
from ...lifecycle import Ending, State
from ...rates import Rate
from ...records import Answer, Edit, Exchanged, Lease, Override, Pause, QueueRule, Release, TaskRule
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, World

ROOMY = 100  # chained leases that a claim allows, where a case is not about that


async def _exchange(world: World, most: int = 1, longest: int = 3, worker: str = "w1", **fields: Any) -> Exchanged:
    """A claim that allows chains in every queue it names."""
    lease = fields.pop("lease", 30.0)
    if not world.last_call(worker):
        await world.register(worker, lease=lease, isolates=fields.pop("isolates", False))
    queues = fields.setdefault("queues", ("default",))
    fields.setdefault("chained_max", ROOMY)
    fields.setdefault("chain_by_queue", dict.fromkeys(queues, longest))
    return await world.backend.claim(world.request(worker, most, **fields), now=world.now)


async def _chain(world: World, most: int = 1, longest: int = 3, **fields: Any) -> list[Lease]:
    return list((await _exchange(world, most, longest, **fields)).leases)


async def _three(world: World, **fields: Any) -> list[Lease]:
    """Three jobs of a group in one chain; two more wait behind them."""
    lease = fields.pop("lease", FOREVER)
    await world.enqueue_many(5, group="g", **fields)
    leases = await _chain(world, lease=lease)
    same([lease.chained for lease in leases], [False, True, True], "chained")
    return leases


async def _in_turn(world: World, ids: list[str]) -> None:
    """These are claimed and succeed one by one, in this order."""
    for job_id in ids:
        await world.end(await world.claim_one(job_id, "w9", lease=FOREVER))


# ---------------------------------------------------------------------- which jobs are leased together


@case
async def a_chain_has_the_next_jobs_of_its_group_in_order(world: World) -> None:
    ids = await world.enqueue_many(5, group="g")
    leases = await _chain(world)
    same([lease.id for lease in leases], ids[:3], "jobs")
    same([lease.chained for lease in leases], [False, True, True], "chained")
    same([lease.fence for lease in leases], sorted(lease.fence for lease in leases), "fences")
    same(len({lease.started_at for lease in leases}), 1, "they begin at one instant")
    same(len({lease.token for lease in leases}), 3, "tokens")
    same(await world.states(ids), [State.RUNNING] * 3 + [State.WAITING] * 2, "states")


@case
async def a_claim_that_does_not_ask_for_chains_leases_none(world: World) -> None:
    ids = await world.enqueue_many(3, group="g")
    same([lease.id for lease in await _chain(world, 5, chained_max=0)], ids[:1], "chained_max 0")
    await world.enqueue_many(3, group="h")
    same(len(await _chain(world, 5, chain_by_queue={"other": 3})), 1, "another queue")


@case
async def the_job_whose_lease_ends_makes_way_for_a_chain_in_the_same_exchange(world: World) -> None:
    ids = await world.enqueue_many(7, group="g")
    answer = await _exchange(world)
    for first in (0, 3):
        same([lease.id for lease in answer.leases], ids[first : first + 3], "jobs")
        done = [world.settlement(lease, Ending.SUCCEEDED) for lease in answer.leases]
        request = world.request(most=1, chain_by_queue={"default": 3}, chained_max=ROOMY)
        answer = await world.exchange(done, (), request)
        same(answer.answers, (Answer.OK,) * 3, "answers")
    same([lease.id for lease in answer.leases], ids[6:], "the last one")
    same([lease.chained for lease in answer.leases], [False], "chained")


@case
async def several_groups_share_what_may_be_chained(world: World) -> None:
    one = await world.enqueue_many(5, group="one")
    two = await world.enqueue_many(5, group="two")
    loose = await world.enqueue()
    leases = await _chain(world, 3, 5, chained_max=4)
    found = {name: [lease.id for lease in leases if lease.group == name] for name in ("one", "two", None)}
    same(found, {"one": one[:3], "two": two[:3], None: [loose]}, "jobs by group")


@case
async def what_a_group_cannot_use_goes_to_the_groups_after_it(world: World) -> None:
    named = {
        group: await world.enqueue_many(jobs, group=group) for group, jobs in (("a", 2), ("b", 6), ("c", 2), ("d", 6))
    }
    leases = await _chain(world, 4, 9, chained_max=8)
    found = {name: [lease.id for lease in leases if lease.group == name] for name in named}
    same(found, {"a": named["a"], "b": named["b"][:4], "c": named["c"], "d": named["d"][:4]}, "jobs by group")


@case
async def room_that_seems_used_up_is_dealt_to_the_next_group(world: World) -> None:
    await world.enqueue(group="a")
    await world.enqueue(group="a", priority=-1)
    ids = await world.enqueue_many(2, group="b")
    leases = await _chain(world, 2, 9, chained_max=1)
    same([lease.id for lease in leases if lease.chained], ids[1:], "chained")


@case
async def most_counts_no_chained_leases(world: World) -> None:
    for group in ("a", "b", "c"):
        await world.enqueue_many(2, group=group)
    leases = await _chain(world, 2)
    same([lease.chained for lease in leases].count(False), 2, "not chained")
    same([lease.chained for lease in leases].count(True), 2, "chained")


@case
async def a_chain_ends_before_the_arguments_exceed_the_bound(world: World) -> None:
    ids = await world.enqueue_many(5, group="g", args=b'{"x": "' + b"y" * 100 + b'"}')
    leases = await _chain(world, 1, 5, bytes_max=340)
    same([lease.id for lease in leases], ids[:3], "jobs")


async def _at_most_once(world: World) -> None:
    await world.enqueue(group="g", max_stalls=0)


async def _urgent(world: World) -> None:
    await world.enqueue(group="g", priority=-1)


async def _of_paused_task(world: World) -> None:
    await world.backend.pause(Pause(task="paused"), now=world.now)
    await world.enqueue(group="g", task="paused")


async def _of_limited_task(world: World) -> None:
    await world.backend.declare([], [TaskRule(name="limited", limit=5)], now=world.now)
    await world.enqueue(group="g", task="limited")


async def _of_task_apart(world: World) -> None:
    await world.backend.limit(Override(task="apart", apart=True), now=world.now)
    await world.enqueue(group="g", task="apart")


STOPS: dict[str, Callable[[World], Awaitable[None]]] = {
    "at most once": _at_most_once,
    "another priority": _urgent,
    "task paused": _of_paused_task,
    "task limited": _of_limited_task,
    "task apart": _of_task_apart,
}


@case_for_each(STOPS)
async def a_chain_ends_before_a_job_that_is_not_like_the_others(world: World, stop: str) -> None:
    ids = await world.enqueue_many(2, group="g")
    await STOPS[stop](world)
    await world.enqueue(group="g", priority=-1)
    leases = await _chain(world, 1, 10)
    same([lease.id for lease in leases], ids, "jobs")


@case
async def a_chain_ends_before_an_expired_job(world: World) -> None:
    ids = await world.enqueue_many(2, group="g")
    late = await world.enqueue(group="g", expires=5.0)
    await world.enqueue(group="g")
    world.advance(10.0)
    leases = await _chain(world, 1, 10, sweep_max=1)  # whether or not its own promote was first to find it
    assert late not in [lease.id for lease in leases], "an expired job was leased"
    same([lease.id for lease in leases][:2], ids, "jobs")


@case
async def a_job_at_most_once_leads_no_chain(world: World) -> None:
    first = await world.enqueue(group="g", max_stalls=0)
    await world.enqueue_many(2, group="g")
    same([lease.id for lease in await _chain(world)], [first], "jobs")


@case
async def a_suspect_leads_no_chain_and_is_in_none(world: World) -> None:
    ids = await world.enqueue_many(4, group="g")
    await world.end(await world.claim_one(ids[0], lease=FOREVER), Ending.STALLED)
    [suspect] = await _chain(world)
    same((suspect.id, suspect.suspect), (ids[0], True), "the suspect")
    await world.end(suspect)
    same([lease.id for lease in await _chain(world)], ids[1:], "the others")


@case
async def an_older_job_that_fell_due_is_not_chained_behind_a_younger_one(world: World) -> None:
    older = await world.enqueue(group="g", delay=10.0)
    younger, last = await world.enqueue_many(2, group="g")
    lease = await world.claim_one(younger, lease=FOREVER)
    world.advance(11.0)
    await world.promote_all()
    await world.give_back(lease)  # held: it goes first
    same([lease.id for lease in await _chain(world)], [younger], "jobs")
    same(await world.states([older, last]), [State.WAITING] * 2, "states")


RULES: dict[str, dict[str, Any]] = {
    "limit": {"limit": 50},
    "rate": {"rate": Rate(50, 1.0)},
    "group rate": {"group_rate": Rate(50, 1.0)},
}


@case_for_each(RULES)
async def where_a_limit_or_rate_counts_there_are_no_chains(world: World, rule: str) -> None:
    await world.backend.declare([QueueRule(name="default", **RULES[rule])], now=world.now)
    ids = await world.enqueue_many(3, group="g")
    same([lease.id for lease in await _chain(world)], ids[:1], "jobs")


OVERRIDES = {
    "queue limit": Override(queue="default", limit=50),
    "queue rate": Override(queue="default", rate=Rate(50, 1.0)),
    "group rate": Override(queue="default", group="g", rate=Rate(50, 1.0)),
}


@case_for_each(OVERRIDES)
async def an_operators_limit_or_rate_ends_chains(world: World, override: str) -> None:
    await world.backend.limit(OVERRIDES[override], now=world.now)
    ids = await world.enqueue_many(3, group="g")
    same([lease.id for lease in await _chain(world)], ids[:1], "jobs")


@case
async def a_relaxed_group_has_no_chains(world: World) -> None:
    await world.relaxed(2)
    ids = await world.enqueue_many(5, group="g")
    leases = await _chain(world, 2)
    same(([lease.id for lease in leases], [lease.chained for lease in leases]), (ids[:2], [False, False]), "leases")


@case
async def a_chain_takes_the_keys_of_its_jobs(world: World) -> None:
    await world.enqueue(group="g")
    await world.enqueue(group="g", key="k", key_until="started")
    same(len(await _chain(world)), 2, "leases")
    await world.enqueue(group="g", key="k", key_until="started")


# ---------------------------------------------------------------------- the group meanwhile


@case_for_each({"".join(map(str, order)): order for order in permutations(range(3))})
async def nothing_of_the_group_is_ready_before_the_last_lease_has_ended(world: World, order: str) -> None:
    leases = await _three(world)
    for number, place in enumerate(order):
        await world.claim_none("w2")
        same(await world.backend.refill(now=world.now), 0, "refill finds no room")
        await world.end(leases[int(place)])
        same((await world.states(["job-000004"]))[0], State.READY if number == 2 else State.WAITING, "the next one")


@case
async def a_job_that_is_enqueued_meanwhile_waits(world: World) -> None:
    await _three(world)
    urgent = await world.enqueue(group="g", priority=9)
    await world.is_in(urgent, State.WAITING)
    await world.claim_none("w2")


ENDINGS = {ending.value: ending for ending in Ending if ending is not Ending.SUCCEEDED}


@case_for_each(ENDINGS)
async def what_is_left_of_a_chain_goes_back_in_order(world: World, ending: str) -> None:
    leases = await _three(world)
    ids = [lease.id for lease in leases]
    same(await world.settle(leases[0]), Answer.OK, "the first succeeds")
    await world.exchange(
        [world.settlement(leases[1], ENDINGS[ending])], [Release(id=leases[2].id, token=leases[2].token)]
    )
    await world.counters(ids[2], 0, 0, 0)
    world.advance(11.0)
    await world.promote_all()
    over = (await world.state(ids[1])).finished
    await _in_turn(world, [*([] if over else ids[1:2]), ids[2], "job-000004", "job-000005"])


@case
async def a_chain_goes_back_before_what_came_meanwhile(world: World) -> None:
    leases = await _three(world)
    urgent = await world.enqueue(group="g", priority=9)
    for lease in reversed(leases):
        await world.give_back(lease)
    await _in_turn(world, [*(lease.id for lease in leases), urgent, "job-000004", "job-000005"])


@case
async def the_head_of_a_chain_backs_off_and_holds_the_others(world: World) -> None:
    leases = await _three(world)
    await world.end(leases[0], Ending.RETRY)
    for lease in leases[1:]:
        await world.give_back(lease)
    await world.claim_none("w2")
    world.advance(11.0)
    same([lease.id for lease in await _chain(world)], [lease.id for lease in leases], "the chain again")


# ---------------------------------------------------------------------- each verb on a chained lease


@case_for_each({ending.value: ending for ending in Ending})
async def a_chained_lease_may_end_in_any_way(world: World, ending: str) -> None:
    """The store trusts its owner: whatever becomes of the one before, this one is settled by its token."""
    leases = await _three(world)
    await world.end(leases[2], Ending(ending))
    same(await world.settle(leases[2], Ending(ending)), Answer.LOST, "again")
    same(await world.states([lease.id for lease in leases[:2]]), [State.RUNNING] * 2, "the others")
    await world.claim_none("w2")


@case
async def a_chained_lease_may_be_marked_reported_on_and_renewed(world: World) -> None:
    leases = await _three(world, lease=30.0)
    same(await world.begin(leases[1]), Answer.OK, "begin")
    same(await world.report(leases[1], progress=0.5), Answer.OK, "report")
    world.advance(20.0)
    renewal = await world.renew("w1", leases)
    same((renewal.lost, renewal.cancelled, renewal.released), ((), (), ()), "renewal")


@case
async def a_chained_lease_that_renew_does_not_name_is_released(world: World) -> None:
    leases = await _three(world)
    renewal = await world.renew("w1", leases[:2])
    same(renewal.released, (leases[2].id,), "released")
    same(await world.states([lease.id for lease in leases]), [State.RUNNING] * 2 + [State.WAITING], "states")
    await world.claim_none("w2")


@case
async def cancelling_a_chained_job_marks_it(world: World) -> None:
    leases = await _three(world)
    job = await world.backend.cancel(leases[1].id, now=world.now)
    same((job.state, job.cancel_requested), (State.RUNNING, True), "the job")
    same((await world.renew("w1", leases)).cancelled, (leases[1].id,), "what its worker learns")
    same(await world.settle(leases[1]), Answer.CANCELLED, "a success is refused")
    await world.give_back(leases[1])
    await world.is_in(leases[1].id, State.CANCELLED)
    await world.counters(leases[1].id, 0, 0, 0)


@case
async def a_chained_job_counts_as_started_for_operators(world: World) -> None:
    job_id = (await _three(world))[1].id
    backend, now = world.backend, world.now
    async with world.refused(StateConflict, "bury"):
        await backend.bury(job_id, "no", now=now)
    async with world.refused(StateConflict, "run_now"):
        await backend.run_now(job_id, now=now)
    async with world.refused(StateConflict, "edit"):
        await backend.edit(job_id, Edit(priority=3), now=now)
    async with world.refused(StateConflict, "delete"):
        await backend.delete(job_id, now=now)


@case
async def a_pause_of_the_group_leaves_the_chain_and_stops_what_goes_back(world: World) -> None:
    leases = await _three(world)
    await world.backend.pause(Pause(queue="default", group="g"), now=world.now)
    await world.end(leases[0])
    for lease in leases[1:]:
        await world.give_back(lease)
    await world.claim_none("w2")
    await world.backend.resume(Pause(queue="default", group="g"), now=world.now)
    await _in_turn(world, [lease.id for lease in leases[1:]])


@case
async def a_group_that_becomes_relaxed_has_no_more_in_play_than_its_limit(world: World) -> None:
    leases = await _three(world)
    await world.relaxed(2)
    await world.claim_none("w2")
    await world.end(leases[0])
    await world.claim_none("w2")
    await world.end(leases[1])
    same(await world.claim_ids(5, "w2"), ["job-000004"], "claimable")


@case
async def retiring_gives_a_chain_back_in_order(world: World) -> None:
    leases = await _three(world)
    same(await world.backend.retire("w1", now=world.now), 3, "leases given back")
    await _in_turn(world, [*(lease.id for lease in leases), "job-000004", "job-000005"])


# ---------------------------------------------------------------------- its worker dies


@case
async def recover_charges_the_first_lease_of_a_chain_and_frees_the_rest(world: World) -> None:
    leases = await _three(world, lease=30.0)
    ids = [lease.id for lease in leases]
    await world.expire_worker()
    found = {one.id: one.counted for one in await world.backend.recover(now=world.now)}
    same(found, {ids[0]: True, ids[1]: False, ids[2]: False}, "counted")
    await world.counters(ids[0], 1, 0, 1)
    await world.counters(ids[1], 0, 0, 0)
    same([(await world.get(job_id)).suspect for job_id in ids], [True, False, False], "suspects")
    await _in_turn(world, [*ids, "job-000004", "job-000005"])


@case
async def what_ended_before_the_worker_died_is_not_charged(world: World) -> None:
    leases = await _three(world, lease=30.0)
    await world.end(leases[0])
    await world.expire_worker()
    found = {one.id: one.counted for one in await world.backend.recover(now=world.now)}
    same(found, {leases[1].id: True, leases[2].id: False}, "counted")


@case
async def a_bounded_recover_takes_a_chain_from_its_end(world: World) -> None:
    leases = await _three(world, lease=30.0)
    await world.expire_worker()
    for lease, counted in zip(reversed(leases), (False, False, True), strict=True):
        [one] = await world.backend.recover(limit=1, now=world.now)
        same((one.id, one.counted), (lease.id, counted), "recovered")
    await _in_turn(world, [lease.id for lease in leases])


@case
async def a_claim_recovers_a_chain_and_leases_its_head_alone(world: World) -> None:
    leases = await _three(world, lease=30.0)
    await world.expire_worker()
    answer = await _exchange(world, 5, worker="w2")
    same({one.id for one in answer.recovered}, {lease.id for lease in leases}, "recovered")
    same([(lease.id, lease.suspect) for lease in answer.leases], [(leases[0].id, True)], "the suspect, alone")


@case
async def a_chained_job_whose_cancel_was_requested_is_cancelled_when_its_worker_dies(world: World) -> None:
    leases = await _three(world, lease=30.0)
    await world.backend.cancel(leases[1].id, now=world.now)
    await world.expire_worker()
    await world.backend.recover(now=world.now)
    await world.is_in(leases[1].id, State.CANCELLED)
    await _in_turn(world, [leases[0].id, leases[2].id])


@case
async def a_job_of_a_chain_may_be_settled_as_stalled_by_its_worker(world: World) -> None:
    """Its runner died in the second job; the outcome of the first is lost with it."""
    leases = await _three(world)
    await world.exchange(
        [world.settlement(leases[1], Ending.STALLED)],
        [Release(id=lease.id, token=lease.token) for lease in (leases[0], leases[2])],
    )
    await world.counters(leases[1].id, 1, 0, 0, 1)
    await _in_turn(world, [lease.id for lease in leases])


# ---------------------------------------------------------------------- a lost reply


@case
async def a_repeated_claim_answers_the_same_chain(world: World) -> None:
    await world.enqueue_many(3, group="g")
    await world.enqueue_many(3, group="h")
    await world.register("w1")
    request = world.request(most=2, chain_by_queue={"default": 3}, chained_max=ROOMY)
    first = await world.backend.claim(request, now=world.now)
    same(len(first.leases), 6, "leases")
    async with world.unchanged("a repeated claim"):
        again = await world.backend.claim(request, now=world.now)
    same(sorted(again.leases, key=lambda x: x.fence), sorted(first.leases, key=lambda x: x.fence), "leases")


@case_for_each({"1 1": (1, 1), "1 0": (1, 0), "2 1": (2, 1), "1 9": (1, 9)})
async def a_repeat_that_allows_less_keeps_the_beginning_of_chains(world: World, less: str) -> None:
    one = await world.enqueue_many(3, group="g")
    two = await world.enqueue_many(3, group="h")
    await world.register("w1")
    request = world.request(most=2, chain_by_queue={"default": 3}, chained_max=ROOMY)
    same(len((await world.backend.claim(request, now=world.now)).leases), 6, "leases")
    most, chained_max = (int(number) for number in less.split())
    lower = world.request(most=most, call=request.call, chain_by_queue={"default": 3}, chained_max=chained_max)
    again = (await world.backend.claim(lower, now=world.now)).leases
    same(sum(not lease.chained for lease in again), most, "not chained")
    same(sum(lease.chained for lease in again), min(chained_max, 2 * most), "chained")
    for ids, group in ((one, "g"), (two, "h")):
        kept = [lease.id for lease in again if lease.group == group]
        same(kept, ids[: len(kept)], f"of {group}: its first jobs")
        running = len(kept)
        rest = [State.WAITING] * (3 - running) if running else [State.READY, State.WAITING, State.WAITING]
        same(await world.states(ids), [State.RUNNING] * running + rest, f"states of {group}")
