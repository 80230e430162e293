"""The arithmetic of a benchmark: medians, spread, ratios inside a round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Figures = Mapping[str, float]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(rounds: Sequence[Figures | None]) -> dict[str, dict[str, float]]:
    """The spread of every figure over the rounds that have it."""
    names = dict.fromkeys(name for one in rounds if one for name in one)
    return {name: spread([one[name] for one in rounds if one and name in one]) for name in names}


def ratios(mine: Sequence[Figures | None], theirs: Sequence[Figures | None], figure: str) -> dict[str, float] | None:
    """Mine ÷ theirs, taken within each round, so that a slow second affects both; None if no round has both."""
    pairs = [(one, other) for one, other in zip(mine, theirs, strict=False) if one and other]
    found = [one[figure] / other[figure] for one, other in pairs if figure in one and other.get(figure)]
    return spread(found) if found else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all values lies; always one of the values themselves."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
