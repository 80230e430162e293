"""The rules that code and operators set for queues, groups and tasks: declare, limit, slow_down, pause, resume.

Called by verbs.py inside a write transaction. A changed rule is stored with a note of what it has to rearrange, and the
first `step` jobs and groups are rearranged at once; rearrange.py continues with the rest (R10). A call that puts a
limit in force also flags the running jobs, so that they are counted: their number is bounded by the slots of the
workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import UNSET

from ...rates import UNLIMITED
from ...records import Override, Pause, QueueRule, TaskRule
from ..validate import check_limit, strict_limit
from . import rearrange
from .columns import SQL, Place, place_of, rate_text
from .transaction import Transaction


def declare(tx: Transaction, rules: Sequence[QueueRule], tasks: Sequence[TaskRule], step: int) -> None:
    for rule in rules:
        check_limit(rule.group_limit, f"group_limit of queue {rule.name!r}")
        check_limit(rule.limit, f"limit of queue {rule.name!r}")
    for task in tasks:
        check_limit(task.limit, f"limit of task {task.name!r}")
    changed = [*[_declare_task(tx, task) for task in tasks], *[_declare_queue(tx, rule) for rule in rules]]
    if any(changed):
        _end(tx, step)


def _end(tx: Transaction, step: int) -> None:
    """Do a bounded part of the rearrangement."""
    if tx.rules.rearranging:
        rearrange.carry_on(tx, step)
    tx.close()


def queue_row(rule: QueueRule) -> tuple[Any, ...]:
    """A rule as stored; strict implies a group limit of 1."""
    group_limit = 1 if rule.group_order == "strict" else rule.group_limit
    place = (rule.name, group_limit, rule.group_order, rule.limit)
    return (*place, rate_text(rule.rate), rate_text(rule.group_rate), rule.aging)


def task_row(rule: TaskRule) -> tuple[Any, ...]:
    held_back = (rule.name, rule.limit, rate_text(rule.rate), rule.apart)
    return (*held_back, rule.retain_count, rule.retain_dead, rule.retain_dead_count)


def _declare_queue(tx: Transaction, rule: QueueRule) -> bool:
    """Store a rule; False if it is unchanged."""
    execute, row = tx.cursor.execute, queue_row(rule)
    before = execute(SQL["declare.rule"], (rule.name,)).fetchone()
    if before == row:
        return False
    tx.refuse_sealed()
    execute(SQL["declare.store"], row)
    tx.rules_changed()
    _count_queue(tx, rule.name)
    if _of_groups(before or queue_row(QueueRule(name=rule.name))) != _of_groups(row):
        rearrange.groups_changed(tx, rule.name)
    return True


def _of_groups(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The columns of a queue's rule that apply to its groups: limit, order, rate."""
    return row[1], row[2], row[5]


def _declare_task(tx: Transaction, rule: TaskRule) -> bool:
    """Store a rule; False if it is unchanged."""
    execute, row = tx.cursor.execute, task_row(rule)
    before = execute(SQL["declare.task"], (rule.name,)).fetchone()
    silent = rule == TaskRule(name=rule.name)
    if before == (None if silent else row):
        return False
    tx.refuse_sealed()
    with _lane_of(tx, rule.name):
        if silent:
            execute(SQL["declare.forget_task"], (rule.name,))
        else:
            execute(SQL["declare.store_task"], row)
    if rule.retain_count is not None and (before is None or before[4] is None):
        rearrange.counts_changed(tx)
    return True


@contextmanager
def _lane_of(tx: Transaction, task: str) -> Iterator[None]:
    """Wraps a change of a task's rules: afterwards its ready jobs are scheduled to move to their new lane."""
    before = tx.rules.lanes.get(task)
    yield
    tx.rules_changed()
    lane = tx.rules.lanes.get(task)
    if lane != before:
        rearrange.lane_changed(tx, before)
    rule = tx.rules.tasks.get(task)
    if rule is not None and rule.limit < UNLIMITED:
        tx.cursor.execute(SQL["limit.count_task"], (task,))


def _count_queue(tx: Transaction, queue: str) -> None:
    """If a limit is now in force, running jobs are counted, too."""
    if tx.rules.queue(queue).limit < UNLIMITED:
        tx.cursor.execute(SQL["limit.count_queue"], (queue,))


def limit(tx: Transaction, said: Override, step: int) -> None:
    tx.refuse_sealed()
    place = kind, queue, name = place_of(said, "a limit")
    check_limit(said.limit, f"the limit of {kind} {(queue if kind == 'queue' else name)!r}")
    if kind == "group" and isinstance(said.limit, int) and said.limit > 1 and tx.rules.strict(queue, name):
        raise strict_limit(queue, said.limit)
    if kind == "task":
        with _lane_of(tx, name):
            _store_override(tx, place, said)
    else:
        _store_override(tx, place, said)
        tx.rules_changed()
        if kind == "group":
            tx.touch(queue, name, changed=True)
        else:
            _count_queue(tx, queue)
    _end(tx, step)


def _store_override(tx: Transaction, place: Place, said: Override) -> None:
    """Merge an operator's override into the stored one; remove it if no value is left."""
    before = tx.cursor.execute(SQL["limit.override"], place).fetchone() or (None, None, None)
    most = before[0] if said.limit is UNSET else said.limit
    rate = before[1] if said.rate is UNSET else rate_text(said.rate)
    apart = before[2] if said.apart is UNSET else apart_word(said)
    if most is None and rate is None and apart is None:
        tx.cursor.execute(SQL["limit.remove"], place)
    else:
        tx.cursor.execute(SQL["limit.store"], (*place, most, rate, apart))


def apart_word(said: Override) -> int | None:
    """As stored: 1 or NULL. It applies to tasks only, and False is the same as not set."""
    return 1 if said.task is not None and said.apart is True else None


def slow_down(tx: Transaction, queue: str, seconds: float) -> float:
    tx.refuse_sealed()
    [(until,)] = tx.cursor.execute(SQL["slow_down.shut"], (queue, tx.now + seconds)).fetchall()
    return float(until)


def pause(tx: Transaction, wanted: Pause, step: int) -> None:
    tx.refuse_sealed()
    place = kind, queue, name = place_of(wanted, "a pause")
    if tx.cursor.execute(SQL["pause.there"], place).fetchone() is not None:
        return
    if kind == "task":
        with _lane_of(tx, name):
            _store_pause(tx, place, wanted)
    else:
        _store_pause(tx, place, wanted)
        tx.rules_changed()
        if kind == "group":
            tx.touch(queue, name, changed=True)
    _end(tx, step)


def _store_pause(tx: Transaction, place: Place, wanted: Pause) -> None:
    tx.cursor.execute(SQL["pause.store"], (*place, wanted.reason, wanted.by, tx.now))


def resume(tx: Transaction, wanted: Pause, step: int) -> bool:
    tx.refuse_sealed()
    place = kind, queue, name = place_of(wanted, "a pause")
    slowed = tx.cursor.execute(SQL["slow_down.open"], (*place, tx.now)).rowcount > 0
    if tx.cursor.execute(SQL["pause.there"], place).fetchone() is None and not slowed:
        return False
    if kind == "task":
        with _lane_of(tx, name):
            tx.cursor.execute(SQL["pause.remove"], place)
    else:
        tx.cursor.execute(SQL["pause.remove"], place)
        tx.rules_changed()
        if kind == "group":
            tx.touch(queue, name, changed=True)
    _end(tx, step)
    return True
