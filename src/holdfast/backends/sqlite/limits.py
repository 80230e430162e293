"""The rules that code and operators set for queues, groups and tasks: declare, limit, slow_down, pause, resume.

Called by backend.py inside a write transaction. A changed rule is stored with a note of what it has to rearrange, and
the first `step` jobs and groups are rearranged at once; `rearrange` continues with the rest (R10). A call that puts a
limit in force also flags the running jobs, so that they are counted: their number is bounded by the slots of the
workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from ...rates import UNLIMITED
from ...records import Override, Pause, QueueRule, TaskRule
from ..formulas import LANE_GROUPED, LANE_UNGROUPED
from ..seals import check_limit, check_rules, check_weight, place_of, strict_limit
from .codec import SQL, Place, encoded, rate_text
from .connection import Transaction


def declare(tx: Transaction, rules: Sequence[QueueRule], tasks: Sequence[TaskRule], step: int) -> None:
    check_rules(rules, tasks)
    changed = [*[_declare_task(tx, task) for task in tasks], *[_declare_queue(tx, rule) for rule in rules]]
    if any(changed):
        _end(tx, step)


def _end(tx: Transaction, step: int) -> None:
    """Do a bounded part of the rearrangement."""
    if tx.rules.rearranging:
        carry_on(tx, step)
    tx.close()


def queue_row(rule: QueueRule) -> tuple[Any, ...]:
    """A rule as stored; strict implies a group limit of 1."""
    group_limit = 1 if rule.group_order == "strict" else rule.group_limit
    place = (rule.name, group_limit, rule.group_order, rule.limit)
    rates = (rate_text(rule.rate), rate_text(rule.group_rate))
    return (*place, *rates, rule.aging, rule.on_dead, rule.order_window, rule.dead_queue)


def task_row(rule: TaskRule) -> tuple[Any, ...]:
    starts = (rule.name, rule.limit, rate_text(rule.rate), rule.apart)
    return (*starts, rule.retain_count, rule.retain_dead, rule.retain_dead_count)


_RETAIN_COUNT = 4  # in a task's row


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
        groups_changed(tx, rule.name)
    return True


def _of_groups(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The columns of a queue's rule that apply to its groups: limit, order, rate."""
    _, group_limit, group_order, _, _, group_rate, *_ = row
    return group_limit, group_order, group_rate


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
    if rule.retain_count is not None and (before is None or before[_RETAIN_COUNT] is None):
        counts_changed(tx)
    return True


@contextmanager
def _lane_of(tx: Transaction, task: str) -> Iterator[None]:
    """Wraps a change of a task's rules: afterwards its ready jobs are scheduled to move to their new lane."""
    before = tx.rules.lanes.get(task)
    yield
    tx.rules_changed()
    lane = tx.rules.lanes.get(task)
    if lane != before:
        lane_changed(tx, before)
    rule = tx.rules.tasks.get(task)
    if rule is not None and rule.limit < UNLIMITED:
        tx.cursor.execute(SQL["limit.count_task"], (task,))


def _count_queue(tx: Transaction, queue: str) -> None:
    """If a limit is now in force, running jobs are counted, too."""
    if tx.rules.queue(queue).limit < UNLIMITED:
        tx.cursor.execute(SQL["limit.count_queue"], (queue,))


def limit(tx: Transaction, override: Override, step: int) -> None:
    tx.refuse_sealed()
    place = kind, queue, name = place_of(override, "a limit")
    check_limit(override.limit, f"the limit of {kind} {(queue if kind == 'queue' else name)!r}")
    check_weight(override)
    if kind == "group" and isinstance(override.limit, int) and override.limit > 1 and tx.rules.strict(queue, name):
        raise strict_limit(queue, override.limit)
    if kind == "task":
        with _lane_of(tx, name):
            _store_override(tx, place, override)
    else:
        _store_override(tx, place, override)
        tx.rules_changed()
        if kind == "group":
            tx.touch(queue, name, changed=True)
        else:
            _count_queue(tx, queue)
    _end(tx, step)


def _store_override(tx: Transaction, place: Place, override: Override) -> None:
    """Merge an operator's override into the stored one; remove it if no value is left."""
    limit, rate, apart, weight = tx.cursor.execute(SQL["limit.override"], place).fetchone() or (None,) * 4
    limit = limit if override.limit is UNSET else override.limit
    rate = rate if override.rate is UNSET else rate_text(override.rate)
    apart = apart if override.apart is UNSET else apart_word(override)
    weight = weight if override.weight is UNSET else override.weight
    if limit is None and rate is None and apart is None and weight is None:
        tx.cursor.execute(SQL["limit.remove"], place)
    else:
        tx.cursor.execute(SQL["limit.store"], (*place, limit, rate, apart, weight))


def apart_word(override: Override) -> int | None:
    """The stored form of `apart`: 1 or NULL. It applies to tasks only; False is the same as not set."""
    return 1 if override.task is not None and override.apart is True else None


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


def resume(tx: Transaction, wanted: Pause, step: int, *, skip_dead: bool) -> bool:
    tx.refuse_sealed()
    place = kind, queue, name = place_of(wanted, "a pause")
    slowed = tx.cursor.execute(SQL["slow_down.open"], (*place, tx.now)).rowcount > 0
    passed = skip_dead and tx.cursor.execute(SQL["pause.skip_dead"], (queue, name)).rowcount > 0
    if tx.cursor.execute(SQL["pause.there"], place).fetchone() is None and not slowed and not passed:
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


# ----------------------------------------------------------------------------------------------------------------------
# What a rule change has left to do, recorded in the file and continued step by step (R10): by the verb that changed
# the rule, by claims and by the verb rearrange. Three kinds: ready jobs that are not in the lane of their task (one
# scan of the lanes for all tasks), groups of a queue that are not adjusted to its rule, jobs that a retention rule
# does not count yet. Each kind stores its position; a further change restarts the scan, so it takes over what is
# left. A store with nothing to rearrange has no row and pays nothing.


_LANES, _GROUPS, _COUNTS = "lanes", "groups", "counts"
_KINDS = (_LANES, _GROUPS, _COUNTS)  # in this order: first what claim skips


class LanesPlace(Struct, frozen=True, array_like=True):
    """How far the lanes have been scanned: in `queue` those before lanes[at], and that one up to (rank, …)."""

    lanes: tuple[int, ...]
    queue: str = ""  # "" before the first
    at: int = 0
    after: tuple[int, int, int] | None = None  # rank, turn, seq; None: from its beginning


class CountsPlace(Struct, frozen=True, array_like=True):
    """Jobs up to `after` are counted; those above `newest` are counted when they are leased or end."""

    after: int
    newest: int


_lanes_place = msgspec.json.Decoder(LanesPlace).decode
_counts_place = msgspec.json.Decoder(CountsPlace).decode
_group_place = msgspec.json.Decoder(str).decode


# ---------------------------------------------------------------------- recording a change


def lane_changed(tx: Transaction, before: int | None) -> None:
    """Ready jobs of a task have to leave this lane (None: the common lanes)."""
    left = {LANE_UNGROUPED, LANE_GROUPED} if before is None else {before}
    pending = _pending(tx).get((_LANES, ""))
    if pending is not None:
        left.update(_lanes_place(pending).lanes)
    _remember(tx, _LANES, "", LanesPlace(lanes=tuple(sorted(left))))


def groups_changed(tx: Transaction, queue: str) -> None:
    """The groups of a queue have to be adjusted to its new rule."""
    _remember(tx, _GROUPS, queue, "")


def counts_changed(tx: Transaction) -> None:
    """A task now keeps only the newest N finished jobs: count its existing ones."""
    _remember(tx, _COUNTS, "", CountsPlace(0, tx.cursor.execute(SQL["rearrange.newest"]).fetchone()[0]))


def _pending(tx: Transaction) -> dict[tuple[str, str], str]:
    if not tx.rules.rearranging:
        return {}
    return {(kind, queue): place for kind, queue, place in tx.cursor.execute(SQL["rearrange.pending"])}


def _remember(tx: Transaction, kind: str, queue: str, place: Any) -> None:
    tx.cursor.execute(SQL["rearrange.store"], (kind, queue, encoded(place).decode()))
    tx.rules.rearranging = 1


# ---------------------------------------------------------------------- continuing


def rearrange(tx: Transaction, limit: int) -> bool:
    """The verb: True if there is more to do."""
    tx.refuse_sealed()
    more = carry_on(tx, limit)
    tx.close()
    return more


def carry_on(tx: Transaction, limit: int) -> bool:
    """Examine or change about `limit` jobs and groups; returns whether something is left."""
    pending = _pending(tx)
    left = limit
    for kind in _KINDS:
        for of, queue in sorted(pending):
            if of == kind and left > 0:
                place, left = _STEPS[kind](tx, queue, pending[of, queue], left)
                if place is None:
                    tx.cursor.execute(SQL["rearrange.remove"], (kind, queue))
                    del pending[of, queue]
                else:
                    _remember(tx, kind, queue, place)
    tx.rules.rearranging = int(bool(pending))
    return bool(pending)


def _lanes_step(tx: Transaction, _queue: str, stored: str, left: int) -> tuple[LanesPlace | None, int]:
    """Move jobs to the lane of their task's rule, in the order of the lanes; turns and ranks stay."""
    place: LanesPlace | None = _lanes_place(stored)
    while place is not None and left > 0:
        if not place.queue or place.at == len(place.lanes):
            row = tx.cursor.execute(SQL["rearrange.next_queue"], (place.queue,)).fetchone()
            place = None if row is None else LanesPlace(lanes=place.lanes, queue=row[0])
            left -= 1
            continue
        lane = place.lanes[place.at]
        rows = _read_lane(tx, place.queue, lane, place.after, left)
        wrong = [(to, seq) for _, _, seq, task, group in rows if (to := tx.rules.lane_of(task, group)) != lane]
        tx.cursor.executemany(SQL["rearrange.to_lane"], wrong)
        ended = len(rows) < left
        place = replace(place, at=place.at + ended, after=None if ended else rows[-1][:3])
        left -= max(1, len(rows))
    return place, left


def _read_lane(
    tx: Transaction, queue: str, lane: int, after: tuple[int, int, int] | None, most: int
) -> list[tuple[int, int, int, str, str | None]]:
    execute = tx.cursor.execute
    if after is None:
        return execute(SQL["rearrange.lane"], (queue, lane, most)).fetchall()
    rows = execute(SQL["rearrange.lane_in_rank"], (queue, lane, *after, most)).fetchall()
    if len(rows) < most:
        rows += execute(SQL["rearrange.lane_below_rank"], (queue, lane, after[0], most - len(rows))).fetchall()
    return rows


def _groups_step(tx: Transaction, queue: str, stored: str, left: int) -> tuple[str | None, int]:
    """Refill or withdraw group by group, by name. Each group costs one plus the rows it changes."""
    group = _group_place(stored)
    while left > 0:
        group = tx.cursor.execute(SQL["rearrange.next_group"], (queue, group)).fetchone()[0]
        if group is None:
            return None, left
        left -= 1 + fit(tx, [(queue, group)])
    return group, left


def fit(tx: Transaction, groups: Iterable[tuple[str, str]]) -> int:
    """Adjust groups to the current rule; returns how many rows changed."""
    changes = tx.cursor.connection.total_changes
    for queue, group in groups:
        tx.touch(queue, group, changed=True)
    tx.refill()
    return tx.cursor.connection.total_changes - changes


def _counts_step(tx: Transaction, _queue: str, stored: str, left: int) -> tuple[CountsPlace | None, int]:
    place = _counts_place(stored)
    row = tx.cursor.execute(SQL["rearrange.through"], (place.after, left - 1)).fetchone()
    through = place.newest if row is None else min(row[0], place.newest)
    tx.cursor.execute(SQL["rearrange.count"], (place.after, through, encoded(sorted(tx.rules.trimmed)).decode()))
    return (None if through >= place.newest else replace(place, after=through)), 0


_STEPS: dict[str, Any] = {_LANES: _lanes_step, _GROUPS: _groups_step, _COUNTS: _counts_step}


# ---------------------------------------------------------------------- claims in the meantime


class Guard:
    """What a claim may lease while a rearrangement is pending: only jobs in the right lane, of adjusted groups.

    It moves jobs that it finds in the wrong lane and adjusts groups at the front of a lane, within its share.
    """

    def __init__(self, tx: Transaction, most: int) -> None:
        self._tx, self._left = tx, most
        pending = _pending(tx)
        self._after = {queue: _group_place(place) for (kind, queue), place in pending.items() if kind == _GROUPS}
        self._fitted: set[tuple[str, str]] = set()
        self._moves: list[tuple[int, int]] = []

    def fit_front(self, queue: str, groups: Sequence[str]) -> None:
        """Adjust the first groups of a lane, before the lane is read: jobs may be withdrawn from it."""
        unfitted = [group for group in dict.fromkeys(groups) if not self._is_fitted(queue, group)][: self._left]
        self._left -= len(unfitted)
        fit(self._tx, [(queue, group) for group in unfitted])
        self._fitted.update((queue, group) for group in unfitted)

    def lets(self, lane: int, seq: int, task: str, queue: str, group: str | None) -> bool:
        """Whether a ready job may be leased; schedules the move of one in the wrong lane."""
        belongs = self._tx.rules.lane_of(task, group)
        if belongs != lane:
            if self._left > 0:
                self._left -= 1
                self._moves.append((belongs, seq))
            return False
        return group is None or self._is_fitted(queue, group)

    def _is_fitted(self, queue: str, group: str) -> bool:
        return queue not in self._after or group <= self._after[queue] or (queue, group) in self._fitted

    def move(self) -> None:
        """Move only after the lanes were read: their positions are job counts."""
        self._tx.cursor.executemany(SQL["rearrange.to_lane"], self._moves)
        self._moves.clear()
