"""Which cases of the suite tell a store apart, and which repeat another: what a whole run may have once.

The lines of a table of cases run the same code with other values. The themes of RIVALS call a store from several sides,
use two stores at once, or do everything at random: there every line goes another way.
"""

from __future__ import annotations

from holdfast.testing.conformance import CASES, concurrency, flow_rivals, move, seal, walk

RIVALS = (concurrency, flow_rivals, seal, move, walk)
RIVAL_CASES = frozenset(name for name in CASES if any(hasattr(theme, name.partition("[")[0]) for theme in RIVALS))
FIRST_LINES = frozenset({name.partition("[")[0]: name for name in reversed(CASES)}.values())
LATER_LINES = CASES.keys() - FIRST_LINES
ALIKE = LATER_LINES - RIVAL_CASES  # the code of each is run by the first line of its table, whatever the store
WALKS = frozenset(name for name in CASES if hasattr(walk, name.partition("[")[0]))
TURNS = ALIKE | (LATER_LINES & WALKS)  # of each table a run has an eighth, besides its first line: see tests/turns.py
