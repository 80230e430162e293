"""THE refill routine: makes as many waiting jobs of the touched groups ready as the groups have room for.

Called by transaction.py for every verb. Groups with limit 1, which is most of them, are filled in one statement; with a
higher limit, a rate, aging or a changed rule each group is handled by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...rates import UNLIMITED, allowed, bounded, opens_at
from ...records import READY_PER_GROUP_MAX, STAGGER_TICKS
from .columns import LANE_APART, LANE_PARKED, SQL, Place, as_text
from .rules import Bucket, age_shift

if TYPE_CHECKING:
    from .transaction import Transaction

GroupName = tuple[str, str]  # queue, group
InPlay = tuple[int, int, int | None]  # number in play, number of these that are ready, the last turn of the ready ones

_ANY_DUE = SQL["refill.any_due"]
_JOIN_DUE = SQL["refill.join_due"]
_FILL_EMPTY = SQL["refill.fill_empty"]
_FILL_ONE_EACH = SQL["refill.fill_one_each"]
_IN_PLAY = SQL["refill.in_play"]
_WAITING = SQL["refill.waiting"]
_FILL = SQL["refill.fill"]
_WITHDRAW = SQL["refill.withdraw"]

_NONE: InPlay = (0, 0, None)


def refill(tx: Transaction, touched: Mapping[GroupName, bool], due: bool | None = None) -> int:
    """Bring the touched groups to their limits and rates; returns how many jobs became ready.

    `touched` maps each group to whether one of its rules changed: then jobs may have to be withdrawn. `due`: whether
    any scheduled job is due; None: query it.
    """
    rules = tx.rules
    if due is None:
        due = bool(tx.cursor.execute(_ANY_DUE, (tx.now,)).fetchone()[0])
    of_one: list[GroupName] = []
    of_more: list[tuple[GroupName, int]] = []
    others: list[GroupName] = []
    for name, changed in touched.items():
        limit = None if changed else rules.limit_alone(*name)
        if limit is None:
            others.append(name)
            continue
        if due and limit:
            # A job that is due but not yet promoted must not be overtaken by a later one of its group.
            tx.cursor.execute(_JOIN_DUE, {"queue": name[0], "grp": name[1], "limit": limit, "now": tx.now})
        if limit == 1:
            of_one.append(name)
        elif limit > 1:
            of_more.append((name, limit))
    made_ready = 0
    if of_one:
        values = {"groups": as_text(of_one), "turn": tx.ticks(len(of_one)), **_lanes(tx)}
        made_ready += tx.cursor.execute(_FILL_EMPTY, values).rowcount
    if of_more:
        made_ready += _fill_of_more(tx, of_more)
    if others:
        counted = zip(others, _in_play(tx, others), strict=True)
        made_ready += sum([Filling(tx, name, in_play).fill(due=due) for name, in_play in counted])
    return made_ready


def _lanes(tx: Transaction) -> dict[str, str | None]:
    """The tasks whose jobs are not in the common lane, as parameters of the statements."""
    lanes = tx.rules.lanes
    if not lanes:
        return {"parked": None, "apart": None}
    return {
        "parked": as_text([task for task, lane in lanes.items() if lane == LANE_PARKED]),
        "apart": as_text([task for task, lane in lanes.items() if lane == LANE_APART]),
    }


def _in_play(tx: Transaction, groups: Sequence[GroupName]) -> list[InPlay]:
    found = {place: counted for place, *counted in tx.cursor.execute(_IN_PLAY, (as_text(groups),))}
    return [found.get(place, _NONE) for place in range(len(groups))]


def _fill_of_more(tx: Transaction, groups: list[tuple[GroupName, int]]) -> int:
    """Groups with a plain limit above 1. Usually each has room for exactly one, so fill them in one statement."""
    made_ready = 0
    one_each: list[tuple[str, str, int]] = []
    tick = tx.ticks(len(groups))
    names = [name for name, _ in groups]
    for place, ((name, limit), in_play) in enumerate(zip(groups, _in_play(tx, names), strict=True)):
        number, ready, last_turn = in_play
        room = min(limit - number, READY_PER_GROUP_MAX - ready)
        if room == 1:
            one_each.append((*name, staggered(tick + place, ready, last_turn)))
        elif room > 1:
            made_ready += Filling(tx, name, in_play).fill(due=False)
    if one_each:
        made_ready += tx.cursor.execute(_FILL_ONE_EACH, {"groups": as_text(one_each), **_lanes(tx)}).rowcount
    return made_ready


def staggered(turn: int, ready: int, last_turn: int | None) -> int:
    """A turn behind the heads of all groups, and behind the ready jobs of its own group."""
    return max(turn + ready * STAGGER_TICKS, (last_turn or 0) + 1) if ready else turn


class Filling:
    """One group and its room."""

    def __init__(self, tx: Transaction, name: GroupName, in_play: InPlay) -> None:
        self._tx, self._name = tx, name
        self._in_play, self._ready, self._last_turn = in_play
        self._limit = tx.rules.group_limit(*name)
        self._rate = tx.rules.group_rate(*name)
        self._bucket = tx.rules.bucket(self._place)
        if self._is_too_far_ahead() and (self._ready or tx.cursor.execute(_WAITING, (*name, 1)).fetchone()):
            tx.set_back(self._rate, self._place)
            self._bucket = tx.rules.bucket(self._place)
        spent = (self._bucket or Bucket()).spent_until
        self._budget = UNLIMITED if self._rate is None else allowed(self._rate, spent, tx.now)

    def _is_too_far_ahead(self) -> bool:
        if self._rate is None or self._bucket is None:
            return False
        return bounded(self._rate, self._bucket.spent_until, self._tx.now) != self._bucket.spent_until

    @property
    def _place(self) -> Place:
        return ("group", *self._name)

    def fill(self, *, due: bool) -> int:
        """Make jobs ready up to the room, withdraw the excess; returns how many became ready."""
        tx, (queue, group) = self._tx, self._name
        room = min(self._limit - self._in_play, self._budget - self._ready)
        if room > 0 and due:
            values = {"queue": queue, "grp": group, "limit": self._limit, "now": tx.now}
            tx.cursor.execute(_JOIN_DUE, values)
        most = max(0, min(room, READY_PER_GROUP_MAX - self._ready))
        # Reading one more than there is room for shows whether jobs are still waiting.
        rows = tx.cursor.execute(_WAITING, (queue, group, most + 1)).fetchall() if room >= 0 else []
        filled = [self._made_ready(*row) for row in rows[:most]]
        if filled:
            tx.cursor.executemany(_FILL, filled)
        waits = len(rows) > most
        if room < 0 < self._ready:
            tx.cursor.execute(_WITHDRAW, {"queue": queue, "grp": group, "excess": -room})
            gone = min(-room, self._ready)
            self._ready, self._in_play, waits = self._ready - gone, self._in_play - gone, True
        if self._bucket is not None:
            self._wake(self._bucket, waits=waits or room < 0)
        return len(filled)

    def _made_ready(self, seq: int, task: str, priority: int, turn: int | None) -> tuple[Any, ...]:
        tx, queue = self._tx, self._name[0]
        aging = tx.rules.aging(queue)
        if turn is None:
            turn = staggered(tx.ticks(1) - age_shift(priority, aging), self._ready, self._last_turn)
        self._last_turn = turn if self._last_turn is None else max(self._last_turn, turn)
        self._ready += 1
        self._in_play += 1
        return turn, priority if aging is None else 0, tx.rules.lane_of(task, self._name[1]), seq

    def _wake(self, bucket: Bucket, *, waits: bool) -> None:
        """Record when the rate lets one more waiting job start, or clear it if no job waits for the rate."""
        held_back = (
            waits
            and self._limit > self._in_play
            and self._budget <= self._ready
            and self._ready < READY_PER_GROUP_MAX
            and bucket.spent_until > self._tx.now
        )
        wakes_at = None
        if held_back and self._rate is not None:
            wakes_at = opens_at(self._rate, bucket.spent_until) + self._ready * self._rate.every
        if wakes_at != bucket.wakes_at:
            self._tx.cursor.execute(SQL["refill.wake"], (wakes_at, *self._place))
