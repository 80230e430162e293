"""The numbers of a store for a monitoring system: how much waits where and for how long, what ended lately, who works.

Called by metrics.py. Reads through the contract and changes nothing; `look` reads, `Numbers` is plain data. The number
of queues and tasks it counts separately is bounded; the rest is added up under OTHER. A scrape reads the roll-ups of a
few minutes, one row per worker and per queue, and one scheduled job, whatever the store holds. Only the exact counts of
jobs can cost more: SQL stores count rows. They are read again only after COUNTS_REST times as long as that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ..backends.contract import Reader
from ..errors import OutcomeUnknown
from ..lifecycle import State
from ..records import JobQuery, QueueRecord, WorkerRecord
from ..rollups import OTHER, Rollup, RollupQuery, added, percentile, start_of

RECENT_SECONDS = 300.0  # whole minutes: those before the current one
QUEUES_MAX = TASKS_MAX = 100  # counted separately
COUNTS_REST = 20.0  # so counting takes at most a twentieth of the time, however often somebody asks
QUANTILES = (0.5, 0.95, 0.99)
_UNFINISHED = (State.READY, State.WAITING, State.SCHEDULED, State.RUNNING)


class QueueNumbers(Struct, frozen=True, kw_only=True):
    """One queue, or OTHER."""

    name: str
    counts: Mapping[str, int]  # by state, zeros too
    oldest_ready_seconds: float  # since the oldest ready job was due; 0 if none is ready
    paused: bool


class Numbers(Struct, frozen=True, kw_only=True):
    """A store at one time."""

    queues: Sequence[QueueNumbers]
    ended: Mapping[tuple[str, str], int]  # by task and outcome, within RECENT_SECONDS
    lost: Mapping[str, int]  # leases, by task, likewise
    waits: Mapping[str, Mapping[float, float]]  # by queue and quantile, likewise
    runs: Mapping[str, Mapping[float, float]]  # by task and quantile, likewise
    workers: Mapping[str, int]  # alive and expired
    slots: int  # of workers that are alive
    renewal_age_seconds: float  # since the live worker that has been silent longest renewed; 0 if there is none
    sweep_lag_seconds: Mapping[str, float]  # how late the work of each sweep is
    counts_age_seconds: float  # since the jobs were counted; infinite if they could not be


class Looker:
    """Takes the numbers of one store. Remembers the counts of jobs for a while if they were costly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: Sequence[QueueRecord] = ()
        self._counted_at = self._count_again_at = float("-inf")

    async def look(self, reader: Reader, now: float | None = None) -> Numbers:
        """Read the store once."""
        workers = await reader.workers(now)  # None is not the same as its clock: leases are timed by another one
        now = await reader.clock() if now is None else now
        queues = await self._count(reader)
        until = start_of("minute", now)
        lately = Lately(await reader.rollups(RollupQuery(span="minute", since=until - RECENT_SECONDS, until=until)))
        alive = [worker for worker in workers if not worker.expired]
        return Numbers(
            queues=_queues(queues, now),
            ended=lately.ended,
            lost=lately.lost,
            waits=_quantiles(lately.waits),
            runs=_quantiles(lately.runs),
            workers={"alive": len(alive), "expired": len(workers) - len(alive)},
            slots=sum(worker.slots for worker in alive),
            renewal_age_seconds=max((max(0.0, now - worker.renewed_at) for worker in alive), default=0.0),
            sweep_lag_seconds={
                "promote": await _promote_lag(reader, now),
                "recover": max((_recover_lag(worker, now) for worker in workers), default=0.0),
            },
            counts_age_seconds=self._clock() - self._counted_at,
        )

    async def _count(self, reader: Reader) -> Sequence[QueueRecord]:
        """All queues with their jobs counted; the counts of last time while a new one would cost too much.

        A store too large to be counted within a call's timeout is one whose counts grow old, or are missing.
        """
        began = self._clock()
        if began >= self._count_again_at:
            try:
                self._queues = await reader.queues()
                self._counted_at = self._clock()
            except OutcomeUnknown:
                pass
            ended = self._clock()
            self._count_again_at = ended + COUNTS_REST * (ended - began)
        return self._queues


async def _promote_lag(reader: Reader, now: float) -> float:
    """How long the scheduled job that was due first has been due."""
    first = (await reader.page(JobQuery(states=(State.SCHEDULED,), sort="due", limit=1))).jobs
    return max(0.0, now - first[0].due_at) if first else 0.0


def _recover_lag(worker: WorkerRecord, now: float) -> float:
    """How long ago this worker's leases expired, if it still has some."""
    if not worker.expired or not worker.running:
        return 0.0
    return max(0.0, now - worker.renewed_at - worker.lease_seconds)


def _queues(found: Sequence[QueueRecord], now: float) -> list[QueueNumbers]:
    by_size = sorted(found, key=lambda one: -sum(one.counts.get(state, 0) for state in _UNFINISHED))
    shown, rest = by_size[:QUEUES_MAX], by_size[QUEUES_MAX:]
    numbers = [_queue(one.name, [one], now) for one in sorted(shown, key=lambda one: one.name)]
    return [*numbers, _queue(OTHER, rest, now)] if rest else numbers


def _queue(name: str, parts: Sequence[QueueRecord], now: float) -> QueueNumbers:
    due = [one.oldest_due_at for one in parts if one.oldest_due_at is not None]
    return QueueNumbers(
        name=name,
        counts={state.value: sum(one.counts.get(state, 0) for one in parts) for state in State},
        oldest_ready_seconds=max(0.0, now - min(due)) if due else 0.0,
        paused=all(one.pause is not None for one in parts),
    )


class Lately:
    """What ended lately, of the tasks and queues with the most attempts; the rest together."""

    def __init__(self, found: Sequence[Rollup]) -> None:
        tasks, queues = _largest(found, "task", TASKS_MAX), _largest(found, "queue", QUEUES_MAX)
        self.ended: dict[tuple[str, str], int] = {}
        self.lost: dict[str, int] = {}
        self.waits: dict[str, tuple[int, ...]] = {}
        self.runs: dict[str, tuple[int, ...]] = {}
        for one in found:
            task, queue = (one.task if one.task in tasks else OTHER), (one.queue if one.queue in queues else OTHER)
            if one.outcome == "lost":
                self.lost[task] = self.lost.get(task, 0) + one.count
                continue
            self.ended[task, one.outcome] = self.ended.get((task, one.outcome), 0) + one.count
            self.waits[queue] = added(self.waits.get(queue, ()), one.waits)
            self.runs[task] = added(self.runs.get(task, ()), one.runs)


def _largest(found: Sequence[Rollup], by: str, most: int) -> set[str]:
    sizes: dict[str, int] = {}
    for one in found:
        name = getattr(one, by)
        sizes[name] = sizes.get(name, 0) + one.count
    return set(sorted(sizes, key=lambda name: -sizes[name])[:most])


def _quantiles(counted: Mapping[str, tuple[int, ...]]) -> dict[str, dict[float, float]]:
    found = {name: {share: percentile(counts, share) for share in QUANTILES} for name, counts in counted.items()}
    return {
        name: {share: value for share, value in values.items() if value is not None} for name, values in found.items()
    }
