"""Failures grouped by cause: what belongs together, the trend, and the bound, which is reported."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.inspection import failures as failures_module
from holdfast.inspection.failures import FailureKind, kinds_of, top_frame
from holdfast.lifecycle import Failure
from holdfast.records import DeadLetter

NOW = 1_700_000_000.0
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 41, in charge\n    pay()\n'
    '  File "/srv/venv/lib/python3.12/site-packages/httpx/client.py", line 9, in post\n    raise\nTimeout: late'
)


def letter(
    number: int, *, failed: float = 0.0, first: float | None = None, type: str = "", text: str = "", traceback: str = ""
) -> DeadLetter:
    """A dead letter whose latest death was `failed` seconds ago."""
    return DeadLetter(
        id=f"j{number}",
        task="shop.charge",
        queue="default",
        key=None,
        group=None,
        args=b"{}",
        failure_count=2,
        first_failed_at=NOW - (failed if first is None else first),
        failed_at=NOW - failed,
        reason="failed",
        error=Failure(type=type, text=text, traceback=traceback) if type else None,
    )


def test_the_top_frame_is_the_user_s_own() -> None:
    assert top_frame(TRACEBACK) == "shop/tasks.py:41 in charge"
    assert top_frame("") == ""


def test_letters_of_one_cause_are_one_kind() -> None:
    timeouts = [letter(n, failed=n, type="Timeout", text=f"after {n}", traceback=TRACEBACK) for n in range(3)]
    kinds = kinds_of([*timeouts, letter(9, type="ValueError", traceback=TRACEBACK), letter(10)], NOW)
    assert [(kind.name, kind.letters, kind.deaths) for kind in kinds] == [
        ("Timeout", 3, 6),
        ("ValueError", 1, 2),
        ("failed", 1, 2),
    ]
    assert kinds[0].ids == ["j0", "j1", "j2"]
    assert (kinds[0].first, kinds[0].last, kinds[0].place) == (NOW - 2, NOW, "shop/tasks.py:41 in charge")


def only(letters: list[DeadLetter]) -> FailureKind:
    (kind,) = kinds_of(letters, NOW)
    return kind


def test_the_trend_compares_the_latest_hour_with_the_day() -> None:
    assert only([letter(1, failed=10)]).trend == "new"
    assert only([letter(1, failed=7200)]).trend == "steady"
    old = [letter(n, failed=7200) for n in range(3)]
    assert only([*old, *[letter(n, failed=10, first=7200) for n in range(4)]]).trend == "steady"
    grown = only([*old, *[letter(n, failed=10, first=7200) for n in range(5)]])
    assert grown.trend == "growing"
    assert grown.hours[-3:] == [3, 0, 5]


def test_a_death_after_this_clock_s_now_counts_as_the_latest_hour() -> None:
    assert only([letter(1, failed=-5)]).hours[-1] == 1


def test_no_more_letters_are_read_than_the_bound_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures_module, "LETTERS_READ_MAX", 2)
    with Holdfast("memory://") as app:
        for number in range(3):
            app.bury(app.named("shop.charge").enqueue(number), "wrong")
        found = app.failures()
        assert (found.letters, found.capped, found.kinds[0].letters) == (2, True, 2)
        assert app.failures(task="other").kinds == []
        assert app.failures(queue="default", task="shop.charge").letters == 2
