"""Straight lines and quantiles: splits measured costs into a constant part and a part per job. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """cost(n) = each call + each job * n."""

    call: float
    job: float

    def at(self, jobs: float) -> float:
        return self.call + self.job * jobs

    def times(self, factor: float) -> Line:
        return Line(self.call * factor, self.job * factor)


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (jobs, cost) that minimises the squares of *relative* errors, with neither part below 0.

    Relative, because a call of 300 costs a hundred times a call of 1: absolute errors would count only the largest.
    """
    if len({jobs for jobs, _ in points}) < 2 or any(cost <= 0 for _, cost in points):
        raise ValueError("a line needs costs above 0 for two different numbers of jobs; measure more sizes")
    weights = [1 / cost**2 for _, cost in points]
    w = sum(weights)
    x = sum(weight * jobs for weight, (jobs, _) in zip(weights, points, strict=True))
    y = sum(weight * cost for weight, (_, cost) in zip(weights, points, strict=True))
    xx = sum(weight * jobs * jobs for weight, (jobs, _) in zip(weights, points, strict=True))
    xy = sum(weight * jobs * cost for weight, (jobs, cost) in zip(weights, points, strict=True))
    slope = (w * xy - x * y) / (w * xx - x * x)
    start = (y - slope * x) / w
    if start < 0:
        return Line(0.0, xy / xx)
    if slope < 0:
        return Line(y / w, 0.0)
    return Line(start, slope)


def worst_error(line: Line, points: Sequence[tuple[float, float]]) -> float:
    """The largest relative distance between the line and a point."""
    return max(abs(line.at(jobs) / cost - 1) for jobs, cost in points)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which the given share of all values lies; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(part * len(ordered)) - 1))]
