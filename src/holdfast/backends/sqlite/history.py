"""record, and what was recorded: roll-ups by minute and hour, and the newest events.

Called by backend.py inside a write transaction or a read, and by operate.py for jobs that end without a lease.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ...records import RECORDINGS_REMEMBERED_SECONDS, ROLLUPS_PER_PRUNE_MAX
from ...rollups import SPAN_SECONDS, EventPage, KeptEvent, Recording, Rollup, RollupQuery, Span, added, start_of
from .codec import SQL, encoded, read_or
from .connection import Transaction

_counts = msgspec.json.Decoder(tuple[int, ...]).decode


def record(tx: Transaction, recording: Recording) -> bool:
    if recording.worker:
        values = {"worker": recording.worker, "number": recording.number, "now": tx.now}
        if not tx.cursor.execute(SQL["record.number"], values).rowcount:
            return False
    for one in recording.rollups:
        add(tx, one)
    if recording.events:
        tx.cursor.executemany(SQL["record.event"], [(tx.now, event.name, event.body) for event in recording.events])
        tx.cursor.execute(SQL["record.trim"])
    _prune(tx, "minute", recording.keep_minutes)
    _prune(tx, "hour", recording.keep_hours)
    return True


def add(tx: Transaction, one: Rollup) -> None:
    """Add to the roll-ups of this minute and, unless it is a worker's, of this hour."""
    for span in SPAN_SECONDS:
        if span == "minute" or not one.worker:
            _add(tx, span, one)


def _add(tx: Transaction, span: Span, one: Rollup) -> None:
    key = (span, int(start_of(span, tx.now)), one.queue, one.task, one.worker, one.outcome)
    known = tx.cursor.execute(SQL["record.rollup"], key).fetchone()
    waits, runs = one.waits, one.runs
    if known is not None:
        waits, runs = added(read_or((), _counts, known[0]), waits), added(read_or((), _counts, known[1]), runs)
    tx.cursor.execute(SQL["record.add"], (*key, encoded(waits).decode(), encoded(runs).decode(), one.count))


def _prune(tx: Transaction, span: Span, keep: float | None) -> None:
    if keep is not None:
        tx.cursor.execute(SQL["record.prune"], (span, int(tx.now - keep), ROLLUPS_PER_PRUNE_MAX))
        tx.cursor.execute(SQL["record.forget"], (tx.now - RECORDINGS_REMEMBERED_SECONDS,))


def rollups(cursor: sqlite3.Cursor, query: RollupQuery) -> list[Rollup]:
    values: dict[str, Any] = {**msgspec.structs.asdict(query), "workers": int(query.workers)}
    return [
        Rollup(
            at=float(at),
            queue=queue,
            task=task,
            worker=worker,
            outcome=outcome,
            count=count,
            waits=read_or((), _counts, waits),
            runs=read_or((), _counts, runs),
        )
        for at, queue, task, worker, outcome, count, waits, runs in cursor.execute(SQL["history.rollups"], values)
    ]


def events(cursor: sqlite3.Cursor, after: int | None, limit: int) -> EventPage:
    first, newest = cursor.execute(SQL["history.positions"]).fetchone()
    if after is None:
        return EventPage(position=newest)
    rows = cursor.execute(SQL["history.events"], (after, limit)).fetchall()
    found = tuple(KeptEvent(position=position, at=at, name=name, body=body) for position, at, name, body in rows)
    return EventPage(
        events=found, position=found[-1].position if found else newest, missed=max(0, first - 1 - after) if first else 0
    )
