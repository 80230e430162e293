"""PGQueuer: asyncpg, uvloop, batches of PGQUEUER_BATCH (its default is 10). It starts what it fetches, however much
that is, unless BENCH_SLOTS sets a bound, which must be two batches at least. Its queues are entrypoints.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import asyncpg
import tally
import uvloop
from pgqueuer import PgQueuer, RetryRequested
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

ARGUMENTS = tally.ARGUMENTS.encode()
BOUND = None if tally.DEFAULTS or "BENCH_SLOTS" not in os.environ else tally.SLOTS
BATCH = 10 if tally.DEFAULTS else min(int(os.environ.get("PGQUEUER_BATCH", "100")), (BOUND or 1000) // 2)


async def connected(use: Callable[[Queries], Awaitable[object]]) -> None:
    connection = await asyncpg.connect(tally.URL)
    await use(Queries(AsyncpgDriver(connection)))
    await connection.close()


async def prepare(queries: Queries) -> None:
    await queries.install()


async def one(queries: Queries, jobs: int) -> None:
    async def enqueue() -> None:
        for _ in range(jobs):
            await queries.enqueue("nothing", ARGUMENTS)

    await tally.atimed(jobs, enqueue())


async def bulk(queries: Queries, jobs: int) -> None:
    async def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            names = [tally.queue_of(number) if tally.QUEUES else "nothing" for number in chunk]
            await queries.enqueue(names, [ARGUMENTS] * len(chunk), [0] * len(chunk))

    await tally.atimed(jobs, enqueue())


async def work() -> None:
    logging.disable(logging.WARNING)
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(tally.URL)))

    async def nothing(job: Job) -> None:
        if tally.PAYLOAD:
            json.loads(job.payload or b"")  # PGQueuer leaves decoding to the handler
        if not tally.HANDLER:
            return tally.called()
        try:
            await tally.ahandled()
        except tally.Unlucky:
            raise RetryRequested from None

    for name in tally.queues() or ["nothing"]:
        worker.entrypoint(name)(nothing)

    @worker.entrypoint("timed")
    async def timed(job: Job) -> None:
        tally.delayed(float(job.payload or b"0"))
        if tally.TIMED_SECONDS:
            await asyncio.sleep(tally.TIMED_SECONDS)

    @worker.entrypoint("sleepy")
    async def sleepy(job: Job) -> None:
        tally.happened("start")
        await asyncio.sleep(tally.SLEEPY_SECONDS)
        tally.happened("end")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=BATCH, max_concurrent_tasks=BOUND)


if __name__ == "__main__":

    def through(use: Callable[[Queries], Awaitable[object]]) -> None:
        uvloop.run(connected(use))

    tally.main(
        prepare=lambda: through(prepare), one=lambda jobs: through(lambda queries: one(queries, jobs)),
        bulk=lambda jobs, shape: through(lambda queries: bulk(queries, jobs)), work=lambda: uvloop.run(work()),
        crash=lambda: through(lambda queries: queries.enqueue("sleepy", None)),
        pace=lambda jobs, gap_ms: through(
            lambda queries: tally.apace(lambda sent: queries.enqueue("timed", str(sent).encode()), jobs, gap_ms)
        ),
    )  # fmt: skip
