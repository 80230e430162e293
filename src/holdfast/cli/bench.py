"""`holdfast bench`: measure this machine: enqueue, end to end, latency, on SQLite (FULL) and in memory, or on a URL.

A command; bench/run also starts it beside the peers. Uses only the public API, safe defaults, and a store of its own,
in a temporary folder or an empty one that was named. Figures from a shared machine vary: compare ratios within one
run, not numbers across runs.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from .exits import CommandFailed, Exit
from .output import Printer

JOBS_DEFAULT = 20_000
SINGLES_MAX = 1_000
LATENCY_JOBS = 200
LATENCY_PAUSE_SECONDS = 0.01


def measure(url: str, jobs: int, slots: int, progress: Callable[[str], None]) -> dict[str, float]:
    """All figures for one store. Uses the embedded worker, in this process."""
    from ..app import Holdfast

    with Holdfast(url) as app:
        started_at: dict[int, float] = {}

        @app.task(name="bench.nothing")
        async def nothing(number: int) -> None:
            return None

        @app.task(name="bench.sync_nothing")
        def sync_nothing(number: int) -> None:
            return None

        @app.task(name="bench.stamp")
        async def stamp(number: int) -> None:
            started_at[number] = time.perf_counter()

        singles = min(SINGLES_MAX, jobs)
        progress("enqueue one by one")
        single_seconds = timed(lambda: [nothing.enqueue(number) for number in range(singles)])
        app.work(drain=True, slots=slots)
        progress("enqueue in bulk")
        bulk_seconds = timed(lambda: app.enqueue_many(nothing.bind(number) for number in range(jobs)))
        progress("run async no-op jobs")
        run_seconds = timed(lambda: app.work(drain=True, slots=slots))
        sync_jobs = jobs // 2
        app.enqueue_many(sync_nothing.bind(number) for number in range(sync_jobs))
        progress("run sync no-op jobs in threads")
        sync_seconds = timed(lambda: app.work(drain=True, slots=min(slots, 50)))
        progress("latency of an idle worker")
        latencies = asyncio.run(latency(app, stamp, started_at))
    return {
        "enqueue_single_per_second": singles / single_seconds,
        "enqueue_bulk_per_second": jobs / bulk_seconds,
        "jobs_per_second": jobs / run_seconds,
        "sync_jobs_per_second": sync_jobs / sync_seconds,
        "latency_p50_ms": 1000 * statistics.median(latencies),
        "latency_p99_ms": 1000 * statistics.quantiles(latencies, n=100)[98],
    }


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def latency(app: Any, stamp: Any, started_at: dict[int, float]) -> list[float]:
    """Enqueue to handler start, one job every 10 ms, with an idle worker in this process."""
    asked_at: dict[int, float] = {}
    async with app.worker(slots=10):
        for number in range(LATENCY_JOBS):
            asked_at[number] = time.perf_counter()
            await stamp.aenqueue(number)
            await asyncio.sleep(LATENCY_PAUSE_SECONDS)
        while len(started_at) < LATENCY_JOBS:  # noqa: ASYNC110 - an event would have to be set in the handler measured
            await asyncio.sleep(LATENCY_PAUSE_SECONDS)
    return [started_at[number] - asked_at[number] for number in asked_at]


ROWS = {
    "enqueue one by one, per s": "enqueue_single_per_second",
    "enqueue in bulk, per s": "enqueue_bulk_per_second",
    "async no-op jobs, per s": "jobs_per_second",
    "sync no-op jobs, per s": "sync_jobs_per_second",
    "enqueue to start, p50 ms": "latency_p50_ms",
    "enqueue to start, p99 ms": "latency_p99_ms",
}


@click.command()
@click.option("--jobs", default=JOBS_DEFAULT, show_default=True, type=click.IntRange(100), help="No-op jobs to run.")
@click.option("--slots", default=200, show_default=True, type=click.IntRange(1), help="Jobs at once.")
@click.option("--store", type=click.Choice(["sqlite", "memory", "both"]), default="both", show_default=True)
@click.option("--url", "-u", metavar="URL", help="Measure this store instead, which must be empty.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def bench(jobs: int, slots: int, store: str, url: str | None, as_json: bool) -> None:
    """Measure this machine with the safe defaults: enqueue, end to end, latency.

    With --url, your own store: PostgreSQL with a separate schema (?schema=bench), Redis with a separate prefix
    (?prefix=bench). It must hold no jobs, and holds none afterwards.
    """
    printer = Printer(as_json=as_json)
    figures: dict[str, dict[str, float]] = {}
    if url is None:
        figures = _measure_here(store, jobs, slots, printer)
    else:
        scheme = _empty_store(url)
        figures[scheme] = measure(url, jobs, slots, partial(_announce, printer, scheme))
        _empty_again(url)
    if as_json:
        printer.document({"jobs": jobs, "slots": slots, "figures": figures})
        return
    rows = [[title, *(f"{figures[name][key]:,.1f}" for name in figures)] for title, key in ROWS.items()]
    printer.table(["measure", *figures], rows, empty="Nothing was measured.")


def _empty_store(url: str) -> str:
    """The URL's scheme; refuses a store with jobs, which would be run, counted and deleted."""
    from ..app import Holdfast

    with Holdfast(url) as app:
        if any(number for states in app.counts().values() for number in states.values()):
            raise CommandFailed(
                Exit.USAGE,
                f"{app.safe_url} holds jobs, and a measurement needs a store of its own.",
                "Add ?schema=bench (PostgreSQL) or ?prefix=bench (Redis) to the URL, or name another file.",
            )
    return url.partition(":")[0]


def _empty_again(url: str) -> None:
    from ..app import Holdfast

    with Holdfast(url) as app:
        app.queues.obliterate("default")


def _measure_here(store: str, jobs: int, slots: int, printer: Printer) -> dict[str, dict[str, float]]:
    """SQLite in a temporary folder, memory, or both."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        urls = {"sqlite": f"sqlite:///{Path(folder) / 'bench.db'}", "memory": "memory://"}
        for name, url in urls.items():
            if store in (name, "both"):
                figures[name] = measure(url, jobs, slots, partial(_announce, printer, name))
    return figures


def _announce(printer: Printer, store: str, step: str) -> None:
    printer.note(f"{store}: {step}")
