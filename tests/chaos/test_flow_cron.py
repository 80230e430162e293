"""Cron entries fired by many processes that are killed, by a clock that is set back: every tick makes one job.

The clock is the tests' own, one for all processes (flow_app.Timed); it lies in the past.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.cron.tick import tick_id
from holdfast.records import CronEntry, JobRecord
from tests.chaos.flow_scene import Crew, all_succeeded
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

START = datetime(2024, 6, 1, tzinfo=UTC).timestamp()
SCHEDULERS = 6
NAMES = [f"entry-{n}" for n in range(5)]
TICKS = 200  # of each entry
EVERY = 0.1
PACE = 6.0
SET_BACK_SECONDS = 3.0


def stored(crew: Crew, names: list[str]) -> bool:
    return {entry.name for entry in crew.entries()} >= set(names)


def up_to_date(crew: Crew, now: float) -> bool:
    return all(entry.next_at is not None and entry.next_at > now for entry in crew.entries())


def entry_of(crew: Crew, name: str) -> CronEntry:
    return next(entry for entry in crew.entries() if entry.name == name)


def test_a_thousand_ticks_by_six_processes_with_kills_and_a_clock_set_back_make_one_job_each(crew: Crew) -> None:
    chance = random.Random(11)
    entries = [{"name": name, "every": EVERY, "catch_up": "all", "window": 1e6} for name in NAMES]
    started, crowd = 0, list[int]()

    def fill_up(deadly: bool = True) -> None:
        """As many as there should be, of two apps that declare the same; some die before or after one of their first
        ticks."""
        nonlocal started
        crowd[:] = [pid for pid in crowd if not crew.is_gone(pid)]
        while len(crowd) < SCHEDULERS:
            started += 1
            dies = {"die_at": chance.randint(1, 9), "die": chance.choice(("before", "after"))} if deadly else {}
            by = ("one app", "another")[started % 2]
            crowd.append(crew.start("schedule", entries=entries, by=by, **(dies if started % 4 < 2 else {})))

    crew.set_clock(START)
    fill_up()
    until(lambda: stored(crew, NAMES), what="the entries are stored")
    end, back = START + TICKS * EVERY + EVERY / 2, [START + 15.0, START + 11.0, START + 7.0, START + 3.0]
    crew.set_clock(START, PACE, end)
    while crew.clock() < end:
        time.sleep(0.05)
        if chance.random() < 0.1:
            crew.kill(chance.choice(crowd))
        fill_up()
        if back and crew.clock() > back[-1]:
            crew.set_clock(crew.clock() - SET_BACK_SECONDS, PACE, end)
            back.pop()
    crew.kill(*crowd)
    fill_up(deadly=False)
    until(lambda: up_to_date(crew, end), what="all is fired")
    with crew.app() as app:
        until(lambda: all_succeeded(app), what="all jobs ran")
        assert app.audit().violations == []
    jobs = crew.jobs()
    made = Counter(job.id for job in jobs)
    for entry in crew.entries():
        assert [made[tick_id(entry, START + count * EVERY)] for count in range(1, TICKS + 1)] == [1] * TICKS
        assert (entry.fired, entry.skipped) == (TICKS, 0)
    assert len(jobs) == TICKS * len(NAMES)
    assert {json.loads(job.args)["by"] for job in jobs} == {"one app", "another"}
    assert started > SCHEDULERS
    assert crew.lines("crashed") == []


# ---------------------------------------------------------------------- after a pause


def test_what_was_missed_while_nobody_worked_is_made_up_for_as_each_entry_says(crew: Crew) -> None:
    hour, gap = 3600.0, 10
    entries: list[dict[str, Any]] = [
        {"name": "all", "cron": "0 * * * *", "catch_up": "all", "window": 6 * hour},
        {"name": "last", "cron": "0 * * * *", "catch_up": "last"},
        {"name": "none", "cron": "0 * * * *", "catch_up": "none"},
        {"name": "all intervals", "every": hour / 2, "catch_up": "all", "window": 100 * hour},
    ]
    names = [entry["name"] for entry in entries]
    crew.set_clock(START + 60.0)
    early = [crew.start("schedule", entries=entries, by="early") for _ in range(2)]
    until(lambda: stored(crew, names), what="the entries are stored")
    crew.kill(*early)
    now = START + gap * hour + 30 * 60.0
    crew.set_clock(now)
    for _ in range(SCHEDULERS):
        crew.start("schedule", entries=entries, by="late")
    until(lambda: up_to_date(crew, now), what="all is fired")
    crew.set_clock(START + (gap + 1) * hour + 1.0)
    until(lambda: up_to_date(crew, START + (gap + 1) * hour + 1.0), what="all is fired")
    made = {name: times(crew, name) for name in names}
    on_the_hour = [START + count * hour for count in range(1, gap + 2)]
    assert made["all"] == on_the_hour[4:]  # those of the last six hours, and the new one
    assert made["last"] == on_the_hour[-2:]
    assert made["none"] == on_the_hour[-1:]
    anchor = entry_of(crew, "all intervals").anchor
    assert made["all intervals"] == [anchor + count * hour / 2 for count in range(1, 2 * gap + 2)]
    counted = {entry.name: (entry.fired, entry.skipped) for entry in crew.entries()}
    assert (counted["all"], counted["last"], counted["none"]) == ((7, 4), (2, 9), (1, 10))
    assert crew.lines("crashed") == []


def times(crew: Crew, name: str) -> list[float]:
    """When the ticks were whose jobs there are, of an entry without jitter."""
    entry = entry_of(crew, name)
    due: Callable[[JobRecord], float] = lambda job: job.due_at  # noqa: E731 - a key to sort by
    return [job.due_at for job in sorted(crew.jobs(), key=due) if job.id == tick_id(entry, job.due_at)]


# ---------------------------------------------------------------------- days on which clocks change


@pytest.mark.parametrize(
    ("zone", "day", "at_half_past_one", "at_half_past_two", "half_hours"),
    [
        ("Europe/Berlin", "2024-03-31", "01:30 CET", "03:00 CEST", 46),
        ("Europe/Berlin", "2024-10-27", "01:30 CEST", "02:30 CEST", 50),
        ("America/New_York", "2024-03-10", "01:30 EST", "03:00 EDT", 46),
        ("America/New_York", "2024-11-03", "01:30 EDT", "02:30 EST", 50),
    ],
)
def test_on_days_when_clocks_change_fixed_times_come_once_and_stars_go_by_real_time(
    crew: Crew, zone: str, day: str, at_half_past_one: str, at_half_past_two: str, half_hours: int
) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (begin + timedelta(days=1)).timestamp() - 1.0
    entries = [
        {"name": name, "cron": cron, "tz": zone, "catch_up": "all", "window": 1e6}
        for name, cron in (("one", "30 1 * * *"), ("two", "30 2 * * *"), ("star", "*/30 * * * *"))
    ]
    crew.set_clock(begin.timestamp() - 1.0)
    for _ in range(3):
        crew.start("schedule", entries=entries, by="x")
    until(lambda: stored(crew, ["one", "two", "star"]), what="the entries are stored")
    crew.set_clock(begin.timestamp(), 86400.0, end)
    until(lambda: crew.clock() == end and up_to_date(crew, end), what="all is fired")
    local = {
        name: [f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%H:%M %Z}" for at in times(crew, name)]
        for name in ("one", "two", "star")
    }
    assert (local["one"], local["two"]) == ([at_half_past_one], [at_half_past_two])
    assert times(crew, "star") == [begin.timestamp() + count * 1800.0 for count in range(half_hours)]
    assert crew.lines("crashed") == []
