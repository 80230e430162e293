"""What may start now: counts running jobs, reads what buckets allow, and reports what holds ready jobs back.

Called by claim.py and lease.py inside a write transaction, and by read_rules.py for waits. It never writes.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable

from ...rates import UNLIMITED, Rate, allowed, opens_at
from .columns import LANE_APART, SQL, Place
from .rules import Bucket, Rules

_NEW = Bucket()


def apart_ready(cursor: sqlite3.Cursor, rules: Rules, queue: str) -> list[str]:
    """The `apart` tasks that have ready jobs in this queue, by name."""
    if not rules.tasks:
        return []
    # By the current rules: jobs of a task that was paused, or is no longer `apart`, may still be in its lane.
    found = cursor.execute(SQL["claim.apart_ready"], (queue,)).fetchall()
    return [task for (task,) in found if rules.lanes.get(task) == LANE_APART]


def bucket_room(rules: Rules, rate: Rate | None, place: Place, now: float) -> int:
    """How many starts a bucket allows now."""
    return UNLIMITED if rate is None else allowed(rate, (rules.bucket(place) or _NEW).spent_until, now)


class Running:
    """Running jobs that a limit counts; counted from the jobs on first use."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._counts: tuple[Counter[str], Counter[str]] | None = None

    def _counted(self) -> tuple[Counter[str], Counter[str]]:
        if self._counts is None:
            by_queue: Counter[str] = Counter()
            by_task: Counter[str] = Counter()
            for queue, task, number in self._cursor.execute(SQL["claim.running_counted"]):
                by_queue[queue] += number
                by_task[task] += number
            self._counts = by_queue, by_task
        return self._counts

    def of_queue(self, queue: str) -> int:
        return self._counted()[0][queue]

    def of_task(self, task: str) -> int:
        return self._counted()[1][task]


def queue_room(rules: Rules, running: Running, queue: str, now: float) -> int:
    """How many more jobs of a queue may start; 0 while it is slowed down."""
    place: Place = ("queue", queue, "")
    if (rules.bucket(place) or _NEW).shut_until > now:
        return 0
    rule = rules.queue(queue)
    by_limit = UNLIMITED if rule.limit >= UNLIMITED else rule.limit - running.of_queue(queue)
    return min(by_limit, bucket_room(rules, rule.rate, place, now))


def task_room(rules: Rules, running: Running, task: str, now: float) -> int:
    rule = rules.tasks[task]
    by_limit = UNLIMITED if rule.limit >= UNLIMITED else rule.limit - running.of_task(task)
    return min(by_limit, bucket_room(rules, rule.rate, ("task", "", task), now))


def claimable(cursor: sqlite3.Cursor, rules: Rules, queue: str, now: float) -> bool:
    """Whether a claim of this queue would lease something now. Ignores a pause of the queue."""
    common = cursor.execute(SQL["read.claimable"], (queue,)).fetchone() is not None
    if rules.holds_nothing:
        return common
    running = Running(cursor)
    if queue_room(rules, running, queue, now) <= 0:
        return False
    return common or any(task_room(rules, running, task, now) > 0 for task in apart_ready(cursor, rules, queue))


def next_opening(cursor: sqlite3.Cursor, rules: Rules, queues: Iterable[str], now: float) -> float | None:
    """When the first bucket or slow-down that holds back ready jobs of these queues lets one more start."""
    if not rules.any_flow:
        return None
    opens: list[float] = []
    paused = rules.paused_queues
    for queue in queues:
        if queue in paused:
            continue
        apart = apart_ready(cursor, rules, queue)
        if not apart and cursor.execute(SQL["read.claimable"], (queue,)).fetchone() is None:
            continue
        scopes: list[tuple[Place, Rate | None]] = [(("queue", queue, ""), rules.queue(queue).rate)]
        scopes += [(("task", "", task), rules.tasks[task].rate) for task in apart]
        for place, rate in scopes:
            bucket = rules.bucket(place) or _NEW
            until = bucket.shut_until
            if rate is not None and allowed(rate, bucket.spent_until, now) == 0:
                until = max(until, opens_at(rate, bucket.spent_until))
            if until > now:
                opens.append(until)
    return min(opens, default=None)
