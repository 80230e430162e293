"""Reads rows as far as possible: a bad field hides neither the rest of its row nor the other rows.

Called by read.py and the verbs for values that may be unreadable, and by flaws.py, which lists what is wrong. Text that
is not UTF-8 becomes `Garbled`: when the sqlite3 module refuses to decode something, the reader repeats the query with
`garbled_text`. It never writes.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from ...lifecycle import State

# What a decoder may raise for values that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, TypeError)

_LATEST, _EARLIEST = 253_402_300_799.0, -62_135_596_800.0  # the range of a calendar

T = TypeVar("T")
D = TypeVar("D")


class Garbled(str):
    """Text that is not UTF-8, with replacement characters for the bytes that cannot be decoded."""


class OddRow(tuple[Any, ...]):
    """A row that may contain garbled text, and the positions of it."""

    garbled: frozenset[int]


def _odd(_cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> OddRow:
    odd = OddRow(str(value) if type(value) is Garbled else value for value in row)
    odd.garbled = frozenset(place for place, value in enumerate(row) if type(value) is Garbled)
    return odd


def head(row: tuple[Any, ...], length: int) -> tuple[Any, ...]:
    """The first values of a row; keeps the positions of garbled text."""
    if not isinstance(row, OddRow):
        return row[:length]
    first = OddRow(row[:length])
    first.garbled = frozenset(place for place in row.garbled if place < length)
    return first


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return Garbled(text.decode(errors="replace"))


def is_undecodable(error: Exception) -> bool:
    """Whether the sqlite3 module could not decode text: it raises OperationalError without an SQLite error code."""
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", None) is None


@contextmanager
def garbled_text(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor that reads any text."""
    connection.text_factory = _decoded
    cursor = connection.cursor()
    cursor.row_factory = _odd
    try:
        yield cursor
    finally:
        connection.text_factory = str


def is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and _EARLIEST <= value <= _LATEST


def state_of(text: str) -> State:
    """The state; DEAD if it is unreadable, because nobody will run that job."""
    try:
        return State(text)
    except ValueError:
        return State.DEAD


def read_or(default: D, decode: Callable[[Any], T], value: Any) -> T | D:
    try:
        return decode(value)
    except UNREADABLE:
        return default


def fields(
    names: Sequence[str], row: Sequence[Any], decoders: dict[str, tuple[Callable[[Any], Any], Any]]
) -> dict[str, Any]:
    """A row's values by name; an unreadable value has its default, and its name is in `unreadable`."""
    values: dict[str, Any] = {}
    garbled = row.garbled if isinstance(row, OddRow) else ()
    unreadable = [names[place] for place in sorted(garbled)]
    for name, value in zip(names, row, strict=True):
        decode, default = decoders.get(name, (None, None))
        try:
            values[name] = value if decode is None else decode(value)
        except UNREADABLE:
            values[name] = default
            unreadable.append(name)
    return {**values, "unreadable": tuple(dict.fromkeys(unreadable))}
