"""The read side of the Redis store: jobs, letters, queues, groups, workers. Never writes.

Called by backend.py. What may be long is read in pages, each one short script: a script blocks the whole server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...dependencies import Relative, Relatives
from ...lifecycle import State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import (
    Command,
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
    TaskRecord,
    WorkerRecord,
)
from ...rollups import EventPage, Rollup, RollupQuery, merged
from ...steps import Steps
from ..reader import queue_records, task_records
from . import codec, limits
from .connection import Connections
from .keys import KEY_NAMES
from .scan import Scan, range_of
from .scripts import SCRIPTS

PAGE = 1000
BYTES_MAX = 1 << 20  # of a page of letters; the one that exceeds it is the last
GROUPS_PAGE = 100  # a group takes as long as several jobs
ROLLUPS_PAGE = 2000
RELATIVES_PAGE = 500  # of the parents and children of one job each


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

    async def commands(self, worker: str) -> list[Command]:
        return codec.commands(await self._command("commands", "HGET", "commands", worker))

    async def marks(self, job_id: str) -> list[Mark]:
        return codec.marks(await self._command("marks", "HGET", "marks", job_id))

    async def relatives(self, job_id: str, limit: int, *, values: bool, beyond: str) -> Relatives:
        """Page by page: a script blocks the whole server."""
        parents: list[Relative] = []
        children: list[Relative] = []
        after_parent: str | None = beyond
        after_child: str | None = beyond
        pending, size = 0, min(RELATIVES_PAGE, limit + 1)
        while after_parent is not None or after_child is not None:
            above, below, pending = await self._run("relatives", job_id, size, values, after_parent, after_child)
            parents += [codec.relative(*one) for one in above]
            children += [codec.relative(*one) for one in below]
            after_parent = parents[-1].id if len(above) == size and len(parents) <= limit else None
            after_child = children[-1].id if len(below) == size and len(children) <= limit else None
        return Relatives(
            parents=tuple(parents[:limit]),
            children=tuple(children[:limit]),
            pending=pending,
            more=max(len(parents), len(children)) > limit,
        )

    async def steps(self, job_id: str) -> Steps:
        now, found = await self._run("steps", job_id)
        return Steps(now=float(now), steps=tuple(codec.steps(found)))

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        """Page by page: a script blocks the whole server."""
        found: list[Rollup] = []
        offset, flat = 0, [b""] * 2 * ROLLUPS_PAGE
        while len(flat) >= 2 * ROLLUPS_PAGE:
            flat = await self._run("rollups", query.span, query.since, query.until, offset, ROLLUPS_PAGE)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            found += [one for name, packed in pairs if (one := codec.rollup(name, packed)) is not None]
            offset += ROLLUPS_PAGE
        return merged(
            one
            for one in found
            if bool(one.worker) == query.workers and query.queue in (None, one.queue) and query.task in (None, one.task)
        )

    async def events(self, after: int | None, limit: int) -> EventPage:
        newest = int(await self._command("events", "HGET", "meta", "events") or 0)
        if after is None:
            return EventPage(position=newest)
        first = codec.kept_events(await self._command("events", "XRANGE", "events", "-", "+", "COUNT", "1"))
        rows = await self._command("events", "XRANGE", "events", f"{after + 1}-0", "+", "COUNT", str(limit))
        kept = codec.kept_events(rows)
        missed = max(0, first[0].position - 1 - after) if first else 0
        return EventPage(events=kept, position=kept[-1].position if kept else max(newest, after), missed=missed)

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        return await Scan(self._run, self._command, query, look).run(self.count)

    async def tally(self, query: JobQuery, by: Grouping | None, look: Look) -> Tally | None:
        return await Scan(self._run, self._command, query, look).tally(by, self.count)

    async def count(self, queue: str | None) -> dict[str, dict[State, int]]:
        [packed] = await self._run("count")
        return _counts(codec.unpack(packed), queue)

    # ------------------------------------------------------------------ letters

    async def letter(self, job_id: str) -> DeadLetter | None:
        prefix = codec.escaped(job_id)
        _, low, high, _ = range_of("holders", prefix, 0)
        held = await self._command("letter", "ZRANGEBYLEX", "holders", low, high, "LIMIT", 0, 1)
        packed = await self._command("letter", "HGET", "letters", held[0][len(prefix) :]) if held else None
        found = None if packed is None else codec.letter_of(held[0][len(prefix) :], packed)
        return (await self._with_options([found]))[0] if found is not None and found.id == job_id else None

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        """Newest failure first; ties by id, so a page ends only where the time changes."""
        found: list[DeadLetter] = []
        async for page in self._letter_pages():
            found += [one for one in page if _letter_meets(one, query)]
            if len(found) >= query.limit and page and page[-1].failed_at < found[query.limit - 1].failed_at:
                break
        return await self._with_options(sorted(found, key=lambda one: (-one.failed_at, one.id))[: query.limit])

    async def _with_options(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """Fill in the options of the letters' jobs, which are read with the arguments: a bounded part at a time."""
        found: list[DeadLetter] = []
        while len(found) < len(letters):
            some: list[DeadLetter] = []
            size = 0
            for one in letters[len(found) : len(found) + PAGE]:
                size += len(one.args)
                if some and size > BYTES_MAX:
                    break
                some.append(one)
            bodies = await self._command("letters", "HMGET", "bodies", *(one.id for one in some))
            found += [replace(one, options=codec.options_in(body)) for one, body in zip(some, bodies, strict=True)]
        return found

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
        return limits.pauses(await self._command("pauses", "HGETALL", "pauses"))

    async def entries(self) -> list[CronEntry]:
        return limits.entries(await self._command("entries", "HGETALL", "entries"))

    async def tasks(self) -> list[TaskRecord]:
        rules, overrides, flows, numbers = await self._run("tasks")
        running = _pairs(numbers)
        return task_records(
            limits.task_rules(rules),
            limits.overrides(overrides),
            limits.flows(flows),
            lambda name: _number_of(running.get(b"t" + name.encode())),
        )

    async def queues(self) -> list[QueueRecord]:
        packed_counts, packed_oldest, rules, packed_pauses, overrides, flows = await self._run("queues")
        oldest: dict[str, float] = codec.unpack(packed_oldest) or {}
        return queue_records(
            limits.queue_rules(rules),
            limits.overrides(overrides),
            limits.flows(flows),
            limits.pauses(packed_pauses),
            _counts(codec.unpack(packed_counts), None),
            lambda name: float(oldest[name]) if name in oldest else None,
        )

    async def groups(self, queue: str | None, limit: int) -> list[GroupRecord]:
        found: list[GroupRecord] = []
        after = ""
        named = await self._groups_with_rules()
        while len(found) < limit:
            size = min(GROUPS_PAGE, limit - len(found))
            start = bisect_right(named, after or ("" if queue is None else codec.escaped(queue).decode()))
            packed, more = await self._run("groups", queue, after, size, None, named[start : start + size + 1])
            page = [limits.group(line) for line in codec.unpack(packed)]
            found += page
            if not more or not page:
                break
            after = (codec.escaped(page[-1].queue) + codec.escaped(page[-1].name)).decode()
        return found

    async def _groups_with_rules(self) -> list[str]:
        """Return the places of groups with an override or a pause, in index order, which is that of texts."""
        scopes = [scope for key in ("overrides", "pauses") for scope in await self._command("groups", "HKEYS", key)]
        places = {scope[1:] for scope in scopes if scope[:1] == b"g" and scope.count(b"\0") == 2 and scope[-1] == 0}
        return sorted(codec.readable(place.decode for place in places))

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
        return limits.group(codec.unpack(packed)[0])

    async def workers(self, now: float | None) -> list[WorkerRecord]:
        packed_now, lines = await self._connections.run(SCRIPTS["workers"], [now])
        at = codec.unpack(packed_now)
        found: list[WorkerRecord] = []
        for name, packed, running, portrait in zip(lines[::4], lines[1::4], lines[2::4], lines[3::4], strict=True):
            record, deadline = codec.worker(name, packed, portrait)
            found.append(msgspec.structs.replace(record, expired=at >= deadline, running=running))
        return sorted(found, key=lambda one: (one.started_at, one.id))


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
