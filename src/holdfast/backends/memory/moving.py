"""seal, export and carry: a store on its way to another one.

Called by backend.py inside its critical section. Carried rows are put in as they are: nothing is placed or refilled.
"""

from __future__ import annotations

from itertools import islice

from ...records import GroupLimit, Part, Seal, Shipment, StoredJob
from .. import sealing
from .reading import pauses
from .rows import Row
from .store import Store

_ROW_FIELDS = [name for name in Row.__slots__ if name in StoredJob.__struct_fields__]


def seal(store: Store, seal: Seal | None, instead_of: Seal | None) -> bool:
    if store.seal != instead_of:
        return False
    if sealing.is_new_target(seal, instead_of):
        sealing.refuse_unless_empty(len(store.jobs), len(store.letters), len(store.overrides), len(store.pauses))
        store.rules.clear()
    store.seal = seal
    return True


def export(store: Store, part: Part, after: str, limit: int) -> Shipment:
    if part == "rules":
        limits = [GroupLimit(queue=q, name=name, limit=most) for (q, name), most in sorted(store.overrides.items())]
        rules = [rule for _, rule in sorted(store.rules.items())]
        return Shipment(
            part=part, queues=tuple(rules), groups=tuple(limits), pauses=tuple(pauses(store)), tick=store.tick
        )
    if part == "jobs":
        rows = list(islice((row for row in store.jobs.values() if row.seq > int(after or 0)), limit))
        jobs = tuple(_stored(store, row) for row in rows)
        return Shipment(part=part, jobs=jobs, after=str(rows[-1].seq) if len(rows) == limit else None)
    letters = sorted((letter for letter in store.letters.values() if letter.id > after), key=lambda one: one.id)[:limit]
    return Shipment(part=part, letters=tuple(letters), after=letters[-1].id if len(letters) == limit else None)


def _stored(store: Store, row: Row) -> StoredJob:
    fields = {name: getattr(row, name) for name in _ROW_FIELDS}
    return StoredJob(**fields, logs=tuple(store.logs.get(row.id, ())))


def carry(store: Store, seal: Seal, shipment: Shipment) -> None:
    coming: dict[str, tuple[StoredJob, Row]] = {}
    for job in shipment.jobs:
        if job.id not in store.jobs:
            coming.setdefault(job.id, (job, _row(job)))
    keyed = [row.logical for _, row in coming.values() if row.key is not None and row.state.live]
    if len(set(keyed)) < len(keyed) or not store.live_keys.keys().isdisjoint(keyed):
        raise sealing.key_taken()
    store.catch_up(tick=shipment.tick, seq=shipment.seq)
    for rule in shipment.queues:
        store.rules.setdefault(rule.name, rule)
    for one in shipment.groups:
        store.overrides.setdefault((one.queue, one.name), one.limit)
    for pause in shipment.pauses:
        store.pauses.setdefault((pause.queue, pause.group, pause.task), pause)
    for job, row in coming.values():
        _insert(store, job, row)
    for letter in shipment.letters:
        logical = store.jobs[letter.id].logical
        if logical not in store.letters:
            store.keep_letter(logical, letter)
    store.touched.clear()  # a group that is not wholly in must not be refilled
    store.stirred.clear()
    store.seal = seal.moved_on(shipment)


def _row(job: StoredJob) -> Row:
    return Row(**{name: getattr(job, name) for name in _ROW_FIELDS})


def _insert(store: Store, job: StoredJob, row: Row) -> None:
    store.insert(row)
    store.catch_up(tick=max(job.turn or 0, job.fence), seq=job.seq)
    if job.logs:
        store.logs[job.id] = list(job.logs)
