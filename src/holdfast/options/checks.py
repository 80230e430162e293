"""A queue's options, and the validation that several option objects share, with the bounds for numbers.

Called by the options, the operator's half of the app, cron and the command line. Pure: a bad value raises a
ConfigurationError that names the option, a good one is returned in the form it is kept in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, get_args

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..names import check_dead_queue, check_queue, plain, renamed, shown
from ..rates import NO_RATE, UNLIMITED, Rate, parse_rate
from ..records import GROUP_WEIGHT_MAX, LIFO, SHARDS_MAX, GroupOrder, JobOrder, OnDead, QueueRule
from .special import RESET, Special

Duration = float | timedelta
COUNT_MAX: Final = UNLIMITED  # for limits: more than any store holds, less than any store's integers
PRIORITY_MAX: Final = 100
LIFTED: Final = "none"  # how people write on the command line that a limit or a rate is lifted


def whole(value: object, what: str, least: int, most: int | None = None) -> int:
    """`value` if it is an int in the range, else ConfigurationError naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ConfigurationError(f"{what} must be an int {span}, not {shown(value)}.")
    return int(value)  # an int of a subclass could not be stored


def one_of(value: object, what: str, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices, else ConfigurationError listing them."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigurationError(f"{what} must be one of {', '.join(map(repr, choices))}, not {shown(value)}.")
    return plain(value)


def optional_seconds(what: str, least: float) -> Callable[[Any], float | None]:
    return lambda value: None if value is None else to_seconds(value, what, least=least)


def optional_whole(what: str, least: int, most: int | None = None) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else whole(value, what, least, most)


def optional_rate(value: object, what: str = "rate=") -> Rate | None:
    """A declared rate, or None for no rate."""
    return None if value is None else parse_rate(value, what)


def said_limit(value: object, what: str) -> int | UnsetType | None:
    """An operator's limit: a number, UNLIMITED to lift the declared one, RESET to go back to it, UNSET to leave it."""
    value = _special(value)
    if value is RESET or value is UNSET:
        return None if value is RESET else UNSET
    if value is Special.UNLIMITED:
        return UNLIMITED
    if isinstance(value, str):
        raise ConfigurationError(f"{what} must be an int of at least 1, UNLIMITED or RESET, not {shown(value)}.")
    return whole(value, what, 1, COUNT_MAX)


def said_weight(value: object) -> int | UnsetType | None:
    """An operator's weight of a group: a number, or RESET."""
    if value is RESET or value is UNSET:
        return None if value is RESET else UNSET
    return whole(value, "weight=", 1, GROUP_WEIGHT_MAX)


def said_rate(value: object, what: str) -> Rate | UnsetType | None:
    """An operator's rate, like `said_limit`."""
    value = _special(value)
    if value is RESET or value is UNSET:
        return None if value is RESET else UNSET
    return NO_RATE if value is Special.UNLIMITED else parse_rate(value, what)


def _special(value: object) -> object:
    """The value, with former spellings as they are written now."""
    if value is None or value == LIFTED:
        new = RESET if value is None else Special.UNLIMITED
        renamed(f"limit(…, {value!r})", f"limit(…, holdfast.{new!r})", stacklevel=6)
        return new
    return value


# ----------------------------------------------------------------------------------------------------------------------
# A queue's declaration: its limit and rate, its groups' rule, its aging, its shards. Created by `app.queue`, stored
# when the store is next used; the latest declaration wins.


GROUP_PREFETCH_MAX: Final = 256
AGING_SECONDS_MAX: Final = 86400.0  # beyond this, a hundred steps of priority can no longer be distinguished exactly
ORDER_WINDOW_SECONDS_MAX: Final = 86400.0


class QueueOptions(Struct, frozen=True, kw_only=True):
    """A queue's declaration. `limit` and `rate` apply across all workers, `group_limit` and `group_rate` to each group.

    Only Redis Cluster uses `shards`; the other stores ignore it.
    """

    name: str
    limit: int | None = None
    rate: str | Rate | None = None
    group_limit: int | None = 1  # None: unlimited
    group_order: GroupOrder = "strict"
    group_rate: str | Rate | None = None
    aging: float | timedelta | None = None
    order: JobOrder = "fifo"  # in which jobs without a group are taken, within a priority
    shards: int = 1
    group_prefetch: int = 1  # of strict groups: consecutive jobs that a worker may lease together
    on_dead: OnDead = "go_on"  # "stop": a strict group stops at a job that dies until an operator acts
    order_window: float | timedelta | None = None  # how long a job with order= waits for lower ones of its group
    dead_queue: str | None = None  # the queue that gets a copy of every job that dies

    def __post_init__(self) -> None:
        check_queue(self.name)
        put = force_setattr  # it is frozen
        optional_whole("limit=", 1, COUNT_MAX)(self.limit)
        put(self, "rate", optional_rate(self.rate))
        put(self, "group_rate", optional_rate(self.group_rate, "group_rate="))
        put(self, "aging", _aging(self.aging))
        whole(self.shards, "shards=", 1, SHARDS_MAX)
        optional_whole("group_limit=", 1, COUNT_MAX)(self.group_limit)
        one_of(self.group_order, "group_order=", get_args(GroupOrder))
        whole(self.group_prefetch, "group_prefetch=", 1, GROUP_PREFETCH_MAX)
        if self.group_prefetch > 1 and self.group_order == "relaxed":
            raise ConfigurationError(
                f"queue {self.name!r}: group_prefetch={self.group_prefetch} is for group_order='strict'; jobs of a "
                "relaxed group need not wait for one another."
            )
        one_of(self.order, "order=", get_args(JobOrder))
        if self.order == "lifo" and self.aging is not None:
            raise ConfigurationError(
                f"queue {self.name!r}: aging= lets jobs move up with time; with order='lifo' the newest goes first. "
                "Choose one of them."
            )
        put(self, "order_window", _order_window(self.order_window))
        check_dead_queue(self.dead_queue, self.name)
        one_of(self.on_dead, "on_dead=", get_args(OnDead))
        if self.on_dead == "stop" and self.group_order == "relaxed":
            raise ConfigurationError(
                f"queue {self.name!r}: on_dead='stop' is for group_order='strict'; jobs of a relaxed group need not "
                "wait for one another."
            )
        if self.group_limit != 1 and self.group_order == "strict":
            raise ConfigurationError(
                f"queue {self.name!r}: group_limit={self.group_limit} contradicts group_order='strict', which runs one "
                "job of a group at a time. Set group_order='relaxed'."
            )

    def rule(self) -> QueueRule:
        return QueueRule(
            name=self.name,
            group_limit=UNLIMITED if self.group_limit is None else self.group_limit,
            group_order=self.group_order,
            shards=self.shards,
            limit=self.limit,
            rate=optional_rate(self.rate),
            group_rate=optional_rate(self.group_rate, "group_rate="),
            aging=LIFO if self.order == "lifo" else _aging(self.aging),
            group_prefetch=self.group_prefetch,
            on_dead=self.on_dead,
            order_window=_order_window(self.order_window),
            dead_queue=self.dead_queue,
        )


def _aging(value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    seconds = to_seconds(value, "aging=", least=0.001)
    if seconds > AGING_SECONDS_MAX:
        raise ConfigurationError(f"aging= must be at most {AGING_SECONDS_MAX:g} s (a day), not {seconds:g}.")
    return seconds


def _order_window(value: float | timedelta | None) -> float | None:
    seconds = optional_seconds("order_window=", 0.001)(value)
    if seconds is not None and seconds > ORDER_WINDOW_SECONDS_MAX:
        raise ConfigurationError(
            f"order_window= must be at most {ORDER_WINDOW_SECONDS_MAX:g} s (a day), not {seconds:g}."
        )
    return seconds


def queue_name(queue: object) -> str:
    """The name of a queue given by name or by declaration."""
    return queue.name if isinstance(queue, QueueOptions) else check_queue(queue)
