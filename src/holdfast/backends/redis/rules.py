"""What is declared and said of queues, groups and tasks, their buckets and cron entries, as they are stored, and back.

Called by backend.py, ruling.py, moving.py and reading.py. Pure. parts/flow.lua and parts/buckets.lua read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...entries import CronEntry
from ...lifecycle import State
from ...rates import Rate
from ...records import GroupRecord, Pause
from ...rules import Flow, Override, QueueRule, TaskRule
from . import rows

Place = tuple[str, str | None, str | None]  # kind (q, g, t), queue, name of the group or task
Scoped = TypeVar("Scoped", Override, Flow, Pause)

_VERSION_BYTES = 9  # before an entry's JSON: version, and whether the code declares it
_entry = msgspec.json.Decoder(CronEntry).decode
_encoded = msgspec.json.Encoder().encode


def place(one: Override | Flow | Pause) -> Place:
    """What it is about."""
    if one.task is not None:
        return "t", None, one.task
    return ("q", one.queue, None) if one.group is None else ("g", one.queue, one.group)


def in_order(said: Iterable[Scoped]) -> list[Scoped]:
    return sorted(said, key=lambda one: (one.queue or "", one.group or "", one.task or ""))


def of_queues(said: Iterable[Scoped]) -> dict[str, Scoped]:
    """What is about whole queues, by queue."""
    return {one.queue: one for one in said if one.queue is not None and one.group is None}


# ---------------------------------------------------------------------- going in


def rate(value: Rate | None) -> tuple[int, float, int | bool] | bool:
    return False if value is None else (value.count, value.seconds, value.burst or False)


def queue_rule(rule: QueueRule) -> tuple[Any, ...]:
    limit = 1 if rule.group_order == "strict" else rule.group_limit
    return (
        limit,
        rule.group_order,
        _or_false(rule.limit),
        rate(rule.rate),
        rate(rule.group_rate),
        _or_false(rule.aging),
    )


def task_rule(rule: TaskRule) -> tuple[Any, ...] | bool:
    """False for one that says nothing."""
    if rule == TaskRule(name=rule.name):
        return False
    kept = (rule.retain_count, rule.retain_dead, rule.retain_dead_count)
    return (_or_false(rule.limit), rate(rule.rate), rule.apart, *map(_or_false, kept))


def override(said: Override) -> tuple[Any, Any]:
    """(limit, rate) as they are stored; UNSET is not."""
    return (
        said.limit if isinstance(said.limit, int) else False,
        rate(said.rate) if isinstance(said.rate, Rate) else False,
    )


def flow(bucket: Flow) -> tuple[Any, ...]:
    return bucket.spent_until, bucket.shut_until, _or_false(bucket.wakes_at)


def entry_text(entry: CronEntry) -> bytes:
    return _encoded(replace(entry, version=0))


def _or_false(value: Any) -> Any:
    return False if value is None else value


# ---------------------------------------------------------------------- coming out


def read_rate(stored: Any) -> Rate | None:
    if not stored:
        return None
    count, seconds, burst = stored
    return Rate(count, float(seconds), burst or None)


def queue_rules(flat: Sequence[bytes]) -> list[QueueRule]:
    found: list[QueueRule] = []
    for name, packed in _pairs(flat):
        group_limit, order, limit, each, group_rate, aging = rows.unpack(packed)
        found.append(
            QueueRule(
                name=name.decode(),
                group_limit=group_limit,
                group_order=order,
                limit=limit or None,
                rate=read_rate(each),
                group_rate=read_rate(group_rate),
                aging=None if aging is False else float(aging),
            )
        )
    return sorted(found, key=lambda rule: rule.name)


def task_rules(flat: Sequence[bytes]) -> list[TaskRule]:
    found: list[TaskRule] = []
    for name, packed in _pairs(flat):
        limit, each, apart, retain_count, retain_dead, retain_dead_count = rows.unpack(packed)
        found.append(
            TaskRule(
                name=name.decode(),
                limit=limit or None,
                rate=read_rate(each),
                apart=apart,
                retain_count=_or_none(retain_count),
                retain_dead=None if retain_dead is False else float(retain_dead),
                retain_dead_count=_or_none(retain_dead_count),
            )
        )
    return sorted(found, key=lambda rule: rule.name)


def _or_none(stored: Any) -> Any:
    return None if stored is False else stored


def overrides(flat: Sequence[bytes]) -> list[Override]:
    return in_order(_scoped(flat, _override))


def _override(packed: bytes, **names: str) -> Override:
    limit, each = rows.unpack(packed)
    return Override(**names, limit=limit or None, rate=read_rate(each), apart=None)


def flows(*flats: Sequence[bytes]) -> list[Flow]:
    return in_order([one for flat in flats for one in _scoped(flat, _flow)])


def _flow(packed: bytes, **names: str) -> Flow:
    return read_flow(rows.unpack(packed), **names)


def read_flow(stored: Sequence[Any], **names: str) -> Flow:
    spent_until, shut_until, wakes_at = stored
    return Flow(
        **names,
        spent_until=float(spent_until),
        shut_until=float(shut_until),
        wakes_at=None if wakes_at is False else float(wakes_at),
    )


def _scoped(flat: Sequence[bytes], read: Callable[..., Scoped]) -> list[Scoped]:
    return [read(packed, **_names(scope)) for scope, packed in _pairs(flat)]


def _names(scope: bytes) -> dict[str, str]:
    """What is kept under this: hf.scope_of of parts/names.lua the other way round."""
    kind, name = scope[:1], scope[1:]
    if kind == b"g":
        return dict(zip(("queue", "group"), rows.names_in(name), strict=True))
    return {"queue" if kind == b"q" else "task": name.decode()}


def group(line: Sequence[Any]) -> GroupRecord:
    """A group as scripts/groups.lua shows it."""
    at, limit, override, order, paused, scheduled, waiting, ready, running, head, rate, rate_override, bucket = line
    queue, name = rows.names_in(at.encode() if isinstance(at, str) else at)
    states = (State.SCHEDULED, State.WAITING, State.READY, State.RUNNING)
    counts = zip(states, (scheduled, waiting, ready, running), strict=True)
    return GroupRecord(
        queue=queue,
        name=name,
        limit=limit,
        override=override or None,
        rate=read_rate(rate),
        rate_override=read_rate(rate_override),
        flow=read_flow(bucket, queue=queue, group=name) if bucket else None,
        order=order,
        pause=None if paused is False else msgspec.convert(paused, Pause),
        counts={state.value: number for state, number in counts if number},
        head=_or_none(head),
    )


def entries(flat: Sequence[bytes]) -> list[CronEntry]:
    return sorted((read_entry(stored) for _, stored in _pairs(flat)), key=lambda entry: entry.name)


def read_entry(stored: bytes) -> CronEntry:
    return replace(_entry(stored[_VERSION_BYTES:]), version=int.from_bytes(stored[:8], "big"))


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
