"""Conformance under rivals: many claimers at once, as tasks of one loop and as threads with backends of their own.

Called by run_case. Rivals share a ledger that notes who runs what between claim and settle; it is kept pessimistic
(noted after claim answered, struck before settle is asked), so an overlap it sees is real.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from msgspec.structs import replace

from ...backends.contract import Backend
from ...errors import DuplicateJob, HoldfastError
from ...lifecycle import Ending, Settlement, State
from ...records import Answer, ClaimRequest, Enqueued, Lease, NewJob, Tick, Ticked, WorkerRecord
from .compare import same
from .cron import PLAIN
from .keys import holders
from .registry import case, case_for_each
from .world import FOREVER, START, World

RIVALS = 8
PATIENCE_SECONDS = 60.0  # a deadline against hanging; nothing is measured by it


class Ledger:
    """Who runs what, as the rivals themselves see it."""

    # A rival sends its settlement again. BUSY: a claim of another rival, which saw the job ready, may hold its row on
    # PostgreSQL until it commits.
    repeated = frozenset({Answer.UNHEARD, Answer.BUSY})

    def __init__(self, total: int, limit: int) -> None:
        self.total, self.limit = total, limit
        self.leased: Counter[str] = Counter()
        self.in_play: Counter[str] = Counter()
        self.order: dict[str, list[str]] = {}
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
                if lease.group is None:
                    continue
                self.in_play[lease.group] += 1
                self.order.setdefault(lease.group, []).append(lease.id)
                if self.in_play[lease.group] > self.limit:
                    self.faults.append(f"group {lease.group}: {self.in_play[lease.group]} at once, limit {self.limit}")

    def end(self, leases: Sequence[Lease]) -> None:
        with self._guard:
            for lease in leases:
                if lease.group is not None:
                    self.in_play[lease.group] -= 1


async def _rival(backend: Backend, name: str, ledger: Ledger) -> None:
    """Claim, run and settle until every job of the ledger was leased; settle and claim travel together."""
    await backend.register(WorkerRecord(id=name, lease_seconds=FOREVER), now=START)
    call = 0
    done: list[Settlement] = []
    while not ledger.over or done:
        call += 1
        request = ClaimRequest(worker=name, call=call, queues=("default",), most=3)
        answer = await backend.exchange(done, [], request, now=START)
        if not {*answer.answers} <= {Answer.OK, *ledger.repeated}:
            ledger.faults.append(f"{name}: a live lease was answered {answer.answers}")
        repeated = [one for one, word in zip(done, answer.answers, strict=True) if word in ledger.repeated]
        ledger.begin(answer.leases)
        await asyncio.sleep(0)
        ledger.end(answer.leases)
        done = repeated + [Settlement(id=x.id, token=x.token, ending=Ending.SUCCEEDED) for x in answer.leases]
        if not answer.leases and not ledger.over:
            await backend.wait_for_work(("default",), 0.01)


async def _jobs(world: World, limit: int) -> Ledger:
    if limit > 1:
        await world.relaxed(limit)
    grouped = world.sized(60)
    for n in range(grouped):
        await world.enqueue_many(4, group=f"g{n % 5}")
    alone = world.sized(120)
    await world.enqueue_many(alone)
    return Ledger(total=4 * grouped + alone, limit=limit)


async def _judge(world: World, ledger: Ledger) -> None:
    await _judge_ends(world, ledger)
    if ledger.limit == 1:
        for group, order in ledger.order.items():
            same(order, sorted(order), f"order of {group}")


async def _judge_ends(world: World, ledger: Ledger) -> None:
    same(ledger.faults, [], "faults the rivals saw")
    same(sum(ledger.leased.values()), ledger.total, "jobs leased")
    same(dict((await world.backend.count())["default"]), {State.SUCCEEDED: ledger.total}, "states")
    rows = (await world.tables())["jobs"]
    same({(row["attempts"], row["failures"], row["stalls"]) for row in rows}, {(1, 0, 0)}, "counters")
    fences = [row["fence"] for row in rows]
    if not world.backend.sharded:  # each shard counts for itself
        same(len(set(fences)), len(fences), "fences are all different")


async def _as_tasks(world: World, limit: int) -> None:
    ledger = await _jobs(world, limit)
    rivals = [_rival(world.backend, f"rival-{n}", ledger) for n in range(RIVALS)]
    await asyncio.wait_for(asyncio.gather(*rivals), PATIENCE_SECONDS)
    await _judge(world, ledger)


async def _own_backend(world: World, name: str, ledger: Ledger) -> None:
    backend = world.make_backend(world.store)
    await backend.open()
    try:
        await asyncio.wait_for(_rival(backend, name, ledger), PATIENCE_SECONDS)
    finally:
        if backend is not world.backend:
            await backend.close()


def _thread(world: World, name: str, ledger: Ledger) -> None:
    asyncio.run(_own_backend(world, name, ledger))


async def _as_threads(world: World, limit: int) -> None:
    ledger = await _jobs(world, limit)
    rivals = [asyncio.to_thread(_thread, world, f"rival-{n}", ledger) for n in range(RIVALS)]
    await asyncio.gather(*rivals)
    await _judge(world, ledger)


@case
async def eight_claimers_on_one_loop_keep_strict_groups_in_order(world: World) -> None:
    await _as_tasks(world, 1)


@case
async def eight_claimers_on_one_loop_never_exceed_a_limit(world: World) -> None:
    await _as_tasks(world, 3)


@case
async def eight_claimers_in_threads_keep_strict_groups_in_order(world: World) -> None:
    await _as_threads(world, 1)


@case
async def eight_claimers_in_threads_never_exceed_a_limit(world: World) -> None:
    await _as_threads(world, 3)


def _ordered(world: World) -> list[NewJob]:
    """Jobs of three groups whose orders, all different, have nothing to do with when they are enqueued."""
    return [world.job(group=f"g{n % 3}", order=n * 7919 % 100_003) for n in range(world.sized(90))]


async def _produce(world: World, jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        await world.backend.enqueue([job], now=START)


@case
async def eight_claimers_in_threads_run_groups_by_their_orders(world: World) -> None:
    jobs = _ordered(world)
    await asyncio.gather(*(_produce(world, jobs[n::RIVALS]) for n in range(RIVALS)))
    ledger = Ledger(total=len(jobs), limit=1)
    await asyncio.gather(*(asyncio.to_thread(_thread, world, f"rival-{n}", ledger) for n in range(RIVALS)))
    same(ledger.faults, [], "faults the rivals saw")
    orders = {job.id: job.order or 0 for job in jobs}
    for group, ids in ledger.order.items():
        same(ids, sorted(ids, key=lambda job_id: orders[job_id]), f"order of {group}")


@case
async def lower_orders_that_come_in_while_others_are_claimed_run_once(world: World) -> None:
    jobs = _ordered(world)
    ledger = Ledger(total=len(jobs), limit=1)
    rivals = [asyncio.to_thread(_thread, world, f"rival-{n}", ledger) for n in range(RIVALS)]
    await asyncio.gather(*rivals, *(_produce(world, jobs[n::2]) for n in range(2)))
    await _judge_ends(world, ledger)


@case
async def one_id_enqueued_by_many_at_once_makes_one_job(world: World) -> None:
    job = world.job()
    answers = await asyncio.gather(*(world.backend.enqueue([job], now=world.now) for _ in range(RIVALS)))
    same(sorted(a.created for [a] in answers), [False] * (RIVALS - 1) + [True], "created")
    same(len((await world.tables())["jobs"]), 1, "jobs")


@case
async def one_key_enqueued_by_many_at_once_makes_one_job(world: World) -> None:
    jobs = [world.job(key="k") for _ in range(RIVALS)]
    answers: list[list[Enqueued]] = await asyncio.gather(*(world.backend.enqueue([job], now=world.now) for job in jobs))
    same(sum(a.created for [a] in answers), 1, "created")
    same(len({a.id for [a] in answers}), 1, "ids answered")
    same(len((await world.tables())["jobs"]), 1, "jobs")


@case
async def one_lease_settled_by_many_at_once_is_settled_once(world: World) -> None:
    start = await world.put(State.RUNNING)
    endings = list(Ending) * 2
    answers = await asyncio.gather(*(world.settle(start.held, ending) for ending in endings))
    same(sorted(answers), [Answer.LOST] * (len(endings) - 1) + [Answer.OK], "answers")
    same((await world.get(start.id)).attempts, 1, "attempts")


@case
async def many_sweeps_at_once_recover_each_lease_once(world: World) -> None:
    ids = await world.enqueue_many(20, max_stalls=50)
    await world.claim(20)
    await world.expire_worker()
    passes = await asyncio.gather(*(world.backend.recover(now=world.now) for _ in range(RIVALS)))
    same(sorted(r.id for found in passes for r in found), ids, "recovered")
    for job_id in ids:
        await world.counters(job_id, 1, 0, 1)


@case
async def wait_for_work_returns_when_work_comes(world: World) -> None:
    waiting = asyncio.create_task(world.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
    # A hint may be sent before the waiter listens, so work keeps coming until one is received.
    for _ in range(int(PATIENCE_SECONDS / 0.05)):
        await world.enqueue()
        done, _pending = await asyncio.wait({waiting}, timeout=0.05)
        if done:
            break
    assert waiting.done(), "wait_for_work did not return although work kept coming"
    await waiting


@case
async def wait_for_work_returns_when_its_time_is_over(world: World) -> None:
    await asyncio.wait_for(world.backend.wait_for_work(("default",), 0.01), PATIENCE_SECONDS)


@case
async def wait_for_work_says_whether_work_was_there_at_the_first_look(world: World) -> None:
    same(await world.backend.wait_for_work(("default",), 0.01), False, "in an empty store")
    await world.enqueue()
    same(await world.backend.wait_for_work(("other",), 0.01), False, "in another queue")
    same(await world.backend.wait_for_work(("other", "default"), PATIENCE_SECONDS), True, "with a ready job")


@case
async def wait_for_work_can_be_given_up(world: World) -> None:
    waiting = asyncio.create_task(world.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS))
    await asyncio.wait({waiting}, timeout=0.01)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=PATIENCE_SECONDS)
    assert waiting.done(), "a cancelled wait_for_work must end"
    await world.enqueue()


# ----------------------------------------------------------------------------------------------------------------------
# Keys and ticks under rivals: eight at the same instant, as tasks of one loop and as threads.


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
    """Each rival enqueues its own job with key k, five times in a row; returns the results."""
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


# ----------------------------------------------------------------------------------------------------------------------
# Jobs that wait for others, under rivals


class FamilyLedger(Ledger):
    """Who runs what, and whether a job begins before one of its parents has ended."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        super().__init__(total=len(jobs), limit=1)
        self._after = {job.id: job.after for job in jobs}
        self._ended: set[str] = set()

    def begin(self, leases: Sequence[Lease]) -> None:
        super().begin(leases)
        for lease in leases:
            early = [parent for parent in self._after[lease.id] if parent not in self._ended]
            if early:
                self.faults.append(f"{lease.id} began before {early} had ended")

    def end(self, leases: Sequence[Lease]) -> None:
        super().end(leases)
        self._ended.update(lease.id for lease in leases)


def _layers(world: World) -> list[NewJob]:
    """A graph in layers; each job waits for some of the layer before, in groups now and then."""
    dice = Random(7)
    jobs: list[NewJob] = []
    before: list[NewJob] = []
    for layer in range(6):
        size = world.sized(20)
        here = [
            world.job(
                after=tuple({job.id: None for job in dice.choices(before, k=4)}) if before else (),
                group=None if world.backend.sharded else dice.choice([None, None, f"g{layer}"]),
            )
            for _ in range(size)
        ]
        jobs, before = [*jobs, *here], here
    return jobs


@case
async def eight_claimers_on_one_loop_run_a_graph_in_its_order(world: World) -> None:
    jobs = _layers(world)
    await world.backend.enqueue(jobs, now=START)
    ledger = FamilyLedger(jobs)
    rivals = [_rival(world.backend, f"rival-{n}", ledger) for n in range(RIVALS)]
    await asyncio.wait_for(asyncio.gather(*rivals), PATIENCE_SECONDS)
    same(ledger.faults, [], "faults the rivals saw")
    same(dict((await world.backend.count())["default"]), {State.SUCCEEDED: len(jobs)}, "states")


@case
async def eight_claimers_in_threads_run_a_graph_in_its_order(world: World) -> None:
    jobs = _layers(world)
    await world.backend.enqueue(jobs, now=START)
    ledger = FamilyLedger(jobs)
    await asyncio.gather(*[asyncio.to_thread(_thread, world, f"rival-{n}", ledger) for n in range(RIVALS)])
    same(ledger.faults, [], "faults the rivals saw")
    same(dict((await world.backend.count())["default"]), {State.SUCCEEDED: len(jobs)}, "states")


@case
async def children_stored_while_their_parents_end_all_run(world: World) -> None:
    parents = [world.job() for _ in range(world.sized(80))]
    children = [world.job(after=(one.id, two.id)) for one, two in pairwise(parents)]
    await world.backend.enqueue(parents, now=START)
    ledger = FamilyLedger([*parents, *children])

    async def produce(some: Sequence[NewJob]) -> None:
        backend = world.make_backend(world.store)
        await backend.open()
        try:
            for job in some:
                [answer] = await backend.enqueue([job], now=START)
                assert answer.created, f"{job.id} was new"
        finally:
            if backend is not world.backend:
                await backend.close()

    producers = [asyncio.to_thread(asyncio.run, produce(children[n::3])) for n in range(3)]
    rivals = [asyncio.to_thread(_thread, world, f"rival-{n}", ledger) for n in range(4)]
    await asyncio.gather(*producers, *rivals)
    same(ledger.faults, [], "faults the rivals saw")
    same(dict((await world.backend.count())["default"]), {State.SUCCEEDED: ledger.total}, "states")


# ----------------------------------------------------------------------------------------------------------------------
# Members of a batch that add others with their own end


@case
async def a_batch_that_grows_under_rivals_is_joined_once(world: World) -> None:
    await world.relaxed(100)
    first = [world.job(group="g", args=b"3") for _ in range(6)]
    await world.backend.enqueue(first, now=START)
    last = await world.enqueue(group="g", after=tuple(job.id for job in first), on_parent_failure="run")
    ended: list[str] = []
    total = len(first) * 4  # each adds one, which adds one, which adds one

    async def work(name: str) -> None:
        backend = world.make_backend(world.store)
        await backend.open()
        try:
            await backend.register(WorkerRecord(id=name, host="host", pid=1, lease_seconds=FOREVER), now=START)
            for call in range(1, 10_000):
                request = ClaimRequest(worker=name, call=call, queues=("default",), most=2)
                for lease in (await backend.claim(request, now=START)).leases:
                    if lease.id == last:  # asked of the store: threads note what they ended in any order
                        found = dict((await backend.count())["default"])
                        same(found, {State.SUCCEEDED: total, State.RUNNING: 1}, "states when the join begins")
                    left = int(lease.args) if lease.args != b"{}" else 0
                    jobs = [world.job(group="g", args=b"%d" % (left - 1), before=last)] if left else []
                    end = world.settlement(lease, Ending.SUCCEEDED)
                    answer = Answer.BUSY
                    for _ in range(1000):  # while a rival holds the row of the join
                        answer = await backend.settle_with(end, jobs, now=START)
                        if answer is not Answer.BUSY:
                            break
                    assert answer is Answer.OK, f"{lease.id}: {answer}"
                    ended.append(lease.id)
                if last in ended:
                    return
                await asyncio.sleep(0)
        finally:
            if backend is not world.backend:
                await backend.close()

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, work(f"rival-{n}")) for n in range(4)))
    same((len(ended), len(set(ended))), (total + 1, total + 1), "jobs that ended, each once")
    same(dict((await world.backend.count())["default"]), {State.SUCCEEDED: total + 1}, "states")
