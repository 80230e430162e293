"""Reads rules, overrides, buckets and pauses of queues, groups and tasks, the dump of everything, and work at hand.

Called by verbs.py for reads, by move.py for export and by the wake-ups of both backends. Never writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from ...records import Dump, Flow, GroupRecord, JobRecord, Override, Pause, QueueRecord, QueueRule, TaskRecord, TaskRule
from . import cron, rates, read
from .columns import SQL, rate_of, scope_of
from .rules import Rules

Said = TypeVar("Said", Pause, Override, Flow)

_PAUSE = ("reason", "by", "paused_at")  # columns of read.group_pause


def by_scope(said: Iterable[Said]) -> list[Said]:
    """In a stable order."""
    return sorted(said, key=lambda one: (one.queue or "", one.group or "", one.task or ""))


def pauses(cursor: sqlite3.Cursor) -> list[Pause]:
    return by_scope(
        Pause(**scope_of(*row[:3]), reason=row[3], by=row[4], paused_at=row[5])
        for row in cursor.execute(SQL["pause.all"])
    )


def overrides(cursor: sqlite3.Cursor) -> list[Override]:
    return by_scope(
        Override(**scope_of(*row[:3]), limit=row[3], rate=rate_of(row[4]), apart=row[5] == 1 or None)
        for row in cursor.execute(SQL["limit.all"])
    )


def flows(cursor: sqlite3.Cursor) -> list[Flow]:
    return by_scope(
        Flow(**scope_of(*row[:3]), spent_until=row[3], shut_until=row[4], wakes_at=row[5])
        for row in cursor.execute(SQL["slow_down.all"])
    )


def queue_rules(cursor: sqlite3.Cursor) -> list[QueueRule]:
    return [
        QueueRule(
            name=row[0],
            group_limit=max(1, row[1]),
            group_order="relaxed" if row[2] == "relaxed" else "strict",  # flaws lists other values
            limit=row[3],
            rate=rate_of(row[4]),
            group_rate=rate_of(row[5]),
            aging=row[6],
        )
        for row in cursor.execute(SQL["read.queues"])
    ]


def task_rules(cursor: sqlite3.Cursor) -> list[TaskRule]:
    return [
        TaskRule(
            name=row[0],
            limit=row[1],
            rate=rate_of(row[2]),
            apart=bool(row[3]),
            retain_count=row[4],
            retain_dead=row[5],
            retain_dead_count=row[6],
        )
        for row in cursor.execute(SQL["read.tasks"])
    ]


def queues(cursor: sqlite3.Cursor) -> list[QueueRecord]:
    rules = {rule.name: rule for rule in queue_rules(cursor)}
    paused = {one.queue: one for one in pauses(cursor) if one.queue is not None and one.group is None}
    said = {one.queue: one for one in overrides(cursor) if one.queue is not None and one.group is None}
    flowing = {one.queue: one for one in flows(cursor) if one.queue is not None and one.group is None}
    counts = read.count(cursor, None)
    records: list[QueueRecord] = []
    for name in sorted({*rules, *paused, *said, *flowing, *counts}):
        rule = rules.get(name) or QueueRule(name=name)
        records.append(
            QueueRecord(
                name=name,
                group_limit=rule.group_limit,
                group_order=rule.group_order,
                group_rate=rule.group_rate,
                aging=rule.aging,
                declared=name in rules,
                limit=rule.limit,
                rate=rule.rate,
                override=said.get(name),
                flow=flowing.get(name),
                pause=paused.get(name),
                counts={state.value: number for state, number in counts.get(name, {}).items()},
                oldest_due_at=cursor.execute(SQL["read.oldest_ready"], (name,)).fetchone()[0],
            )
        )
    return records


def group(cursor: sqlite3.Cursor, queue: str, name: str) -> GroupRecord:
    return _group(cursor, Rules(cursor), queue, name)


def _group(cursor: sqlite3.Cursor, rules: Rules, queue: str, name: str) -> GroupRecord:
    """One state at a time: each has its own index by group, so the cost is the size of the group."""
    paused = cursor.execute(SQL["read.group_pause"], (queue, name)).fetchone()
    counts = cursor.execute(SQL["read.group_counts"], (queue, name)).fetchall()
    limit, rate = rules.said(queue, name)
    bucket = rules.bucket(("group", queue, name))
    return GroupRecord(
        queue=queue,
        name=name,
        limit=rules.group_limit(queue, name),
        override=limit,
        rate=rules.group_rate(queue, name),
        rate_override=rate,
        flow=None if bucket is None else Flow(queue=queue, group=name, **bucket._asdict()),
        order=rules.order(queue, name),
        pause=None if paused is None else Pause(queue=queue, group=name, **dict(zip(_PAUSE, paused, strict=True))),
        counts={state: number for state, number in counts if number},
        head=_head(cursor, queue, name),
    )


def _head(cursor: sqlite3.Cursor, queue: str, name: str) -> str | None:
    """The job whose turn it is: running, else ready, else the head in its back-off, else the next one."""
    for statement in ("read.group_in_play", "read.group_waiting", "read.group_scheduled"):
        row = cursor.execute(SQL[statement], (queue, name)).fetchone()
        if row is not None:
            return str(row[0])
    return None


def groups(cursor: sqlite3.Cursor, queue: str | None, limit: int) -> list[GroupRecord]:
    """From name to name, without reading the jobs in between."""
    rules = Rules(cursor)
    found: list[GroupRecord] = []
    name, of = "", queue or ""
    while len(found) < limit:
        [name] = cursor.execute(SQL["read.next_group"], (of, name)).fetchone()
        if name is not None:
            found.append(_group(cursor, rules, of, name))
            continue
        [of] = cursor.execute(SQL["read.next_group_queue"], (of,)).fetchone()
        if of is None or queue is not None:
            break
        name = ""
    return found


def waking(cursor: sqlite3.Cursor, queues: Sequence[str]) -> bool:
    return any(cursor.execute(SQL["read.waking"], (queue,)).fetchone() is not None for queue in queues)


def tasks(cursor: sqlite3.Cursor) -> list[TaskRecord]:
    rules = {rule.name: rule for rule in task_rules(cursor)}
    said = {one.task: one for one in overrides(cursor) if one.task is not None}
    flowing = {one.task: one for one in flows(cursor) if one.task is not None}
    running = dict(cursor.execute(SQL["read.running_tasks"]).fetchall())
    return [
        TaskRecord(
            rule=rules.get(name) or TaskRule(name=name),
            declared=name in rules,
            override=said.get(name),
            flow=flowing.get(name),
            running=running.get(name, 0),
        )
        for name in sorted({*rules, *said, *flowing})
    ]


_BEYOND = ("token", "turn", "rank", "lane", "claim_call", "prune_at")


def dump(cursor: sqlite3.Cursor) -> Dump:
    """Everything, as plain values, in the shape of the records."""
    beyond = cursor.execute(SQL["read.job_beyond"]).fetchall()
    deadlines = {row[0]: row[1:] for row in cursor.execute(SQL["read.worker_beyond"])}
    # Whether a worker has expired depends on the time of the query; a dump must stay the same until something is
    # written.
    shown = [msgspec.structs.replace(one, running=0) for one in read.workers(cursor, float("-inf"), "")]
    tables: dict[str, list[dict[str, Any]]] = {
        "jobs": [
            _job(job) | dict(zip(_BEYOND, more, strict=True))
            for job, more in zip(read.all_jobs(cursor), beyond, strict=True)
        ],
        "letters": _all_plain(read.all_letters(cursor)),
        "workers": [
            _plain(one) | dict(zip(("deadline", "last_call"), deadlines[one.id], strict=True))
            for one in sorted(shown, key=lambda one: one.id)
        ],
        "queues": _all_plain(queue_rules(cursor)),
        "tasks": _all_plain(task_rules(cursor)),
        "overrides": _all_plain(overrides(cursor)),
        "flows": _all_plain(flows(cursor)),
        "entries": _all_plain(cron.entries(cursor)),
        "pauses": _all_plain(pauses(cursor)),
        "logs": [{"job_id": row[0], "at": row[1], "text": row[2]} for row in cursor.execute(SQL["read.all_logs"])],
    }
    pending = cursor.execute(SQL["rearrange.pending"]).fetchone() is not None
    return Dump(tables={name: tuple(rows) for name, rows in tables.items()}, rearranging=pending)


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


def _job(job: JobRecord) -> dict[str, Any]:
    plain = _plain(job)
    del plain["unreadable"]
    return plain


def _all_plain(records: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [_plain(record) for record in records]


def work_at_hand(cursor: sqlite3.Cursor, queues: Sequence[str], now: float) -> tuple[bool, float | None]:
    """Is something claimable in these queues now, and if not, when may something become claimable by itself?"""
    rules = Rules(cursor)
    paused = rules.paused_queues
    if rules.rearranging and rules.closed is None:
        return True, None  # every claim continues the rearrangement
    if any(queue not in paused and rates.claimable(cursor, rules, queue, now) for queue in queues):
        return True, None
    due, waking = cursor.execute(SQL["read.next_due"]).fetchone()
    times = (due, waking, rates.next_opening(cursor, rules, queues, now))
    next_due = min([time for time in times if time is not None], default=None)
    return next_due is not None and next_due <= now, next_due
