"""Does a call cost more when more is stored? Rule changes, sweeps and reads of stores of growing size.

Calls the backend directly, without a worker. Each size has a store of its own (on Redis a server), freshly filled,
never analysed: N ready jobs of a task, N jobs in N / 10 groups, a group of N jobs, N due jobs in N / 10 groups. A call
may touch the same number of jobs at every size, so what grows is overhead. Rules are changed and changed back; what
they leave to rearrange is done between two measurements. Two floors are measured on the same stores, in the same
rounds. With SQL: bare statements that read jobs at random, and that write them. On Redis: bare commands on jobs at
random, and a script that calls no command. What grows there is the store's memory: pages and data that no cache holds,
one level more of an index, and an allocator that gives Lua pieces from all over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import psycopg
import redis

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.backends.sqlite.connection import connect
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, JobQuery, Lease, NewJob, Override, Pause, QueueRule, Release, WorkerRecord

from ..driving import Failed
from ..places import opened
from ..processes import processor_seconds
from ..scenario import Case, Scenario, Setting

BULK = 1000
STEP = 20  # jobs, or groups, that any one call may touch: no more than the smallest store has
TIMES, TIMES_QUICK = 20, 4  # calls in one measurement
RIVALS = 4
GROUP_JOBS = 10
PROMOTE_STEP = 5  # a promoted job may bring with it all due jobs of its group
PROMOTED = 100  # the cost of promoting is given for this many jobs
DELAY_SECONDS = 86400.0
REARRANGE_STEP, REARRANGE_PASSES_MAX = 1000, 10_000
FLOOR_JOBS, FLOOR_TIMES = 20, 10  # jobs of one bare script, and scripts for every call of a measurement
BARE = """
for i = 1, #ARGV do
    local id = ARGV[i]
    redis.call('HSET', KEYS[1], id, redis.call('HGET', KEYS[1], id))
    local seq = redis.call('ZSCORE', KEYS[2], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[2], seq, id)
end
"""
PLAIN_LUA = """
local made = {}
for i = 1, 300 do made[i] = { i, ARGV[1] .. i, function() return made end } end
"""
POSTGRES_READ = "SELECT * FROM holdfast.jobs WHERE seq = (SELECT seq FROM holdfast.ids WHERE id = %s)"
POSTGRES_WRITE = "UPDATE holdfast.jobs SET due_at = due_at WHERE seq = (SELECT seq FROM holdfast.ids WHERE id = %s)"
FLOORS = {  # by store: a script, or a statement for each of 20 jobs
    "sqlite": {
        "bare reads of 20 jobs": "SELECT * FROM holdfast_jobs WHERE id = ?",
        "bare writes of 20 jobs": "UPDATE holdfast_jobs SET due_at = due_at WHERE id = ?",
    },
    "postgres": {"bare reads of 20 jobs": POSTGRES_READ, "bare writes of 20 jobs": POSTGRES_WRITE},
    "redis": {"bare commands on 20 jobs": BARE, "a script that calls no command": PLAIN_LUA},
}
T = TypeVar("T")
Group = Callable[[int], str]


def _id(number: int) -> str:
    return f"{number:032x}"


def _group_of(prefix: str, groups: int, number: int) -> str:
    return f"{prefix}{number % groups}"


class Sized:
    """A store with backlogs of this size, each in a queue of its own, and what is done to it."""

    def __init__(self, url: str, server: int, size: int, times: int) -> None:
        patient = f"{url}{'&' if '?' in url else '?'}call_timeout=60"
        self._backends: list[Backend] = [open_backend(patient) for _ in range(RIVALS)]
        self.backend = self._backends[0]
        self._server = server  # 0: the store runs in this process
        self._size, self._times = size, times
        self._added = self._calls = 0
        self._leases: tuple[Lease, ...] = ()
        self._swapped: list[tuple[Lease, ...]] = [()] * RIVALS  # what each worker has of the busy group
        self._cancellable: list[str] = []

    async def open(self) -> None:
        for backend in self._backends:
            backend.rule_step_max = STEP
            await backend.open()
        for name in ("w", *(f"w{n}" for n in range(RIVALS))):
            await self.backend.register(WorkerRecord(id=name, lease_seconds=864000.0))

    async def close(self) -> None:
        for backend in self._backends:
            await backend.close()

    async def fill(self) -> None:
        busy = QueueRule(name="busy", group_limit=RIVALS, group_order="relaxed")
        await self.backend.declare([self._rule(1), busy])
        await self._add("busy", self._size, group=partial(_group_of, "g", 1))
        await self._add("ready", STEP, "rare")  # the oldest: searches start at the other end
        await self._add("ready", self._size, "t")
        await self._add("grouped", self._size, group=partial(_group_of, "g", self._size // GROUP_JOBS))
        await self._add("same", self._size, group=partial(_group_of, "g", 1))
        await self._add_due(self._size)

    async def _add(
        self, queue: str, jobs: int, task: str = "other", group: Group | None = None, delay: float | None = None
    ) -> None:
        first, self._added = self._added, self._added + jobs
        for start in range(first, self._added, BULK):
            await self.backend.enqueue(
                [
                    NewJob(id=_id(n), task=task, queue=queue, group=group(n) if group else None, delay=delay)
                    for n in range(start, min(start + BULK, self._added))
                ]
            )

    # ------------------------------------------------------------------ what is measured, once each

    @staticmethod
    def _rule(group_limit: int) -> QueueRule:
        return QueueRule(name="grouped", group_limit=group_limit, group_order="relaxed")

    async def _claim(self) -> None:
        self._calls += 1
        releases = [Release(id=lease.id, token=lease.token) for lease in self._leases]
        request = ClaimRequest(worker="w", call=self._calls, queues=("ready",), most=10, sweep_max=STEP)
        self._leases = (await self.backend.exchange((), releases, request)).leases

    async def pause(self) -> None:
        for change in (self.backend.pause, self.backend.resume):
            await change(Pause(task="t"))
            await self._claim()

    async def limit(self) -> None:
        await self.backend.limit(Override(task="t", limit=5))
        await self.backend.limit(Override(task="t", limit=None))

    async def declare(self) -> None:
        await self.backend.declare([self._rule(2)])
        await self.backend.declare([self._rule(1)])

    async def rearrange(self) -> None:
        assert await self.backend.rearrange(limit=STEP), "nothing was left to do"

    async def refill(self) -> None:
        await self.backend.refill(limit=STEP)

    async def groups(self) -> None:
        assert len(await self.backend.groups("grouped", limit=STEP)) == STEP

    async def group(self) -> None:
        found = await self.backend.group("same", "g0")
        assert found.capped or sum(found.counts.values()) == self._size

    async def waking(self) -> None:
        assert not await self.backend.waking(("grouped", "same"))

    async def page(self) -> None:
        """What lists and screens show: it examines a bounded number of jobs, so a large store's page may be empty."""
        await self.backend.page(JobQuery(task="rare", limit=STEP))

    async def cancel(self) -> None:
        await self.backend.cancel(self._cancellable.pop())

    async def promote(self, rivals: int = 1) -> None:
        now = time.time() + 2 * DELAY_SECONDS
        await asyncio.gather(*(one.promote(limit=PROMOTE_STEP, now=now) for one in self._backends[:rivals]))

    async def swap(self, rivals: int = 1) -> None:
        """Each settles its job of the busy group and claims another one."""
        self._calls += 1
        await asyncio.gather(*(self._swap(n) for n in range(rivals)))
        # Not each of them: another worker may have come first, and the group has no more slots than workers.
        assert any(self._swapped[:rivals]), "nothing was claimed"

    async def _swap(self, number: int) -> None:
        ended = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in self._swapped[number]]
        request = ClaimRequest(worker=f"w{number}", call=self._calls, queues=("busy",), most=1, sweep_max=STEP)
        self._swapped[number] = (await self._backends[number].exchange(ended, (), request)).leases

    # ------------------------------------------------------------------ before it

    async def change_rule(self) -> None:
        await self.backend.limit(Override(task="t", limit=5))

    async def cancellable(self) -> None:
        await self._add("ready", self._times + 1)
        self._cancellable = [_id(n) for n in range(self._added - self._times - 1, self._added)]

    async def replace_due(self) -> None:
        """Enqueue as many jobs as will be promoted, in groups of their own."""
        await self._add_due((self._times + RIVALS) * PROMOTE_STEP * GROUP_JOBS)

    async def _add_due(self, jobs: int) -> None:
        group = partial(_group_of, f"{self._added}-", jobs // GROUP_JOBS)
        await self._add("due", jobs, group=group, delay=DELAY_SECONDS)

    # ------------------------------------------------------------------ measuring

    def _used(self) -> float:
        return processor_seconds(self._server) if self._server else time.process_time()

    async def measure(self, call: Call) -> dict[str, float]:
        """The cost of one call, after one that is not counted; for `promote`, the cost of PROMOTED jobs."""
        if call.before:
            await call.before(self)
        await call.once(self)
        scheduled = (await self.backend.count("due"))["due"][State.SCHEDULED]
        used, began = self._used(), time.perf_counter()
        for _ in range(self._times // call.at_once):
            await call.once(self)
        took, used = time.perf_counter() - began, self._used() - used
        units: float = self._times
        if call.before is Sized.replace_due:
            units = (scheduled - (await self.backend.count("due"))["due"][State.SCHEDULED]) / PROMOTED
        if not units:
            raise Failed("nothing was promoted")
        await self._settle()
        return {"cpu_us": used / units * 1e6, "call_ms": took / units * 1000}

    async def _settle(self) -> None:
        """Finish all rearrangements."""
        await self.backend.limit(Override(task="t", limit=None))
        for _ in range(REARRANGE_PASSES_MAX):
            if not await self.backend.rearrange(limit=REARRANGE_STEP):
                return
        raise Failed(f"a changed rule is not carried out after {REARRANGE_PASSES_MAX:,} passes")

    def measure_floor(self, store: str, url: str, text: str) -> dict[str, float]:
        """The cost of one run of a script or statement that changes nothing, on the store's own data."""
        times = self._times * FLOOR_TIMES
        chosen = [[_id(random.randrange(self._added)) for _ in range(FLOOR_JOBS)] for _ in range(times + 1)]
        with RUNS[store](url, text) as run:
            run(chosen.pop())
            used, began = self._used(), time.perf_counter()
            for ids in chosen:
                run(ids)
            took, used = time.perf_counter() - began, self._used() - used
        return {"cpu_us": used / times * 1e6, "call_ms": took / times * 1000}


# ----------------------------------------------------------------------------------------------------------------------
# The floors: each runs a text on some jobs, in one transaction, as our own calls do.


Run = Callable[[Sequence[str]], None]


@contextlib.contextmanager
def _on_redis(url: str, text: str) -> Iterator[Run]:
    with redis.Redis.from_url(url) as client:
        script = client.register_script(text)
        yield lambda ids: script(keys=["{bench}:jobs", "{bench}:seqs"], args=ids)


@contextlib.contextmanager
def _on_sqlite(url: str, text: str) -> Iterator[Run]:
    def run(ids: Sequence[str]) -> None:
        line.execute("BEGIN" if text.startswith("SELECT") else "BEGIN IMMEDIATE")
        for one in ids:
            line.execute(text, (one,)).fetchall()
        line.execute("COMMIT")

    with contextlib.closing(connect(url)) as line:
        yield run


@contextlib.contextmanager
def _on_postgres(url: str, text: str) -> Iterator[Run]:
    def run(ids: Sequence[str]) -> None:
        with line.transaction():
            for one in ids:
                line.execute(text, (one,))

    with psycopg.connect(url, autocommit=True) as line:
        yield run


RUNS: dict[str, Callable[[str, str], contextlib.AbstractContextManager[Run]]] = {
    "redis": _on_redis,
    "sqlite": _on_sqlite,
    "postgres": _on_postgres,
}


Step = Callable[[Sized], Awaitable[None]]


class Call(NamedTuple):
    once: Step
    before: Step | None = None
    at_once: int = 1
    family: str = ""  # that of another call, to be compared with it


CALLS: dict[str, Call] = {
    "pause and resume a task, a claim after each": Call(Sized.pause),
    "limit a task and lift it": Call(Sized.limit),
    "declare another group limit and the old one": Call(Sized.declare),
    "rearrange": Call(Sized.rearrange, Sized.change_rule),
    "refill": Call(Sized.refill),
    "first page of groups": Call(Sized.groups),
    "one group that has all jobs": Call(Sized.group),
    "waking": Call(Sized.waking),
    "promote 100": Call(Sized.promote, Sized.replace_due),
    "promote 100, four at once": Call(partial(Sized.promote, rivals=RIVALS), Sized.replace_due, RIVALS, "promote 100"),
    "swap a job of a busy group": Call(Sized.swap),
    "swap, four at once": Call(partial(Sized.swap, rivals=RIVALS), None, RIVALS, "swap a job of a busy group"),
    "cancel": Call(Sized.cancel, Sized.cancellable),
    "a page of a rare task": Call(Sized.page),
}


def sizes(quick: bool) -> tuple[int, ...]:
    return (200, 2000) if quick else (1000, 100_000, 1_000_000)


def listed(stores: Mapping[int, T], measured: Callable[[T, Call], dict[str, float]]) -> Iterator[Case]:
    """Call by call and size by size; the baseline of a family is its own call in the smallest store."""
    for name, call in CALLS.items():
        for size, store in stores.items():
            baseline = not call.family and size == min(stores)
            yield Case(f"{name}, {size:,} jobs", "ours", partial(measured, store, call), call.family or name, baseline)


def floors(kind: str, stores: Mapping[int, Sized], urls: Mapping[int, str]) -> Iterator[Case]:
    for name, text in FLOORS[kind].items():
        for size, store in stores.items():
            measure = partial(store.measure_floor, kind, urls[size], text)
            yield Case(f"{name}, {size:,} jobs", "floor", measure, name, size == min(stores))


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    stores: dict[int, Sized] = {}
    urls: dict[int, str] = {}
    with asyncio.Runner() as loop, contextlib.ExitStack() as stack:
        for size in sizes(setting.quick):
            place = stack.enter_context(opened("redis")) if setting.store == "redis" else setting.place
            area = stack.enter_context(place.area("bench" if setting.store == "redis" else f"bench{size}"))
            one = Sized(area.ours, place.pid, size, TIMES_QUICK if setting.quick else TIMES)
            loop.run(one.open())
            stack.callback(lambda store: loop.run(store.close()), one)
            loop.run(one.fill())
            stores[size], urls[size] = one, area.theirs
        found = list(listed(stores, lambda store, call: loop.run(store.measure(call))))
        yield found + list(floors(setting.store, stores, urls))


SCENARIO = Scenario(
    "growth", "Cost of rule changes, sweeps and looks as a store grows", "cpu_us", "µs of processor", cases,
    ("sqlite", "postgres", "redis"), weight=300.0, more_is_better=False, fresh=True, asked_only=True,
    columns=("call_ms",),
)  # fmt: skip
