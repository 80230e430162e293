"""exchange: settle, release and claim in one transaction; and which ready jobs a claim takes.

Called by backend.py inside a write transaction, and by the wake-ups to see whether a claim would find anything. A claim
goes queue by queue, lane by lane, as far as limits, rates and the worker's room allow, and charges each bucket once for
what was leased. In a store without limits and rates it reads none.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...lifecycle import Settlement
from ...rates import UNLIMITED, Rate, allowed, charged, opens_at
from ...records import (
    GROUP_LOOKS_MAX,
    READY_PER_GROUP_MAX,
    Answer,
    ClaimRequest,
    Exchanged,
    Lease,
    Recovered,
    Release,
)
from .. import formulas
from ..formulas import LANE_APART, LANE_GROUPED, LANE_UNGROUPED
from . import codec, limits, settle
from .codec import SQL, Place, encoded
from .connection import Transaction
from .groups import Bucket, Rules, set_back, spend, with_waiting
from .operate import expire
from .promote import promote
from .recover import recover

_LANE = SQL["claim.lane"]
_LANE_APART = SQL["claim.lane_apart"]
_LANE_RANKED = SQL["claim.lane_ranked"]
_LANE_APART_RANKED = SQL["claim.lane_apart_ranked"]
_TAKE = SQL["claim.take"]
_HEADS = SQL["claim.heads"]
_TAKE_HEADS = SQL["claim.take_heads"]
_DUE = SQL["claim.due"]
_TAKE_DUE = SQL["claim.take_due"]
_CHAINED = SQL["claim.chained"]
_TAKE_CHAINED = SQL["claim.take_chained"]
_ANY_DUE = SQL["refill.any_due"]
_CLAIMABLE = SQL["read.claimable"]
_LOOK = SQL["promote.look"]

_OF_ONE = {_TAKE: SQL["claim.take_one"], _TAKE_HEADS: SQL["claim.take_head"]}
_answers = msgspec.json.Decoder(tuple[Answer, ...]).decode

Row = tuple[Any, ...]  # as claim.lane returns it

# Positions in a Row; only rows of claim.heads have the turn, and only those of claim.chained the order.
_SEQ, _ID, _TASK, _QUEUE, _ARGS, _PRIORITY, _GROUP, _KEY, _EXPIRES_AT, _SIZE, _TURN = 0, 1, 2, 3, 4, 5, 6, 7, 13, 18, 19
_MAX_STALLS, _SUSPECT, _ORDER = 11, 15, 19
_NEW = Bucket()  # a bucket that was never charged


class Look(NamedTuple):
    """Whether there is anything to promote or to recover, in one query: usually there is not."""

    due: int
    expired: int
    letters: int
    overdue: int
    propagating: int

    @property
    def due_alone(self) -> bool:
        """Whether there is nothing to do except, perhaps, promoting due jobs."""
        return not (self.expired or self.letters or self.overdue or self.propagating)


def exchange(
    tx: Transaction, settlements: Sequence[Settlement], releases: Sequence[Release], request: ClaimRequest | None
) -> Exchanged:
    """settle, release and claim in one transaction, in that order; detects a repeated call (R44)."""
    if request is None:
        answers = [*settle.settle(tx, settlements), *settle.release(tx, releases)]
        tx.close()
        return Exchanged(answers=tuple(answers))
    row = tx.cursor.execute(SQL["claim.worker"], (request.worker,)).fetchone()
    if row is not None and request.call == row[0]:
        _, last_answers, *_ = row
        return _first_answer(tx, request, last_answers)
    answers = [*settle.settle(tx, settlements), *settle.release(tx, releases)]
    tx.propagate()
    look = Look(*tx.cursor.execute(_LOOK, {"now": tx.now, "steady": tx.steady, "boot": tx.boot}).fetchone())
    if row is None or request.call < row[0]:  # unknown worker, or a later claim overtook this one: outcomes only
        tx.close()
        return Exchanged(answers=tuple(answers), known=row is not None)
    rules, recovered, opens_at = tx.rules, list[Recovered](), None
    seal = tx.closed_by  # after reading the rules, which include the seal
    is_simple = seal is None and look.due_alone and not rules.rearranging
    leases = claim_at_once(tx, request, due=bool(look.due)) if is_simple else None
    if leases is None:
        tx.refill(due=bool(look.due))
        if look.overdue:
            recovered, gone = recover(tx, (), -(-request.sweep_max // 2))
            if request.worker in gone:
                tx.close()  # it was this worker's own deadline that had passed (R20)
                return Exchanged(answers=tuple(answers), known=False, recovered=tuple(recovered))
        leases = []
        if seal is None:
            if any(look) or rules.any_flow:
                promote(tx, request.sweep_max)
            if rules.rearranging:
                limits.carry_on(tx, -(-request.sweep_max // 2))
            leases = claim(tx, request)
            tx.refill()
            opens_at = next_opening(tx.cursor, tx.rules, request.queues, tx.now)  # after the claim
    settle.remember(tx, leases)
    stored = msgspec.json.encode(answers).decode() if answers else None
    tx.cursor.execute(SQL["claim.number"], (request.call, stored, request.worker))
    tx.close()
    return Exchanged(
        answers=tuple(answers),
        leases=tuple(leases),
        recovered=tuple(recovered),
        sealed=seal,
        opens_in=None if opens_at is None else opens_at - tx.now,
    )


def _first_answer(tx: Transaction, request: ClaimRequest, last_answers: str | None) -> Exchanged:
    """A repeated call: the leases it still holds that fit the request now; the rest is released without cost (R38)."""
    rows = tx.cursor.execute(SQL["claim.again"], (request.worker, request.call)).fetchall()
    places = [(row[_QUEUE], row[_GROUP]) for row in rows]
    strict = {place for place in {*places} if place[1] is not None and tx.rules.strict(*place)}
    chained = [place in strict and place in places[:number] for number, place in enumerate(places)]
    fit = fitting(rows, chained, request)
    excess = [Release(id=row[_ID], token=row[-3]) for row, fits in zip(rows, fit, strict=True) if not fits]
    if excess:
        settle.release(tx, excess)
        tx.close()
    kept = with_bodies(tx, [row for row, fits in zip(rows, fit, strict=True) if fits])
    follows = [one for one, fits in zip(chained, fit, strict=True) if fits]
    leases = tuple(as_lease(row[:-3], *row[-3:], chained=one) for row, one in zip(kept, follows, strict=True))
    return Exchanged(answers=() if last_answers is None else codec.read_or((), _answers, last_answers), leases=leases)


def claim(tx: Transaction, request: ClaimRequest) -> list[Lease]:
    """Lease what may start now, then charge the buckets."""
    paused = tx.rules.paused_queues
    draw = Draw(tx, request)
    for queue in request.queues:
        most = draw.room_of_queue(queue)
        if draw.full:
            break
        if most > 0 and queue not in paused:
            draw.take_from(queue, most)
    draw.charge()
    if request.chain_by_queue and not tx.cursor.execute(_ANY_DUE, (tx.now,)).fetchone()[0]:
        draw.chain()
    return draw.leases


def claim_at_once(tx: Transaction, request: ClaimRequest, *, due: bool) -> list[Lease] | None:
    """Fast path for a worker that works through groups and chains: refill, promote and `claim`, if the heads of the
    touched groups and the ungrouped jobs that are due are all there is to lease. They are leased without becoming ready
    first. None means nothing was done: use the general path.

    The caller knows that nothing is expired or overdue. Nothing is ready, so all of them are taken whatever the order;
    there is room, and no limit, rate, lane or share could hold one back. Rules of other tasks do not matter.
    """
    rules, touched = tx.rules, tx.touched
    if not (touched or due) or len(request.queues) != 1 or request.most_by_group is not None or request.priorities:
        return None
    queue = request.queues[0]
    if not rules.queues_hold_nothing or queue in rules.paused_queues or (touched and rules.windowed(queue)):
        return None
    room = min(request.most, request.most_by_queue.get(queue, request.most)) - len(touched)
    if room < 0:
        return None
    for (of, group), changed in touched.items():
        if changed or of != queue or rules.limit_alone(of, group) != 1:
            return None
    if tx.cursor.execute(_CLAIMABLE, (queue,)).fetchone() is not None or apart_ready(tx.cursor, rules, queue):
        return None
    groups = encoded([group for _, group in touched]).decode()
    if (late := _due_alone(tx, queue, min(room, request.sweep_max)) if due else []) is None:
        return None
    heads: list[Row] = tx.cursor.execute(_HEADS, {"queue": queue, "groups": groups}).fetchall() if touched else []
    ruled, rows = {*rules.lanes, *rules.trimmed}, [*heads, *late]
    if ruled and any(row[_TASK] in ruled for row in rows):
        return None
    if len(rows) > 1 and sum([row[_SIZE] for row in rows]) > request.bytes_max:
        return None
    tx.refilled()
    draw = Draw(tx, request)
    draw.lease_heads(heads)
    draw.lease_due(late)
    if request.chain_by_queue:
        draw.chain()
    return draw.leases


def _due_alone(tx: Transaction, queue: str, most: int) -> list[Row] | None:
    """The due jobs, at most `most`; None if there are more, or one of them has a group or is in another queue."""
    rows: list[Row] = tx.cursor.execute(_DUE, (tx.now, most + 1)).fetchall()
    if len(rows) > most or any(row[_QUEUE] != queue or row[_GROUP] is not None for row in rows):
        return None
    return rows


class Lane:
    """How far one lane of a queue has been read. Nothing is written while lanes are being read."""

    __slots__ = ("done", "looks", "number", "place", "queue", "ranks", "refused", "task")

    def __init__(self, queue: str, number: int, task: str = "") -> None:
        self.queue, self.number, self.task = queue, number, task
        self.ranks: tuple[int, int] | None = None  # only these are read
        self.place = 0  # jobs read so far
        self.looks = 0  # of these, skipped because of most_by_group or priorities
        self.refused = 0  # of these, skipped because a rule change has not reached them yet
        self.done = False

    def read(self, tx: Transaction, most: int) -> list[Row]:
        if self.ranks is not None:
            apart = self.number == LANE_APART
            of, statement = (self.task, _LANE_APART_RANKED) if apart else (self.number, _LANE_RANKED)
            return tx.cursor.execute(statement, (self.queue, of, *self.ranks, most, self.place)).fetchall()
        if self.number == LANE_APART:
            return tx.cursor.execute(_LANE_APART, (self.queue, self.task, most, self.place)).fetchall()
        return tx.cursor.execute(_LANE, (self.queue, self.number, most, self.place)).fetchall()


class Draw:
    """The leases of one claim."""

    def __init__(self, tx: Transaction, request: ClaimRequest) -> None:
        self._tx, self._request, self._rules = tx, request, tx.rules
        self.leases: list[Lease] = []
        self.full = False  # the next job's arguments exceed what is left of bytes_max
        self._bytes_left, self._drawn = request.bytes_max, 0
        self._running = Running(tx.cursor)  # before this claim
        self._rooms: dict[Place, int] = {}
        self._leased: dict[Place, int] = {}  # only places where something is counted
        self._expired: list[Row] = []
        # while a rule change is being applied; the claim spent the other half of its sweep before
        self._guard = limits.Guard(tx, request.sweep_max // 2) if tx.rules.rearranging else None
        self._held: dict[tuple[str, str], int] = {}
        if request.most_by_group is not None:
            for queue, group, number in tx.cursor.execute(SQL["claim.held_groups"], (request.worker,)):
                self._held[queue, group] = number

    # ------------------------------------------------------------------ how many

    def room_of_queue(self, queue: str) -> int:
        request, left = self._request, self._request.most - len(self.leases)
        most = min(left, request.most_by_queue.get(queue, left))
        if self._rules.holds_nothing:
            return most
        place: Place = ("queue", queue, "")
        if place not in self._rooms:
            set_back(self._tx, self._rules.queue(queue).rate, place)
            self._rooms[place] = queue_room(self._rules, self._running, queue, self._tx.now)
        return min(most, self._rooms[place] - self._leased.get(place, 0))

    def _room_of_lane(self, lane: Lane) -> int:
        if lane.number != LANE_APART:
            return UNLIMITED
        place: Place = ("task", "", lane.task)
        if place not in self._rooms:
            set_back(self._tx, self._rules.tasks[lane.task].rate, place)
            by_task = task_room(self._rules, self._running, lane.task, self._tx.now)
            self._rooms[place] = min(by_task, self._request.most_by_task.get(lane.task, UNLIMITED))
        return self._rooms[place] - self._leased.get(place, 0)

    # ------------------------------------------------------------------ which

    def take_from(self, queue: str, most: int) -> None:
        """Lease up to `most` jobs of a queue."""
        request = self._request
        common = request.most_by_group is None and request.priorities is None
        common = common and not self._rules.tasks and self._guard is None
        rows = self._from_common_lanes(queue, most) if common else None
        if rows is None:
            rows = self._from_lanes(queue, most)
        for row in self._expired:
            expire(self._tx, row[_ID])
        self._expired.clear()
        if self._guard is not None:
            self._guard.move()
        if rows:
            self._lease(queue, rows)

    def _from_common_lanes(self, queue: str, most: int) -> list[Row] | None:
        """Fast path of `_from_lanes` for most claims: no `apart` lanes. None: use the general path."""
        read, first, share = self._tx.cursor.execute, self._request.call % 2, most - most // 2
        rows: list[Row] = read(_LANE, (queue, first, share, 0)).fetchall()
        more = len(rows) == share
        if len(rows) < most:
            rows += read(_LANE, (queue, 1 - first, most - len(rows), 0)).fetchall()
        if more and len(rows) < most:
            rows += read(_LANE, (queue, first, most - len(rows), share)).fetchall()
        size, now = sum([row[_SIZE] for row in rows]), self._tx.now
        if size > self._bytes_left and self._drawn + len(rows) > 1:
            return None
        if [row for row in rows if row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= now]:
            return None
        self._bytes_left -= size
        self._drawn += len(rows)
        return rows

    def _from_lanes(self, queue: str, most: int) -> list[Row]:
        """Give each lane its share, then what the others left over."""
        lanes = [Lane(queue, LANE_UNGROUPED), Lane(queue, LANE_GROUPED)]
        if self._rules.tasks:
            lanes += self._lanes_apart(queue)
        if self._request.priorities is not None and not self._rules.ages(queue):
            for lane in lanes:
                lane.ranks = self._request.priorities
        if self._guard is not None:
            self._fit_front(self._guard, queue, lanes[1:], most)
        call, number = self._request.call, len(lanes)
        lanes = [lanes[place % number] for place in range(call % number, call % number + number)]
        rows: list[Row] = []
        for place, lane in enumerate(lanes):
            left = most - len(rows)
            if left > 0 and not self.full:
                rows += self._draw(lane, min(-(-left // (number - place)), self._room_of_lane(lane)))
        for lane in lanes:
            if len(rows) < most and not lane.done and not self.full:
                rows += self._draw(lane, min(most - len(rows), self._room_of_lane(lane)))
        return rows

    def _lanes_apart(self, queue: str) -> list[Lane]:
        lanes = [Lane(queue, LANE_APART, task) for task in apart_ready(self._tx.cursor, self._rules, queue)]
        return [lane for lane in lanes if self._room_of_lane(lane) > 0]

    def _fit_front(self, guard: limits.Guard, queue: str, lanes: list[Lane], most: int) -> None:
        for lane in lanes:
            rows = lane.read(self._tx, most)
            guard.fit_front(queue, [row[_GROUP] for row in rows if row[_GROUP] is not None])

    def _draw(self, lane: Lane, most: int) -> list[Row]:
        """Up to `most` jobs of a lane, from the current position. Collects expired ones in `_expired`."""
        if most <= 0 or lane.done:
            return []
        capped = self._request.most_by_group is not None and lane.number != LANE_UNGROUPED
        capped = capped or self._request.priorities is not None
        drawn: list[Row] = []
        looks = (GROUP_LOOKS_MAX if capped else 0) + (self._request.sweep_max if self._guard is not None else 0)
        while len(drawn) < most and not lane.done and not self.full:
            asked = most - len(drawn) + looks
            rows = lane.read(self._tx, asked)
            if looks:
                fresh, met = self._pass_over(lane, rows, most - len(drawn))
            else:
                fresh, met = rows, len(rows)
            drawn += self._fitting(fresh)
            lane.place += met
            lane.done = lane.done or met == len(rows) < asked
        if lane.number == LANE_APART:
            self._took(("task", "", lane.task), len(drawn))
        return drawn

    def _fitting(self, rows: list[Row]) -> list[Row]:
        """The unexpired rows up to the first whose arguments do not fit; the first job always fits."""
        now = self._tx.now
        fitting: list[Row] = []
        for row in rows:
            if row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= now:
                self._expired.append(row)
                continue
            if row[_SIZE] > self._bytes_left and self._drawn:
                self.full = True
                break
            self._bytes_left -= row[_SIZE]
            self._drawn += 1
            fitting.append(row)
        return fitting

    def _pass_over(self, lane: Lane, rows: list[Row], most: int) -> tuple[list[Row], int]:
        """The first `most` rows that the rules allow, with a requested priority, whose group is below
        most_by_group for this worker; and how many rows were read to find them."""
        share, priorities, met, guard = self._request.most_by_group, self._request.priorities, 0, self._guard
        fresh: list[Row] = []
        for row in rows:
            if len(fresh) == most:
                break
            seq, _, task, queue, _, priority, group = row[:7]
            if guard is not None and not guard.lets(lane.number, seq, task, queue, group):
                if lane.refused == self._request.sweep_max:
                    lane.done = True
                    break
                lane.refused += 1
                met += 1
                continue
            late = row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= self._tx.now
            held = 0 if share is None or group is None else self._held.get((queue, group), 0)
            other = priorities is not None and not priorities[0] <= priority <= priorities[1]
            if not late and (other or (share is not None and held >= share)):
                if lane.looks == GROUP_LOOKS_MAX:
                    lane.done = True
                    break
                lane.looks += 1
                met += 1
                continue
            if share is not None and group is not None and not late:
                self._held[queue, group] = held + 1
            met += 1
            fresh.append(row)
        return fresh, met

    # ------------------------------------------------------------------ leasing

    def _took(self, place: Place, number: int) -> None:
        self._leased[place] = self._leased.get(place, 0) + number

    def _lease(self, queue: str, rows: list[Row]) -> None:
        self._take(_TAKE, rows, {})
        groups = [row[_GROUP] for row in rows if row[_GROUP] is not None]
        if groups and self._rules.windowed(queue):
            self._leave_room(queue, groups)
        if not self._rules.holds_nothing:
            self._mark(queue, rows)

    def lease_heads(self, rows: list[Row]) -> None:
        """Lease jobs straight from `waiting`, with their own turns or new ones."""
        if rows:
            turn = self._tx.ticks(len(rows))
            rows.sort(key=lambda row: (-row[_PRIORITY], turn if row[_TURN] is None else row[_TURN], row[_SEQ]))
            self._lease_at_once(_TAKE_HEADS, [row[:_TURN] for row in rows], turn)

    def lease_due(self, rows: list[Row]) -> None:
        """Lease jobs straight from `scheduled`, in the order in which they were due."""
        if rows:
            rows.sort(key=lambda row: -row[_PRIORITY])
            self._lease_at_once(_TAKE_DUE, rows, self._tx.ticks(len(rows)))

    def _lease_at_once(self, statement: str, rows: list[Row], turn: int) -> None:
        self._take(statement, rows, {"turn": turn})
        self._bytes_left -= sum([row[_SIZE] for row in rows])

    def chain(self) -> None:
        """Also lease the jobs that wait behind the leased ones of strict groups (R81)."""
        rules, left = self._rules, self._request.chained_max
        if self._guard is not None:
            return
        fronts = [lease for lease in self.leases if self._may_lead(lease)]
        waiting, rows = with_waiting(self._tx, fronts), list[Row]()
        for number, lease in enumerate(fronts):
            if (lease.queue, lease.group) not in waiting:
                continue
            most = min(self._request.chain_by_queue[lease.queue] - 1, -(-left // (len(fronts) - number)))
            if most > 0 and not self.full:
                behind = self._behind(lease, most)
                left -= len(behind)
                rows += behind
        if rows:
            self._take(_TAKE_CHAINED, rows, {"trimmed": encoded(sorted(rules.trimmed)).decode()}, chained=True)

    def _may_lead(self, lease: Lease) -> bool:
        """Whether jobs may be chained to this one."""
        if lease.group is None or self._request.chain_by_queue.get(lease.queue, 1) < 2:
            return False
        rules, queue = self._rules, self._rules.queue(lease.queue)
        if (
            lease.suspect
            or not lease.max_stalls
            or rules.lanes.get(lease.task)
            or not rules.strict(lease.queue, lease.group)
        ):
            return False
        if queue.order_window is not None or queue.limit < UNLIMITED or queue.rate is not None:
            return False
        return rules.group_rate(lease.queue, lease.group) is None

    def _behind(self, lease: Lease, most: int) -> list[Row]:
        """The next jobs of its group, up to the first that may not be chained."""
        lanes, now = self._rules.lanes, self._tx.now
        seq, behind = settle.seq_of(lease.token), list[Row]()
        rows = self._tx.cursor.execute(_CHAINED, (lease.queue, lease.group, most)).fetchall()
        order = None
        if any(row[_ORDER] is not None for row in rows):
            [order] = self._tx.cursor.execute(SQL["claim.ordinal"], (seq,)).fetchone()
        place = formulas.place(order, seq)
        for row in rows:
            late = row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= now
            odd = row[_SUSPECT] or not row[_MAX_STALLS] or lanes.get(row[_TASK])
            if late or odd or row[_PRIORITY] != lease.priority or formulas.place(row[_ORDER], row[_SEQ]) < place:
                break
            if row[_SIZE] > self._bytes_left:
                self.full = True
                break
            self._bytes_left -= row[_SIZE]
            place = formulas.place(row[_ORDER], row[_SEQ])
            behind.append(row[:_ORDER])
        return behind

    def _take(self, statement: str, rows: list[Row], more: Mapping[str, Any], *, chained: bool = False) -> None:
        tx, request = self._tx, self._request
        fence, nonce = tx.ticks(len(rows)), os.urandom(8).hex()
        values = {"fence": fence, "nonce": nonce, "worker": request.worker, "call": request.call, "now": tx.now, **more}
        seqs = [row[_SEQ] for row in rows]
        values |= {"seqs": encoded(seqs).decode(), "seq": seqs[0]}
        tx.cursor.execute(_OF_ONE.get(statement, statement) if len(rows) == 1 else statement, values)
        rows = with_bodies(tx, rows)
        self.leases += [
            as_lease(row, make_token(row[_SEQ], number, nonce), number, tx.now, chained=chained)
            for number, row in enumerate(rows, fence)
        ]
        if any(row[_KEY] is not None for row in rows):
            tx.cursor.execute(SQL["claim.start_keys"], (values["seqs"],))

    def _leave_room(self, queue: str, groups: list[str]) -> None:
        """Record which groups' buckets to charge; refill a group that is held back by a bound on its ready jobs."""
        for group, number in Counter(groups).items():
            if self._rules.group_rate(queue, group) is not None:
                self._took(("group", queue, group), number)
            elif self._rules.group_limit(queue, group) <= READY_PER_GROUP_MAX:
                continue
            self._tx.touch(queue, group)

    def _mark(self, queue: str, rows: list[Row]) -> None:
        """Flag jobs that a limit or a retention rule counts, and remove them from their `apart` lane."""
        rules, tx = self._rules, self._tx
        self._took(("queue", queue, ""), len(rows))
        tasks = {*rules.tasks, *rules.trimmed}
        limited = rules.queue(queue).limit < UNLIMITED
        counted = [row[_SEQ] for row in rows if limited or row[_TASK] in tasks]
        if counted:
            tx.cursor.execute(SQL["claim.count"], (encoded(counted).decode(),))

    def charge(self) -> None:
        """Charge each bucket once for everything leased from it."""
        for place, starts in self._leased.items():
            kind, queue, name = place
            if kind == "queue":
                rate = self._rules.queue(queue).rate
            elif kind == "task":
                rate = self._rules.tasks[name].rate
            else:
                rate = self._rules.group_rate(queue, name)
            if rate is not None and starts:
                spent = (self._rules.bucket(place) or Bucket()).spent_until
                spend(self._tx, place, charged(rate, spent, self._tx.now, starts))


def make_token(seq: int, fence: int, nonce: str) -> str:
    """New at every claim: unguessable by its nonce. It contains the seq, so settling needs no lookup by id."""
    return f"{seq:x}.{fence:x}.{nonce}"


def with_bodies(tx: Transaction, rows: list[Row]) -> list[Row]:
    """Fill in arguments that were too big to read before it was decided which jobs are leased."""
    big = [row[_SEQ] for row in rows if row[_ARGS] is None]
    if not big:
        return rows
    bodies = dict(tx.cursor.execute(SQL["claim.bodies"], (encoded(big).decode(),)).fetchall())
    return [row if row[_ARGS] is not None else (*row[:_ARGS], bodies[row[_SEQ]], *row[_ARGS + 1 :]) for row in rows]


def fitting(rows: list[Row], chained: list[bool], request: ClaimRequest) -> list[bool]:
    """Which of these jobs, from the first on, fit into a request; one always does."""
    left, most, chained_max = request.bytes_max, request.most, request.chained_max
    fit: list[bool] = []
    dropped: set[tuple[str, str]] = set()
    for row, behind in zip(rows, chained, strict=True):
        place = (row[_QUEUE], row[_GROUP])
        left -= row[_SIZE]
        fits = (chained_max > 0 and place not in dropped if behind else most > 0) and (left >= 0 or not any(fit))
        if fits:
            most, chained_max = most - (not behind), chained_max - behind
        else:
            dropped.add(place)
        fit.append(fits)
    return fit


def as_lease(row: Row, token: str, fence: int, started_at: float, *, chained: bool = False) -> Lease:
    """A lease from a row of claim.lane, in the order of Lease's fields: positional because it runs for every job."""
    (
        _, job_id, task, queue, args, priority, group, key, attempts, failures, stalls, max_stalls, created_at, _,
        options, suspect, shared_stalls, due_at, _,
    ) = row  # fmt: skip
    place = (priority, group, key, attempts + 1, failures, stalls, max_stalls)
    return Lease(
        *(job_id, token, fence, task, queue, args, *place, created_at, started_at, options, suspect == 1),
        *(shared_stalls, due_at, chained),
    )


# ----------------------------------------------------------------------------------------------------------------------
# What may start now: counts running jobs, reads the buckets, and finds what holds ready jobs back. Never writes.


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


def work_at_hand(cursor: sqlite3.Cursor, queues: Sequence[str], now: float) -> tuple[bool, float | None]:
    """Is something claimable in these queues now, and if not, when may something become claimable by itself?"""
    rules = Rules(cursor)
    paused = rules.paused_queues
    if rules.rearranging and rules.closed is None:
        return True, None  # every claim continues the rearrangement
    if any(queue not in paused and claimable(cursor, rules, queue, now) for queue in queues):
        return True, None
    due, waking = cursor.execute(SQL["read.next_due"]).fetchone()
    times = (due, waking, next_opening(cursor, rules, queues, now))
    next_due = min([time for time in times if time is not None], default=None)
    return next_due is not None and next_due <= now, next_due
