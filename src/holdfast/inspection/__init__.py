"""The read side: audit (do the invariants hold?), explain (why is this job where it is?), history and
stats (what happened?), and doctor's checks.

Called by the app, the command line and tests. Reads through the backend contract, and what stores and this machine
report about themselves; never changes anything.
"""

from .audit import Audit, Violation, audit, judge
from .explain import Explanation, explain
from .history import HistoryEntry, history
from .prune_preview import prunable
from .stats import StatLine, StatPoint, Stats, Times, stats

__all__ = [
    "Audit",
    "Explanation",
    "HistoryEntry",
    "StatLine",
    "StatPoint",
    "Stats",
    "Times",
    "Violation",
    "audit",
    "explain",
    "history",
    "judge",
    "prunable",
    "stats",
]
