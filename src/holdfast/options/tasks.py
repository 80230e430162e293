"""A task's options: how its jobs are stored and run, what their unique keys mean, and what one job may override.

Created by `@app.task` and refined by `.using`. Frozen, and validated as a whole whenever something changes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..names import NAME_LENGTH_MAX, check_list, check_name, nearest, shown
from ..rates import Rate
from ..records import ORDER_MAX, SERIAL_PREFIX, Conflict, KeyScope, KeyUntil, OnExpire, Revival, TaskRule
from ..retry import RetryPolicy, as_policy
from .checks import COUNT_MAX, PRIORITY_MAX, one_of, optional_rate, optional_seconds, optional_whole, queue_name, whole

# ----------------------------------------------------------------------------------------------------------------------
# Unique keys: how long a job holds its key, and what happens to a call that conflicts with it. Used by the options,
# which must not contradict themselves, and by task.py, which puts the result into the job. Users choose among six
# values of `on_conflict`; stores implement four, and two points until which a key is held. The others are built from
# these here and nowhere else.


OnConflict = Literal["keep", "replace", "raise", "debounce", "throttle", "extend", "keep_last"]

# Reset when on_conflict changes, or when a call has no key.
FRESH_BY_CONFLICT: dict[str, Any] = {"key_until": None, "window": None, "wait": None, "wait_max": None}
FRESH_BY_KEY: dict[str, Any] = {**FRESH_BY_CONFLICT, "on_conflict": "keep", "key_scope": "queue"}
_WINDOWED = ("throttle", "extend")
_STORED: dict[OnConflict, Conflict] = {"throttle": "keep", "keep_last": "replace"}
_STARTED = ("debounce", "keep_last")  # the key is free for the next call once the job has started
_HASH_CHARS = 32


class Holding(Struct, frozen=True):
    """How one job holds its key, in the contract's terms."""

    on_conflict: Conflict = "keep"
    key_scope: KeyScope = "queue"
    key_until: KeyUntil = "finished"
    key_window: float | None = None
    delay: float | None = None  # debounce: how long each call delays it
    wait_max: float | None = None
    group: str | None = None  # keep_last: keeps the waiting job from running beside the running one


NO_KEY = Holding()


def how_held(options: TaskOptions, task: str, key: str) -> Holding:
    """How a job of this task holds this key."""
    word = options.on_conflict
    return Holding(
        on_conflict=_STORED.get(word) or word,  # type: ignore[arg-type]
        key_scope=options.key_scope,
        key_until="started" if word in _STARTED else options.key_until or "finished",
        key_window=options.window,
        delay=options.wait,
        wait_max=options.wait_max,
        group=serial_group(f"{task}/{key}") if word == "keep_last" else None,
    )


def serial_group(name: str) -> str:
    """A group that runs one job at a time in every queue; a long name is truncated and ends in its hash."""
    text = SERIAL_PREFIX + name
    if len(text) <= NAME_LENGTH_MAX:
        return text
    import hashlib  # loads OpenSSL, which few producers need

    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
    return f"{text[: NAME_LENGTH_MAX - _HASH_CHARS - 1]}~{digest}"


def check_holding(options: TaskOptions) -> None:
    """Reject options that contradict each other or would be ignored."""
    if options.key is None:
        _check_keyless(options)
        return
    word = options.on_conflict
    if options.window is not None and options.key_until is not None:
        raise ConfigurationError(
            "window= and key_until= exclude each other: a key is held for some seconds, or until the job started or "
            "finished. Give one of them."
        )
    if word in _WINDOWED and options.window is None:
        raise ConfigurationError(f'on_conflict="{word}" needs window=: the seconds within which one job is made.')
    if word == "debounce" and options.wait is None:
        raise ConfigurationError('on_conflict="debounce" needs wait=: the seconds of calm after which the job is due.')
    if word != "debounce" and (options.wait is not None or options.wait_max is not None):
        raise ConfigurationError(f'wait= and wait_max= belong to on_conflict="debounce", not to {word!r}.')
    if options.wait is not None and options.wait_max is not None and options.wait_max < options.wait:
        raise ConfigurationError(
            f"wait_max={options.wait_max:g} s is shorter than wait={options.wait:g} s. Raise wait_max or leave it out."
        )
    if word in _STARTED and options.window is not None:
        raise ConfigurationError(f"on_conflict={word!r} frees the key when the job starts. Leave out window=.")
    if word in _STARTED and options.key_until == "finished":
        raise ConfigurationError(f"on_conflict={word!r} frees the key when the job starts. Leave out key_until=.")
    if word in _WINDOWED and options.key_until is not None:
        raise ConfigurationError(f'on_conflict="{word}" holds the key for its window=. Leave out key_until=.')
    if word == "keep_last":
        _check_keep_last(options)


def _check_keyless(options: TaskOptions) -> None:
    given = [name for name, unset in FRESH_BY_KEY.items() if getattr(options, name) != unset]
    if given:
        raise ConfigurationError(f"{given[0]}= applies to jobs with a key. Give key= too.")


def _check_keep_last(options: TaskOptions) -> None:
    if options.group is not None:
        raise ConfigurationError(
            'on_conflict="keep_last" runs the jobs of a key one at a time in a group of its own. Leave out group=.'
        )
    if options.key_scope == "global":
        raise ConfigurationError(
            'on_conflict="keep_last" runs the jobs of a key one at a time, and only within one queue. '
            'Leave out key_scope="global".'
        )


# ----------------------------------------------------------------------------------------------------------------------
# A task's options


OnTimeout = Literal["retry", "bury"]
Chooser = str | Callable[..., str | None]  # a group or key: fixed, or computed from the arguments it names
Order = int | datetime  # a job's place in its group: lower ones go first
OrderChooser = Order | Callable[..., Order | None]  # the same, fixed or computed

ARGS_BYTES_MAX: Final = 1 << 20
RESULT_BYTES_MAX: Final = 1 << 20
BATCH_MAX: Final = 1000
BATCH_WITHIN_SECONDS: Final = 0.2
BATCH_WITHIN_SECONDS_MAX: Final = 60.0
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


class TaskOptions(Struct, frozen=True, kw_only=True):
    """How a task's jobs are stored and run. `make` takes what users write; the fields are the validated forms."""

    name: str = ""
    queue: str = "default"
    priority: int = 0
    group: Chooser | None = None
    order: OrderChooser | None = None
    key: Chooser | None = None
    on_conflict: OnConflict = "keep"
    key_scope: KeyScope = "queue"
    key_until: KeyUntil | None = None  # None: implied by on_conflict
    window: float | None = None
    wait: float | None = None
    wait_max: float | None = None
    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    timeout: float | None = None
    on_timeout: OnTimeout = "retry"
    max_stalls: int = 3
    max_starts: int | None = None
    isolation: Literal["none", "process"] = "none"
    memory_limit: int | None = None
    cpu_limit: float | None = None
    file_limit: int | None = None
    on_exit: Literal["crash", "failure"] = "crash"
    expires: float | None = None
    on_expire: OnExpire = "bury"
    retain: float = 86400.0
    remove: bool = False  # once it has succeeded
    retain_count: int | None = None
    retain_dead: float | None = None
    retain_dead_count: int | None = None
    rate: Rate | None = None
    limit: int | None = None
    aliases: tuple[str, ...] = ()
    catch_all: bool = False  # it gets the jobs of all tasks that the app does not know
    subscribes: tuple[str, ...] = ()  # topics: `app.publish` makes a job of this task
    revive: Revival | None = None
    batch: int | None = None  # up to this many jobs in one call of the handler; None: one job per call
    batch_within: float | None = None  # how long the first of them waits for others; None: the default
    batch_of: Callable[..., Any] | None = None  # what its calls' arguments are made into

    @classmethod
    def make(cls, **given: Any) -> TaskOptions:
        """Validate and normalise options as users pass them to `@app.task`."""
        from .families import ungrouped  # which knows this module

        return cls().changed(**ungrouped(given))

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
        if checked.get("group", self.group) is None and self.group is not None:
            checked = {"order": None, **checked}
        if checked.get("key", self.key) is None and self.key is not None:
            checked = {**FRESH_BY_KEY, **checked}
        made = replace(self, **checked)
        if made.isolation != "process" and any(getattr(made, name) is not None for name in LIMITS):
            raise ConfigurationError(
                "memory_limit=, cpu_limit= and file_limit= need a separate process for the job. "
                'Say isolation="process" too.'
            )
        if made.isolation != "process" and made.on_exit != "crash":
            raise ConfigurationError('on_exit= needs a separate process for the job. Say isolation="process" too.')
        check_holding(made)
        _check_batch(made)
        _check_catch_all(made)
        if made.remove and made.window is not None:
            raise ConfigurationError(
                "remove= and window= exclude each other: a window is held by the job, which must stay until it ends."
            )
        if made.order is not None and made.group is None:
            raise ConfigurationError("order= is a job's place among those of its group. Give group= too.")
        return made

    def within(self, timeout: float) -> TaskOptions:
        """These options with this timeout, if they have none."""
        return self if self.timeout is not None else replace(self, timeout=timeout)

    def for_call(self, stored: bytes | None) -> TaskOptions:
        """These options with those that `.using` set for one job, as stored with it."""
        if stored is None:
            return self
        try:
            said = msgspec.json.decode(stored, type=CallOptions)
        except (msgspec.MsgspecError, RecursionError):  # written by a newer version: the task's own options apply
            return self
        changes = said.changes(self.retry)
        return replace(self, **changes) if changes else self  # headers change no option

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


def _check_batch(options: TaskOptions) -> None:
    if options.batch is None:
        if options.batch_within is not None or options.batch_of is not None:
            raise ConfigurationError("batch_within= and batch_of= belong to batch handlers. Give batch= too.")
    elif options.isolation == "process":
        raise ConfigurationError(
            'batch= and isolation="process" exclude each other: an isolated job is alone in its process.'
        )


def _check_catch_all(options: TaskOptions) -> None:
    """Reject what the store or the worker decides by a task's name before a handler is chosen."""
    if not options.catch_all:
        return
    given = [name for name in ("limit", "rate", "batch") if getattr(options, name) is not None]
    if given or options.isolation == "process":
        raise ConfigurationError(
            f"catch_all= and {given[0] if given else 'isolation'}= exclude each other: the jobs it gets are of other "
            "tasks, and limits, rates, batches and isolation are tied to a task's name."
        )


def _batch_within(value: Any) -> float:
    seconds = to_seconds(value, "batch_within=")
    if seconds > BATCH_WITHIN_SECONDS_MAX:
        raise ConfigurationError(
            f"batch_within= is at most {BATCH_WITHIN_SECONDS_MAX:g} s, not {seconds:g}: meanwhile the jobs wait in a "
            "worker, and no other worker can take them."
        )
    return seconds


def _yes_or_no(what: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{what} takes True or False, not {shown(value)}.")
        return value

    return check


def _batch_of(value: Any) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise ConfigurationError(
            f"batch_of= takes what makes one call's arguments, such as a dataclass, not {shown(value)}."
        )
    return value  # type: ignore[no-any-return]


def _chooser(what: str) -> Callable[[Any], Chooser | None]:
    def check(value: Any) -> Chooser | None:
        if value is None or callable(value):
            return value  # type: ignore[no-any-return]
        return check_name(value, what)

    return check


def order_number(value: object, what: str = "order=") -> int:
    """A job's place in its group as a number: a whole number, or the microseconds since 1970 of an aware datetime."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(f"{what} takes an aware datetime, such as datetime.now(UTC), not a naive one.")
        value = (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} takes a whole number or an aware datetime, not {shown(value)}.")
    if abs(value) > ORDER_MAX:
        raise ConfigurationError(f"{what} must be from {-ORDER_MAX} to {ORDER_MAX}, not {value}.")
    return value


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _names(what: str, option: str) -> Callable[[Any], tuple[str, ...]]:
    return lambda value: tuple(check_name(entry, what) for entry in check_list(value, option))


_TASK_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda value: check_name(value, "task name"),
    "queue": lambda value: queue_name(value),
    "priority": lambda value: whole(value, "priority=", -PRIORITY_MAX, PRIORITY_MAX),
    "group": _chooser("group"),
    "order": lambda value: value if value is None or callable(value) else order_number(value),
    "key": _chooser("key"),
    "on_conflict": lambda value: one_of(value, "on_conflict=", get_args(OnConflict)),
    "key_scope": lambda value: one_of(value, "key_scope=", get_args(KeyScope)),
    "key_until": lambda value: None if value is None else one_of(value, "key_until=", get_args(KeyUntil)),
    "window": optional_seconds("window=", 0.001),
    "wait": optional_seconds("wait=", 0.001),
    "wait_max": optional_seconds("wait_max=", 0.001),
    "retry": as_policy,
    "timeout": optional_seconds("timeout=", 0.001),
    "on_timeout": lambda value: one_of(value, "on_timeout=", get_args(OnTimeout)),
    "max_stalls": lambda value: whole(value, "max_stalls=", 0, 1_000_000),
    "max_starts": optional_whole("max_starts=", 1, COUNT_MAX),
    "isolation": lambda value: one_of(value, "isolation=", ("none", "process")),
    "memory_limit": optional_whole("memory_limit=", MEMORY_BYTES_MIN),
    "cpu_limit": optional_seconds("cpu_limit=", 0.001),
    "file_limit": optional_whole("file_limit=", 0),
    "on_exit": lambda value: one_of(value, "on_exit=", ("crash", "failure")),
    "expires": optional_seconds("expires=", 0.001),
    "on_expire": lambda value: one_of(value, "on_expire=", get_args(OnExpire)),
    "retain": lambda value: to_seconds(value, "retain="),
    "remove": _yes_or_no("remove="),
    "retain_count": optional_whole("retain_count=", 0, COUNT_MAX),
    "retain_dead": optional_seconds("retain_dead=", 0.0),
    "retain_dead_count": optional_whole("retain_dead_count=", 0, COUNT_MAX),
    "rate": optional_rate,
    "limit": optional_whole("limit=", 1, COUNT_MAX),
    "aliases": _names("alias", "aliases="),
    "catch_all": _yes_or_no("catch_all="),
    "subscribes": _names("topic", "subscribes="),
    "revive": check_revival,
    "batch": optional_whole("batch=", 1, BATCH_MAX),
    "batch_within": lambda value: None if value is None else _batch_within(value),
    "batch_of": _batch_of,
}


# ----------------------------------------------------------------------------------------------------------------------
# Task options that `.using` sets for one job and that apply when it runs, as stored with the job. Options written by
# another version that this one cannot read are ignored: the task's own options apply.


CALL_OPTIONS: Final = frozenset({"retry", "timeout", "on_timeout", "retain", "remove", "max_starts"})


class StoredRetry(Struct, frozen=True, omit_defaults=True):
    """The numbers of a retry policy given for one call; which errors are retried is up to the task."""

    limit: int | None = None
    base: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.2
    delays: tuple[float, ...] = ()
    step: float = 0.0

    def policy(self, own: RetryPolicy) -> RetryPolicy:
        return RetryPolicy(
            self.limit,
            self.base,
            self.factor,
            self.cap,
            self.jitter,
            own.on,
            own.never,
            delays=self.delays,
            step=self.step,
        )


class CallOptions(Struct, frozen=True, omit_defaults=True):
    """Task options given for one call only, as stored with the job."""

    retry: StoredRetry | None = None
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    retain: float | None = None
    max_starts: int | None = None
    on_timeout: OnTimeout | None = None
    remove: bool | None = None
    headers: dict[str, str] = {}
    by: str = ""  # who enqueued it
    after: int = 0  # how many parents it has
    batch: str = ""  # the batch it belongs to

    def changes(self, own: RetryPolicy) -> dict[str, Any]:
        """The options that differ from the task's own."""
        found: dict[str, Any] = {}
        if self.retry is not None:
            found["retry"] = self.retry.policy(own)
        if self.timeout is not msgspec.UNSET:
            found["timeout"] = self.timeout
        if self.retain is not None:
            found["retain"] = self.retain
        if self.max_starts is not None:
            found["max_starts"] = self.max_starts
        if self.on_timeout is not None:
            found["on_timeout"] = self.on_timeout
        if self.remove is not None:
            found["remove"] = self.remove
        return found


def encode_call_options(
    options: TaskOptions,
    given: Iterable[str],
    headers: Mapping[str, str] = MappingProxyType({}),
    by: str = "",
    parents: int = 0,
) -> bytes | None:
    """Headers, who enqueues, the number of parents, and whichever of CALL_OPTIONS were given for one call;
    None if none were."""
    names = set(given) & CALL_OPTIONS
    if not names and not headers and not by and not parents:
        return None
    retry = None
    if "retry" in names:
        policy = options.retry
        if policy.backoff is not None or policy.on != (Exception,) or policy.never:
            raise ConfigurationError(
                "retry= for one call is stored with the job, so it takes numbers only. "
                "Set callables and exception classes where the task is defined."
            )
        numbers = {field: getattr(policy, field) for field in StoredRetry.__struct_fields__}
        retry = StoredRetry(**numbers)
    said = CallOptions(
        retry=retry,
        timeout=options.timeout if "timeout" in names else msgspec.UNSET,
        retain=options.retain if "retain" in names else None,
        max_starts=options.max_starts if "max_starts" in names else None,
        on_timeout=options.on_timeout if "on_timeout" in names else None,
        remove=options.remove if "remove" in names else None,
        headers=dict(headers),
        by=by,
        after=parents,
    )
    return msgspec.json.encode(said)
