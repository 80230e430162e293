"""The meter: what one worker has done since it started, for a monitoring system to read (`--metrics-port`).

Made only if somebody asks for it. The keeper's parts count into it on the keeper's loop, and it is read there, so it
has no lock. Numbers only grow, and how many names it tells apart is bounded. It never calls the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ...records import Lease
from ...rollups import BOUNDS, OTHER, PER_DOUBLING

PAIRS_MAX = 100  # queues and tasks told apart; further tasks are counted as OTHER in their queue, or in OTHER
BUCKET_BOUNDS: tuple[float, ...] = tuple(BOUNDS[: 23 * PER_DOUBLING : PER_DOUBLING])  # 1 ms, doubling, up to 70 min

Pair = tuple[str, str]  # queue, task


class Durations:
    """How many durations fell into each bucket, and their sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_BOUNDS) + 1)  # the last one has no bound
        self.seconds = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Count `number` durations of this length."""
        self.counts[bisect_left(BUCKET_BOUNDS, seconds)] += number
        self.seconds += max(0.0, seconds) * number


class Calls:
    """Calls of one verb: how many, how long together, how many of them failed."""

    __slots__ = ("errors", "number", "seconds")

    def __init__(self) -> None:
        self.number = self.errors = 0
        self.seconds = 0.0


class Meter:
    """A worker's numbers since it started."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str, str], int] = {}  # by queue, task, outcome
        self.waits: dict[Pair, Durations] = {}
        self.runs: dict[Pair, Durations] = {}
        self.stalls: dict[Pair, int] = {}
        self.lost: dict[Pair, int] = {}
        self.calls: dict[str, Calls] = {}  # by verb of the contract
        self._pairs: dict[Pair, Pair] = {}  # how each is counted
        self._queues: set[str] = set()

    # ------------------------------------------------------------------ counting, on the keeper's loop

    def settled(self, leases: Sequence[Lease], outcome: str, ended: float) -> None:
        """The store accepted these outcomes, which the keeper had at `ended` by the store's clock."""
        queue = task = None
        pair, waits, runs = ("", ""), Durations(), Durations()
        for lease in leases:
            if lease.task != task or lease.queue != queue:
                queue, task = lease.queue, lease.task
                pair = self._pair(queue, task)
                waits = self.waits.setdefault(pair, Durations())
                runs = self.runs.setdefault(pair, Durations())
            started = lease.started_at
            waits.add(started - lease.due_at)
            runs.add(ended - started)
            self._count(pair, outcome)
            if outcome == "stalled":
                self.stalls[pair] = self.stalls.get(pair, 0) + 1

    def recovered(self, queue: str, task: str, outcome: str) -> None:
        """This worker ended a lease of another one that stalled."""
        pair = self._pair(queue, task)
        self._count(pair, outcome)
        self.stalls[pair] = self.stalls.get(pair, 0) + 1

    def leases_lost(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            pair = self._pair(lease.queue, lease.task)
            self.lost[pair] = self.lost.get(pair, 0) + 1

    def called(self, verb: str, seconds: float, *, failed: bool = False) -> None:
        """A call to the store returned, or failed."""
        calls = self.calls.get(verb)
        if calls is None:
            calls = self.calls[verb] = Calls()
        calls.number += 1
        calls.seconds += seconds
        calls.errors += failed

    def _count(self, pair: Pair, outcome: str) -> None:
        key = (*pair, outcome)
        self.ended[key] = self.ended.get(key, 0) + 1

    def _pair(self, queue: str, task: str) -> Pair:
        known = self._pairs.get((queue, task))
        if known is not None:
            return known
        if len(self._pairs) < PAIRS_MAX:
            self._queues.add(queue)
            self._pairs[queue, task] = (queue, task)
            return queue, task
        return (queue if queue in self._queues else OTHER), OTHER
