"""How the guard decides: compares what Holdfast needs relative to the bare store now with the recorded ratios. Pure.

There are two ratios, both Holdfast ÷ bare store. Processor time per job is hardly affected by a busy neighbour or a
slow disk, so its bounds are tight. Elapsed time per job is affected, so its bounds are loose; but only it reveals a
worker that waits when it should work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Level = Literal["fine", "warning", "failure"]


class Bounds(NamedTuple):
    what: str
    warn: float
    fail: float


BOUNDS = {"processor": Bounds("processor time", 1.3, 2.0), "time": Bounds("time", 2.0, 4.0)}


class Verdict(NamedTuple):
    level: Level
    line: str


def best(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The minimum of each ratio: a busy neighbour makes a round worse, and nothing makes one better."""
    return {name: min(one[name] for one in rounds if name in one) for name in BOUNDS if any(name in r for r in rounds)}


def settled(found: Mapping[str, float], recorded: Mapping[str, float]) -> bool:
    """Whether further rounds cannot change the verdict: a minimum only falls, so what is fine stays fine."""
    if not all(name in found and name in recorded for name in BOUNDS):
        return False
    return all(verdict.level == "fine" for verdict in judge("", found, recorded))


def judge(store: str, found: Mapping[str, float], recorded: Mapping[str, float]) -> list[Verdict]:
    """One verdict per ratio."""
    verdicts = []
    for name, bounds in BOUNDS.items():
        if name not in found:
            continue
        shown = f"{store}: {found[name]:.1f} × the bare store's {bounds.what} per job"
        if name not in recorded:
            verdicts.append(Verdict("fine", f"{shown}; nothing on record, bench/guard --record notes it"))
            continue
        worse = found[name] / recorded[name]
        shown += f", {recorded[name]:.1f} × on record"
        level: Level = "failure" if worse > bounds.fail else "warning" if worse > bounds.warn else "fine"
        if level != "fine":
            shown += f": {worse:.1f} times as much, allowed are {bounds.warn:.1f}; bench/run shows where"
        verdicts.append(Verdict(level, shown))
    return verdicts
