"""tick: writes a cron entry and enqueues its jobs in one transaction.

Called by backend.py inside a write transaction. It does not decide when a tick is due, only whether the entry is still
the one the caller decided on.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...lifecycle import State
from ...records import CronEntry, Enqueued, Tick, Ticked, with_conflicts_kept
from ..formulas import tick_overlap
from . import codec, enqueue, operate
from .codec import SQL, encoded, entry_of
from .connection import Transaction


def tick(tx: Transaction, wanted: Tick) -> Ticked:
    tx.refuse_sealed()
    row = tx.cursor.execute(SQL["tick.entry"], (wanted.name,)).fetchone()
    there = None if row is None else codec.read_or(None, entry_of, row[0])
    early = wanted.not_before is not None and tx.now < wanted.not_before
    if early or (0 if there is None else there.version) != wanted.version:
        return Ticked(done=False, entry=there)
    live = wanted.overlap != "allow" and _is_live(tx, wanted.previous)
    skipped, cancels = tick_overlap(wanted.overlap, live=live)
    enqueued: list[Enqueued] = []
    if not skipped:
        if cancels and wanted.previous is not None:
            operate.cancel(tx, wanted.previous, by=f"cron {wanted.name}")
        jobs = [with_conflicts_kept(job) for job in wanted.jobs]
        enqueued = enqueue.store(tx, jobs) if jobs else []
    entry = wanted.entry_if_skipped if skipped else wanted.entry
    if entry is None:
        tx.cursor.execute(SQL["tick.remove"], (wanted.name,))
    else:
        entry = replace(entry, version=wanted.version + 1)
        tx.cursor.execute(SQL["tick.store"], (wanted.name, *entry_row(entry)[1:]))
    return Ticked(done=True, entry=entry, enqueued=tuple(enqueued), skipped=skipped)


def entry_row(entry: CronEntry) -> tuple[str, int, bool, bytes]:
    return entry.name, entry.version, entry.declared, encoded(entry)


def _is_live(tx: Transaction, job_id: str | None) -> bool:
    row = None if job_id is None else tx.cursor.execute(SQL["tick.state"], (job_id,)).fetchone()
    return row is not None and State(row[0]).live
