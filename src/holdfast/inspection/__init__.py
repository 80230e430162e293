"""The read side: audit (do the promises hold?), explain (why is this job where it is?), and what the doctor looks at.

Called by the app, the command line and tests. Reads through the backend contract, and what stores and this machine tell
of themselves; never changes anything.
"""

from .auditing import Audit, audit, judge
from .explaining import Explanation, explain
from .pruning import prunable
from .violations import Violation

__all__ = ["Audit", "Explanation", "Violation", "audit", "explain", "judge", "prunable"]
