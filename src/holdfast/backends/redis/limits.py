"""Rules of queues, groups and tasks: the verbs that change and apply them, and how rules, overrides and pauses,
rate states and cron entries are encoded.

Called by backend.py, move.py, read.py and dump.py. lua/limits.lua and lua/rates.lua read the same format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ...lifecycle import State
from ...rates import Rate
from ...records import CronEntry, Flow, GroupRecord, Override, Pause, QueueRule, TaskRule
from ..seals import check_limit, check_rules, check_weight, place_of
from . import codec
from .connection import Connections
from .layouts import LAYOUTS
from .scripts import SCRIPTS

Place = tuple[str, str | None, str | None]  # kind (q, g, t), queue, name of the group or task
Scoped = TypeVar("Scoped", Override, Flow, Pause)
Read = TypeVar("Read")

_UNFINISHED = (State.SCHEDULED, State.WAITING, State.READY, State.RUNNING)
_VERSION_BYTES = 9  # before an entry's JSON: version, and whether code declares it
_entry = msgspec.json.Decoder(CronEntry).decode
_encoded = msgspec.json.Encoder().encode


def place(one: Override | Flow | Pause) -> Place:
    """Return what it applies to."""
    if one.task is not None:
        return "t", None, one.task
    return ("q", one.queue, None) if one.group is None else ("g", one.queue, one.group)


def in_order(rows: Iterable[Scoped]) -> list[Scoped]:
    return sorted(rows, key=lambda one: (one.queue or "", one.group or "", one.task or ""))


def of_queues(rows: Iterable[Scoped]) -> dict[str, Scoped]:
    """Return those that apply to whole queues, by queue."""
    return {one.queue: one for one in rows if one.queue is not None and one.group is None}


# ---------------------------------------------------------------------- going in


def rate(value: Rate | None) -> tuple[int, float, int | bool] | bool:
    return False if value is None else (value.count, value.seconds, value.burst or False)


def _stored(layout: str, struct: msgspec.Struct) -> tuple[Any, ...]:
    """Return its fields in the order of the layout; none is false."""
    values = (getattr(struct, name, False) for name in LAYOUTS[layout])
    return tuple(rate(one) if isinstance(one, Rate) else False if one is None else one for one in values)


_USUAL = ("go_on", False, False, False)  # the last fields of a rule that says nothing of them; they are not stored


def queue_rule(rule: QueueRule, *, in_shard: bool) -> tuple[Any, ...]:
    stored = _stored("RULE", replace(rule, group_limit=1) if rule.group_order == "strict" else rule)
    said = stored[: -len(_USUAL)], (*stored[-len(_USUAL) : -1], in_shard and rule.dead_queue is not None)
    last = max((place for place, one in enumerate(said[1], 1) if one != _USUAL[place - 1]), default=0)
    return (*said[0], *said[1][:last])


def task_rule(rule: TaskRule) -> tuple[Any, ...] | bool:
    """Encode a task's rule; False if it is all defaults."""
    return False if rule == TaskRule(name=rule.name) else _stored("TASK", rule)


def override_row(override: Override) -> tuple[Any, ...]:
    """Encode an override; UNSET counts as not set. Only a task can be apart."""
    apart = override.apart is True and override.task is not None
    said = (override.limit, override.rate, override.weight)
    limit, rate, weight = (None if one is msgspec.UNSET else one for one in said)
    return _stored("OVERRIDE", replace(override, limit=limit, rate=rate, apart=apart, weight=weight))


def flow(bucket: Flow) -> tuple[Any, ...]:
    return _stored("FLOW", bucket)


def entry_text(entry: CronEntry) -> bytes:
    return _encoded(replace(entry, version=0))


# ---------------------------------------------------------------------- coming out


def read_rate(stored: Any) -> Rate | None:
    """Decode a rate. Its types are not checked: a group's is shown as the server applies it."""
    if not stored:
        return None
    count, seconds, burst = stored
    return Rate(count, float(seconds), burst or None)


def _values(layout: str, stored: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of an array by name, None for false; rates are read, `apart` stays a flag."""
    named = dict(zip(LAYOUTS[layout], stored, strict=True))
    values = {name: None if one is False else one for name, one in named.items()}
    rates = {name: read_rate(named[name]) for name in ("rate", "group_rate") if name in named}
    return values | rates | ({"apart": named["apart"]} if "apart" in named else {})


def queue_rules(flat: Sequence[bytes]) -> list[QueueRule]:
    """Decode rules. Unreadable ones are left out here, and wherever else many are read: flaws() lists them."""
    return sorted(_readable(flat, queue_rule_of), key=lambda rule: rule.name)


def queue_rule_of(name: bytes, packed: bytes) -> QueueRule:
    stored = codec.unpack(packed)
    fewer = len(LAYOUTS["RULE"]) - len(stored)
    stored = [*stored, *_USUAL[-fewer:]] if fewer > 0 else stored
    return msgspec.convert({"name": name.decode(), **_values("RULE", stored)}, QueueRule, from_attributes=True)


def task_rules(flat: Sequence[bytes]) -> list[TaskRule]:
    return sorted(_readable(flat, task_rule_of), key=lambda rule: rule.name)


def task_rule_of(name: bytes, packed: bytes) -> TaskRule:
    return msgspec.convert(
        {"name": name.decode(), **_values("TASK", codec.unpack(packed))}, TaskRule, from_attributes=True
    )


def _or_none(stored: Any) -> Any:
    return None if stored is False else stored


def overrides(flat: Sequence[bytes]) -> list[Override]:
    return in_order(_readable(flat, override_of))


def override_of(scope: bytes, packed: bytes) -> Override:
    limit, each, *more = codec.unpack(packed)  # earlier versions stored only two, or three
    apart, weight = [*more, False, False][:2]
    said: dict[str, Any] = {
        **_names(scope),
        "limit": limit or None,
        "rate": read_rate(each),
        "apart": apart is True or None,
        "weight": weight or None,
    }
    return Override(**said)


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
    return msgspec.convert({**names, **_values("FLOW", stored)}, Flow)


def _names(scope: bytes) -> dict[str, str]:
    """Return the names in a scope: the inverse of hf.scope_of in lua/prelude.lua."""
    kind, name = scope[:1], scope[1:]
    if kind == b"g":
        return dict(zip(("queue", "group"), codec.names_in(name), strict=True))
    return {"queue" if kind == b"q" else "task": name.decode()}


def group(line: Mapping[str, Any]) -> GroupRecord:
    """Decode a group as lua/read.lua returns it."""
    place = line["place"]
    queue, name = codec.names_in(place.encode() if isinstance(place, str) else place)
    return GroupRecord(
        queue=queue,
        name=name,
        limit=line["limit"],
        override=line["override"] or None,
        rate=read_rate(line["rate"]),
        rate_override=read_rate(line["rate_override"]),
        weight=line["weight"],
        flow=read_flow(line["flow"], queue=queue, group=name) if line["flow"] else None,
        order=line["order"],
        pause=_pause(line["pause"], queue, name),
        counts={state.value: line[state] for state in _UNFINISHED if line[state]},
        head=_or_none(line["head"]),
        stopped_by=_or_none(line["stopped_by"]),
    )


def _pause(stored: Any, queue: str, group: str) -> Pause | None:
    """Decode a group's pause; if it cannot be read, still show that the group is paused."""
    if stored is False:
        return None
    try:
        return msgspec.convert(stored, Pause)
    except codec.UNREADABLE:
        return Pause(queue=queue, group=group)


def entries(flat: Sequence[bytes]) -> list[CronEntry]:
    return sorted(_readable(flat, entry_of), key=lambda entry: entry.name)


def entry_of(_: bytes, stored: bytes) -> CronEntry:
    return read_entry(stored)


def read_entry(stored: bytes) -> CronEntry:
    return replace(_entry(stored[_VERSION_BYTES:]), version=int.from_bytes(stored[:8], "big"))


def _readable(flat: Sequence[bytes], read: Callable[[bytes, bytes], Read]) -> list[Read]:
    return codec.readable(partial(read, name, packed) for name, packed in zip(flat[::2], flat[1::2], strict=True))


# ----------------------------------------------------------------------------------------------------------------------
# The verbs that change rules of queues, groups and tasks, and those that apply them: refill and rearrange.
#
# Called by backend.py. A new rule holds from the step that stores it: claims obey it from then on. That step moves at
# most `step` jobs and groups; the store records what is left, for claims and rearrange to continue.


class LimitVerbs:
    """The rule verbs of one store."""

    def __init__(self, connections: Connections, *, in_shard: bool) -> None:
        self._connections, self._in_shard = connections, in_shard
        self._refill_after = ("", b"")

    async def _run(self, verb: str, now: float | None, *values: Any, pieces: Sequence[bytes] = ()) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces)

    async def declare(
        self, queues: Sequence[QueueRule], tasks: Sequence[TaskRule], step: int, now: float | None
    ) -> None:
        check_rules(queues, tasks)
        if not queues and not tasks:
            return
        of_queues = [(rule.name, queue_rule(rule, in_shard=self._in_shard)) for rule in queues]
        of_tasks = [(task.name, task_rule(task)) for task in tasks]
        await self._run("declare", now, of_queues, of_tasks, step)

    async def rearrange(self, limit: int, now: float | None) -> bool:
        [more] = await self._run("rearrange", now, limit)
        return bool(more)

    async def refill(self, limit: int, now: float | None) -> int:
        """Refill one page of groups and of parked jobs, continuing where the last call stopped."""
        place, member = self._refill_after
        made, last, last_member = await self._run("refill", now, place, limit, pieces=[member])
        self._refill_after = (last.decode(), last_member)
        return int(made)

    # ------------------------------------------------------------------ operators

    async def limit(self, override: Override, step: int, now: float | None) -> None:
        place = kind, queue, name = _checked(override, "a limit")
        what = {"q": "queue", "g": "group", "t": "task"}[kind]
        check_limit(override.limit, f"the limit of {what} {name or queue!r}")
        check_weight(override)
        given = (override.limit, override.rate, override.apart, override.weight)
        changes = zip(given, override_row(override), strict=True)
        await self._run("limit", now, *place, *(None if one is UNSET else [stored] for one, stored in changes), step)

    async def slow_down(self, queue: str, seconds: float, now: float | None) -> float:
        [until] = await self._run("slow_down", now, queue, seconds)
        return float(until)

    async def pause(self, pause: Pause, step: int, now: float | None) -> None:
        await self._run("pause", now, *_checked(pause, "a pause"), codec.named(pause), False, step)

    async def resume(self, pause: Pause, step: int, now: float | None, *, skip_dead: bool) -> bool:
        [changed] = await self._run("pause", now, *_checked(pause, "a pause"), None, skip_dead, step)
        return bool(changed)


def _checked(wanted: Override | Pause, what: str) -> Place:
    """Return what it applies to: exactly one of queue, queue and group, task."""
    place_of(wanted, what)
    return place(wanted)
