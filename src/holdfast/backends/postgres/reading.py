"""The read side of the PostgreSQL store: rows to records. Never writes.

Called by backend.py with a cursor. Most records come as JSON in the shape of the struct they are decoded into.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from psycopg import AsyncCursor

from ...lifecycle import State
from ...records import (
    DeadLetter,
    Dump,
    GroupRecord,
    JobQuery,
    JobRecord,
    Lease,
    LetterQuery,
    LogLine,
    Pause,
    QueueRecord,
    WorkerRecord,
)
from ...rules import QueueRule

Cursor = AsyncCursor[Any]
Statements = Mapping[str, str]

as_job = msgspec.json.Decoder(JobRecord).decode
as_letter = msgspec.json.Decoder(DeadLetter).decode
_as_worker = msgspec.json.Decoder(WorkerRecord).decode


def as_lease(texts: Any) -> Lease:
    """A lease from its texts, in the order of the function `lease` in statements/claim.sql."""
    id, token, fence, task, queue, args, priority, group, key, attempt, failures, stalls, max_stalls, *rest = texts
    created_at, started_at, options, suspect, shared_stalls = rest
    return Lease(
        id,
        token,
        int(fence),
        task,
        queue,
        a2b_base64(args),
        int(priority),
        group,
        key,
        int(attempt),
        int(failures),
        int(stalls),
        int(max_stalls),
        float(created_at),
        float(started_at),
        None if options is None else a2b_base64(options),
        suspect == "true",
        int(shared_stalls),
    )


async def rows(cursor: Cursor, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    await cursor.execute(sql, values)
    return await cursor.fetchall()


@asynccontextmanager
async def one_picture(cursor: Cursor) -> AsyncIterator[None]:
    """Several statements that see the same instant."""
    async with cursor.connection.transaction():
        await cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


async def get(cursor: Cursor, sql: Statements, job_id: str) -> JobRecord | None:
    found = await rows(cursor, f"{sql['read.jobs']} WHERE id = %(id)s", {"id": job_id})
    return as_job(found[0][0]) if found else None


def _where(equal: Mapping[str, Any], column: str, prefix: str | None) -> tuple[list[str], dict[str, Any]]:
    values = {name: wanted for name, wanted in equal.items() if wanted is not None}
    conditions = [f"{name} = %({name})s" for name in values]
    if prefix is not None:
        conditions.append(f"starts_with({column}, %(prefix)s)")
        values["prefix"] = prefix
    return conditions, values


async def find(cursor: Cursor, sql: Statements, query: JobQuery) -> list[JobRecord]:
    equal = {"queue": query.queue, "task": query.task, "grp": query.group, "key": query.key, "worker": query.worker}
    conditions, values = _where(equal, "id", query.id_prefix)
    if query.states:
        conditions.append("state = ANY (%(states)s)")
        values["states"] = [state.value for state in query.states]
    if query.before is not None:
        conditions.append("seq < %(before)s")
        values["before"] = query.before
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text = f"{sql['read.jobs']}{where} ORDER BY seq DESC LIMIT %(limit)s"
    return [as_job(row[0]) for row in await rows(cursor, text, {**values, "limit": query.limit})]


async def count(cursor: Cursor, sql: Statements, queue: str | None) -> dict[str, dict[State, int]]:
    counts: dict[str, dict[State, int]] = {}
    for name, state, number in await rows(cursor, sql["read.count"], {"queue": queue}):
        counts.setdefault(name, {})[State(state)] = number
    return counts


async def logs(cursor: Cursor, sql: Statements, job_id: str) -> list[LogLine]:
    return [LogLine(at, text) for at, text in await rows(cursor, sql["read.logs"], {"id": job_id})]


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


async def queues(cursor: Cursor, sql: Statements) -> list[QueueRecord]:
    async with one_picture(cursor):
        rules = {name: (limit, order) for name, limit, order in await rows(cursor, sql["read.queues"])}
        paused = {one.queue: one for one in await pauses(cursor, sql) if one.queue is not None and one.group is None}
        counts = await count(cursor, sql, None)
        oldest: dict[str, float] = dict(await rows(cursor, sql["read.oldest_ready"]))
    records: list[QueueRecord] = []
    for name in sorted({*rules, *paused, *counts}):
        limit, order = rules.get(name, (1, "strict"))
        records.append(
            QueueRecord(
                name=name,
                group_limit=limit,
                group_order=order,
                declared=name in rules,
                pause=paused.get(name),
                counts={state.value: number for state, number in counts.get(name, {}).items()},
                oldest_due_at=oldest.get(name),
            )
        )
    return records


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
            order=order,
            pause=paused.get((of, group)),
            counts=counts or {},
            head=head,
        )
        for of, group, most, override, order, counts, head in found
    ]


async def workers(cursor: Cursor, sql: Statements, now: float | None) -> list[WorkerRecord]:
    return [_as_worker(row[0]) for row in await rows(cursor, sql["read.workers"], {"now": now})]


async def dump(cursor: Cursor, sql: Statements) -> Dump:
    """Everything, as plain values, in the shapes of the records; one snapshot for all of it."""
    async with one_picture(cursor):
        jobs = [as_job(row[0]) for row in await rows(cursor, f"{sql['read.jobs']} ORDER BY seq")]
        beyond = await rows(cursor, sql["read.job_beyond"])
        deadlines = {row[0]: row[1:] for row in await rows(cursor, sql["read.worker_beyond"])}
        # Whether a worker has expired is a question of when one asks; a dump is the same until something is written.
        shown = [msgspec.structs.replace(one, running=0, expired=False) for one in await workers(cursor, sql, 0.0)]
        tables: dict[str, list[dict[str, Any]]] = {
            "jobs": [
                _plain(job) | dict(zip(_BEYOND, more, strict=True)) for job, more in zip(jobs, beyond, strict=True)
            ],
            "letters": [_plain(as_letter(r[0])) for r in await rows(cursor, f"{sql['read.letters']} ORDER BY logical")],
            "workers": [
                _plain(one) | dict(zip(("deadline", "last_call"), deadlines[one.id], strict=True))
                for one in sorted(shown, key=lambda one: one.id)
            ],
            "queues": [
                _plain(QueueRule(name=name, group_limit=limit, group_order=order))
                for name, limit, order in await rows(cursor, sql["read.queues"])
            ],
            "groups": [
                {"queue": queue, "name": name, "override": limit}
                for queue, name, limit in await rows(cursor, sql["read.overrides"])
            ],
            "pauses": [_plain(one) for one in await pauses(cursor, sql)],
            "logs": [
                {"job_id": row[0], "at": row[1], "text": row[2]} for row in await rows(cursor, sql["read.all_logs"])
            ],
        }
    return Dump(tables={name: tuple(found) for name, found in tables.items()})


_BEYOND = ("token", "turn", "lane", "claim_call", "prune_at")


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


async def work_at_hand(cursor: Cursor, sql: Statements, queues: list[str]) -> float | None:
    """Seconds until there may be work in these queues: 0 now, None when nothing is scheduled."""
    [(seconds,)] = await rows(cursor, sql["read.at_hand"], {"queues": queues})
    return None if seconds is None else max(0.0, float(seconds))
