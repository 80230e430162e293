"""What is wrong with a store: rows that cannot be read, indexes that say something else, what was set aside.

Called by backend.py on a connection and a thread of its own, because it reads everything. One read transaction sees one
instant, so a job that moves meanwhile is not reported. It never repairs anything and never shows a payload.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from ...rates import Rate
from ...records import Flaw
from . import quarantine, reading, tolerant
from .connection import connect, migrated_in_memory
from .quarantine import TABLES
from .stored import SQL, deaths_of, entry_of, failure_of
from .transaction import TICK_MAX

_names = msgspec.json.Decoder(tuple[str, ...]).decode
_rate = msgspec.json.Decoder(Rate).decode
_CANNOT_BE_READ = "its stored value cannot be read"


def flaws(path: str, limit: int, seconds: float) -> list[Flaw]:
    connection = connect(path, patience=seconds)
    try:
        with tolerant.garbled_text(connection) as cursor:
            cursor.execute("BEGIN")
            return list(islice(_all(cursor), limit))
    finally:
        connection.close()


def _all(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    for place, name, fields in cursor.execute(SQL["quarantine.all"], (-1,)).fetchall():
        yield Flaw(place="quarantine", id=name, field=fields, text=f"text that is not UTF-8: set aside from {place}")
    yield from _missing(cursor)
    yield from _ticks(cursor)
    jobs = cursor.connection.cursor()
    jobs.row_factory = cursor.row_factory
    for job in map(reading.record, jobs.execute(SQL["read.job"])):
        yield from [Flaw(place="jobs", id=job.id, field=field, text=_CANNOT_BE_READ) for field in job.unreadable]
    yield from _others(cursor)
    for (text,) in cursor.execute(SQL["flaws.integrity"]).fetchall():
        if text != "ok":
            yield Flaw(place=_index_in(text), text=text)


def _others(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    for place, name, fields in quarantine.garbled(cursor.connection, [name for name in TABLES if name != "jobs"]):
        yield Flaw(place=place, id=name, field=fields, text="text that is not UTF-8")
    for job_id, error, history in cursor.execute(SQL["flaws.letters"]).fetchall():
        yield from _unreadable("letters", job_id, "error", failure_of, error)
        yield from _unreadable("letters", job_id, "history", deaths_of, history)
    for worker, queues in cursor.execute(SQL["flaws.workers"]).fetchall():
        yield from _unreadable("workers", worker, "queues", _names, queues)
    for name, record in cursor.execute(SQL["flaws.entries"]).fetchall():
        yield from _unreadable("entries", name, "record", entry_of, record)
    for place, name, field, rate in cursor.execute(SQL["flaws.rates"]).fetchall():
        yield from _unreadable(place, name, field, _rate, rate)
    for (name,) in cursor.execute(SQL["flaws.orders"]).fetchall():
        yield Flaw(place="queues", id=name, field="group_order", text=_CANNOT_BE_READ)


def _unreadable(place: str, name: str, field: str, decode: Callable[[Any], Any], value: Any) -> Iterator[Flaw]:
    try:
        decode(value)
    except tolerant.UNREADABLE:
        yield Flaw(place=place, id=name, field=field, text=_CANNOT_BE_READ)


def _ticks(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    row = cursor.execute(SQL["flaws.ticks"]).fetchone()
    if row is None:
        yield Flaw(
            place="ticks", field="tick", text="the counter of fences is gone; the next claim begins at the clock"
        )
    elif not 0 <= row[0] < TICK_MAX:
        yield Flaw(place="ticks", field="tick", text="the counter of fences is out of range; the next claim resets it")


def _missing(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    there = {tuple(row) for row in cursor.execute(SQL["flaws.parts"])}
    for kind, name in sorted(_parts() - there):
        yield Flaw(place=name, text=f"this {kind} is missing")


@cache
def _parts() -> frozenset[tuple[str, str]]:
    """The tables and indexes of this version, as its migrations make them."""
    connection = migrated_in_memory()
    try:
        return frozenset(connection.execute(SQL["flaws.parts"]).fetchall())
    finally:
        connection.close()


def _index_in(text: str) -> str:
    """The index that a line of the check speaks of, else the table."""
    found = [word for word in text.split() if word.startswith("holdfast_") and word != "holdfast_jobs"]
    return found[0] if found else "jobs"
