"""checkpoint and signal: what a job remembers between its attempts, stored by its handler and by others.

Called by backend.py inside a write transaction, by settle.py, prune.py, edit.py and operate.py for jobs that sleep, go
or start afresh, and by move.py. Jobs that remember nothing cost nothing: no other verb looks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple

from ...lifecycle import State, state_conflict
from ...records import Answer, Held, JobRecord
from ...steps import SIGNALS_MAX, NewStep, Step
from ..seals import too_many_signals
from . import operate, settle
from .codec import SQL, state_of
from .connection import Transaction


def checkpoint(tx: Transaction, held: Held, steps: Sequence[NewStep]) -> Answer:
    row = tx.cursor.execute(SQL["checkpoint.lease"], (held.id, held.token)).fetchone()
    if row is None:
        return Answer.LOST
    for step in steps:
        until = None if step.delay is None else tx.now + step.delay
        values = (held.id, step.kind, step.name, step.number, step.value, until, tx.now, row[0])
        tx.cursor.execute(SQL["checkpoint.store"], values)
    return Answer.OK


def signal(tx: Transaction, job_id: str, name: str, value: bytes, by: str) -> JobRecord:
    tx.refuse_sealed()
    job = operate.job_of(tx, job_id)
    if state_of(job["state"]).finished:
        raise state_conflict(job_id, "signal", job["state"])
    if not is_signalled(tx, job_id, name):
        if tx.cursor.execute(SQL["signal.count"], (job_id,)).fetchone()[0] >= SIGNALS_MAX:
            raise too_many_signals(job_id)
        tx.cursor.execute(SQL["signal.store"], (job_id, name, value, tx.now, job["fence"]))
        settle.mark(tx, job["seq"], "signal", by=by, text=name)
        waits = tx.cursor.execute(SQL["signal.is_waiting"], (job_id, name)).fetchone()[0]
        if job["state"] == State.SCHEDULED and waits:
            operate.due_now(tx, job)
    return operate.done(tx, job_id)


def is_signalled(tx: Transaction, job_id: str, name: str) -> bool:
    return bool(tx.cursor.execute(SQL["signal.known"], (job_id, name)).fetchone()[0])


def any_at_all(tx: Transaction) -> bool:
    return bool(tx.cursor.execute(SQL["steps.any"]).fetchone()[0])


def forget(tx: Transaction, job_ids: Iterable[str]) -> None:
    """These jobs go, or start afresh."""
    tx.cursor.executemany(SQL["steps.forget"], [(job_id,) for job_id in job_ids])


def carry(tx: Transaction, shipped: Sequence[Step]) -> None:
    tx.cursor.executemany(SQL["steps.carry"], map(astuple, shipped))
