"""What is wrong with a store: unreadable rows, indexes that contradict their table, rows that were set aside.

`flaws` is called by backend.py on its own connection and thread, because it reads everything. One read transaction sees
one instant, so a job that moves meanwhile is not reported. It never repairs anything and never shows a payload. The
writer calls `set_aside`, which moves rows with garbled text out of the way.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from ...rates import Rate
from ...records import Flaw
from . import codec, read
from .codec import SQL, deaths_of, encoded, entry_of, failure_of
from .connection import TICK_MAX, begin_immediate, connect
from .schema import migrated_in_memory

_names = msgspec.json.Decoder(tuple[str, ...]).decode
_rate = msgspec.json.Decoder(Rate).decode
_CANNOT_BE_READ = "its stored value cannot be read"


def flaws(path: str, limit: int, seconds: float) -> list[Flaw]:
    connection = connect(path, patience=seconds)
    try:
        with codec.garbled_text(connection) as cursor:
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
    for job in map(read.record, jobs.execute(SQL["read.job"])):
        yield from [Flaw(place="jobs", id=job.id, field=field, text=_CANNOT_BE_READ) for field in job.unreadable]
    yield from _others(cursor)
    for (text,) in cursor.execute(SQL["flaws.integrity"]).fetchall():
        if text != "ok":
            yield Flaw(place=_index_in(text), text=text)


def _others(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    for place, name, fields in garbled(cursor.connection, [name for name in TABLES if name != "jobs"]):
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
    except codec.UNREADABLE:
        yield Flaw(place=place, id=name, field=field, text=_CANNOT_BE_READ)


def _ticks(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    row = cursor.execute(SQL["flaws.ticks"]).fetchone()
    if row is None:
        yield Flaw(
            place="ticks", field="tick", text="the fence counter is missing; the next claim starts it at the clock"
        )
    elif not isinstance(row[0], int) or not 0 <= row[0] < TICK_MAX:
        yield Flaw(place="ticks", field="tick", text="the fence counter is out of range; the next claim resets it")


def _missing(cursor: sqlite3.Cursor) -> Iterator[Flaw]:
    there = {tuple(row) for row in cursor.execute(SQL["flaws.parts"])}
    for kind, name in sorted(_parts() - there):
        yield Flaw(place=name, text=f"this {kind} is missing")


@cache
def _parts() -> frozenset[tuple[str, str]]:
    """The tables and indexes of this version, as its migrations create them."""
    connection = migrated_in_memory()
    try:
        return frozenset(connection.execute(SQL["flaws.parts"]).fetchall())
    finally:
        connection.close()


def _index_in(text: str) -> str:
    """The index that a line of the integrity check names, else the table."""
    found = [word for word in text.split() if word.startswith("holdfast_") and word != "holdfast_jobs"]
    return found[0] if found else "jobs"


# ----------------------------------------------------------------------------------------------------------------------
# Setting rows aside whose text is not UTF-8, so that they block nobody. Called by the writer when the sqlite3 module
# could not decode text for a verb. It scans the tables without the write lock, then moves what it found in one short
# transaction. Nothing is lost: the row is kept as JSON, its garbled text as hexadecimal digits, and can be restored by
# hand. It never touches a readable row. Table and column names in its statements come from this module and the schema.


TABLES = ("jobs", "letters", "workers", "queues", "tasks", "overrides", "pauses", "flows", "entries")
_PAGE = 1000

Row = dict[str, Any]


class Table(NamedTuple):
    """What is needed to scan a table and to remove a row from it."""

    name: str
    key: tuple[str, ...]
    texts: tuple[str, ...]
    is_paged: bool  # by seq; the others are small

    @classmethod
    def of(cls, connection: sqlite3.Connection, name: str) -> Table:
        info = connection.execute(f"PRAGMA table_info(holdfast_{name})")
        columns = [(place_in_key, _text(column), _text(kind)) for _, column, kind, _, _, place_in_key in info]
        key = tuple(column for place_in_key, column, _ in sorted(columns) if place_in_key)
        texts = tuple(column for _, column, kind in columns if kind == "TEXT")
        return cls(name, key, texts, key == ("seq",))

    @property
    def where(self) -> str:
        """Text comes as bytes: a garbled name is matched byte by byte."""
        return " AND ".join(f"{column} = {'CAST(? AS TEXT)' if column in self.texts else '?'}" for column in self.key)

    def pages(self, connection: sqlite3.Connection) -> Iterator[list[tuple[Any, ...]]]:
        wanted = f"SELECT {', '.join((*self.key, *self.texts))} FROM holdfast_{self.name}"  # noqa: S608
        if not self.is_paged:
            yield connection.execute(wanted).fetchall()
            return
        after = -(1 << 63)
        while rows := connection.execute(f"{wanted} WHERE seq > ? ORDER BY seq LIMIT ?", (after, _PAGE)).fetchall():
            yield rows
            after = rows[-1][0]


def set_aside(connection: sqlite3.Connection, seconds: float) -> list[tuple[str, str]]:
    """Move every row with text that is not UTF-8 out of its table; returns (table, name) of each."""
    connection.text_factory = bytes
    try:
        found = [(table, row[: len(table.key)]) for table, row in _garbled(connection, TABLES)]
        if not found:
            return []
        begin_immediate(connection, seconds)
        try:
            moved = [name for table, key in found if (name := _move(connection, table, key)) is not None]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return moved
    finally:
        connection.text_factory = str


def garbled(connection: sqlite3.Connection, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """(table, name, garbled fields) of the rows in these tables that would be set aside."""
    before, connection.text_factory = connection.text_factory, bytes
    try:
        found: list[tuple[str, str, str]] = []
        for table, row in _garbled(connection, names):
            columns = (*table.key, *table.texts)
            fields = [column for column, value in zip(columns, row, strict=True) if _is_garbled(value)]
            found.append((table.name, _text(row[len(table.key) - 1]), ", ".join(dict.fromkeys(fields))))
        return found
    finally:
        connection.text_factory = before


def _garbled(connection: sqlite3.Connection, names: Sequence[str]) -> Iterator[tuple[Table, tuple[Any, ...]]]:
    """Rows with text that is not UTF-8: their key, then their text columns."""
    for table in [Table.of(connection, name) for name in names]:
        for page in table.pages(connection):
            yield from [(table, row) for row in page if any(_is_garbled(value) for value in row)]


def _move(connection: sqlite3.Connection, table: Table, key: tuple[Any, ...]) -> tuple[str, str] | None:
    cursor = connection.execute(f"SELECT * FROM holdfast_{table.name} WHERE {table.where}", key)  # noqa: S608
    columns = [column[0] for column in cursor.description]
    values = cursor.fetchone()
    if values is None:
        return None  # another process did it
    row = dict(zip(columns, values, strict=True))
    garbled = [column for column in table.texts if _is_garbled(row[column])]
    if not garbled:
        return None
    if row.get("body") is not None:  # it is deleted with its job
        [row["args"]] = connection.execute(SQL["quarantine.body"], key).fetchone() or (row["args"],)
    name = _text(row.get("id") or row.get("job_id") or row.get("name"))
    kept = {column: _kept(value, is_text=column in table.texts) for column, value in row.items()}
    connection.execute(
        SQL["quarantine.keep"], (table.name, name, ", ".join(garbled), time.time(), encoded(kept).decode())
    )
    connection.execute(f"DELETE FROM holdfast_{table.name} WHERE {table.where}", key)  # noqa: S608
    return table.name, name


def _is_garbled(value: Any) -> bool:
    if not isinstance(value, bytes):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _kept(value: Any, *, is_text: bool) -> Any:
    """A value as JSON; bytes and unreadable text as {"hex": …}."""
    if not isinstance(value, bytes):
        return value
    return value.decode() if is_text and not _is_garbled(value) else {"hex": value.hex()}
