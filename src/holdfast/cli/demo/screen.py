"""The demo's output: what it shows at one moment (plain values), and how: a live picture, plain lines, the verdict.

The stage makes a Frame ten times a second from what it reads in the store; the screen draws it on a terminal, or writes
plain lines elsewhere, and the verdict as a panel. Decides nothing. Fits 80 columns and more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import click
from msgspec import Struct
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...lifecycle import State
from .verdict import Verdict

STEPS = ("moor", "unload", "inspect", "refuel", "load", "sail")
SHIPS = ("Aurora", "Bounty", "Calypso", "Dauntless", "Endeavour", "Fram")


class StepView(Struct, frozen=True, kw_only=True):
    """One step of one ship."""

    name: str
    state: State
    worker: str = ""  # letter of the worker that runs it
    orphaned: bool = False  # its worker was killed and its lease has not expired yet
    again: bool = False  # it stalled before and is running again


class WorkerView(Struct, frozen=True, kw_only=True):
    """One worker process."""

    letter: str
    pid: int
    busy: int = 0
    slots: int = 0
    killed_ago: float | None = None
    stopped: bool = False


class Happening(Struct, frozen=True, kw_only=True):
    """An event worth printing."""

    at: float  # seconds since the start
    text: str
    kind: str = "note"  # note, good, bad


class Frame(Struct, frozen=True, kw_only=True):
    """Everything on the screen."""

    elapsed: float
    lease: float
    ships: Mapping[str, Sequence[StepView]]
    workers: Sequence[WorkerView]
    poison: str  # one line about the job that cannot succeed
    happenings: Sequence[Happening]
    done: int = 0
    total: int = 0


# ----------------------------------------------------------------------------------------------------------------------
# Drawing


Show = Callable[[Frame], None]
WIDTH_MAX = 110
LINES_OF_HAPPENINGS = 8
OTHER_LINES = 18  # lines the picture needs besides, including a spare one for the cursor
WORKER_COLOURS = {"A": "cyan", "B": "magenta"}
KIND_STYLES = {"note": "default", "good": "green", "bad": "bold red"}
MARKS = {
    State.SCHEDULED: ("◌", "bright_black"),
    State.WAITING: ("·", "bright_black"),
    State.READY: ("○", "blue"),
    State.SUCCEEDED: ("✔", "green"),
    State.CANCELLED: ("-", "bright_black"),
    State.DEAD: ("✖", "red"),
}

LEGEND = Text("· in line  ○ ready  ▶ running  ✔ done  ✖ its worker is dead  ↻ run again", style="bright_black")


@contextlib.contextmanager
def live_show(console: Console) -> Iterator[Show]:
    """A picture that is redrawn with every frame, and stays at the end."""
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def show(frame: Frame) -> None:
            lines = max(1, min(LINES_OF_HAPPENINGS, console.height - OTHER_LINES))
            live.update(picture(frame, min(console.width, WIDTH_MAX), lines), refresh=True)

        yield show


@contextlib.contextmanager
def plain_show() -> Iterator[Show]:
    """One line per event, and now and then one for progress."""
    told = 0
    counted = -1

    def show(frame: Frame) -> None:
        nonlocal told, counted
        for happening in frame.happenings[told:]:
            click.echo(f"{happening.at:5.1f}s  {happening.text}")
        told = len(frame.happenings)
        if frame.done // 6 != counted:
            counted = frame.done // 6
            click.echo(f"{frame.elapsed:5.1f}s  {frame.done} of {frame.total} steps done")

    yield show


def picture(frame: Frame, width: int, lines: int = LINES_OF_HAPPENINGS) -> RenderableType:
    """The whole screen, with this many lines of events."""
    return Group(
        Panel(
            Group(_harbour(frame), Text(), LEGEND, Text(), _crew(frame)),
            title="[bold]holdfast demo[/]: a harbour on SQLite",
            title_align="left",
            subtitle=f"{frame.elapsed:.1f} s",
            subtitle_align="right",
            box=ROUNDED,
            border_style="blue",
            width=width,
        ),
        _happenings(frame, width, lines),
    )


def _harbour(frame: Frame) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, width=10)
    for _ in STEPS:
        table.add_column(no_wrap=True, ratio=1)
    for ship, steps in frame.ships.items():
        sailed = all(step.state is State.SUCCEEDED for step in steps)
        table.add_row(Text(ship, style="bold green" if sailed else "bold"), *(_step(step) for step in steps))
    return table


def _step(step: StepView) -> Text:
    if step.state is State.RUNNING:
        if step.orphaned:
            return Text(f"✖ {step.name}", style="bold red")
        mark = "↻" if step.again else "▶"
        return Text(f"{mark} {step.name}", style=f"bold {WORKER_COLOURS.get(step.worker, 'yellow')}")
    mark, style = MARKS[step.state]
    if step.again:
        return Text(f"↻ {step.name}", style="green" if step.state is State.SUCCEEDED else "yellow")
    return Text(f"{mark} {step.name}", style=style)


def _crew(frame: Frame) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, width=10)
    table.add_column(no_wrap=True, ratio=1)
    for worker in frame.workers:
        colour = WORKER_COLOURS.get(worker.letter, "yellow")
        table.add_row(Text(f"worker {worker.letter}", style=f"bold {colour}"), _worker(worker, frame.lease))
    table.add_row(Text("old chart", style="bold"), Text(frame.poison, style="red" if "dead" in frame.poison else ""))
    bar = ProgressBar(total=max(1, frame.total), completed=frame.done, width=36)
    row = Table.grid(padding=(0, 1))
    row.add_row(bar, Text(f"{frame.done} of {frame.total}"))
    table.add_row(Text("steps done", style="bold"), row)
    return table


def _worker(worker: WorkerView, lease: float) -> Text:
    text = Text(f"pid {worker.pid}  ", style="bright_black")
    if worker.killed_ago is not None:
        text.append("killed with SIGKILL", style="bold red")
        left = lease - worker.killed_ago
        if worker.busy:
            told = f"its lease runs out in {left:.1f} s" if left > 0 else "its lease has run out"
            text.append(f"  {told}", style="yellow")
        else:
            text.append("  its jobs were recovered", style="green")
    elif worker.stopped:
        text.append("stopped")
    elif worker.busy:
        text.append("●" * worker.busy + "○" * (worker.slots - worker.busy), style="default")
        text.append(f"  {worker.busy} of {worker.slots} slots busy", style="default")
    else:
        text.append("idle or starting", style="bright_black")
    return text


def _happenings(frame: Frame, width: int, lines: int) -> Panel:
    shown: list[Text] = [_happening(one) for one in frame.happenings[-lines:]]
    shown += [Text()] * (lines - len(shown))  # keeps the panel's height constant
    return Panel(
        Group(*shown), title="what happened", title_align="left", box=ROUNDED, border_style="bright_black", width=width
    )


def _happening(one: Happening) -> Text:
    line = Text(f"{one.at:5.1f}s  ", style="bright_black", no_wrap=True, overflow="ellipsis")
    line.append(one.text, style=KIND_STYLES[one.kind])
    return line


def verdict_panel(verdict: Verdict, elapsed: float, width: int) -> Panel:
    """The checks, one per line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in verdict.checks:
        mark = Text("✔", style="bold green") if check.held else Text("✖", style="bold red")
        table.add_row(mark, Text(check.name, style="bold"), Text(check.detail))
    colour = "green" if verdict.held else "red"
    title = "verdict: everything held" if verdict.held else "verdict: a promise was broken"
    return Panel(
        table,
        title=f"[bold {colour}]{title}[/]",
        title_align="left",
        subtitle=f"{elapsed:.1f} s, from the store's audit and the handlers' own journal",
        subtitle_align="right",
        box=ROUNDED,
        border_style=colour,
        width=min(width, WIDTH_MAX),
    )


def verdict_lines(verdict: Verdict) -> list[str]:
    """The checks as plain lines."""
    head = "verdict: everything held" if verdict.held else "verdict: a promise was broken"
    marks = {True: "ok  ", False: "FAIL"}
    return [head, *(f"  {marks[check.held]}  {check.name}: {check.detail}" for check in verdict.checks)]
