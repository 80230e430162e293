"""The statements of this store, and how structs and names are encoded in its columns and read back.

Imported by every module that touches the file. Pure: it executes nothing.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from ...codec import decoder
from ...lifecycle import Failure, State
from ...rates import Rate
from ...records import ERRORS_KEPT_MAX, Command, CronEntry, Mark, PastDeath, Revival
from ..fragments import load_statements

# ----------------------------------------------------------------------------------------------------------------------
# Reading rows as far as possible: a bad field hides neither the rest of its row nor the other rows. For values that
# may be unreadable; flaws.py lists what is wrong. Text that is not UTF-8 becomes `Garbled`: when the sqlite3 module
# refuses to decode something, the reader repeats the query with `garbled_text`.


# What a decoder may raise for values that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)

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


command_of = decoder(Command)


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


# ----------------------------------------------------------------------------------------------------------------------
# The statements, and the encoded columns.


FILES = [
    "enqueue",
    "claim",
    "settle",
    "renew",
    "recover",
    "promote",
    "groups",
    "limits",
    "operate",
    "dependencies",
    "steps",
    "edit",
    "history",
    "prune",
    "cron",
    "move",
    "read",
    "flaws",
]
SQL = load_statements(__package__, FILES)

Place = tuple[str, str, str]  # (kind, queue, name): what a pause, an override or a flow applies to

encoded = msgspec.json.Encoder().encode  # as bytes; a statement that takes a whole list needs it as text
_failures = decoder(tuple[Failure, ...])
_marks = decoder(tuple[Mark, ...])
_deaths = decoder(tuple[PastDeath, ...])
_failure = decoder(Failure)
_revival = decoder(Revival)
_rate = decoder(Rate)
entry_of = decoder(CronEntry)


def logical_name(job_id: str, queue: str, task: str, key: str | None) -> str:
    """The name of the logical job: (queue, task, key), or the id if there is no key."""
    return f"id:{job_id}" if key is None else "key:" + encoded([queue, task, key]).decode()


def with_failure(errors: bytes | None, failure: Failure) -> bytes:
    """A job's error history plus one failure, bounded to the newest. An unreadable history starts over."""
    return encoded((*read_or((), failures_of, errors), failure)[-ERRORS_KEPT_MAX:])


def failures_of(errors: bytes | None) -> tuple[Failure, ...]:
    return () if errors is None else _failures(errors)


def marks_of(marks: str | None) -> tuple[Mark, ...]:
    return () if marks is None else _marks(marks)


def deaths_of(history: bytes | None) -> tuple[PastDeath, ...]:
    return () if history is None else _deaths(history)


def failure_of(error: bytes | None) -> Failure | None:
    return None if error is None else _failure(error)


def revival_of(revival: bytes | None) -> Revival | None:
    return None if revival is None else _revival(revival)


def rate_text(rate: Rate | None) -> str | None:
    return None if rate is None else encoded(rate).decode()


@lru_cache(maxsize=1024)
def _rate_read(text: str) -> Rate | None:
    return read_or(None, _rate, text)  # flaws lists an unreadable rate; it limits nothing


def rate_of(text: str | None) -> Rate | None:
    return None if text is None else _rate_read(text)


def scope_of(kind: str, queue: str, name: str) -> dict[str, str | None]:
    """The fields queue, group and task of a place."""
    return {
        "queue": None if kind == "task" else queue,
        "group": name if kind == "group" else None,
        "task": name if kind == "task" else None,
    }


EVERYWHERE = ""  # the place of a key with scope "global"; for other keys the place is the queue
