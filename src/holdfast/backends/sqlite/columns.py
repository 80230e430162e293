"""The statements of this store, and how structs and names are encoded in its columns.

Imported by every module that touches the file. Pure: it executes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ...errors import ConfigurationError
from ...lifecycle import Failure
from ...rates import Rate
from ...records import ERRORS_KEPT_MAX, CronEntry, Flow, Override, PastDeath, Pause, Revival
from ..fragments import load_statements
from . import tolerant

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
    "prune",
    "cron",
    "move",
    "read",
    "flaws",
]
SQL: Mapping[str, str] = load_statements(__package__ + ".statements", FILES)

LANE_UNGROUPED, LANE_GROUPED, LANE_PARKED, LANE_APART = 0, 1, 2, 3

Place = tuple[str, str, str]  # (kind, queue, name): what a pause, an override or a flow applies to

_encode = msgspec.json.Encoder().encode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_deaths = msgspec.json.Decoder(tuple[PastDeath, ...]).decode
_failure = msgspec.json.Decoder(Failure).decode
_revival = msgspec.json.Decoder(Revival).decode
_rate = msgspec.json.Decoder(Rate).decode
entry_of = msgspec.json.Decoder(CronEntry).decode


def encoded(value: Any) -> bytes:
    return _encode(value)


def as_text(value: Any) -> str:
    """JSON for a statement that takes a whole list."""
    return _encode(value).decode()


def logical_name(job_id: str, queue: str, task: str, key: str | None) -> str:
    """The name of the logical job: (queue, task, key), or the id if there is no key."""
    return f"id:{job_id}" if key is None else "key:" + _encode([queue, task, key]).decode()


def with_failure(errors: bytes | None, failure: Failure) -> bytes:
    """A job's error history plus one failure, bounded to the newest. An unreadable history starts over."""
    return _encode((*tolerant.read_or((), failures_of, errors), failure)[-ERRORS_KEPT_MAX:])


def failures_of(errors: bytes | None) -> tuple[Failure, ...]:
    return () if errors is None else _failures(errors)


def deaths_of(history: bytes | None) -> tuple[PastDeath, ...]:
    return () if history is None else _deaths(history)


def failure_of(error: bytes | None) -> Failure | None:
    return None if error is None else _failure(error)


def revival_of(revival: bytes | None) -> Revival | None:
    return None if revival is None else _revival(revival)


def rate_text(rate: Rate | None) -> str | None:
    return None if rate is None else _encode(rate).decode()


@lru_cache(maxsize=1024)
def _rate_read(text: str) -> Rate | None:
    return tolerant.read_or(None, _rate, text)  # flaws lists an unreadable rate; it limits nothing


def rate_of(text: str | None) -> Rate | None:
    return None if text is None else _rate_read(text)


def place_of(said: Pause | Override | Flow, what: str) -> Place:
    """(kind, queue, name): exactly one of queue, queue + group, task."""
    if said.task is not None and said.queue is None and said.group is None:
        return "task", "", said.task
    if said.task is None and said.queue is not None:
        return ("queue", said.queue, "") if said.group is None else ("group", said.queue, said.group)
    raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")


def scope_of(kind: str, queue: str, name: str) -> dict[str, str | None]:
    """The fields queue, group and task of a place."""
    return {
        "queue": None if kind == "task" else queue,
        "group": name if kind == "group" else None,
        "task": name if kind == "task" else None,
    }
