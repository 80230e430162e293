"""Conformance of keys and ticks under rivals: eight at the same instant, as tasks of one loop and as threads.

Called by run_case. Every rival in a thread has a backend of its own on the same store, as another process would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from ...backends.contract import Backend
from ...errors import DuplicateJob, HoldfastError
from ...lifecycle import State
from ...records import Enqueued, NewJob, Tick, Ticked
from .compare import same
from .concurrency import PATIENCE_SECONDS, RIVALS
from .cron import PLAIN
from .keys import holders
from .registry import case_for_each
from .world import FOREVER, World

Part = Callable[[Backend, int], Awaitable[Any]]
ROUNDS = 5


async def at_once(world: World, how: str, part: Part) -> list[Any]:
    """What eight rivals were answered who all did their part together."""
    if how == "tasks":
        return list(await asyncio.gather(*(part(world.backend, n) for n in range(RIVALS))))

    async def own(number: int) -> Any:
        backend = world.make_backend(world.store)
        await backend.open()
        try:
            return await asyncio.wait_for(part(backend, number), PATIENCE_SECONDS)
        finally:
            if backend is not world.backend:
                await backend.close()

    def thread(number: int) -> Any:
        return asyncio.run(own(number))

    return list(await asyncio.gather(*(asyncio.to_thread(thread, n) for n in range(RIVALS))))


def producers(world: World, **fields: Any) -> Part:
    """Each rival enqueues a job of its own with key k, five times one after the other; answers what it heard."""
    batches = [
        [world.job(key="k", args=b"[%d]" % (ROUNDS * n + r), **fields) for r in range(ROUNDS)] for n in range(RIVALS)
    ]

    async def part(backend: Backend, number: int) -> list[Enqueued | None]:
        return [await _heard(backend, job, world.now) for job in batches[number]]

    return part


async def _heard(backend: Backend, job: NewJob, now: float) -> Enqueued | None:
    try:
        [answer] = await backend.enqueue([job], now=now)
    except DuplicateJob:
        return None
    return answer


def _counted(answers: list[list[Enqueued | None]]) -> Counter[str]:
    flat = [one for some in answers for one in some]
    words = ("raised" if x is None else "created" if x.created else "replaced" if x.replaced else "kept" for x in flat)
    return Counter(words)


async def _one_job(world: World) -> str:
    [row] = (await world.tables())["jobs"]
    same(await holders(world), [row["id"]], "holders")
    return str(row["id"])


HOW = ("tasks", "threads")
OTHERS = RIVALS * ROUNDS - 1


@case_for_each(HOW)
async def of_eight_producers_that_raise_one_makes_the_job(world: World, how: str) -> None:
    answers = await at_once(world, how, producers(world, on_conflict="raise"))
    same(_counted(answers), Counter(created=1, raised=OTHERS), "answers")
    await _one_job(world)


@case_for_each(HOW[1:])
async def eight_producers_that_push_leave_one_job_due_in_time(world: World, how: str) -> None:
    fields = {"on_conflict": "debounce", "delay": 80.0, "wait_max": 60.0}
    first = await world.enqueue(key="k", **fields)
    world.advance(10.0)
    answers = await at_once(world, how, producers(world, **fields))
    same(_counted(answers), Counter(replaced=OTHERS + 1), "answers")
    job = await world.get(await _one_job(world))
    same((job.id, job.due_at), (first, world.now + 50.0), "the one job, at its maximum")
    assert job.args != b"{}", "with the arguments of a later call"


@case_for_each(HOW)
async def of_eight_producers_one_gets_through_per_window(world: World, how: str) -> None:
    for number in range(1, 4):
        answers = await at_once(world, how, producers(world, key_window=30.0))
        same(_counted(answers), Counter(created=1, kept=OTHERS), f"answers in window {number}")
        same(len((await world.tables())["jobs"]), number, "jobs")
        same(len(await holders(world)), 1, "holders")
        world.advance(30.0)


@case_for_each(HOW[1:])
async def eight_producers_beside_a_running_job_leave_one_that_waits(world: World, how: str) -> None:
    fields = {"key_until": "started", "on_conflict": "replace"}
    running = await world.enqueue(key="k", **fields)
    await world.claim_one(running, lease=FOREVER)
    answers = await at_once(world, how, producers(world, **fields))
    same(_counted(answers), Counter(created=1, replaced=OTHERS), "answers")
    [waiting] = await holders(world)
    same(sorted(await world.states([running, waiting])), [State.READY, State.RUNNING], "states")
    same(len((await world.tables())["jobs"]), 2, "jobs")


@case_for_each(HOW[1:])
async def eight_producers_in_two_queues_make_one_job_of_a_global_key(world: World, how: str) -> None:
    parts = [producers(world, key_scope="global", queue=queue) for queue in ("default", "other")]
    answers = await at_once(world, how, lambda backend, n: parts[n % 2](backend, n))
    same(_counted(answers), Counter(created=1, kept=OTHERS), "answers")
    await _one_job(world)


@case_for_each(HOW[1:])
async def of_eight_that_bring_jobs_of_one_key_back_one_succeeds(world: World, how: str) -> None:
    done = [await world.put(State.SUCCEEDED, key="k") for _ in range(RIVALS)]

    async def part(backend: Backend, number: int) -> str:
        try:
            await backend.retry(done[number].id, now=world.now)
        except HoldfastError as error:
            return type(error).__name__
        return "back"

    answers = await at_once(world, how, part)
    same(Counter(answers), Counter(back=1, StateConflict=RIVALS - 1), "answers")
    same(len(await holders(world)), 1, "holders")


@case_for_each(HOW[1:])
async def of_eight_that_make_an_entry_one_succeeds(world: World, how: str) -> None:
    async def part(backend: Backend, number: int) -> Ticked:
        return await backend.tick(Tick(name="e", version=0, entry=replace(PLAIN, fired=number)), now=world.now)

    answers = await at_once(world, how, part)
    [winner] = [answer for answer in answers if answer.done]
    same({answer.entry for answer in answers}, {winner.entry}, "what all of them were shown")
    same(await world.backend.entries(), [winner.entry], "entries")


@case_for_each(HOW)
async def each_tick_makes_one_job_whoever_fires_it(world: World, how: str) -> None:
    """Every rival reads the entry and fires the tick it finds due, until none is left."""
    await world.backend.tick(Tick(name="e", version=0, entry=replace(PLAIN, next_at=1.0)), now=world.now)
    total = world.sized(40)

    async def part(backend: Backend, number: int) -> int:
        fired = 0
        while True:
            [entry] = await backend.entries()
            at = entry.next_at
            if at is None:
                return fired
            after = replace(entry, next_at=at + 1.0 if at < total else None, fired=entry.fired + 1)
            job = NewJob(id=f"e@{at:g}-{number}", task="work", args=b"[%d]" % at)
            answer = await backend.tick(Tick(name="e", version=entry.version, entry=after, jobs=(job,)), now=world.now)
            fired += answer.done

    answers = await at_once(world, how, part)
    same(sum(answers), total, "ticks fired")
    rows = (await world.tables())["jobs"]
    same(sorted(row["args"] for row in rows), sorted(b"[%d]" % n for n in range(1, total + 1)), "one job per tick")
    [entry] = await world.backend.entries()
    same((entry.fired, entry.version), (total, total + 1), "the entry")
