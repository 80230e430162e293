"""arq: BENCH_SLOTS jobs at once, uvloop, results not kept, looking every 10 ms (its default is 500). No bulk enqueue:
50 single ones at once.
"""

from __future__ import annotations

import asyncio
import logging

import tally
import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Retry, Worker, func

SETTINGS = RedisSettings.from_dsn(tally.URL)
AT_ONCE = 50


async def nothing(context: object, number: int, data: str = "") -> None:
    if not tally.HANDLER:
        return tally.called()
    try:
        await tally.ahandled()
    except tally.Unlucky:
        raise Retry(defer=0) from None


async def timed(context: object, sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        await asyncio.sleep(tally.TIMED_SECONDS)


async def sleepy(context: object) -> None:
    tally.happened("start")
    await asyncio.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


async def prepare() -> None:
    await (await create_pool(SETTINGS)).flushdb()


async def bulk(jobs: int, at_once: int) -> None:
    pool = await create_pool(SETTINGS)

    async def enqueue() -> None:
        for chunk in tally.chunks(jobs, at_once):
            await asyncio.gather(*(pool.enqueue_job("nothing", number, *tally.MORE) for number in chunk))

    await tally.atimed(jobs, enqueue())


async def pace(jobs: int, gap_ms: int) -> None:
    pool = await create_pool(SETTINGS)
    await tally.apace(lambda sent: pool.enqueue_job("timed", sent), jobs, gap_ms)


async def crash() -> None:
    await (await create_pool(SETTINGS)).enqueue_job("sleepy")


def work() -> None:
    logging.disable(logging.INFO)
    asyncio.set_event_loop(uvloop.new_event_loop())
    handlers = (nothing, timed, sleepy)
    if tally.DEFAULTS:
        Worker(handlers, redis_settings=SETTINGS, max_tries=1000).run()
        return
    functions = [func(one, keep_result=0) for one in handlers]
    Worker(functions, redis_settings=SETTINGS, max_jobs=tally.SLOTS, poll_delay=0.01, max_tries=1000).run()


if __name__ == "__main__":
    tally.main(
        prepare=lambda: uvloop.run(prepare()), one=lambda jobs: uvloop.run(bulk(jobs, 1)), work=work,
        bulk=lambda jobs, shape: uvloop.run(bulk(jobs, AT_ONCE)), crash=lambda: uvloop.run(crash()),
        pace=lambda jobs, gap_ms: uvloop.run(pace(jobs, gap_ms)),
    )  # fmt: skip
