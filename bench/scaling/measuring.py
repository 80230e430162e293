"""What a store costs without a worker: per call and per job, in processor time, bytes written and bytes kept.

Run by `bench/scale measure`. Processor time is stable even on a busy machine; elapsed time is shown only where it is
what matters (waiting for the disk), as a median. Sizes are measured in turn, round after round.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from .fits import fitted, worst_error
from .places import Place, PostgresPlace, SqlitePlace
from .watching import process_seconds

CALLS = {1: 60, 10: 40, 100: 15, 300: 8}  # exchanges of a size in one round
ROUNDS = 5
BULK = 1000
ENQUEUED = 10_000
SINGLES = 400
KEPT = 10_000  # jobs whose bytes are counted
ARGS = {"100": 100, "1000": 1000}
DAY = 86400.0

Say = Callable[[str], None]


def own_seconds(place: Place) -> float:
    """Processor seconds of this process, without the store's threads if the store runs in this process."""
    used = process_seconds(os.getpid())
    return used - place.seconds() if isinstance(place, SqlitePlace) else used


def args_of(size: int) -> bytes:
    return b'{"text":"' + b"x" * (size - 11) + b'"}'


def new_jobs(
    number: int, group: Callable[[int], str | None] = lambda _: None, args: bytes = b'{"n":1}'
) -> list[NewJob]:
    return [NewJob(id=uuid.uuid4().hex, task="t", args=args, group=group(place)) for place in range(number)]


class Session:
    """A worker on an empty store that claims and settles on request."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.backend: Backend = open_backend(place.fresh())
        self.call = 0
        self.done: list[Settlement] = []

    async def __aenter__(self) -> Session:
        await self.backend.open()
        await self.backend.register(WorkerRecord(id="w", lease_seconds=36000.0, queues=("default",)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()

    async def fill(self, jobs: list[NewJob]) -> None:
        for start in range(0, len(jobs), BULK):
            await self.backend.enqueue(jobs[start : start + BULK])

    async def exchange(self, most: int) -> int:
        """Settle what was claimed last and claim `most`. Return how many were leased."""
        self.call += 1
        request = ClaimRequest(worker="w", call=self.call, queues=("default",), most=most)
        answer = await self.backend.exchange(self.done, (), request)
        self.done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
        return len(answer.leases)

    async def timed(self, most: int, calls: int) -> dict[str, float]:
        """The cost of each of several exchanges of `most` jobs."""
        await self.exchange(most)  # the first one has nothing to settle
        spans: list[float] = []
        used, own, written = self.place.seconds(), own_seconds(self.place), self.place.written()
        for _ in range(calls):
            began = time.perf_counter()
            assert await self.exchange(most) == most
            spans.append(time.perf_counter() - began)
        return {
            "server": (self.place.seconds() - used) / calls * 1e6,
            "client": (own_seconds(self.place) - own) / calls * 1e6,
            "bytes": (self.place.written() - written) / calls,
            "span": statistics.median(spans) * 1e6,
        }


async def exchanges(place: Place, say: Say, group: Callable[[int], str | None] = lambda _: None) -> dict[str, Any]:
    """Cost of one exchange by its size, and the lines through them."""
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in CALLS}
    async with Session(place) as session:
        need = sum(size * (calls + 1) for size, calls in CALLS.items())
        for number in range(ROUNDS + 1):
            await session.fill(new_jobs(need, group))
            for size, calls in CALLS.items():
                got = await session.timed(size, calls)
                if number:  # the first round warms plans and caches
                    rounds[size].append(got)
            say(f"exchange, round {number}")
    sizes = {
        str(size): {what: statistics.median(got[what] for got in all_got) for what in all_got[0]}
        for size, all_got in rounds.items()
    }
    return {"by_size": sizes, **lines_of(sizes)}


def lines_of(sizes: dict[str, dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what in ("server", "client", "bytes"):
        points = [(float(size), max(got[what], 1e-9)) for size, got in sizes.items()]
        line = fitted(points)
        found[what] = {**asdict(line), "worst_error": worst_error(line, points)}
    return found


def enqueues(place: Place, say: Say) -> dict[str, Any]:
    """Through the app, as users do: in bulk, and one by one."""
    with Holdfast(place.fresh()) as app:
        app.open()
        task = app.task_by_name("nothing")
        found: dict[str, Any] = {}
        task.enqueue(number=0)
        for name, number in (("bulk", ENQUEUED), ("single", SINGLES)):
            used, own, written = place.seconds(), own_seconds(place), place.written()
            spans: list[float] = []
            if name == "bulk":
                app.enqueue_many(task.bind(number=place) for place in range(number))
            else:
                for place_of_job in range(number):
                    began = time.perf_counter()
                    task.enqueue(number=place_of_job)
                    spans.append(time.perf_counter() - began)
            found[name] = {
                "server": (place.seconds() - used) / number * 1e6,
                "client": (own_seconds(place) - own) / number * 1e6,
                "bytes": (place.written() - written) / number,
                **({"span": statistics.median(spans) * 1e6} if spans else {}),
            }
            say(f"enqueue, {name}")
    return found


async def kept(place: Place, say: Say) -> dict[str, Any]:
    """Bytes of a waiting job and of a finished one, and what it costs to prune one."""
    found: dict[str, Any] = {}
    for name, size in ARGS.items():
        async with Session(place) as session:
            await session.fill(new_jobs(10))
            before = place.kept()
            await session.fill(new_jobs(KEPT, args=args_of(size)))
            row: dict[str, float] = {"waiting": (place.kept() - before) / KEPT}
            if isinstance(place, PostgresPlace):
                row["waiting_indexes"] = place.index_bytes() / KEPT
                row["claim_index"] = place.claim_index_bytes() / KEPT
            while await session.exchange(300):
                pass
            row["finished"] = (place.kept() - before) / KEPT
            if isinstance(place, PostgresPlace):  # dead row versions; vacuum makes their space reusable
                place.vacuum("FULL")
                row["finished_packed"] = (place.kept() - before) / KEPT
            used, written, gone = place.seconds(), place.written(), 0
            while pruned := await session.backend.prune(limit=1000, now=time.time() + 2 * DAY):
                gone += pruned
            row["prune_server"] = (place.seconds() - used) / gone * 1e6
            row["prune_bytes"] = (place.written() - written) / gone
            if isinstance(place, PostgresPlace):
                used = place.seconds()
                place.vacuum()
                row["vacuum_server"] = (place.seconds() - used) / gone * 1e6
            found[name] = row
            say(f"bytes kept, arguments of {name} B")
    return found


def disk(times: int = 200) -> dict[str, float]:
    """How long it takes to append 8 KiB to a file and sync it to disk, in µs."""
    spans: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(times):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 8192)
            os.fdatasync(file.fileno())
            spans.append(time.perf_counter() - began)
    return {"sync_p50": statistics.median(spans) * 1e6, "sync_p99": statistics.quantiles(spans, n=100)[98] * 1e6}


async def stepping_over(place: PostgresPlace, say: Say) -> dict[str, float]:
    """What a claim pays for each ready row that another session has just taken and not yet committed."""
    rivals, free, held = 300, [], []
    async with Session(place) as session:
        await session.fill(new_jobs(2 * ROUNDS * 2 * 900 + rivals))
        for number in range(2 * ROUNDS):
            free.append((await session.timed(100, 4))["server"])
            with place.connection.transaction():
                place.connection.execute(
                    f"SELECT id FROM s{place.number}.jobs WHERE state = 'ready' "  # noqa: S608
                    f"ORDER BY queue, lane, rank DESC, turn, seq LIMIT {rivals} FOR UPDATE"
                )
                held.append((await session.timed(100, 4))["server"])
            say(f"rows taken by another session, round {number}")
    return {"row": max(0.0, statistics.median(held) - statistics.median(free)) / rivals}


def constants(place: Place, say: Say) -> dict[str, Any]:
    """All constants of one store that need no worker."""
    found: dict[str, Any] = {**place.facts(), "enqueue": enqueues(place, say)}
    found["exchange"] = asyncio.run(exchanges(place, say))
    found["grouped"] = asyncio.run(exchanges(place, say, lambda number: f"g{number % 5000}"))
    found["kept"] = asyncio.run(kept(place, say))
    if isinstance(place, PostgresPlace):
        found["rival"] = asyncio.run(stepping_over(place, say))
    return found


def calmest(place: Place, rounds: int, say: Say) -> dict[str, Any]:
    """The constants of the round in which an exchange cost least: other work on the machine only adds to the cost."""
    found = [constants(place, say) for _ in range(rounds)]
    return min(found, key=lambda one: float(one["exchange"]["by_size"]["100"]["server"]))


def machine() -> dict[str, Any]:
    """The machine on which the figures were measured, as far as it matters."""
    models = [
        line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {"cores": os.cpu_count(), "processor": models[0] if models else "", "disk": disk()}
