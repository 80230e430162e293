"""What commands print: tables and sentences for people, one JSON document for machines; and log output on stderr.

Called by the commands. Data goes to stdout, everything else to stderr; colour only on a terminal and never under
NO_COLOR (rich handles both). Knows nothing about jobs except each state's colour.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from ..names import visible, visible_json
from .exits import colour_wanted

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2  # spaces between two columns of a table
NAME_MIN = 20  # a name is cut to this before a column is left out
NARROWEST = 3  # minimum width of a cell that may be truncated on a narrow terminal
COLOURS: Mapping[str, str] = {
    "scheduled": "cyan",
    "waiting": "yellow",
    "ready": "blue",
    "running": "bold green",
    "succeeded": "green",
    "cancelled": "bright_black",
    "dead": "bold red",
    "fine": "green",  # the doctor's verdicts
    "note": "yellow",
    "wrong": "bold red",
}


class Printer:
    """Prints in the requested format."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console:
        return _console()

    @property
    def is_piped(self) -> bool:
        """Whether a program reads our output: it counts lines, not columns."""
        return not self.console.is_terminal and not os.environ.get("COLUMNS")

    def document(self, document: Mapping[str, Any]) -> None:
        """The command's one JSON document."""
        click.echo(visible_json(json.dumps(document, indent=2, ensure_ascii=False, default=str)))

    def record(self, document: Mapping[str, Any]) -> None:
        """One of several JSON documents, one per line, as they arrive."""
        click.echo(visible_json(json.dumps(document, ensure_ascii=False, default=str)))

    def note(self, text: str, *, label: str = "", colour: str = "red") -> None:
        """Anything that is not the requested data: goes to stderr."""
        click.echo(_labelled(label, colour, text), err=True, color=colour_wanted())

    def line(self, text: str, *, label: str = "", colour: str = "red") -> None:
        """One or more plain lines of the requested data."""
        click.echo(_labelled(label, colour, text), color=colour_wanted())

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        empty: str,
        whole: int = 1,
        ids: bool = False,
        drop: Sequence[int] = (),
    ) -> None:
        """A table; the first `whole` columns are never cut, empty ones are omitted. No rows: note on stderr.

        `ids`: the first column has ids. On a terminal too narrow for all, they are shortened to their last characters.
        `drop`: the columns that a terminal too narrow for all does without, in this order; then the first one is cut
        and the others never are.
        """
        cells = [[visible(cell, "") for cell in row] for row in rows]
        if not cells:
            self.note(empty)
            return
        kept = [place for place in range(len(columns)) if place < whole or any(row[place] for row in cells)]
        numbers = {place for place in kept if place >= whole and all(is_number(row[place]) for row in cells)}
        if self.is_piped:
            self._plain_table(columns, cells, kept, numbers)
        else:
            if ids and self._needs(columns, cells, kept) > self.console.width:
                short = id_endings(row[0] for row in cells)
                cells = [[short[row[0]], *row[1:]] for row in cells]
            if drop:
                cells = self._without(columns, cells, kept, list(drop))
            self._fitted_table(columns, cells, kept, numbers, whole)

    def _without(
        self, columns: Sequence[str], rows: list[list[str]], kept: list[int], drop: list[int]
    ) -> list[list[str]]:
        """Take columns out of `kept` until the others fit beside a name of NAME_MIN; the rows with names that fit."""
        from rich.cells import cell_len, set_cell_size

        names = max(cell_len(row[0]) for row in [columns, *rows])
        while drop and self._needs(columns, rows, kept) - max(0, names - NAME_MIN) > self.console.width:
            place = drop.pop(0)
            if place in kept:
                kept.remove(place)
        most = max(NAME_MIN, names - max(0, self._needs(columns, rows, kept) - self.console.width))
        return [row if cell_len(row[0]) <= most else [f"{set_cell_size(row[0], most - 1)}…", *row[1:]] for row in rows]

    def _needs(self, columns: Sequence[str], rows: list[list[str]], kept: list[int]) -> int:
        """How wide the table is if nothing is cut."""
        from rich.cells import cell_len

        return sum(max(cell_len(row[place]) for row in [columns, *rows]) + GAP for place in kept) - GAP

    def _plain_table(self, columns: Sequence[str], rows: list[list[str]], kept: list[int], numbers: set[int]) -> None:
        """One line per row, however long: for grep, wc and tens of thousands of rows."""
        from rich.cells import cell_len

        widths = {place: max(cell_len(row[place]) for row in [columns, *rows]) for place in kept}
        rule = "─" if self.console.encoding.startswith("utf") else "-"
        lines = [columns, [rule * widths.get(place, 0) for place in range(len(columns))], *rows]
        for row in lines:
            spare = {place: " " * (widths[place] - cell_len(row[place])) for place in kept}
            padded = (spare[place] + row[place] if place in numbers else row[place] + spare[place] for place in kept)
            click.echo((" " * GAP).join(padded).rstrip())

    def _fitted_table(
        self, columns: Sequence[str], rows: list[list[str]], kept: list[int], numbers: set[int], whole: int
    ) -> None:
        """A table as wide as the terminal; long cells are truncated."""
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
        wanted = {place: max(cell_len(row[place]) for row in [columns, *rows]) for place in kept}
        least = {
            place: max(cell_len(row[place]) for row in rows) if place < whole else min(NARROWEST, wanted[place])
            for place in kept
        }
        # On a terminal too narrow even for that, rich would omit cells: better let the terminal wrap the lines.
        room = max(self.console.width, sum(least.values()) + GAP * (len(kept) - 1))
        widths = fitted(wanted, least, room - GAP * (len(kept) - 1))
        for place in kept:
            table.add_column(
                columns[place],
                no_wrap=True,
                width=widths[place],
                overflow="fold" if place < whole else "ellipsis",
                justify="right" if place in numbers else "left",
            )
        for row in rows:
            table.add_row(*(Text(row[place], style=COLOURS.get(row[place], "")) for place in kept))
        (self.console if room <= self.console.width else _console(room)).print(table)

    def sentences(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table ending in a sentence and a next step: on a terminal these wrap, one below the other, never cut."""
        cells = [[visible(cell, "") for cell in row] for row in rows]
        if self.is_piped:
            self._plain_table(columns, cells, list(range(len(columns))), set())
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
        for place, column in enumerate(columns[:-1]):
            table.add_column(column, no_wrap=place < len(columns) - 2, overflow="fold")
        for *words, sentence, step in cells:
            text = Text(sentence)
            text.append(f"\n> {step}" if step else "", style="cyan")
            table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in words), text)
        self.console.print(table)

    def fields(self, pairs: Iterable[tuple[str, str | None]]) -> None:
        """Name and value, one pair per line; pairs without a value are omitted."""
        from rich.text import Text

        shown = [(name, value) for name, value in pairs if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            text = Text(f"{name:<{width}}  ", style="bright_black")
            text.append(visible(str(value)), style=COLOURS.get(str(value), "default"))
            self.console.print(text, soft_wrap=True)

    def heading(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text(f"\n{text}", style="bold"))


def id_endings(ids: Iterable[str], least: int = 8) -> dict[str, str]:
    """The shortest unique ends of these generated ids, all of one length; commands accept the end of an id, too.

    They begin with the time and end in chance, so the end is shorter. Ids of another form stay whole.
    """
    known = set(ids)
    made = {one for one in known if len(one) == 36 and one.count("-") == 4}
    most = max(map(len, made), default=least)
    length = next((n for n in range(least, most) if len({one[-n:] for one in made}) == len(made)), most)
    return {one: one[-length:] if one in made else one for one in known}


def fitted(wanted: Mapping[int, int], least: Mapping[int, int], room: int) -> dict[int, int]:
    """Column widths that fit into `room`: the widest shrink first, none below its minimum."""
    widths = dict(wanted)
    for _ in range(sum(wanted.values()) - room):
        wide = [place for place in widths if widths[place] > least[place]]
        if wide:
            widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def _console(width: int | None = None) -> Console:
    from rich.console import Console

    return Console(highlight=False, width=width)


def _labelled(label: str, colour: str, text: str) -> str:
    return f"{click.style(label, fg=colour)}: {visible(text)}" if label else visible(text)


def is_number(cell: str) -> bool:
    """Whether a column of such cells is right-aligned: a number, perhaps with the unit of a time behind it."""
    number, _, unit = cell.partition(" ")
    return cell == "" or (
        unit in ("", "ms", "s", "min") and number.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
    )
