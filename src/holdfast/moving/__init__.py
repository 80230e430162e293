"""Moving stores: every job, dead letter, rule and pause of one store is copied to another.

Called by `holdfast move`. `Mover` does it, `survey` shows what it would do, `abandon` gives up an unfinished move.
Nothing here depends on the kind of store: everything uses the contract's seal, export and carry.
"""

from __future__ import annotations

from .mover import Comparison, Moved, Mover, Plan, Side, Step, Survey, abandon, survey

__all__ = ["Comparison", "Moved", "Mover", "Plan", "Side", "Step", "Survey", "abandon", "survey"]
