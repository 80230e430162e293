"""Which ticks fire: pure decisions on an entry and a moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.cron.entry import CronOptions, placed, wanted_entry
from holdfast.cron.tick import COUNTED_MAX, JOBS_PER_TICK_MAX, decide, job_of_tick, tick_id
from holdfast.records import CronEntry, NewJob, Tick

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def entry_of(cron: str | None = None, **options: Any) -> CronEntry:
    new = NewJob(id="", task="t", queue="q", args=b'{"n": 1}')
    return placed(wanted_entry("n", new, CronOptions(cron=cron, **options), declared=True), None, START)


def decided(entry: CronEntry, now: float) -> Tick:
    tick = decide(entry, now)
    assert tick is not None
    assert tick.entry is not None
    return tick


def after(tick: Tick) -> CronEntry:
    assert tick.entry is not None
    return tick.entry


def test_nothing_is_decided_before_its_time_nor_while_paused() -> None:
    entry = entry_of("0 * * * *")
    assert decide(entry, START + HOUR - 1) is None
    assert decide(replace(entry, paused_at=START), START + 2 * HOUR) is None
    assert decide(replace(entry, next_at=None), START + 2 * HOUR) is None


def test_a_due_tick_makes_one_job_and_moves_on() -> None:
    entry = entry_of("0 * * * *")
    tick = decided(entry, START + HOUR)
    [job] = tick.jobs
    assert (job.task, job.queue, job.args, job.due_at) == ("t", "q", b'{"n": 1}', START + HOUR)
    assert (tick.version, tick.not_before, tick.overlap) == (entry.version, START + HOUR, "allow")
    assert (after(tick).next_at, after(tick).last_at) == (START + 2 * HOUR, START + HOUR)
    assert (after(tick).fired, after(tick).skipped, after(tick).last_job) == (1, 0, job.id)


def test_every_worker_that_decides_makes_the_same_job_and_no_two_ticks_share_one() -> None:
    entry = entry_of("* * * * *", jitter=30)
    one, other = decided(entry, START + MINUTE), decided(entry, START + MINUTE + 20)
    assert one.jobs == other.jobs
    ids = {tick_id(entry, START + n * MINUTE) for n in range(1000)}
    assert len(ids) == 1000
    assert sorted(ids) == [tick_id(entry, START + n * MINUTE) for n in range(1000)]
    again = replace(entry, created_at=START + 1)
    assert tick_id(again, START) != tick_id(entry, START)
    assert len(ids.pop()) == 36


def test_jitter_spreads_jobs_and_never_ticks() -> None:
    entry = entry_of("* * * * *", jitter=30)
    due = [(job_of_tick(entry, START + n * MINUTE).due_at or 0.0) - (START + n * MINUTE) for n in range(200)]
    assert 0.0 <= min(due) < 5.0
    assert 25.0 < max(due) <= 30.0
    assert after(decided(entry, START + MINUTE)).next_at == START + 2 * MINUTE


@pytest.mark.parametrize("timing", [{"cron": "* * * * *"}, {"every": MINUTE}])
def test_after_a_rest_the_last_tick_fires_and_the_others_are_skipped(timing: dict[str, Any]) -> None:
    entry = entry_of(**timing)
    tick = decided(entry, START + HOUR + 30)
    assert [job.due_at for job in tick.jobs] == [START + HOUR]
    assert (after(tick).skipped, after(tick).next_at) == (59, START + HOUR + MINUTE)


@pytest.mark.parametrize("timing", [{"cron": "* * * * *"}, {"every": MINUTE}])
def test_a_year_of_missed_minutes_is_found_in_a_moment(timing: dict[str, Any]) -> None:
    now = START + 365 * DAY + 30
    tick = decided(entry_of(**timing), now)
    assert [job.due_at for job in tick.jobs] == [START + 365 * DAY]
    assert after(tick).skipped == COUNTED_MAX
    assert after(tick).next_at == START + 365 * DAY + MINUTE


def test_rare_ticks_are_found_too() -> None:
    entry = entry_of("* 3 1 1 *")
    tick = decided(entry, datetime(2050, 6, 1, tzinfo=UTC).timestamp())
    assert [job.due_at for job in tick.jobs] == [datetime(2050, 1, 1, 3, 59, tzinfo=UTC).timestamp()]


def test_without_catching_up_only_what_is_fresh_fires() -> None:
    entry = entry_of("0 * * * *", catch_up="none")
    assert len(decided(entry, START + HOUR + 50).jobs) == 1
    late = decided(entry, START + HOUR + 100)
    assert late.jobs == ()
    assert (after(late).skipped, after(late).fired, after(late).next_at) == (1, 0, START + 2 * HOUR)
    assert len(decided(entry, START + 5 * HOUR + 10).jobs) == 1


def test_all_missed_ticks_within_the_window_fire_a_hundred_at_a_time() -> None:
    entry = entry_of("* * * * *", catch_up="all", window=3 * HOUR)
    now = START + 10 * HOUR + 30
    fired: list[float] = []
    for _ in range(3):
        tick = decide(entry, now)
        if tick is None:
            break
        assert 0 < len(tick.jobs) <= JOBS_PER_TICK_MAX
        fired += [job.due_at or 0.0 for job in tick.jobs]
        entry = replace(after(tick), version=entry.version + 1)
    assert fired == [START + 7 * HOUR + n * MINUTE for n in range(1, 181)]
    assert (entry.skipped, entry.fired, entry.next_at) == (420, 180, START + 10 * HOUR + MINUTE)


def test_the_window_may_begin_beyond_what_is_counted() -> None:
    entry = entry_of("* * * * *", catch_up="all", window=HOUR)
    tick = decided(entry, START + 30 * DAY)
    assert len(tick.jobs) == 61
    assert tick.jobs[0].due_at == START + 30 * DAY - HOUR


def test_overlap_is_left_to_the_store_with_both_ends_prepared() -> None:
    entry = replace(entry_of("0 * * * *", overlap="skip"), last_job="before", fired=4, skipped=2)
    tick = decided(entry, START + HOUR)
    assert (tick.overlap, tick.previous) == ("skip", "before")
    assert tick.entry_if_skipped is not None
    skipped = tick.entry_if_skipped
    assert (skipped.last_job, skipped.fired, skipped.skipped, skipped.next_at) == ("before", 4, 3, START + 2 * HOUR)
    assert decided(entry_of("0 * * * *", overlap="cancel"), START + HOUR).overlap == "cancel"
    assert decided(entry_of("0 * * * *", overlap="queue"), START + HOUR).overlap == "allow"
