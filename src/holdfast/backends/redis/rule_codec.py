"""Encodes and decodes rules, overrides and pauses of queues, groups and tasks, their rate states, and cron entries.

Called by backend.py, limits.py, move.py and read.py. Pure. lua/rates.lua reads the same format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...lifecycle import State
from ...rates import Rate
from ...records import CronEntry, Flow, GroupRecord, Override, Pause, QueueRule, TaskRule
from . import codec, tolerant

Place = tuple[str, str | None, str | None]  # kind (q, g, t), queue, name of the group or task
Scoped = TypeVar("Scoped", Override, Flow, Pause)
Read = TypeVar("Read")

_VERSION_BYTES = 9  # before an entry's JSON: version, and whether code declares it
_entry = msgspec.json.Decoder(CronEntry).decode
_encoded = msgspec.json.Encoder().encode


def place(one: Override | Flow | Pause) -> Place:
    """Return what it applies to."""
    if one.task is not None:
        return "t", None, one.task
    return ("q", one.queue, None) if one.group is None else ("g", one.queue, one.group)


def in_order(said: Iterable[Scoped]) -> list[Scoped]:
    return sorted(said, key=lambda one: (one.queue or "", one.group or "", one.task or ""))


def of_queues(said: Iterable[Scoped]) -> dict[str, Scoped]:
    """Return those that apply to whole queues, by queue."""
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
    """Encode a task's rule; False if it is all defaults."""
    if rule == TaskRule(name=rule.name):
        return False
    kept = (rule.retain_count, rule.retain_dead, rule.retain_dead_count)
    return (_or_false(rule.limit), rate(rule.rate), rule.apart, *map(_or_false, kept))


def override(said: Override) -> tuple[Any, Any, bool]:
    """Return (limit, rate, apart) as stored; UNSET counts as not set. Only a task can be apart."""
    return (
        said.limit if isinstance(said.limit, int) else False,
        rate(said.rate) if isinstance(said.rate, Rate) else False,
        said.apart is True and said.task is not None,
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
    """Decode rules. Unreadable ones are left out here, and wherever else many are read: flaws() lists them."""
    return sorted(_readable(flat, queue_rule_of), key=lambda rule: rule.name)


def queue_rule_of(name: bytes, packed: bytes) -> QueueRule:
    group_limit, order, limit, each, group_rate, aging = codec.unpack(packed)
    return msgspec.convert(
        QueueRule(
            name=name.decode(),
            group_limit=group_limit,
            group_order=order,
            limit=limit or None,
            rate=read_rate(each),
            group_rate=read_rate(group_rate),
            aging=None if aging is False else float(aging),
        ),
        QueueRule,
        from_attributes=True,
    )


def task_rules(flat: Sequence[bytes]) -> list[TaskRule]:
    return sorted(_readable(flat, task_rule_of), key=lambda rule: rule.name)


def task_rule_of(name: bytes, packed: bytes) -> TaskRule:
    limit, each, apart, retain_count, retain_dead, retain_dead_count = codec.unpack(packed)
    return TaskRule(
        name=name.decode(),
        limit=limit or None,
        rate=read_rate(each),
        apart=apart,
        retain_count=_or_none(retain_count),
        retain_dead=None if retain_dead is False else float(retain_dead),
        retain_dead_count=_or_none(retain_dead_count),
    )


def _or_none(stored: Any) -> Any:
    return None if stored is False else stored


def overrides(flat: Sequence[bytes]) -> list[Override]:
    return in_order(_readable(flat, override_of))


def override_of(scope: bytes, packed: bytes) -> Override:
    limit, each, *apart = codec.unpack(packed)  # an earlier version stored only two
    return Override(**_names(scope), limit=limit or None, rate=read_rate(each), apart=apart == [True] or None)


def flows(*flats: Sequence[bytes]) -> list[Flow]:
    return in_order([one for flat in flats for one in _readable(flat, flow_of)])


def flow_of(scope: bytes, packed: bytes) -> Flow:
    return read_flow(codec.unpack(packed), **_names(scope))


def pauses(flat: Sequence[bytes]) -> list[Pause]:
    return in_order(_readable(flat, pause_of))


def pause_of(scope: bytes, packed: bytes) -> Pause:
    _names(scope)
    return codec.pause(packed)


def read_flow(stored: Sequence[Any], **names: str) -> Flow:
    spent_until, shut_until, wakes_at = stored
    return Flow(
        **names,
        spent_until=float(spent_until),
        shut_until=float(shut_until),
        wakes_at=None if wakes_at is False else float(wakes_at),
    )


def _names(scope: bytes) -> dict[str, str]:
    """Return the names in a scope: the inverse of hf.scope_of in lua/prelude.lua."""
    kind, name = scope[:1], scope[1:]
    if kind == b"g":
        return dict(zip(("queue", "group"), codec.names_in(name), strict=True))
    return {"queue" if kind == b"q" else "task": name.decode()}


def group(line: Sequence[Any]) -> GroupRecord:
    """Decode a group as lua/read.lua returns it."""
    at, limit, override, order, paused, scheduled, waiting, ready, running, head, rate, rate_override, bucket = line
    queue, name = codec.names_in(at.encode() if isinstance(at, str) else at)
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
        pause=_pause(paused, queue, name),
        counts={state.value: number for state, number in counts if number},
        head=_or_none(head),
    )


def _pause(stored: Any, queue: str, group: str) -> Pause | None:
    """Decode a group's pause; if it cannot be read, still show that the group is paused."""
    if stored is False:
        return None
    try:
        return msgspec.convert(stored, Pause)
    except tolerant.UNREADABLE:
        return Pause(queue=queue, group=group)


def entries(flat: Sequence[bytes]) -> list[CronEntry]:
    return sorted(_readable(flat, entry_of), key=lambda entry: entry.name)


def entry_of(_: bytes, stored: bytes) -> CronEntry:
    return read_entry(stored)


def read_entry(stored: bytes) -> CronEntry:
    return replace(_entry(stored[_VERSION_BYTES:]), version=int.from_bytes(stored[:8], "big"))


def _readable(flat: Sequence[bytes], read: Callable[[bytes, bytes], Read]) -> list[Read]:
    return tolerant.readable(partial(read, name, packed) for name, packed in zip(flat[::2], flat[1::2], strict=True))
