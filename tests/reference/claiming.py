"""Which ready jobs a claim takes: queue by queue, lane by lane, as far as limits, rates and the worker's room allow.

Called by lease.py inside the critical section. What may start is flow.py's business, what a lease is store.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.lifecycle import State
from holdfast.rates import UNLIMITED
from holdfast.records import GROUP_LOOKS_MAX, ClaimRequest

from .flow import Allowance
from .rows import LANE_GROUPED, LANE_UNGROUPED, Holder, LaneName, Row
from .store import Store


def claim(store: Store, holder: Holder, request: ClaimRequest, wall: float) -> list[Row]:
    """Lease what may start now; then charge the buckets it came from."""
    allowance = Allowance(store, request, wall)
    draw = Draw(store, holder, request, wall, allowance)
    for queue in request.queues:
        _claim_queue(store, draw, queue, allowance.of_queue(queue, request.most - len(draw.rows)))
    allowance.charge()
    if not any(row.due_at <= wall for row in store.jobs.values() if row.state is State.SCHEDULED):
        draw.chain()
    return draw.rows


def chained(store: Store, rows: Sequence[Row]) -> list[bool]:
    """Which of the leases of a claim, in the order of their fences, are behind another one of their strict group."""
    places = [(row.queue, row.group) for row in rows]
    strict = [row.group is not None and store.strict(row.queue, row.group) for row in rows]
    return [strict[number] and place in places[:number] for number, place in enumerate(places)]


def fitting(rows: Sequence[Row], behind: Sequence[bool], request: ClaimRequest) -> list[Row]:
    """Which leases fit into a request, from the first on; one always does. None fits behind one that does not."""
    bytes_left, left = request.bytes_max, {False: request.most, True: request.chained_max}
    fit: list[Row] = []
    dropped: set[tuple[str, str | None]] = set()
    for row, follows in zip(rows, behind, strict=True):
        bytes_left -= len(row.args)
        place = (row.queue, row.group)
        if left[follows] and (bytes_left >= 0 or not fit) and not (follows and place in dropped):
            left[follows] -= 1
            fit.append(row)
        else:
            dropped.add(place)
    return fit


def _claim_queue(store: Store, draw: Draw, queue: str, most: int) -> None:
    if most <= 0 or draw.full:
        return
    allowance, until = draw.allowance, len(draw.rows) + most
    lanes: list[LaneName] = [(queue, LANE_UNGROUPED, ""), (queue, LANE_GROUPED, "")]
    lanes += [lane for lane in store.apart_lanes(queue) if allowance.of_lane(lane) > 0]
    first = draw.request.call % len(lanes)
    lanes = lanes[first:] + lanes[:first]
    for place, lane in enumerate(lanes):
        left = until - len(draw.rows)
        draw.take(lane, min(-(-left // (len(lanes) - place)), allowance.of_lane(lane)))
    for lane in lanes:
        draw.take(lane, min(until - len(draw.rows), allowance.of_lane(lane)))


class Draw:
    """The leases of one claim, drawn lane by lane."""

    def __init__(self, store: Store, holder: Holder, request: ClaimRequest, wall: float, allowance: Allowance) -> None:
        self._store, self._holder, self._wall = store, holder, wall
        self.request, self.allowance = request, allowance
        self.rows: list[Row] = []
        self.full = False  # the next job's arguments are more than what is left of bytes_max
        self._bytes_left = request.bytes_max
        self._held: Counter[tuple[str, str | None]] = Counter(
            (row.queue, row.group) for row in holder.leases.values() if row.group is not None
        )
        self._looks: Counter[LaneName] = Counter()

    def take(self, lane: LaneName, most: int) -> None:
        """Lease up to `most` jobs of a lane; those whose group has its share of this worker are passed over."""
        store, ready = self._store, self._store.lanes.get(lane)
        passed: list[tuple[Any, str]] = []
        taken = 0
        while ready is not None and not self.full and taken < most and (first := ready.first()) is not None:
            row = store.jobs[first[1]]
            if self._is_outside(row):  # another part of the lane, which is not read
                passed.append(first)
                ready.remove(row.id)
            elif row.expires_at is not None and row.expires_at <= self._wall:
                store.expire(row, self._wall)
            elif self._has_its_share(row) or self._is_other(row.priority):
                if self._looks[lane] >= GROUP_LOOKS_MAX:
                    break
                self._looks[lane] += 1
                passed.append(first)
                ready.remove(row.id)
            elif self.rows and len(row.args) > self._bytes_left:
                self.full = True
            else:
                store.lease_to(row, self._holder, self.request.call, self._wall)
                self.allowance.took(row)
                self._held[row.queue, row.group] += 1
                self.rows.append(row)
                self._bytes_left -= len(row.args)
                taken += 1
        for rank, job_id in passed:
            if ready is not None:
                ready.add(rank, job_id)

    def chain(self) -> None:
        """Lease what waits behind the jobs of strict groups, too."""
        request, left = self.request, self.request.chained_max
        fronts = [row for row in self.rows if request.chain_by_queue.get(row.queue, 1) > 1 and self._may_lead(row)]
        for number, front in enumerate(fronts):
            most = min(request.chain_by_queue[front.queue] - 1, -(-left // (len(fronts) - number)))
            for row in self._behind(front, most):
                if len(row.args) > self._bytes_left:
                    return
                self._store.lease_to(row, self._holder, request.call, self._wall)
                self.rows.append(row)
                self._bytes_left -= len(row.args)
                left -= 1

    def _may_lead(self, row: Row) -> bool:
        store = self._store
        if row.group is None or not store.strict(row.queue, row.group) or not self._is_plain(row):
            return False
        free = store.queue_limit(row.queue) >= UNLIMITED and store.queue_rate(row.queue) is None
        return free and store.order_window(row.queue) is None and store.group_rate((row.queue, row.group)) is None

    def _is_plain(self, row: Row) -> bool:
        return not row.suspect and row.max_stalls > 0 and self._store.lane_of(row) == LANE_GROUPED

    def _behind(self, front: Row, most: int) -> list[Row]:
        waiting = [row for row in self._store.jobs.values() if row.state is State.WAITING]
        ours = [row for row in waiting if (row.queue, row.group) == (front.queue, front.group)]
        found: list[Row] = []
        for row in sorted(ours, key=lambda row: row.place)[: max(0, most)]:
            late = row.expires_at is not None and row.expires_at <= self._wall
            before = (found or [front])[-1]
            if late or not self._is_plain(row) or row.priority != front.priority or row.place[1:] < before.place[1:]:
                break
            found.append(row)
        return found

    def _is_other(self, priority: int) -> bool:
        wanted = self.request.priorities
        return wanted is not None and not wanted[0] <= priority <= wanted[1]

    def _is_outside(self, row: Row) -> bool:
        return self._store.age_shift(row) is None and self._is_other(row.rank)

    def _has_its_share(self, row: Row) -> bool:
        most = self.request.most_by_group
        return most is not None and row.group is not None and self._held[row.queue, row.group] >= most
