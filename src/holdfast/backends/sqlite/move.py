"""seal, export and carry on SQLite: moving a store to another one.

Called by backend.py: seal and carry inside a write transaction, export and sealed as reads. Carried rows are inserted
as they are: nothing is placed, refilled or promoted here.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ...dependencies import edge_position, position_of
from ...lifecycle import State
from ...rates import Rate
from ...records import Flow, LogLine, Override, Part, Pause, Seal, Shipment, StoredJob
from ...steps import place_of_step, step_place
from .. import seals
from ..formulas import LANE_APART, LANE_UNGROUPED
from . import codec, cron, dependencies, read, relatives, steps
from .codec import EVERYWHERE, SQL, encoded, logical_name, rate_text
from .connection import Transaction
from .enqueue import split
from .limits import apart_word, queue_row, task_row

_BEYOND = 39  # end of the columns that every job record has


def sealed(cursor: sqlite3.Cursor) -> Seal | None:
    row = cursor.execute(SQL["seal.record"]).fetchone()
    return None if row is None else seals.read(row[0])


def seal(tx: Transaction, seal: Seal | None, instead_of: Seal | None) -> bool:
    before = sealed(tx.cursor)
    if before != instead_of:
        return False
    if seals.is_new_target(seal, before):
        seals.refuse_unless_empty(*tx.cursor.execute(SQL["seal.content"]).fetchone())
        for forget in ("seal.forget_queues", "seal.forget_tasks", "seal.forget_flows", "seal.forget_entries"):
            tx.cursor.execute(SQL[forget])
    _store(tx, seal)
    return True


def _store(tx: Transaction, seal: Seal | None) -> None:
    if seal is None:
        tx.cursor.execute(SQL["seal.remove"])
    else:
        tx.cursor.execute(SQL["seal.store"], (seal.closed, seals.written(seal)))


def export(cursor: sqlite3.Cursor, part: Part, after: str, limit: int) -> Shipment:
    if part == "rules":
        return Shipment(
            part=part,
            queues=tuple(read.queue_rules(cursor)),
            tasks=tuple(read.task_rules(cursor)),
            overrides=tuple(read.overrides(cursor)),
            flows=tuple(read.flows(cursor)),
            entries=tuple(read.entries(cursor)),
            pauses=tuple(read.pauses(cursor)),
            tick=cursor.execute(SQL["export.tick"]).fetchone()[0],
        )
    if part == "jobs":
        return _export_jobs(cursor, int(after or 0), limit)
    if part == "edges":
        return _export_edges(cursor, after, limit)
    if part == "steps":
        found = read.steps_after(cursor, step_place(after), limit)
        return Shipment(part=part, steps=tuple(found), after=place_of_step(found[-1]) if len(found) == limit else None)
    letters = read.letters_after(cursor, after, limit)
    return Shipment(part=part, letters=tuple(letters), after=letters[-1].id if len(letters) == limit else None)


def _export_edges(cursor: sqlite3.Cursor, after: str, limit: int) -> Shipment:
    edges = relatives.edges(cursor, edge_position(after), limit)
    return Shipment(part="edges", edges=tuple(edges), after=position_of(edges[-1]) if len(edges) == limit else None)


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
    record = read.record(codec.head(row, _BEYOND))
    if record.unreadable:
        raise seals.unreadable("job", record.id, record.unreadable)
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    turn, rank, lane, prune_at, marks = row[_BEYOND:]
    kept = codec.read_or((), codec.marks_of, marks)  # what cannot be read of it is no reason not to move
    rank = rank if record.state is State.READY else 0
    return StoredJob(**fields, turn=turn, rank=rank, lane=lane, prune_at=prune_at, logs=tuple(lines), marks=kept)


def carry(tx: Transaction, move: str, shipment: Shipment) -> None:
    seal = seals.check_carry(sealed(tx.cursor), move, shipment)
    many = tx.cursor.executemany
    many(SQL["carry.queue"], map(queue_row, shipment.queues))
    many(SQL["carry.task"], map(task_row, shipment.tasks))
    many(SQL["carry.override"], [_override_row(override) for override in shipment.overrides])
    many(SQL["carry.flow"], [_flow_row(flow) for flow in shipment.flows])
    many(SQL["carry.entry"], map(cron.entry_row, shipment.entries))
    many(SQL["pause.store"], [_pause_row(pause) for pause in shipment.pauses])
    trimmed = tx.rules.trimmed
    try:
        many(
            SQL["carry.job"],
            [(*_job_row(job), job.task in trimmed, split(job.args)[1]) for job in shipment.jobs],
        )
    except sqlite3.IntegrityError as error:
        raise seals.key_taken() if "holdfast_jobs.key" in str(error) else error from error
    large = [(job.args, job.seq, job.id) for job in shipment.jobs if split(job.args)[1] is not None]
    many(SQL["carry.body"], large)
    lines = [(job.seq, n, line.at, line.text) for job in shipment.jobs for n, line in enumerate(job.logs, 1)]
    many(SQL["carry.line"], lines)
    many(SQL["carry.letter"], [_letter_row(letter) for letter in shipment.letters])
    dependencies.carry(tx, shipment.edges)
    steps.carry(tx, shipment.steps)
    # A turn may be staggered far ahead; the tick that came with the rules is above everything that advanced the
    # counter.
    highest = max((job.fence for job in shipment.jobs), default=0)
    tx.cursor.execute(SQL["carry.tick"], (max(shipment.tick, highest),))
    _store(tx, seal.moved_on(shipment))


def _job_row(job: StoredJob) -> tuple[Any, ...]:
    return (
        *(job.seq, job.id, job.task, job.queue, job.state.value, split(job.args)[0], job.priority, job.group, job.key),
        *(job.attempts, job.failures, job.stalls, job.max_stalls, job.created_at, job.due_at, job.expires_at),
        *(job.started_at, job.finished_at, job.fence, job.begun, job.held, job.cancel_requested, job.progress),
        *(job.progress_text, job.value, job.reason, encoded(job.errors) if job.errors else None),
        *(None if job.revival is None else encoded(job.revival), job.options),
        *(job.shared_stalls, job.suspect, job.holds_key, _key_queue(job), job.key_until == "started"),
        *(
            job.key_window,
            job.due_max,
            job.on_expire == "drop",
            job.order,
            job.turn,
            job.rank,
            _lane(job),
            job.prune_at,
        ),
        encoded(job.marks).decode() if job.marks else None,
    )


def _key_queue(job: StoredJob) -> str | None:
    if job.key_scope == "global":
        return EVERYWHERE
    return None if job.key is None else job.queue


def _lane(job: StoredJob) -> int:
    """A lane is meaningful only while a job is ready; the index of `apart` lanes must not contain other jobs."""
    return LANE_UNGROUPED if job.lane == LANE_APART and job.state is not State.READY else job.lane


def _override_row(override: Override) -> tuple[Any, ...]:
    rate = override.rate if isinstance(override.rate, Rate) else None
    most = override.limit if isinstance(override.limit, int) else None
    weight = override.weight if isinstance(override.weight, int) else None
    return (*seals.place_of(override, "an override"), most, rate_text(rate), apart_word(override), weight)


def _flow_row(flow: Flow) -> tuple[Any, ...]:
    return (*seals.place_of(flow, "a flow"), flow.spent_until, flow.shut_until, flow.wakes_at)


def _pause_row(pause: Pause) -> tuple[Any, ...]:
    return (*seals.place_of(pause, "a pause"), pause.reason, pause.by, pause.paused_at)


def _letter_row(letter: Any) -> tuple[Any, ...]:
    logical = logical_name(letter.id, letter.queue, letter.task, letter.key)
    fields = msgspec.structs.asdict(letter)
    del fields["options"]  # they are the job's
    fields["error"] = None if letter.error is None else encoded(letter.error)
    fields["history"] = encoded(letter.history) if letter.history else None
    return (logical, *fields.values())
