"""Rows as far as they can be read: a bad field hides neither the rest of its row nor the other rows.

Called by read.py and the verbs where a value cannot be read the plain way, and by flaws.py, which lists what is
wrong. Text that is not UTF-8 comes here as `Garbled`: the reader asks again with `garbled_text` once the sqlite3 module
refused to decode something. It never writes.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from ...lifecycle import State

# What a decoder may raise on values that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, TypeError)

_LATEST, _EARLIEST = 253_402_300_799.0, -62_135_596_800.0  # the times that a calendar has

T = TypeVar("T")
D = TypeVar("D")


class Garbled(str):
    """Text that is not UTF-8, with a mark for what cannot be read of it."""


class OddRow(tuple[Any, ...]):
    """A row that may hold garbled text, and at which places."""

    garbled: frozenset[int]


def _odd(_cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> OddRow:
    odd = OddRow(str(value) if type(value) is Garbled else value for value in row)
    odd.garbled = frozenset(place for place, value in enumerate(row) if type(value) is Garbled)
    return odd


def head(row: tuple[Any, ...], length: int) -> tuple[Any, ...]:
    """The first values of a row; what is known to be garbled stays known."""
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
    """Whether the sqlite3 module could not decode a text: it raises an error of SQLite's kind without SQLite's code."""
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", None) is None


@contextmanager
def garbled_text(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor that reads text whatever is in it."""
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
    """The state; of one that cannot be read nobody will run the job."""
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
    """A row's values by name; what cannot be read has its default, and its name is in `unreadable`."""
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
