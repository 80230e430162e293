"""What the drawings show: scales that fit, gaps where nothing was counted, leases with their ends."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast
from holdfast.dashboard.charts import Frame, Series, aged, counted, nice_top, spark, timed
from holdfast.dashboard.lease_chart import draw, leases
from holdfast.inspection.history import HistoryEntry
from tests.dashboard.shop import Browser, dashboard

START = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
FRAME = Frame(id="x", title="X", sub="", figure="1")
TIMES = [START + timedelta(minutes=n) for n in range(20)]


@pytest.mark.parametrize(("most", "top"), [(0, 4), (4, 4), (5, 6), (130, 160), (999, 1000), (1001, 1200)])
def test_a_scale_ends_at_a_number_that_is_easy_to_read(most: float, top: float) -> None:
    assert nice_top(most) == top


def test_bars_are_stacked_and_zero_draws_nothing() -> None:
    values = [float(n % 3) for n in range(20)]
    chart = counted(FRAME, TIMES, [Series(name="a", hue="dead", shape="bars", values=values) for _ in "ab"], "said")
    assert chart.ys[0] == "4"
    assert chart.plot.count("<rect") == 2 * sum(bool(value) for value in values)
    assert chart.rows[0] == ("10:19", ("1", "1"))  # newest first
    heights = [float(one) for one in re.findall(r'height="([\d.]+)"', chart.plot)]
    assert max(heights) <= 140


def test_a_line_of_durations_has_gaps_and_powers_of_ten() -> None:
    values = [0.05, 0.07, None, None, 2.0, None, *[0.5] * 14]
    chart = timed(FRAME, TIMES, [Series(name="p50", hue="ready", values=values)], "said")
    assert chart.ys == ("10 s", "1 s", "100 ms", "10 ms")
    path = re.search(r'class="ln " d="([^"]+)"', chart.plot)
    assert path is not None
    assert path[1].count("M") == 3
    assert not chart.low
    assert timed(FRAME, TIMES[:3], [Series(name="p50", hue="ready", values=[None] * 3)], "").low


def test_an_age_starts_at_zero() -> None:
    chart = aged(FRAME, TIMES, Series(name="a", hue="ready", shape="area", values=[1100.0] * 20), "said")
    assert chart.ys == ("20 min", "15 min", "10 min", "5 min", "0")


def test_what_a_drawing_says_is_text() -> None:
    assert "<b>" not in spark([1, 2], "ready", "<b>")


def entry(kind: str, seconds: float, fence: int = 0, worker: str | None = None) -> HistoryEntry:
    return HistoryEntry(at=START + timedelta(seconds=seconds), kind=kind, fence=fence, worker=worker)


def test_leases_end_with_the_entry_of_their_fence() -> None:
    told = [
        entry("enqueued", 0),
        entry("claimed", 10, 1, "worker-a"),
        entry("failed", 20, 1, "worker-a"),
        entry("claimed", 30, 2, "worker-b<b>"),
        entry("stalled", 60, 2),
        entry("claimed", 70, 3, "worker-a"),
    ]
    now = (START + timedelta(seconds=100)).timestamp()
    found = leases(told, now)
    assert [(one.fence, one.end - one.start, one.outcome) for one in found] == [
        (1, 10, "failed"),
        (2, 30, "stalled"),
        (3, 30, ""),
    ]
    drawn = draw(told, now, {}, "running")
    assert drawn.count('class="blk"') == 3
    assert "<b>" not in drawn
    assert draw(told[:1], now, {}, "ready") == ""


def test_progress_and_late_renewals_are_drawn_into_their_lease_and_do_not_end_it() -> None:
    at = datetime(2026, 11, 17, 12, tzinfo=UTC)
    now = (at + timedelta(seconds=60)).timestamp()
    told = [
        HistoryEntry(at=at, kind="enqueued"),
        HistoryEntry(at=at, kind="claimed", worker="w1", fence=7),
        HistoryEntry(at=at + timedelta(seconds=5), kind="progress", fence=7, progress=0.5, text="secret"),
        HistoryEntry(at=at + timedelta(seconds=30), kind="renewal", fence=7, gap=20.0, text="late, after 20.0 s"),
    ]
    [lease] = leases(told, now)
    assert (lease.end - lease.start, lease.outcome, len(lease.notes)) == (60.0, "", 2)
    drawn = draw(told, now, {"w1": "a host with a name beyond all measure"}, "running")
    assert drawn.count('class="gap"') == 1 and "renewed late, after 20.0 s" in drawn
    assert "progress 50%" in drawn and "secret" not in drawn
    assert "beyond all measure</text>" not in drawn


def test_lines_beside_an_area_begin_and_end_with_it() -> None:
    times = [datetime(2026, 11, 17, 12, minute, tzinfo=UTC) for minute in range(3)]
    waiting = Series(name="waiting", hue="waiting", values=[2, None, 4])
    chart = counted(Frame(id="b", title="Backlog", sub="", figure="4"), times, [waiting], "")
    assert 'd="M0 70H200M400 0H600"' in chart.plot


def test_the_overview_and_a_job_are_drawn(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page("/")
        assert page.count('<figure class="panel chart') == 5
        assert page.count("Show as table") == 5
        for span in ("24h", "7d"):
            longer = await visitor.page(f"/?since={span}")
            assert 'aria-current="true"' in longer
            assert len(longer.encode()) < 80_000
        dead = await visitor.page(f"/job?id={jobs['dead']}")
        assert 'class="lanes"' in dead
        assert "Attempt 1 failed" in dead

    asyncio.run(walk())
