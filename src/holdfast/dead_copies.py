"""Copies of dead jobs in another queue (`dead_queue=`): their ids, and how they name the job they copy (R120).

Called by stores in the step of a death, and wherever a job's options are read. The deaths that led to a copy are listed
among its stored options, the newest first; SQL and Lua splice them in byte for byte as `with_death` does, so options
that cannot be parsed can still be copied. Pure.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

_LIST = b'"dead":['  # in JSON, where quotes inside of strings are escaped
_BEGINS = b'{"version":1,'  # a death; no header, tag or other option of the user's begins with a number


class Death(Struct, frozen=True):
    """Whose copy a job is, and why that one died."""

    queue: str
    id: str
    reason: str


class _OnlyDeaths(Struct, frozen=True):
    dead: tuple[Death, ...] = ()


def copy_id(job_id: str, count: int, at: float) -> str:
    """The id of the copy that a death makes. `count`: of its dead letter, which may be closed and begin at 1 again, so
    the time, in microseconds, belongs to it."""
    return f"{job_id}.{count}.{int(at * 1_000_000)}"


def died_in(stored: bytes | None, queue: str) -> bool:
    """Whether a job is the copy of one that died in that queue, or the copy of such a copy."""
    return stored is not None and _BEGINS + b'"queue":' + msgspec.json.encode(queue) + b"," in stored


def with_death(stored: bytes | None, death: Death) -> bytes:
    """The stored options of a copy, given those of the job that died."""
    text = _BEGINS + msgspec.json.encode(death)[1:]
    if stored is None or len(stored) <= 2 or not stored.endswith(b"}"):
        return b"{" + _LIST + text + b"]}"
    head, found, tail = stored.partition(_LIST)
    return head + found + text + b"," + tail if found else stored[:-1] + b"," + _LIST + text + b"]}"


def is_copy(stored: bytes | None) -> bool:
    return stored is not None and _LIST in stored


def deaths_of(stored: bytes | None) -> tuple[Death, ...]:
    """The deaths that led to this job, the newest first; none for a job that is no copy."""
    if stored is None or _LIST not in stored:
        return ()
    try:
        return msgspec.json.decode(stored, type=_OnlyDeaths).dead
    except msgspec.MsgspecError:
        return ()
