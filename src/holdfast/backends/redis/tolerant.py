"""A job's record as far as it can be read: a bad field or a record of garbage hides neither the rest nor the others.

Called by rows.py for everything that is shown; never for leases, whose records the server has just written. Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from .keys import FIELDS

# What a decoder may raise on bytes that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (
    msgspec.MsgspecError,
    struct.error,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
)
WHOLE = "record"  # the name under which a record of garbage is told

_unpack = msgspec.msgpack.Decoder().decode
_LATEST, _EARLIEST = 253_402_300_799, -62_135_596_800  # the times that a calendar has
_STATES = frozenset("swrxocd")

Read = TypeVar("Read")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and _EARLIEST <= value <= _LATEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is False or check(value)


def _is_terms(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and len(value) == 6)


_KINDS: dict[Callable[[Any], bool], tuple[str, ...]] = {
    _is_text: ("id", "queue", "task"),
    _is_number: (
        "seq", "priority", "lane", "attempts", "failures", "stalls", "max_stalls", "fence", "shared_stalls"
    ),
    _is_time: ("created_at", "due_at"),
    _or_none(_is_time): ("expires_at", "started_at", "finished_at", "prune_at"),
    _or_none(_is_text): ("group", "key", "token", "worker", "reason"),
    _or_none(_is_number): ("turn", "claim_call"),
    _is_flag: ("begun", "held", "cancel_requested", "suspect"),
    lambda value: value in _STATES: ("state",),
    lambda value: isinstance(value, bool) or value == 1: ("value",),
    _is_terms: ("terms",),
}  # fmt: skip
_CHECKS = {name: check for check, names in _KINDS.items() for name in names}
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(FIELDS, False),
    **dict.fromkeys(("queue", "task"), ""),
    **dict.fromkeys(("seq", "priority", "lane", "attempts", "failures", "stalls", "fence", "shared_stalls"), 0),
    **dict.fromkeys(("created_at", "due_at"), 0.0),
    "max_stalls": 3,
    "state": "d",  # nobody will run it
}


def fields(job_id: str, packed: bytes) -> tuple[dict[str, Any], list[str]]:
    """(a record's values by name, those that cannot be read: they have their defaults)."""
    try:
        found = _unpack(packed)
    except UNREADABLE:
        found = None
    if not isinstance(found, list) or len(found) != len(FIELDS) or found[0] != job_id:
        return {**_DEFAULTS, "id": job_id}, [WHOLE]
    values = dict(zip(FIELDS, found, strict=True))
    bad = [name for name, value in values.items() if not _CHECKS[name](value)]
    return values | {name: _DEFAULTS[name] for name in bad}, bad


def readable(reads: Iterable[Callable[[], Read]]) -> list[Read]:
    """What can be read of them."""
    found: list[Read] = []
    for read in reads:
        try:
            found.append(read())
        except UNREADABLE:
            continue
    return found
