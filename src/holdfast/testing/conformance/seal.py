"""Conformance of seal: a sealed store accepts no work and starts none, and lets running jobs end.

Called by run_case. Also how the cases about moving close and open a store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from ...errors import ConfigurationError, StoreSealed
from ...lifecycle import UNSTARTED, Ending, State
from ...records import Answer, CronEntry, Edit, JobQuery, Override, Pause, Release, Seal, TaskRule, Tick
from .compare import same
from .registry import case, case_for_each
from .world import DAY, World

SOURCE = Seal(move="m1", role="source", other="store://there", since=1.0)
TARGET = Seal(move="m1", role="target", other="store://here", since=1.0)
ENTRY = CronEntry(name="e", every=60.0, call=b'{"task":"work"}')


async def close(world: World, seal: Seal = SOURCE) -> None:
    same(await world.backend.seal(seal, instead_of=None), True, "seal of a store that was in no move")


async def open_target(target: World) -> None:
    seal = await target.backend.sealed()
    assert seal is not None, "the target of a move has a seal"
    same(await target.backend.seal(replace(seal, stage="moved"), instead_of=seal), True, "the target is opened")


# ---------------------------------------------------------------------- what a sealed store refuses

Act = Callable[[World, str], Awaitable[object]]
ON_STATE: dict[str, tuple[State, Act]] = {
    "bury": (State.READY, lambda w, i: w.backend.bury(i, "why", now=w.now)),
    "run_now": (State.SCHEDULED, lambda w, i: w.backend.run_now(i, now=w.now)),
    "revive": (State.DEAD, lambda w, i: w.backend.revive(i, now=w.now)),
    "retry": (State.SUCCEEDED, lambda w, i: w.backend.retry(i, now=w.now)),
    "edit": (State.READY, lambda w, i: w.backend.edit(i, Edit(priority=1), now=w.now)),
    "delete": (State.SUCCEEDED, lambda w, i: w.backend.delete(i, now=w.now)),
    "discard": (State.DEAD, lambda w, i: w.backend.discard(i, now=w.now)),
    "annotate": (State.DEAD, lambda w, i: w.backend.annotate(i, "x", now=w.now)),
    "free_key": (State.READY, lambda w, i: w.backend.free_key(i, now=w.now)),
    "enqueue": (State.READY, lambda w, i: w.backend.enqueue([w.job()], now=w.now)),
    "enqueue of a known id": (State.READY, lambda w, i: w.backend.enqueue([w.job(id=i)], now=w.now)),
    "declare": (State.READY, lambda w, i: w.relaxed(4)),
    "declare of a task": (State.READY, lambda w, i: w.backend.declare([], [TaskRule(name="t", limit=1)], now=w.now)),
    "tick": (State.READY, lambda w, i: w.backend.tick(Tick(name="e", version=0, entry=ENTRY), now=w.now)),
    "tick that would be refused": (
        State.READY,
        lambda w, i: w.backend.tick(Tick(name="e", version=9, entry=ENTRY), now=w.now),
    ),
    "slow_down": (State.READY, lambda w, i: w.backend.slow_down("default", 5.0, now=w.now)),
    "limit of a queue": (State.READY, lambda w, i: w.backend.limit(Override(queue="default", limit=3), now=w.now)),
    "limit of a task": (State.READY, lambda w, i: w.backend.limit(Override(task="work", limit=3), now=w.now)),
    "promote": (State.SCHEDULED, lambda w, i: w.backend.promote(now=w.now + DAY)),
    "refill": (State.WAITING, lambda w, i: w.backend.refill(now=w.now)),
    "prune": (State.SUCCEEDED, lambda w, i: w.backend.prune(now=w.now + 400 * DAY)),
    "prune by age": (State.SUCCEEDED, lambda w, i: w.backend.prune(older_than=0.0, now=w.now + 400 * DAY)),
    "pause": (State.READY, lambda w, i: w.backend.pause(Pause(queue="default"), now=w.now)),
    "resume": (State.READY, lambda w, i: w.backend.resume(Pause(queue="other"), now=w.now)),
    "limit": (State.WAITING, lambda w, i: w.backend.limit(Override(queue="default", group="g", limit=1), now=w.now)),
    **{f"cancel of a {state} job": (state, lambda w, i: w.backend.cancel(i, now=w.now)) for state in sorted(UNSTARTED)},
}


@case_for_each(sorted(ON_STATE))
async def a_sealed_store_refuses(world: World, verb: str) -> None:
    state, act = ON_STATE[verb]
    start = await world.put(state)
    await world.backend.pause(Pause(queue="other"), now=world.now)
    await close(world)
    async with world.refused(StoreSealed, verb) as raised:
        await act(world, start.id)
    error = raised[0]
    assert isinstance(error, StoreSealed) and "store://there" in str(error), "the error says where the jobs go"
    same(await world.backend.seal(None, instead_of=SOURCE), True, "the seal is taken away")
    await act(world, start.id)  # and now it is carried out


@case
async def a_sealed_store_still_lets_one_look_and_declare_the_same_again(world: World) -> None:
    await world.relaxed(3, "bulk")
    await world.enqueue(queue="bulk", group="g")
    await world.backend.pause(Pause(task="t"), now=world.now)
    await close(world)
    async with world.unchanged("reading a sealed store"):
        await world.relaxed(3, "bulk")
        assert await world.backend.find(JobQuery()), "jobs are found"
        assert await world.backend.count(), "and counted"
        assert await world.backend.queues() and await world.backend.groups() and await world.backend.pauses()
        same(await world.backend.sealed(), SOURCE, "the seal that is shown")


@case
async def a_claim_on_a_sealed_store_leases_nothing_and_says_so(world: World) -> None:
    await world.enqueue_many(3)
    await world.enqueue(delay=5.0, group="g")
    await world.register("w1")
    await close(world)
    world.advance(10.0)
    async with world.unchanged("claim", besides={"workers": ("last_call",)}):
        answer = await world.exchange(request=world.request(most=5))
        same((answer.known, answer.leases, answer.sealed), (True, (), SOURCE), "claim on a sealed store")
    same(await world.backend.seal(None, instead_of=SOURCE), True, "the seal is taken away")
    answer = await world.exchange(request=world.request(most=5))
    same((len(answer.leases), answer.sealed), (4, None), "claim on an open store")


@case_for_each(sorted(Ending))
async def a_sealed_store_takes_outcomes_even_with_a_claim(world: World, ending: Ending) -> None:
    [lease] = await world.leased(1, group="g")
    behind = await world.enqueue(group="g")
    await close(world)
    answer = await world.exchange([world.settlement(lease, ending)], request=world.request(most=5))
    same((answer.answers, answer.leases, answer.sealed), ((Answer.OK,), (), SOURCE), "outcome and claim together")
    assert await world.state(lease.id) is not State.RUNNING, "the lease has ended"
    blocked = ending in (Ending.RETRY, Ending.SNOOZED, Ending.STALLED)
    await world.is_in(behind, State.WAITING if blocked else State.READY)


@case
async def a_running_job_of_a_sealed_store_can_live_on_and_end(world: World) -> None:
    leases = await world.leased(5)
    await close(world)
    first, second, third, fourth, fifth = leases
    same(await world.begin(first), Answer.OK, "begin")
    same((await world.renew("w1", leases)).lost, (), "lost by renewing")
    same(await world.report(first, progress=0.5, lines=("a line",)), Answer.OK, "report")
    await world.end(first)
    await world.give_back(second)
    await world.backend.cancel(third.id, now=world.now)
    same(await world.settle(third), Answer.CANCELLED, "outcome of a job asked to cancel")
    await world.end(third, Ending.CANCELLED)
    answer = await world.exchange(releases=[Release(id=fourth.id, token=fourth.token)])
    same(answer.answers, (Answer.OK,), "release")
    same(await world.backend.retire("w1", now=world.now), 1, "leases given back by retiring")
    same(await world.state(fifth.id), State.READY, "the last one")


@case
async def leases_of_a_sealed_store_are_recovered(world: World) -> None:
    [lease] = await world.leased(1)
    await close(world)
    await world.expire_worker()
    [ended] = await world.backend.recover(now=world.now)
    same((ended.id, ended.state), (lease.id, State.READY), "what recover ended")
    await world.counters(lease.id, 1, 0, 1)


@case
async def a_claim_recovers_on_a_sealed_store_too(world: World) -> None:
    [lease] = await world.leased(1)
    await close(world)
    await world.expire_worker()
    await world.register("w2")
    answer = await world.exchange(request=world.request("w2", most=3))
    same([one.id for one in answer.recovered], [lease.id], "what the claim recovered")
    same((answer.leases, answer.sealed), ((), SOURCE), "its answer")


@case
async def a_repeated_claim_answers_as_before_the_seal(world: World) -> None:
    await world.enqueue_many(2)
    await world.register("w1")
    request = world.request(most=2)
    first = await world.exchange(request=request)
    await close(world)
    again = await world.exchange(request=request)
    same(again.leases, first.leases, "leases of the repeated call")


# ---------------------------------------------------------------------- the seal itself


@case
async def a_seal_takes_the_place_of_exactly_the_one_named(world: World) -> None:
    other = replace(SOURCE, move="m2")
    same(await world.backend.sealed(), None, "the seal of a new store")
    same(await world.backend.seal(SOURCE, instead_of=other), False, "in place of one that is not there")
    same(await world.backend.sealed(), None, "the seal after that")
    await close(world)
    for wanted in (other, None, SOURCE):
        same(await world.backend.seal(wanted, instead_of=None), False, "where one is already")
        same(await world.backend.seal(wanted, instead_of=other), False, "in place of another")
    same(await world.backend.sealed(), SOURCE, "the seal")
    done = replace(SOURCE, stage="moved")
    same(await world.backend.seal(done, instead_of=SOURCE), True, "its next stage")
    same(await world.backend.sealed(), done, "the seal")


@case_for_each(["moving", "moved"])
async def a_source_is_closed_at_every_stage(world: World, stage: str) -> None:
    await close(world, replace(SOURCE, stage=stage))
    async with world.refused(StoreSealed, f"enqueue on a source that is {stage}"):
        await world.enqueue()


@case_for_each(["moving", "abandoned"])
async def a_target_is_closed_until_all_is_in(world: World, stage: str) -> None:
    await close(world, replace(TARGET, stage=stage))
    async with world.refused(StoreSealed, f"enqueue on a target that is {stage}") as raised:
        await world.enqueue()
    assert "store://here" in str(raised[0]), "the error says where the jobs come from"


@case
async def a_target_that_has_all_is_open_and_remembers(world: World) -> None:
    await close(world, TARGET)
    await open_target(world)
    await world.claim_one(await world.enqueue())
    same(await world.backend.sealed(), replace(TARGET, stage="moved"), "the seal that is remembered")


FILLERS: dict[str, Callable[[World], Awaitable[object]]] = {
    "a job": lambda w: w.enqueue(),
    "a dead letter": lambda w: w.put(State.DEAD),
    "an override": lambda w: w.backend.limit(Override(queue="q", group="g", limit=1), now=w.now),
    "an override of a queue": lambda w: w.backend.limit(Override(queue="q", limit=1), now=w.now),
    "an override of a task": lambda w: w.backend.limit(Override(task="t", limit=1), now=w.now),
    "a cron entry made at run time": lambda w: w.backend.tick(Tick(name="e", version=0, entry=ENTRY), now=w.now),
    "a pause": lambda w: w.backend.pause(Pause(queue="q"), now=w.now),
}


@case_for_each(sorted(FILLERS))
async def a_store_that_holds_something_is_no_target(world: World, what: str) -> None:
    await FILLERS[what](world)
    async with world.refused(ConfigurationError, "seal as a target"):
        await world.backend.seal(TARGET, instead_of=None)
    same(await world.backend.sealed(), None, "the seal")
    await close(world)  # as a source it will do


@case
async def a_target_forgets_the_rules_it_was_told_before(world: World) -> None:
    """Code declares its queues, tasks and cron entries at every start; a slow-down says nothing that would be lost."""
    await world.relaxed(7, "early")
    await world.backend.declare([], [TaskRule(name="early", limit=2)], now=world.now)
    await world.backend.slow_down("early", 60.0, now=world.now)
    declared = replace(ENTRY, declared=True)
    same((await world.backend.tick(Tick(name="e", version=0, entry=declared), now=world.now)).done, True, "declared")
    await close(world, TARGET)
    same(await world.backend.queues(), [], "queues known")
    same(await world.backend.tasks(), [], "tasks known")
    same(await world.backend.entries(), [], "entries known")
    same((await world.tables())["flows"], [], "buckets")


@case
async def a_target_that_is_refused_forgets_nothing(world: World) -> None:
    await world.relaxed(7, "early")
    declared = replace(ENTRY, name="declared", declared=True)
    for entry in (ENTRY, declared):
        await world.backend.tick(Tick(name=entry.name, version=0, entry=entry), now=world.now)
    async with world.refused(ConfigurationError, "seal as a target"):
        await world.backend.seal(TARGET, instead_of=None)
    same([entry.name for entry in await world.backend.entries()], ["declared", "e"], "entries")
