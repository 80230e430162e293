"""Procrastinate: psycopg, BENCH_SLOTS jobs at once, finished jobs kept as by default."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import procrastinate
import tally

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=tally.URL, min_size=2, max_size=10),
)


@app.task(name="nothing")
async def nothing(number: int) -> None:
    tally.called()


@app.task(name="timed")
async def timed(sent: float) -> None:
    tally.delayed(sent)


@app.task(name="sleepy")
async def sleepy() -> None:
    tally.happened("start")
    await asyncio.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


async def one(jobs: int) -> None:
    async def enqueue() -> None:
        for number in range(jobs):
            await nothing.defer_async(number=number)

    await tally.atimed(jobs, enqueue())


async def bulk(jobs: int) -> None:
    async def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            await nothing.batch_defer_async(*({"number": number} for number in chunk))

    await tally.atimed(jobs, enqueue())


def opened(use: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        async with app.open_async():
            await use()

    logging.disable(logging.WARNING)
    asyncio.run(run())


if __name__ == "__main__":
    tally.main(
        prepare=lambda: opened(app.schema_manager.apply_schema_async), one=lambda jobs: opened(lambda: one(jobs)),
        bulk=lambda jobs, shape: opened(lambda: bulk(jobs)), crash=lambda: opened(sleepy.defer_async),
        pace=lambda jobs, gap_ms: opened(
            lambda: tally.apace(lambda sent: timed.defer_async(sent=sent), jobs, gap_ms)
        ),
        work=lambda: opened(lambda: app.run_worker_async(concurrency=tally.SLOTS, shutdown_graceful_timeout=1)),
    )  # fmt: skip
