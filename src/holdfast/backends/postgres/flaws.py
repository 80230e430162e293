"""The `flaws` verb on PostgreSQL: unreadable values and contradictions in a store. Never writes.

Called by backend.py with a cursor. Scans the store page by page; each page is one statement.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from psycopg import AsyncCursor

from ...records import Flaw, Flow, Override, QueueRule, TaskRule
from .codec import as_job, entry_or_none, read_flow, read_letter, read_override, read_queue, read_task, read_worker
from .read import rows

_FUNCTION = re.compile(r"FUNCTION [^ (]*\.(\w+)\(")
TICKS_MAX = 2**62  # microseconds: a hundred thousand years from now
_TICKS = (
    "the counter behind fences and turns is near its maximum; nothing can be enqueued or claimed once it is there: see "
    "'A counter at its end' in how-to/postgres.md"
)
_UNREADABLE = "its stored value cannot be read"
_RULES: Mapping[str, Callable[[str], tuple[QueueRule | TaskRule | Override | Flow, tuple[str, ...]]]] = {
    "queues": read_queue,
    "tasks": read_task,
    "overrides": read_override,
    "flows": read_flow,
}


async def flaws(cursor: AsyncCursor[Any], sql: Mapping[str, str], limit: int) -> list[Flaw]:
    found: list[Flaw] = []
    for part in (_of_store, _of_jobs, _of_ids, _of_letters, _of_workers, _of_entries, rule_flaws):
        async for flaw in part(cursor, sql):
            if len(found) >= limit:
                return found
            found.append(flaw)
    return found


async def _of_store(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    [(there, ticks, incarnations, seals, workers)] = await rows(cursor, sql["flaws.store"])
    wanted = {name for part, text in sql.items() if ".function" in part for name in _FUNCTION.findall(text)}
    for name in sorted(wanted - set(there)):
        yield Flaw(place="functions", text="a function of the schema is missing: run `holdfast migrate`", id=name)
    if ticks is not None and ticks > TICKS_MAX:
        yield Flaw(place="ticks", text=_TICKS)
    for place, number in (("incarnation", incarnations), ("seal", seals)):
        if number != 1:
            yield Flaw(place=place, text=f"there must be one row, and there are {number}")
    for worker in workers:
        yield Flaw(place="workers", text="it would never expire", id=worker, field="deadline")


async def _of_jobs(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    after = 0
    while True:
        page = await rows(cursor, sql["flaws.jobs"], {"after": after})
        for _, job_id, record, wrong in page:
            if record is None:
                continue
            for field in as_job(record).unreadable:
                yield Flaw(place="jobs", text=_UNREADABLE, id=job_id, field=field)
            for text in wrong:
                yield Flaw(place="jobs", text=text, id=job_id)
        if page[0][0] is None:
            return
        after = page[0][0]


async def _of_ids(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    after = ""
    while True:
        page = await rows(cursor, sql["flaws.ids"], {"after": after})
        for _, job_id in page:
            if job_id is not None:
                yield Flaw(place="ids", text="it names no job of this id", id=job_id)
        if page[0][0] is None:
            return
        after = page[0][0]


async def _of_letters(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    after = ""
    while page := await rows(cursor, sql["flaws.letters"], {"after": after}):
        for after, record, orphaned in page:
            letter_id = after.removeprefix("id:")
            for field in read_letter(record)[1]:
                yield Flaw(place="letters", text=_UNREADABLE, id=letter_id, field=field)
            if orphaned:
                yield Flaw(place="letters", text="its job is not there", id=letter_id)


async def _of_workers(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    for worker, record in await rows(cursor, sql["flaws.workers"]):
        for field in read_worker(record)[1]:
            yield Flaw(place="workers", text=_UNREADABLE, id=worker, field=field)


async def _of_entries(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    for name, record in await rows(cursor, sql["flaws.entries"]):
        if entry_or_none(record) is None:
            yield Flaw(place="entries", text="it cannot be read, and never fires", id=name, field="record")


async def rule_flaws(cursor: AsyncCursor[Any], sql: Mapping[str, str]) -> AsyncIterator[Flaw]:
    """Unreadable rules of queues, groups and tasks. An unreadable rule restricts nothing."""
    for place, read in _RULES.items():
        for (record,) in await rows(cursor, sql[f"read.{place}"]):
            rule, fields = read(record)
            named = [getattr(rule, part, None) for part in ("name", "queue", "group", "task")]
            for field in fields:
                yield Flaw(place=place, text=_UNREADABLE, id="/".join(part for part in named if part), field=field)
