"""seal, export and carry: a store on its way to another one.

Called by backend.py inside its critical section. Carried rows are put in as they are: nothing is placed or refilled.
"""

from __future__ import annotations

from itertools import islice

from holdfast.backends import seals
from holdfast.dependencies import edge_position, position_of
from holdfast.records import Flow, Override, Part, Pause, Seal, Shipment, StoredJob
from holdfast.steps import place_of_step, step_place

from . import depending, remembering
from .reading import by_scope
from .rows import Row, Scope
from .store import Store

_ROW_FIELDS = [name for name in Row.__slots__ if name in StoredJob.__struct_fields__]


def seal(store: Store, seal: Seal | None, instead_of: Seal | None) -> bool:
    if store.seal != instead_of:
        return False
    if seals.is_new_target(seal, instead_of):
        made = sum(not entry.declared for entry in store.entries.values())
        seals.refuse_unless_empty(len(store.jobs), len(store.letters), len(store.overrides), len(store.pauses), made)
        store.rules.clear()
        store.task_rules.clear()
        store.entries.clear()
        for scope in list(store.flows):
            store.drop_flow(scope)
    store.seal = seal
    return True


def export(store: Store, part: Part, after: str, limit: int) -> Shipment:
    if part == "rules":
        return Shipment(
            part=part,
            queues=tuple(rule for _, rule in sorted(store.rules.items())),
            tasks=tuple(rule for _, rule in sorted(store.task_rules.items())),
            overrides=tuple(by_scope(store.overrides)),
            flows=tuple(by_scope(store.flows)),
            entries=tuple(entry for _, entry in sorted(store.entries.items())),
            pauses=tuple(by_scope(store.pauses)),
            tick=store.tick,
        )
    if part == "jobs":
        rows = list(islice((row for row in store.jobs.values() if row.seq > int(after or 0)), limit))
        jobs = tuple(_stored(store, row) for row in rows)
        return Shipment(part=part, jobs=jobs, after=str(rows[-1].seq) if len(rows) == limit else None)
    if part == "edges":
        edges = [edge for edge in depending.in_order(store) if (edge.child, edge.parent) > edge_position(after)][:limit]
        return Shipment(part=part, edges=tuple(edges), after=position_of(edges[-1]) if len(edges) == limit else None)
    if part == "steps":
        found = [one for one in remembering.in_order(store) if (one.job_id, one.kind, one.name) > step_place(after)]
        steps = found[:limit]
        return Shipment(part=part, steps=tuple(steps), after=place_of_step(steps[-1]) if len(steps) == limit else None)
    letters = sorted((letter for letter in store.letters.values() if letter.id > after), key=lambda one: one.id)[:limit]
    return Shipment(part=part, letters=tuple(letters), after=letters[-1].id if len(letters) == limit else None)


def _stored(store: Store, row: Row) -> StoredJob:
    fields = {name: getattr(row, name) for name in _ROW_FIELDS}
    return StoredJob(**fields, logs=tuple(store.logs.get(row.id, ())), marks=tuple(store.marks.get(row.id, ())))


def carry(store: Store, seal: Seal, shipment: Shipment) -> None:
    coming: dict[str, tuple[StoredJob, Row]] = {}
    for job in shipment.jobs:
        if job.id not in store.jobs:
            coming.setdefault(job.id, (job, _row(job)))
    keyed = [row.key_name for _, row in coming.values() if row.holds_key]
    if len(set(keyed)) < len(keyed) or not store.key_holders.keys().isdisjoint(keyed):
        raise seals.key_taken()
    store.catch_up(tick=shipment.tick, seq=shipment.seq)
    for rule in shipment.queues:
        store.rules.setdefault(rule.name, rule)
    for task in shipment.tasks:
        store.task_rules.setdefault(task.name, task)
    for said in shipment.overrides:
        store.overrides.setdefault(_scope(said), said)
    for flow in shipment.flows:
        if _scope(flow) not in store.flows:
            store.keep_flow(flow)
    for entry in shipment.entries:
        store.entries.setdefault(entry.name, entry)
    for pause in shipment.pauses:
        store.pauses.setdefault(_scope(pause), pause)
    for job, row in coming.values():
        _insert(store, job, row)
    for letter in shipment.letters:
        logical = store.jobs[letter.id].logical
        if logical not in store.letters:
            store.keep_letter(logical, letter)
    depending.carry(store, shipment.edges)
    remembering.carry(store, shipment.steps)
    store.touched.clear()  # a group that is not wholly in must not be refilled
    store.stirred.clear()
    store.seal = seal.moved_on(shipment)


def _scope(said: Override | Flow | Pause) -> Scope:
    return (said.queue, said.group, said.task)


def _row(job: StoredJob) -> Row:
    return Row(**{name: getattr(job, name) for name in _ROW_FIELDS})


def _insert(store: Store, job: StoredJob, row: Row) -> None:
    store.insert(row)
    store.catch_up(tick=job.fence, seq=job.seq)  # its turn may be staggered; the tick that came with the rules is not
    if job.logs:
        store.logs[job.id] = list(job.logs)
    if job.marks:
        store.marks[job.id] = list(job.marks)
