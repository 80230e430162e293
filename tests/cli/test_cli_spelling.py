"""Durations, moments, arguments and spans, as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from holdfast.cli.parse import Moment, Size, ago, iso, read_arguments, span
from holdfast.clock import duration_seconds
from holdfast.names import nearest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2h", 7200),
        ("7d", 604800),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("12", 12),
        ("1.5", 1.5),
        ("1 w", 604800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5x", "h", "-5s", "1h!"])
def test_what_is_no_duration(text: str) -> None:
    assert duration_seconds(text) is None


def test_moments_are_aware() -> None:
    assert Moment().convert("2030-01-31T09:30Z", None, None) == datetime(2030, 1, 31, 9, 30, tzinfo=UTC)
    assert Moment().convert("2030-01-31T09:30", None, None).tzinfo is not None


def test_arguments_are_json_where_they_read_as_json() -> None:
    given = ["a=5", "b=true", "c=word", 'd="5"', "e=[1]", "f=", "g=a=b", "h=NaN"]
    assert read_arguments(given, None, frozenset()) == {
        "a": 5, "b": True, "c": "word", "d": "5", "e": [1], "f": "", "g": "a=b", "h": "NaN",
    }  # fmt: skip
    assert read_arguments(["a=5"], '{"a": 1, "b": 2}', frozenset({"a"})) == {"a": "5", "b": 2}
    with pytest.raises(click.UsageError, match="by name"):
        read_arguments(["5"], None, frozenset())


def test_times_for_people_and_machines() -> None:
    assert [span(0.25), span(12), span(200), span(7300), span(200_000)] == ["250ms", "12s", "3m", "2h", "2d"]
    assert [ago(90.0, 100.0), ago(110.0, 100.0), ago(None)] == ["10s ago", "in 10s", ""]
    assert iso(0.0) == "1970-01-01T00:00:00.000Z"
    assert iso(None) is None


def test_near_words() -> None:
    assert nearest("mial", ["mail", "pdf"]) == " Did you mean mail?"
    assert nearest("zzz", ["mail"]) == ""


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 << 20), ("2g", 2 << 30), ("64KiB", 64 << 10), ("1.5k", 1536), ("100", 100)]
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "5X", "0"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a size"):
        Size().convert(text, None, None)
