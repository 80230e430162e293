"""renew, and what else a worker stores while it holds leases: register, begin, report; and commands to a worker.

Called by backend.py, one write transaction per call. Leases begin in claim.py and end in settle.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ...errors import JobNotFound
from ...records import (
    LOGS_KEPT_MAX,
    Answer,
    Command,
    Held,
    Release,
    Renewal,
    Report,
    WorkerRecord,
)
from ...worker_status import COMMANDS_KEPT_MAX
from ..formulas import renewal_gap
from ..seals import too_many_commands
from . import settle
from .codec import SQL, command_of, encoded
from .connection import Transaction


def register(tx: Transaction, worker: WorkerRecord) -> None:
    tx.cursor.execute(
        SQL["register.store"],
        {
            "id": worker.id,
            "host": worker.host,
            "pid": worker.pid,
            "boot_id": worker.boot_id,
            "pid_namespace": worker.pid_namespace,
            "lease_seconds": worker.lease_seconds,
            "queues": msgspec.json.encode(worker.queues).decode(),
            "slots": worker.slots,
            "isolates": worker.isolates,
            "now": tx.now,
            "steady": tx.steady,
            "boot": tx.boot,
        },
    )


def begin(tx: Transaction, held: Sequence[Held]) -> list[Answer]:
    return [
        Answer.OK
        if tx.cursor.execute(SQL["begin.mark"], (one.id, one.token)).rowcount
        else settle.refusal(tx, one.id, one.token)
        for one in held
    ]


_ID, _TOKEN, _CLAIM_CALL, _CANCEL_REQUESTED, _SEQ, _STARTED_AT, _FENCE = range(7)  # columns of renew.leases


def renew(tx: Transaction, worker: str, held: Sequence[Held], seen_call: int, portrait: bytes | None) -> Renewal:
    values = {"id": worker, "steady": tx.steady, "boot": tx.boot, "now": tx.now}
    before = tx.cursor.execute(SQL["renew.renewed"], values).fetchone()
    if before is None:
        return Renewal(known=False, lost=tuple(one.id for one in held))
    tx.cursor.execute(SQL["renew.deadline"], values)
    if portrait is not None:
        tx.cursor.execute(SQL["renew.portrait"], (worker, portrait))
    leases = {row[_ID]: row for row in tx.cursor.execute(SQL["renew.leases"], (worker,))}
    named = {one.id for one in held if one.id in leases and leases[one.id][_TOKEN] == one.token}
    unnamed = [row for row in leases.values() if row[_ID] not in named and row[_CLAIM_CALL] <= seen_call]
    for row in unnamed:
        settle.release(tx, [Release(id=row[_ID], token=row[_TOKEN])])
    renewed_at, lease_seconds = before
    if renewal_gap(tx.now, renewed_at, renewed_at, lease_seconds) is not None:
        for row in (leases[id] for id in named):
            gap = renewal_gap(tx.now, renewed_at, row[_STARTED_AT], lease_seconds)
            if gap is not None:
                settle.note(tx, row[_SEQ], "renewal", worker=worker, fence=row[_FENCE], gap=gap)
    tx.close()
    return Renewal(
        lost=tuple(one.id for one in held if one.id not in named),
        cancelled=tuple(one.id for one in held if one.id in named and leases[one.id][_CANCEL_REQUESTED]),
        released=tuple(row[_ID] for row in unnamed),
        commands=tuple(one for one in commands(tx.cursor, worker) if one.done_at is None),
    )


def report(tx: Transaction, reports: Sequence[Report]) -> list[Answer]:
    execute = tx.cursor.execute
    answers: list[Answer] = []
    for one in reports:
        rows = execute(SQL["report.progress"], (one.progress, one.text, one.id, one.token)).fetchall()
        answers.append(Answer.OK if rows else Answer.LOST)
        if not rows:
            continue
        [(seq, worker, fence)] = rows
        if one.progress is not None or one.text is not None:
            settle.note(tx, seq, "progress", worker=worker, fence=fence, progress=one.progress, text=one.text or "")
        lines = one.lines[-LOGS_KEPT_MAX:]
        if not lines:
            continue
        newest = execute(SQL["report.newest_line"], (seq,)).fetchone()[0]
        values = [(seq, newest + place, tx.now, text) for place, text in enumerate(lines, 1)]
        tx.cursor.executemany(SQL["report.line"], values)
        execute(SQL["report.trim"], (seq, newest + len(lines) - LOGS_KEPT_MAX))
    return answers


def commands(cursor: sqlite3.Cursor, worker: str) -> list[Command]:
    return [command_of(record) for _, _, record in cursor.execute(SQL["command.all"], (worker,)).fetchall()]


def command(tx: Transaction, worker: str, command: Command) -> Command:
    execute = tx.cursor.execute
    if execute(SQL["command.worker"], (worker,)).fetchone() is None:
        raise JobNotFound(worker, "worker")
    given = execute(SQL["command.all"], (worker,)).fetchall()
    for id, _, record in given:
        if id == command.id:
            return command_of(record)
    excess = len(given) + 1 - COMMANDS_KEPT_MAX
    answered = [id for id, done, _ in given if done][: max(0, excess)]
    if excess > len(answered):
        raise too_many_commands(worker)
    for id in answered:
        execute(SQL["command.forget"], (worker, id))
    stored = replace(command, at=tx.now)
    execute(SQL["command.store"], (worker, command.id, tx.now, encoded(stored)))
    return stored


def answer(tx: Transaction, worker: str, command_id: str, result: str, refused: bool) -> bool:
    for id, done, record in tx.cursor.execute(SQL["command.all"], (worker,)).fetchall():
        if id == command_id and not done:
            answered = replace(command_of(record), done_at=tx.now, result=result, refused=refused)
            tx.cursor.execute(SQL["command.answer"], (encoded(answered), worker, id))
            return True
    return False
