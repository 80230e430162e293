"""What commands print: tables and sentences for people, one JSON document for machines.

Called by the commands. Data goes to stdout, everything else to stderr; colour only on a terminal and never under
NO_COLOR (rich sees to both). Holds no knowledge of jobs beyond how a state is coloured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 200  # columns of a table that is not shown on a terminal: nothing is cut for a pipe
COLOURS: Mapping[str, str] = {
    "scheduled": "cyan",
    "waiting": "yellow",
    "ready": "blue",
    "running": "bold green",
    "succeeded": "green",
    "cancelled": "bright_black",
    "dead": "bold red",
}


class Printer:
    """Prints in the form that was asked for."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        probe = Console(highlight=False)
        if probe.is_terminal or os.environ.get("COLUMNS"):
            return probe
        return Console(highlight=False, width=WIDE)

    def document(self, document: Mapping[str, Any]) -> None:
        """The one JSON document of this command."""
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))

    def note(self, text: str) -> None:
        """Anything that is not what was asked for: to stderr."""
        click.echo(text, err=True)

    def line(self, text: str) -> None:
        """A plain line of what was asked for."""
        click.echo(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str, whole: int = 1) -> None:
        """A table; the first `whole` columns are never cut (ids), empty columns left out. No rows: a word on stderr."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        rows = list(rows)
        if not rows:
            self.note(empty)
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        kept = [place for place in range(len(columns)) if place < whole or any(row[place] for row in rows)]
        for place in kept:
            number = place >= whole and all(_is_number(row[place]) for row in rows)
            table.add_column(
                columns[place],
                no_wrap=place < whole or number,
                overflow="fold" if place < whole else "ellipsis",
                justify="right" if number else "left",
            )
        for row in rows:
            table.add_row(*(Text(row[place], style=COLOURS.get(row[place], "")) for place in kept))
        self.console.print(table)

    def fields(self, pairs: Iterable[tuple[str, str | None]]) -> None:
        """Name and value, one pair a line; pairs without a value are left out."""
        from rich.text import Text

        shown = [(name, value) for name, value in pairs if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            text = Text(f"{name:<{width}}  ", style="bright_black")
            text.append(str(value), style=COLOURS.get(str(value), "default"))
            self.console.print(text, soft_wrap=True)

    def heading(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text(f"\n{text}", style="bold"))


def _is_number(cell: str) -> bool:
    return cell == "" or cell.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
