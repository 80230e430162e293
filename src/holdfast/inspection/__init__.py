"""The read side: audit (do the promises hold?), explain (why is this job where it is?), and what the doctor looks at.

Called by the app, the command line and tests. Reads through the backend contract, and what stores and this machine tell
of themselves; never changes anything.
"""

from .audit import Audit, audit, judge
from .explain import Explanation, explain
from .prune_preview import prunable
from .violations import Violation

__all__ = ["Audit", "Explanation", "Violation", "audit", "explain", "judge", "prunable"]
