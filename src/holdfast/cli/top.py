"""`holdfast top`: the store in a terminal, live: queues, workers, groups, the longest running jobs, failures.

Loaded by main when called. `look` reads through the app, bounded; `draw` is pure; `steer` maps a key to a change. A key
in lower case can be undone, a capital letter cannot and asks first. Without a terminal it prints one frame and ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from ..errors import HoldfastError
from ..lifecycle import State
from ..names import visible
from ..records import GroupRecord, QueueRecord, WorkerRecord
from ..worker_status import read
from .documents import group_document, job_document, letter_document, queue_document, worker_document
from .exits import Exit
from .operate import me
from .output import COLOURS, fitted, is_number
from .parse import Duration, ago, counted, span
from .session import Session, session_options

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from ..app import Holdfast
    from ..job import DeadLetter, Job

RUNNING_LOOKED_AT_MAX = 500
GROUPS_LOOKED_AT_MAX = 100
LETTERS_LOOKED_AT_MAX = 100
RATE_SECONDS = 300.0  # attempts that ended are counted over this time
ID_SHOWN = 8  # the end of an id: jobs of the same minute share its beginning
SECTIONS = ("queues", "running", "failures", "groups", "workers")
WORKER_SECONDS = 15.0  # a worker answers with its next renewal
ROWS_MIN = 2  # of a section that is not selected
HELP = "tab section, j/k row, space freeze, q quit"


# ----------------------------------------------------------------------------------------------------------------------
# Looking


class Scene(Struct, frozen=True, kw_only=True):
    """The store as read at one time."""

    url: str  # safe to display
    now: float
    queues: Sequence[QueueRecord] = ()
    workers: Sequence[WorkerRecord] = ()
    groups: Sequence[GroupRecord] = ()  # most waiting first
    running: Sequence[Any] = ()  # of Job, longest first
    failures: Sequence[Any] = ()  # of DeadLetter, newest first
    rates: Mapping[str, float] = {}  # attempts that ended per minute, by queue

    @property
    def alive(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if not worker.expired]


def look(app: Holdfast) -> Scene:
    """Read everything that is shown; each read is bounded."""
    running: list[Job[Any]] = list(app.jobs(states=(State.RUNNING,), limit=RUNNING_LOOKED_AT_MAX))
    stats = app.stats("queue", since=RATE_SECONDS)
    groups = [
        group
        for group in app.groups.list(limit=GROUPS_LOOKED_AT_MAX)
        if group.counts or group.pause or group.stopped_by
    ]
    return Scene(
        url=app.safe_url,
        now=app.now().timestamp(),
        queues=app.queues.list(),
        workers=app.workers(),
        groups=sorted(groups, key=lambda one: -one.counts.get(State.WAITING, 0)),
        running=sorted(running, key=_since),
        failures=app.dead.list(limit=LETTERS_LOOKED_AT_MAX),
        rates={line.name: line.count / (stats.seconds / 60.0) for line in stats.lines},
    )


def _since(job: Job[Any]) -> float:
    return 0.0 if job.started_at is None else job.started_at.timestamp()


# ----------------------------------------------------------------------------------------------------------------------
# Drawing


class View(Struct, frozen=True, kw_only=True):
    """What the user has selected, beside the scene."""

    section: int = 0
    row: int = 0
    frozen: bool = False
    message: str = ""  # in the last line, instead of the keys
    asked: str = ""  # a change that waits for `y`, as the key that named it

    @property
    def name(self) -> str:
        return SECTIONS[self.section]


Row = tuple[str, ...]


def rows_of(scene: Scene, section: str) -> tuple[Row, list[Row]]:
    """A section's column names and rows."""
    now = scene.now
    match section:
        case "queues":
            return ("queue", "ready", "waiting", "later", "running", "dead", "per min", "oldest", ""), [
                (
                    queue.name,
                    *_numbers(queue),
                    f"{scene.rates[queue.name]:.0f}" if queue.name in scene.rates else "",
                    ago(queue.oldest_due_at, now),
                    "paused" if queue.pause else "",
                )
                for queue in scene.queues
            ]
        case "running":
            return ("running", "for", "task", "queue", "group", "worker", "progress"), [
                (
                    job.id[-ID_SHOWN:],
                    span(max(0.0, now - _since(job))),
                    job.task,
                    job.queue,
                    job.group or "",
                    (job.worker or "")[:ID_SHOWN],
                    _progress(job),
                )
                for job in scene.running
            ]
        case "failures":
            return ("dead letter", "died", "deaths", "task", "reason", "error"), [
                (
                    letter.id[-ID_SHOWN:],
                    ago(letter.failed_at, now),
                    str(letter.failure_count),
                    letter.task,
                    letter.reason,
                    letter.error.type or letter.error.text if letter.error else "",
                )
                for letter in scene.failures
            ]
        case "groups":
            return ("group", "queue", "waiting", "ready", "running", "limit", "head", ""), [
                (
                    group.name,
                    group.queue,
                    *(group.number(state) for state in (State.WAITING, State.READY, State.RUNNING)),
                    str(group.limit),
                    (group.head or "")[-ID_SHOWN:],
                    "paused" if group.pause else "stopped" if group.stopped_by else "",
                )
                for group in scene.groups
            ]
        case _:
            return ("worker", "host", "pid", "busy", "queues", "renewed", ""), [
                (
                    worker.id[:ID_SHOWN],  # it begins at random and ends with when its process began
                    worker.host,
                    str(worker.pid),
                    f"{worker.running}/{worker.slots}",
                    ",".join(worker.queues),
                    ago(worker.renewed_at, now),
                    "expired" if worker.expired else "paused" if _is_paused(worker) else "",
                )
                for worker in scene.workers
            ]


_SHOWN = (State.READY, State.WAITING, State.SCHEDULED, State.RUNNING, State.DEAD)


def _numbers(queue: QueueRecord) -> Row:
    return tuple(str(queue.counts.get(state) or "") for state in _SHOWN)


def _progress(job: Job[Any]) -> str:
    if job.cancel_requested:
        return "cancelling"
    return "" if job.progress is None else f"{job.progress:.0%} {job.progress_text or ''}".rstrip()


def draw(scene: Scene, view: View, width: int, height: int) -> Group:
    """One frame of exactly that size at most: the selected section gets the lines that the others do not need."""
    from rich.console import Group
    from rich.text import Text

    tables = {name: rows_of(scene, name) for name in SECTIONS}
    lines = _share({name: len(rows) for name, (_, rows) in tables.items()}, view.name, height - 2)
    frame = [_head(scene, view, width)]
    airy = height - 2 - sum(1 + len(rows) for _, rows in tables.values()) >= len(SECTIONS)
    for name in SECTIONS:
        columns, rows = tables[name]
        chosen = view.row if name == view.name else None
        frame += [Text()] * airy + _table(columns, rows, lines[name], chosen, width)
    last = Text(visible(view.message, "") or _keys_of(view.name), style="bold" if view.message else "bright_black")
    last.truncate(width, overflow="ellipsis")
    return Group(*frame, last)


def _share(wanted: dict[str, int], chosen: str, room: int) -> dict[str, int]:
    """Rows per section below its heading: ROWS_MIN each, then what the selected one needs, then the others."""
    room -= len(wanted)
    given = dict.fromkeys(wanted, 0)
    for most in (ROWS_MIN, room):
        for name in (chosen, *wanted):
            more = max(0, min(most, wanted[name], given[name] + room) - given[name])
            given[name] += more
            room -= more
    return given


def _head(scene: Scene, view: View, width: int) -> Text:
    from rich.text import Text

    alive = scene.alive
    busy, slots = sum(one.running for one in alive), sum(one.slots for one in alive)
    clock = time.strftime("%H:%M:%S", time.localtime(scene.now))
    text = Text(f"{clock}  ", style="bold")
    text.append(f"{counted(len(alive), 'workers')}, {busy}/{slots} slots busy", style="" if alive else "bold red")
    text.append("  FROZEN" if view.frozen else "", style="bold yellow")
    text.append(f"  {visible(scene.url, '')}", style="bright_black")
    text.truncate(width, overflow="ellipsis")
    return text


def _table(columns: Row, rows: list[Row], number: int, chosen: int | None, width: int) -> list[Text]:
    """A heading and that many rows, scrolled to the chosen one."""
    from rich.cells import cell_len
    from rich.text import Text

    first = 0 if chosen is None else max(0, min(chosen - number + 1, len(rows) - number))
    shown = [tuple(visible(cell, "") for cell in row) for row in rows[first : first + number]]
    wanted = {place: max(cell_len(row[place]) for row in [columns, *shown]) for place in range(len(columns))}
    least = {place: min(3, size) for place, size in wanted.items()}
    widths = fitted(wanted, least, width - 2 * (len(columns) - 1))
    numbers = {place for place in wanted if place and shown and all(is_number(row[place]) for row in shown)}
    hidden = len(rows) - len(shown)
    lines: list[Text] = []
    for place, row in enumerate([columns, *shown]):
        cells = [_cell(cell, widths[n], n in numbers) for n, cell in enumerate(row)]
        line = Text("  ".join(cells).rstrip())
        if place == 0:
            line.stylize("bold reverse" if chosen is not None else "bold")
            line.append(f"  +{hidden} more" if hidden else "" if rows else "  none", style="bright_black")
        elif chosen is not None and first + place - 1 == chosen:
            line.stylize("reverse")
        elif row[-1] in ("paused", "expired"):
            line.stylize(COLOURS["note"])
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _cell(cell: str, width: int, is_right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    spare = width - cell_len(cell)
    if spare < 0:
        return set_cell_size(cell, width - 1) + "…" if width else ""
    return " " * spare + cell if is_right else cell + " " * spare


# ----------------------------------------------------------------------------------------------------------------------
# Steering


QUIT = "q"
ESCAPES = {"\x1b[A": "k", "\x1b[B": "j", "\x1b[C": "\t", "\x1b[D": "backtab", "\x1b[Z": "backtab"}
CHANGES = {
    "queues": {"p": "pause or resume"},
    "groups": {"p": "pause or resume"},
    "running": {"C": "cancel"},
    "failures": {"r": "revive", "D": "discard"},
    "workers": {"p": "pause or resume", "S": "stop"},
}


def steer(app: Holdfast, scene: Scene, view: View, key: str) -> View:
    """The view after a key; a key that names a change makes it, or asks first if it cannot be undone."""
    rows = _things(scene, view.name)
    if view.asked:
        done = _change(app, rows[view.row], view.name, view.asked) if key in ("y", "Y") else "nothing was changed."
        return replace(view, asked="", frozen=False, message=done)
    view = replace(view, message="", row=min(view.row, max(0, len(rows) - 1)))
    if key in ("\t", "backtab"):
        return replace(view, section=(view.section + (1 if key == "\t" else -1)) % len(SECTIONS), row=0)
    if key.isdigit() and 0 < int(key) <= len(SECTIONS):
        return replace(view, section=int(key) - 1, row=0)
    if key in ("j", "k"):
        return replace(view, row=max(0, min(len(rows) - 1, view.row + (1 if key == "j" else -1))))
    if key == " ":
        return replace(view, frozen=not view.frozen)
    change = CHANGES.get(view.name, {}).get(key)
    if change is None:
        return replace(view, message=f"keys here: {_keys_of(view.name)}")
    if not rows:
        return replace(view, message="there is nothing here.")
    if key.isupper():
        what = visible(_called(rows[view.row]), "")
        return replace(view, asked=key, frozen=True, message=f"{change} {what}? This cannot be undone. y/n")
    return replace(view, message=_change(app, rows[view.row], view.name, key))


def _keys_of(section: str) -> str:
    keys = "".join(f"{key} {what}, " for key, what in CHANGES.get(section, {}).items())
    return f"{keys}{HELP}"


def _things(scene: Scene, section: str) -> Sequence[Any]:
    return {
        "queues": scene.queues,
        "running": scene.running,
        "failures": scene.failures,
        "groups": scene.groups,
        "workers": scene.workers,
    }[section]


def _called(thing: QueueRecord | GroupRecord | WorkerRecord | Job[Any] | DeadLetter) -> str:
    if isinstance(thing, QueueRecord):
        return f"queue {thing.name}"
    if isinstance(thing, GroupRecord):
        return f"group {thing.name} of queue {thing.queue}"
    if isinstance(thing, WorkerRecord):
        return f"worker {thing.id[-ID_SHOWN:]}"
    return f"{thing.task} {thing.id[-ID_SHOWN:]}"


def _change(app: Holdfast, thing: Any, section: str, key: str) -> str:
    """Make the change and describe it; a refusal is described, too."""
    name = _called(thing)
    try:
        match section, key:
            case (("queues" | "groups"), _):
                group = thing.name if section == "groups" else None
                queue = thing.queue if section == "groups" else thing.name
                if thing.pause is None:
                    app.pause(queue=queue, group=group, by=me())
                    return f"paused {name}."
                app.resume(queue=queue, group=group)
                return f"resumed {name}."
            case "workers", _:
                return f"{name}: {_ask(app, thing, key)}."
            case "running", _:
                app.cancel(thing.id, by=me())
                return f"asked {name} to stop."
            case _, "r":
                app.dead.revive(thing.id, by=me())
                return f"revived {name}."
            case _:
                app.dead.discard(thing.id, by=me())
                return f"discarded {name}."
    except HoldfastError as error:
        return str(error)


def _ask(app: Holdfast, worker: WorkerRecord, key: str) -> str:
    """Ask one worker; it answers with its next renewal."""
    if key == "S":
        return app.stop_worker(worker.id, by=me(), timeout=WORKER_SECONDS)
    ask = app.resume_worker if _is_paused(worker) else app.pause_worker
    return ask(worker.id, by=me(), timeout=WORKER_SECONDS)


def _is_paused(worker: WorkerRecord) -> bool:
    status = read(worker.portrait)
    return status is not None and status.paused


# ----------------------------------------------------------------------------------------------------------------------
# The command


@click.command()
@click.option("--every", type=Duration(), default="2s", show_default=True, help="How often to read the store.")
@click.option("--once", is_flag=True, help="Print one frame and exit; the default without a terminal and with --json.")
@session_options
def top(session: Session, every: float, once: bool) -> int:
    """Watch the store live: queues, the longest running jobs, failures, groups, workers.

    Keys pause and resume (p), revive (r), cancel (C), discard (D) and stop (S) what is selected; capitals ask first.
    """
    with session.store() as app:
        if session.as_json:
            session.print.document(_document(look(app)))
        elif once or not (sys.stdin.isatty() and session.print.console.is_terminal):
            console = session.print.console
            console.print(draw(look(app), View(message=" "), console.width, 1000))
        else:
            _watch(session, app, max(0.2, every))
    return Exit.DONE


def _document(scene: Scene) -> dict[str, Any]:
    return {
        "store": scene.url,
        "queues": [queue_document(one) for one in scene.queues],
        "running": [job_document(one) for one in scene.running],
        "failures": [letter_document(one) for one in scene.failures],
        "groups": [group_document(one) for one in scene.groups],
        "workers": [worker_document(one) for one in scene.workers],
        "ended_per_minute": dict(scene.rates),
    }


def _watch(session: Session, app: Holdfast, every: float) -> None:
    from rich.live import Live

    console = session.print.console
    scene, view = look(app), View()
    with _keys() as read_key, Live(console=console, screen=True, auto_refresh=False) as live:
        looked = time.monotonic()
        while True:
            live.update(draw(scene, view, console.width, console.height), refresh=True)
            key = read_key(max(0.05, looked + every - time.monotonic()))
            if key == QUIT or key == "":
                return
            if key is not None:
                view = steer(app, scene, view, key)
            acted = key is not None and view.message and not view.asked
            if acted or (not view.frozen and time.monotonic() - looked >= every):
                scene, view, looked = *_again(app, scene, view), time.monotonic()


def _again(app: Holdfast, scene: Scene, view: View) -> tuple[Scene, View]:
    """The next scene; the old one, and why, if the store does not answer."""
    try:
        return look(app), view
    except HoldfastError as error:
        return scene, replace(view, message=f"{type(error).__name__}: {error}")


def split_keys(text: str) -> list[str]:
    """The keys in what the terminal sent: several may arrive together, and an arrow is three characters."""
    return [ESCAPES.get(found, found[:1]) for found in re.findall(r"\x1b\[.|.", text, re.DOTALL)]


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Read single keys from the terminal: a key, None if none came in time, "" at its end."""
    import termios
    import tty

    entry = sys.stdin.fileno()
    before = termios.tcgetattr(entry)
    poll = select.poll()
    poll.register(entry, select.POLLIN)

    typed: list[str] = []

    def read_key(timeout: float) -> str | None:
        if not typed:
            if not poll.poll(timeout * 1000):
                return None
            typed.extend(split_keys(os.read(entry, 1024).decode(errors="replace")) or [""])
        return typed.pop(0)

    try:
        tty.setcbreak(entry)
        yield read_key
    finally:
        termios.tcsetattr(entry, termios.TCSADRAIN, before)
