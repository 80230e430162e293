"""Draws the picture of docs/lifecycle.md: `python docs/draw_lifecycle.py`.

Boxes and paths are placed by hand; which verbs stand at an arrow comes from the code's table of transitions. A test
compares the drawing with the one stored and checks that every transition is at exactly one arrow. Pure but for the last
line.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from draw_walk import STYLE

from holdfast.lifecycle import TRANSITIONS, State, Verb

PICTURE = Path(__file__).parent / "images" / "lifecycle.svg"
WIDE, HIGH = 1230, 560
SCHEDULED, WAITING, READY, RUNNING = State.SCHEDULED, State.WAITING, State.READY, State.RUNNING
SUCCEEDED, CANCELLED, DEAD = State.SUCCEEDED, State.CANCELLED, State.DEAD
DUE, UNSTARTED, FINISHED = {WAITING, READY}, {SCHEDULED, WAITING, READY}, {SUCCEEDED, CANCELLED, DEAD}
NOTHING: set[State | None] = {None}

# x, y, width, height
BOXES = {
    SCHEDULED: (180, 100, 190, 50, "a"),
    WAITING: (180, 245, 190, 46, "a"),
    READY: (180, 340, 190, 46, "b"),
    RUNNING: (600, 285, 130, 115, "c"),
    DEAD: (990, 100, 130, 50, "a"),
    SUCCEEDED: (990, 230, 130, 50, "d"),
    CANCELLED: (990, 345, 130, 50, "a"),
}
FRAMES = {
    "not started": (145, 66, 260, 364),
    "due": (162, 222, 226, 182),
    "finished": (970, 66, 170, 364),
}


class Arrow(NamedTuple):
    """Every transition from one of the starts to one of the ends; None is no job."""

    starts: set[State] | set[State | None]
    ends: set[State] | set[State | None]
    path: str
    label: tuple[float, float, str]  # x and y of its lowest line, and whether that is its start, middle or end
    chars: int = 40


ARROWS = (
    Arrow(NOTHING, UNSTARTED, "M52 125H139", (92, 117, "middle")),
    Arrow({SCHEDULED}, DUE, "M210 150V216", (220, 182, "start"), 16),
    Arrow(DUE, {SCHEDULED}, "M340 222V156", (348, 190, "start")),
    Arrow(DUE, DUE, "M275 340V297M275 291V334", (283, 320, "start")),
    Arrow({READY}, {RUNNING}, "M370 372H594", (490, 365, "middle")),
    Arrow({RUNNING}, {SUCCEEDED}, "M730 325H790V255H984", (800, 248, "start")),
    Arrow({RUNNING}, {SCHEDULED}, "M635 285V125H376", (415, 118, "start"), 26),
    Arrow({RUNNING}, DUE, "M600 318H394", (415, 311, "start"), 24),
    Arrow({RUNNING}, {CANCELLED}, "M730 372H984", (750, 365, "start"), 34),
    Arrow({RUNNING}, {DEAD}, "M695 285V125H984", (710, 118, "start")),
    Arrow(UNSTARTED, {CANCELLED}, "M340 430V475H1030V401", (640, 468, "middle")),
    Arrow(UNSTARTED, {DEAD}, "M275 66V32H1055V94", (640, 25, "middle")),
    Arrow(FINISHED, DUE, "M1090 430V520H225V410", (640, 513, "middle")),
    Arrow(UNSTARTED, NOTHING, "M145 372H62", (104, 365, "middle")),
    Arrow(FINISHED, NOTHING, "M1140 248H1178", (1159, 226, "middle"), 8),
)


def steps() -> Iterator[tuple[Verb, State | None, State | None]]:
    """Every transition that moves a job: verb, from, to."""
    for verb, starts in TRANSITIONS.items():
        for start, ends in starts.items():
            yield from ((verb, start, end) for end in (sorted(ends) or [None]) if end is not start)


def of_arrow(arrow: Arrow) -> list[tuple[Verb, State | None, State | None]]:
    return [(verb, start, end) for verb, start, end in steps() if start in arrow.starts and end in arrow.ends]


def label(arrow: Arrow) -> str:
    """The verbs of an arrow; one that only some of its states have names them."""
    parts = []
    for verb in dict.fromkeys(verb for verb, _, _ in of_arrow(arrow)):
        starts = {start for other, start, _ in of_arrow(arrow) if other is verb}
        all_of_them = starts == arrow.starts or arrow.starts == arrow.ends
        whose = "" if all_of_them else f" ({', '.join(map(str, starts))})"
        parts.append(f"{verb.value}{whose}".replace(" ", "\N{NO-BREAK SPACE}"))
    return ", ".join(parts)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _arrow(arrow: Arrow) -> list[str]:
    x, y, anchor = arrow.label
    lines = wrap(label(arrow), arrow.chars, break_long_words=False, break_on_hyphens=False)
    paths = [f'<path d="M{piece}" class="way"/>' for piece in arrow.path.split("M")[1:]]
    return paths + [_text(x, y - 15 * (len(lines) - 1 - n), line, "soft", anchor) for n, line in enumerate(lines)]


def drawn() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" role="img">',
        "<title>The seven states of a job and the verbs that lead from one to another</title>",
        f"<style>{STYLE}.frame {{ stroke: var(--line); stroke-dasharray: 4 4; fill: none }}\n</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="var(--line)"/></marker></defs>',
        f'<rect width="{WIDE}" height="{HIGH}" fill="var(--ground)"/>',
    ]
    for name, (x, y, wide, high) in FRAMES.items():
        parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="8" class="frame"/>')
        parts.append(_text(x + 10, y + 18, name, "soft", "start"))
    for arrow in ARROWS:
        parts += _arrow(arrow)
    for state, (x, y, wide, high, colour) in BOXES.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="6" class="box" fill="var(--{colour})"/>'
        )
        parts.append(_text(x + wide / 2, y + high / 2 + 5, state.value, "title"))
    parts.append('<circle cx="45" cy="125" r="7" fill="var(--line)"/>')
    for x, y in ((50, 372), (1190, 248)):
        parts.append(f'<circle cx="{x}" cy="{y}" r="8" class="box" fill="none"/>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="var(--line)"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
