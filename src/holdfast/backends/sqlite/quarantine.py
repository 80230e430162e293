"""Rows with text that is not UTF-8 are set aside, so that they stop nobody: taken out whole, kept, and listed by flaws.

Called by the writer when the sqlite3 module could not decode a text that a verb met. It looks through the tables
without the write lock, then moves what it found in one short transaction. Nothing is lost: the row is kept as JSON, its
garbled text as hexadecimal digits, and can be put back by hand. It never touches a row that can be read. The names of
tables and columns in its statements are this module's and the schema's own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .connection import begin_immediate
from .stored import SQL, as_text

TABLES = ("jobs", "letters", "workers", "queues", "tasks", "overrides", "pauses", "flows", "entries")
_PAGE = 1000

Row = dict[str, Any]


class Table(NamedTuple):
    """What is needed to look through a table and to take a row out of it."""

    name: str
    key: tuple[str, ...]
    texts: tuple[str, ...]
    is_paged: bool  # by its number; the others are small

    @classmethod
    def of(cls, connection: sqlite3.Connection, name: str) -> Table:
        columns = [
            (_text(row[1]), _text(row[2]), row[5]) for row in connection.execute(f"PRAGMA table_info(holdfast_{name})")
        ]
        key = tuple(column for column, _, place in sorted(columns, key=lambda one: one[2]) if place)
        texts = tuple(column for column, kind, _ in columns if kind == "TEXT")
        return cls(name, key, texts, key == ("seq",))

    @property
    def where(self) -> str:
        """Text comes as bytes: a garbled name is found by what it is."""
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
    """Move every row with text that is not UTF-8 out of its table; answers (table, name) of each."""
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
    """Rows with text that is not UTF-8: their key, then their texts."""
    for table in [Table.of(connection, name) for name in names]:
        for page in table.pages(connection):
            yield from [(table, row) for row in page if any(_is_garbled(value) for value in row)]


def _move(connection: sqlite3.Connection, table: Table, key: tuple[Any, ...]) -> tuple[str, str] | None:
    cursor = connection.execute(f"SELECT * FROM holdfast_{table.name} WHERE {table.where}", key)  # noqa: S608
    columns = [column[0] for column in cursor.description]
    values = cursor.fetchone()
    if values is None:
        return None  # a rival did it
    row = dict(zip(columns, values, strict=True))
    garbled = [column for column in table.texts if _is_garbled(row[column])]
    if not garbled:
        return None
    name = _text(row.get("id") or row.get("job_id") or row.get("name"))
    kept = {column: _kept(value, is_text=column in table.texts) for column, value in row.items()}
    connection.execute(SQL["quarantine.keep"], (table.name, name, ", ".join(garbled), time.time(), as_text(kept)))
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
    """A value as JSON has it; bytes, and text that cannot be read, as {"hex": …}."""
    if not isinstance(value, bytes):
        return value
    return value.decode() if is_text and not _is_garbled(value) else {"hex": value.hex()}
