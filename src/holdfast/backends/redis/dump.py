"""Dumps a store: everything it holds, for audit and tests. Never writes.

Called by backend.py. A small store is read by one script, at one instant. A larger one is read in pages, each bounded
in rows and bytes, because a script blocks the whole server and a call must end within its timeout: first all jobs and
letters, then, at one instant T, what is small (rules, workers), then all records once more. A row that is the same in
both passes was the same at T, so the dump is what the store held at T, except for the rows in `Dump.moving`: those that
changed, came or went meanwhile. Of these it has the latest version. Only a row that changes and changes back between
the two passes is not noticed; a job's fence and turn grow, so that takes a limit lowered and raised again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...records import Dump, mark_row
from . import codec, limits
from .connection import Connections
from .keys import KEY_NAMES
from .scripts import SCRIPTS

PAGE = 500
LETTERS_PAGE = 25  # the server has to read a page of letters, with their arguments, to know its size
BYTES_MAX = 1 << 20  # of a page; the row that exceeds it is the last
PIECES = 8  # of a job: its id, record, body, value, errors, progress, log lines, marks
_WHOLE, _LINES, _MARKS = 6, 6, 7  # of these: the end of what a job's line is made of, its log lines, its marks

Pieces = Sequence[bytes | None]
T = TypeVar("T")


class Dumper:
    """Dumps one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._keys = dict(zip(KEY_NAMES, connections.keys, strict=True))

    async def dump(self) -> Dump:
        small, *rest = await self._run("dump", PAGE, BYTES_MAX)
        if rest:
            jobs, letters, group_flows = rest
            return _dump(small, _in_parts(jobs, PIECES), _pairs(letters), group_flows)
        return await self._in_pages()

    async def _run(self, verb: str, *values: Any, names: Sequence[bytes] = ()) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [None, *values], names)

    async def _in_pages(self) -> Dump:
        jobs = {one[0]: one async for one in self._jobs() if one[0] is not None}
        letters = {logical: packed async for logical, packed in self._letters()}
        flows = dict([pair async for pair in self._scanned("group_flows")])
        [small] = await self._run("dump", -1, 0)
        changed = list({job_id async for job_id in self._changed(jobs)})
        later_letters = {logical: packed async for logical, packed in self._letters()}
        later_flows = dict([pair async for pair in self._scanned("group_flows")])
        moving = [_line(jobs[job_id]) for job_id in changed if job_id in jobs]
        await self._renew(jobs, changed)
        moving += [_line(jobs[job_id]) for job_id in changed if job_id in jobs]
        for before, after in ((letters, later_letters), (later_letters, letters)):
            moving += [codec.plain(codec.letter_of(*one)) for one in _differing(before, after)]
        for before, after in ((flows, later_flows), (later_flows, flows)):
            differing = [piece for pair in _differing(before, after) for piece in pair]
            moving += map(codec.plain, limits.flows(differing))
        flat = [piece for pair in later_flows.items() for piece in pair]
        return _dump(small, jobs.values(), later_letters, flat, moving)

    # ------------------------------------------------------------------ pages

    async def _pages(self, what: str, limit: int, names: Sequence[bytes] = ()) -> AsyncIterator[list[bytes | None]]:
        """Yield the lines of all jobs or letters, or of those named. HSCAN may yield one twice."""
        cursor = "0"
        while True:
            position, lines, names = await self._run("dump_page", what, cursor, limit, BYTES_MAX, names=names)
            yield lines
            cursor = position.decode()
            if not names and cursor == "0":
                return

    async def _jobs(self, names: Sequence[bytes] = ()) -> AsyncIterator[Pieces]:
        async for lines in self._pages("jobs", PAGE, names):
            for one in _in_parts(lines, PIECES):
                yield one

    async def _letters(self) -> AsyncIterator[tuple[bytes, bytes]]:
        async for lines in self._pages("letters", LETTERS_PAGE):
            for pair in _pairs(lines).items():
                yield pair

    async def _scanned(self, name: str) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor = b"0"
        while True:
            cursor, flat = await self._connections.command("dump", "HSCAN", self._keys[name], cursor, "COUNT", PAGE)
            for pair in _pairs(flat).items():
                yield pair
            if cursor == b"0":
                return

    # ------------------------------------------------------------------ what changed since

    async def _changed(self, jobs: Mapping[bytes, Pieces]) -> AsyncIterator[bytes]:
        """Yield the ids of jobs whose record is not as it was read, new ones and those gone included."""
        there: set[bytes] = set()
        async for job_id, record in self._scanned("jobs"):
            there.add(job_id)
            if job_id not in jobs or jobs[job_id][1] != record:
                yield job_id
        for job_id in jobs.keys() - there:
            yield job_id

    async def _renew(self, jobs: dict[bytes, Pieces], ids: Sequence[bytes]) -> None:
        """Read these jobs again; forget those that are gone."""
        for job_id in ids:
            jobs.pop(job_id, None)
        for some in _in_parts(ids, PAGE):
            jobs.update({one[0]: one async for one in self._jobs(some) if one[0] is not None})


def _differing(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    return ((name, packed) for name, packed in before.items() if after.get(name) != packed)


def _in_parts(many: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (many[at : at + size] for at in range(0, len(many), size))


def _pairs(flat: Sequence[Any]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _line(pieces: Pieces) -> dict[str, Any]:
    return codec.job_line(pieces[:_WHOLE])


def _dump(
    small: Sequence[list[Any]],
    jobs: Iterable[Pieces],
    letters: Mapping[bytes, bytes],
    group_flows: Sequence[bytes],
    moving: Sequence[Mapping[str, Any]] = (),
) -> Dump:
    workers, calls, portraits, rules, tasks, overrides, flows, entries, pauses, changes, *more = small
    edges, dependents, propagating, steps = more[0], _pairs(more[1]), more[2], more[3]
    ordered = sorted(((_line(one), one[_LINES], one[_MARKS]) for one in jobs), key=lambda line: line[0]["seq"])
    shown = [codec.plain(codec.letter_of(*one)) for one in letters.items()]
    return Dump(
        tables={
            "jobs": tuple(job for job, *_ in ordered),
            "letters": tuple(sorted(shown, key=lambda letter: letter["id"])),
            "workers": tuple(_worker_lines(*map(_pairs, (workers, calls, portraits)))),
            "queues": tuple(map(codec.plain, limits.queue_rules(rules))),
            "tasks": tuple(map(codec.plain, limits.task_rules(tasks))),
            "overrides": tuple(map(codec.plain, limits.overrides(overrides))),
            "flows": tuple(map(codec.plain, limits.flows(flows, group_flows))),
            "entries": tuple(map(codec.plain, limits.entries(entries))),
            "pauses": tuple(map(codec.plain, limits.pauses(pauses))),
            "logs": tuple(
                {"job_id": job["id"], "at": line.at, "text": line.text}
                for job, packed, _ in ordered
                for line in codec.log_lines(packed)
            ),
            "marks": tuple(mark_row(job["id"], mark) for job, _, packed in ordered for mark in codec.marks(packed)),
            "edges": tuple(map(codec.plain, codec.edges(edges, dependents))),
            "steps": tuple(map(codec.plain, codec.steps(steps))),
            "dependents": tuple(codec.edge_counts(dependents)),
            "propagating": tuple({"parent": parent.decode()} for parent in sorted(set(propagating))),
        },
        rearranging=bool(changes),
        moving=tuple(moving),
    )


def _worker_lines(
    workers: Mapping[bytes, bytes], calls: Mapping[bytes, bytes], portraits: Mapping[bytes, bytes]
) -> Iterator[dict[str, Any]]:
    for name, packed in sorted(workers.items()):
        record, deadline = codec.worker(name, packed, portraits.get(name))
        yield codec.plain(record) | {"deadline": deadline, "last_call": _last_call(calls.get(name))}


def _last_call(packed: bytes | None) -> int:
    try:
        return int(codec.unpack(packed)[0]) if packed is not None else 0
    except codec.UNREADABLE:
        return 0
