"""Which ready jobs a claim takes: queue by queue, lane by lane, as far as limits, rates and the worker's room allow.

Called by lease.py inside the critical section. What may start is flow.py's business, what a lease is store.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

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
    return draw.rows


def fitting(sizes: Iterable[int], request: ClaimRequest) -> int:
    """How many jobs with arguments of these sizes fit into a request, from the first on; one always does."""
    left = request.bytes_max
    fit = 0
    for size in sizes:
        left -= size
        if fit == request.most or (fit and left < 0):
            break
        fit += 1
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
            if row.expires_at is not None and row.expires_at <= self._wall:
                store.expire(row, self._wall)
            elif self._has_its_share(row):
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

    def _has_its_share(self, row: Row) -> bool:
        most = self.request.most_by_group
        return most is not None and row.group is not None and self._held[row.queue, row.group] >= most
