"""The guard of the speed warns and fails when it should, and not otherwise."""

from __future__ import annotations

import pytest
from bench.judging import best, judge, settled

RECORDED = {"processor": 4.0, "time": 3.0}


@pytest.mark.parametrize(
    ("processor", "level"),
    [(1.0, "fine"), (4.0, "fine"), (5.1, "fine"), (5.3, "warning"), (7.9, "warning"), (8.1, "failure")],
)
def test_processor_time_decides_tightly(processor: float, level: str) -> None:
    (verdict,) = judge("sqlite", {"processor": processor}, RECORDED)
    assert verdict.level == level
    assert verdict.line.startswith("sqlite: ")


@pytest.mark.parametrize(("time", "level"), [(3.0, "fine"), (5.9, "fine"), (6.1, "warning"), (12.1, "failure")])
def test_time_decides_loosely(time: float, level: str) -> None:
    fine, verdict = judge("redis", {"processor": 4.0, "time": time}, RECORDED)
    assert (fine.level, verdict.level) == ("fine", level)


def test_a_warning_says_how_much_worse_and_what_to_run() -> None:
    (verdict,) = judge("sqlite", {"processor": 6.0}, RECORDED)
    assert "6.0 × the bare store's processor time per job, 4.0 × on record: 1.5 times as much" in verdict.line
    assert "bench/run" in verdict.line


def test_what_is_not_on_record_is_fine_and_says_how_to_note_it() -> None:
    (verdict,) = judge("sqlite", {"processor": 6.0}, {})
    assert verdict.level == "fine"
    assert "bench/guard --record" in verdict.line


def test_the_best_round_counts_and_a_ratio_may_be_missing() -> None:
    assert best([{"time": 9.0}, {"time": 3.0, "processor": 2.0}]) == {"processor": 2.0, "time": 3.0}
    assert best([{"time": 9.0}]) == {"time": 9.0}


@pytest.mark.parametrize(
    ("found", "enough"),
    [
        ({"processor": 4.0, "time": 3.0}, True),
        ({"processor": 5.3, "time": 3.0}, False),  # a warning, which a better round may take back
        ({"processor": 4.0, "time": 12.1}, False),
        ({"time": 3.0}, False),  # one ratio is missing
    ],
)
def test_rounds_end_when_none_could_change_the_verdict(found: dict[str, float], enough: bool) -> None:
    assert settled(found, RECORDED) is enough
    assert not settled(found, {})  # nothing on record: all rounds, for bench/guard --record
