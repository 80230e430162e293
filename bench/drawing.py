"""Draws bar and line plots as SVG text, without any library. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from .table import number

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 290, 100, 48, 24
HEIGHT, FOOT = 300, 40
COLOURS = {"ours": "#1f6f8b", "peer": "#c9a227", "floor": "#9aa5ab"}
SERIES = ("#1f6f8b", "#b5533c", "#4f8a3d", "#7a5ba6")


class Bar(NamedTuple):
    label: str
    value: float
    kind: str


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _page(height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="sans-serif" fill="#222" role="img"><title>{escape(title)}</title>'
    )
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    return "\n".join([head, ground, _text(12, 26, title, size=16), *parts, "</svg>"]) + "\n"


def bars(title: str, rows: Sequence[Bar], *, limit: float | None = None) -> str:
    """One bar per row, with its number; `limit` is drawn as a line across all of them."""
    most = max([row.value for row in rows] + ([limit] if limit else [])) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / most
    parts = []
    for place, row in enumerate(rows):
        y = TOP + place * ROW
        parts.append(_text(LEFT - 8, y + 15, row.label, "end"))
        parts.append(
            f'<rect x="{LEFT}" y="{y + 3}" width="{max(1.0, row.value * scale):.1f}" height="{ROW - 8}" '
            f'fill="{COLOURS[row.kind]}"/>'
        )
        parts.append(_text(LEFT + row.value * scale + 6, y + 15, number(row.value)))
    height = TOP + len(rows) * ROW + 12
    if limit:
        x = LEFT + limit * scale
        parts.append(f'<path d="M{x:.1f} {TOP}V{height - 10}" stroke="#b5533c" stroke-dasharray="4 3"/>')
    return _page(height, title, parts)


def lines(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line per series, on an axis that starts at zero, with the series' name at its end."""
    points = [point for one in series.values() for point in one]
    across, up = max(x for x, _ in points), max(y for _, y in points) * 1.1 or 1.0
    left, wide, high = 70, WIDTH - 70 - 130, HEIGHT - TOP - FOOT

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x / across * wide, TOP + high - y / up * high

    parts = [f'<path d="M{left} {TOP}V{TOP + high}H{left + wide}" stroke="#888" fill="none"/>']
    parts += [_text(left - 6, at(0, y)[1] + 4, number(y), "end", 11) for y in (0.0, up / 2.2, up / 1.1)]
    parts += [_text(at(x, 0)[0], TOP + high + 16, number(x), "middle", 11) for x in sorted({x for x, _ in points})]
    parts.append(_text(left, HEIGHT - 8, unit, size=11))
    for colour, (name, found) in zip(SERIES, series.items(), strict=False):
        path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in found)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        x, y = at(*found[-1])
        parts.append(_text(x + 6, y + 4, name))
    return _page(HEIGHT, title, parts)
