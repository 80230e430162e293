"""Draws the picture of docs/internals/walk-of-a-job.md: `python docs/draw_walk.py`.

One box per step of a job on SQLite, in the lane of the thread that does it, with the files it passes. The tests compare
the drawing with the one stored, and its files with those that a job was seen to pass. Pure but for the last line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).parent / "images" / "walk-of-a-job.svg"
SQLITE, KEEPER, RUNNER = "backends/sqlite/", "worker/keeper/", "worker/runner/"

LANES = (
    ("Your thread", "", "a"),
    ("Store: SQLite", SQLITE, "b"),
    ("Keeper: its own thread", KEEPER, "c"),
    ("Handlers: loop and threads", RUNNER, "d"),
)


class Step(NamedTuple):
    lane: int
    row: int
    title: str
    says: str
    files: Sequence[str]


STEPS = (
    Step(0, 0, "Bind", "arguments → a new job", ["task.py", "codec.py", "names.py"]),
    Step(0, 1, "Enqueue", "on the calling thread", ["producer.py", "store_thread.py", "clock.py", "job.py"]),
    Step(
        1,
        1,
        "Write, commit",
        "waiting → ready",
        [f"{SQLITE}{name}.py" for name in ("backend", "connection", "enqueue", "groups", "wakeups")],
    ),
    Step(1, 2, "Claim", "ready → running", [f"{SQLITE}claim.py"]),
    Step(
        2,
        2,
        "Exchange",
        "claims for free slots",
        [f"{KEEPER}{name}.py" for name in ("exchange_loop", "store_client")],
    ),
    Step(3, 2, "Run", "calls your function", [f"{KEEPER}runners.py", f"{RUNNER}attempt.py"]),
    Step(3, 3, "Decide", "outcome → settlement", ["context.py"]),
    Step(2, 3, "Exchange", "settles what ended", [f"{KEEPER}exchange_loop.py"]),
    Step(1, 3, "Settle, refill the group", "running → succeeded", [f"{SQLITE}settle.py"]),
    Step(2, 4, "Emit", "event: succeeded", ["events.py"]),
)
# From which step to which, and what is passed. In one row across, in one lane down; the wake-up turns a corner.
ARROWS = (
    (0, 1, ""),
    (1, 2, "job"),
    (2, 1, ""),
    (2, 4, "wake-up"),
    (4, 3, ""),
    (3, 4, "lease"),
    (4, 5, ""),
    (5, 6, ""),
    (6, 7, ""),
)
ARROWS += ((7, 8, "token"), (7, 9, ""))

WIDTH, GAP, SIDE, TOP, LINE = 214, 56, 20, 74, 18
STYLE = """
svg { --ground: #ffffff; --text: #1f2328; --soft: #59636e; --line: #6e7781;
      --a: #eef1f4; --b: #e3f0f4; --c: #f7f0d8; --d: #e8f3e3; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #0d1117; --text: #e6edf3; --soft: #9da7b3; --line: #8b949e;
        --a: #21262d; --b: #12303b; --c: #3a3110; --d: #1c3418; }
}
text { fill: var(--text); font: 13px sans-serif }
.head { font-weight: bold; font-size: 14px } .title { font-weight: bold }
.soft { fill: var(--soft); font-size: 12px } .file { font: 12px monospace }
.box { stroke: var(--line); stroke-width: 1 }
.way { stroke: var(--line); stroke-width: 1.5; fill: none; marker-end: url(#tip) }
"""


def _height(step: Step) -> int:
    return 46 + LINE * len(step.files) + 6


def _left(lane: int) -> int:
    return SIDE + lane * (WIDTH + GAP)


def _tops() -> list[int]:
    """Where each row begins, and where the last one ends."""
    tops = [TOP]
    for row in range(max(step.row for step in STEPS) + 1):
        tops.append(tops[-1] + max(_height(step) for step in STEPS if step.row == row) + 34)
    return tops


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(step: Step, top: int) -> list[str]:
    x, (_, folder, colour) = _left(step.lane), LANES[step.lane]
    shown = [file.removeprefix(folder) if folder in file or "/" in file else f"holdfast/{file}" for file in step.files]
    return [
        f'<rect x="{x}" y="{top}" width="{WIDTH}" height="{_height(step)}" rx="6" class="box" fill="var(--{colour})"/>',
        _text(x + 12, top + 20, step.title, "title"),
        _text(x + 12, top + 38, step.says, "soft"),
        *(_text(x + 12, top + 58 + LINE * n, file, "file") for n, file in enumerate(shown)),
    ]


def _arrow(one: Step, two: Step, label: str, tops: Sequence[int]) -> list[str]:
    middle = _left(two.lane) + WIDTH // 2
    if one.lane == two.lane:
        return [f'<path d="M{middle} {tops[one.row] + _height(one)}V{tops[two.row] - 3}" class="way"/>']
    right = two.lane > one.lane
    start = _left(one.lane) + (WIDTH if right else 0)
    y = tops[one.row] + (28 if right else 46)
    if one.row != two.row:
        return [
            f'<path d="M{start} {y}H{middle}V{tops[two.row] - 3}" class="way"/>',
            _text(middle + 8, y + 22, label, "soft"),
        ]
    end = _left(two.lane) + (-3 if right else WIDTH + 3)
    return [f'<path d="M{start} {y}H{end}" class="way"/>', _text((start + end) / 2, y - 6, label, "soft", "middle")]


def drawn() -> str:
    tops = _tops()
    wide, high = _left(len(LANES)) - GAP + SIDE, tops[-1] - 34 + SIDE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">',
        "<title>One job from enqueue to settled, with the files it passes</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="var(--line)"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="var(--ground)"/>',
    ]
    for lane, (name, folder, _) in enumerate(LANES):
        parts.append(_text(_left(lane), 30, name, "head"))
        parts.append(_text(_left(lane), 50, folder or "src/holdfast/", "file"))
    for one, two, label in ARROWS:
        parts += _arrow(STEPS[one], STEPS[two], label, tops)
    for step in STEPS:
        parts += _box(step, tops[step.row])
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
