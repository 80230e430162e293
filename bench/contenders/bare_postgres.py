"""The floor on PostgreSQL: asyncpg, no framework. One statement, so one commit, deletes the last batch and leases the
next, BARE_BATCH at a time; each job's arguments are decoded. No groups, no retries, no fence.
"""

from __future__ import annotations

import asyncio
import os

import apart
import asyncpg
import tally

BATCH = int(os.environ.get("BARE_BATCH", "100"))
ARGUMENTS = tally.ARGUMENTS
CREATE = """
CREATE SCHEMA bare;
CREATE TABLE bare.jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
    deadline timestamptz, arguments jsonb NOT NULL
);
CREATE INDEX ready ON bare.jobs (id) WHERE state = 0;
"""
EXCHANGE = f"""
WITH done AS (DELETE FROM bare.jobs USING unnest($1::bigint[]) AS held (id) WHERE jobs.id = held.id)
UPDATE bare.jobs SET state = 1, deadline = now() + interval '30 s'
FROM (SELECT id FROM bare.jobs WHERE state = 0 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED) AS next
WHERE jobs.id = next.id RETURNING jobs.id, jobs.arguments
"""  # noqa: S608


async def prepare() -> None:
    connection = await asyncpg.connect(tally.URL)
    await connection.execute(CREATE)
    await connection.close()


async def one(jobs: int) -> None:
    connection = await asyncpg.connect(tally.URL)
    insert = await connection.prepare("INSERT INTO bare.jobs (arguments) VALUES ($1)")

    async def enqueue() -> None:
        for _ in range(jobs):
            await insert.fetch(ARGUMENTS)

    await tally.atimed(jobs, enqueue())


async def bulk(jobs: int) -> None:
    connection = await asyncpg.connect(tally.URL)
    insert = await connection.prepare("INSERT INTO bare.jobs (arguments) SELECT * FROM unnest($1::jsonb[])")

    async def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            await insert.fetch([ARGUMENTS] * len(chunk))

    await tally.atimed(jobs, enqueue())


async def work() -> None:
    connection = await asyncpg.connect(tally.URL)
    # As after autovacuum's first run: the floor is what the store can do, not what it does with a plan made too early.
    await connection.execute("ANALYZE bare.jobs")
    exchange = await connection.prepare(EXCHANGE)
    held: list[int] = []
    handle = apart.Handler()
    while rows := await exchange.fetch(held):
        for row in rows:
            handle(row[1])
        held = [row[0] for row in rows]
    handle.close()
    await connection.close()


if __name__ == "__main__":
    tally.main(
        prepare=lambda: asyncio.run(prepare()), one=lambda jobs: asyncio.run(one(jobs)),
        bulk=lambda jobs, shape: asyncio.run(bulk(jobs)), work=lambda: asyncio.run(work()),
    )  # fmt: skip
