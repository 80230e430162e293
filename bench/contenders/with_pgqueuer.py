"""PGQueuer: asyncpg, uvloop, batches of PGQUEUER_BATCH (its default is 10)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import asyncpg
import tally
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

ARGUMENTS = b'{"number": 1}'


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
            await queries.enqueue(["nothing"] * len(chunk), [ARGUMENTS] * len(chunk), [0] * len(chunk))

    await tally.atimed(jobs, enqueue())


async def work() -> None:
    logging.disable(logging.WARNING)
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(tally.URL)))

    @worker.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        tally.called()

    @worker.entrypoint("timed")
    async def timed(job: Job) -> None:
        tally.delayed(float(job.payload or b"0"))

    @worker.entrypoint("sleepy")
    async def sleepy(job: Job) -> None:
        tally.happened("start")
        await asyncio.sleep(tally.SLEEPY_SECONDS)
        tally.happened("end")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=int(os.environ["PGQUEUER_BATCH"]))


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
