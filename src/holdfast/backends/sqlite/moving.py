"""seal, export and carry on SQLite: a store on its way to another one.

Called by backend.py: seal and carry inside a write transaction, export and sealed on the reader's thread. Carried rows
go in as they are: nothing is placed, refilled or promoted here.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ...records import GroupLimit, LogLine, Part, Seal, Shipment, StoredJob
from ...rules import QueueRule
from .. import sealing
from . import reading
from .operating import pause_place
from .transaction import SQL, Transaction, encoded, logical_name

_BEYOND = 32  # where the columns end that every job record has


def sealed(cursor: sqlite3.Cursor) -> Seal | None:
    row = cursor.execute(SQL["seal.record"]).fetchone()
    return None if row is None else sealing.read(row[0])


def seal(tx: Transaction, seal: Seal | None, instead_of: Seal | None) -> bool:
    before = sealed(tx.cursor)
    if before != instead_of:
        return False
    if sealing.is_new_target(seal, before):
        sealing.refuse_unless_empty(*tx.cursor.execute(SQL["seal.content"]).fetchone())
        tx.cursor.execute(SQL["seal.forget_rules"])
    _store(tx, seal)
    return True


def _store(tx: Transaction, seal: Seal | None) -> None:
    if seal is None:
        tx.cursor.execute(SQL["seal.remove"])
    else:
        tx.cursor.execute(SQL["seal.store"], (seal.closed, sealing.written(seal)))


def export(cursor: sqlite3.Cursor, part: Part, after: str, limit: int) -> Shipment:
    if part == "rules":
        return Shipment(
            part=part,
            queues=tuple(
                QueueRule(name=name, group_limit=most, group_order=order)
                for name, most, order in sorted(cursor.execute(SQL["read.queues"]))
            ),
            groups=tuple(
                GroupLimit(queue=queue, name=name, limit=most)
                for queue, name, most in sorted(cursor.execute(SQL["refill.overrides"]))
            ),
            pauses=tuple(reading.pauses(cursor)),
            tick=cursor.execute(SQL["export.tick"]).fetchone()[0],
        )
    if part == "jobs":
        return _export_jobs(cursor, int(after or 0), limit)
    letters = reading.letters_after(cursor, after, limit)
    return Shipment(part=part, letters=tuple(letters), after=letters[-1].id if len(letters) == limit else None)


def _export_jobs(cursor: sqlite3.Cursor, after: int, limit: int) -> Shipment:
    rows = cursor.execute(SQL["export.jobs"], (after, limit)).fetchall()
    if not rows:
        return Shipment(part="jobs")
    last = rows[-1][0]
    lines: dict[int, list[LogLine]] = {}
    for seq, at, text in cursor.execute(SQL["export.logs"], (after, last)):
        lines.setdefault(seq, []).append(LogLine(at, text))
    jobs = tuple(_stored(row, lines.get(row[0], [])) for row in rows)
    return Shipment(part="jobs", jobs=jobs, after=str(last) if len(rows) == limit else None)


def _stored(row: Any, lines: list[LogLine]) -> StoredJob:
    record = reading.record(row[:_BEYOND])
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    turn, lane, prune_at = row[_BEYOND:]
    return StoredJob(**fields, turn=turn, lane=lane, prune_at=prune_at, logs=tuple(lines))


def carry(tx: Transaction, move: str, shipment: Shipment) -> None:
    seal = sealing.check_carry(sealed(tx.cursor), move, shipment)
    many = tx.cursor.executemany
    many(SQL["carry.queue"], [(one.name, one.group_limit, one.group_order) for one in shipment.queues])
    many(SQL["carry.group"], [(one.queue, one.name, one.limit) for one in shipment.groups])
    many(SQL["pause.store"], [(*pause_place(one), one.reason, one.by, one.paused_at) for one in shipment.pauses])
    try:
        many(SQL["carry.job"], [_job_row(job) for job in shipment.jobs])
    except sqlite3.IntegrityError as error:
        raise sealing.key_taken() if "holdfast_jobs.key" in str(error) else error from error
    lines = [(job.seq, n, line.at, line.text) for job in shipment.jobs for n, line in enumerate(job.logs, 1)]
    many(SQL["carry.line"], lines)
    many(SQL["carry.letter"], [_letter_row(letter) for letter in shipment.letters])
    highest = max((max(job.turn or 0, job.fence) for job in shipment.jobs), default=0)
    tx.cursor.execute(SQL["carry.tick"], (max(shipment.tick, highest),))
    _store(tx, seal.moved_on(shipment))


def _job_row(job: StoredJob) -> tuple[Any, ...]:
    return (
        *(job.seq, job.id, job.task, job.queue, job.state.value, job.args, job.priority, job.group, job.key),
        *(job.attempts, job.failures, job.stalls, job.max_stalls, job.created_at, job.due_at, job.expires_at),
        *(job.started_at, job.finished_at, job.fence, job.begun, job.held, job.cancel_requested, job.progress),
        *(job.progress_text, job.value, job.reason, encoded(job.errors) if job.errors else None),
        *(None if job.revival is None else encoded(job.revival), job.options),
        *(job.shared_stalls, job.suspect, job.turn, job.lane, job.prune_at),
    )


def _letter_row(letter: Any) -> tuple[Any, ...]:
    logical = logical_name(letter.id, letter.queue, letter.task, letter.key)
    fields = msgspec.structs.asdict(letter)
    fields["error"] = None if letter.error is None else encoded(letter.error)
    fields["history"] = encoded(letter.history) if letter.history else None
    return (logical, *fields.values())
