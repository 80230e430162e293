"""What does it cost to inspect a large store? Lists, counts and groupings, in stores of growing size.

Calls the backend directly, without a worker. Each size has a store of its own (on Redis a server), never analysed. Its
oldest jobs are the ones that are hardest to find: a rare task, dead jobs, delayed ones. Four of ten others have
succeeded, the rest is ready. A call may take 0.4 s of processor time, of the store and this process together, however
much is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from holdfast.backends import open_backend
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.queries import make_query
from holdfast.queries.pages import Grouping
from holdfast.records import ClaimRequest, LetterQuery, NewJob, WorkerRecord

from ..places import opened
from ..processes import processor_seconds
from ..scenario import Case, Scenario, Setting

BULK = 1000
FEW, DEAD, LATE = 20, 500, 1000
TASKS = 20
TIMES, TIMES_QUICK = 5, 2
DAY = 86400.0
ERRORS = ("builtins.TimeoutError", "builtins.ValueError", "app.Refused")


def _id(number: int) -> str:
    return f"{number:024x}{number * 2654435761 % 2**32:08x}"


class Listed:
    """A store with this many jobs."""

    def __init__(self, url: str, server: int, size: int, times: int) -> None:
        patient = f"{url}{'&' if '?' in url else '?'}call_timeout=60"
        self.backend = open_backend(patient)
        self._server, self._size, self._times = server, size, times
        self._added = self._calls = 0

    async def open(self) -> None:
        await self.backend.open()
        await self.backend.register(WorkerRecord(id="w", lease_seconds=10 * DAY))

    async def fill(self) -> None:
        await self._add("ready", FEW, lambda n: "rare")
        await self._add("dying", min(DEAD, self._size // 10), lambda n: f"t{n % 3}")
        await self._end("dying", Ending.BURIED)
        await self._add("late", min(LATE, self._size // 10), lambda n: "later", delay=DAY)
        done = self._size * 4 // 10
        await self._add("done", done, lambda n: f"t{n % TASKS}")
        await self._end("done", Ending.SUCCEEDED)
        await self._add("ready", self._size - self._added, lambda n: f"t{n % TASKS}")

    async def _add(self, queue: str, jobs: int, task: Callable[[int], str], delay: float | None = None) -> None:
        first, self._added = self._added, self._added + jobs
        for start in range(first, self._added, BULK):
            await self.backend.enqueue(
                [
                    NewJob(id=_id(n), task=task(n), queue=queue, delay=delay, args=b'{"user":{"id":%d}}' % n)
                    for n in range(start, min(start + BULK, self._added))
                ]
            )

    async def _end(self, queue: str, ending: Ending) -> None:
        """Every ready job of the queue."""
        settlements: list[Settlement] = []
        while True:
            self._calls += 1
            request = ClaimRequest(worker="w", call=self._calls, queues=(queue,), most=BULK)
            leases = (await self.backend.exchange(settlements, (), request)).leases
            settlements = [
                Settlement(
                    id=lease.id,
                    token=lease.token,
                    ending=ending,
                    failed=ending is Ending.BURIED,
                    reason="failed" if ending is Ending.BURIED else None,
                    failure=Failure(type=ERRORS[n % 3], text=f"no {n}") if ending is Ending.BURIED else None,
                    retain=10 * DAY,
                )
                for n, lease in enumerate(leases)
            ]
            if not leases:
                return

    # ------------------------------------------------------------------ what is measured

    async def list(self, query: str, sort: str | None = None) -> None:
        await self.backend.page(make_query(query.replace("<middle>", _id(self._size // 2)[-8:]), {}, sort))

    async def count(self, query: str, by: Grouping | None = None) -> None:
        await self.backend.tally(make_query(query, {}), by)

    async def counts(self) -> None:
        await self.backend.count()

    async def queues(self) -> None:
        await self.backend.queues()

    async def letters(self) -> None:
        await self.backend.letters(LetterQuery(limit=50))

    def _used(self) -> float:
        return time.process_time() + (processor_seconds(self._server) if self._server else 0.0)

    async def measure(self, call: Call) -> dict[str, float]:
        """The cost of one call, after one that is not counted."""
        await call(self)
        used, began = self._used(), time.perf_counter()
        for _ in range(self._times):
            await call(self)
        took, used = time.perf_counter() - began, self._used() - used
        return {"cpu_ms": used / self._times * 1000, "call_ms": took / self._times * 1000}


Call = Callable[[Listed], Awaitable[None]]


def _list(query: str, sort: str | None = None) -> Call:
    return lambda store: store.list(query, sort)


def _count(query: str, by: Grouping | None = None) -> Call:
    return lambda store: store.count(query, by)


CALLS: dict[str, Call] = {
    "all": _list(""),
    "ready": _list("ready"),
    "succeeded": _list("succeeded"),
    "dead, the oldest": _list("dead"),
    "scheduled, old": _list("scheduled"),
    "scheduled, by due time": _list("scheduled", "due"),
    "a queue": _list("queue:done"),
    "a rare task, the oldest": _list("task:rare"),
    "a task that nobody has": _list("task:none"),
    "a pattern that nothing fits": _list("task:x*"),
    "an argument, found late": _list("args.user.id:-1"),
    "an error": _list("error:Timeout"),
    "the end of an id": _list("id:<middle>"),
    "older than a day": _list("age:>1d"),
    "ready, by priority": _list("ready", "priority"),
    "finished, by end": _list("finished", "finished"),
    "count all": _count(""),
    "count a rare task": _count("task:rare"),
    "count ready": _count("ready"),
    "by state": _count("", "state"),
    "by queue": _count("", "queue"),
    "by task": _count("", "task"),
    "dead by error": _count("dead", "error"),
    "counts by queue and state": Listed.counts,
    "queues": Listed.queues,
    "dead letters": Listed.letters,
}


def sizes(quick: bool) -> tuple[int, ...]:
    return (200, 2000) if quick else (1000, 1_000_000)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    stores: dict[int, Listed] = {}
    with asyncio.Runner() as loop, contextlib.ExitStack() as stack:
        for size in sizes(setting.quick):
            place = stack.enter_context(opened("redis")) if setting.store == "redis" else setting.place
            area = stack.enter_context(place.area("bench" if setting.store == "redis" else f"lists{size}"))
            one = Listed(area.ours, place.pid, size, TIMES_QUICK if setting.quick else TIMES)
            loop.run(one.open())
            stack.callback(lambda store: loop.run(store.backend.close()), one)
            loop.run(one.fill())
            stores[size] = one

        def measured(store: Listed, call: Call) -> dict[str, float]:
            return loop.run(store.measure(call))

        yield [
            Case(f"{name}, {size:,} jobs", "ours", partial(measured, store, call), name, size == min(stores))
            for name, call in CALLS.items()
            for size, store in stores.items()
        ]


SCENARIO = Scenario(
    "lists", "Cost of lists, counts and groupings as a store grows", "cpu_ms", "ms of processor", cases,
    ("sqlite", "postgres", "redis"), weight=300.0, more_is_better=False, fresh=True, asked_only=True,
    columns=("call_ms",),
)  # fmt: skip
