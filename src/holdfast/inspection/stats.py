"""stats: how attempts ended, and how long they waited and ran, by task, queue or worker, over time.

Called by the app and the command line. Adds up roll-ups (rollups.py) that the store keeps; never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..backends.contract import Reader
from ..clock import moment
from ..rollups import SPAN_SECONDS, Rollup, RollupQuery, Span, added, percentile, start_of

By = Literal["task", "queue", "worker"]

MINUTES_UP_TO = 3 * 3600.0  # longer times are shown by the hour
OUTCOMES = ("succeeded", "failed", "snoozed", "dead", "cancelled", "stalled", "expired")
_FAILURES = ("failed", "dead", "stalled", "expired")
_ENDED = (*_FAILURES, "succeeded")


class Times(Struct, frozen=True, kw_only=True):
    """Percentiles of a duration in seconds, from buckets (at most an eighth off); None if nothing was counted."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class StatPoint(Struct, frozen=True, kw_only=True):
    """What ended within one minute or hour."""

    at: datetime  # its start
    counts: Mapping[str, int]  # by outcome; zero counts are left out
    wait: Times  # due until leased
    run: Times  # leased until ended


class StatLine(Struct, frozen=True, kw_only=True):
    """What ended in the whole time, of one task, queue or worker."""

    name: str  # "" in the total
    counts: Mapping[str, int]  # by outcome; zero counts are left out
    failure_rate: float | None  # failed, dead, stalled and expired among these and succeeded; None: there were none
    wait: Times
    run: Times
    series: tuple[StatPoint, ...] = ()  # one per minute or hour, also where nothing ended

    @property
    def count(self) -> int:
        """All outcomes together."""
        return sum(self.counts.values())


class Stats(Struct, frozen=True, kw_only=True):
    """Statistics by task, queue or worker. Times are those of the store's clock."""

    by: By
    step: Span
    since: datetime
    until: datetime
    total: StatLine
    lines: tuple[StatLine, ...] = ()  # most attempts first

    @property
    def seconds(self) -> float:
        """The length of the time covered."""
        return (self.until - self.since).total_seconds()


async def stats(reader: Reader, now: float, by: By, seconds: float, step: Span | None) -> Stats:
    """What ended within the last `seconds`, including the current minute or hour so far."""
    chosen: Span = step or ("minute" if seconds <= MINUTES_UP_TO or by == "worker" else "hour")
    since = start_of(chosen, now - seconds)
    query = RollupQuery(span=chosen, since=since, until=now + SPAN_SECONDS[chosen], workers=by == "worker")
    return summed(await reader.rollups(query), by=by, step=chosen, since=since, until=now)


def summed(found: Sequence[Rollup], *, by: By, step: Span, since: float, until: float) -> Stats:
    """Add up roll-ups that were read for this time."""
    times = _starts(step, since, until)
    named: dict[str, list[Rollup]] = {}
    for one in found:
        named.setdefault(getattr(one, by), []).append(one)
    lines = [_line(name, part, times) for name, part in named.items()]
    lines.sort(key=lambda line: (-line.count, line.name))
    total = _line("", found, times)
    return Stats(by=by, step=step, since=moment(since), until=moment(until), total=total, lines=tuple(lines))


def _starts(step: Span, since: float, until: float) -> list[float]:
    seconds = SPAN_SECONDS[step]
    return [since + n * seconds for n in range(int((until - since) // seconds) + 1)]


def _line(name: str, found: Sequence[Rollup], times: Sequence[float]) -> StatLine:
    at: dict[float, list[Rollup]] = {start: [] for start in times}
    for one in found:
        at.setdefault(one.at, []).append(one)
    counts, wait, run = _sums(found)
    ended = sum(counts.get(outcome, 0) for outcome in _ENDED)
    failures = sum(counts.get(outcome, 0) for outcome in _FAILURES)
    return StatLine(
        name=name,
        counts=counts,
        failure_rate=failures / ended if ended else None,
        wait=wait,
        run=run,
        series=tuple(_point(start, part) for start, part in sorted(at.items())),
    )


def _point(at: float, found: Sequence[Rollup]) -> StatPoint:
    counts, wait, run = _sums(found)
    return StatPoint(at=moment(at), counts=counts, wait=wait, run=run)


def _sums(found: Iterable[Rollup]) -> tuple[dict[str, int], Times, Times]:
    counts: dict[str, int] = {}
    waits: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()
    for one in found:
        counts[one.outcome] = counts.get(one.outcome, 0) + one.count
        waits, runs = added(waits, one.waits), added(runs, one.runs)
    shown = {outcome: counts[outcome] for outcome in OUTCOMES if counts.get(outcome)}
    return shown, _times(waits), _times(runs)


def _times(counts: Sequence[int]) -> Times:
    return Times(p50=percentile(counts, 0.5), p95=percentile(counts, 0.95), p99=percentile(counts, 0.99))
