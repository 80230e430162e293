"""A task's options: how its jobs are stored and run.

Created by `@app.task` and refined by `.using`. Frozen, and validated as a whole whenever something changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..keywords import nearest
from ..names import check_list, check_name, shown
from ..rates import Rate
from ..records import KeyScope, KeyUntil, OnExpire, Revival, TaskRule
from ..retry import RetryPolicy, as_policy
from .checks import COUNT_MAX, one_of, optional_rate, optional_seconds, optional_whole, whole
from .keys import FRESH_BY_CONFLICT, FRESH_BY_KEY, OnConflict, check_holding
from .per_job import CallOptions
from .queues import queue_name

Chooser = str | Callable[..., str | None]  # a group or key: fixed, or computed from the arguments it names

ARGS_BYTES_MAX: Final = 1 << 20
RESULT_BYTES_MAX: Final = 1 << 20
PRIORITY_MAX: Final = 100
LIMITS: Final = ("memory_limit", "cpu_limit", "file_limit")
MEMORY_BYTES_MIN: Final = 32 << 20  # what an interpreter with an app needs for itself, roughly


def check_revival(value: object) -> Revival | None:
    """Validate `revive=`: a Revival with sensible numbers, or None."""
    if value is None:
        return None
    if not isinstance(value, Revival):
        raise ConfigurationError(f"revive= takes a Revival(after=…, cycles=…) or None, not {type(value).__name__}.")
    whole(value.cycles, "Revival(cycles=…)", 1)
    if isinstance(value.factor, bool) or not isinstance(value.factor, int | float) or not 1 <= value.factor <= 1e6:
        raise ConfigurationError(f"Revival(factor=…) must be a number from 1 to 1e6, not {shown(value.factor)}.")
    return Revival(
        after=to_seconds(value.after, "Revival(after=…)"),
        factor=float(value.factor),
        cap=to_seconds(value.cap, "Revival(cap=…)"),
        cycles=value.cycles,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task's jobs are stored and run. `make` takes what users write; the fields are the validated forms."""

    name: str = ""
    queue: str = "default"
    priority: int = 0
    group: Chooser | None = None
    key: Chooser | None = None
    on_conflict: OnConflict = "keep"
    key_scope: KeyScope = "queue"
    key_until: KeyUntil | None = None  # None: implied by on_conflict
    window: float | None = None
    wait: float | None = None
    wait_max: float | None = None
    retry: RetryPolicy = dataclasses.field(default_factory=RetryPolicy)
    timeout: float | None = None
    max_stalls: int = 3
    isolation: Literal["none", "process"] = "none"
    memory_limit: int | None = None
    cpu_limit: float | None = None
    file_limit: int | None = None
    expires: float | None = None
    on_expire: OnExpire = "bury"
    retain: float = 86400.0
    retain_count: int | None = None
    retain_dead: float | None = None
    retain_dead_count: int | None = None
    rate: Rate | None = None
    limit: int | None = None
    aliases: tuple[str, ...] = ()
    revive: Revival | None = None

    @classmethod
    def make(cls, **given: Any) -> TaskOptions:
        """Validate and normalise options as users pass them to `@app.task`."""
        return cls().changed(**given)

    def changed(self, **given: Any) -> TaskOptions:
        """A validated copy with some options replaced. No key, or a new on_conflict, resets the dependent options."""
        checked: dict[str, Any] = {}
        for option, value in given.items():
            check = _TASK_CHECKS.get(option)
            if check is None:
                known = ", ".join(sorted(_TASK_CHECKS))
                raise ConfigurationError(
                    f"there is no task option {option!r}.{nearest(option, _TASK_CHECKS)} Known: {known}."
                )
            checked[option] = check(value)
        if checked.get("on_conflict", self.on_conflict) != self.on_conflict:
            checked = {**FRESH_BY_CONFLICT, **checked}
        if checked.get("key", self.key) is None and self.key is not None:
            checked = {**FRESH_BY_KEY, **checked}
        made = dataclasses.replace(self, **checked)
        if made.isolation != "process" and any(getattr(made, name) is not None for name in LIMITS):
            raise ConfigurationError(
                "memory_limit=, cpu_limit= and file_limit= hold for a process of the job's own. "
                'Say isolation="process" too.'
            )
        check_holding(made)
        return made

    def for_call(self, stored: bytes | None) -> TaskOptions:
        """These options with those that `.using` set for one job, as stored with it."""
        if stored is None:
            return self
        try:
            said = msgspec.json.decode(stored, type=CallOptions)
        except msgspec.MsgspecError:  # written by a newer version: the task's own options apply
            return self
        return dataclasses.replace(self, **said.changes(self.retry))

    def rules(self) -> list[TaskRule]:
        """What the store must know about the task: under its name and, for jobs stored earlier, its aliases."""
        return [
            TaskRule(
                name=name,
                limit=self.limit,
                rate=self.rate,
                apart=self.isolation == "process",  # claims carry how many of them could start
                retain_count=self.retain_count,
                retain_dead=self.retain_dead,
                retain_dead_count=self.retain_dead_count,
            )
            for name in dict.fromkeys((self.name, *self.aliases))
        ]


def _chooser(what: str) -> Callable[[Any], Chooser | None]:
    def check(value: Any) -> Chooser | None:
        if value is None or callable(value):
            return value  # type: ignore[no-any-return]
        return check_name(value, what)

    return check


def _names(value: Any) -> tuple[str, ...]:
    return tuple(check_name(entry, "alias") for entry in check_list(value, "aliases="))


_TASK_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda value: check_name(value, "task name"),
    "queue": lambda value: queue_name(value),
    "priority": lambda value: whole(value, "priority=", -PRIORITY_MAX, PRIORITY_MAX),
    "group": _chooser("group"),
    "key": _chooser("key"),
    "on_conflict": lambda value: one_of(value, "on_conflict=", get_args(OnConflict)),
    "key_scope": lambda value: one_of(value, "key_scope=", get_args(KeyScope)),
    "key_until": lambda value: None if value is None else one_of(value, "key_until=", get_args(KeyUntil)),
    "window": optional_seconds("window=", 0.001),
    "wait": optional_seconds("wait=", 0.001),
    "wait_max": optional_seconds("wait_max=", 0.001),
    "retry": as_policy,
    "timeout": optional_seconds("timeout=", 0.001),
    "max_stalls": lambda value: whole(value, "max_stalls=", 0, 1_000_000),
    "isolation": lambda value: one_of(value, "isolation=", ("none", "process")),
    "memory_limit": optional_whole("memory_limit=", MEMORY_BYTES_MIN),
    "cpu_limit": optional_seconds("cpu_limit=", 0.001),
    "file_limit": optional_whole("file_limit=", 0),
    "expires": optional_seconds("expires=", 0.001),
    "on_expire": lambda value: one_of(value, "on_expire=", get_args(OnExpire)),
    "retain": lambda value: to_seconds(value, "retain="),
    "retain_count": optional_whole("retain_count=", 0, COUNT_MAX),
    "retain_dead": optional_seconds("retain_dead=", 0.0),
    "retain_dead_count": optional_whole("retain_dead_count=", 0, COUNT_MAX),
    "rate": optional_rate,
    "limit": optional_whole("limit=", 1, COUNT_MAX),
    "aliases": _names,
    "revive": check_revival,
}
