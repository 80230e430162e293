"""What an exchange of 100 costs the PostgreSQL server, and what each guarantee adds. One statement, layer by layer.

From the bare store's statement, which deletes finished jobs, to ours. The layers in between use our own table with a
statement of a few lines, without groups, limits, repeated calls or concurrency, so none of them is usable in practice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial

import psycopg
from psycopg import sql

from ..places import Area
from ..processes import processor_seconds
from ..scenario import Case, Scenario, Setting
from .backlog import Behind

BATCH, EXCHANGES, WARM_UP = 100, 20, 5
GONE_NAME, KEPT_NAME = "bare: finished jobs are gone", "finished jobs are kept, and pruned by time"

BARE = """
CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
                   deadline timestamptz, arguments jsonb NOT NULL{column});
CREATE INDEX ready ON jobs (id) WHERE state = 0;
{index}
"""
PRUNED = (", prune_at timestamptz", "CREATE INDEX prune ON jobs (prune_at);")
BARE_ADD = """INSERT INTO jobs (arguments) SELECT '{"number":1}' FROM generate_series(1, %s)"""
LEASE = """
UPDATE jobs SET state = 1, deadline = now() + interval '30 s'
FROM (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED) AS next
WHERE jobs.id = next.id RETURNING jobs.id, jobs.arguments
"""
GONE = f"WITH done AS (DELETE FROM jobs USING unnest(%s::bigint[]) AS held (id) WHERE jobs.id = held.id) {LEASE}"  # noqa: S608
KEPT = f"""
WITH done AS (UPDATE jobs SET state = 2, prune_at = now() + interval '1 day'
              FROM unnest(%s::bigint[]) AS held (id) WHERE jobs.id = held.id) {LEASE}
"""  # noqa: S608
# On our own table; {answer} is what is returned of a lease.
OURS = """
WITH done AS (
    UPDATE holdfast.jobs j SET state = 'succeeded', attempts = j.attempts + 1, finished_at = 1, prune_at = 86400,
           token = NULL, worker = NULL, claim_call = NULL
    FROM unnest(%s::bigint[]) AS held (seq) WHERE j.seq = held.seq
), next AS MATERIALIZED (
    SELECT seq FROM holdfast.jobs
    WHERE state = 'ready' AND queue = 'default' AND lane = 0 AND (expires_at IS NULL OR expires_at > 1)
    ORDER BY rank DESC, turn, seq LIMIT 100 FOR UPDATE SKIP LOCKED
)
UPDATE holdfast.jobs j
SET state = 'running', fence = nextval('holdfast.ticks'), token = j.seq || '.nonce', worker = 'w', claim_call = 1,
    started_at = 1
FROM next WHERE j.seq = next.seq RETURNING j.seq, {answer}
"""


class Layer:
    """A table and the statement that settles the last batch and leases the next."""

    def __init__(self, area: Area, server: int, statement: str, add: str, *before: str) -> None:
        self._server, self._statement, self._add = server, sql.SQL(statement), sql.SQL(add)
        self._connection = psycopg.connect(area.theirs, autocommit=True)
        for one in before:
            self._connection.execute(sql.SQL(one))
        self._connection.execute("SET plan_cache_mode = force_generic_plan")
        self._connection.execute("SET enable_seqscan = off")
        self._held: list[int] = []

    def measure(self) -> dict[str, float]:
        self._connection.execute(self._add, [BATCH * (EXCHANGES + WARM_UP)])
        for _ in range(WARM_UP):
            self._exchange()
        used = processor_seconds(self._server)
        for _ in range(EXCHANGES):
            self._exchange()
        return {"server_us": (processor_seconds(self._server) - used) / EXCHANGES / BATCH * 1e6}

    def _exchange(self) -> None:
        rows = self._connection.execute(self._statement, [self._held], prepare=True).fetchall()
        assert len(rows) == BATCH, "the store ran dry"
        self._held = [row[0] for row in rows]

    def close(self) -> None:
        self._connection.close()


ADD_OURS = """
INSERT INTO holdfast.jobs (due_at, priority, lane, state, queue, task, id, turn, created_at, max_stalls, args)
SELECT 0, 0, 0, 'ready', 'default', 't', gen_random_uuid()::text, nextval('holdfast.ticks'), 0, 3, '{"number":1}'
FROM generate_series(1, %s)
"""


def _layers(schema: str) -> dict[str, tuple[str, ...]]:
    ours = [OURS.replace("{answer}", answer) for answer in ("j.args", "holdfast.lease(j)")]
    drop = "ALTER TABLE holdfast.jobs DROP CONSTRAINT jobs_check"
    bare = {
        GONE_NAME: (GONE, BARE_ADD, BARE.format(column="", index="")),
        KEPT_NAME: (KEPT, BARE_ADD, BARE.format(column=PRUNED[0], index=PRUNED[1])),
    }
    found = {
        "our table: 45 columns, 11 indexes": (ours[0], ADD_OURS, drop),
        "its rules are checked": (ours[0], ADD_OURS),
        "all of a lease is answered": (ours[1], ADD_OURS),
    }
    named = {name: tuple(text.replace("holdfast.", f"{schema}.") for text in texts) for name, texts in found.items()}
    return {**bare, **named}


async def _exchanged(one: Behind) -> dict[str, float]:
    return {"server_us": (await one.measure())["cpu_us"] / BATCH}


def _schema(area: Area) -> str:
    with psycopg.connect(area.theirs) as connection:
        row = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'incarnation'").fetchone()
    assert row is not None
    return str(row[0])


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    found: list[Case] = []
    with asyncio.Runner() as loop, contextlib.ExitStack() as stack:
        area = stack.enter_context(setting.place.area("whole"))
        whole = Behind(area, setting.place.pid, lambda number: None)
        stack.callback(lambda: loop.run(whole.backend.close()))
        loop.run(whole.open())
        for number, (name, words) in enumerate(_layers(_schema(area)).items()):
            own = stack.enter_context(setting.place.area(f"layer{number}"))
            if name not in (GONE_NAME, KEPT_NAME):  # our own schema
                made = Behind(own, setting.place.pid, lambda number: None)
                loop.run(made.open())
                loop.run(made.backend.close())
            layer = Layer(own, setting.place.pid, *words)
            stack.callback(layer.close)
            found.append(Case(name, "floor", layer.measure, baseline=not found))
        measure = partial(_run, loop, whole)
        yield [*found, Case("holdfast: groups, limits, fences, repeated calls", "ours", measure)]


def _run(loop: asyncio.Runner, one: Behind) -> dict[str, float]:
    return loop.run(_exchanged(one))


SCENARIO = Scenario(
    "layers", "An exchange of 100 in the server, layer by layer", "server_us", "server CPU µs/job", cases,
    ("postgres",), factor=3.0, more_is_better=False,
)  # fmt: skip
