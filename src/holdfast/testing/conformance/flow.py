"""Helpers of the cases about limits, rates and lanes, and what a rate allows as time passes in small steps.

Called by the theme files beside it. Brings no case of its own and never looks behind the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...lifecycle import Ending, State
from ...rates import Rate, allowed, charged, opens_at
from ...records import (
    Answer,
    Exchanged,
    Flow,
    GroupRecord,
    Lease,
    Override,
    QueueRecord,
    QueueRule,
    TaskRecord,
    TaskRule,
)
from .compare import same
from .world import FOREVER, World

WORKERS = ("w1", "w2", "w3")


async def rule(world: World, name: str = "default", **fields: Any) -> None:
    """Declare a queue."""
    await world.backend.declare([QueueRule(name=name, **fields)], now=world.now)


async def task_rule(world: World, name: str = "work", **fields: Any) -> None:
    """Declare a task; without fields: take its rule away."""
    await world.backend.declare([], [TaskRule(name=name, **fields)], now=world.now)


async def limit(world: World, **fields: Any) -> None:
    """An operator's word."""
    await world.backend.limit(Override(**fields), now=world.now)


async def answer(world: World, most: int = 10, worker: str = "w1", **fields: Any) -> Exchanged:
    """The whole answer to a claim by a worker that never expires."""
    await world.register(worker, lease=FOREVER)
    return await world.backend.claim(world.request(worker, most, **fields), now=world.now)


async def places(world: World, worker: str = "w-places", **fields: Any) -> int:
    """How many more could start now: they are claimed and given back."""
    leases = await world.claim(30, worker, lease=FOREVER, **fields)
    for lease in reversed(leases):
        await world.give_back(lease)
    return len(leases)


async def end_all(world: World, leases: Sequence[Lease], ending: Ending = Ending.SUCCEEDED) -> None:
    for lease in leases:
        await world.end(lease, ending)


async def in_state(world: World, ids: Sequence[str], state: State) -> list[str]:
    return [job_id for job_id in ids if await world.state(job_id) is state]


async def lanes(world: World, ids: Sequence[str]) -> list[int]:
    """The lanes of ready jobs."""
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    same({rows[job_id]["state"] for job_id in ids} - {State.READY}, set(), "only ready jobs have a lane")
    return [rows[job_id]["lane"] for job_id in ids]


async def turns(world: World, ids: Sequence[str]) -> list[int]:
    rows = {row["id"]: row for row in (await world.tables())["jobs"]}
    return [rows[job_id]["turn"] for job_id in ids]


# ---------------------------------------------------------------------- what is shown


async def queue_shown(world: World, name: str = "default") -> QueueRecord:
    [record] = [record for record in await world.backend.queues() if record.name == name]
    return record


async def task_shown(world: World, name: str = "work") -> TaskRecord:
    [record] = [record for record in await world.backend.tasks() if record.rule.name == name]
    return record


async def group_shown(world: World, name: str = "g") -> GroupRecord:
    return await world.backend.group("default", name)


async def flow_shown(world: World, kind: str) -> Flow | None:
    """The bucket of queue "default", task "work" or group "g"."""
    if kind == "queue":
        shown = [record.flow for record in await world.backend.queues() if record.name == "default"]
    elif kind == "task":
        shown = [record.flow for record in await world.backend.tasks() if record.rule.name == "work"]
    else:
        shown = [(await group_shown(world)).flow]
    return shown[0] if shown else None


async def spent(world: World, kind: str) -> float:
    flow = await flow_shown(world, kind)
    assert flow is not None, f"the {kind} has a bucket that was charged, and none is shown"
    return flow.spent_until


# ---------------------------------------------------------------------- walking through time


def reckoned(rate: Rate, start: float, steps: int, step: float, most: int, *, woken: bool = False) -> list[float]:
    """The times at which a bucket lets jobs start, if it is asked for `most` at every step.

    A group is `woken` at the time its bucket names; a microsecond before, its bucket alone would let one start.
    """
    starts: list[float] = []
    bucket, now = 0.0, start
    for _ in range(steps):
        number = 0 if woken and now < opens_at(rate, bucket) else min(most, allowed(rate, bucket, now))
        if number:
            bucket = charged(rate, bucket, now, number)
        starts += [now] * number
        now += step
    return starts


async def walked(world: World, steps: int, step: float, most: int, **fields: Any) -> list[tuple[float, Lease]]:
    """Let time go by; at every step another worker claims and ends what it had. Returns every start and its time."""
    starts: list[tuple[float, Lease]] = []
    open_leases: dict[str, tuple[Lease, ...]] = {}
    for worker in WORKERS:
        await world.register(worker, lease=FOREVER)
    for number in range(steps):
        worker = WORKERS[number % len(WORKERS)]
        done = [world.settlement(lease, Ending.SUCCEEDED) for lease in open_leases.get(worker, ())]
        found = await world.exchange(done, [], world.request(worker, most, **fields))
        same(set(found.answers) - {Answer.OK}, set(), "answers to live leases")
        open_leases[worker] = found.leases
        starts += [(world.now, lease) for lease in found.leases]
        world.advance(step)
    return starts


def crowd(times: Sequence[float], seconds: float) -> int:
    """The highest number of starts in any window of this many seconds."""
    return max((sum(1 for other in times if time <= other < time + seconds) for time in times), default=0)
