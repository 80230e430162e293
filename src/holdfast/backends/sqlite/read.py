"""The read side of the SQLite store: rows to records. Never writes.

Called by verbs.py for reads, by read_rules.py, move.py and flaws.py, and by operate.py inside its transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...lifecycle import State
from ...records import DeadLetter, JobQuery, JobRecord, LetterQuery, LogLine, WorkerRecord
from . import tolerant
from .columns import SQL, as_text, deaths_of, failure_of, failures_of, revival_of
from .unique_keys import EVERYWHERE

_JOB = SQL["read.job"]
_LETTER = SQL["read.letter"]
_names = msgspec.json.Decoder(tuple[str, ...]).decode


_FIELDS = (
    *("seq", "id", "task", "queue", "state", "args", "priority", "group", "key", "attempts", "failures", "stalls"),
    *("max_stalls", "created_at", "due_at", "expires_at", "started_at", "finished_at", "fence", "worker", "begun"),
    *("held", "cancel_requested", "progress", "progress_text", "value", "reason", "errors", "revival", "options"),
    *("shared_stalls", "suspect", "holds_key", "key_scope", "key_until", "key_window", "due_max", "on_expire"),
)


def _time(value: float) -> float:
    if not tolerant.is_time(value):
        raise ValueError("no time that a calendar has")
    return value


def _time_or_none(value: float | None) -> float | None:
    return None if value is None else _time(value)


_DECODERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "state": (State, State.DEAD),
    **dict.fromkeys(("created_at", "due_at"), (_time, 0.0)),
    **dict.fromkeys(("expires_at", "started_at", "finished_at"), (_time_or_none, None)),
    **dict.fromkeys(("begun", "held", "cancel_requested", "suspect", "holds_key"), (bool, False)),
    "errors": (failures_of, ()),
    "revival": (revival_of, None),
    "key_scope": (lambda place: "global" if place == EVERYWHERE else "queue", "queue"),
    "key_until": (lambda started: "started" if started else "finished", "finished"),
    "on_expire": (lambda dropped: "drop" if dropped else "bury", "bury"),
}


def record(row: Sequence[Any]) -> JobRecord:
    """A job. An unreadable field has its default and is listed in `unreadable`."""
    if type(row) is tuple:
        with contextlib.suppress(*tolerant.UNREADABLE):
            return _record(row)
    return JobRecord(**tolerant.fields(_FIELDS, row, _DECODERS))


def _record(row: Sequence[Any]) -> JobRecord:
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
        created_at=_time(row[13]),
        due_at=_time(row[14]),
        expires_at=_time_or_none(row[15]),
        started_at=_time_or_none(row[16]),
        finished_at=_time_or_none(row[17]),
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
        holds_key=bool(row[32]),
        key_scope="global" if row[33] == EVERYWHERE else "queue",
        key_until="started" if row[34] else "finished",
        key_window=row[35],
        due_max=row[36],
        on_expire="drop" if row[37] else "bury",
    )


def get(cursor: sqlite3.Cursor, job_id: str) -> JobRecord | None:
    row = cursor.execute(f"{_JOB} WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else record(row)


def all_jobs(cursor: sqlite3.Cursor) -> list[JobRecord]:
    return [record(row) for row in cursor.execute(f"{_JOB} ORDER BY seq")]


def ended(cursor: sqlite3.Cursor, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
    """The finished ones of these jobs, and None for unknown ids."""
    asked = cursor.execute(SQL["read.ended"], (as_text(list(job_ids)),)).fetchall()
    return {
        job_id: get(cursor, job_id) if finished else None for job_id, known, finished in asked if finished or not known
    }


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
        known = tolerant.read_or(None, State, state)  # flaws lists a job with an invalid state
        if known is not None:
            counts.setdefault(name, {})[known] = number
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
        error=tolerant.read_or(None, failure_of, row[10]),
        history=tolerant.read_or((), deaths_of, row[11]),
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


def all_letters(cursor: sqlite3.Cursor) -> list[DeadLetter]:
    return [_letter(row) for row in cursor.execute(f"{_LETTER} ORDER BY logical")]


def letters_after(cursor: sqlite3.Cursor, job_id: str, limit: int) -> list[DeadLetter]:
    """Letters by id, after that one."""
    rows = cursor.execute(f"{_LETTER} WHERE job_id > ? ORDER BY job_id LIMIT ?", (job_id, limit))
    return [_letter(row) for row in rows]


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
            queues=tolerant.read_or((), _names, row[6]),
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
