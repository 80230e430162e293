"""How much a store read and wrote, by the server's own count."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from holdfast.backends.postgres.backend import PostgresBackend

from ...servers.postgres import Server

_JOBS = (
    "SELECT seq_tup_read, idx_tup_fetch, n_tup_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'jobs'"
)
_TOAST = """
SELECT t.seq_tup_read + t.idx_tup_fetch FROM pg_class c JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
WHERE c.oid = %s::regclass
"""
_ENTRIES = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = %s AND relname = 'jobs'"


class Counted(NamedTuple):
    """Of the table of jobs, since it was made. Index entries are counted also where they led to no row."""

    read: int
    updated: int
    entries: int
    chunks: int  # of values stored outside the row


async def flush(backend: PostgresBackend) -> None:
    """The session says at once what it did. The backend has one connection only."""

    async def tell(cursor: Any) -> None:
        await cursor.execute("SELECT pg_stat_force_next_flush()")

    await backend._call("tell", tell)


async def counted(server: Server, schema: str, *backends: PostgresBackend) -> Counted:
    for backend in backends:
        await flush(backend)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        jobs = connection.execute(_JOBS, (schema,)).fetchone()
        toast = connection.execute(_TOAST, (f"{schema}.jobs",)).fetchone()
        entries = connection.execute(_ENTRIES, (schema,)).fetchone()
    assert jobs is not None and toast is not None and entries is not None
    return Counted(jobs[0] + jobs[1], jobs[2], entries[0], toast[0])
