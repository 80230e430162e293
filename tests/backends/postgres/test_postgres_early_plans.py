"""A session that planned while the store was empty reads no more per call than a later session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import State
from holdfast.records import JobQuery, LetterQuery, NewJob

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
Verb = Callable[[PostgresBackend, str], Awaitable[Any]]
BACKLOG = 60_000
OFTEN = 14  # a statement is prepared after five calls, and its plan kept after five more
_FILL = """
INSERT INTO {0}.jobs (id, task, queue, state, priority, grp, lane, turn, max_stalls, created_at, due_at, args,
                      finished_at, prune_at)
SELECT 'old-' || n, 't' || n %% 7, 'q' || n %% 3, (ARRAY['ready', 'waiting', 'succeeded', 'scheduled'])[n %% 4 + 1], 0,
       CASE WHEN n %% 4 = 1 THEN 'g' || n %% 1000 END, n %% 2, n, 3, 0, 0, '', CASE WHEN n %% 4 = 2 THEN 4e9 END,
       CASE WHEN n %% 4 = 2 THEN 4e9 END
FROM generate_series(1, %s) n
"""
_READ = """
SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE schemaname = %(schema)s)
     + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname = %(schema)s)
"""


async def dead(backend: PostgresBackend, name: str) -> None:
    await backend.bury(name, "for a test")


CHANGES: dict[str, tuple[Verb | None, Verb]] = {  # what goes before, uncounted, and the call
    "cancel": (None, lambda backend, name: backend.cancel(name)),
    "bury": (None, lambda backend, name: backend.bury(name, "for a test")),
    "revive": (dead, lambda backend, name: backend.revive(name)),
    "retry": (dead, lambda backend, name: backend.retry(name)),
    "discard": (dead, lambda backend, name: backend.discard(name)),
    "prune": (None, lambda backend, name: backend.prune(limit=10)),
    "prune older": (None, lambda backend, name: backend.prune(limit=10, older_than=1e9)),
}
BOUNDED = set(CHANGES) - {"prune older"}  # that one looks at all that has finished
LOOKS: dict[str, Verb] = {
    "queues": lambda backend, name: backend.queues(),
    "find by task": lambda backend, name: backend.find(JobQuery(task="t1", limit=5)),
    "find by state": lambda backend, name: backend.find(JobQuery(states=(State.READY,), limit=5)),
    "letters": lambda backend, name: backend.letters(LetterQuery(limit=5)),
    "get": lambda backend, name: backend.get(name),
}


def one(name: str) -> list[NewJob]:
    return [NewJob(id=name, task="t", group=f"group of {name}")]


class Session:
    """A backend with one session, and how much it reads."""

    def __init__(self, make: Make, server: Server, schema: str) -> None:
        self.backend = make(call_timeout=60.0, connections=1)
        self._server, self._schema = server, schema
        self._number = 0

    async def reads(self) -> int:
        async def flush(cursor: Any) -> None:
            await cursor.execute("SELECT pg_stat_force_next_flush()")

        await self.backend._call("flush", flush)
        with psycopg.connect(self._server.conninfo, autocommit=True) as connection:
            row = connection.execute(_READ, {"schema": self._schema}).fetchone()
        assert row is not None
        return int(row[0])

    async def use(self, before: Verb | None, verb: Verb, *, counted: bool = True) -> int:
        """Rows and index entries one call reads."""
        self._number += 1
        name = f"{id(self)}-{self._number}"
        await self.backend.enqueue(one(name))
        if before is not None:
            await before(self.backend, name)
        first = await self.reads() if counted else 0
        await verb(self.backend, name)
        return await self.reads() - first if counted else 0


def test_calls_planned_on_an_empty_store_read_what_others_read(make: Make, server: Server, schema: str) -> None:
    verbs = {**CHANGES, **{name: (None, verb) for name, verb in LOOKS.items()}}

    async def run() -> dict[str, tuple[int, int]]:
        early = Session(make, server, schema)
        await early.backend.open()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
            for before, verb in verbs.values():
                for _ in range(OFTEN):
                    await early.use(before, verb, counted=False)
            connection.execute(_FILL.format(schema), (BACKLOG,))
        late = Session(make, server, schema)
        await late.backend.open()
        found = {name: (await early.use(*verb), await late.use(*verb)) for name, verb in verbs.items()}
        await early.backend.close()
        await late.backend.close()
        return found

    found = asyncio.run(run())
    assert {name: reads for name, reads in found.items() if reads[0] > 1.3 * reads[1] + 300} == {}, found
    assert {name: reads for name, reads in found.items() if name in BOUNDED and reads[0] > 1000} == {}, found
