"""seal, export and carry on PostgreSQL: moving one store into another.

Called by backend.py with a cursor. Each verb is one transaction. carry inserts rows as they are; it never assigns
lanes, refills or promotes.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from psycopg.errors import UniqueViolation

from ...codec import decoder
from ...dependencies import edge_position, position_of
from ...records import DeadLetter, LogLine, Part, Seal, Shipment, StoredJob
from ...steps import place_of_step, step_place
from .. import seals
from . import read
from .codec import as_job, as_marks, encoded, read_letter
from .flaws import rule_flaws
from .read import Cursor, Statements, one_picture, pauses, rows, rules

_read_stored = decoder(StoredJob)
_as_lines = decoder(tuple[LogLine, ...])


async def sealed(cursor: Cursor, sql: Statements) -> Seal | None:
    found = await rows(cursor, sql["seal.record"])
    return seals.read(found[0][0]) if found else None


async def _take(cursor: Cursor, sql: Statements) -> Seal | None:
    """Lock and return the seal; nobody else can change it until this transaction ends."""
    [(record,)] = await rows(cursor, sql["seal.take"])
    return None if record is None else seals.read(record)


async def _store(cursor: Cursor, sql: Statements, seal: Seal | None) -> None:
    record = None if seal is None else seals.written(seal)
    await cursor.execute(sql["seal.store"], {"closed": seal is not None and seal.closed, "record": record})


async def seal(cursor: Cursor, sql: Statements, seal: Seal | None, instead_of: Seal | None) -> bool:
    async with cursor.connection.transaction():
        before = await _take(cursor, sql)
        if before != instead_of:
            return False
        await cursor.execute(sql["seal.alone"])
        if seals.is_new_target(seal, before):
            [counts] = await rows(cursor, sql["seal.content"])
            seals.refuse_unless_empty(*counts)
            await cursor.execute(sql["seal.forget_rules"])
        await _store(cursor, sql, seal)
        return True


async def export(cursor: Cursor, sql: Statements, part: Part, after: str, limit: int) -> Shipment:
    if part == "rules":
        return await _export_rules(cursor, sql)
    if part == "jobs":
        found = await rows(cursor, sql["export.jobs"], {"after": after or "0", "limit": limit})
        jobs = tuple(
            replace(_as_stored(job), logs=_as_lines(lines), marks=as_marks(marks)) for job, lines, marks in found
        )
        return Shipment(part=part, jobs=jobs, after=str(jobs[-1].seq) if len(jobs) == limit else None)
    if part == "edges":
        edges = await read.edges(cursor, sql, edge_position(after), limit)
        return Shipment(part=part, edges=tuple(edges), after=position_of(edges[-1]) if len(edges) == limit else None)
    if part == "steps":
        steps = await read.all_steps(cursor, sql, step_place(after), limit)
        return Shipment(part=part, steps=tuple(steps), after=place_of_step(steps[-1]) if len(steps) == limit else None)
    found = await rows(cursor, sql["export.letters"], {"after": after, "limit": limit})
    letters = tuple(_as_letter(row[0]) for row in found)
    return Shipment(part=part, letters=letters, after=letters[-1].id if len(letters) == limit else None)


def _as_stored(record: str) -> StoredJob:
    try:
        return _read_stored(record)
    except (msgspec.DecodeError, RecursionError):
        job = as_job(record)
        raise seals.unreadable("job", job.id, job.unreadable) from None


def _as_letter(record: str) -> DeadLetter:
    letter, unreadable = read_letter(record)
    if unreadable:
        raise seals.unreadable("dead letter", letter.id, unreadable)
    return letter


async def _export_rules(cursor: Cursor, sql: Statements) -> Shipment:
    async with one_picture(cursor):
        async for flaw in rule_flaws(cursor, sql):
            raise seals.unreadable(f"the entry in {flaw.place} of", flaw.id or "", (flaw.field or "",))
        said = await rules(cursor, sql)
        held = await pauses(cursor, sql)
        [(tick,)] = await rows(cursor, sql["export.tick"])
    return Shipment(
        part="rules",
        queues=tuple(said.queues),
        tasks=tuple(said.tasks),
        overrides=tuple(said.overrides),
        flows=tuple(said.flows),
        entries=tuple(said.entries),
        pauses=tuple(held),
        tick=tick,
    )


async def carry(cursor: Cursor, sql: Statements, move: str, shipment: Shipment) -> None:
    async with cursor.connection.transaction():
        before = seals.check_carry(await _take(cursor, sql), move, shipment)
        if shipment.part == "rules":
            names = ("queues", "tasks", "overrides", "flows", "entries", "pauses")
            await cursor.execute(sql["carry.rules"], {name: encoded(getattr(shipment, name)) for name in names})
            await cursor.execute(sql["carry.bind"])
        if shipment.jobs:
            jobs = {"jobs": encoded(shipment.jobs)}
            try:
                await cursor.execute(sql["carry.jobs"], jobs)
            except UniqueViolation as error:
                raise seals.key_taken() if error.diag.constraint_name == "jobs_key" else error from error
            await cursor.execute(sql["carry.retain"], jobs)
            if any(job.logs for job in shipment.jobs):
                await cursor.execute(sql["carry.lines"], jobs)
        if shipment.letters:
            await cursor.execute(sql["carry.letters"], {"letters": encoded(shipment.letters)})
        if shipment.edges:
            await cursor.execute(sql["relatives.carry"], {"edges": encoded(shipment.edges)})
        if shipment.steps:
            await cursor.execute(sql["remembered.carry"], {"steps": encoded(shipment.steps)})
        # The tick exported with the rules is not below any number in use. Turns are ignored: staggered ones may lie far
        # beyond the counter.
        highest = max((job.fence for job in shipment.jobs), default=0)
        await cursor.execute(sql["carry.counters"], {"tick": max(shipment.tick, highest)})
        await _store(cursor, sql, before.moved_on(shipment))
