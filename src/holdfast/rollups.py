"""Roll-ups and events: what workers record and other processes read; how times are counted in fixed buckets, added up
and read as percentiles.

Used by the keeper, which counts, by the stores, and by the readers. Pure: no I/O, no clock.

A bucket's bounds never change, so counts of any workers, minutes and shards can be added. Three buckets per doubling: a
percentile read off them is at most an eighth off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .lifecycle import State

Span = Literal["minute", "hour"]
OTHER = "(other)"  # the sum of all queues or tasks beyond the number that are counted separately


class Rollup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many attempts of a task in a queue ended this way within one minute or hour, and how long they took.

    `waits` (due until leased) and `runs` (leased until ended) count by bucket (rollups.py), without zeros at the end.
    A roll-up of a worker has its id instead of queue and task.
    """

    outcome: str  # succeeded failed snoozed dead cancelled stalled expired; lost: no outcome, the lease was lost
    count: int
    queue: str = ""
    task: str = ""
    worker: str = ""
    at: float = 0.0  # start of its minute or hour; set by the store
    waits: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


class RollupQuery(Struct, frozen=True, kw_only=True):
    """Which roll-ups: of the minutes or hours that start from `since` on and before `until`."""

    span: Span
    since: float
    until: float
    queue: str | None = None
    task: str | None = None
    workers: bool = False  # roll-ups of workers instead


class KeptEvent(Struct, frozen=True, kw_only=True):
    """An event as the store keeps it. `body` is the event as JSON; see events.py."""

    name: str
    body: bytes
    position: int = 0  # grows with every event; set by the store
    at: float = 0.0  # set by the store


class EventPage(Struct, frozen=True, kw_only=True):
    """Events in the order of their positions, and where to continue."""

    events: tuple[KeptEvent, ...] = ()
    position: int = 0  # of the last one read: continue after it
    missed: int = 0  # events after the requested position that are no longer kept


class Recording(Struct, frozen=True, kw_only=True):
    """What a worker has counted and seen since its last recording. Numbered, so that a repeated call adds nothing.

    An empty `worker` has no number: an operator's event.
    """

    worker: str = ""
    number: int = 0
    rollups: tuple[Rollup, ...] = ()  # one per queue, task, worker and outcome
    events: tuple[KeptEvent, ...] = ()
    keep_minutes: float | None = None  # seconds; None: prune nothing in this call
    keep_hours: float | None = None


# ----------------------------------------------------------------------------------------------------------------------
# Buckets


PER_DOUBLING = 3
FIRST_SECONDS = 0.001
# The last is 12 days.
BOUNDS: tuple[float, ...] = tuple(FIRST_SECONDS * 2.0 ** (n / PER_DOUBLING) for n in range(30 * PER_DOUBLING + 1))
BUCKETS = len(BOUNDS) + 1  # the first holds everything up to a millisecond, the last everything above 12 days

SPAN_SECONDS: dict[Span, float] = {"minute": 60.0, "hour": 3600.0}


def recovered_as(state: State) -> str:
    """The outcome under which a recovered lease is counted: a stall, unless its job ended with it."""
    return state.value if state in (State.DEAD, State.CANCELLED) else "stalled"


def bucket_of(seconds: float) -> int:
    """The bucket that counts this duration."""
    return bisect_left(BOUNDS, seconds)


def added(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The sum of two lists of counts; a shorter one lacks zeros at its end."""
    if len(first) < len(second):
        first, second = second, first
    return (*(one + other for one, other in zip(first, second, strict=False)), *first[len(second) :])


def percentile(counts: Sequence[int], share: float) -> float | None:
    """The duration that this share of the counted ones does not exceed, interpolated in its bucket; None if there are
    none."""
    total = sum(counts)
    if not total:
        return None
    wanted, before = share * total, 0
    for number, count in enumerate(counts):
        if count and before + count >= wanted:
            low, high = _bounds(number)
            return low + (high - low) * max(0.0, wanted - before) / count
        before += count
    return BOUNDS[-1]


def _bounds(number: int) -> tuple[float, float]:
    if number == 0:
        return 0.0, BOUNDS[0]
    return BOUNDS[number - 1], BOUNDS[min(number, len(BOUNDS) - 1)]


def start_of(span: Span, at: float) -> float:
    """The start of the minute or hour that contains this time."""
    seconds = SPAN_SECONDS[span]
    return at // seconds * seconds


def merged(found: Iterable[Rollup]) -> list[Rollup]:
    """One roll-up for each time, queue, task, worker and outcome, in that order."""
    total: dict[tuple[float, str, str, str, str], Rollup] = {}
    for one in found:
        key = (one.at, one.queue, one.task, one.worker, one.outcome)
        known = total.get(key)
        total[key] = one if known is None else plus(known, one)
    return [total[key] for key in sorted(total)]


def plus(first: Rollup, second: Rollup) -> Rollup:
    """Both together, with the names of the first."""
    waits, runs = added(first.waits, second.waits), added(first.runs, second.runs)
    return replace(first, count=first.count + second.count, waits=waits, runs=runs)
