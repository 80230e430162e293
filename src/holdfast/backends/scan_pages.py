"""Pages, tallies and whole lists of jobs, built from a store's bounded scans. The same for every store.

Called by the contract's Reader. A store's `scan` looks at a bounded number of jobs and may return some that do not
match; `queries.matches` decides here. So every call is bounded in jobs and bytes read, and says how far it got.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..queries import grouped_under, matches, needs_clock, position_text
from ..queries.match import reads_errors, reads_payload
from ..queries.pages import PAGE_BYTES_MAX, TALLY_MAX, Grouping, JobPage, Look, Scanned, Tally
from ..records import JobQuery, JobRecord, Sort

if TYPE_CHECKING:
    from .contract import Reader

PAGE_MAX = 1000  # jobs of one page, whatever its limit
READS_MAX = 3000  # jobs that are read for one page or tally if the store cannot filter them itself
PAYLOAD_SECONDS = 0.3  # a search through arguments stops after this time
PAYLOAD_ROWS_FIRST = 500
SORTED_MAX = 2000  # jobs that are sorted here if no index has the order

# By sort: its key, and whether it is descending.
_ORDERS: dict[Sort, tuple[Callable[[JobRecord], float], bool]] = {
    "due": (lambda job: job.due_at, False),
    "finished": (lambda job: job.finished_at or 0.0, True),
    "priority": (lambda job: job.priority, True),
}


async def page(reader: Reader, query: JobQuery, now: float | None) -> JobPage:
    """One page."""
    if is_never(query) or query.limit < 1:
        return JobPage()
    if query.sort != "created" and not query.by_due_index:
        return await _sorted_page(reader, query, now)
    found: list[JobRecord] = []
    wanted = min(query.limit, PAGE_MAX)
    walk = _Walk(reader, query, now, light=False)
    while len(found) < wanted and await walk.on(wanted - len(found)):
        found += walk.met
    return JobPage(jobs=tuple(found), after=walk.position, scanned=walk.rows)


async def _sorted_page(reader: Reader, query: JobQuery, now: float | None) -> JobPage:
    """Sort the jobs found within the bounds; positions are among these."""
    value, falls = _ORDERS[query.sort]
    found: list[JobRecord] = []
    walk = _Walk(reader, replace(query, sort="created", before=None), now, light=False)
    while len(found) < SORTED_MAX and await walk.on(min(PAGE_MAX, SORTED_MAX - len(found))):
        found += walk.met

    def order(job: JobRecord) -> tuple[float, int]:
        return (-value(job), -job.seq) if query.sort == "finished" else (-value(job) if falls else value(job), job.seq)

    found.sort(key=order)
    if query.before is not None and query.beyond is not None:
        at = -query.beyond if falls else query.beyond
        start = (at, -query.before if query.sort == "finished" else query.before)
        found = [job for job in found if order(job) > start]
    chosen = found[: min(query.limit, PAGE_MAX)]
    after = position_text(chosen[-1].seq, float(value(chosen[-1]))) if len(found) > len(chosen) else None
    return JobPage(jobs=tuple(chosen), after=after, scanned=walk.rows, sorted_all=walk.position is None)


async def everything(reader: Reader, query: JobQuery) -> list[JobRecord]:
    """All matching jobs, up to the query's limit, page by page. It may have to read every job."""
    found: list[JobRecord] = []
    now = await reader.clock() if needs_clock(query) else None
    walk = _Walk(reader, query, now, light=False, bounded=False)
    while not is_never(query) and len(found) < query.limit and await walk.on(min(PAGE_MAX, query.limit - len(found))):
        found += walk.met
    return found


async def tally(reader: Reader, query: JobQuery, by: Grouping | None, now: float | None, rows_max: int | None) -> Tally:
    """Count the matching jobs, up to the bounds."""
    if is_never(query):
        return Tally()
    counter: Counter[str] = Counter()
    light = not (reads_payload(query) or reads_errors(query, by))
    walk = _Walk(reader, query, now, light=light, rows_max=rows_max)
    total = 0
    while total < TALLY_MAX and await walk.on(min(PAGE_MAX, TALLY_MAX - total)):
        total += len(walk.met)
        counter.update(grouped_under(by, job) for job in walk.met if by is not None)
    return Tally(total=total, groups=dict(counter.most_common()), scanned=walk.rows, complete=walk.position is None)


def tallied(counter: Counter[str], by: Grouping | None, rows: int, *, complete: bool) -> Tally:
    """A tally that a store counted by itself."""
    groups = {} if by is None else dict(sorted(counter.items(), key=lambda one: (-one[1], one[0])))
    return Tally(total=counter.total(), groups=groups, scanned=rows, complete=complete)


def is_never(query: JobQuery) -> bool:
    """Whether no job can match, because a condition has no value that could match."""
    return any(not condition.tests and not condition.negated for condition in query.more)


class _Pace:
    """How many jobs one scan reads if it reads arguments, which may be of any size: as many as take a moment."""

    def __init__(self) -> None:
        self.rows = PAYLOAD_ROWS_FIRST
        self._used = 0.0

    @property
    def is_over(self) -> bool:
        return self._used >= PAYLOAD_SECONDS

    def took(self, seconds: float) -> None:
        self._used += seconds
        if seconds < 0.1 * PAYLOAD_SECONDS:
            self.rows *= 4
        elif seconds > 0.4 * PAYLOAD_SECONDS:
            self.rows = max(1, self.rows // 4)


class _Walk:
    """Scan after scan through the jobs that may match, newest first, within the bounds of one call."""

    def __init__(
        self,
        reader: Reader,
        query: JobQuery,
        now: float | None,
        *,
        light: bool,
        bounded: bool = True,
        rows_max: int | None = None,
    ) -> None:
        self._reader, self._query, self._now = reader, query, now
        self._rows_max = rows_max or reader.scan_rows_max
        self._light, self._bounded = light, bounded
        self._bytes, self._reads = PAGE_BYTES_MAX, READS_MAX
        self._step = 0
        self._pace = _Pace() if reads_payload(query) else None
        self._ended = False
        self.rows = 0
        self.met: list[JobRecord] = []  # jobs of the latest scan

    async def on(self, wanted: int) -> bool:
        """Scan once for that many jobs. False: nothing was read, because a bound or the end was reached."""
        rows = self._rows_max - (self.rows if self._bounded else 0)
        if self._ended or rows < 1 or (self._bounded and (self._bytes < 1 or self._reads < 1)):
            return False
        if self._pace is not None:
            if self._bounded and self._pace.is_over:
                return False
            rows = min(rows, self._pace.rows)
        if self._now is None and needs_clock(self._query):
            self._now = await self._reader.clock()
        size = self._bytes if self._bounded else PAGE_BYTES_MAX
        look = Look(rows_max=rows, bytes_max=size, light=self._light, now=self._now or 0.0)
        asked = max(wanted, self._step)
        began = time.monotonic()
        found = await self._reader.scan(replace(self._query, limit=asked), look)
        if self._pace is not None:
            self._pace.took(time.monotonic() - began)
        self._take(found, wanted)
        if len(found.jobs) == asked and 2 * len(self.met) < asked:
            self._step = min(4 * asked, PAGE_MAX)  # the store cannot filter: read more at once
        return True

    def _take(self, found: Scanned, wanted: int) -> None:
        self.rows += found.rows
        self._bytes -= sum(map(weight, found.jobs))
        self._reads -= len(found.jobs)
        met = [job for job in found.jobs if matches(self._query, job, self._now or 0.0)]
        self.met = met[:wanted]
        before, beyond = found.before, found.beyond
        if len(met) > wanted:
            before, beyond = self.met[-1].seq, self.met[-1].due_at
        self._ended = before is None
        self._query = replace(self._query, before=before, beyond=beyond)

    @property
    def position(self) -> str | None:
        """Where to continue; None at the end."""
        if self._ended or self._query.before is None:
            return None
        return position_text(self._query.before, self._query.beyond if self._query.by_due_index else None)


def weight(job: JobRecord | Any) -> int:
    """A job's size, as the bound of a page counts it."""
    errors = sum(len(one.text) + len(one.traceback or "") for one in job.errors)
    return len(job.args) + len(job.value or b"") + errors
