"""A typed snapshot of a store: the input of the audit's rules.

Called by audit and by the demo's verdict. Built from `Backend.dump()` alone; never reads the store a second time, so
all rules judge the same instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from ..backends import formulas
from ..dependencies import Edge
from ..lifecycle import Failure, State
from ..rates import UNLIMITED, Rate
from ..records import Dump, GroupOrder, KeyScope, KeyUntil

GroupName = tuple[str, str]  # queue, group
Scope = tuple[str | None, str | None, str | None]  # queue, group, task
Tables = Mapping[str, tuple[Mapping[str, Any], ...]]


class JobRow(Struct, frozen=True, kw_only=True):
    """A job as in the dump, without its arguments and value: no rule reads those."""

    id: str
    seq: int
    task: str
    queue: str
    state: State
    priority: int = 0
    group: str | None = None
    key: str | None = None
    attempts: int = 0
    failures: int = 0
    stalls: int = 0
    shared_stalls: int = 0
    suspect: bool = False
    max_stalls: int = 3
    created_at: float = 0.0
    due_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    fence: int = 0
    worker: str | None = None
    held: bool = False
    cancel_requested: bool = False
    reason: str | None = None
    errors: tuple[Failure, ...] = ()
    key_scope: KeyScope = "queue"
    key_until: KeyUntil = "finished"
    key_window: float | None = None
    holds_key: bool = False
    token: str | None = None
    rank: int | None = None
    lane: int | None = None
    prune_at: float | None = None

    @property
    def in_play(self) -> bool:
        """Whether it takes one of its group's slots."""
        return self.state in (State.READY, State.RUNNING) or (self.state in (State.SCHEDULED, State.DEAD) and self.held)

    @property
    def maybe_replaced(self) -> bool:
        """A later enqueue of its key may have changed its group, priority or cap since it first ran."""
        return self.key is not None and self.due_at > self.created_at


class LetterRow(Struct, frozen=True, kw_only=True):
    """A dead letter as in the dump, without arguments and history."""

    id: str
    task: str
    queue: str
    key: str | None = None
    group: str | None = None
    failure_count: int = 0
    first_failed_at: float = 0.0
    failed_at: float = 0.0
    revived_at: float | None = None

    @property
    def logical(self) -> tuple[str, str, str]:
        """The logical job it belongs to."""
        return (self.queue, self.task, f"key {self.key}" if self.key is not None else f"id {self.id}")


class QueueRow(Struct, frozen=True, kw_only=True):
    """A declared queue's rule."""

    name: str
    group_limit: int = 1
    group_order: GroupOrder = "strict"
    shards: int = 1
    limit: int | None = None
    rate: Rate | None = None
    group_rate: Rate | None = None


class TaskRow(Struct, frozen=True, kw_only=True):
    """A declared task's rule, as far as it affects what may start."""

    name: str
    limit: int | None = None
    rate: Rate | None = None
    apart: bool = False


class ScopeRow(Struct, frozen=True, kw_only=True):
    """Belongs to a queue, a group (queue and group) or a task."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None

    @property
    def scope(self) -> Scope:
        return (self.queue, self.group, self.task)

    def __str__(self) -> str:
        if self.task is not None:
            return f"task {self.task!r}"
        return f"queue {self.queue!r}" if self.group is None else f"group {self.group!r} of queue {self.queue!r}"


class OverrideRow(ScopeRow, frozen=True, kw_only=True):
    """An operator's override; None for what it does not set."""

    limit: int | None = None
    rate: Rate | None = None
    apart: bool | None = None
    weight: int | None = None


class FlowRow(ScopeRow, frozen=True, kw_only=True):
    """A GCRA state."""

    spent_until: float = 0.0
    shut_until: float = 0.0
    wakes_at: float | None = None


class EntryRow(Struct, frozen=True, kw_only=True):
    """A cron entry, without the job it creates."""

    name: str
    version: int = 0
    fired: int = 0
    skipped: int = 0


class GroupState(Struct, frozen=True, kw_only=True):
    """A group with its rule and its jobs, in seq order."""

    queue: str
    name: str
    order: GroupOrder
    limit: int  # effective while not paused
    most: int  # the widest limit that may have applied while its running jobs were claimed
    paused: bool
    jobs: tuple[JobRow, ...]
    rated: bool = False  # a rate is in force
    wakes: bool = False  # its refill time is set

    def __str__(self) -> str:
        return f"group {self.name!r} of queue {self.queue!r}"


class Picture(Struct, frozen=True, kw_only=True, dict=True):
    """All rows of one dump."""

    jobs: tuple[JobRow, ...]
    letters: tuple[LetterRow, ...]
    workers: frozenset[str]
    groups: tuple[GroupState, ...]
    paused_tasks: frozenset[str]
    queues: tuple[QueueRow, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    overrides: tuple[OverrideRow, ...] = ()
    flows: tuple[FlowRow, ...] = ()
    entries: tuple[EntryRow, ...] = ()
    edges: tuple[Edge, ...] = ()
    edge_counts: Mapping[str, tuple[int, int]] = {}  # by child: how many of its edges are stored as not met, and failed
    propagating: frozenset[str] = frozenset()  # parents whose edges are still to be updated
    with_steps: frozenset[str] = frozenset()  # jobs with stored steps
    freed: frozenset[str] = frozenset()  # jobs whose key an operator freed
    newest: float | None = None  # the latest time found in the store
    rearranging: bool = False  # a changed rule is still being applied; claims already obey it
    sharded: bool = False  # two jobs in different shards may have the same fence
    split_queues: frozenset[str] = frozenset()  # split into several shards, where a key is unique per shard

    @cached_property
    def tasks_apart(self) -> frozenset[str]:
        """Tasks whose ready jobs have a dedicated lane: by rule, override, effective limit or effective rate."""
        rules = {row.name: row for row in self.tasks}
        overrides = {row.task: row for row in self.overrides if row.task is not None}
        return frozenset(name for name in {*rules, *overrides} if _apart(rules.get(name), overrides.get(name)))

    def limits(self) -> Iterator[tuple[str, int]]:
        """Every limit, and what it applies to."""
        for queue in self.queues:
            yield f"the groups of queue {queue.name!r}", queue.group_limit
            if queue.limit is not None:
                yield f"queue {queue.name!r}", queue.limit
        for task in self.tasks:
            if task.limit is not None:
                yield f"task {task.name!r}", task.limit
        for override in self.overrides:
            if override.limit is not None:
                yield f"the override of {override}", override.limit

    def rate_of(self, flow: FlowRow) -> Rate | None:
        """The rate in force for that GCRA state."""
        override = next((row.rate for row in self.overrides if row.scope == flow.scope), None)
        if override is not None:
            return override
        if flow.task is not None:
            return next((row.rate for row in self.tasks if row.name == flow.task), None)
        rule = next((row for row in self.queues if row.name == flow.queue), None)
        return None if rule is None else rule.rate if flow.group is None else rule.group_rate

    def split_by(self, row: JobRow | LetterRow) -> str | None:
        """What distinguishes two holders of one key that may coexist: the groups of a split queue."""
        return row.group if row.queue in self.split_queues else None

    @cached_property  # rules look jobs up one by one, of stores with any number of them
    def by_id(self) -> Mapping[str, JobRow]:
        return {job.id: job for job in self.jobs}

    def strict_groups(self) -> Iterator[GroupState]:
        return (group for group in self.groups if group.order == "strict")


def picture_of(dump: Dump) -> Picture:
    """Convert a dump's tables into rows."""
    tables = dump.tables
    jobs = tuple(sorted(_rows(tables, "jobs", JobRow), key=lambda job: job.seq))
    queues = tuple(_rows(tables, "queues", QueueRow))
    overrides, flows = tuple(_rows(tables, "overrides", OverrideRow)), tuple(_rows(tables, "flows", FlowRow))
    paused = list(_pauses(tables))
    return Picture(
        jobs=jobs,
        letters=tuple(_rows(tables, "letters", LetterRow)),
        workers=frozenset(str(row["id"]) for row in tables.get("workers", ())),
        groups=tuple(_groups(jobs, queues, overrides, flows, {(queue, group) for queue, group, _ in paused if group})),
        paused_tasks=frozenset(task for _, _, task in paused if task),
        queues=queues,
        tasks=tuple(_rows(tables, "tasks", TaskRow)),
        overrides=overrides,
        flows=flows,
        entries=tuple(_rows(tables, "entries", EntryRow)),
        edges=tuple(_rows(tables, "edges", Edge)),
        edge_counts={row["child"]: (row["pending"], row["failed"]) for row in tables.get("dependents", ())},
        propagating=frozenset(row["parent"] for row in tables.get("propagating", ())),
        with_steps=frozenset(row["job_id"] for row in tables.get("steps", ())),
        freed=frozenset(row["job_id"] for row in tables.get("marks", ()) if row["kind"] == "free_key"),
        newest=_newest(jobs, tables),
        rearranging=dump.rearranging,
        sharded=dump.sharded,
        split_queues=frozenset(row.name for row in queues if row.shards > 1),
    )


def _newest(jobs: tuple[JobRow, ...], tables: Tables) -> float | None:
    times = [time for job in jobs for time in (job.created_at, job.started_at, job.finished_at) if time is not None]
    times += [row["renewed_at"] for row in tables.get("workers", ()) if row.get("renewed_at")]
    return max(times, default=None)


def _apart(rule: TaskRow | None, override: OverrideRow | None) -> bool:
    rule, override = rule or TaskRow(name=""), override or OverrideRow()
    limit = rule.limit if override.limit is None else override.limit
    rate = rule.rate if override.rate is None else override.rate
    apart = rule.apart or override.apart is True
    return apart or (limit is not None and limit < UNLIMITED) or (rate is not None and not rate.none)


def _rows(tables: Tables, table: str, kind: type[Any]) -> Iterator[Any]:
    # strict=False: stores without booleans write 0 and 1
    for row in tables.get(table, ()):
        yield msgspec.convert(dict(row), kind, strict=False, from_attributes=True)


def _pauses(tables: Tables) -> Iterator[tuple[str | None, str | None, str | None]]:
    """(queue, group, task) of each pause; some stores write kind and name instead."""
    for row in tables.get("pauses", ()):
        kind, name = row.get("kind"), row.get("name")
        if kind is None:
            yield row.get("queue"), row.get("group"), row.get("task")
        else:
            yield (row.get("queue"), name if kind == "group" else None, name if kind == "task" else None)


def _groups(
    jobs: tuple[JobRow, ...],
    queues: tuple[QueueRow, ...],
    overrides: tuple[OverrideRow, ...],
    flows: tuple[FlowRow, ...],
    paused: set[tuple[str | None, str | None]],
) -> Iterator[GroupState]:
    rules = {row.name: row for row in queues}
    by_scope = {row.scope: row for row in overrides}
    woken = {row.scope for row in flows if row.wakes_at is not None}
    members: dict[GroupName, list[JobRow]] = defaultdict(list)
    for job in jobs:
        if job.group is not None:
            members[job.queue, job.group].append(job)
    for name in sorted(members):
        queue, group = name
        rule, override = rules.get(queue) or QueueRow(name=queue), by_scope.get((*name, None)) or OverrideRow()
        order = formulas.group_order(group, rule.group_order)
        declared = formulas.group_limit(order, rule.group_limit, None, paused=False)
        limit = formulas.group_limit(order, rule.group_limit, override.limit, paused=False)
        rate = override.rate or rule.group_rate
        yield GroupState(
            queue=queue,
            name=group,
            order=order,
            limit=limit,
            most=max(limit, declared),
            paused=name in paused,
            jobs=tuple(members[name]),
            rated=rate is not None and not rate.none,
            wakes=(*name, None) in woken,
        )
