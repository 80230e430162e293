"""SAQ on Redis or PostgreSQL: BENCH_SLOTS jobs at once, uvloop, results not kept. No bulk enqueue: many single ones at
once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tally
import uvloop
from saq import Queue, Worker

POSTGRES = tally.URL.startswith("postgresql")
AT_ONCE = 15 if POSTGRES else 50


def opened() -> Queue:
    return Queue.from_url(tally.URL, min_size=4, max_size=20) if POSTGRES else Queue.from_url(tally.URL)


def blocking(context: Any, *, number: int, data: str = "") -> None:
    tally.handled()


async def nothing(context: Any, *, number: int, data: str = "") -> None:
    if tally.HANDLER:
        await tally.ahandled()
    else:
        tally.called()


async def timed(context: Any, *, sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        await asyncio.sleep(tally.TIMED_SECONDS)


async def sleepy(context: Any) -> None:
    tally.happened("start")
    await asyncio.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


async def connected(use: Callable[[Queue], Awaitable[object]]) -> None:
    queue = opened()
    await queue.connect()
    try:
        await use(queue)
    finally:
        await queue.disconnect()


async def nobody(queue: Queue) -> None:
    """Connecting creates its tables."""


async def bulk(queue: Queue, jobs: int, at_once: int) -> None:
    more: dict[str, Any] = {"data": tally.MORE[0]} if tally.MORE else {}
    more |= {} if tally.DEFAULTS else {"ttl": -1}
    more |= {"retries": 1000} if tally.FAILS else {}

    async def enqueue() -> None:
        for chunk in tally.chunks(jobs, at_once):
            await asyncio.gather(*(queue.enqueue("nothing", number=number, **more) for number in chunk))

    await tally.atimed(jobs, enqueue())


async def pace(queue: Queue, jobs: int, gap_ms: int) -> None:
    await tally.apace(lambda sent: queue.enqueue("timed", sent=sent, ttl=-1), jobs, gap_ms)


async def work(queue: Queue) -> None:
    handler = ("nothing", blocking) if tally.BLOCKS else nothing  # sync ones run in its threads
    slots = {} if tally.DEFAULTS else {"concurrency": tally.SLOTS}
    worker = Worker(queue, functions=[handler, timed, sleepy], **slots)
    if tally.BLOCKS and not tally.DEFAULTS:
        worker.pool = ThreadPoolExecutor(tally.THREADS)
    await worker.start()


if __name__ == "__main__":
    logging.disable(logging.ERROR)

    def through(use: Callable[[Queue], Awaitable[object]]) -> None:
        uvloop.run(connected(use))

    tally.main(
        prepare=lambda: through(nobody), work=lambda: through(work),
        one=lambda jobs: through(lambda queue: bulk(queue, jobs, 1)),
        bulk=lambda jobs, shape: through(lambda queue: bulk(queue, jobs, AT_ONCE)),
        pace=lambda jobs, gap_ms: through(lambda queue: pace(queue, jobs, gap_ms)),
        crash=lambda: through(lambda queue: queue.enqueue("sleepy", retries=3)),
    )  # fmt: skip
