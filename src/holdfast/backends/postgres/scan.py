"""scan: jobs that may match a query, newest first, along the index with the fewest candidates. Never writes.

Called by backend.py with a cursor. The conditions that SQL can express are evaluated in the server, on a bounded walk:
through the jobs of an index if these are few, else through all jobs below a seq.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncCursor

from ...lifecycle import LIVE, State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import JobQuery
from ..prefilter import Dialect, Prefilter
from ..scan_pages import tallied
from .codec import as_job

FEW_MAX = 10_000  # candidates that are sorted, because their index has another order
IDS_MAX = 2_000_000  # ids among which an end is looked for
ENDS_MAX = 3  # ends that are looked for in this way, each one of which reads all ids
_DIALECT = Dialect(
    ends="right({column}, {n})",
    contains="position({value}::bytea in {column}) > 0",
    args="args",
    text="encode(args, 'escape')",
    alike="{} ILIKE {} ESCAPE '\\'",
    like_is_exact=True,
)
SEQ_MAX = (1 << 63) - 1
# The index of each unfinished state; with the queue if the index begins with it.
_LIVE = {
    State.READY: ("state = 'ready'", True),
    State.RUNNING: ("state = 'running'", False),
    State.WAITING: ("state = 'waiting'", True),
    State.SCHEDULED: ("state = 'scheduled'", False),
}

Cursor = AsyncCursor[Any]
Statements = Mapping[str, str]


@asynccontextmanager
async def _walking(
    cursor: Cursor, sql: Statements, query: JobQuery, look: Look
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """A transaction for one scan: its statement and parameters."""
    async with cursor.connection.transaction():
        # Always use an index: a plan made for a store or state of another size might read everything.
        await cursor.execute("SET LOCAL enable_seqscan = off")
        await cursor.execute("SET LOCAL enable_bitmapscan = off")
        values: dict[str, Any] = {"below": SEQ_MAX if query.before is None else query.before, "rows": look.rows_max}
        if query.by_due_index:
            values["beyond"] = float("-inf") if query.beyond is None else query.beyond
            values["after"] = 0 if query.before is None else query.before
            yield sql["read.walk_due"], values
            return
        few = await _few(cursor, sql, query)
        if few is not None:
            values["seqs"] = sorted((seq for seq in few if seq < values["below"]), reverse=True)[: look.rows_max]
            yield sql["read.walk_few"], values
        elif query.states in ((State.DEAD,), (State.CANCELLED,)):
            values["state"] = query.states[0].value
            yield sql["read.walk_rare"], values
        else:
            yield sql["read.walk_all"], values


def _prefilter(query: JobQuery, look: Look, values: dict[str, Any]) -> Prefilter:
    def parameter(value: Any) -> str:
        name = f"v{len(values)}"
        values[name] = value
        return f"%({name})s"

    return Prefilter(query, look.now, parameter, _DIALECT)


_TALLIED = {"state": "w.state", "queue": "w.queue", "task": "w.task", None: "''"}


async def tally(cursor: Cursor, sql: Statements, query: JobQuery, by: Grouping | None, look: Look) -> Tally | None:
    """Count the matching jobs in SQL; None if SQL cannot express the conditions or the grouping."""
    if by == "error" or not _prefilter(query, look, {}).exact:
        return None
    async with _walking(cursor, sql, query, look) as (walk, values):
        where = _prefilter(query, look, values).where
        await cursor.execute(_filled(sql["read.tally"], walk=walk, where=where, by=_TALLIED[by]), values)
        found = await cursor.fetchall()
    rows = sum(read for _, _, read in found)
    counter = Counter({name: matched for name, matched, _ in found if matched})
    return tallied(counter, by, rows, complete=rows < look.rows_max)


async def scan(cursor: Cursor, sql: Statements, query: JobQuery, look: Look) -> Scanned:
    async with _walking(cursor, sql, query, look) as (walk, values):
        return await _scan(cursor, sql, query, look, walk, values)


async def _scan(
    cursor: Cursor, sql: Statements, query: JobQuery, look: Look, walk: str, values: dict[str, Any]
) -> Scanned:
    where = _prefilter(query, look, values).where
    record = sql["read.light" if look.light else "read.whole"]
    order = "due_at, seq" if query.by_due_index else "seq DESC"
    text = _filled(sql["read.scan"], walk=walk, where=where, record=record, order=order)
    values |= {"limit": query.limit, "bytes": look.bytes_max}
    await cursor.execute(text, values)
    found = await cursor.fetchall()
    jobs = tuple([as_job(record) for record, _ in found])
    is_cut = bool(found) and (len(jobs) == query.limit or len(jobs) < found[0][1])
    values |= {"down_to": jobs[-1].seq if is_cut else -1, "down_due": jobs[-1].due_at if is_cut else 0.0}
    scanned = sql["read.scanned_by_due" if query.by_due_index else "read.scanned"]
    await cursor.execute(_filled(scanned, walk=walk), values)
    rows, last, *due_at = await cursor.fetchone() or (0, None)
    if not is_cut and rows < look.rows_max:
        return Scanned(jobs=jobs, rows=rows)
    return Scanned(jobs=jobs, before=last, beyond=due_at[0] if due_at else None, rows=rows)


def _filled(text: str, **parts: str) -> str:
    for name, part in parts.items():
        text = text.replace(f"<{name}>", part)
    return text


async def _few(cursor: Cursor, sql: Statements, query: JobQuery) -> list[int] | None:
    """All candidates, if an index shows that they are few."""
    if query.id_prefix is not None:
        return await _by_prefix(cursor, sql, query.id_prefix)
    if query.id_ends and len(query.id_ends) <= ENDS_MAX:
        return await _by_ends(cursor, sql, query.id_ends)
    states = (State.RUNNING,) if query.worker is not None else query.states
    if not states or not LIVE.issuperset(states):
        return None
    found: list[int] = []
    for state in states:
        where, has_queue = _LIVE[state]
        if has_queue and query.queue is not None:
            where += " AND queue = %(queue)s"
        text = _filled(sql["read.seqs_by_state"], where=where)
        await cursor.execute(text, {"queue": query.queue, "most": FEW_MAX + 1 - len(found)})
        found += [row[0] for row in await cursor.fetchall()]
        if len(found) > FEW_MAX:
            return None
    return found


async def _by_prefix(cursor: Cursor, sql: Statements, prefix: str) -> list[int] | None:
    values = {"low": prefix, "high": prefix + "\U0010ffff", "most": FEW_MAX + 1}
    await cursor.execute(sql["read.seqs_by_prefix"], values)
    found = [row[0] for row in await cursor.fetchall()]
    return found if len(found) <= FEW_MAX else None


async def _by_ends(cursor: Cursor, sql: Statements, ends: tuple[str, ...]) -> list[int] | None:
    """Find id prefixes in the index, and suffixes by reading every id; None if there are too many ids."""
    found: set[int] = set()
    for end in ends:
        begun = await _by_prefix(cursor, sql, end)
        values = {"end": end, "length": len(end), "rows": IDS_MAX, "most": FEW_MAX}
        await cursor.execute("SET LOCAL enable_seqscan = on")  # ids are in a small table of their own
        await cursor.execute(sql["read.seqs_by_end"], values)
        *ended, (number,) = await cursor.fetchall()
        await cursor.execute("SET LOCAL enable_seqscan = off")
        if begun is None or number >= IDS_MAX or len(ended) >= FEW_MAX:
            return None
        found.update(begun, (row[0] for row in ended))
    return list(found)
