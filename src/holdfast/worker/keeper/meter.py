"""The meter: what one worker has done since it started, for a monitoring system to read (`--metrics-port`).

Created only if it is used. The keeper's parts count into it on the keeper's loop, and it is copied there, so it
needs no lock. Counters only grow, and the number of names counted separately is bounded. It never calls the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from ...records import Lease
from ...rollups import BOUNDS, OTHER, PER_DOUBLING

PAIRS_MAX = 100  # queues and tasks counted separately; further tasks are counted as OTHER in their queue, or in OTHER
BUCKET_BOUNDS: tuple[float, ...] = tuple(BOUNDS[: 23 * PER_DOUBLING : PER_DOUBLING])  # 1 ms, doubling, up to 70 min

Pair = tuple[str, str]  # queue, task
_queue_and_task = attrgetter("queue", "task")


class Durations:
    """How many durations fell into each bucket, and their sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_BOUNDS) + 1)  # the last one has no bound
        self.seconds = 0.0

    def copy(self) -> Durations:
        new = Durations()
        new.counts, new.seconds = self.counts[:], self.seconds
        return new


class Calls:
    """Calls of one verb: how many, their total time, and how many failed."""

    __slots__ = ("errors", "number", "seconds")

    def __init__(self) -> None:
        self.number = self.errors = 0
        self.seconds = 0.0

    def copy(self) -> Calls:
        new = Calls()
        new.number, new.errors, new.seconds = self.number, self.errors, self.seconds
        return new


class Meter:
    """A worker's counters since it started."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str, str], int] = {}  # by queue, task, outcome
        self.waits: dict[Pair, Durations] = {}
        self.runs: dict[Pair, Durations] = {}
        self.stalls: dict[Pair, int] = {}
        self.lost: dict[Pair, int] = {}
        self.calls: dict[str, Calls] = {}  # by verb of the contract
        self._pairs: dict[Pair, Pair] = {}  # the pair under which each is counted
        self._queues: set[str] = set()

    def copy(self) -> Meter:
        """A copy of the current counters, for other threads."""
        new = Meter()
        new.ended, new.stalls, new.lost = self.ended.copy(), self.stalls.copy(), self.lost.copy()
        new.waits = {pair: durations.copy() for pair, durations in self.waits.items()}
        new.runs = {pair: durations.copy() for pair, durations in self.runs.items()}
        new.calls = {verb: calls.copy() for verb, calls in self.calls.items()}
        return new

    # ------------------------------------------------------------------ counting, on the keeper's loop

    def expect(self, pairs: Iterable[Pair]) -> None:
        """Start these queues and tasks at 0: a monitoring system misses the first increase of a new series."""
        for queue, task in pairs:
            self._durations(self._pair(queue, task))

    def settled(self, leases: Sequence[Lease], outcome: str, ended: float) -> None:
        """The store accepted these outcomes, which the keeper had at `ended` by the store's clock.

        It runs for every job, so leases of one queue and task, which usually come together, share their look-ups.
        """
        for (queue, task), some in groupby(leases, _queue_and_task):
            self._settled(self._pair(queue, task), list(some), outcome, ended)

    def _settled(self, pair: Pair, leases: Sequence[Lease], outcome: str, ended: float) -> None:
        waits, runs = self._durations(pair)
        waited = [lease.started_at - lease.due_at for lease in leases]
        ran = [ended - lease.started_at for lease in leases]
        for durations, seconds in ((waits, waited), (runs, ran)):
            counts = durations.counts
            for one in seconds:
                counts[bisect_left(BUCKET_BOUNDS, one)] += 1
            durations.seconds += max(0.0, sum(seconds))
        self._count(pair, outcome, len(leases))
        if outcome == "stalled":
            self.stalls[pair] = self.stalls.get(pair, 0) + len(leases)

    def stalled(self, queue: str, task: str) -> None:
        """A stall that is counted under another outcome: the job died of it."""
        pair = self._pair(queue, task)
        self.stalls[pair] = self.stalls.get(pair, 0) + 1

    def recovered(self, queue: str, task: str, outcome: str) -> None:
        """This worker recovered a stalled lease of another worker."""
        self._count(self._pair(queue, task), outcome)
        self.stalled(queue, task)

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

    def _durations(self, pair: Pair) -> tuple[Durations, Durations]:
        """How long attempts of this pair waited and ran."""
        waits, runs = self.waits.get(pair), self.runs.get(pair)
        if waits is None or runs is None:
            waits, runs = self.waits[pair], self.runs[pair] = Durations(), Durations()
        return waits, runs

    def _count(self, pair: Pair, outcome: str, number: int = 1) -> None:
        key = (*pair, outcome)
        self.ended[key] = self.ended.get(key, 0) + number

    def _pair(self, queue: str, task: str) -> Pair:
        known = self._pairs.get((queue, task))
        if known is not None:
            return known
        if len(self._pairs) < PAIRS_MAX:
            self._queues.add(queue)
            self._pairs[queue, task] = (queue, task)
            return queue, task
        return (queue if queue in self._queues else OTHER), OTHER
