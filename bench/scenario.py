"""A scenario: cases measured in turn, round after round, and the figure by which they are compared.

Every module of scenarios/ defines one; runner.py runs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .driving import Contender, Kind, peer
from .environments import LeftOut
from .peers import chosen
from .places import Place


class Case(NamedTuple):
    """One line of the table."""

    name: str
    kind: Kind
    measure: Callable[[], dict[str, float]]
    family: str = ""  # ratios are taken within a family
    baseline: bool = False  # the others are shown as a ratio to this one
    rounds_max: int = 99
    label: str = ""  # of the ratios to it; its name unless given


class Setting:
    """What a scenario runs with."""

    def __init__(
        self, store: str, place: Place, against: str, jobs: int, *, quick: bool, seconds: float | None = None
    ) -> None:
        self.store, self.place, self.jobs, self.quick = store, place, jobs, quick
        self.seconds = seconds  # None: the scenario's default
        self.left_out: dict[str, str] = {}
        self.stopped = False  # interrupted before all rounds were done
        self.against = against

    def peers(self, *, groups: bool = False) -> Iterator[Contender]:
        """The peers that are available; the others are noted with the reason."""
        for name in chosen(self.against, self.store, groups=groups):
            try:
                yield peer(name, self.store)
            except LeftOut as reason:
                self.left_out[name] = f"left out: {reason}"


class Scenario(NamedTuple):
    name: str
    title: str
    figure: str  # the one whose ratios are shown
    unit: str
    cases: Callable[[Setting], contextlib.AbstractContextManager[list[Case]]]
    stores: tuple[str, ...]
    factor: float = 1.0  # rounds, as a share of those asked for
    weight: float = 20.0  # about how many seconds five rounds take, relative to other scenarios
    more_is_better: bool = True
    fresh: bool = False  # PostgreSQL without autovacuum
    asked_only: bool = False  # takes too long to be part of `all`
    columns: tuple[str, ...] = ()  # further figures worth a column
    near: float = 0.0  # a peer that reaches less than this share of ours in the first round is not run again

    def rounds(self, asked: int) -> int:
        return max(1, round(asked * self.factor))
