"""Groups: the rules in force, and THE refill routine, which makes waiting jobs ready as far as their groups have room.

Called by the verb modules and by a transaction when it ends (connection.py). Nothing here commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...rates import UNLIMITED, Rate, allowed, bounded, opens_at
from ...records import READY_PER_GROUP_MAX, SERIAL_PREFIX, STAGGER_TICKS, WEIGHED_LINE_MAX, GroupOrder, Lease
from .. import formulas
from ..formulas import LANE_APART, LANE_PARKED, age_shift, rank
from .codec import SQL, Place, encoded, rate_of

if TYPE_CHECKING:
    from .connection import Transaction

# ----------------------------------------------------------------------------------------------------------------------
# What is in force at one instant of a transaction: limits, rates, lanes and buckets. Needed by every
# verb that places, refills or claims jobs, and by the read side. A rule is read on first use; one statement finds out
# which kinds of rules exist at all, so a store without them pays for nothing else. That statement also reads what
# every verb needs: the seal, the counter, whether there are keys and dead letters.


_ANY = SQL["limit.any"]
_QUEUE = SQL["limit.queue"]
_OVERRIDE = SQL["limit.override"]
_FLOW = SQL["slow_down.flow"]


Said = tuple[int | None, Rate | None, int]  # an operator's limit, rate and weight
Kinds = tuple[int, int, int]  # whether there are any for queues, groups, tasks

_NO_KINDS: Kinds = (0, 0, 0)
_NOTHING_SAID: Said = (None, None, 1)
_NO_LANES: Mapping[str, int] = {}
_UNDECLARED = (
    "strict",
    1,
    None,
    None,
    None,
    None,
    "go_on",
    None,
    None,
)  # a queue without a rule, in the order of limit.queue
_NOT_ALONE = 0  # a limit is not all that affects a queue's groups
_COMMON_LANES = [formulas.lane(parked=False, apart=False, grouped=grouped) for grouped in (False, True)]


class Queue(NamedTuple):
    """A queue's rule, with the operator's override applied."""

    strict: bool = True
    group_limit: int = 1
    group_rate: Rate | None = None
    aging: float | None = None
    limit: int = UNLIMITED
    rate: Rate | None = None
    stops: bool = False  # a dead job stops its strict group
    order_window: float | None = None
    dead_queue: str | None = None


class Task(NamedTuple):
    """What limits a task."""

    limit: int
    rate: Rate | None


class Bucket(NamedTuple):
    """The stored state of a bucket."""

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
        "any_edge",
        "any_flow",
        "any_key",
        "any_letter",
        "any_remembered",
        "closed",
        "rearranging",
        "tick",
    )

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        pauses, overrides, tasks, self._queue_flows, *others = cursor.execute(_ANY).fetchone()
        self.any_flow, self.any_key, self.any_letter, self.rearranging, self.any_remembered, *others = others
        self.any_edge, *others = others
        self.closed, self.tick = others
        paused: Kinds = cursor.execute(SQL["limit.kinds_paused"]).fetchone() if pauses else _NO_KINDS
        self._queue_pauses, self._group_pauses, self._task_pauses = paused
        kinds: Kinds = cursor.execute(SQL["limit.kinds_overridden"]).fetchone() if overrides else _NO_KINDS
        self._queue_overrides, self._group_overrides, task_overrides = kinds
        self._tasks_said = tasks or task_overrides
        self._queues: dict[str, Queue] = {}
        self._limits: dict[str, int] = {}
        self._overrides: dict[tuple[str, str], Said] = {}
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
        if row is None and not self._queue_overrides:
            return Queue()
        order, group_limit, group_rate, aging, limit, rate, on_dead, order_window, dead_queue = row or _UNDECLARED
        rate = None if rate is None else rate_of(rate)
        if self._queue_overrides:
            limit_override, rate_override, _ = self._override("queue", name, "")
            limit, rate = limit_override or limit, rate_override or rate
        limit = UNLIMITED if limit is None else limit
        group_rate = None if group_rate is None else rate_of(group_rate)
        beyond = on_dead == "stop", order_window, dead_queue
        return Queue(order == "strict", group_limit, group_rate, aging, limit, _held(rate), *beyond)

    def _override(self, kind: str, queue: str, name: str) -> Said:
        row = self._cursor.execute(_OVERRIDE, (kind, queue, name)).fetchone()
        if row is None:
            return _NOTHING_SAID
        limit, rate, _, weight = row
        return limit, rate_of(rate), weight or 1

    @property
    def any_aging(self) -> bool:
        """Whether any queue may age its jobs."""
        return bool(self._queue_flows)

    def aging(self, queue: str) -> float | None:
        return self.queue(queue).aging if self._queue_flows else None

    def ages(self, queue: str) -> bool:
        """Whether its jobs are ordered by anything but priority first."""
        return rank(1, self.aging(queue)) == 0

    def strict(self, queue: str, group: str) -> bool:
        return self.order(queue, group) == "strict"

    def stops(self, queue: str, group: str | None) -> bool:
        """Whether a job of this group that dies at the end of its lease stops the group (R95)."""
        return group is not None and self.queue(queue).stops and self.strict(queue, group)

    def order(self, queue: str, group: str) -> GroupOrder:
        return formulas.group_order(group, "strict" if self.queue(queue).strict else "relaxed")

    def override_of(self, queue: str, group: str) -> Said:
        """An operator's override of a group."""
        if not self._group_overrides:
            return _NOTHING_SAID
        override = self._overrides.get((queue, group))
        if override is None:
            override = self._overrides[queue, group] = self._override("group", queue, group)
        return override

    def group_limit(self, queue: str, group: str) -> int:
        found = self._group_pauses and self._cursor.execute(SQL["limit.group_paused"], (queue, group)).fetchone()
        declared, override = self.queue(queue).group_limit, self.override_of(queue, group)[0]
        return formulas.group_limit(self.order(queue, group), declared, override, paused=bool(found))

    def limit_alone(self, queue: str, group: str) -> int | None:
        """The limit, if nothing else (rate, aging, window) affects which jobs of this group are ready; else None."""
        if not self._group_pauses and not self._group_overrides:  # then all groups of the queue have the same rules
            limit = self._limits.get(queue)
            if limit is None:
                rule = self.queue(queue)
                alone = rule.aging is None and rule.order_window is None and _held(rule.group_rate) is None
                limit = self._limits[queue] = (1 if rule.strict else rule.group_limit) if alone else _NOT_ALONE
            return None if limit == _NOT_ALONE else 1 if group.startswith(SERIAL_PREFIX) else limit
        if self.group_rate(queue, group) is not None or self.aging(queue) is not None:
            return None
        if self.queue(queue).order_window is not None or self.weight(queue, group) > 1:
            return None
        return self.group_limit(queue, group)

    def weight(self, queue: str, group: str) -> int:
        """How many turns per round a group has; the default is one."""
        _, _, weight = self.override_of(queue, group)
        return weight

    def group_rate(self, queue: str, group: str) -> Rate | None:
        """The rate in force; None: there is none, or it was lifted."""
        return _held(self.override_of(queue, group)[1] or self.queue(queue).group_rate)

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
        overrides = {row[0]: row[1:] for row in self._cursor.execute(SQL["limit.task_overrides"])}
        tasks: dict[str, Task] = {}
        for name in sorted({*declared, *overrides}):
            limit, rate, apart = declared.get(name, (None, None, 0))
            limit_override, rate_override, apart_override = overrides.get(name, (None, None, None))
            task = Task(limit_override or limit or UNLIMITED, _held(rate_of(rate_override or rate)))
            if apart or apart_override or task.limit < UNLIMITED or task.rate is not None:
                tasks[name] = task
        return tasks

    @property
    def lanes(self) -> Mapping[str, int]:
        """The lane of every task whose ready jobs are not in the common lanes."""
        if not (self._tasks_said or self._task_pauses):
            return _NO_LANES
        if self._lanes is None:
            found = self._cursor.execute(SQL["limit.paused_tasks"]) if self._task_pauses else ()
            parked = {row[0] for row in found}
            self._lanes = {
                task: formulas.lane(parked=task in parked, apart=True, grouped=False) for task in (*self.tasks, *parked)
            }
        return self._lanes

    def lane_of(self, task: str, group: str | None) -> int:
        return self.lanes.get(task) or _COMMON_LANES[group is not None]

    @property
    def trimmed(self) -> frozenset[str]:
        """Tasks that keep only the newest N finished jobs."""
        if self._trimmed is None:
            found = self._cursor.execute(SQL["limit.tasks_trimmed"]) if self._tasks_said else ()
            self._trimmed = frozenset(row[0] for row in found)
        return self._trimmed

    # ------------------------------------------------------------------ buckets

    def bucket(self, place: Place) -> Bucket | None:
        """The stored state of a bucket; None if there is no row."""
        if not self.any_flow:
            return None
        row = self._cursor.execute(_FLOW, place).fetchone()
        return None if row is None else Bucket(*row)


def _held(rate: Rate | None) -> Rate | None:
    """The rate if it limits anything, else None."""
    return None if rate is None or rate.none else rate


# ----------------------------------------------------------------------------------------------------------------------
# THE refill routine: makes as many waiting jobs of the touched groups ready as the groups have room for. Groups with
# limit 1, which is most of them, are filled in one statement; with a higher limit, a rate, aging or a changed rule each
# group is handled by itself.


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
_LINE = SQL["refill.line"]
_LINE_TURNS = SQL["refill.line_turns"]
_JOIN_STAGED = SQL["refill.join_staged"]
_GIVE_WAY = SQL["refill.give_way"]
_NEXT_WAITING = SQL["refill.next_waiting"]
_NEXT_WAITING_QUEUE = SQL["refill.next_waiting_queue"]

_NONE: InPlay = (0, 0, None)


def refill(tx: Transaction, touched: Mapping[GroupName, bool], due: bool | None = None) -> int:
    """Bring the touched groups to their limits and rates; returns how many jobs became ready.

    `touched` maps each group to whether one of its rules changed, or a job with an order came in: then jobs may have to
    be withdrawn. `due`: whether any scheduled job is due; None: query it.
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
            queue, group = name
            tx.cursor.execute(_JOIN_DUE, {"queue": queue, "grp": group, "limit": limit, "now": tx.now})
        if limit == 1:
            of_one.append(name)
        elif limit > 1:
            of_more.append((name, limit))
    made_ready = 0
    if of_one:
        values = {"groups": encoded(of_one).decode(), "turn": tx.ticks(len(of_one)), **_lanes(tx)}
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
        "parked": encoded([task for task, lane in lanes.items() if lane == LANE_PARKED]).decode(),
        "apart": encoded([task for task, lane in lanes.items() if lane == LANE_APART]).decode(),
    }


def _in_play(tx: Transaction, groups: Sequence[GroupName]) -> list[InPlay]:
    found = {place: counted for place, *counted in tx.cursor.execute(_IN_PLAY, (encoded(groups).decode(),))}
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
        made_ready += tx.cursor.execute(_FILL_ONE_EACH, {"groups": encoded(one_each).decode(), **_lanes(tx)}).rowcount
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
            set_back(tx, self._rate, self._place)
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
        room += self._make_way()
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

    def _make_way(self) -> int:
        """Let jobs with lower orders go before a ready one that has not started (R104, R105); returns the room made."""
        tx, (queue, group) = self._tx, self._name
        window = tx.rules.queue(queue).order_window
        if window is not None and self._limit > 0 and (self._limit > self._in_play or self._ready):
            tx.cursor.execute(_JOIN_STAGED, {"queue": queue, "grp": group, "now": tx.now, "window": window})
        if self._limit != 1 or not self._ready:
            return 0
        withdrawn = tx.cursor.execute(_GIVE_WAY, {"queue": queue, "grp": group}).rowcount
        self._ready, self._in_play = self._ready - withdrawn, self._in_play - withdrawn
        return withdrawn

    def _made_ready(self, seq: int, task: str, priority: int, turn: int | None) -> tuple[Any, ...]:
        tx, queue = self._tx, self._name[0]
        aging = tx.rules.aging(queue)
        if turn is None:
            turn = staggered(
                self._weighted(tx.ticks(1) - age_shift(priority, aging), rank(priority, aging)),
                self._ready,
                self._last_turn,
            )
        self._last_turn = turn if self._last_turn is None else max(self._last_turn, turn)
        self._ready += 1
        self._in_play += 1
        return turn, rank(priority, aging), tx.rules.lane_of(task, self._name[1]), seq

    def _weighted(self, turn: int, its_rank: int) -> int:
        """A new turn, sooner in a group with a weight of which nothing is ready (R106)."""
        queue, group = self._name
        weight = self._tx.rules.weight(queue, group)
        if weight == 1 or self._ready:
            return turn
        execute = self._tx.cursor.execute
        [line] = execute(_LINE, (queue, its_rank)).fetchone()
        ahead = 1 if line > WEIGHED_LINE_MAX else formulas.ahead(line, weight)
        if line <= ahead:
            return turn
        before, behind = [row[0] for row in execute(_LINE_TURNS, (queue, its_rank, ahead - 1))]
        if line > WEIGHED_LINE_MAX:
            return min(turn, int(before + (turn - before) // weight))
        return formulas.weighted(turn, before, behind)

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


def refill_pass(tx: Transaction, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str]]:
    """One bounded pass over groups with waiting jobs, from where the last one stopped."""
    tx.refuse_sealed()
    execute, place = tx.cursor.execute, after
    for _ in range(limit):  # from name to name: a group with a million waiting jobs is one lookup
        row = execute(_NEXT_WAITING, place).fetchone() or execute(_NEXT_WAITING_QUEUE, place[:1]).fetchone()
        place = row or ("", "")
        if row is None:
            break
        tx.touch(*place)
    made_ready = tx.refill()
    tx.close()
    return made_ready, place


# ----------------------------------------------------------------------------------------------------------------------
# Bringing a job into play, and storing a bucket.


def bring_into_play(
    tx: Transaction, seq: int, queue: str, task: str, group: str | None, priority: int, turn: int | None = None
) -> None:
    """Bring a due job into play, with its old turn or a new one: ready, or waiting in its group until refill."""
    if group is not None:
        [ordered] = tx.cursor.execute(SQL["promote.to_waiting"], (turn, seq)).fetchone()
        tx.touch(queue, group, changed=bool(ordered))  # a ready job of its group may have to make way
        return
    aging = tx.rules.aging(queue)
    if turn is None:
        turn = formulas.turn(tx.ticks(1), priority, aging)
    tx.cursor.execute(SQL["promote.to_ready"], (tx.rules.lane_of(task, group), turn, rank(priority, aging), seq))


def with_waiting(tx: Transaction, leases: Sequence[Lease]) -> set[tuple[str, str | None]]:
    """The groups of these leases in which jobs wait. With many groups most have none: one look spares one for each."""
    groups: dict[str, set[str]] = {}
    for lease in leases:
        if lease.group is not None:
            groups.setdefault(lease.queue, set()).add(lease.group)
    found: set[tuple[str, str | None]] = set()
    for queue, names in groups.items():
        values = {"queue": queue, "groups": encoded(sorted(names)).decode()}
        found.update((queue, name) for (name,) in tx.cursor.execute(SQL["claim.with_waiting"], values))
    return found


def spend(tx: Transaction, place: Place, spent_until: float) -> None:
    """Store a bucket's new number."""
    tx.cursor.execute(SQL["slow_down.spend"], (*place, spent_until))
    tx.rules.any_flow = True


def set_back(tx: Transaction, rate: Rate | None, place: Place) -> None:
    """Clamp a bucket that is further ahead than its rate allows: rate raised or clock set back (R12)."""
    bucket = None if rate is None else tx.rules.bucket(place)
    if rate is not None and bucket is not None:
        spent_until = bounded(rate, bucket.spent_until, tx.now)
        if spent_until != bucket.spent_until:
            spend(tx, place, spent_until)
