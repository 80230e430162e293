"""Conformance of limits and rates under rivals, and of wait_for_work where jobs are held back.

Called by run_case. Rivals note what they run after claim answered and strike it out before they settle, so what the
ledger sees as too many is too many.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ...backends.contract import Backend
from ...lifecycle import Ending, Settlement, State
from ...rates import Rate
from ...records import Answer, ClaimRequest, Lease, QueueRule, TaskRule, WorkerRecord
from .compare import same
from .concurrency import PATIENCE_SECONDS, RIVALS
from .flow import rule, task_rule
from .registry import case, case_for_each
from .world import FOREVER, START, World

QUEUES = ("default", "other")
HEED_SECONDS = 0.3  # long enough for a store that would return at once to do so; a slow one passes all the same
Scope = tuple[str, str]  # ("queue", name) or ("task", name)


class Ledger:
    """What runs, by queue and by task, as the rivals themselves see it."""

    def __init__(self, total: int, limits: Mapping[Scope, int]) -> None:
        self.total, self.limits = total, limits
        self.leased: Counter[str] = Counter()
        self.running: Counter[Scope] = Counter()
        self.faults: list[str] = []
        self._guard = threading.Lock()

    @property
    def over(self) -> bool:
        return bool(self.faults) or sum(self.leased.values()) >= self.total

    def begin(self, leases: Sequence[Lease]) -> None:
        with self._guard:
            for lease in leases:
                self.leased[lease.id] += 1
                if self.leased[lease.id] > 1:
                    self.faults.append(f"{lease.id} was leased twice")
                for scope in _scopes(lease):
                    self.running[scope] += 1
                    if self.running[scope] > self.limits.get(scope, self.total):
                        self.faults.append(f"{self.running[scope]} of {scope} at once, limit {self.limits[scope]}")

    def end(self, leases: Sequence[Lease]) -> None:
        with self._guard:
            for lease in leases:
                self.running.subtract(_scopes(lease))


def _scopes(lease: Lease) -> tuple[Scope, Scope]:
    return ("queue", lease.queue), ("task", lease.task)


async def _rival(backend: Backend, name: str, ledger: Ledger) -> None:
    """Claim, run and settle until every job of the ledger was leased."""
    await backend.register(WorkerRecord(id=name, lease_seconds=FOREVER), now=START)
    call = 0
    done: list[Settlement] = []
    while not ledger.over or done:
        call += 1
        queues = QUEUES if call % 2 else QUEUES[::-1]
        request = ClaimRequest(worker=name, call=call, queues=queues, most=3)
        answer = await backend.exchange(done, [], request, now=START)
        if any(word is not Answer.OK for word in answer.answers):
            ledger.faults.append(f"{name}: a live lease was answered {answer.answers}")
        ledger.begin(answer.leases)
        await asyncio.sleep(0)
        ledger.end(answer.leases)
        done = [Settlement(id=x.id, token=x.token, ending=Ending.SUCCEEDED) for x in answer.leases]
        if not answer.leases and not ledger.over:
            await backend.wait_for_work(QUEUES, 0.01)


Part = Callable[[Backend], Awaitable[None]]


async def _compete(world: World, parts: Sequence[Part], how: str) -> None:
    """All at once: as tasks of this loop, or each in a thread with a backend of its own."""

    async def alone(part: Part) -> None:
        backend = world.make_backend(world.store)
        await backend.open()
        try:
            await asyncio.wait_for(part(backend), PATIENCE_SECONDS)
        finally:
            if backend is not world.backend:
                await backend.close()

    def thread(part: Part) -> None:
        asyncio.run(alone(part))

    if how == "on one loop":
        await asyncio.wait_for(asyncio.gather(*(part(world.backend) for part in parts)), PATIENCE_SECONDS)
    else:
        await asyncio.gather(*(asyncio.to_thread(thread, part) for part in parts))


def _rivals(ledger: Ledger) -> list[Part]:
    def rival(n: int) -> Part:
        return lambda backend: _rival(backend, f"rival-{n}", ledger)

    return [rival(n) for n in range(RIVALS)]


async def _jobs(world: World, limits: Mapping[Scope, int]) -> Ledger:
    number = world.sized(60)
    for queue in QUEUES:
        for task in ("work", "mail"):
            await world.enqueue_many(number, queue=queue, task=task)
        for n in range(5):
            await world.enqueue_many(3, queue=queue, group=f"g{n}")
    return Ledger(4 * number + 30, limits)


async def _judge(world: World, ledger: Ledger) -> None:
    same(ledger.faults, [], "faults the rivals saw")
    states = {queue: dict(found) for queue, found in (await world.backend.count()).items()}
    same(states, {queue: {State.SUCCEEDED: ledger.total // 2} for queue in QUEUES}, "states")
    rows = (await world.tables())["jobs"]
    same({(row["attempts"], row["failures"], row["stalls"]) for row in rows}, {(1, 0, 0)}, "counters")


LIMITS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "a queue's": ({"default": 3}, {}),
    "a task's": ({}, {"work": 3}),
    "both": ({"default": 4, "other": 2}, {"work": 3, "mail": 1}),
}


@case_for_each([(what, how) for what in LIMITS for how in ("on one loop", "in threads")], name=", ".join)
async def eight_claimers_never_exceed_a_limit_of(world: World, param: tuple[str, str]) -> None:
    what, how = param
    queues, tasks = LIMITS[what]
    rules = [QueueRule(name=name, limit=number) for name, number in queues.items()]
    task_rules = [TaskRule(name=name, limit=number) for name, number in tasks.items()]
    await world.backend.declare(rules, task_rules, now=world.now)
    limits = {("queue", name): number for name, number in queues.items()}
    ledger = await _jobs(world, limits | {("task", name): number for name, number in tasks.items()})
    await _compete(world, _rivals(ledger), how)
    await _judge(world, ledger)


@case_for_each(["on one loop", "in threads"])
async def no_job_is_lost_or_leased_twice_while_lanes_change(world: World, how: str) -> None:
    ledger = await _jobs(world, {("task", "mail"): 2})
    await task_rule(world, "mail", limit=2)

    async def operator(backend: Backend) -> None:
        for n in range(2000):
            if ledger.over:
                return
            await backend.declare([], [TaskRule(name="work", limit=(6, 9, None)[n % 3])], now=START)
            await asyncio.sleep(0)

    await _compete(world, [*_rivals(ledger), operator], how)
    await _judge(world, ledger)


@case_for_each([(kind, how) for kind in ("queue", "task") for how in ("on one loop", "in threads")], name=", ".join)
async def eight_claimers_at_one_instant_never_exceed_a_rate(world: World, param: tuple[str, str]) -> None:
    kind, how = param
    rate = Rate(1, 1000.0, 20)
    await (rule(world, rate=rate) if kind == "queue" else task_rule(world, rate=rate))
    await world.enqueue_many(100)
    started: list[str] = []

    def rival(n: int) -> Part:
        async def claim_often(backend: Backend) -> None:
            await backend.register(WorkerRecord(id=f"rival-{n}", lease_seconds=FOREVER), now=START)
            for call in range(1, 6):
                request = ClaimRequest(worker=f"rival-{n}", call=call, queues=("default",), most=3)
                started.extend(lease.id for lease in (await backend.claim(request, now=START)).leases)

        return claim_often

    await _compete(world, [rival(n) for n in range(RIVALS)], how)
    same((len(started), len(set(started))), (20, 20), "started at one instant")


# ---------------------------------------------------------------------- waiting for work

Act = Callable[[World], Awaitable[object]]


async def _empty(world: World, kind: str) -> None:
    await (rule(world, rate=Rate(1, 1000.0)) if kind == "queue" else task_rule(world, rate=Rate(1, 1000.0)))
    await world.claim(9, lease=FOREVER)


async def _full(world: World, kind: str) -> None:
    await (rule(world, limit=1) if kind == "queue" else task_rule(world, limit=1))
    await world.claim(9, lease=FOREVER)


HELD_BACK: dict[str, Act] = {
    "a queue's limit": lambda w: _full(w, "queue"),
    "a task's limit": lambda w: _full(w, "task"),
    "a queue's rate": lambda w: _empty(w, "queue"),
    "a task's rate": lambda w: _empty(w, "task"),
    "a slow-down": lambda w: w.backend.slow_down("default", 1000.0, now=w.now),
}


@case_for_each(HELD_BACK)
async def jobs_are_no_work_while_they_are_held_back_by(world: World, what: str) -> None:
    await world.enqueue_many(4)
    await HELD_BACK[what](world)
    waiting = asyncio.create_task(world.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
    await asyncio.wait({waiting}, timeout=HEED_SECONDS)
    early = waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=PATIENCE_SECONDS)
    assert not early, "wait_for_work returned at once although nothing may start: a worker would claim without end"


@case_for_each(["queue", "task"])
async def a_place_that_comes_free_is_reason_to_return(world: World, kind: str) -> None:
    await (rule(world, limit=1) if kind == "queue" else task_rule(world, limit=1))
    await world.enqueue_many(4)
    lease = await world.claim_one(lease=FOREVER)
    waiting = asyncio.create_task(world.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
    await asyncio.wait({waiting}, timeout=HEED_SECONDS)
    await world.end(lease)
    await asyncio.wait({waiting}, timeout=PATIENCE_SECONDS)
    assert waiting.done(), "wait_for_work did not return although a place came free and jobs are ready"
    await waiting


@case
async def other_work_is_reason_to_return_beside_jobs_that_are_held_back(world: World) -> None:
    await world.enqueue_many(4)
    await _full(world, "task")
    waiting = asyncio.create_task(world.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
    await asyncio.wait({waiting}, timeout=HEED_SECONDS)
    await world.enqueue(task="fine")
    await asyncio.wait({waiting}, timeout=PATIENCE_SECONDS)
    assert waiting.done(), "wait_for_work did not return although another task's job is ready"
    await waiting
