"""What a task's rule lets go: finished jobs and dead letters beyond a number or an age.

Called by operating.prune inside the critical section. It never removes a job finished within REMEMBER_SECONDS_MIN, one
whose key's window has not passed, or a letter whose job is live.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.lifecycle import State
from holdfast.records import REMEMBER_SECONDS_MIN, DeadLetter, TaskRule

from . import depending
from .rows import Row
from .store import Store


def prune(store: Store, limit: int, wall: float) -> int:
    """Remove up to `limit` jobs, task by task, the oldest first; returns how many."""
    gone = 0
    for _, rule in sorted(store.task_rules.items()):
        if rule.retain_count is not None:
            gone += _remove(store, _finished_beyond(store, rule, wall), limit - gone, wall)
        if rule.retain_dead is not None:
            gone += _remove(store, _dead_for_long(store, rule, wall), limit - gone, wall)
        if rule.retain_dead_count is not None:
            gone += _remove(store, _dead_beyond(store, rule, wall), limit - gone, wall)
    return gone


def _finished_beyond(store: Store, rule: TaskRule, wall: float) -> list[Row]:
    rows = [
        row for row in store.jobs.values() if row.task == rule.name and row.state in (State.SUCCEEDED, State.CANCELLED)
    ]
    rows.sort(key=lambda row: (row.finished_at or 0.0, row.seq))
    return [row for row in rows[: max(0, len(rows) - (rule.retain_count or 0))] if _may_go(row, wall)]


def _letters(store: Store, rule: TaskRule) -> list[DeadLetter]:
    letters = [letter for letter in store.letters.values() if letter.task == rule.name]
    return sorted(letters, key=lambda letter: (letter.failed_at, store.jobs[letter.id].seq))


def _dead_for_long(store: Store, rule: TaskRule, wall: float) -> list[Row]:
    before = wall - (rule.retain_dead or 0.0)
    return _dead(store, (letter for letter in _letters(store, rule) if letter.failed_at <= before), wall)


def _dead_beyond(store: Store, rule: TaskRule, wall: float) -> list[Row]:
    letters = _letters(store, rule)
    return _dead(store, letters[: max(0, len(letters) - (rule.retain_dead_count or 0))], wall)


def _dead(store: Store, letters: Iterable[DeadLetter], wall: float) -> list[Row]:
    rows = [store.jobs[letter.id] for letter in letters]
    return [row for row in rows if row.state is State.DEAD and _may_go(row, wall)]


def _may_go(row: Row, wall: float) -> bool:
    return (row.finished_at or 0.0) <= wall - REMEMBER_SECONDS_MIN and row.window_ends_at <= wall


def _remove(store: Store, rows: list[Row], limit: int, wall: float) -> int:
    going = [row for row in rows[: max(0, limit)] if depending.may_go(store, row, wall)]
    for row in going:
        if row.id in store.letter_of:
            store.drop_letter(row.logical)
        store.remove(row)
    return len(going)
