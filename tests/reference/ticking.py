"""tick: a cron entry is written, and its jobs come into being, in one step.

Called by backend.py inside its critical section. When a tick is due is not decided here: only whether the entry is
still the one that was decided on.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.records import Enqueued, Tick, Ticked

from . import operating
from .store import Store


def tick(store: Store, wanted: Tick, wall: float) -> Ticked:
    there = store.entries.get(wanted.name)
    if (0 if there is None else there.version) != wanted.version:
        return Ticked(done=False, entry=there)
    if wanted.not_before is not None and wall < wanted.not_before:
        return Ticked(done=False, entry=there)
    previous = None if wanted.previous is None else store.jobs.get(wanted.previous)
    live = previous is not None and previous.state.live
    skipped = live and wanted.overlap == "skip"
    enqueued: list[Enqueued] = []
    if not skipped:
        if live and wanted.overlap == "cancel" and wanted.previous is not None:
            operating.cancel(store, wanted.previous, wall, f"cron {wanted.name}")
        jobs = [replace(job, on_conflict="keep") if job.on_conflict == "raise" else job for job in wanted.jobs]
        enqueued = operating.enqueue(store, jobs, wall)
    entry = wanted.entry_if_skipped if skipped else wanted.entry
    if entry is None:
        store.entries.pop(wanted.name, None)
    else:
        entry = store.entries[wanted.name] = replace(entry, version=wanted.version + 1)
    return Ticked(done=True, entry=entry, enqueued=tuple(enqueued), skipped=skipped)
