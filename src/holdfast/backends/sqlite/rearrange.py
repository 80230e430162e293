"""What a rule change has left to do, recorded in the file and continued step by step (R10).

Called by limits.py, which records the change and does the first step, by claim and by the verb rearrange. Three kinds:
ready jobs that are not in the lane of their task (one scan of the lanes for all tasks), groups of a queue that are not
adjusted to its rule, jobs that a retention rule does not count yet. Each kind stores its position; a further change
restarts the scan, so it takes over what is left. A store with nothing to rearrange has no row and pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .columns import LANE_GROUPED, LANE_UNGROUPED, SQL, as_text
from .transaction import Transaction

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
    tx.cursor.execute(SQL["rearrange.store"], (kind, queue, as_text(place)))
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
        wrong = [(to, seq) for _, _, seq, task, group in rows if (to := tx.lane_of(task, group)) != lane]
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
    tx.cursor.execute(SQL["rearrange.count"], (place.after, through, as_text(sorted(tx.rules.trimmed))))
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
        belongs = self._tx.lane_of(task, group)
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
