"""Tables on a terminal: nothing is left out, and what is cut says so."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from unittest.mock import patch

import pytest
from rich.console import Console

from holdfast.cli.output import Printer

Row = tuple[str, ...]
COLUMNS = ("entry", "next", "when", "task", "fired", "note")
ROWS = [
    ("shop.morning_report", "in 23h", "0 9 * * MON-FRI Europe/Berlin", "shop.morning_report", "3", "added at run time"),
    ("bob", "48s ago", "every 300 s", "shop.clean", "12345", ""),
]


def drawn(
    width: int, columns: Row = COLUMNS, rows: Sequence[Row] = ROWS, *, whole: int = 2, drop: Sequence[int] = ()
) -> list[str]:
    out = StringIO()
    printer = Printer(as_json=False)
    with patch.object(Printer, "is_piped", False):
        printer.console = Console(file=out, width=width)
        printer.table(columns, rows, empty="", whole=whole, drop=drop)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(56, 130, 7))
def test_a_table_fits_its_terminal_and_shows_every_column(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    head, first, second = lines[0], lines[-2], lines[-1]
    assert len(head.split()) == len(COLUMNS)
    assert first.startswith("shop.morning_report  in 23h") and second.startswith("bob                  48s ago")
    assert first.endswith(("added at run time", "…"))  # what is cut says so


def test_a_wide_terminal_cuts_nothing() -> None:
    assert not any("…" in line for line in drawn(200))


def test_a_narrow_table_does_without_columns_and_then_cuts_the_name() -> None:
    rows = [("a.task.with.a.very.long.name", "1", "2.5 s", "12345"), ("b", "10", "80 ms", "")]
    lines = drawn(40, ("task", "ended", "p95", "other"), rows, whole=1, drop=(3, 2, 1))
    assert lines[0].split() == ["task", "ended", "p95"]
    assert lines[2].startswith("a.task.with.a.very.") and "…" in lines[2]
    assert all(len(line) <= 40 for line in lines)
    assert [line.split()[1:] for line in lines[2:]] == [["1", "2.5", "s"], ["10", "80", "ms"]]
