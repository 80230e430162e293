"""Option objects: frozen, checked when they are made.

Called by the app, tasks, the worker and the command line. Pure. Durations come in as seconds or timedelta and are kept
as float seconds. What a later version brings is refused here by name, never ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from .clock import to_seconds
from .errors import ConfigurationError
from .names import check_list, check_name, check_queue
from .records import SHARDS_MAX, Conflict, Revival
from .retry import RetryPolicy, as_policy
from .rules import GroupOrder, QueueRule

Duration = float | timedelta
Chooser = str | Callable[..., str | None]  # a group or key: fixed, or computed from the arguments it names
OnFence = Literal["warn", "exit"]

ARGS_BYTES_MAX: Final = 1 << 20
RESULT_BYTES_MAX: Final = 1 << 20
PRIORITY_MAX: Final = 100
LIMITS: Final = ("memory_limit", "cpu_limit", "file_limit")
MEMORY_BYTES_MIN: Final = 32 << 20  # an interpreter with an app needs about this much for itself
COUNT_MAX: Final = 1_000_000_000  # of limits: more than any store holds, less than any store's integers


def refuse_later(what: str, given: bool) -> None:
    """Refuse an option that this version does not carry out yet."""
    if given:
        raise ConfigurationError(f"{what} is not available in this version. Leave it out.")


def whole(value: object, what: str, least: int, most: int | None = None) -> int:
    """`value` if it is an int in the range, else ConfigurationError naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ConfigurationError(f"{what} must be an int {span}, not {value!r}.")
    return value


def one_of(value: object, what: str, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices, else ConfigurationError listing them."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigurationError(f"{what} must be one of {', '.join(map(repr, choices))}, not {value!r}.")
    return value


def check_revival(value: object) -> Revival | None:
    """`revive=`: a Revival with sensible numbers, or None."""
    if value is None:
        return None
    if not isinstance(value, Revival):
        raise ConfigurationError(f"revive= takes a Revival(after=…, cycles=…) or None, not {type(value).__name__}.")
    whole(value.cycles, "Revival(cycles=…)", 1)
    if isinstance(value.factor, bool) or not isinstance(value.factor, int | float) or not 1 <= value.factor <= 1e6:
        raise ConfigurationError(f"Revival(factor=…) must be a number from 1 to 1e6, not {value.factor!r}.")
    return Revival(
        after=to_seconds(value.after, "Revival(after=…)"),
        factor=float(value.factor),
        cap=to_seconds(value.cap, "Revival(cap=…)"),
        cycles=value.cycles,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task's jobs are stored and run. `make` takes what users write; the fields are the checked forms."""

    name: str = ""
    queue: str = "default"
    priority: int = 0
    group: Chooser | None = None
    key: Chooser | None = None
    on_conflict: Conflict = "keep"
    retry: RetryPolicy = dataclasses.field(default_factory=RetryPolicy)
    timeout: float | None = None
    max_stalls: int = 3
    isolation: Literal["none", "process"] = "none"
    memory_limit: int | None = None
    cpu_limit: float | None = None
    file_limit: int | None = None
    expires: float | None = None
    retain: float = 86400.0
    rate: str | None = None
    limit: int | None = None
    aliases: tuple[str, ...] = ()
    revive: Revival | None = None

    @classmethod
    def make(cls, **given: Any) -> TaskOptions:
        """Check and normalise options as users give them to `@app.task`."""
        return cls().changed(**given)

    def changed(self, **given: Any) -> TaskOptions:
        """These options with some replaced, checked."""
        checked = {}
        for option, value in given.items():
            check = _TASK_CHECKS.get(option)
            if check is None:
                raise ConfigurationError(
                    f"there is no task option {option!r}. Known: {', '.join(sorted(_TASK_CHECKS))}."
                )
            checked[option] = check(value)
        made = dataclasses.replace(self, **checked)
        if made.isolation != "process" and any(getattr(made, name) is not None for name in LIMITS):
            raise ConfigurationError(
                "memory_limit=, cpu_limit= and file_limit= hold for a process of the job's own. "
                'Say isolation="process" too.'
            )
        return made

    def for_call(self, stored: bytes | None) -> TaskOptions:
        """These options with what `.using` said for one job alone, as stored with it."""
        if stored is None:
            return self
        try:
            said = msgspec.json.decode(stored, type=CallOptions)
        except msgspec.MsgspecError:  # written by a version that knows more: the task's own options hold
            return self
        changes: dict[str, Any] = {}
        if said.retry is not None:
            changes["retry"] = said.retry.policy(self.retry)
        if said.timeout is not msgspec.UNSET:
            changes["timeout"] = said.timeout
        if said.retain is not None:
            changes["retain"] = said.retain
        return dataclasses.replace(self, **changes)


class StoredRetry(Struct, frozen=True, omit_defaults=True):
    """The numbers of a retry policy given for one call; which errors are retried stays with the task."""

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
    """Task options given for one call alone, as stored with the job."""

    retry: StoredRetry | None = None
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    retain: float | None = None


def encode_call_options(options: TaskOptions, given: Iterable[str]) -> bytes | None:
    """Those of retry, timeout and retain that were given for one call, as JSON; None when none was."""
    names = set(given) & CALL_OPTIONS
    if not names:
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
    )
    return msgspec.json.encode(said)


CALL_OPTIONS: Final = frozenset({"retry", "timeout", "retain"})


def _chooser(what: str) -> Callable[[Any], Chooser | None]:
    def check(value: Any) -> Chooser | None:
        if value is None or callable(value):
            return value  # type: ignore[no-any-return]
        return check_name(value, what)

    return check


def _optional_seconds(what: str, least: float) -> Callable[[Any], float | None]:
    return lambda value: None if value is None else to_seconds(value, what, least=least)


def _later(what: str, unset: Any = None) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        refuse_later(what, value != unset)
        return value

    return check


def _optional_bytes(what: str, least: int) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else whole(value, what, least)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(check_name(entry, "alias") for entry in check_list(value, "aliases="))


_TASK_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda value: check_name(value, "task name"),
    "queue": lambda value: queue_name(value),
    "priority": lambda value: whole(value, "priority=", -PRIORITY_MAX, PRIORITY_MAX),
    "group": _chooser("group"),
    "key": _chooser("key"),
    "on_conflict": lambda value: one_of(value, "on_conflict=", get_args(Conflict)),
    "retry": as_policy,
    "timeout": _optional_seconds("timeout=", 0.001),
    "max_stalls": lambda value: whole(value, "max_stalls=", 0, 1_000_000),
    "isolation": lambda value: one_of(value, "isolation=", ("none", "process")),
    "memory_limit": _optional_bytes("memory_limit=", MEMORY_BYTES_MIN),
    "cpu_limit": _optional_seconds("cpu_limit=", 0.001),
    "file_limit": _optional_bytes("file_limit=", 0),
    "expires": _optional_seconds("expires=", 0.001),
    "retain": lambda value: to_seconds(value, "retain="),
    "rate": _later("rate="),
    "limit": _later("limit="),
    "aliases": _names,
    "revive": check_revival,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """A queue's declaration: its groups' rule, and into how many shards Redis Cluster splits it.

    Other stores are one piece: they ignore `shards`.
    """

    name: str
    limit: int | None = None
    rate: str | None = None
    group_limit: int = 1
    group_order: GroupOrder = "strict"
    group_rate: str | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        check_queue(self.name)
        refuse_later("a queue's limit=", self.limit is not None)
        refuse_later("a queue's rate=", self.rate is not None)
        refuse_later("a queue's group_rate=", self.group_rate is not None)
        whole(self.shards, "shards=", 1, SHARDS_MAX)
        whole(self.group_limit, "group_limit=", 1, COUNT_MAX)
        one_of(self.group_order, "group_order=", get_args(GroupOrder))
        if self.group_limit > 1 and self.group_order == "strict":
            raise ConfigurationError(
                f"queue {self.name!r}: group_limit={self.group_limit} contradicts group_order='strict', which runs one "
                "job of a group at a time. Say group_order='relaxed'."
            )

    def rule(self) -> QueueRule:
        return QueueRule(name=self.name, group_limit=self.group_limit, group_order=self.group_order, shards=self.shards)


def queue_name(queue: object) -> str:
    """A queue given by its name or by its declaration."""
    return queue.name if isinstance(queue, QueueOptions) else check_queue(queue)


SLOTS_DEFAULT: Final = 10
LEASE_DEFAULT: Final = 30.0
_SWEEP_OFF = (None, 0, False)


@dataclass(frozen=True, init=False, slots=True)
class WorkerOptions:
    """A worker's settings, validated together.

    With lease L, renewal every H, call timeout C and fence margin M it must hold that C ≤ H, L ≥ 3·H + C + M (two
    renewals may fail before the third still saves the lease) and M ≥ C + L/10 (time to stop handlers, and clock drift).
    Whatever is not given follows from the lease: H = L/6, C = L/10, M = L/5, sweeps every H.
    """

    queues: tuple[str, ...] | None  # None: the queues the app's tasks name
    slots_by_queue: Mapping[str, int]
    slots: int
    drain: bool
    lease: float
    grace: float
    on_fence: OnFence
    renew_every: float
    sweep_every: float | None  # None: no sweeps
    call_timeout: float
    fence_margin: float
    poll_every: float

    def __init__(
        self,
        *,
        queues: str | Iterable[str] | Mapping[str, int | None] | None = None,
        slots: int = SLOTS_DEFAULT,
        drain: bool = False,
        lease: Duration = LEASE_DEFAULT,
        grace: Duration = 30.0,
        on_fence: OnFence = "warn",
        renew_every: Duration | None = None,
        sweep_every: Duration | Literal["auto"] | None = "auto",
        call_timeout: Duration | None = None,
        fence_margin: Duration | None = None,
        poll_every: Duration | None = None,
    ) -> None:
        span = to_seconds(lease, "lease=", least=0.05)
        every = span / 6 if renew_every is None else to_seconds(renew_every, "renew_every=", least=0.001)
        timeout = (
            min(span / 10, every) if call_timeout is None else to_seconds(call_timeout, "call_timeout=", least=1e-3)
        )
        margin = span / 5 if fence_margin is None else to_seconds(fence_margin, "fence_margin=")
        check_lease(lease=span, renew_every=every, call_timeout=timeout, fence_margin=margin)
        names, caps = _worker_queues(queues)
        put = object.__setattr__  # the class is frozen for everyone else
        put(self, "queues", names)
        put(self, "slots_by_queue", MappingProxyType(caps))
        put(self, "slots", whole(slots, "slots=", 1, 100_000))
        put(self, "drain", bool(drain))
        put(self, "lease", span)
        put(self, "grace", to_seconds(grace, "grace="))
        put(self, "on_fence", one_of(on_fence, "on_fence=", get_args(OnFence)))
        put(self, "renew_every", every)
        put(self, "sweep_every", _sweep_every(sweep_every, every))
        put(self, "call_timeout", timeout)
        put(self, "fence_margin", margin)
        put(self, "poll_every", 1.0 if poll_every is None else to_seconds(poll_every, "poll_every=", least=0.001))


def _sweep_every(value: Duration | Literal["auto"] | None, renew_every: float) -> float | None:
    if isinstance(value, str):
        one_of(value, "sweep_every=", ("auto",))
        return renew_every
    if value in _SWEEP_OFF or value is None:
        return None
    return to_seconds(value, "sweep_every=", least=0.001)


def check_lease(*, lease: float, renew_every: float, call_timeout: float, fence_margin: float) -> None:
    """Refuse settings under which a live worker could lose a lease, or a dead one keep it."""
    slack = 1e-9 * lease  # the defaults meet the bounds exactly; rounding must not refuse them
    if call_timeout > renew_every + slack:
        raise ConfigurationError(
            f"call_timeout={call_timeout:g} s is longer than renew_every={renew_every:g} s: one hanging call skips "
            "a renewal. Lower call_timeout or raise renew_every."
        )
    least = 3 * renew_every + call_timeout + fence_margin
    if lease + slack < least:
        raise ConfigurationError(
            f"lease={lease:g} s is too short: 3 * renew_every + call_timeout + fence_margin = {least:g} s. "
            "Raise lease, or lower renew_every."
        )
    margin = call_timeout + lease / 10
    if fence_margin + slack < margin:
        raise ConfigurationError(
            f"fence_margin={fence_margin:g} s is too short: call_timeout + lease / 10 = {margin:g} s are needed to "
            "stop handlers before the lease passes on. Raise fence_margin or lower call_timeout."
        )


def _worker_queues(
    queues: str | Iterable[str] | Mapping[str, int | None] | None,
) -> tuple[tuple[str, ...] | None, dict[str, int]]:
    if queues is None:
        return None, {}
    caps: dict[str, int] = {}
    if isinstance(queues, Mapping):
        caps = {name: whole(cap, f"slots of queue {name!r}", 1) for name, cap in queues.items() if cap is not None}
    names = tuple(dict.fromkeys(queue_name(name) for name in check_list(queues, "queues=")))
    if not names:
        raise ConfigurationError("queues= is empty: a worker serves at least one queue. Leave it out for all of them.")
    return names, caps
