"""The read side: audit (do the invariants hold?), explain (why is this job where it is?), and doctor's checks.

Called by the app, the command line and tests. Reads through the backend contract, and what stores and this machine
report about themselves; never changes anything.
"""

from .audit import Audit, Violation, audit, judge
from .explain import Explanation, explain
from .prune_preview import prunable

__all__ = ["Audit", "Explanation", "Violation", "audit", "explain", "judge", "prunable"]
