"""One consistent picture of a store, typed: what the audit's rules look at.

Called by audit and by the demo's verdict. Made from `Backend.dump()` alone; never asks the store a second time, so
every rule judges the same instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..lifecycle import Failure, State
from ..records import Dump
from ..rules import GroupOrder

GroupName = tuple[str, str]  # queue, group


class JobRow(Struct, frozen=True, kw_only=True):
    """A job as the dump shows it, without its arguments and value: no rule looks at those."""

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
    token: str | None = None
    lane: int | None = None
    prune_at: float | None = None

    @property
    def in_play(self) -> bool:
        """Takes one of its group's places."""
        return self.state in (State.READY, State.RUNNING) or (self.state is State.SCHEDULED and self.held)

    @property
    def maybe_replaced(self) -> bool:
        """A later enqueue of its key may have given it another group, priority or cap since it first ran."""
        return self.key is not None and self.due_at > self.created_at


class LetterRow(Struct, frozen=True, kw_only=True):
    """A dead letter as the dump shows it, without arguments and history."""

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


class GroupState(Struct, frozen=True, kw_only=True):
    """A group with its rule and its jobs, in seq order."""

    queue: str
    name: str
    order: GroupOrder
    limit: int  # effective while not paused
    most: int  # the widest limit that may have held while its running jobs were claimed
    paused: bool
    jobs: tuple[JobRow, ...]

    def __str__(self) -> str:
        return f"group {self.name!r} of queue {self.queue!r}"


class Picture(Struct, frozen=True, kw_only=True):
    """All rows of one dump."""

    jobs: tuple[JobRow, ...]
    letters: tuple[LetterRow, ...]
    workers: frozenset[str]
    groups: tuple[GroupState, ...]
    paused_tasks: frozenset[str]
    sharded: bool = False  # two jobs in different shards may have the same fence
    split_queues: frozenset[str] = frozenset()  # in several shards: there a key is unique among the jobs of a shard

    def split_by(self, row: JobRow | LetterRow) -> str | None:
        """What tells two of one key apart although both may be there: the groups of a split queue."""
        return row.group if row.queue in self.split_queues else None

    @property
    def by_id(self) -> Mapping[str, JobRow]:
        return {job.id: job for job in self.jobs}

    def strict_groups(self) -> Iterator[GroupState]:
        return (group for group in self.groups if group.order == "strict")


def picture_of(dump: Dump) -> Picture:
    """Read a dump's tables into rows."""
    tables = dump.tables
    jobs = tuple(sorted(_rows(tables, "jobs", JobRow), key=lambda job: job.seq))
    return Picture(
        jobs=jobs,
        letters=tuple(_rows(tables, "letters", LetterRow)),
        workers=frozenset(str(row["id"]) for row in tables.get("workers", ())),
        groups=tuple(_groups(jobs, tables)),
        paused_tasks=frozenset(task for _, _, task in _pauses(tables) if task),
        sharded=dump.sharded,
        split_queues=frozenset(row.name for row in _rows(tables, "queues", QueueRow) if row.shards > 1),
    )


def _rows(tables: Mapping[str, tuple[Mapping[str, Any], ...]], table: str, kind: type[Any]) -> Iterator[Any]:
    # strict=False: stores without booleans write 0 and 1
    for row in tables.get(table, ()):
        yield msgspec.convert(dict(row), kind, strict=False, from_attributes=True)


def _pauses(tables: Mapping[str, tuple[Mapping[str, Any], ...]]) -> Iterator[tuple[str | None, str | None, str | None]]:
    """(queue, group, task) of each pause; a store may spell it by kind and name instead."""
    for row in tables.get("pauses", ()):
        kind, name = row.get("kind"), row.get("name")
        if kind is None:
            yield row.get("queue"), row.get("group"), row.get("task")
        else:
            yield (row.get("queue"), name if kind == "group" else None, name if kind == "task" else None)


def _groups(jobs: tuple[JobRow, ...], tables: Mapping[str, tuple[Mapping[str, Any], ...]]) -> Iterator[GroupState]:
    rules: dict[str, QueueRow] = {row.name: row for row in _rows(tables, "queues", QueueRow)}
    overrides: dict[GroupName, int] = {
        (row["queue"], row["name"]): row.get("override") or row["group_limit"] for row in tables.get("groups", ())
    }
    paused = {(queue, group) for queue, group, _ in _pauses(tables) if group}
    members: dict[GroupName, list[JobRow]] = defaultdict(list)
    for job in jobs:
        if job.group is not None:
            members[job.queue, job.group].append(job)
    for name in sorted(members):
        rule = rules.get(name[0]) or QueueRow(name=name[0])
        declared = 1 if rule.group_order == "strict" else rule.group_limit
        limit = declared if rule.group_order == "strict" else overrides.get(name, declared)
        yield GroupState(
            queue=name[0],
            name=name[1],
            order=rule.group_order,
            limit=limit,
            most=max(limit, declared),
            paused=name in paused,
            jobs=tuple(members[name]),
        )
