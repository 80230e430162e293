"""scan: jobs that may match a query, newest first, along the index with the fewest candidates. Never writes.

Called by backend.py. An index yields seqs without touching jobs; jobs are then read in batches, with the conditions
that SQL can express. It ends when it has read as many jobs or bytes as it may.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ...lifecycle import LIVE, State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import JobQuery, JobRecord
from ..prefilter import Dialect, Prefilter
from ..scan_pages import tallied, weight
from .codec import SQL, encoded
from .read import queue_names, record, task_names

FEW_MAX = 10_000  # candidates that are sorted here, because their index has another order
IDS_MAX = 2_000_000  # ids that are searched for a given end
ENDS_MAX = 3  # ends that are searched for in this way: each reads all ids
_FIRST, _MOST = 100, 2000  # jobs read at once: few at first, because most pages fill quickly
_ARGS = SQL.fill("@args(holdfast_jobs)")
_DIALECT = Dialect(
    ends="substr({column}, -{n})",
    contains="instr({column}, {value}) > 0",
    args=_ARGS,
    text=f"CAST({_ARGS} AS TEXT)",
    alike="{} LIKE {} ESCAPE '\\'",
    like_is_exact=False,
)
_RARE = frozenset({State.DEAD, State.CANCELLED})  # states in the index holdfast_jobs_rare

# By seq alone: an index of names or states would be read from end to end.
_AMONG = """
SELECT seq FROM (SELECT value AS candidate FROM json_each(?)) CROSS JOIN holdfast_jobs NOT INDEXED ON seq = candidate
WHERE"""
# Parts of an index in which jobs are in the order of seq.
_BY_NAMES = "INDEXED BY holdfast_jobs_names WHERE queue = ? AND task = ?"
_BY_STATE = """INDEXED BY holdfast_jobs_rare
    WHERE state <> 'ready' AND state <> 'running' AND state <> 'succeeded' AND state <> 'scheduled'
      AND state <> 'waiting' AND queue = ? AND state = ?"""
# The index of each unfinished state, in another order; with the queue if the index begins with it.
_LIVE = {
    State.READY: ("INDEXED BY holdfast_jobs_ready WHERE state = 'ready'", True),
    State.RUNNING: ("INDEXED BY holdfast_jobs_running WHERE state = 'running'", False),
    State.WAITING: ("INDEXED BY holdfast_jobs_waiting WHERE state = 'waiting'", True),
    State.SCHEDULED: ("INDEXED BY holdfast_jobs_group_due WHERE state = 'scheduled'", True),
}


def prefilter(query: JobQuery, look: Look) -> tuple[Prefilter, list[Any]]:
    """The query's conditions as SQL, and their values."""
    values: list[Any] = []

    def parameter(value: Any) -> str:
        values.append(value)
        return "?"

    return Prefilter(query, look.now, parameter, _DIALECT), values


def scan(cursor: sqlite3.Cursor, query: JobQuery, look: Look) -> Scanned:
    filtered, values = prefilter(query, look)
    order = "due_at, seq" if query.by_due_index else "seq DESC"
    meeting = " ".join((_AMONG, filtered.where, f"ORDER BY {order} LIMIT ?"))
    one = (SQL["read.light_job"] if look.light else SQL["read.job"]) + " WHERE seq = ?"
    candidates = _candidates(cursor, query)
    found: list[JobRecord] = []
    rows, size, bytes_left = 0, _FIRST, look.bytes_max
    before: int | None = None
    while rows < look.rows_max:
        batch = list(islice(candidates, min(size, look.rows_max - rows)))
        if not batch:
            return Scanned(jobs=tuple(found), rows=rows)
        size = min(size * 4, _MOST)
        met = cursor.execute(meeting, (encoded(batch).decode(), *values, query.limit - len(found))).fetchall()
        for seq in met:
            job = record(cursor.execute(one, seq).fetchone())
            found.append(job)
            bytes_left -= weight(job)
            if bytes_left <= 0 or len(found) == query.limit:
                seen = rows + batch.index(job.seq) + 1
                return Scanned(jobs=tuple(found), before=job.seq, beyond=job.due_at, rows=seen)
        before = batch[-1]
        rows += len(batch)
    [due_at] = cursor.execute(SQL["read.due_at"], (before,)).fetchone() or (None,)
    return Scanned(jobs=tuple(found), before=before, beyond=due_at, rows=rows)


_TALLIED = {"state": "state", "queue": "queue", "task": "task", None: "''"}


def tally(cursor: sqlite3.Cursor, query: JobQuery, by: Grouping | None, look: Look) -> Tally | None:
    """Count the matching jobs in SQL; None if SQL cannot express the conditions or the grouping."""
    filtered, values = prefilter(query, look)
    if by == "error" or not filtered.exact:
        return None
    among = _AMONG.replace("SELECT seq", f"SELECT {_TALLIED[by]}, count(*)")
    text = " ".join((among, filtered.where, "GROUP BY 1"))
    candidates = _candidates(cursor, query)
    counter: Counter[str] = Counter()
    rows = 0
    while rows < look.rows_max:
        batch = list(islice(candidates, min(_MOST, look.rows_max - rows)))
        if not batch:
            break
        rows += len(batch)
        for name, number in cursor.execute(text, (encoded(batch).decode(), *values)).fetchall():
            counter[name] += number
    return tallied(counter, by, rows, complete=rows < look.rows_max)


def _candidates(cursor: sqlite3.Cursor, query: JobQuery) -> Iterator[int]:
    """Seqs of jobs that may match, newest first, below the query's position; read lazily."""
    below = query.before if query.before is not None else 1 << 62
    if query.by_due_index:
        return _by_due(cursor, query)
    if (few := _few(cursor, query)) is not None:
        return iter(sorted((seq for seq in few if seq < below), reverse=True))
    if query.states and _RARE.issuperset(query.states):
        queues = [query.queue] if query.queue is not None else queue_names(cursor)
        parts = [(queue, state.value) for queue in queues for state in query.states]
        return _merged(_part(cursor, _BY_STATE, part, below) for part in parts)
    if query.queue is not None or query.task is not None:
        return _merged(_part(cursor, _BY_NAMES, part, below) for part in task_names(cursor, query.queue, query.task))
    return _part(cursor, "NOT INDEXED WHERE true", (), below)


def _few(cursor: sqlite3.Cursor, query: JobQuery) -> list[int] | None:
    """All candidates, if an index shows that they are few."""
    if query.id_prefix is not None:
        where = "INDEXED BY sqlite_autoindex_holdfast_jobs_1 WHERE id >= ? AND id < ?"
        return _up_to_few(cursor, [(where, (query.id_prefix, query.id_prefix + "\U0010ffff"))])
    if query.id_ends and len(query.id_ends) <= ENDS_MAX:
        return _by_ends(cursor, query.id_ends)
    states = (State.RUNNING,) if query.worker is not None else query.states
    if not states or not LIVE.issuperset(states):
        return None
    reads: list[tuple[str, tuple[str, ...]]] = []
    for state in states:
        where, has_queue = _LIVE[state]
        by_queue = query.queue is not None and has_queue
        reads.append((f"{where} AND queue = ?" if by_queue else where, (query.queue or "",) if by_queue else ()))
    return _up_to_few(cursor, reads)


def _by_ends(cursor: sqlite3.Cursor, ends: tuple[str, ...]) -> list[int] | None:
    """Find id prefixes in the index of ids, and suffixes by reading all of it; None if it is too large."""
    [is_more] = cursor.execute(SQL["read.has_more_ids"], (IDS_MAX,)).fetchone() or (0,)
    if is_more:
        return None
    by_id = "INDEXED BY sqlite_autoindex_holdfast_jobs_1 WHERE"
    reads: list[tuple[str, tuple[str, ...]]] = []
    for end in ends:
        reads.append((f"{by_id} id >= ? AND id < ?", (end, end + "\U0010ffff")))
        reads.append((f"{by_id} substr(id, -{len(end)}) = ?", (end,)))
    found = _up_to_few(cursor, reads)
    return None if found is None else list(set(found))


def _up_to_few(cursor: sqlite3.Cursor, reads: Iterable[tuple[str, tuple[str, ...]]]) -> list[int] | None:
    found: list[int] = []
    for where, values in reads:
        text = f"SELECT seq FROM holdfast_jobs {where} LIMIT ?"  # noqa: S608 - the names are ours
        found += [seq for (seq,) in cursor.execute(text, (*values, FEW_MAX + 1 - len(found))).fetchall()]
        if len(found) > FEW_MAX:
            return None
    return found


def _part(cursor: sqlite3.Cursor, by: str, values: tuple[str, ...], below: int) -> Iterator[int]:
    """The seqs of one part of an index, newest first."""
    text = f"SELECT seq FROM holdfast_jobs {by} AND seq < ? ORDER BY seq DESC LIMIT ?"  # noqa: S608 - the names are ours
    size = _FIRST
    while page := cursor.execute(text, (*values, below, size)).fetchall():
        yield from (seq for (seq,) in page)
        if len(page) < size:
            return
        below, size = page[-1][0], min(size * 4, _MOST)


def _by_due(cursor: sqlite3.Cursor, query: JobQuery) -> Iterator[int]:
    """Scheduled jobs, soonest first, after the query's position."""
    place = (float("-inf") if query.beyond is None else query.beyond, 0 if query.before is None else query.before)
    size = _FIRST
    while page := cursor.execute(SQL["read.next_by_due"], (*place, size)).fetchall():
        yield from (seq for _, seq in page)
        place, size = page[-1], min(size * 4, _MOST)


def _merged(parts: Iterable[Iterator[int]]) -> Iterator[int]:
    return heapq.merge(*parts, reverse=True)
