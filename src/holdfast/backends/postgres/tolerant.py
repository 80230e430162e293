"""Tolerant decoding: an invalid field hides neither the rest of its row nor other rows.

Called by read.py, flaws.py, move.py and backend.py. Decodes a record as a whole; only if that fails, which is rare,
field by field. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from ...lifecycle import State
from ...rates import Rate
from ...records import CronEntry, DeadLetter, Flow, JobRecord, Override, QueueRule, TaskRule, WorkerRecord

Record = TypeVar("Record", bound=msgspec.Struct)
_plain = msgspec.json.Decoder(strict=False).decode

# Placeholders for required fields that cannot be read. A job in an unknown state is shown as dead: it never runs.
_INSTEAD: Mapping[type[msgspec.Struct], Mapping[str, Any]] = {
    JobRecord: {"id": "", "seq": 0, "task": "", "queue": "", "state": State.DEAD, "args": b""},
    DeadLetter: {
        "id": "",
        "task": "",
        "queue": "",
        "key": None,
        "group": None,
        "args": b"",
        "failure_count": 0,
        "first_failed_at": 0.0,
        "failed_at": 0.0,
        "reason": "unreadable",
    },
    WorkerRecord: {"id": ""},
    QueueRule: {"name": ""},
    TaskRule: {"name": ""},
    Override: {},
    Flow: {},
}


def makes_sense(rate: object) -> bool:
    """Whether a rate is usable, by the same rule as rates.sql. Any value that is not a Rate passes."""
    if not isinstance(rate, Rate):
        return True
    return rate.count > 0 and 0 < rate.seconds < math.inf and (rate.burst is None or rate.burst > 0)


def reader(kind: type[Record]) -> Callable[[str], tuple[Record, tuple[str, ...]]]:
    """A decoder for this kind of record that also returns the names of the fields it could not read."""
    whole = msgspec.json.Decoder(kind).decode
    hints, instead = get_type_hints(kind), _INSTEAD[kind]
    rates = [name for name in ("rate", "group_rate") if name in hints]

    def read(text: str) -> tuple[Record, tuple[str, ...]]:
        try:
            record = whole(text)
            if all(makes_sense(getattr(record, name)) for name in rates):
                return record, ()
        except msgspec.DecodeError:
            pass
        stored: dict[str, Any] = _plain(text)
        values: dict[str, Any] = {}
        unreadable = []
        for field in msgspec.structs.fields(kind):
            if field.encode_name not in stored:
                continue
            try:
                value = msgspec.convert(stored[field.encode_name], hints[field.name])
            except msgspec.ValidationError:
                unreadable.append(field.name)
                continue
            if field.name in rates and not makes_sense(value):
                unreadable.append(field.name)
            else:
                values[field.name] = value
        return kind(**{**instead, **values}), tuple(unreadable)

    return read


_read_entry = msgspec.json.Decoder(CronEntry).decode
_read_job = reader(JobRecord)
read_letter = reader(DeadLetter)
read_worker = reader(WorkerRecord)
read_queue = reader(QueueRule)
read_task = reader(TaskRule)
read_override = reader(Override)
read_flow = reader(Flow)
_read_rate = msgspec.json.Decoder(Rate).decode


def as_job(text: str) -> JobRecord:
    job, unreadable = _read_job(text)
    return msgspec.structs.replace(job, unreadable=unreadable) if unreadable else job


def as_letter(text: str) -> DeadLetter:
    return read_letter(text)[0]


def as_worker(text: str) -> WorkerRecord:
    return read_worker(text)[0]


def rate_or_none(text: str | None) -> Rate | None:
    """The rate; None if it is missing, unreadable or unusable."""
    try:
        rate = None if text is None else _read_rate(text)
    except msgspec.DecodeError:
        return None
    return rate if makes_sense(rate) else None


def entry_or_none(text: str) -> CronEntry | None:
    """The cron entry; None if it cannot be read: without all its fields, it has no due time."""
    try:
        return _read_entry(text)
    except msgspec.DecodeError:
        return None
