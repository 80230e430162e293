"""Decodes damaged records as far as possible: a bad field hides neither the other fields nor the other records.

Called by codec.py for everything that is shown, and for leases with a text that is not UTF-8. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from .layouts import FIELDS, RECORD, bad_fields

# What a decoder may raise for bytes that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (
    msgspec.MsgspecError,
    struct.error,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
)
WHOLE = "record"  # the field name under which an entirely unreadable record is reported

_unpack = msgspec.msgpack.Decoder().decode
_pieces = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_HEAD_BYTES = {0xD9: 2, 0xDA: 3, 0xDB: 5}  # header of a packed text; 1 for a short one
# A record that cannot be read is shown as dead: no worker will run it.
_DEFAULTS = {name: kind.default for name, kind in RECORD.items()} | {"max_stalls": 3}
Read = TypeVar("Read")


def values_of(packed: bytes) -> tuple[list[Any], set[int]]:
    """Return (an unpacked list, the positions of texts that are not UTF-8, decoded with replacement characters)."""
    try:
        return list(_unpack(packed)), set()
    except UNREADABLE:
        pieces = _pieces(packed)
    values: list[Any] = []
    garbled: set[int] = set()
    for place, piece in enumerate(map(bytes, pieces)):
        try:
            values.append(_unpack(piece))
        except UNREADABLE:
            values.append(text_in(piece).decode(errors="replace"))
            garbled.add(place)
    return values, garbled


def text_in(piece: bytes) -> bytes:
    """Return the bytes of a packed text, without the one to five that encode its length."""
    return piece[_HEAD_BYTES.get(piece[0], 1) :]


def fields(job_id: str, packed: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return (a record's values by name, the fields that cannot be read, which have their defaults)."""
    try:
        found, garbled = values_of(packed)
    except UNREADABLE:
        found, garbled = [], set()
    if len(found) != len(FIELDS) or found[0] != job_id:
        return {**_DEFAULTS, "id": job_id}, [WHOLE]
    values = dict(zip(FIELDS, found, strict=True))
    bad = bad_fields(values)
    defaults = {name: _DEFAULTS[name] for name in bad}
    return values | defaults, [name for name in FIELDS if name in bad or FIELDS.index(name) in garbled]


def readable(reads: Iterable[Callable[[], Read]]) -> list[Read]:
    """Return the results of those that can be read."""
    found: list[Read] = []
    for read in reads:
        try:
            found.append(read())
        except UNREADABLE:
            continue
    return found
