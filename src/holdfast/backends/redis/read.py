"""The read side of the Redis store: find, letters, queues, groups, workers. Never writes.

Called by backend.py. What may be long is read in pages, each one short script: a script blocks the whole server.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from ...lifecycle import LIVE, State
from ...records import (
    CronEntry,
    DeadLetter,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Mark,
    Pause,
    QueueRecord,
    QueueRule,
    TaskRecord,
    TaskRule,
    WorkerRecord,
)
from . import codec, rule_codec, tolerant
from .connection import Connections
from .keys import KEY_NAMES
from .scripts import SCRIPTS

PAGE = 1000
BYTES_MAX = 1 << 20  # of a page of letters; the one that exceeds it is the last
GROUPS_PAGE = 100  # a group takes as long as several jobs
CANDIDATES_MAX = 50_000  # ids collected from an index before a scan of all jobs is cheaper

Number = tuple[int, bytes]  # seq, id


class Reader:
    """Reads one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._keys = dict(zip(KEY_NAMES, connections.keys, strict=True))

    async def _run(self, verb: str, *values: Any) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [None, *values])

    async def _command(self, verb: str, command: str, key: str, *words: str | bytes | float) -> Any:
        return await self._connections.command(verb, command, self._keys[key], *words)

    # ------------------------------------------------------------------ jobs

    async def get(self, job_id: str) -> JobRecord | None:
        found = codec.jobs(await self._run("get", [job_id]))
        return found[0] if found else None

    async def ended(self, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
        pieces, unknown = await self._run("ended", list(job_ids)) if job_ids else ([], [])
        found: dict[str, JobRecord | None] = {job.id: job for job in codec.jobs(pieces)}
        return found | dict.fromkeys(job_id.decode() for job_id in unknown)

    async def logs(self, job_id: str) -> list[LogLine]:
        return codec.log_lines(await self._command("logs", "HGET", "logs", job_id))

    async def marks(self, job_id: str) -> list[Mark]:
        return codec.marks(await self._command("marks", "HGET", "marks", job_id))

    async def find(self, query: JobQuery) -> list[JobRecord]:
        if query.limit < 1:
            return []
        if query.worker is None and query.states and not LIVE.intersection(query.states):
            return await self._find_finished(query)
        numbers = await self._candidates(query)
        return await (self._find_among(query, numbers) if numbers is not None else self._find_through_all(query))

    def _conditions(self, query: JobQuery) -> list[Any]:
        states = "".join(codec.LETTERS[state] for state in query.states) or None
        names = (query.queue, query.task, query.group, query.key, query.worker, query.id_prefix)
        return [states, *names]

    async def _find_through_all(self, query: JobQuery) -> list[JobRecord]:
        found: list[JobRecord] = []
        below: int | None = query.before
        while len(found) < query.limit:
            wanted = query.limit - len(found)
            last, pieces = await self._run("find", None, below, PAGE, wanted, self._conditions(query))
            found += codec.jobs(pieces)
            if not last:
                break
            below = int(last)
        return found[: query.limit]

    async def _find_among(self, query: JobQuery, numbers: list[Number]) -> list[JobRecord]:
        found: list[JobRecord] = []
        for start in range(0, len(numbers), PAGE):
            ids = [job_id.decode() for _, job_id in numbers[start : start + PAGE]]
            wanted = query.limit - len(found)
            _, pieces = await self._run("find", ids, None, 0, wanted, self._conditions(query))
            found += codec.jobs(pieces)
            if len(found) >= query.limit:
                break
        return found

    async def _find_finished(self, query: JobQuery) -> list[JobRecord]:
        """Merge the lists of finished jobs, each of one queue by seq: newest first, as far down as needed."""
        queues = [query.queue] if query.queue is not None else list(await self.count(None))
        streams = [self._finished(state, queue, query.before) for state in set(query.states) for queue in queues]
        heads = [(await anext(stream, None), place) for place, stream in enumerate(streams)]
        heap = [(-head[0], place, head[1]) for head, place in heads if head is not None]
        heapq.heapify(heap)
        found: list[JobRecord] = []
        while heap and len(found) < query.limit:
            page: list[Number] = []
            while heap and len(page) < PAGE:
                seq, place, job_id = heap[0]
                page.append((-seq, job_id))
                following = await anext(streams[place], None)
                if following is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (-following[0], place, following[1]))
            limit = query.limit - len(found)
            found += await self._find_among(msgspec.structs.replace(query, limit=limit), page)
        return found

    async def _finished(self, state: State, queue: str, before: int | None) -> AsyncIterator[Number]:
        prefix = codec.LETTERS[state].encode() + codec.escaped(queue)
        _, low, high, tail = _range("finished", prefix, 8)
        if before is not None:
            high = b"(" + prefix + struct.pack(">Q", before)
        while True:
            page: list[bytes] = await self._command("find", "ZREVRANGEBYLEX", "finished", high, low, "LIMIT", 0, PAGE)
            for member in page:
                if (number := _number("finished", member, tail)) is not None:
                    yield number
            if len(page) < PAGE:
                return
            high = b"(" + page[-1]

    async def _candidates(self, query: JobQuery) -> list[Number] | None:
        """Return every job that may match the query, newest first, from the indexes; None if a full scan is better."""
        ranges = _ranges(query)
        if ranges is None:
            return None
        sizes = [await self._command("find", "ZLEXCOUNT", key, low, high) for key, low, high, _ in ranges]
        everything = await self._command("find", "ZCARD", "seqs")
        if sum(sizes) > CANDIDATES_MAX or 2 * sum(sizes) > everything > PAGE:
            return None
        numbers: set[Number] = set()
        for key, low, high, tail in ranges:
            async for member in self._members(key, low, high):
                number = _number(key, member, tail)
                if number is not None and (query.before is None or number[0] < query.before):
                    numbers.add(number)
        return heapq.nlargest(len(numbers), numbers)

    async def _members(self, key: str, low: bytes, high: bytes) -> AsyncIterator[bytes]:
        while True:
            page: list[bytes] = await self._command("find", "ZRANGEBYLEX", key, low, high, "LIMIT", 0, PAGE)
            for member in page:
                yield member
            if len(page) < PAGE:
                return
            low = b"(" + page[-1]

    async def count(self, queue: str | None) -> dict[str, dict[State, int]]:
        [packed] = await self._run("count")
        return _counts(codec.unpack(packed), queue)

    # ------------------------------------------------------------------ letters

    async def letter(self, job_id: str) -> DeadLetter | None:
        prefix = codec.escaped(job_id)
        _, low, high, _ = _range("holders", prefix, 0)
        held = await self._command("letter", "ZRANGEBYLEX", "holders", low, high, "LIMIT", 0, 1)
        packed = await self._command("letter", "HGET", "letters", held[0][len(prefix) :]) if held else None
        found = None if packed is None else codec.letter_of(held[0][len(prefix) :], packed)
        return found if found is not None and found.id == job_id else None

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        """Newest failure first; ties by id, so a page ends only where the time changes."""
        found: list[DeadLetter] = []
        async for page in self._letter_pages():
            found += [one for one in page if _letter_meets(one, query)]
            if len(found) >= query.limit and page and page[-1].failed_at < found[query.limit - 1].failed_at:
                break
        return sorted(found, key=lambda one: (-one.failed_at, one.id))[: query.limit]

    async def _letter_pages(self) -> AsyncIterator[list[DeadLetter]]:
        """Yield all letters, newest failure first, in pages bounded in bytes: letters include arguments."""
        start, names = 0, [b""]
        while names:
            names = await self._command("letters", "ZRANGE", "failed", start, start + PAGE - 1, "REV")
            start, left = start + PAGE, names
            while left:
                values = [None, "letters", "0", 0, BYTES_MAX]
                _, lines, left = await self._connections.run(SCRIPTS["dump_page"], values, left)
                yield [codec.letter_of(*one) for one in zip(lines[::2], lines[1::2], strict=True)]

    # ------------------------------------------------------------------ queues, groups, workers

    async def pauses(self) -> list[Pause]:
        return rule_codec.pauses(await self._command("pauses", "HGETALL", "pauses"))

    async def entries(self) -> list[CronEntry]:
        return rule_codec.entries(await self._command("entries", "HGETALL", "entries"))

    async def tasks(self) -> list[TaskRecord]:
        said, overrides, flows, numbers = await self._run("tasks")
        declared = {rule.name: rule for rule in rule_codec.task_rules(said)}
        by_operators = {one.task: one for one in rule_codec.overrides(overrides) if one.task is not None}
        buckets = {one.task: one for one in rule_codec.flows(flows) if one.task is not None}
        running = _pairs(numbers)
        return [
            TaskRecord(
                rule=declared.get(name) or TaskRule(name=name),
                declared=name in declared,
                override=by_operators.get(name),
                flow=buckets.get(name),
                running=_number_of(running.get(b"t" + name.encode())),
            )
            for name in sorted({*declared, *by_operators, *buckets})
        ]

    async def queues(self) -> list[QueueRecord]:
        packed_counts, packed_oldest, said, packed_pauses, overrides, flows = await self._run("queues")
        counts = _counts(codec.unpack(packed_counts), None)
        oldest = codec.unpack(packed_oldest) or {}
        declared = {rule.name: rule for rule in rule_codec.queue_rules(said)}
        paused = {
            one.queue: one for one in rule_codec.pauses(packed_pauses) if one.queue is not None and one.group is None
        }
        by_operators = {
            one.queue: one for one in rule_codec.overrides(overrides) if one.queue is not None and one.group is None
        }
        buckets = {one.queue: one for one in rule_codec.flows(flows) if one.queue is not None}
        found: list[QueueRecord] = []
        for name in sorted({*counts, *declared, *paused, *by_operators, *buckets}):
            rule = declared.get(name) or QueueRule(name=name)
            found.append(
                QueueRecord(
                    name=name,
                    group_limit=rule.group_limit,
                    group_order=rule.group_order,
                    group_rate=rule.group_rate,
                    aging=rule.aging,
                    declared=name in declared,
                    limit=rule.limit,
                    rate=rule.rate,
                    override=by_operators.get(name),
                    flow=buckets.get(name),
                    pause=paused.get(name),
                    counts={state.value: number for state, number in counts.get(name, {}).items()},
                    oldest_due_at=float(oldest[name]) if name in oldest else None,
                )
            )
        return found

    async def groups(self, queue: str | None, limit: int) -> list[GroupRecord]:
        found: list[GroupRecord] = []
        after = ""
        said = await self._groups_spoken_of()
        while len(found) < limit:
            size = min(GROUPS_PAGE, limit - len(found))
            start = bisect_right(said, after or ("" if queue is None else codec.escaped(queue).decode()))
            packed, more = await self._run("groups", queue, after, size, None, said[start : start + size + 1])
            page = [rule_codec.group(line) for line in codec.unpack(packed)]
            found += page
            if not more or not page:
                break
            after = (codec.escaped(page[-1].queue) + codec.escaped(page[-1].name)).decode()
        return found

    async def _groups_spoken_of(self) -> list[str]:
        """Return the places of groups with an override or a pause, in index order, which is that of texts."""
        scopes = [scope for key in ("overrides", "pauses") for scope in await self._command("groups", "HKEYS", key)]
        places = {scope[1:] for scope in scopes if scope[:1] == b"g" and scope.count(b"\0") == 2 and scope[-1] == 0}
        return sorted(tolerant.readable(place.decode for place in places))

    async def waking(self, queues: Sequence[str]) -> bool:
        """Whether a rate keeps groups waiting: almost always there are none, and one short read shows it."""
        wanted = tuple(b"g" + codec.escaped(queue) for queue in queues)
        start = 0
        while True:
            page: list[bytes] = await self._command("waking", "ZRANGE", "waking", start, start + PAGE - 1)
            if any(scope.startswith(wanted) for scope in page):
                return True
            if len(page) < PAGE:
                return False
            start += PAGE

    async def group(self, queue: str, name: str) -> GroupRecord:
        packed, _ = await self._run("groups", queue, "", 1, name, [])
        return rule_codec.group(codec.unpack(packed)[0])

    async def workers(self, now: float | None) -> list[WorkerRecord]:
        packed_now, lines = await self._connections.run(SCRIPTS["workers"], [now])
        at = codec.unpack(packed_now)
        found: list[WorkerRecord] = []
        for name, packed, running, portrait in zip(lines[::4], lines[1::4], lines[2::4], lines[3::4], strict=True):
            record, deadline = codec.worker(name, packed, portrait)
            found.append(msgspec.structs.replace(record, expired=at >= deadline, running=running))
        return sorted(found, key=lambda one: (one.started_at, one.id))


def _ranges(query: JobQuery) -> list[tuple[str, bytes, bytes, int]] | None:
    """Return (index, from, to, bytes between the names and the id) where the query's jobs are; None: anywhere."""
    if query.worker is not None:
        return [_range("running", codec.escaped(query.worker), 16)]
    if not query.states:
        return None
    queue = b"" if query.queue is None else codec.escaped(query.queue)
    grouped = queue and query.group is not None
    place = queue + codec.escaped(query.group or "") if grouped else queue
    found: list[tuple[str, bytes, bytes, int]] = []
    for state in set(query.states):
        if state is State.RUNNING:
            found.append(_range("running", b"", 16))
        elif state is State.READY:
            found += [_range("ready", queue, 29), _range("apart", queue, 28)]
        elif state is State.WAITING:
            found.append(_range("waiting", place, 13))
        elif state is State.SCHEDULED:
            found.append(_range("scheduled", place, 17))
        else:
            found.append(_range("finished", codec.LETTERS[state].encode() + queue, 8))
    return found


def _range(key: str, prefix: bytes, tail: int) -> tuple[str, bytes, bytes, int]:
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


def _number(key: str, member: bytes, tail: int) -> Number | None:
    """Return (seq, id) of an index member; None if it is not ours."""
    names, offset = _LAYOUT[key]
    start = 0
    try:
        for _ in range(names):
            start = member.index(b"\0", start) + 1
        seq: int = struct.unpack_from(">Q", member, start + offset)[0]
        if key == "running":  # the queue's name, of any length, precedes the id
            return seq, member[member.index(b"\0", start + tail) + 1 :]
    except tolerant.UNREADABLE:
        return None
    return seq, member[start + tail :]


def _number_of(stored: bytes | None) -> int:
    """Return how many run, as stored; 0 if it cannot be read, which flaws() reports."""
    return int(stored) if stored is not None and stored.isdigit() else 0


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _counts(found: Mapping[str, Mapping[str, int]] | list[Any], queue: str | None) -> dict[str, dict[State, int]]:
    by_queue = dict(found) if isinstance(found, Mapping) else {}  # an empty table comes as an empty array
    return {
        name: {state: by_queue[name][letter] for letter, state in codec.STATES.items() if letter in by_queue[name]}
        for name in sorted(by_queue)
        if queue is None or name == queue
    }


def _letter_meets(letter: DeadLetter, query: LetterQuery) -> bool:
    return (
        (query.queue is None or letter.queue == query.queue)
        and (query.task is None or letter.task == query.task)
        and (query.reason is None or letter.reason == query.reason)
        and (query.id_prefix is None or letter.id.startswith(query.id_prefix))
    )
