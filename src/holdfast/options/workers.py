"""A worker's settings, validated together.

Created by `app.work` and by `holdfast work`, read by every part of the engine. Frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Final, Literal, get_args

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..frozen import Frozen, put
from ..names import check_list, check_name, shown
from .checks import COUNT_MAX, PRIORITY_MAX, Duration, one_of, optional_whole, queue_name, whole

OnFence = Literal["warn", "exit"]
QueueOrder = Literal["fair", "strict"]
LogJobs = Literal["none", "failures", "all"]
Priorities = int | str | tuple[int, int]  # one priority, "0..10", or the lowest and the highest

SLOTS_DEFAULT: Final = 10
SLOTS_ASYNC: Final = 100  # of a runner of `holdfast work` whose tasks are all async
LEASE_DEFAULT: Final = 30.0
WEIGHT_MAX: Final = 1000
_SWEEP_OFF = (None, 0, False)


class WorkerOptions(Frozen):
    """A worker's settings, validated together.

    With lease L, renewal every H, call timeout C and fence margin M, these must hold: C ≤ H, L ≥ 3·H + C + M (two
    renewals may fail before the third still saves the lease) and M ≥ C + L/10 (time to stop handlers, and clock drift).
    Defaults derive from the lease: H = L/6, C = L/10, M = L/5, sweeps every H.
    """

    __slots__ = (
        "call_timeout",
        "drain",
        "fence_margin",
        "grace",
        "group_slots",
        "history",
        "history_minutes",
        "lease",
        "log_jobs",
        "name",
        "on_fence",
        "poll_every",
        "priority",
        "queue_order",
        "queues",
        "renew_every",
        "slots",
        "slots_by_queue",
        "sweep_every",
        "task_slots",
        "weights",
    )
    queues: tuple[str, ...] | None  # None: the queues of the app's tasks
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
    task_slots: Mapping[str, int]  # jobs of a task that this worker runs at once
    group_slots: int | None  # jobs of any one group that it runs at once
    priority: tuple[int, int] | None  # the lowest and highest priority of the jobs it takes; None: all
    weights: Mapping[str, int]  # relative shares of the queues; default 1
    queue_order: QueueOrder
    history: bool  # whether it records roll-ups and events
    history_minutes: float  # how long roll-ups of minutes are kept, in seconds
    name: str  # what people call it; several workers may share a name
    log_jobs: LogJobs | None  # which jobs get log lines; None: all, summed up while there are too many

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
        task_slots: Mapping[str, int] | None = None,
        group_slots: int | None = None,
        priority: Priorities | None = None,
        weights: Mapping[str, int] | None = None,
        queue_order: QueueOrder = "fair",
        history: bool = True,
        history_minutes: Duration = 86400.0,
        log_jobs: LogJobs | None = None,
        name: str = "",
    ) -> None:
        span = to_seconds(lease, "lease=", least=0.05)
        every = span / 6 if renew_every is None else to_seconds(renew_every, "renew_every=", least=0.001)
        timeout = (
            min(span / 10, every) if call_timeout is None else to_seconds(call_timeout, "call_timeout=", least=1e-3)
        )
        margin = span / 5 if fence_margin is None else to_seconds(fence_margin, "fence_margin=")
        check_lease(lease=span, renew_every=every, call_timeout=timeout, fence_margin=margin)
        names, caps = _worker_queues(queues)
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
        put(self, "task_slots", MappingProxyType(_numbers(task_slots, "task_slots=", "task name", 100_000)))
        put(self, "group_slots", optional_whole("group_slots=", 1, COUNT_MAX)(group_slots))
        put(self, "priority", None if priority is None else _priorities(priority))
        put(self, "weights", MappingProxyType(_numbers(weights, "weights=", "queue name", WEIGHT_MAX)))
        put(self, "queue_order", one_of(queue_order, "queue_order=", get_args(QueueOrder)))
        put(self, "history", bool(history))
        put(self, "history_minutes", to_seconds(history_minutes, "history_minutes=", least=60.0))
        put(self, "log_jobs", None if log_jobs is None else one_of(log_jobs, "log_jobs=", get_args(LogJobs)))
        put(self, "name", check_name(name, "worker name") if name else "")
        _check_order(self)

    def with_slots(self, slots: int) -> WorkerOptions:
        """The same with another number of slots."""
        other = copy(self)
        put(other, "slots", slots)
        return other


def _sweep_every(value: Duration | Literal["auto"] | None, renew_every: float) -> float | None:
    if isinstance(value, str):
        one_of(value, "sweep_every=", ("auto",))
        return renew_every
    if value in _SWEEP_OFF or value is None:
        return None
    return to_seconds(value, "sweep_every=", least=0.001)


def check_lease(*, lease: float, renew_every: float, call_timeout: float, fence_margin: float) -> None:
    """Reject settings under which a live worker could lose a lease, or a dead one keep it."""
    slack = 1e-9 * lease  # the defaults meet the bounds exactly; rounding must not reject them
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
            "stop handlers before the lease expires. Raise fence_margin or lower call_timeout."
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


def _priorities(value: Priorities) -> tuple[int, int]:
    """`5`, `(0, 10)`, or a text such as "0..10", "1.." and "..-1", as the lowest and the highest priority."""
    ends: Sequence[object] = value if isinstance(value, tuple | list) else (value, value)
    if isinstance(value, str):
        low, dots, high = value.replace(" ", "").partition("..")
        ends = low or -PRIORITY_MAX, (high or PRIORITY_MAX) if dots else low
    try:
        lowest, highest = (int(end) if isinstance(end, str) else end for end in ends)
    except ValueError:
        lowest = highest = None
    if lowest is None:
        raise ConfigurationError(f'priority= takes a number or a range such as "0..10", not {shown(value)}.')
    numbers = [whole(end, "priority=", -PRIORITY_MAX, PRIORITY_MAX) for end in (lowest, highest)]
    if numbers != sorted(numbers):
        raise ConfigurationError(f"priority= goes from the lowest to the highest, so {shown(value)} is not a range.")
    return numbers[0], numbers[1]


def _numbers(given: Mapping[str, int] | None, what: str, named: str, most: int) -> dict[str, int]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} takes names with numbers, such as {{'pdf': 2}}, not {shown(given)}.")
    return {check_name(name, named): whole(number, f"{what} of {name!r}", 1, most) for name, number in given.items()}


def _check_order(options: WorkerOptions) -> None:
    """Weights must name served queues; a strict order needs explicit queues."""
    if options.queue_order == "strict":
        if options.weights:
            raise ConfigurationError("weights= and queue_order='strict' exclude each other. Give one of them.")
        if options.queues is None:
            raise ConfigurationError("queue_order='strict' needs queues=: it serves them in the order given there.")
    unserved = [] if options.queues is None else [name for name in options.weights if name not in options.queues]
    if unserved:
        raise ConfigurationError(f"weights= names queue {unserved[0]!r}, which is not among queues=. Add it there.")
