"""Does a claim cost more when more jobs are waiting? One exchange (settle 100, claim 100) with growing backlogs.

Calls the backend directly, without a worker. All stores are filled first, freshly and never analysed, and then measured
in turn. Stores with groups hold the same number of jobs and are compared with each other. On Redis each has a server of
its own, so that its memory is only as large as its own backlog. As many jobs come in as go out. On Redis the same is
done with bare commands: both are slowed down by a larger memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, Lease, NewJob, WorkerRecord

from ..places import Area, opened
from ..processes import processor_seconds
from ..scenario import Case, Scenario, Setting
from .bare_behind import BareBehind

BATCH, BULK = 100, 1000
EXCHANGES, WARM_UP = 10, 2
CHURN, CHURN_BATCH = 50_000, 100
RETAIN_SECONDS = 86400.0
GROUPS_FEW = 100  # as many as an exchange claims, because each runs one job at a time
T = TypeVar("T")
Group = Callable[[int], str | None]


class Behind:
    """A store with a backlog, and a worker that claims from it."""

    def __init__(self, area: Area, server: int, group: Group) -> None:
        patient = f"{area.ours}{'&' if '?' in area.ours else '?'}call_timeout=60"
        self.backend: Backend = open_backend(patient)
        self._server = server  # 0: the store runs in this process
        self._group = group
        self._call = self._added = 0
        self._leases: tuple[Lease, ...] = ()

    async def open(self) -> None:
        await self.backend.open()
        await self.backend.register(WorkerRecord(id="w", lease_seconds=864000.0))

    async def add(self, jobs: int, group: Group | None = None) -> None:
        group = group or self._group
        for start in range(self._added, self._added + jobs, BULK):
            numbers = range(start, min(start + BULK, self._added + jobs))
            await self.backend.enqueue(
                [NewJob(id=f"{n:032x}", task="t", args=b'{"number":1}', group=group(n)) for n in numbers]
            )
        self._added += jobs

    async def exchange(self, most: int, retain: float = RETAIN_SECONDS) -> float:
        """Make one exchange. Return the seconds it took."""
        self._call += 1
        ends = ((one.id, one.token) for one in self._leases)
        done = [Settlement(id=job, token=token, ending=Ending.SUCCEEDED, retain=retain) for job, token in ends]
        request = ClaimRequest(worker="w", call=self._call, queues=("default",), most=most)
        began = time.perf_counter()
        answer = await self.backend.exchange(done, (), request)
        took = time.perf_counter() - began
        assert len(answer.leases) == most, "the store ran dry"
        self._leases = answer.leases
        return took

    async def block(self, jobs: int) -> None:
        """Put this many jobs of one group in front; its head stays leased, so that the rest waits behind it."""
        await self.add(jobs, lambda number: "blocked")
        await self.exchange(1)
        self._leases = ()

    async def churn(self) -> None:
        """Enqueue, run and prune jobs, so that the store is no longer fresh."""
        for _ in range(0, CHURN, BULK):
            await self.add(BULK)
            for _ in range(0, BULK, CHURN_BATCH):
                await self.exchange(CHURN_BATCH)
            await self.backend.prune(limit=BULK, now=time.time() + 2 * 86400)

    def _used(self) -> float:
        return processor_seconds(self._server or os.getpid())

    async def measure(self) -> dict[str, float]:
        await self.add((WARM_UP + EXCHANGES) * BATCH)
        for _ in range(WARM_UP):
            await self.exchange(BATCH)
        used = self._used()
        took = [await self.exchange(BATCH) for _ in range(EXCHANGES)]
        return {"cpu_us": (self._used() - used) / EXCHANGES * 1e6, "exchange_ms": statistics.median(took) * 1000}


async def _fill(one: Behind, name: str, size: int, grouped: int) -> None:
    await one.open()
    if name.endswith("blocked in front"):
        await one.block(size)
        await one.add(BULK)
    elif name.endswith("groups"):
        await one.add(grouped)
    else:
        await one.add(size)
        if name.startswith("after churn"):
            await one.churn()


def _backlogs(quick: bool) -> dict[str, int]:
    small, large, most = (1000, 10_000, 100_000) if quick else (1000, 100_000, 1_000_000)
    return {
        f"{small:,} waiting": small,
        f"{large:,} waiting": large,
        f"{most:,} waiting": most,
        f"{GROUPS_FEW} groups": GROUPS_FEW,
        f"{large // 10:,} groups": large // 10,
        f"{large:,} blocked in front": large,
        f"after churn, {small:,} waiting": small,
    }


def _group_of(groups: int, number: int) -> str:
    return f"g{number % groups}"


def _run(loop: asyncio.Runner, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return loop.run(what())


def _bare(stack: contextlib.ExitStack, backlogs: dict[str, int]) -> Iterator[Case]:
    for name, size in backlogs.items():
        if name.endswith("groups") or name.startswith("after"):
            continue
        place = stack.enter_context(opened("redis"))
        area = stack.enter_context(place.area())
        one = BareBehind(area.theirs, place.pid)
        stack.callback(one.close)
        blocked = name.endswith("blocked in front")
        one.fill(size, "waiting" if blocked else "ready")
        measure = partial(one.measure, EXCHANGES, WARM_UP, BATCH)
        yield Case(f"bare commands, {name}", "floor", measure, "bare", baseline=size == BULK)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    found: list[Case] = []
    backlogs = _backlogs(setting.quick)
    grouped = 2 * max(size for name, size in backlogs.items() if name.endswith("groups"))
    with asyncio.Runner() as loop, contextlib.ExitStack() as stack:
        for number, (name, size) in enumerate(backlogs.items()):
            place = stack.enter_context(opened("redis")) if setting.store == "redis" else setting.place
            area = stack.enter_context(place.area("bench" if setting.store == "redis" else f"bench{number}"))
            family = "groups" if name.endswith("groups") else ""
            one = Behind(area, place.pid, partial(_group_of, size) if family else lambda number: None)
            stack.callback(partial(_run, loop, one.backend.close))
            loop.run(_fill(one, name, size, grouped))
            baseline = not found or size == GROUPS_FEW
            found.append(Case(name, "ours", partial(_run, loop, one.measure), family, baseline))
        if setting.store == "redis":
            found += _bare(stack, backlogs)
        yield found


SCENARIO = Scenario(
    "backlog", "One exchange (settle 100, claim 100) behind a backlog", "cpu_us", "µs of processor", cases,
    ("sqlite", "postgres", "redis"), factor=3.0, weight=70.0, more_is_better=False, fresh=True,
    columns=("exchange_ms",),
)  # fmt: skip
