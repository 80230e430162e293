"""The query language for jobs: its parser, and the one definition of what a condition means.

`parse_query` and `make_query` turn text and keyword filters into a `JobQuery`; `matches` decides whether a job meets
it. Stores may select in advance what cannot match, but `matches` has the last word on every job, on every store.
`pages` has the results of scans.
"""

from .language import (
    FIELDS,
    check_grouping,
    continued,
    make_query,
    parse_query,
    parse_states,
    position,
    position_text,
    without_states,
)
from .match import error_of, grouped_under, matches, matches_letter, needs_clock, reads_payload

__all__ = [
    "FIELDS",
    "check_grouping",
    "continued",
    "error_of",
    "grouped_under",
    "make_query",
    "matches",
    "matches_letter",
    "needs_clock",
    "parse_query",
    "parse_states",
    "position",
    "position_text",
    "reads_payload",
    "without_states",
]
