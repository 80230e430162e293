"""Draws curves as SVG without any library: axes with round numbers, a line and a name for each curve. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 180, 44, 52
COLOURS = ("#0b6e4f", "#c1440e", "#2456a6", "#7a3e9d", "#8a6d00", "#444444", "#b0306a")


def short(number: float) -> str:
    """12,000 as 12 k; small numbers with as many digits as they need."""
    for size, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{sign}"
    return f"{number:.3g}"


def powers(low: float, high: float) -> list[float]:
    """The powers of ten that enclose the range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


class Axis:
    """Maps numbers to positions; logarithmic."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        self._begin, self._end = begin, end

    def at(self, number: float) -> float:
        share = (math.log10(number) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


def chart(title: str, across: str, up: str, curves: Mapping[str, Points], ticks: Sequence[float]) -> str:
    """Curves on a logarithmic grid; `ticks` are the labels of the horizontal axis."""
    values = [value for points in curves.values() for _, value in points if value > 0]
    marks = powers(min(values), max(values))
    x = Axis(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    y = Axis(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#111111">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle" fill="#333333">'
        f"{escape(across)}</text>",
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle" fill="#333333" '
        f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(up)}</text>',
    ]
    for mark in marks:
        place = y.at(mark)
        parts.append(f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{place + 4:.1f}" text-anchor="end" fill="#333333">{short(mark)}</text>')
    for tick in ticks:
        place = x.at(tick)
        parts.append(f'<path d="M{place:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        parts.append(
            f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#333333">{short(tick)}</text>'
        )
    return "\n".join([*parts, *_lines(curves, x, y), "</svg>", ""])


def _lines(curves: Mapping[str, Points], x: Axis, y: Axis) -> list[str]:
    """The curves, each with its name at its end; names are at least one line apart."""
    parts: list[str] = []
    names: list[tuple[float, str, str]] = []
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        way = " ".join(f"{x.at(when):.1f},{y.at(value):.1f}" for when, value in points if value > 0)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        names.append((y.at(points[-1][1]), name, colour))
    last = -math.inf
    for place, name, colour in sorted(names):
        last = max(place, last + 15)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{last + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts
