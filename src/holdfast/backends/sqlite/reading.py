"""The read side of the SQLite store: rows to records. Never writes.

Called by backend.py on the reader's thread and by operating.py inside its transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...lifecycle import State
from ...records import (
    DeadLetter,
    Dump,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Pause,
    QueueRecord,
    WorkerRecord,
)
from ...rules import QueueRule
from .transaction import SQL, GroupRules, deaths_of, failure_of, failures_of, revival_of

_JOB = SQL["read.job"]
_LETTER = SQL["read.letter"]
_names = msgspec.json.Decoder(tuple[str, ...]).decode


def record(row: Sequence[Any]) -> JobRecord:
    return JobRecord(
        seq=row[0],
        id=row[1],
        task=row[2],
        queue=row[3],
        state=State(row[4]),
        args=row[5],
        priority=row[6],
        group=row[7],
        key=row[8],
        attempts=row[9],
        failures=row[10],
        stalls=row[11],
        max_stalls=row[12],
        created_at=row[13],
        due_at=row[14],
        expires_at=row[15],
        started_at=row[16],
        finished_at=row[17],
        fence=row[18],
        worker=row[19],
        begun=bool(row[20]),
        held=bool(row[21]),
        cancel_requested=bool(row[22]),
        progress=row[23],
        progress_text=row[24],
        value=row[25],
        reason=row[26],
        errors=failures_of(row[27]),
        revival=revival_of(row[28]),
        options=row[29],
        shared_stalls=row[30],
        suspect=bool(row[31]),
    )


def get(cursor: sqlite3.Cursor, job_id: str) -> JobRecord | None:
    row = cursor.execute(f"{_JOB} WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else record(row)


def _prefix_range(prefix: str) -> tuple[str, str]:
    return prefix, prefix + "\U0010ffff"


def find(cursor: sqlite3.Cursor, query: JobQuery) -> list[JobRecord]:
    conditions: list[str] = []
    values: list[Any] = []
    columns = {"queue": query.queue, "task": query.task, "grp": query.group, "key": query.key, "worker": query.worker}
    for column, wanted in columns.items():
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    if query.states:
        conditions.append(f"state IN ({', '.join('?' * len(query.states))})")
        values += [state.value for state in query.states]
    if query.before is not None:
        conditions.append("seq < ?")
        values.append(query.before)
    if query.id_prefix is not None:
        conditions.append("id >= ? AND id < ?")
        values += _prefix_range(query.id_prefix)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = cursor.execute(f"{_JOB}{where} ORDER BY seq DESC LIMIT ?", (*values, query.limit))
    return [record(row) for row in rows]


def count(cursor: sqlite3.Cursor, queue: str | None) -> Mapping[str, Mapping[State, int]]:
    counts: dict[str, dict[State, int]] = {}
    for name, state, number in cursor.execute(SQL["read.count"], {"queue": queue}):
        counts.setdefault(name, {})[State(state)] = number
    return counts


def logs(cursor: sqlite3.Cursor, job_id: str) -> list[LogLine]:
    return [LogLine(at, text) for at, text in cursor.execute(SQL["read.logs"], (job_id,))]


def _letter(row: Sequence[Any]) -> DeadLetter:
    return DeadLetter(
        id=row[0],
        task=row[1],
        queue=row[2],
        key=row[3],
        group=row[4],
        args=row[5],
        failure_count=row[6],
        first_failed_at=row[7],
        failed_at=row[8],
        reason=row[9],
        error=failure_of(row[10]),
        history=deaths_of(row[11]),
        cycles=row[12],
        revive_at=row[13],
        revived_at=row[14],
    )


def letter(cursor: sqlite3.Cursor, job_id: str) -> DeadLetter | None:
    row = cursor.execute(f"{_LETTER} WHERE job_id = ?", (job_id,)).fetchone()
    return None if row is None else _letter(row)


def letters(cursor: sqlite3.Cursor, query: LetterQuery) -> list[DeadLetter]:
    conditions: list[str] = []
    values: list[Any] = []
    for column, wanted in {"queue": query.queue, "task": query.task, "reason": query.reason}.items():
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    if query.id_prefix is not None:
        conditions.append("job_id >= ? AND job_id < ?")
        values += _prefix_range(query.id_prefix)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = cursor.execute(f"{_LETTER}{where} ORDER BY failed_at DESC, job_id LIMIT ?", (*values, query.limit))
    return [_letter(row) for row in rows]


def letters_after(cursor: sqlite3.Cursor, job_id: str, limit: int) -> list[DeadLetter]:
    """Letters by id, from after that one."""
    rows = cursor.execute(f"{_LETTER} WHERE job_id > ? ORDER BY job_id LIMIT ?", (job_id, limit))
    return [_letter(row) for row in rows]


def pauses(cursor: sqlite3.Cursor) -> list[Pause]:
    return [
        Pause(
            queue=queue if kind != "task" else None,
            group=name if kind == "group" else None,
            task=name if kind == "task" else None,
            reason=reason,
            by=by,
            paused_at=at,
        )
        for kind, queue, name, reason, by, at in cursor.execute(SQL["pause.all"])
    ]


def queues(cursor: sqlite3.Cursor) -> list[QueueRecord]:
    rules = {name: (limit, order) for name, limit, order in cursor.execute(SQL["read.queues"])}
    paused = {one.queue: one for one in pauses(cursor) if one.queue is not None and one.group is None}
    counts = count(cursor, None)
    records: list[QueueRecord] = []
    for name in sorted({*rules, *paused, *counts}):
        limit, order = rules.get(name, (1, "strict"))
        oldest = cursor.execute(SQL["read.oldest_ready"], (name,)).fetchone()[0]
        records.append(
            QueueRecord(
                name=name,
                group_limit=limit,
                group_order=order,
                declared=name in rules,
                pause=paused.get(name),
                counts={state.value: number for state, number in counts.get(name, {}).items()},
                oldest_due_at=oldest,
            )
        )
    return records


def group(cursor: sqlite3.Cursor, queue: str, name: str) -> GroupRecord:
    rules = GroupRules(cursor)
    head = cursor.execute(SQL["read.group_head"], (queue, name)).fetchone()
    return GroupRecord(
        queue=queue,
        name=name,
        limit=rules.limit(queue, name),
        override=rules.override(queue, name),
        order=rules.order(queue),
        pause=next((one for one in pauses(cursor) if (one.queue, one.group) == (queue, name)), None),
        counts=dict(cursor.execute(SQL["read.group_counts"], (queue, name)).fetchall()),
        head=None if head is None else head[0],
    )


def groups(cursor: sqlite3.Cursor, queue: str | None, limit: int) -> list[GroupRecord]:
    return [
        group(cursor, *row) for row in cursor.execute(SQL["read.groups"], {"queue": queue, "most": limit}).fetchall()
    ]


def workers(cursor: sqlite3.Cursor, steady: float, boot: str) -> list[WorkerRecord]:
    expired = {row[0] for row in cursor.execute(SQL["recover.expired"], {"steady": steady, "boot": boot})}
    return [
        WorkerRecord(
            id=row[0],
            host=row[1],
            pid=row[2],
            boot_id=row[3],
            pid_namespace=row[4],
            lease_seconds=row[5],
            queues=_names(row[6]),
            slots=row[7],
            started_at=row[8],
            renewed_at=row[9],
            expired=row[0] in expired,
            isolates=bool(row[10]),
            running=row[11],
            portrait=row[12],
        )
        for row in cursor.execute(SQL["read.workers"])
    ]


def dump(cursor: sqlite3.Cursor) -> Dump:
    """Everything, as plain values, in the shapes of the records."""
    jobs = [record(row) for row in cursor.execute(f"{_JOB} ORDER BY seq")]
    beyond = cursor.execute(SQL["read.job_beyond"]).fetchall()
    deadlines = {row[0]: row[1:] for row in cursor.execute(SQL["read.worker_beyond"])}
    # Whether a worker has expired is a question of when one asks; a dump is the same until something is written.
    shown = [msgspec.structs.replace(one, running=0) for one in workers(cursor, float("-inf"), "")]
    tables: dict[str, list[dict[str, Any]]] = {
        "jobs": [_plain(job) | dict(zip(_BEYOND, more, strict=True)) for job, more in zip(jobs, beyond, strict=True)],
        "letters": [_plain(_letter(row)) for row in cursor.execute(f"{_LETTER} ORDER BY logical")],
        "workers": [
            _plain(one) | dict(zip(("deadline", "last_call"), deadlines[one.id], strict=True))
            for one in sorted(shown, key=lambda one: one.id)
        ],
        "queues": [
            _plain(QueueRule(name=name, group_limit=limit, group_order=order))
            for name, limit, order in sorted(cursor.execute(SQL["read.queues"]))
        ],
        "groups": [
            {"queue": queue, "name": name, "override": limit}
            for queue, name, limit in sorted(cursor.execute(SQL["refill.overrides"]))
        ],
        "pauses": [_plain(one) for one in pauses(cursor)],
        "logs": [{"job_id": row[0], "at": row[1], "text": row[2]} for row in cursor.execute(SQL["read.all_logs"])],
    }
    return Dump(tables={name: tuple(rows) for name, rows in tables.items()})


_BEYOND = ("token", "turn", "lane", "claim_call", "prune_at")


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


def work_at_hand(cursor: sqlite3.Cursor, queues: Sequence[str], now: float) -> tuple[bool, float | None]:
    """Is something claimable in these queues now, and if not, when is the next scheduled job due?"""
    paused = {row[0] for row in cursor.execute(SQL["claim.paused_queues"])}
    for queue in queues:
        if queue not in paused and cursor.execute(SQL["read.claimable"], (queue,)).fetchone():
            return True, None
    next_due = cursor.execute(SQL["read.next_due"]).fetchone()[0]
    return next_due is not None and next_due <= now, next_due
