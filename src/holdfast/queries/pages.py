"""The bounds and results of reading many jobs: scans, pages and tallies.

Used by the backend contract, the app, the command line and the dashboard. Plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ..records import JobRecord

Grouping = Literal["state", "queue", "task", "error"]

GROUPINGS: tuple[Grouping, ...] = ("state", "queue", "task", "error")
SCAN_ROWS_MAX = 20_000  # jobs that one page, or one tally, reads; SQL stores read more
PAGE_BYTES_MAX = 4 * 1024 * 1024  # of arguments, results and errors that one page reads; a single job always fits
TALLY_MAX = 10_000  # matching jobs that a tally counts if the store cannot


class Look(Struct, frozen=True, kw_only=True):
    """What one scan may cost."""

    rows_max: int = SCAN_ROWS_MAX  # jobs, or index entries, to read
    bytes_max: int = PAGE_BYTES_MAX  # of arguments, results and errors to return; a single job always fits
    light: bool = False  # leave out arguments, results and errors
    now: float = 0.0  # for conditions that depend on the time


class Scanned(Struct, frozen=True, kw_only=True):
    """What one bounded look found: jobs that may match, newest first, and how far it came."""

    jobs: tuple[JobRecord, ...] = ()
    before: int | None = None  # the seq to continue below; None: there is nothing beyond
    beyond: float | None = None  # by due time: the one at that seq, to continue after
    rows: int = 0  # jobs, or index entries, read


class JobPage(Struct, frozen=True, kw_only=True):
    """One page of jobs that match a query. Fewer than its limit, with `after`: the bound of a page was reached."""

    jobs: tuple[JobRecord, ...] = ()
    after: str | None = None  # the position to continue after; None: these were the last
    scanned: int = 0  # jobs looked at
    sorted_all: bool = True  # False: sorted only among the newest that were looked at


class Tally(Struct, frozen=True, kw_only=True):
    """How many jobs match a query, in total and by what was asked for: at most TALLY_MAX, or as many as were found."""

    total: int = 0
    groups: Mapping[str, int] = {}  # most first
    scanned: int = 0
    complete: bool = True  # False: there may be more; a bound was reached
