"""Charts as SVG: plots that stretch, labels as HTML beside them, and the same numbers as a table for screen readers.

Called by the pages with numbers read from the store. Pure: it reads nothing; colours come only from the class of the
state an outcome leads to (see tokens.css).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

from markupsafe import Markup
from msgspec import Struct

from .formats import duration, num

WIDTH, HEIGHT = 600.0, 140.0
STEPS = 4  # gridlines above zero
TABLE_ROWS_MAX = 61
LOW_SAMPLE = 10
Shape = Literal["area", "bars", "line"]
Values = Sequence[float | None]


class Series(Struct, frozen=True, kw_only=True):
    """One kind of number over time."""

    name: str
    hue: str  # a state's class
    values: Values
    shape: Shape = "line"
    style: str = ""  # p95, p99


class Chart(Struct, frozen=True, kw_only=True):
    """A chart as a template shows it."""

    id: str
    title: str
    sub: str
    figure: str
    small: str
    series: tuple[Series, ...]
    ys: tuple[str, ...]  # from the top
    xs: tuple[str, ...]
    plot: Markup
    said: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    low: bool = False  # too few numbers to see a trend in


class Frame(Struct, frozen=True, kw_only=True):
    """A chart's title and texts."""

    id: str
    title: str
    sub: str
    figure: str
    small: str = ""


def counted(frame: Frame, times: Sequence[datetime], series: Sequence[Series], said: str) -> Chart:
    """A chart of counts, from zero. Bars are stacked, areas and lines are not."""
    stacks = [sum(one.values[i] or 0 for one in series if one.shape == "bars") for i in range(len(times))]
    most = max([0.0, *stacks, *(value or 0 for one in series if one.shape != "bars" for value in one.values)])
    top = nice_top(most)
    parts, below = [_grid()], [0.0] * len(times)
    for one in series:
        if one.shape == "bars":
            parts.append(_bars(one, below, top))
            below = [base + (value or 0) for base, value in zip(below, one.values, strict=True)]
        else:
            parts.append(_area(one, top) if one.shape == "area" else _steps(one, top))
    ys = tuple(num(top * step / STEPS) for step in range(STEPS, -1, -1))
    return _chart(frame, times, series, ys, Markup().join(parts), said, num)


def timed(frame: Frame, times: Sequence[datetime], series: Sequence[Series], said: str) -> Chart:
    """A chart of durations, on a logarithmic scale."""
    given = [value for one in series for value in one.values if value]
    low = math.floor(math.log10(max(1e-4, min(given, default=0.01))))
    high = max(low + 1, math.ceil(math.log10(max(1e-3, max(given, default=1.0)))))
    span = high - low

    def share(value: float) -> float:
        return (math.log10(max(value, 10.0**low)) - low) / span

    parts = [_grid(span), *(_line(one, share) for one in series)]
    ys = tuple(_decade(power) for power in range(high, low - 1, -1))
    return _chart(frame, times, series, ys, Markup().join(parts), said, duration)


def aged(frame: Frame, times: Sequence[datetime], series: Series, said: str) -> Chart:
    """A chart of one duration that grows from zero, such as the age of the oldest job."""
    top = nice_top(max([1.0, *(value or 0 for value in series.values)]), seconds=True)
    ys = tuple("0" if not step else _whole(top * step / STEPS) for step in range(STEPS, -1, -1))
    return _chart(frame, times, (series,), ys, _grid() + _area(series, top), said, duration)


def _whole(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else duration(seconds)


def _decade(power: int) -> str:
    return f"{10 ** (power + 3)} ms" if power < 0 else f"{10**power:,} s"


def spark(values: Sequence[float], hue: str, said: str) -> Markup:
    """A sparkline for a table row."""
    top, count = max([*values, 1]), max(len(values), 1)
    step = 96 / count
    bars = Markup().join(
        Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx=".5"/>').format(
            _n(i * step), _n(24 - tall), _n(max(step - 1, step * 0.7)), _n(tall)
        )
        for i, value in enumerate(values)
        for tall in [1 + 22 * value / top if value else 1]
    )
    return Markup('<svg class="spark {}" viewBox="0 0 96 24" role="img" aria-label="{}">{}</svg>').format(
        hue, said, bars
    )


def nice_top(most: float, *, seconds: bool = False) -> float:
    """The end of a scale: a number whose quarters are easy to read."""
    if seconds:
        return next(
            (top for top in (4, 20, 60, 240, 1200, 3600, 14400, 86400) if top >= most),
            math.ceil(most / 86400) * 86400.0,
        )
    if most <= 4:
        return 4.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= most)


def _chart(
    frame: Frame,
    times: Sequence[datetime],
    series: Sequence[Series],
    ys: tuple[str, ...],
    plot: Markup,
    said: str,
    word: Callable[[float | None], str],
) -> Chart:
    whole = (times[-1] - times[0]).total_seconds() if len(times) > 1 else 0.0
    days = whole > 86400
    ticks = [times[round(part * (len(times) - 1) / 4)] for part in range(5)] if len(times) > 4 else list(times)
    first = max(0, len(times) - TABLE_ROWS_MAX)
    rows = tuple(
        (
            f"{times[i].day} {times[i]:%b %H:%M}" if days else f"{times[i]:%H:%M}",
            tuple(word(one.values[i]) for one in series),
        )
        for i in range(len(times) - 1, first - 1, -1)
    )
    samples = sum(1 for one in series for value in one.values if value)
    return Chart(
        id=frame.id,
        title=frame.title,
        sub=frame.sub,
        figure=frame.figure,
        small=frame.small,
        series=tuple(series),
        ys=ys,
        xs=tuple(f"{tick.day} {tick:%b}" if days else f"{tick:%H:%M}" for tick in ticks),
        plot=plot,
        said=said,
        rows=rows,
        low=samples < LOW_SAMPLE,
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _grid(steps: int = STEPS) -> Markup:
    line = Markup('<line class="gridline" x1="0" x2="600" y1="{0}" y2="{0}"/>')
    return Markup().join(line.format(_n(HEIGHT * step / steps)) for step in range(steps + 1))


def _bars(series: Series, below: Sequence[float], top: float) -> Markup:
    step = WIDTH / max(1, len(series.values))
    rect = Markup('<rect x="{}" y="{}" width="{}" height="{}"/>')
    made = [
        rect.format(_n(i * step), _n(HEIGHT * (1 - (base + value) / top)), _n(step * 0.86), _n(HEIGHT * value / top))
        for i, (value, base) in enumerate(zip(series.values, below, strict=True))
        if value
    ]
    return Markup('<g class="bar {}">{}</g>').format(series.hue, Markup().join(made))


def _area(series: Series, top: float) -> Markup:
    step = WIDTH / max(1, len(series.values))
    ups = "".join(
        f"V{_n(HEIGHT * (1 - (value or 0) / top))}H{_n((i + 1) * step)}" for i, value in enumerate(series.values)
    )
    first = _n(HEIGHT * (1 - ((series.values[0] if series.values else 0) or 0) / top))
    return Markup('<g class="{}"><path class="area" d="M0 140{}V140z"/><path class="ln" d="M0 {}{}"/></g>').format(
        series.hue, ups, first, ups
    )


def _steps(series: Series, top: float) -> Markup:
    """A stepped line like the edge of an area, so that both begin and end at the same times."""
    step, path, pen = WIDTH / max(1, len(series.values)), "", False
    for i, value in enumerate(series.values):
        if value is not None:
            y = _n(HEIGHT * (1 - value / top))
            path += f"{f'V{y}' if pen else f'M{_n(i * step)} {y}'}H{_n((i + 1) * step)}"
        pen = value is not None
    return Markup('<g class="{}"><path class="ln {}" d="{}"/></g>').format(series.hue, series.style, path)


def _line(series: Series, share: Callable[[float], float]) -> Markup:
    step, path, pen = WIDTH / max(1, len(series.values)), "", False
    for i, value in enumerate(series.values):
        if value is None:
            pen = False
            continue
        x, y = _n((i + 0.5) * step), _n(HEIGHT * (1 - share(value)))
        path += f"{'L' if pen else 'M'}{x} {y}" if pen or _next_known(series.values, i) else f"M{x} {y}h4"
        pen = True
    return Markup('<g class="{}"><path class="ln {}" d="{}"/></g>').format(series.hue, series.style, path)


def _next_known(values: Values, at: int) -> bool:
    """Whether a line can continue from here; a lone value is drawn as a dash."""
    return at + 1 < len(values) and values[at + 1] is not None
