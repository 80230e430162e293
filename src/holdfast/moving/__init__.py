"""Moving house: every job, dead letter, rule and pause of one store carried to another.

Called by `holdfast move`. `Mover` does it, `survey` says what it would do, `abandon` gives an unfinished one up.
Nothing here knows a kind of store: all goes through seal, export and carry of the contract.
"""

from __future__ import annotations

from .compare import Comparison
from .decide import Plan
from .mover import Moved, Mover, Side, Step, Survey, abandon, survey

__all__ = ["Comparison", "Moved", "Mover", "Plan", "Side", "Step", "Survey", "abandon", "survey"]
