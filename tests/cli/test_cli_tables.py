"""Tables on a terminal: nothing is left out, and what is cut says so."""

from __future__ import annotations

from io import StringIO
from unittest.mock import patch

import pytest
from rich.console import Console

from holdfast.cli.output import Printer

COLUMNS = ("entry", "next", "when", "task", "fired", "note")
ROWS = [
    ("shop.morning_report", "in 23h", "0 9 * * MON-FRI Europe/Berlin", "shop.morning_report", "3", "made at run time"),
    ("bob", "48s ago", "every 300 s", "shop.clean", "12345", ""),
]


def drawn(width: int) -> list[str]:
    out = StringIO()
    printer = Printer(as_json=False)
    with patch.object(Printer, "is_piped", False):
        printer.console = Console(file=out, width=width)
        printer.table(COLUMNS, ROWS, empty="", whole=2)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(56, 130, 7))
def test_a_table_fits_its_terminal_and_shows_every_column(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    head, first, second = lines[0], lines[-2], lines[-1]
    assert len(head.split()) == len(COLUMNS)
    assert first.startswith("shop.morning_report  in 23h") and second.startswith("bob                  48s ago")
    assert first.endswith(("made at run time", "…"))  # what is cut says so


def test_a_wide_terminal_cuts_nothing() -> None:
    assert not any("…" in line for line in drawn(200))
