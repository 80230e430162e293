"""The overview: problems first, then jobs by state, charts of what ended and of what waits, and the queues.

Called through pages.PAGES. What ended comes from the store's roll-ups; the backlog over time is what this dashboard saw
while a page was open, since no store keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ..inspection.stats import StatLine, StatPoint, Stats
from ..records import WorkerRecord
from . import charts
from .charts import Chart, Frame, Series
from .formats import duration, num
from .store import Sample
from .visit import Values, Visit

SPANS = {"1h": 3600.0, "24h": 86400.0, "7d": 7 * 86400.0}
OUTCOMES = (("failed", "scheduled", "retrying"), ("stalled", "waiting", "stalled"), ("dead", "dead", "dead"))
OTHERS = (("cancelled", "cancelled", "cancelled"), ("expired", "cancelled", "expired"))
SEEN = "sampled while a page is open"
PERCENTILES = ("p50", "p95", "p99")


async def overview(visit: Visit) -> tuple[str, Values]:
    reads = visit.reads
    totals, queues, workers = await reads.totals(), await reads.queues(), await reads.workers()
    if not queues and not workers:
        return "empty.html", {}
    checks = await reads.checks()
    problems = [one for verdict in ("wrong", "note") for one in checks if one.verdict == verdict]
    live = [worker for worker in workers if not worker.expired]
    span = visit.params.get("since") if visit.params.get("since") in SPANS else "1h"
    stats = await reads.stats("queue", SPANS[span or "1h"])
    return "overview.html", {
        "problems": problems[:5],
        "more_problems": max(0, len(problems) - 5),
        "wrong": sum(one.verdict == "wrong" for one in checks),
        "fine": sum(one.verdict == "fine" for one in checks),
        "totals": totals,
        "slots": sum(worker.slots for worker in live),
        "queues": queues,
        "serving": served_by(live),
        "span": span,
        "spans": tuple(SPANS),
        "charts": [*_ended(stats), *_times(stats), *_backlog(reads.samples())],
        "lines": lines_of(stats),
    }


def served_by(workers: Sequence[WorkerRecord]) -> Counter[str]:
    """How many live workers serve each queue."""
    return Counter(queue for worker in workers if not worker.expired for queue in worker.queues)


def lines_of(stats: Stats) -> dict[str, Values]:
    """By name: ends per minute, failure rate, durations and the trend."""
    minutes = max(1.0, stats.seconds / 60)
    return {
        line.name: {
            "per_minute": line.count / minutes,
            "failure_rate": line.failure_rate,
            "run": line.run,
            "wait": line.wait,
            "count": line.count,
            "spark": charts.spark(
                _coarse([sum(point.counts.values()) for point in line.series]),
                "succeeded",
                f"{line.name}: attempts that ended, {num(line.count)} since {stats.since:%H:%M}",
            ),
        }
        for line in stats.lines
    }


def _coarse(values: Sequence[float], most: int = 24) -> list[float]:
    """Add up neighbours, so that a small chart has few bars."""
    size = max(1, -(-len(values) // most))
    return [sum(values[i : i + size]) for i in range(0, len(values), size)]


def _ended(stats: Stats) -> list[Chart]:
    """What ended, by outcome."""
    points = _whole(stats)
    unit = "minute" if stats.step == "minute" else "hour"
    series = [Series(name="succeeded", hue="succeeded", shape="area", values=_counts(points, "succeeded"))]
    for outcome, hue, name in (*OUTCOMES, *OTHERS):
        if stats.total.counts.get(outcome):
            series.append(Series(name=name, hue=hue, shape="bars", values=_counts(points, outcome)))
    rate = sum(points[-1].counts.values())
    failed = stats.total.failure_rate
    small = f"in the last whole {unit}, {num(stats.total.count)} in all"
    if failed is not None:
        small += f", {failed:.1%} failed".replace("%", " %")
    frame = Frame(id="throughput", title="Throughput", sub=f"attempts per {unit}", figure=num(rate), small=small)
    said = f"Attempts that ended per {unit}, by outcome. {num(stats.total.count)} in all: " + ", ".join(
        f"{num(count)} {outcome}" for outcome, count in stats.total.counts.items()
    )
    return [charts.counted(frame, [point.at for point in points], series, f"{said}.")]


def _whole(stats: Stats) -> Sequence[StatPoint]:
    """The minutes or hours that are over: the current one would look like a fall."""
    return stats.total.series[:-1] or stats.total.series


def _counts(points: Sequence[StatPoint], outcome: str) -> list[float]:
    return [float(point.counts.get(outcome, 0)) for point in points]


def _times(stats: Stats) -> list[Chart]:
    """How long jobs waited and ran."""
    return [
        _percentiles(stats, "wait", "Wait", "due until begun", "ready", lambda point: point.wait),
        _percentiles(stats, "run", "Run", "begun until ended", "running", lambda point: point.run),
    ]


def _percentiles(
    stats: Stats, id: str, title: str, sub: str, hue: str, times: Callable[[StatPoint | StatLine], object]
) -> Chart:
    points = _whole(stats)
    series = [
        Series(
            name=name,
            hue=hue,
            style="" if name == "p50" else name,
            values=[getattr(times(one), name) for one in points],
        )
        for name in PERCENTILES
    ]
    p50, p95, p99 = (getattr(times(stats.total), name) for name in PERCENTILES)
    small = f"p50 · {duration(p95)} p95 · {duration(p99)} p99"
    said = f"{title}, {sub}, on a logarithmic scale. p50 {duration(p50)}, p95 {duration(p95)}, p99 {duration(p99)}."
    frame = Frame(id=id, title=title, sub=sub, figure=duration(p50), small=small)
    return charts.timed(frame, [point.at for point in points], series, said)


def _backlog(samples: Sequence[Sample]) -> list[Chart]:
    """What waits, and for how long, since a page was opened."""
    times = [datetime.fromtimestamp(one.at, UTC) for one in samples]
    ready = Series(name="ready", hue="ready", shape="area", values=[float(one.ready) for one in samples])
    waiting = Series(name="waiting", hue="waiting", shape="line", values=[float(one.waiting) for one in samples])
    now = samples[-1]
    minutes = (now.at - samples[0].at) / 60
    moved = now.ready + now.waiting - samples[0].ready - samples[0].waiting
    trend = (
        "steady"
        if minutes < 1 or abs(moved) < 1
        else f"{'growing' if moved > 0 else 'falling'} by {num(abs(moved) / minutes)} a minute"
    )
    backlog = Frame(
        id="backlog",
        title="Backlog",
        sub="jobs",
        figure=num(now.ready + now.waiting),
        small=f"{trend}, {SEEN}",
    )
    oldest = Frame(id="oldest", title="Oldest due job", sub="age", figure=duration(now.oldest), small=SEEN)
    age = Series(name="oldest", hue="ready", shape="area", values=[one.oldest or 0.0 for one in samples])
    said = f"{num(now.ready)} ready and {num(now.waiting)} waiting now, {trend}."
    return [
        charts.counted(backlog, times, (ready, waiting), said),
        charts.aged(oldest, times, age, f"The oldest job that is due has waited {duration(now.oldest)}."),
    ]
