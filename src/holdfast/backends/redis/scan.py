"""scan: jobs that may match a query, newest first, along the index with the fewest candidates. Never writes.

Called by read.py. Index members name the seq and the id of a job; records are then checked in the server, page by
page, each one short script. It ends when it has looked at as many jobs, or read as many bytes, as it may.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ...lifecycle import LIVE, State
from ...queries.match import NUMBERS, SPANS
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import Condition, JobQuery, JobRecord, Wanted
from ..prefilter import COLUMNS
from ..scan_pages import tallied, weight
from . import codec
from .layouts import FIELDS

PAGE = 1000  # records checked, or members read, by one script or command
IDS_PAGE, IDS_SHARE = 5000, 5  # where only ids are looked at: by one script, and for one row that a scan may check
FEW_MAX = 10_000  # candidates that are sorted, because their index has another order
_HEAD = FIELDS.index("key") + 1  # fields of a record that most queries need
_SEQ = struct.Struct(">Q")  # at the beginning of a member of `due`
_SLACK = 0.001  # seconds: sums of times are rounded
# A span as a field, whether it grows with the time, and the states in which it applies.
_SPANS = {
    "age": ("created_at", True, ""),
    "running": ("started_at", True, "x"),
    "wait": ("due_at", True, "rw"),
    "due": ("due_at", False, "s"),
    "finished": ("finished_at", True, ""),
}
_FIRST = 100  # members of the first page: most scans need no more

Number = tuple[int, bytes]  # seq, id
Range = tuple[str, bytes, bytes, int]  # index, from, to, bytes between the names and the id
Script = Callable[..., Awaitable[list[Any]]]
Command = Callable[..., Awaitable[Any]]
Count = Callable[[str | None], Awaitable[Mapping[str, Mapping[State, int]]]]


class Scan:
    """One scan, or one tally."""

    def __init__(self, run: Script, command: Command, query: JobQuery, look: Look) -> None:
        self._script, self._command, self._query, self._look = run, command, query, look
        self._conditions = Conditions(query, look.now)
        self._found: list[JobRecord] = []
        self._counts: Counter[str] = Counter()
        self._dues: dict[int, float] = {}  # by due time: that of each seq
        self._by: int | None = None  # of a tally: the position of the field
        self._rows, self._bytes = 0, look.bytes_max
        by_id = bool(query.id_ends or query.id_prefix)  # then no record is read of those that do not match
        self._page, self._rows_max = (IDS_PAGE, IDS_SHARE * look.rows_max) if by_id else (PAGE, look.rows_max)

    async def run(self, count: Count) -> Scanned:
        query = self._query
        numbers: AsyncIterator[Number] | None = None
        if query.by_due_index:
            before = await self._through(self._by_due())
            return Scanned(jobs=tuple(self._found), before=before, beyond=self._dues.get(before or 0), rows=self._rows)
        if query.worker is not None or query.states or query.queue is not None:
            numbers = await self._candidates(count)
        before = await (self._through_all() if numbers is None else self._through(numbers))
        return Scanned(jobs=tuple(self._found), before=before, rows=self._rows)

    async def tally(self, by: Grouping | None, count: Count) -> Tally | None:
        """Count in the server what matches; None if it cannot tell that from the records."""
        if by == "error" or not self._conditions.exact:
            return None
        self._by = 0 if by is None else FIELDS.index(by) + 1
        self._conditions.need(self._by)
        scanned = await self.run(count)
        names = {codec.STATES[name].value if by == "state" else name: n for name, n in self._counts.items()}
        return tallied(Counter(names), by, scanned.rows, complete=scanned.before is None)

    async def _check(self, ids: list[str] | None, below: int | None, page: int) -> tuple[bytes, int]:
        """Check some jobs; keep those that meet the conditions. Returns where it ended, and how many it checked."""
        asked = [self._conditions.fields, self._conditions.packed]
        if self._by is not None:
            last, checked, packed = await self._script("tally", ids, below, page, self._by, *asked)
            self._counts.update(codec.unpack(packed) or {})
        else:
            wanted, light = self._query.limit - len(self._found), self._look.light
            last, checked, pieces = await self._script("scan", ids, below, page, wanted, self._bytes, light, *asked)
            jobs = codec.light_jobs(pieces) if light else codec.jobs(pieces)
            self._found += jobs
            self._bytes -= sum(map(weight, jobs))
        self._rows += checked
        return last, checked

    @property
    def _goes_on(self) -> bool:
        is_full = self._by is None and (len(self._found) >= self._query.limit or self._bytes <= 0)
        return not is_full and self._rows < self._rows_max

    async def _through_all(self) -> int | None:
        """Returns the seq to continue below; None at the end."""
        below = self._query.before
        while self._goes_on:
            last, _ = await self._check(None, below, min(self._page, self._rows_max - self._rows))
            if not last:
                return None
            below = int(last)
        return below

    async def _through(self, numbers: AsyncIterator[Number]) -> int | None:
        page: list[Number] = []
        size = min(PAGE, max(_FIRST, self._query.limit))
        async for number in numbers:
            page.append(number)
            if len(page) < min(size, self._rows_max - self._rows):
                continue
            at = await self._check_page(page)
            if not self._goes_on:
                return at
            page, size = [], PAGE
        if page:
            at = await self._check_page(page)
            if at != page[-1][0]:
                return at
        return None

    async def _check_page(self, page: list[Number]) -> int:
        """Returns the seq of the last job that was checked."""
        _, checked = await self._check([job_id.decode() for _, job_id in page], None, 0)
        return page[checked - 1][0]

    # ------------------------------------------------------------------ candidates

    async def _candidates(self, count: Count) -> AsyncIterator[Number] | None:
        """Newest first: unfinished ones, if the indexes tell that they are few, and finished ones as far as needed."""
        query = self._query
        states = {State.RUNNING} if query.worker is not None else set(query.states) or set(State)
        few = await self._few(states & LIVE)
        if few is None:
            return None
        streams = [_each(few)]
        if ended := states - LIVE:
            counts = await count(query.queue)
            streams += [self._finished_in(state, queue) for queue, by in counts.items() for state in ended & set(by)]
        return _merged(streams)

    async def _by_due(self) -> AsyncIterator[Number]:
        """Scheduled jobs, soonest first, after the query's place."""
        due_at, seq = self._query.beyond, self._query.before or 0
        size = _FIRST
        while True:
            start = 0 if due_at is None else await self._rank_after(due_at, seq)
            flat = await self._command("scan", "ZRANGE", "due", start, start + size - 1, "WITHSCORES")
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                if len(member) > _SEQ.size:
                    [seq], due_at = _SEQ.unpack_from(member), float(score)
                    self._dues[seq] = due_at
                    yield seq, member[_SEQ.size :]
            if len(flat) < 2 * size:
                return
            size = PAGE

    async def _rank_after(self, due_at: float, seq: int) -> int:
        """How many of `due` come up to this place: sooner ones, and of those at that time the ones up to the seq."""
        low: int = await self._command("scan", "ZCOUNT", "due", "-inf", f"({due_at!r}")
        high: int = low + await self._command("scan", "ZCOUNT", "due", repr(due_at), repr(due_at))
        while low < high:
            middle = (low + high) // 2
            found: list[bytes] = await self._command("scan", "ZRANGE", "due", middle, middle)
            if found and found[0][: _SEQ.size] <= _SEQ.pack(seq):
                low = middle + 1
            else:
                high = middle
        return low

    async def _finished_in(self, state: State, queue: str) -> AsyncIterator[Number]:
        prefix = codec.LETTERS[state].encode() + codec.escaped(queue)
        _, low, high, tail = range_of("finished", prefix, 8)
        if self._query.before is not None:
            high = b"(" + prefix + struct.pack(">Q", self._query.before)
        size = _FIRST
        while True:
            page: list[bytes] = await self._command("scan", "ZREVRANGEBYLEX", "finished", high, low, "LIMIT", 0, size)
            for member in page:
                if (number := number_in("finished", member, tail)) is not None:
                    yield number
            if len(page) < size:
                return
            high, size = b"(" + page[-1], PAGE

    async def _few(self, states: set[State]) -> list[Number] | None:
        """All candidates in these states, newest first, if they are few."""
        ranges = _ranges(self._query, states)
        left = FEW_MAX
        for key, low, high, _ in ranges:
            left -= await self._command("scan", "ZLEXCOUNT", key, low, high)
            if left < 0:
                return None
        numbers: set[Number] = set()
        below = self._query.before
        for key, low, high, tail in ranges:
            async for member in self._members(key, low, high):
                number = number_in(key, member, tail)
                if number is not None and (below is None or number[0] < below):
                    numbers.add(number)
        return sorted(numbers, reverse=True)

    async def _members(self, key: str, low: bytes, high: bytes) -> AsyncIterator[bytes]:
        while True:
            page: list[bytes] = await self._command("scan", "ZRANGEBYLEX", key, low, high, "LIMIT", 0, PAGE)
            for member in page:
                yield member
            if len(page) < PAGE:
                return
            low = b"(" + page[-1]


async def _each(numbers: list[Number]) -> AsyncIterator[Number]:
    for number in numbers:
        yield number


async def _merged(streams: list[AsyncIterator[Number]]) -> AsyncIterator[Number]:
    """Merge streams that are newest first."""
    heads = [(await anext(stream, None), place) for place, stream in enumerate(streams)]
    heap = [(-head[0], place, head[1]) for head, place in heads if head is not None]
    heapq.heapify(heap)
    while heap:
        seq, place, job_id = heap[0]
        yield -seq, job_id
        following = await anext(streams[place], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-following[0], place, following[1]))


class Conditions:
    """A query's conditions as the scripts take them: see part conditions of lua/read.lua."""

    def __init__(self, query: JobQuery, now: float) -> None:
        self.exact = True  # the scripts let through only what matches
        self.fields = _HEAD  # how many of a record the scripts read
        if query.worker is not None:
            self.need(FIELDS.index("worker") + 1)
        states = "".join(codec.LETTERS[state] for state in query.states) or None
        names = (query.queue, query.task, query.group, query.key, query.worker, query.id_prefix)
        more = [one for condition in query.more if (one := self._one(condition, now)) is not None]
        failed = any(one.field == "error" and not one.negated for one in query.more) or None
        self.packed = [states, *names, list(query.id_ends) or None, more, failed]

    def need(self, position: int) -> None:
        """Have the scripts read a record up to this field."""
        self.fields = max(self.fields, position)

    def _one(self, condition: Condition, now: float) -> list[Any] | None:
        """(position, negated, states, is_text, tests); None if a record cannot tell."""
        field = condition.field
        states: str | bool = False
        tests: list[Any]
        if field in NUMBERS:
            name, tests = field, [[wanted.op, wanted.number] for wanted in condition.tests]
        elif field in COLUMNS:
            name, tests = field, [list(wanted.parts) for wanted in condition.tests]
        else:
            self.exact = False
            if field not in SPANS or condition.negated:  # what lets through too much must not be negated
                return None
            name, grows, letters = _SPANS[field]
            states, tests = letters or False, [_bound(wanted, grows, now) for wanted in condition.tests]
        position = FIELDS.index(name) + 1
        self.need(position)
        return [position, condition.negated, states, field in COLUMNS, tests]


def _bound(wanted: Wanted, grows: bool, now: float) -> list[Any]:
    """A span as a bound on a time."""
    at = now - (wanted.number or 0.0) if grows else now + (wanted.number or 0.0)
    return ["<=", at + _SLACK] if wanted.op.startswith(">") == grows else [">=", at - _SLACK]


def _ranges(query: JobQuery, states: set[State]) -> list[Range]:
    """Return (index, from, to, bytes between the names and the id) where the query's unfinished jobs are."""
    if query.worker is not None:
        return [range_of("running", codec.escaped(query.worker), 16)]
    queue = b"" if query.queue is None else codec.escaped(query.queue)
    grouped = queue and query.group is not None
    place = queue + codec.escaped(query.group or "") if grouped else queue
    found: list[Range] = []
    for state in states:
        if state is State.RUNNING:
            found.append(range_of("running", b"", 16))
        elif state is State.READY:
            found += [range_of("ready", queue, 29), range_of("apart", queue, 28)]
        elif state is State.WAITING:
            found.append(range_of("waiting", place, 13))
        else:
            found.append(range_of("scheduled", place, 17))
    return found


def range_of(key: str, prefix: bytes, tail: int) -> Range:
    if not prefix:
        return key, b"-", b"+", tail
    upper = prefix[:-1] + b"\1" if prefix.endswith(b"\0") else prefix + b"\xff"
    return key, b"[" + prefix, b"(" + upper, tail


# How many names a member begins with, and the offset of the seq behind them.
_LAYOUT = {
    "ready": (1, 13),
    "apart": (2, 12),
    "waiting": (2, 5),
    "scheduled": (2, 9),
    "finished": (1, 0),
    "running": (1, 8),
}
_ORDERED = 1  # what precedes the order, and then the seq, of a waiting job that has one; a seq begins with 0


def number_in(key: str, member: bytes, tail: int) -> Number | None:
    """Return (seq, id) of an index member; None if it is not ours."""
    names, offset = _LAYOUT[key]
    start = 0
    try:
        for _ in range(names):
            start = member.index(b"\0", start) + 1
        if key == "waiting" and member[start + offset] == _ORDERED:
            start += 9
        seq: int = struct.unpack_from(">Q", member, start + offset)[0]
        if key == "running":  # the queue's name, of any length, precedes the id
            return seq, member[member.index(b"\0", start + tail) + 1 :]
    except codec.UNREADABLE:
        return None
    return seq, member[start + tail :]
