"""What is in force at one instant of a transaction: limits, rates, lanes, and the buckets' numbers.

Called by every verb that places, refills or claims jobs, and by the read side. It reads a rule on first use; one
statement finds out which kinds of rules exist at all, so a store without them pays for nothing else. That statement
also reads what every verb needs: the seal, the counter, whether there are keys and dead letters. It never moves a job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from ...rates import UNLIMITED, Rate
from ...records import READY_PER_GROUP_MAX, SERIAL_PREFIX, GroupOrder
from .columns import LANE_APART, LANE_GROUPED, LANE_PARKED, LANE_UNGROUPED, SQL, Place, rate_of

_ANY = SQL["limit.any"]
_QUEUE = SQL["limit.queue"]
_OVERRIDE = SQL["limit.override"]
_FLOW = SQL["slow_down.flow"]


Kinds = tuple[int, int, int]  # whether there are any for queues, groups, tasks

_NO_KINDS: Kinds = (0, 0, 0)
_NOT_ALONE = 0  # a queue's groups are subject to more than their limit


class Queue(NamedTuple):
    """A queue's rule, with the operator's override applied."""

    strict: bool = True
    group_limit: int = 1
    group_rate: Rate | None = None
    aging: float | None = None
    limit: int = UNLIMITED
    rate: Rate | None = None


class Task(NamedTuple):
    """What limits a task."""

    limit: int
    rate: Rate | None


class Bucket(NamedTuple):
    """The numbers of a flow."""

    spent_until: float = 0.0
    shut_until: float = 0.0
    wakes_at: float | None = None


class Rules:
    """The rules as stored now. After writing rules, create a new one."""

    __slots__ = (
        "_cursor",
        "_group_overrides",
        "_group_pauses",
        "_lanes",
        "_limits",
        "_overrides",
        "_queue_flows",
        "_queue_overrides",
        "_queue_pauses",
        "_queues",
        "_task_pauses",
        "_tasks",
        "_tasks_said",
        "_trimmed",
        "any_flow",
        "any_key",
        "any_letter",
        "closed",
        "rearranging",
        "tick",
    )

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        pauses, overrides, tasks, self._queue_flows, *others = cursor.execute(_ANY).fetchone()
        self.any_flow, self.any_key, self.any_letter, self.rearranging, self.closed, self.tick = others
        paused: Kinds = cursor.execute(SQL["limit.kinds_paused"]).fetchone() if pauses else _NO_KINDS
        self._queue_pauses, self._group_pauses, self._task_pauses = paused
        said: Kinds = cursor.execute(SQL["limit.kinds_overridden"]).fetchone() if overrides else _NO_KINDS
        self._queue_overrides, self._group_overrides, task_overrides = said
        self._tasks_said = tasks or task_overrides
        self._queues: dict[str, Queue] = {}
        self._limits: dict[str, int] = {}
        self._overrides: dict[tuple[str, str], tuple[int | None, Rate | None]] = {}
        self._tasks: Mapping[str, Task] | None = None
        self._lanes: Mapping[str, int] | None = None
        self._trimmed: frozenset[str] | None = None

    @property
    def holds_nothing(self) -> bool:
        """No queue and no task is limited, rated, slowed down or `apart`: a claim need not check."""
        return self.queues_hold_nothing and not self._tasks_said

    @property
    def queues_hold_nothing(self) -> bool:
        """No queue is limited or rated, and nothing is slowed down."""
        return not (self._queue_flows or self._queue_overrides or self.any_flow)

    # ------------------------------------------------------------------ queues and groups

    @property
    def paused_queues(self) -> frozenset[str]:
        if not self._queue_pauses:
            return frozenset()
        return frozenset(row[0] for row in self._cursor.execute(SQL["limit.paused_queues"]))

    def queue(self, name: str) -> Queue:
        rule = self._queues.get(name)
        if rule is None:
            rule = self._queues[name] = self._read_queue(name)
        return rule

    def _read_queue(self, name: str) -> Queue:
        row = self._cursor.execute(_QUEUE, (name,)).fetchone()
        limit, rate = (None, None) if row is None else (row[4], rate_of(row[5]))
        if self._queue_overrides:
            said = self._override("queue", name, "")
            limit, rate = said[0] or limit, said[1] or rate
        limit = UNLIMITED if limit is None else limit
        if row is None:
            return Queue(limit=limit, rate=_held(rate))
        return Queue(row[0] == "strict", row[1], rate_of(row[2]), row[3], limit, _held(rate))

    def _override(self, kind: str, queue: str, name: str) -> tuple[int | None, Rate | None]:
        row = self._cursor.execute(_OVERRIDE, (kind, queue, name)).fetchone()
        return (None, None) if row is None else (row[0], rate_of(row[1]))

    @property
    def any_aging(self) -> bool:
        """Whether any queue may age its jobs."""
        return bool(self._queue_flows)

    def aging(self, queue: str) -> float | None:
        return self.queue(queue).aging if self._queue_flows else None

    def strict(self, queue: str, group: str) -> bool:
        return group.startswith(SERIAL_PREFIX) or self.queue(queue).strict

    def order(self, queue: str, group: str) -> GroupOrder:
        return "strict" if self.strict(queue, group) else "relaxed"

    def said(self, queue: str, group: str) -> tuple[int | None, Rate | None]:
        """An operator's override of a group: (limit, rate)."""
        if not self._group_overrides:
            return None, None
        said = self._overrides.get((queue, group))
        if said is None:
            said = self._overrides[queue, group] = self._override("group", queue, group)
        return said

    def group_limit(self, queue: str, group: str) -> int:
        """The effective limit: 0 while paused, 1 for strict, else the override, else the queue's."""
        if self._group_pauses and self._cursor.execute(SQL["limit.group_paused"], (queue, group)).fetchone():
            return 0
        if self.strict(queue, group):
            return 1
        return self.said(queue, group)[0] or self.queue(queue).group_limit

    def limit_alone(self, queue: str, group: str) -> int | None:
        """The limit, if nothing else (rate, aging) affects which jobs of this group are ready; else None."""
        if not self._group_pauses and not self._group_overrides:  # then all groups of the queue are alike
            limit = self._limits.get(queue)
            if limit is None:
                rule = self.queue(queue)
                alone = rule.aging is None and _held(rule.group_rate) is None
                limit = self._limits[queue] = (1 if rule.strict else rule.group_limit) if alone else _NOT_ALONE
            return None if limit == _NOT_ALONE else 1 if group.startswith(SERIAL_PREFIX) else limit
        if self.group_rate(queue, group) is not None or self.aging(queue) is not None:
            return None
        return self.group_limit(queue, group)

    def group_rate(self, queue: str, group: str) -> Rate | None:
        """The rate in force; None: there is none, or it was lifted."""
        return _held(self.said(queue, group)[1] or self.queue(queue).group_rate)

    def windowed(self, queue: str) -> bool:
        """Whether a claim may make room in a group: because of its rate, or of the bound on its ready jobs."""
        rule = self.queue(queue)
        return bool(self._group_overrides) or rule.group_rate is not None or rule.group_limit > READY_PER_GROUP_MAX

    # ------------------------------------------------------------------ tasks and lanes

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The `apart` tasks by name, with their limits and rates."""
        if self._tasks is None:
            self._tasks = self._read_tasks() if self._tasks_said else {}
        return self._tasks

    def _read_tasks(self) -> dict[str, Task]:
        declared = {row[0]: row[1:] for row in self._cursor.execute(SQL["limit.tasks_apart"])}
        said = {row[0]: row[1:] for row in self._cursor.execute(SQL["limit.task_overrides"])}
        tasks: dict[str, Task] = {}
        for name in sorted({*declared, *said}):
            limit, rate, apart = declared.get(name, (None, None, 0))
            limit_said, rate_said, apart_said = said.get(name, (None, None, None))
            task = Task(limit_said or limit or UNLIMITED, _held(rate_of(rate_said or rate)))
            if apart or apart_said or task.limit < UNLIMITED or task.rate is not None:
                tasks[name] = task
        return tasks

    @property
    def lanes(self) -> Mapping[str, int]:
        """The lane of every task whose ready jobs are not in the common lanes."""
        if self._lanes is None:
            lanes = dict.fromkeys(self.tasks, LANE_APART)
            if self._task_pauses:
                lanes.update((row[0], LANE_PARKED) for row in self._cursor.execute(SQL["limit.paused_tasks"]))
            self._lanes = lanes
        return self._lanes

    def lane_of(self, task: str, group: str | None) -> int:
        return self.lanes.get(task) or (LANE_UNGROUPED if group is None else LANE_GROUPED)

    @property
    def trimmed(self) -> frozenset[str]:
        """Tasks that keep only the newest N finished jobs."""
        if self._trimmed is None:
            found = self._cursor.execute(SQL["limit.tasks_trimmed"]) if self._tasks_said else ()
            self._trimmed = frozenset(row[0] for row in found)
        return self._trimmed

    # ------------------------------------------------------------------ buckets

    def bucket(self, place: Place) -> Bucket | None:
        """The numbers of a flow; None if there is no row."""
        if not self.any_flow:
            return None
        row = self._cursor.execute(_FLOW, place).fetchone()
        return None if row is None else Bucket(*row)


def age_shift(priority: int, aging: float | None) -> int:
    """By how many ticks a priority moves a turn forward in a queue with aging."""
    return 0 if aging is None else int(priority * aging * 1_000_000 // 1)


def _held(rate: Rate | None) -> Rate | None:
    """The rate if it limits anything, else None."""
    return None if rate is None or rate.none else rate
