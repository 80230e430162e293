"""What code declares and operators say about queues, groups and tasks, and the buckets that keep their rates.

Called by records, options, backends and the face. Frozen data; it decides nothing and never does I/O.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from .rates import Rate

GroupOrder = Literal["strict", "relaxed"]

READY_PER_GROUP_MAX = 256  # a group has no more jobs ready at once, however high its limit
RULE_STEP_MAX = 1000  # jobs, and groups, that a changed rule rearranges in its own step; the rest follows piecewise
STAGGER_TICKS = 30 * 86_400_000_000  # between the turns of two ready jobs of one group: 30 days in microseconds
SERIAL_PREFIX = "one-at-a-time:"  # a group so named is strict whatever its queue says
GROUP_LOOKS_MAX = 64  # ready jobs a claim passes over, per lane, because their group has its share of the worker


class QueueRule(Struct, frozen=True, kw_only=True):
    """A queue's declared rule. strict implies group_limit 1. Only Redis Cluster heeds and keeps `shards`."""

    name: str
    group_limit: int = 1  # UNLIMITED: none
    group_order: GroupOrder = "strict"
    shards: int = 1
    limit: int | None = None  # jobs running at once, over all workers
    rate: Rate | None = None
    group_rate: Rate | None = None  # of each group
    aging: float | None = None  # seconds of being ready that weigh as much as one step of priority


class TaskRule(Struct, frozen=True, kw_only=True):
    """What the code declares of a task that the store must know."""

    name: str
    limit: int | None = None  # jobs running at once, over all queues and workers
    rate: Rate | None = None
    apart: bool = False  # its ready jobs have a lane of their own also without limit and rate
    retain_count: int | None = None  # succeeded and cancelled jobs kept at most
    retain_dead: float | None = None  # seconds a dead letter and its job are kept; None: for ever
    retain_dead_count: int | None = None  # dead letters kept at most


class Override(Struct, frozen=True, kw_only=True):
    """An operator's word on a queue, a group (queue and group) or a task; it beats the declared value until reset.

    UNSET leaves what is there, None resets to the declared value; UNLIMITED and NO_RATE lift a limit or rate.
    """

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    limit: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    apart: bool | UnsetType | None = UNSET  # of a task: True gives its ready jobs a lane of their own


class Flow(Struct, frozen=True, kw_only=True):
    """The bucket of a queue, a group or a task. It says nothing once both times have passed."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    spent_until: float = 0.0  # see rates.py
    shut_until: float = 0.0  # slowed down: nothing starts before
    wakes_at: float | None = None  # of a group whose waiting jobs the rate holds back: refill it then


class TaskRecord(Struct, frozen=True, kw_only=True):
    """A task as shown: what was declared of it, what an operator said, its bucket."""

    rule: TaskRule
    declared: bool = False
    override: Override | None = None
    flow: Flow | None = None
    running: int = 0
