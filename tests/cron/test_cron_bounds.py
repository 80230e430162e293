"""What bounds an entry's ticks: start, end, a number of them, an offset, days without ticks, times of a function."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.cron.calendar import TIMES_KEPT_MAX
from holdfast.cron.entry import CronOptions, next_tick, placed, ticks_after, wanted_entry
from holdfast.cron.tick import decide
from holdfast.errors import ConfigurationError
from holdfast.records import CronEntry, NewJob
from holdfast.testing import sandbox

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
NOW = START.timestamp()
HOUR = timedelta(hours=1)


def entry_of(cron: str | None = None, **options: Any) -> CronEntry:
    wanted = wanted_entry("e", NewJob(id="", task="t"), CronOptions(cron=cron, **options), declared=True, now=NOW)
    return placed(wanted, None, NOW)


def shown(ticks: Iterator[float], count: int = 4) -> list[str]:
    return [datetime.fromtimestamp(at, UTC).strftime("%a %d %H:%M:%S") for at in islice(ticks, count)]


def test_no_tick_comes_before_the_start_or_after_the_end_and_both_may_be_ticks() -> None:
    entry = entry_of("0 * * * *", start=START + 5 * HOUR, end=START + 7 * HOUR)
    assert shown(ticks_after(entry, NOW)) == ["Mon 02 05:00:00", "Mon 02 06:00:00", "Mon 02 07:00:00"]
    assert next_tick(entry, NOW + 7 * 3600) is None


def test_an_interval_counts_from_its_start_and_with_an_offset_by_the_clock() -> None:
    entry = entry_of(every=90, start=START + HOUR)
    assert shown(ticks_after(entry, NOW), 2) == ["Mon 02 01:00:00", "Mon 02 01:01:30"]
    assert shown(ticks_after(entry, NOW + 3600), 1) == ["Mon 02 01:01:30"]
    by_the_clock = replace(entry_of(every=60, offset=5), anchor=NOW + 17.0)
    assert shown(ticks_after(by_the_clock, NOW), 2) == ["Mon 02 00:00:05", "Mon 02 00:01:05"]


def test_an_offset_moves_every_tick_of_an_expression() -> None:
    entry = entry_of("0 * * * *", offset=90)
    assert shown(ticks_after(entry, NOW), 2) == ["Mon 02 00:01:30", "Mon 02 01:01:30"]
    assert shown(ticks_after(entry, NOW + 90), 1) == ["Mon 02 01:01:30"]


def test_excluded_days_have_no_ticks_in_the_time_zone_of_the_entry() -> None:
    entry = entry_of("0 12 * * *", skip=["sat", "SUN", date(2026, 3, 3), "2026-03-05"])
    assert entry.skip == ("SAT", "SUN", "2026-03-03", "2026-03-05")
    assert shown(ticks_after(entry, NOW)) == [
        "Mon 02 12:00:00",
        "Wed 04 12:00:00",
        "Fri 06 12:00:00",
        "Mon 09 12:00:00",
    ]
    tokyo = entry_of(every=3600, skip="TUE", tz="Asia/Tokyo")  # its Tuesday begins at 15:00 UTC on Monday
    assert shown(ticks_after(tokyo, NOW + 13.5 * 3600), 2) == ["Mon 02 14:00:00", "Tue 03 15:00:00"]


def test_days_that_exclude_every_tick_end_the_search() -> None:
    assert next_tick(entry_of("0 12 * * SAT", skip="SAT"), NOW) is None
    assert next_tick(entry_of("* * * * SAT", skip="SAT", end=START + timedelta(days=90)), NOW) is None


def test_an_entry_ends_once_its_ticks_have_fired_and_skipped_ones_do_not_count() -> None:
    entry = entry_of("* * * * *", ticks=2, catch_up="all")
    tick = decide(entry, NOW + 300)
    assert tick is not None and tick.entry is not None and tick.entry_if_skipped is not None
    assert len(tick.jobs) == 2 and tick.entry.fired == 2 and tick.entry.next_at is None
    assert tick.entry_if_skipped.next_at is not None
    assert decide(tick.entry, NOW + 900) is None
    more = placed(replace(entry, ticks=3), tick.entry, NOW + 900)
    assert more.next_at == NOW + 960, "raising the number lets it go on"
    assert placed(entry, tick.entry, NOW + 900) == replace(tick.entry, declared_at=NOW + 900), "it stays as it is"


def test_an_end_that_is_moved_ends_or_continues_the_entry_without_starting_over() -> None:
    entry = entry_of(every=60)
    ended = placed(replace(entry, ends_at=NOW + 30), entry, NOW + 10)
    assert (ended.next_at, ended.anchor) == (None, entry.anchor)
    again = placed(replace(entry, ends_at=NOW + 600), ended, NOW + 70)
    assert again.next_at == NOW + 120


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": datetime(2026, 1, 1)},
        {"end": "tomorrow"},
        {"start": START, "end": START - HOUR},
        {"ticks": 0},
        {"skip": "someday"},
        {"skip": START},
        {"skip": ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]},
        {"offset": -1},
        {"every": 60, "offset": 60},
        {"every": 60, "offset": 5, "start": START},
        {"every": 60, "next_after": lambda at: None},
        {"next_after": "soon"},
        {"next_after": lambda at: None, "offset": 5},
    ],
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CronOptions(cron=None if "every" in wrong or "next_after" in wrong else "0 * * * *", **wrong)


def doubling(moment: datetime) -> datetime | None:
    """1, 2, 4, 8 … hours after START; five ticks."""
    return next((at for at in (START + HOUR * 2**count for count in range(5)) if at > moment), None)


def test_a_function_chooses_the_times_and_says_when_there_are_no_more() -> None:
    entry = entry_of(next_after=doubling, catch_up="all")
    assert entry.next_at == NOW + 3600 and entry.chooser == "doubling"
    tick = decide(entry, NOW + 5 * 3600)
    assert tick is not None and tick.entry is not None
    assert (len(tick.jobs), tick.entry.next_at) == (3, NOW + 8 * 3600)
    later = decide(tick.entry, NOW + 17 * 3600)
    assert later is not None and later.entry is not None and later.entry.next_at is None
    declared_again = placed(replace(entry, times=(NOW + 8 * 3600,)), entry, NOW + 3 * 3600)
    assert declared_again.times == (NOW + 3600, NOW + 2 * 3600, NOW + 8 * 3600), "due ones are not lost"


def test_a_function_that_does_not_go_on_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="first tick after"):
        entry_of(next_after=lambda at: at)
    with pytest.raises(ConfigurationError, match="aware"):
        entry_of(next_after=lambda at: datetime(2030, 1, 1))
    with pytest.raises(ConfigurationError, match="code declares"):
        wanted_entry("e", NewJob(id="", task="t"), CronOptions(next_after=doubling), declared=False)


def next_minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0) + timedelta(minutes=1)


def test_jobs_of_an_entry_store_the_times_that_follow(app: Holdfast) -> None:
    ran: list[str | None] = []

    @app.cron(next_after=next_minute, name="often")
    @app.task(name="often", retain=0)
    def often() -> None:
        ran.append("x")

    with sandbox(app) as box:
        box.drain()
        first = app.cron.get("often")
        assert first.when == "next_minute" and not first.ended
        with pytest.raises(ConfigurationError, match="chosen by"):
            app.cron.backfill("often", app.now() - HOUR, app.now() - HOUR / 2)
        before = len(app.cron.next("often", 1000))
        box.clock.advance(minutes=TIMES_KEPT_MAX - 300)
        box.drain()
        assert ran and len(app.cron.next("often", 1000)) >= before - 2


def test_an_ended_entry_says_so(app: Holdfast) -> None:
    @app.task(name="once")
    def once() -> None: ...

    with sandbox(app) as box:
        made = app.cron.add("once", once, every=60, ticks=1)
        assert not made.ended and app.cron.next("once", 5) == [made.next_at]
        box.clock.advance(minutes=1)
        box.drain()
        entry = app.cron.get("once")
        assert (entry.fired, entry.ended, entry.next_at) == (1, True, None)
        assert app.cron.next("once") == []
