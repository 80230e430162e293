"""Random walks over all verbs: the store must be sound on its way, and two stores must walk alike.

Called by run_case (one store, soundness after every few steps) and by tests that let two stores walk the same way and
compare answers and portraits. A walk is decided by its seed and by the answers, so stores that agree stay on one path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from ...dead_copies import is_copy
from ...errors import HoldfastError
from ...lifecycle import REMOVED, Ending, Settlement
from ...rates import NO_RATE, UNLIMITED, Rate
from ...records import (
    LIFO,
    REMEMBER_SECONDS_MIN,
    SERIAL_PREFIX,
    ClaimRequest,
    CronEntry,
    Edit,
    Exchanged,
    Held,
    JobQuery,
    Lease,
    NewJob,
    Override,
    Pause,
    QueueRule,
    Release,
    Revival,
    TaskRule,
    Tick,
)
from ...steps import NewStep
from .registry import case_for_each
from .soundness import sound
from .world import World

QUEUES, GROUPS, TASKS, WORKERS = ("default", "other"), (None, "a", "b"), ("work", "mail"), ("w1", "w2", "w3")
SIGNALS = ("paid", "sent")
STEPS = 120
LOOK_EVERY = 3  # steps. A fault stays to be seen, and to read the whole store costs more than to change it


class Walk:
    """One walker: remembers ids, leases (live and stale alike) and the last call of each worker."""

    groups: tuple[str | None, ...] = GROUPS
    orders: tuple[int | None, ...] = ()  # that jobs have and get
    conflicts: tuple[str, ...] = ("keep", "replace", "raise", "debounce")
    verbs: tuple[str, ...] = ("cancel", "cancel", "bury", "run_now", "revive", "revive", "retry", "discard", "delete")

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = Random(seed)
        self.ids: list[str] = []
        self.jobs: dict[str, NewJob] = {}
        self.leases: list[Lease] = []
        self.calls: dict[str, tuple[list[Settlement], list[Release], ClaimRequest]] = {}
        self.steps: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (8, self.enqueue),
            (2, self.tick),
            (8, self.exchange),
            (2, self.repeat),
            (8, self.settle),
            (4, self.release),
            (3, self.begin),
            (1, self.report),
            (4, self.renew),
            (1, self.retire),
            (2, self.recover),
            (3, self.sweep),
            (6, self.operate),
            (3, self.edit),
            (2, self.pause),
            (1, self.rule),
            (5, self.wait),
        ]

    async def step(self) -> tuple[str, object]:
        """Make one step; returns its name and its result, without tokens and fences."""
        weights = [weight for weight, _ in self.steps]
        act = self.dice.choices([act for _, act in self.steps], weights)[0]
        try:
            return act.__name__, await act()
        except HoldfastError as refusal:
            return act.__name__, type(refusal).__name__

    def _one(self, *options: Any) -> Any:
        return self.dice.choice(options)

    def _lease(self) -> Lease | Held:
        """A lease of this walk; the recent ones more often, for they are more often still live."""
        recent = self.leases[-6:] if self.dice.random() < 0.8 else self.leases
        return self.dice.choice(recent) if recent else Held("nobody", "nothing")

    def _job(self) -> str:
        return self.dice.choice(self.ids) if self.ids and self.dice.random() < 0.98 else "nobody"

    async def enqueue(self) -> object:
        key, options = self._one(None, None, "k", "l"), self._key_options()
        job = self.world.job(
            queue=self._one(*QUEUES),
            task=self._one(*TASKS),
            group=self._one(*self.groups),
            key=key,
            delay=self._one(None, None, None, 5.0, 50.0),
            priority=self._one(0, 0, 0, -1, 2),
            max_stalls=self._one(0, 1, 3),
            expires=self._one(None, None, 60.0),
            on_expire=self._one("bury", "drop"),
            revival=self._one(None, None, Revival(after=20.0, cycles=2)),
            on_conflict=self._one(*self.conflicts),
            args=self._one(b"[1]", b"[2]"),
            wait_max=self._one(None, 20.0),
            **(options if key is not None else {}),
        )
        job = replace(job, **self._more())
        if self.ids and self.dice.random() < 0.05:
            job = self.world.job(id=self._job())
            if self.world.backend.sharded:  # an id is known only where its job is: there, the same call is repeated
                job = self.jobs.get(job.id, job)
        self.jobs.setdefault(job.id, job)
        answers = await self.world.backend.enqueue([job], now=self.world.now)
        self.ids.append(job.id)
        return answers

    def _more(self) -> dict[str, Any]:
        """Further fields of a new job."""
        return {}

    def _key_options(self) -> dict[str, Any]:
        """How a key holds; a global one only where two queues are in one store. Nothing without a key."""
        return {
            "key_scope": "queue" if self.world.backend.sharded else self._one("queue", "queue", "global"),
            "key_until": self._one("finished", "finished", "started"),
            "key_window": self._one(None, None, 30.0),
        }

    async def tick(self) -> object:
        """Write a cron entry of one of the queues, now and then with jobs, on its version or on a stale one."""
        queue = self._one(*QUEUES)
        name = f"of {queue}"
        known = {entry.name: entry for entry in await self.world.backend.entries()}
        entry = known.get(name, CronEntry(name=name, call=b'{"task":"work","queue":"%s"}' % queue.encode()))
        jobs = [
            self.world.job(queue=queue, key=self._one(None, "k"), on_conflict=self._one("keep", "raise", "replace"))
            for _ in range(self._one(0, 1, 1, 2))
        ]
        wanted = Tick(
            name=name,
            version=entry.version - (self.dice.random() < 0.1),
            entry=self._one(None, *[replace(entry, fired=entry.fired + 1)] * 5),
            entry_if_skipped=replace(entry, skipped=entry.skipped + 1),
            jobs=tuple(jobs),
            not_before=self.world.now + self._one(-1.0, 0.0, 0.0, 0.0, 5.0),
            overlap=self._one("allow", "skip", "cancel"),
            previous=self._one(None, entry.last_job, self._job_of(queue)),
        )
        answer = await self.world.backend.tick(wanted, now=self.world.now)
        if answer.done and not answer.skipped:
            self.ids += [job.id for job in jobs]
            self.jobs.update((job.id, job) for job in jobs)
        return answer

    def _job_of(self, queue: str) -> str | None:
        among = [job_id for job_id in self.ids if job_id in self.jobs and self.jobs[job_id].queue == queue]
        return self.dice.choice(among) if among else None

    async def exchange(self) -> object:
        worker = self._one(*WORKERS)
        await self._registered(worker)
        done = self._settlements(self._one(0, 0, 1, 2))
        back = [self._release() for _ in range(self._one(0, 0, 1))]
        queues = self._one(QUEUES, QUEUES[::-1], QUEUES[:1])
        request = self.world.request(worker, self._one(1, 2, 3), queues=queues)
        self.calls[worker] = (done, back, request)
        return self._seen(await self.world.exchange(done, back, request))

    async def repeat(self) -> object:
        worker = self._one(*WORKERS)
        if worker not in self.calls:
            return None
        return self._seen(await self.world.exchange(*self.calls[worker]))

    async def _registered(self, worker: str) -> None:
        known = {row.id for row in await self.world.backend.workers(now=self.world.now)}
        if worker not in known:
            await self.world.register(worker, isolates=self.dice.random() < 0.5)

    def _seen(self, answer: Exchanged) -> object:
        new = [lease for lease in answer.leases if lease not in self.leases]
        self.leases.extend(sorted(new, key=lambda lease: lease.id))
        leases = [(x.id, x.attempt, x.failures, x.stalls, x.shared_stalls, x.suspect) for x in answer.leases]
        return answer.known, answer.answers, sorted(leases), sorted(r.id for r in answer.recovered)

    def _settlements(self, number: int) -> list[Settlement]:
        leases = {lease.id: lease for lease in (self._lease() for _ in range(number))}
        return [self._settlement(lease) for lease in leases.values()]

    def _settlement(self, lease: Lease | Held) -> Settlement:
        ending = self._one(*Ending, Ending.SUCCEEDED, Ending.RETRY)
        said: dict[str, Any] = {"alone": self._one(True, False)} if ending is Ending.STALLED else {}
        if ending is Ending.SUCCEEDED and self._one(True, False, False, False):
            said = {"retain": REMOVED}
        return self.world.settlement(lease, ending, **said)

    def _release(self) -> Release:
        lease = self._lease()
        return Release(id=lease.id, token=lease.token, delay=self._one(0.0, 0.0, 7.0))

    async def settle(self) -> object:
        return await self.world.backend.settle(self._settlements(self._one(1, 1, 2)), now=self.world.now)

    async def release(self) -> object:
        return await self.world.backend.release([self._release()], now=self.world.now)

    async def begin(self) -> object:
        return await self.world.begin(self._lease())

    async def report(self) -> object:
        return await self.world.report(self._lease(), progress=self._one(0.1, 0.9), lines=("line",))

    async def renew(self) -> object:
        worker = self._one(*WORKERS)
        newest = {lease.id: lease for lease in self.leases[-10:]}  # a worker holds one lease on a job
        named = [lease for lease in newest.values() if self.dice.random() < 0.8]
        seen = max(0, self.world.last_call(worker) - self._one(0, 1, 2))
        answer = await self.world.renew(worker, named, seen_call=seen)
        parts = (answer.lost, answer.cancelled, answer.released)
        return answer.known, *((sorted(set(part)) for part in parts) if answer.known else ())

    async def retire(self) -> object:
        return await self.world.backend.retire(self._one(*WORKERS), now=self.world.now)

    async def recover(self) -> object:
        dead = self._one((), (), (self._one(*WORKERS),))
        found = await self.world.backend.recover(dead=dead, now=self.world.now)
        return sorted((r.id, r.state, r.stalls, r.shared_stalls, r.counted) for r in found)

    async def sweep(self) -> object:
        verb = self._one("promote", "promote", "refill", "prune")
        return await getattr(self.world.backend, verb)(now=self.world.now)

    async def operate(self) -> object:
        verb = self._one(*self.verbs)
        more = ("told to",) if verb in ("bury", "annotate") else ()
        answer = await getattr(self.world.backend, verb)(self._job(), *more, now=self.world.now)
        return answer.id, getattr(answer, "state", None)

    async def edit(self) -> object:
        """Change some of what an operator can; where a job may not change its shard, neither queue nor group."""
        offered: dict[str, Any] = {
            "args": self._one(b"[3]", b"[4, 5]"),
            "priority": self._one(0, 3, -2),
            "delay": self._one(0.0, 4.0, 40.0),
            "queue": self._one(*QUEUES),
            "group": self._one(*self.groups),
        }
        if self.world.backend.sharded:
            del offered["queue"], offered["group"]
        if self.orders:
            offered["order"] = self._one(*self.orders)
        changes = Edit(
            **{name: value for name, value in offered.items() if self.dice.random() < 0.4},
            revive=self.dice.random() < 0.4,
        )
        answer = await self.world.backend.edit(self._job(), changes, now=self.world.now)
        return answer.id, answer.state

    async def pause(self) -> object:
        pause = self._one(
            Pause(queue=self._one(*QUEUES)),
            Pause(queue=self._one(*QUEUES), group=self._one("a", "b")),
            Pause(task=self._one(*TASKS)),
        )
        if self.dice.random() < 0.4:
            await self.world.backend.pause(pause, now=self.world.now)
            return pause
        if self.dice.random() < 0.5 and pause.group is not None:
            return await self.world.backend.resume(pause, now=self.world.now, skip_dead=True)
        return [await self.world.backend.resume(each, now=self.world.now) for each in await self._paused()]

    async def _paused(self) -> list[Pause]:
        return sorted(await self.world.backend.pauses(), key=repr)

    async def rule(self) -> object:
        queue, now = self._one(*QUEUES), self.world.now
        if self.dice.random() < 0.5:
            limit = self._one(None, 1, 3)
            await self.world.backend.limit(Override(queue=queue, group=self._one("a", "b"), limit=limit), now=now)
            return limit
        order, on_dead = self._one("strict", "relaxed"), self._one("go_on", "stop")
        rule = QueueRule(name=queue, group_limit=self._one(1, 2, 3), group_order=order, on_dead=on_dead)
        await self.world.backend.declare([rule], now=now)
        return rule

    async def wait(self) -> object:
        seconds = self._one(1.0, 1.0, 6.0, 12.0, 35.0, 700.0 if self.dice.random() < 0.1 else 3.0)
        self.world.advance(seconds)
        if seconds > REMEMBER_SECONDS_MIN:  # ids of deleted jobs may stay known until they are pruned
            await self.world.backend.prune(now=self.world.now)
        return self.world.now


@case_for_each(range(12), name=lambda seed: f"seed {seed}")
async def a_random_walk_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(Walk(world, seed), f"seed {seed}")


async def keep_sound(walk: Walk, which: str) -> None:
    """Walk, and look every few steps whether the store is sound; run_case looks at the end."""
    names: list[str] = []
    for number in range(walk.world.sized(STEPS)):
        names.append((await walk.step())[0])
        if len(names) == LOOK_EVERY:
            await sound(walk.world.backend, f"{which}, step {number}, after {', '.join(names)}")
            names.clear()


# ----------------------------------------------------------------------------------------------------------------------
# Random walks with limits, rates, slow-downs, aging and the worker's own caps, changed on the way.
#
# Called by run_case and by tests that let two stores walk alike. All that walking does is done here, too.


RATES = (None, Rate(2, 10.0), Rate(1, 20.0), Rate(1, 5.0, 3), Rate(30, 60.0))
FLOW_GROUPS = ("a", "b", SERIAL_PREFIX + "c")


class FlowWalk(Walk):
    """A walk on which operators and deploys turn every knob."""

    groups = (None, *FLOW_GROUPS)

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps += [(4, self.rule), (2, self.task_rule), (3, self.limit), (1, self.slow_down), (6, self.exchange)]

    async def exchange(self) -> object:
        worker = self._one(*WORKERS)
        await self._registered(worker)
        done = self._settlements(self._one(0, 0, 1, 2))
        back = [self._release() for _ in range(self._one(0, 0, 1))]
        request = self.world.request(
            worker,
            self._one(1, 2, 5),
            queues=self._one(QUEUES, QUEUES[::-1], QUEUES[:1]),
            most_by_queue=self._one({}, {}, {"other": 1}),
            most_by_task=self._one({}, {}, {"work": 1}, {"mail": 0}),
            most_by_group=self._one(None, None, 1, 2),
            priorities=self._one(None, None, None, (0, 0), (1, 9)),
        )
        self.calls[worker] = (done, back, request)
        return self._seen(await self.world.exchange(done, back, request))

    def _seen(self, answer: Exchanged) -> object:
        seen = super()._seen(answer)
        return (*seen, answer.opens_in) if isinstance(seen, tuple) else seen

    async def rule(self) -> object:
        rule = QueueRule(
            name=self._one(*QUEUES),
            group_limit=self._one(1, 2, 3, UNLIMITED),
            group_order=self._one("strict", "relaxed", "relaxed"),
            group_rate=self._one(None, None, *RATES),
            limit=self._one(None, None, 1, 3),
            rate=self._one(None, None, *RATES),
            aging=self._one(None, None, 3.0, LIFO),
            on_dead=self._one("go_on", "stop"),
        )
        await self.world.backend.declare([rule], now=self.world.now)
        return rule

    async def task_rule(self) -> object:
        rule = TaskRule(
            name=self._one(*TASKS),
            limit=self._one(None, None, 1, 2),
            rate=self._one(None, None, *RATES),
            apart=self._one(False, True),
        )
        await self.world.backend.declare([], [rule], now=self.world.now)
        return rule

    async def limit(self) -> object:
        scope = self._one(
            {"queue": self._one(*QUEUES)},
            {"queue": self._one(*QUEUES), "group": self._one(*FLOW_GROUPS)},
            {"task": self._one(*TASKS)},
        )
        said = {
            **({"limit": self._one(None, 0, 1, 2, UNLIMITED)} if self.dice.random() < 0.6 else {}),
            **({"rate": self._one(NO_RATE, *RATES)} if self.dice.random() < 0.6 else {}),
        }
        await self.world.backend.limit(Override(**scope, **said), now=self.world.now)
        return scope, said

    async def wait(self) -> object:
        """Groups whose bucket has opened are woken at once: which other step happens to refill them is left open."""
        await super().wait()
        await self.world.promote_all()
        return self.world.now

    async def slow_down(self) -> object:
        seconds = self._one(2.0, 8.0, 30.0)
        return await self.world.backend.slow_down(self._one(*QUEUES), seconds, now=self.world.now)


@case_for_each(range(12), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_limits_and_rates_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(FlowWalk(world, seed), f"seed {seed}")


# ----------------------------------------------------------------------------------------------------------------------
# The same with chains: claims that lease several jobs of a strict group.


class ChainWalk(FlowWalk):
    """A walk whose claims allow chains; leases of a chain end in any order, as an owner that dies leaves them."""

    async def exchange(self) -> object:
        worker = self._one(*WORKERS)
        await self._registered(worker)
        done = self._settlements(self._one(0, 1, 2, 3))
        back = [self._release() for _ in range(self._one(0, 0, 1, 2))]
        queues = self._one(QUEUES, QUEUES[::-1], QUEUES[:1])
        request = self.world.request(
            worker,
            self._one(1, 2, 5),
            queues=queues,
            chain_by_queue=dict.fromkeys(queues, self._one(1, 2, 3, 5)),
            chained_max=self._one(0, 2, 5, 20),
        )
        self.calls[worker] = (done, back, request)
        return self._seen(await self.world.exchange(done, back, request))

    def _seen(self, answer: Exchanged) -> object:
        seen = super()._seen(answer)
        return (*seen, sorted(x.id for x in answer.leases if x.chained)) if isinstance(seen, tuple) else seen


@case_for_each(range(12), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_chains_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(ChainWalk(world, seed), f"chain seed {seed}")


# ----------------------------------------------------------------------------------------------------------------------
# The same with jobs that wait for others, for signals, and remember what they have done.


class DependencyWalk(Walk):
    """A walk on which jobs wait for earlier ones, alone or in batches that name each other, and for signals."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps += [(12, self.enqueue_after), (6, self.exchange), (6, self.settle), (3, self.wait)]
        self.steps += [(4, self.settle_with), (4, self.enqueue_before), (4, self.rejoin)]
        self.steps += [(4, self.checkpoint), (8, self.signal), (8, self.wait_for_signal)]
        self.awaited: list[tuple[str, str]] = []  # jobs that waited for a signal, and its name

    async def step(self) -> tuple[str, object]:
        """What became due is promoted at once: how many due jobs of a group a refill takes along is left open."""
        done = await super().step()
        await self.world.promote_all()
        return done

    async def enqueue_after(self) -> object:
        queue = self._one(*QUEUES)
        parents = [one for one in (self._parent(queue) for _ in range(self._one(1, 1, 2, 3))) if one is not None]
        jobs: list[NewJob] = []
        for _ in range(self._one(1, 1, 2)):
            jobs.append(
                self.world.job(
                    queue=queue,
                    task=self._one(*TASKS),
                    group=None if self.world.backend.sharded else self._one(*self.groups),
                    key=self._one(None, None, None, "k"),
                    on_conflict=self._one("keep", "raise"),
                    delay=self._one(None, None, 5.0),
                    expires=self._one(None, None, 60.0),
                    max_stalls=self._one(0, 3),
                    after=tuple(dict.fromkeys(parents)),
                    on_parent_failure=self._one("bury", "bury", "cancel", "run"),
                )
            )
            parents = [jobs[-1].id, *parents[:1]]
        answers = await self.world.backend.enqueue(jobs, now=self.world.now)
        for job in jobs:
            self.jobs.setdefault(job.id, job)
            self.ids.append(job.id)
        return answers

    async def settle_with(self) -> object:
        """End a lease together with a job that may add to what waits for it."""
        done = self._settlements(1)
        if not done or self.world.backend.sharded:
            return None
        job = self.world.job(queue=self._one(*QUEUES), task=self._one(*TASKS), before=self._one(None, self._job()))
        settlement = self.world.settlement(Held(done[0].id, done[0].token), Ending.SUCCEEDED)
        answer = await self.world.backend.settle_with(settlement, [job], now=self.world.now)
        self.jobs.setdefault(job.id, job)
        self.ids.append(job.id)
        return answer

    async def rejoin(self) -> object:
        """Let a job that has ended be decided by its parents again."""
        job_id = self._job()
        return None if job_id is None else (await self.world.backend.rejoin(job_id, now=self.world.now)).state

    async def enqueue_before(self) -> object:
        """Give a job that may wait for others one more parent."""
        if self.world.backend.sharded:
            return None
        job = self.world.job(queue=self._one(*QUEUES), task=self._one(*TASKS), before=self._job())
        answers = await self.world.backend.enqueue([job], now=self.world.now)
        self.jobs.setdefault(job.id, job)
        self.ids.append(job.id)
        return answers

    async def checkpoint(self) -> object:
        """Remember something: what a lease waits for, more often than not."""
        kind = self._one("wait", "wait", "step", "state")
        delay = self._one(5.0, 50.0) if kind == "wait" else None
        new = NewStep(kind=kind, name=self._one(*SIGNALS), number=self._one(1, 2), value=b"1", delay=delay)
        lease = self._lease()
        return await self.world.backend.checkpoint(Held(lease.id, lease.token), [new], now=self.world.now)

    async def wait_for_signal(self) -> object:
        """As a handler does: the wait is remembered, and the job sleeps. Its signal may be there already."""
        lease, name = self._lease(), self._one(*SIGNALS)
        held, wait = Held(lease.id, lease.token), NewStep(kind="wait", name=name, number=self._one(1, 2), delay=50.0)
        self.awaited.append((lease.id, name))
        kept = await self.world.backend.checkpoint(held, [wait], now=self.world.now)
        snooze = self.world.settlement(held, Ending.SNOOZED, reason=name, delay=50.0)
        return kept, await self.world.backend.settle([snooze], now=self.world.now)

    async def signal(self) -> object:
        """A job that waits, more often than not; or one that runs, and may wait later."""
        way = self.dice.random()
        job_id, name = self._job(), self._one(*SIGNALS)
        if way < 0.6 and self.awaited:
            job_id, name = self.dice.choice(self.awaited[-4:])
        elif way < 0.8:
            job_id = self._lease().id
        answer = await self.world.backend.signal(job_id, name, self._one(b"2", b"3"), now=self.world.now)
        return answer.id, answer.state

    def _parent(self, queue: str) -> str | None:
        return self._job_of(queue) if self.world.backend.sharded else self._job()

    def _settlement(self, lease: Lease | Held) -> Settlement:
        """Success more often: else few jobs ever come to their turn. And snoozes that wait for a signal."""
        way = self.dice.random()
        if way < 0.5:
            return self.world.settlement(lease, Ending.SUCCEEDED)
        if way < 0.7:
            return self.world.settlement(lease, Ending.SNOOZED, reason=self._one(*SIGNALS), delay=50.0)
        return super()._settlement(lease)


@case_for_each(range(12), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_dependencies_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(DependencyWalk(world, seed), f"dependency seed {seed}")


class KeyWalk(Walk):
    """A walk on which windows of keys are extended, keys are freed and notes are written."""

    conflicts = (*Walk.conflicts, "extend", "extend")
    verbs = (*Walk.verbs, "free_key", "free_key", "free_key", "annotate")


class OrderWalk(ChainWalk):
    """A walk on which jobs have orders and wait for lower ones, and groups have weights."""

    orders = (None, 1, 2, 2, 3, 4, -5)

    def _more(self) -> dict[str, Any]:
        return {"order": self._one(*self.orders), "delay": self._one(None, None, None, 0.0, 5.0, 50.0)}

    async def limit(self) -> object:
        if self.dice.random() < 0.5:
            return await super().limit()
        said = Override(queue=self._one(*QUEUES), group=self._one(*FLOW_GROUPS), weight=self._one(None, 2, 3))
        await self.world.backend.limit(said, now=self.world.now)
        return said

    async def rule(self) -> object:
        rule = QueueRule(
            name=self._one(*QUEUES),
            group_limit=self._one(1, 2),
            group_order=self._one("strict", "strict", "relaxed"),
            group_rate=self._one(None, None, None, Rate(2, 10.0)),
            on_dead=self._one("go_on", "stop"),
            order_window=self._one(None, 3.0, 8.0),
        )
        await self.world.backend.declare([rule], now=self.world.now)
        return rule


@case_for_each(range(6), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_orders_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(OrderWalk(world, seed), f"order seed {seed}")


class DyingWalk(Walk):
    """A walk on which dead jobs leave copies in the other queue, to and fro."""

    verbs = (*Walk.verbs, "bury", "bury", "bury")

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps += [(5, self.rule), (6, self.operate), (3, self.copy)]

    async def copy(self) -> object:
        """Learn of a copy, so that it is operated on, too."""
        found = await self.world.backend.find(JobQuery(limit=1000))
        copies = sorted(job.id for job in found if is_copy(job.options))
        self.ids += [self._one(*copies)] if copies else []
        return len(copies)

    async def rule(self) -> object:
        queue, other = self._one(QUEUES, QUEUES[::-1])
        rule = QueueRule(
            name=queue,
            group_order=self._one("strict", "relaxed"),
            on_dead=self._one("go_on", "stop"),
            dead_queue=self._one(None, other, other, "third"),
        )
        await self.world.backend.declare([rule], now=self.world.now)
        return rule


@case_for_each(range(6), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_copies_of_dead_jobs_keeps_the_store_sound(world: World, seed: int) -> None:
    await keep_sound(DyingWalk(world, seed), f"dying seed {seed}")
