"""The read side: audit (do the promises hold?), explain (why is this job where it is?).

Called by the app, the command line and tests. Reads through the backend contract only and never changes anything.
"""

from .auditing import Audit, audit, judge, prunable
from .explaining import Explanation, explain
from .rules import Violation

__all__ = ["Audit", "Explanation", "Violation", "audit", "explain", "judge", "prunable"]
