"""taskiq with Redis streams, which acknowledge: one process, BENCH_SLOTS jobs at once. No bulk enqueue: 50 single ones
at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable
from typing import Any

import tally
import uvloop
from taskiq import SimpleRetryMiddleware
from taskiq_redis import RedisStreamBroker

AT_ONCE = 50
broker = RedisStreamBroker(tally.URL, consumer_id="0")
AGAIN: dict[str, Any] = {"retry_on_error": True, "max_retries": 1000} if tally.FAILS else {}
if tally.FAILS:
    broker = broker.with_middlewares(SimpleRetryMiddleware())

if tally.BLOCKS:

    @broker.task(task_name="nothing")
    def nothing(number: int, data: str = "") -> None:
        tally.handled()

else:

    @broker.task(task_name="nothing", **AGAIN)
    async def nothing(number: int, data: str = "") -> None:
        if tally.HANDLER:
            await tally.ahandled()
        else:
            tally.called()


@broker.task
async def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        await asyncio.sleep(tally.TIMED_SECONDS)


@broker.task
async def sleepy() -> None:
    tally.happened("start")
    await asyncio.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


async def bulk(jobs: int, at_once: int) -> None:
    await broker.startup()

    async def enqueue() -> None:
        for chunk in tally.chunks(jobs, at_once):
            await asyncio.gather(*(nothing.kiq(number, *tally.MORE) for number in chunk))

    await tally.atimed(jobs, enqueue())


async def pace(jobs: int, gap_ms: int) -> None:
    await broker.startup()
    await tally.apace(timed.kiq, jobs, gap_ms)


async def ready(then: Awaitable[object] | None = None) -> None:
    await broker.startup()
    if then is not None:
        await then


def work() -> None:
    words = ["--workers", str(tally.PROCESSES), "--max-async-tasks", str(tally.SLOTS), "--max-prefetch", "100"]
    words += ["--max-threadpool-threads", str(tally.THREADS)] if tally.BLOCKS else []
    words = ["--log-level", "CRITICAL", *([] if tally.DEFAULTS else words)]
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-m", "taskiq", "worker", "with_taskiq:broker", *words, "--app-dir", here]
    os.execv(sys.executable, command)  # noqa: S606


if __name__ == "__main__":
    import with_taskiq as loaded

    tally.main(
        prepare=lambda: uvloop.run(loaded.ready()), one=lambda jobs: uvloop.run(loaded.bulk(jobs, 1)),
        bulk=lambda jobs, shape: uvloop.run(loaded.bulk(jobs, AT_ONCE)), work=loaded.work,
        pace=lambda jobs, gap_ms: uvloop.run(loaded.pace(jobs, gap_ms)),
        crash=lambda: uvloop.run(loaded.ready(loaded.sleepy.kiq())),
    )  # fmt: skip
