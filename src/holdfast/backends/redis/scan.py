"""scan: jobs that may match a query, newest first, along the index with the fewest candidates. Never writes.

Called by read.py. Index members name the seq and the id of a job; records are then checked in the server, page by
page, each one short script. It ends when it has looked at as many jobs, or read as many bytes, as it may.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ...lifecycle import LIVE, State
from ...records import JobQuery, JobRecord, Look, Scanned
from ..paging import weight
from . import codec

PAGE = 1000  # records checked, or members read, by one script or command
FEW_MAX = 10_000  # candidates that are sorted, because their index has another order
_FIRST = 100  # members of the first page: most scans need no more

Number = tuple[int, bytes]  # seq, id
Range = tuple[str, bytes, bytes, int]  # index, from, to, bytes between the names and the id
Script = Callable[..., Awaitable[list[Any]]]
Command = Callable[..., Awaitable[Any]]
Count = Callable[[str | None], Awaitable[Mapping[str, Mapping[State, int]]]]


class Scan:
    """One scan."""

    def __init__(
        self,
        run: Callable[..., Awaitable[list[Any]]],
        command: Callable[..., Awaitable[Any]],
        query: JobQuery,
        look: Look,
    ) -> None:
        self._script, self._command, self._query, self._look = run, command, query, look
        self._found: list[JobRecord] = []
        self._rows, self._bytes = 0, look.bytes_max

    async def run(self, count: Count) -> Scanned:
        query = self._query
        if query.worker is None and query.states and not LIVE.intersection(query.states):
            queues = [query.queue] if query.queue is not None else list(await count(None))
            return await self._through(self._finished(queues))
        numbers = await self._few()
        return await (self._through_all() if numbers is None else self._through(_each(numbers)))

    async def _check(self, ids: list[str] | None, below: int | None, page: int) -> tuple[bytes, int]:
        """Check some jobs; keep those that meet the conditions. Returns where it ended, and how many it checked."""
        query = self._query
        states = "".join(codec.LETTERS[state] for state in query.states) or None
        names = (query.queue, query.task, query.group, query.key, query.worker, query.id_prefix)
        conditions = [states, *names, list(query.id_ends) or None]
        wanted = query.limit - len(self._found)
        last, checked, pieces = await self._script(
            "scan", ids, below, page, wanted, self._bytes, self._look.light, conditions
        )
        jobs = codec.light_jobs(pieces) if self._look.light else codec.jobs(pieces)
        self._found += jobs
        self._bytes -= sum(map(weight, jobs))
        self._rows += checked
        return last, checked

    @property
    def _goes_on(self) -> bool:
        return len(self._found) < self._query.limit and self._rows < self._look.rows_max and self._bytes > 0

    async def _through_all(self) -> Scanned:
        below = self._query.before
        while self._goes_on:
            last, _ = await self._check(None, below, min(PAGE, self._look.rows_max - self._rows))
            if not last:
                return self._scanned(None)
            below = int(last)
        return self._scanned(below)

    async def _through(self, numbers: AsyncIterator[Number]) -> Scanned:
        at: int | None = self._query.before
        page: list[Number] = []
        size = min(PAGE, max(_FIRST, self._query.limit))
        async for number in numbers:
            page.append(number)
            if len(page) < min(size, self._look.rows_max - self._rows):
                continue
            at = await self._check_page(page)
            if not self._goes_on:
                return self._scanned(at)
            page, size = [], PAGE
        if page:
            at = await self._check_page(page)
            if at > page[-1][0]:
                return self._scanned(at)
        return self._scanned(None)

    async def _check_page(self, page: list[Number]) -> int:
        """Returns the seq of the last job that was checked."""
        _, checked = await self._check([job_id.decode() for _, job_id in page], None, 0)
        return page[checked - 1][0]

    def _scanned(self, before: int | None) -> Scanned:
        return Scanned(jobs=tuple(self._found), before=before, rows=self._rows)

    # ------------------------------------------------------------------ candidates

    async def _finished(self, queues: list[str]) -> AsyncIterator[Number]:
        """Merge the lists of finished jobs, each of one queue and state by seq, newest first."""
        streams = [self._finished_in(state, queue) for state in set(self._query.states) for queue in queues]
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

    async def _few(self) -> list[Number] | None:
        """All candidates, newest first, if the indexes tell that they are few."""
        ranges = _ranges(self._query)
        if ranges is None:
            return None
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


def _ranges(query: JobQuery) -> list[Range] | None:
    """Return (index, from, to, bytes between the names and the id) where the query's jobs are; None: anywhere."""
    if query.worker is not None:
        return [range_of("running", codec.escaped(query.worker), 16)]
    if not query.states:
        return None
    queue = b"" if query.queue is None else codec.escaped(query.queue)
    grouped = queue and query.group is not None
    place = queue + codec.escaped(query.group or "") if grouped else queue
    found: list[Range] = []
    for state in set(query.states):
        if state is State.RUNNING:
            found.append(range_of("running", b"", 16))
        elif state is State.READY:
            found += [range_of("ready", queue, 29), range_of("apart", queue, 28)]
        elif state is State.WAITING:
            found.append(range_of("waiting", place, 13))
        elif state is State.SCHEDULED:
            found.append(range_of("scheduled", place, 17))
        else:
            found.append(range_of("finished", codec.LETTERS[state].encode() + queue, 8))
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


def number_in(key: str, member: bytes, tail: int) -> Number | None:
    """Return (seq, id) of an index member; None if it is not ours."""
    names, offset = _LAYOUT[key]
    start = 0
    try:
        for _ in range(names):
            start = member.index(b"\0", start) + 1
        seq: int = struct.unpack_from(">Q", member, start + offset)[0]
        if key == "running":  # the queue's name, of any length, precedes the id
            return seq, member[member.index(b"\0", start + tail) + 1 :]
    except codec.UNREADABLE:
        return None
    return seq, member[start + tail :]
