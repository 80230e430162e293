"""When entries tick: expressions, time zones, clocks that change, intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.cron.entry import (
    CronOptions,
    check_expression,
    check_readable,
    encode_call,
    next_tick,
    placed,
    ticks_after,
    ticks_between,
    wanted_entry,
    zone_name,
)
from holdfast.errors import ConfigurationError
from holdfast.records import CronEntry, NewJob

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def times(entry: CronEntry, after: datetime, count: int) -> list[str]:
    zone = ZoneInfo(entry.tz)
    found = islice(ticks_after(entry, after.timestamp()), count)
    return [datetime.fromtimestamp(at, zone).strftime("%m-%d %H:%M %Z") for at in found]


def test_an_expression_ticks_in_its_own_time_zone() -> None:
    entry = CronEntry(name="x", cron="30 9 * * MON-FRI", tz="Europe/Berlin")
    friday = datetime(2026, 3, 27, 12, tzinfo=UTC)
    assert times(entry, friday, 2) == ["03-30 09:30 CEST", "03-31 09:30 CEST"]


def test_what_is_skipped_when_clocks_go_forward_runs_right_after() -> None:
    fixed = CronEntry(name="x", cron="30 2 * * *", tz="Europe/Berlin")
    night = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert times(fixed, night, 2) == ["03-29 03:00 CEST", "03-30 02:30 CEST"]
    star = CronEntry(name="x", cron="*/30 * * * *", tz="Europe/Berlin")
    assert times(star, datetime(2026, 3, 29, 0, 15, tzinfo=UTC), 3) == [
        "03-29 01:30 CET",
        "03-29 03:00 CEST",
        "03-29 03:30 CEST",
    ]


def test_what_comes_twice_when_clocks_go_back_runs_once() -> None:
    fixed = CronEntry(name="x", cron="30 2 * * *", tz="Europe/Berlin")
    assert times(fixed, datetime(2026, 10, 24, 12, tzinfo=UTC), 2) == ["10-25 02:30 CEST", "10-26 02:30 CET"]
    inside = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 02:15, the second time
    assert times(fixed, inside, 1) == ["10-26 02:30 CET"]
    star = CronEntry(name="x", cron="30 * * * *", tz="Europe/Berlin")
    assert times(star, datetime(2026, 10, 25, 0, 0, tzinfo=UTC), 3) == [
        "10-25 02:30 CEST",
        "10-25 02:30 CET",
        "10-25 03:30 CET",
    ]


@pytest.mark.parametrize("cron", ["*/7 * * * *", "0 3 * * *", "30 2 * * *", "15,45 1-3 * * *", "0 */2 * * *"])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kolkata"])
@pytest.mark.parametrize("begin", [datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)])
def test_where_one_begins_makes_no_difference(cron: str, tz: str, begin: datetime) -> None:
    """Whoever computes the next tick from the last one, or from a moment in between, comes to the same."""
    entry = CronEntry(name="x", cron=cron, tz=tz)
    known = list(ticks_between(entry, begin.timestamp(), begin.timestamp() + 40 * 86400))
    assert known == sorted(set(known))
    step = max(1, len(known) // 300)
    for before, after in list(pairwise(known))[::step]:
        assert next_tick(entry, before) == after
        assert next_tick(entry, (before + after) / 2) == after
        assert next_tick(entry, after - 0.001) == after


def test_intervals_are_counted_from_their_anchor_without_drift() -> None:
    entry = CronEntry(name="x", every=0.1, anchor=START)
    assert next_tick(entry, START) == pytest.approx(START + 0.1)
    at = START
    for count in range(1, 2000):
        found = next_tick(entry, at)
        assert found is not None
        at = found
        assert at == START + count * 0.1
    assert next_tick(entry, START - 500) == START + 0.1
    assert list(ticks_between(entry, START + 0.2, START + 0.5)) == [START + count * 0.1 for count in (2, 3, 4)]


@pytest.mark.parametrize(
    "text",
    ["* * * *", "* * * * * *", "60 * * * *", "* * 30 2 *", "a b c d e", "", "@often", "*/0 * * * *", "5-1 * * * *"],
)
def test_expressions_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cron expression"):
        check_expression(text)


def test_expressions_are_kept_with_single_spaces_and_nicknames_are_known() -> None:
    assert check_expression("  */5   * * *  * ") == "*/5 * * * *"
    assert check_expression("@daily") == "0 0 * * *"
    with pytest.raises(ConfigurationError, match="is text"):
        check_expression(5)


def test_time_zones_are_names() -> None:
    assert zone_name(ZoneInfo("Europe/Berlin")) == "Europe/Berlin"
    assert zone_name(UTC) == "UTC"
    for wrong in ("Europe", "Mars/Base", "/etc/passwd", "", 5):
        with pytest.raises(ConfigurationError):
            zone_name(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"cron": "* * * * *", "every": 5},
        {"every": 0},
        {"every": 0.01},
        {"every": "often"},
        {"every": 5, "tz": "Europe/Berlin"},
        {"cron": "* * * * *", "overlap": "maybe"},
        {"cron": "* * * * *", "catch_up": "some"},
        {"cron": "* * * * *", "window": 0},
        {"cron": "* * * * *", "jitter": -1},
        {"cron": "* * * * *", "catch_up": "all", "overlap": "skip"},
        {"cron": "* * * * *", "catch_up": "all", "overlap": "cancel"},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CronOptions(**wrong)


def test_durations_may_be_timedeltas() -> None:
    made = CronOptions(every=timedelta(minutes=5), jitter=timedelta(seconds=2), window=timedelta(hours=1))
    assert (made.every, made.jitter, made.window) == (300.0, 2.0, 3600.0)


def test_overlap_queue_is_a_serial_group_of_the_entry() -> None:
    options = CronOptions(every=5, overlap="queue")
    new = NewJob(id="j", task="t")
    entry = CronEntry(name="n", call=encode_call(new, "n", options))
    assert check_readable(entry).group == "one-at-a-time:cron/n"
    assert check_readable(entry).id == ""
    with pytest.raises(ConfigurationError, match="has a group already"):
        encode_call(NewJob(id="j", task="t", group="g"), "n", options)
    with pytest.raises(ConfigurationError, match="due at their ticks"):
        encode_call(NewJob(id="j", task="t", delay=5.0), "n", options)


def test_what_is_declared_again_keeps_where_it_stands_unless_its_times_change() -> None:
    new = NewJob(id="j", task="t")
    hourly = wanted_entry("n", new, CronOptions(cron="0 * * * *"), declared=True)
    first = placed(hourly, None, START + 5)
    assert (first.created_at, first.declared_at, first.next_at) == (START + 5, START + 5, START + 3600)
    later = placed(hourly, first, START + 9000)
    assert (later.next_at, later.declared_at, later.created_at) == (START + 3600, START + 9000, START + 5)
    skipping = wanted_entry("n", new, CronOptions(cron="0 * * * *", overlap="skip"), declared=True)
    assert placed(skipping, first, START + 9000).next_at == START + 3600
    daily = wanted_entry("n", new, CronOptions(cron="0 0 * * *"), declared=True)
    assert placed(daily, first, START + 9000).next_at == START + 86400
    often = wanted_entry("n", new, CronOptions(every=10), declared=True)
    changed = placed(often, first, START + 9000)
    assert (changed.anchor, changed.next_at) == (START + 9000, START + 9010)


def test_an_entry_of_another_version_cannot_be_read_and_says_so() -> None:
    for entry in (
        CronEntry(name="n", cron="* * * * *", call=b'{"colour": 1}'),
        CronEntry(name="n", cron="* * * * * * *", call=encode_call(NewJob(id="", task="t"), "n", CronOptions(every=1))),
        CronEntry(name="n", cron="* * * * *", tz="Mars/Base", call=b""),
    ):
        with pytest.raises(ConfigurationError):
            check_readable(entry)
