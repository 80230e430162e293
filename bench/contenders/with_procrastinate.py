"""Procrastinate: psycopg, BENCH_SLOTS jobs at once, finished jobs kept as by default."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import procrastinate
import tally

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=tally.URL, min_size=2, max_size=10),
)


if tally.BLOCKS:

    @app.task(name="nothing")
    def nothing(number: int, data: str = "") -> None:
        tally.handled()

else:

    @app.task(name="nothing", retry=tally.FAILS)
    async def nothing(number: int, data: str = "") -> None:
        if tally.HANDLER:
            await tally.ahandled()
        else:
            tally.called()


@app.task(name="timed")
async def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        await asyncio.sleep(tally.TIMED_SECONDS)


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
    more = {"data": tally.MORE[0]} if tally.MORE else {}

    async def enqueue() -> None:
        for chunk in [] if tally.QUEUES else tally.chunks(jobs):
            await nothing.batch_defer_async(*({"number": number, **more} for number in chunk))
        for queue, numbers in tally.by_queue(jobs):
            calls = ({"number": number} for number in numbers)
            await nothing.configure(queue=queue).batch_defer_async(*calls)

    await tally.atimed(jobs, enqueue())


async def work() -> None:
    if tally.BLOCKS and not tally.DEFAULTS:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(tally.THREADS))  # where sync tasks run
    slots = {} if tally.DEFAULTS else {"concurrency": tally.SLOTS}
    await app.run_worker_async(**slots, queues=tally.queues() or None, shutdown_graceful_timeout=1)


def opened(use: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        async with app.open_async():
            await use()

    logging.disable(logging.ERROR)
    asyncio.run(run())


if __name__ == "__main__":
    tally.main(
        prepare=lambda: opened(app.schema_manager.apply_schema_async), one=lambda jobs: opened(lambda: one(jobs)),
        bulk=lambda jobs, shape: opened(lambda: bulk(jobs)), crash=lambda: opened(sleepy.defer_async),
        pace=lambda jobs, gap_ms: opened(
            lambda: tally.apace(lambda sent: timed.defer_async(sent=sent), jobs, gap_ms)
        ),
        work=lambda: opened(work),
    )  # fmt: skip
