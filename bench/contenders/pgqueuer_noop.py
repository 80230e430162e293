"""No-op jobs on PGQueuer: asyncpg, uvloop, batches of 100 (its default is 10): URL JOBS, prints jobs per second."""

from __future__ import annotations

import json
import logging
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

CHUNK = 1000


async def main(url: str, jobs: int) -> None:
    logging.disable(logging.WARNING)
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    await connection.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
    await Queries(driver).install()
    began = time.perf_counter()
    for start in range(0, jobs, CHUNK):
        number = min(CHUNK, jobs - start)
        await Queries(driver).enqueue(["nothing"] * number, [b'{"number": 1}'] * number, [0] * number)
    enqueued = time.perf_counter()
    worker = PgQueuer(driver)
    first = last = 0.0
    counted = 0

    @worker.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        nonlocal first, last, counted
        last = time.perf_counter()
        first = first or last
        counted += 1
        if counted == jobs:
            worker.shutdown.set()

    await worker.run(batch_size=100)
    assert counted == jobs, counted
    print(json.dumps({"jobs_per_second": jobs / (last - first), "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
