"""A queue's declaration: its limit and rate, its groups' rule, its aging, its shards.

Created by `app.queue`, stored when the store is next used; the latest declaration wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, get_args

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..names import check_queue
from ..rates import UNLIMITED, Rate
from ..records import SHARDS_MAX, GroupOrder, QueueRule
from .checks import COUNT_MAX, one_of, optional_rate, optional_whole, whole

AGING_SECONDS_MAX: Final = 86400.0  # beyond this, a hundred steps of priority can no longer be distinguished exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
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
    shards: int = 1

    def __post_init__(self) -> None:
        check_queue(self.name)
        put = object.__setattr__  # the dataclass is frozen
        optional_whole("limit=", 1, COUNT_MAX)(self.limit)
        put(self, "rate", optional_rate(self.rate))
        put(self, "group_rate", optional_rate(self.group_rate, "group_rate="))
        put(self, "aging", _aging(self.aging))
        whole(self.shards, "shards=", 1, SHARDS_MAX)
        optional_whole("group_limit=", 1, COUNT_MAX)(self.group_limit)
        one_of(self.group_order, "group_order=", get_args(GroupOrder))
        if self.group_limit != 1 and self.group_order == "strict":
            raise ConfigurationError(
                f"queue {self.name!r}: group_limit={self.group_limit} contradicts group_order='strict', which runs one "
                "job of a group at a time. Say group_order='relaxed'."
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
            aging=_aging(self.aging),
        )


def _aging(value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    seconds = to_seconds(value, "aging=", least=0.001)
    if seconds > AGING_SECONDS_MAX:
        raise ConfigurationError(f"aging= must be at most {AGING_SECONDS_MAX:g} s (a day), not {seconds:g}.")
    return seconds


def queue_name(queue: object) -> str:
    """The name of a queue given by name or by declaration."""
    return queue.name if isinstance(queue, QueueOptions) else check_queue(queue)
