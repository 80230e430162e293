"""The read side of the PostgreSQL store: rows to records, and the scope of a pause or override. Never writes.

Called by backend.py with a cursor. Most records arrive as JSON in the shape of the struct they are decoded into.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from psycopg import AsyncCursor

from ...dependencies import STATUSES, Edge, Relative, Relatives
from ...lifecycle import State
from ...records import (
    GROUP_COUNT_MAX,
    Command,
    CronEntry,
    DeadLetter,
    Dump,
    Flow,
    GroupRecord,
    JobRecord,
    LetterQuery,
    LogLine,
    Mark,
    Override,
    Pause,
    QueueRecord,
    QueueRule,
    TaskRecord,
    TaskRule,
    WorkerRecord,
    mark_row,
)
from ...rollups import EventPage, KeptEvent, Rollup, RollupQuery
from ...steps import Step, Steps
from ..reader import queue_records, task_records
from ..seals import place_of
from .codec import (
    as_command,
    as_job,
    as_letter,
    as_marks,
    as_worker,
    entry_or_none,
    rate_or_none,
    read_flow,
    read_override,
    read_queue,
    read_task,
)

DUMP_PAGE_BYTES_MAX = 4 << 20  # of arguments and values: the server turns them into text, 5 ms per MiB or more

Cursor = AsyncCursor[Any]
_STATES = frozenset(State)
Statements = Mapping[str, str]


async def rows(cursor: Cursor, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    await cursor.execute(sql, values)
    return await cursor.fetchall()


@asynccontextmanager
async def one_picture(cursor: Cursor) -> AsyncIterator[None]:
    """A read-only transaction whose statements share one snapshot."""
    async with cursor.connection.transaction():
        await cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


async def get(cursor: Cursor, sql: Statements, job_id: str) -> JobRecord | None:
    found = await rows(cursor, f"{sql['read.jobs']} WHERE seq = ({sql['read.seq']})", {"id": job_id})
    return as_job(found[0][0]) if found else None


def _where(equal: Mapping[str, Any], column: str, prefix: str | None) -> tuple[list[str], dict[str, Any]]:
    values = {name: wanted for name, wanted in equal.items() if wanted is not None}
    conditions = [f"{name} = %({name})s" for name in values]
    if prefix is not None:
        conditions.append(f"starts_with({column}, %(prefix)s)")
        values["prefix"] = prefix
    return conditions, values


async def count(cursor: Cursor, sql: Statements, queue: str | None) -> dict[str, dict[State, int]]:
    counts: dict[str, dict[State, int]] = {}
    for name, state, number in await rows(cursor, sql["read.count"], {"queue": queue}):
        if state in _STATES:  # `flaws` lists the others
            counts.setdefault(name, {})[State(state)] = number
    return counts


async def logs(cursor: Cursor, sql: Statements, job_id: str) -> list[LogLine]:
    return [LogLine(at, text) for at, text in await rows(cursor, sql["read.logs"], {"id": job_id})]


async def commands(cursor: Cursor, sql: Statements, worker: str) -> list[Command]:
    return [as_command(text) for (text,) in await rows(cursor, sql["command.all"], {"worker": worker})]


async def marks(cursor: Cursor, sql: Statements, job_id: str) -> list[Mark]:
    return [mark for (text,) in await rows(cursor, sql["read.marks"], {"id": job_id}) for mark in as_marks(text)]


async def rollups(cursor: Cursor, sql: Statements, query: RollupQuery) -> list[Rollup]:
    found = await rows(cursor, sql["history.rollups"], msgspec.structs.asdict(query))
    return [
        Rollup(
            at=at,
            queue=queue,
            task=task,
            worker=worker,
            outcome=outcome,
            count=count,
            waits=tuple(waits),
            runs=tuple(runs),
        )
        for at, queue, task, worker, outcome, count, waits, runs in found
    ]


async def events(cursor: Cursor, sql: Statements, after: int | None, limit: int) -> EventPage:
    async with one_picture(cursor):
        [(first, newest)] = await rows(cursor, sql["history.positions"])
        found = [] if after is None else await rows(cursor, sql["history.events"], {"after": after, "limit": limit})
    kept = tuple(
        KeptEvent(position=position, at=at, name=name, body=body.encode()) for position, at, name, body in found
    )
    missed = 0 if after is None or not first else max(0, first - 1 - after)
    return EventPage(events=kept, position=kept[-1].position if kept else newest, missed=missed)


async def letter(cursor: Cursor, sql: Statements, job_id: str) -> DeadLetter | None:
    found = await rows(cursor, f"{sql['read.letters']} WHERE job_id = %(id)s", {"id": job_id})
    return as_letter(found[0][0]) if found else None


async def letters(cursor: Cursor, sql: Statements, query: LetterQuery) -> list[DeadLetter]:
    equal = {"queue": query.queue, "task": query.task, "reason": query.reason}
    conditions, values = _where(equal, "job_id", query.id_prefix)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text = f"{sql['read.letters']}{where} ORDER BY failed_at DESC, job_id LIMIT %(limit)s"
    return [as_letter(row[0]) for row in await rows(cursor, text, {**values, "limit": query.limit})]


async def pauses(cursor: Cursor, sql: Statements) -> list[Pause]:
    return [
        Pause(
            queue=queue if kind != "task" else None,
            group=name if kind == "group" else None,
            task=name if kind == "task" else None,
            reason=reason,
            by=by,
            paused_at=at,
        )
        for kind, queue, name, reason, by, at in await rows(cursor, sql["read.pauses"])
    ]


class Rules(NamedTuple):
    """All rules of queues, groups and tasks, their rate state (flows), and the cron entries."""

    queues: list[QueueRule]
    tasks: list[TaskRule]
    overrides: list[Override]
    flows: list[Flow]
    entries: list[CronEntry]


async def rules(cursor: Cursor, sql: Statements) -> Rules:
    return Rules(
        [read_queue(row[0])[0] for row in await rows(cursor, sql["read.queues"])],  # `flaws` lists what cannot be read
        [read_task(row[0])[0] for row in await rows(cursor, sql["read.tasks"])],
        [read_override(row[0])[0] for row in await rows(cursor, sql["read.overrides"])],
        [read_flow(row[0])[0] for row in await rows(cursor, sql["read.flows"])],
        await entries(cursor, sql),
    )


async def entries(cursor: Cursor, sql: Statements) -> list[CronEntry]:
    found = [entry_or_none(row[0]) for row in await rows(cursor, sql["tick.entries"])]
    return [entry for entry in found if entry is not None]  # `flaws` lists the others


async def tasks(cursor: Cursor, sql: Statements) -> list[TaskRecord]:
    async with one_picture(cursor):
        stored = await rules(cursor, sql)
        running: dict[str, int] = dict(await rows(cursor, sql["read.running"]))
    return task_records(stored.tasks, stored.overrides, stored.flows, lambda name: running.get(name, 0))


async def ended(cursor: Cursor, sql: Statements, job_ids: list[str]) -> dict[str, JobRecord | None]:
    found: dict[str, str | None] = dict(await rows(cursor, sql["read.ended"], {"ids": job_ids}))
    answers: dict[str, JobRecord | None] = {}
    for job_id in job_ids:
        record = found.get(job_id)
        if record is not None or job_id not in found:
            answers[job_id] = None if record is None else as_job(record)
    return answers


async def queues(cursor: Cursor, sql: Statements) -> list[QueueRecord]:
    async with one_picture(cursor):
        stored = await rules(cursor, sql)
        paused = await pauses(cursor, sql)
        counts = await count(cursor, sql, None)
        waiting = [name for name, found in counts.items() if State.READY in found]
        await cursor.execute("SET LOCAL enable_seqscan = off")  # of a queue with few of them, none but its own
        await cursor.execute("SET LOCAL enable_bitmapscan = off")
        oldest: dict[str, float] = dict(await rows(cursor, sql["read.oldest_ready"], {"queues": waiting}))
    return queue_records(stored.queues, stored.overrides, stored.flows, paused, counts, oldest.get)


async def waking(cursor: Cursor, sql: Statements, queues: Sequence[str]) -> bool:
    return bool(await rows(cursor, sql["read.waking"], {"queues": list(queues)}))


async def groups(
    cursor: Cursor, sql: Statements, queue: str | None, limit: int, name: str | None = None
) -> list[GroupRecord]:
    async with one_picture(cursor):
        found = await rows(cursor, sql["read.groups"], {"queue": queue, "name": name, "limit": limit})
        paused = {(one.queue, one.group): one for one in await pauses(cursor, sql) if one.group is not None}
    return [
        GroupRecord(
            queue=of,
            name=group,
            limit=most,
            override=override,
            rate=rate_or_none(rate),
            rate_override=rate_or_none(rate_override),
            weight=weight,
            flow=None if flow is None else read_flow(flow)[0],
            order="strict" if strict else "relaxed",
            pause=paused.get((of, group)),
            counts={state: min(number, GROUP_COUNT_MAX) for state, number in (counts or {}).items()},
            capped=tuple(state for state, number in (counts or {}).items() if number > GROUP_COUNT_MAX),
            head=head,
            stopped_by=stopped_by,
        )
        for of, group, most, override, rate, rate_override, flow, strict, counts, head, stopped_by, weight in found
    ]


async def workers(cursor: Cursor, sql: Statements, now: float | None) -> list[WorkerRecord]:
    return [as_worker(row[0]) for row in await rows(cursor, sql["read.workers"], {"now": now})]


async def relatives(cursor: Cursor, sql: Statements, job_id: str, limit: int, values: bool, beyond: str) -> Relatives:
    async with one_picture(cursor):
        asked = {"id": job_id, "limit": limit + 1, "values": values, "beyond": beyond}
        parents = await rows(cursor, sql["relatives.parents"], asked)
        children = await rows(cursor, sql["relatives.children"], asked)
        pending = await rows(cursor, sql["relatives.pending"], asked)
    return Relatives(
        parents=tuple(_relative(*row) for row in parents[:limit]),
        children=tuple(_relative(*row) for row in children[:limit]),
        pending=pending[0][0] if pending else 0,
        more=max(len(parents), len(children)) > limit,
    )


def _relative(job_id: str, task: str, state: str, status: int, value: bytes | None) -> Relative:
    return Relative(id=job_id, task=task, state=State(state), status=STATUSES[status], value=value)


async def edges(
    cursor: Cursor, sql: Statements, after: tuple[str, str] = ("", ""), limit: int | None = None
) -> list[Edge]:
    """By child and parent."""
    found = await rows(cursor, sql["relatives.edges"], {"child": after[0], "parent": after[1], "limit": limit})
    return [
        Edge(parent=parent, child=child, status=STATUSES[status], on_parent_failure=policy, delay=delay, due_at=due_at)
        for parent, child, status, policy, delay, due_at in found
    ]


async def steps(cursor: Cursor, sql: Statements, job_id: str) -> Steps:
    async with one_picture(cursor):
        found = await rows(cursor, sql["remembered.of_job"], {"id": job_id})
        [(now,)] = await rows(cursor, sql["remembered.now"])
    return Steps(now=now, steps=tuple(map(_step, found)))


async def all_steps(
    cursor: Cursor, sql: Statements, after: tuple[str, str, str] = ("", "", ""), limit: int | None = None
) -> list[Step]:
    """By job, kind and name."""
    job, kind, name = after
    asked = {"job": job, "kind": kind, "name": name, "limit": limit}
    return [_step(row) for row in await rows(cursor, sql["remembered.after"], asked)]


def _step(row: Sequence[Any]) -> Step:
    return Step(**dict(zip(Step.__struct_fields__, row, strict=True)))


async def dump(cursor: Cursor, sql: Statements) -> Dump:
    """The whole store as plain values in the shapes of the records, from one snapshot."""
    async with one_picture(cursor):
        jobs = await _all_jobs(cursor, sql)
        deadlines = {row[0]: row[1:] for row in await rows(cursor, sql["read.worker_beyond"])}
        # Whether a worker has expired depends on the time; a dump must stay the same until something is written.
        shown = [msgspec.structs.replace(one, running=0, expired=False) for one in await workers(cursor, sql, 0.0)]
        stored = await rules(cursor, sql)
        tables: dict[str, list[dict[str, Any]]] = {
            "jobs": jobs,
            "letters": await _all_letters(cursor, sql),
            "workers": [
                _plain(one) | dict(zip(("deadline", "last_call"), deadlines[one.id], strict=True))
                for one in sorted(shown, key=lambda one: one.id)
            ],
            **{table: list(map(_plain, found)) for table, found in stored._asdict().items()},
            "pauses": [_plain(one) for one in await pauses(cursor, sql)],
            "logs": [
                {"job_id": job_id, "at": at, "text": text}
                for job_id, at, text in await rows(cursor, sql["read.all_logs"])
            ],
            "marks": [
                mark_row(id, mark) for id, text in await rows(cursor, sql["read.all_marks"]) for mark in as_marks(text)
            ],
        }
        tables["edges"] = [_plain(edge) for edge in await edges(cursor, sql)]
        tables["steps"] = [_plain(step) for step in await all_steps(cursor, sql)]
        tables["dependents"] = [
            {"child": child, "pending": open_ones, "failed": failed}
            for child, open_ones, failed in await rows(cursor, sql["relatives.dependents"])
        ]
        tables["propagating"] = [{"parent": parent} for (parent,) in await rows(cursor, sql["relatives.propagating"])]
        pending = bool(await rows(cursor, sql["read.rearranging"]))
    return Dump(tables={name: tuple(found) for name, found in tables.items()}, rearranging=pending)


async def _all_jobs(cursor: Cursor, sql: Statements) -> list[dict[str, Any]]:
    """Page by page: each statement is subject to the call timeout, and the store may be large."""
    jobs: list[dict[str, Any]] = []
    while page := await rows(cursor, sql["read.page"], _after(jobs[-1]["seq"] if jobs else 0)):
        jobs += [_as_row(as_job(record)) | dict(zip(_BEYOND, beyond, strict=True)) for record, *beyond in page]
    return jobs


async def _all_letters(cursor: Cursor, sql: Statements) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    page: list[tuple[Any, ...]] = [(None, "")]
    while page := await rows(cursor, sql["read.letters_page"], _after(page[-1][1])):
        letters += [_plain(as_letter(record)) for record, _ in page]
    return letters


def _after(place: int | str) -> dict[str, Any]:
    return {"after": place, "bytes_max": DUMP_PAGE_BYTES_MAX}


def _as_row(job: JobRecord) -> dict[str, Any]:
    row = _plain(job)
    del row["unreadable"]  # not stored: it describes how the row was decoded
    return row


_BEYOND = ("token", "turn", "rank", "lane", "claim_call", "prune_at")


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


# The scope of a pause or an override, as the key of its row: kind, queue and name.


Scope = dict[str, Any]  # kind, queue, name: parameters of a statement


def scope(wanted: Pause | Override, what: str) -> Scope:
    """kind, queue and name (of the group or task)."""
    kind, queue, name = place_of(wanted, what)
    return {"kind": kind, "queue": queue, "name": name}


def named(place: Scope) -> str:
    """The scope in words, for error messages."""
    return f"{place['kind']} {place['name'] or place['queue']!r}"
