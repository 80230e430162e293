"""renew, and what else a worker stores while it holds leases: register, begin, report.

Called by backend.py, one write transaction per call. Leases begin in claim.py and end in settle.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...records import LOGS_KEPT_MAX, Answer, Held, Release, Renewal, Report, WorkerRecord
from . import settle
from .codec import SQL
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


def renew(tx: Transaction, worker: str, held: Sequence[Held], seen_call: int, portrait: bytes | None) -> Renewal:
    values = {"id": worker, "steady": tx.steady, "boot": tx.boot, "now": tx.now}
    if not tx.cursor.execute(SQL["renew.deadline"], values).rowcount:
        return Renewal(known=False, lost=tuple(one.id for one in held))
    if portrait is not None:
        tx.cursor.execute(SQL["renew.portrait"], (worker, portrait))
    leases = {row[0]: row for row in tx.cursor.execute(SQL["renew.leases"], (worker,))}
    named = {one.id for one in held if one.id in leases and leases[one.id][1] == one.token}
    unnamed = [row for row in leases.values() if row[0] not in named and row[2] <= seen_call]
    for job_id, token, _, _ in unnamed:
        settle.release(tx, [Release(id=job_id, token=token)])
    tx.close()
    return Renewal(
        lost=tuple(one.id for one in held if one.id not in named),
        cancelled=tuple(one.id for one in held if one.id in named and leases[one.id][3]),
        released=tuple(row[0] for row in unnamed),
    )


def report(tx: Transaction, reports: Sequence[Report]) -> list[Answer]:
    execute = tx.cursor.execute
    answers: list[Answer] = []
    for one in reports:
        rows = execute(SQL["report.progress"], (one.progress, one.text, one.id, one.token)).fetchall()
        answers.append(Answer.OK if rows else Answer.LOST)
        lines = one.lines[-LOGS_KEPT_MAX:]
        if not rows or not lines:
            continue
        seq = rows[0][0]
        newest = execute(SQL["report.newest_line"], (seq,)).fetchone()[0]
        values = [(seq, newest + place, tx.now, text) for place, text in enumerate(lines, 1)]
        tx.cursor.executemany(SQL["report.line"], values)
        execute(SQL["report.trim"], (seq, newest + len(lines) - LOGS_KEPT_MAX))
    return answers
