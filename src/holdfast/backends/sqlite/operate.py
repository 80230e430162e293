"""What operators and sweeps do to one job or letter at a time, one transaction each.

Called by backend.py, promote.py, claim.py and cron.py inside a write transaction. Raises JobNotFound, StateConflict or
StoreSealed before the first write, so a refused verb changes nothing.
"""

from __future__ import annotations

from typing import Any

from ...errors import JobNotFound, StateConflict
from ...lifecycle import FAILURE_TEXTS, UNSTARTED, Failure, State, state_conflict
from ...records import AUTOMATIC, DeadLetter, JobRecord
from ...rollups import Rollup
from . import enqueue, history, read, settle
from .codec import SQL, logical_name, state_of, with_failure
from .connection import Transaction
from .enqueue import free_key
from .groups import bring_into_play

_NAMES = """
    seq id task queue state grp key revival errors attempts fence priority held dropped
    holds_key key_queue
"""
JOB_FIELDS = _NAMES.split()


def job_of(tx: Transaction, job_id: str) -> dict[str, Any]:
    row = tx.cursor.execute(SQL["cancel.job"], (job_id,)).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return dict(zip(JOB_FIELDS, row, strict=True))


def done(tx: Transaction, job_id: str) -> JobRecord:
    tx.close()
    record = read.get(tx.cursor, job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def cancel(tx: Transaction, job_id: str, by: str = "", reason: str = "") -> JobRecord:
    job = job_of(tx, job_id)
    state = state_of(job["state"])
    if state in (State.SUCCEEDED, State.DEAD):
        raise state_conflict(job_id, "cancel", state)
    if state is State.RUNNING:
        if tx.cursor.execute(SQL["cancel.mark"], (job["seq"],)).rowcount:
            settle.mark(tx, job["seq"], "cancel", by=by, text=reason)
    elif state in UNSTARTED:
        tx.refuse_sealed()
        settle.finish(tx, job, State.CANCELLED)
        count(tx, job, "cancelled")
        settle.mark(tx, job["seq"], "cancel", by=by, text=reason)
    return done(tx, job_id)


def bury(tx: Transaction, job_id: str, reason: str, by: str = "") -> JobRecord:
    tx.refuse_sealed()
    job = job_of(tx, job_id)
    if state_of(job["state"]) not in UNSTARTED:
        raise state_conflict(job_id, "bury", job["state"])
    kill(tx, job, "bury", reason or FAILURE_TEXTS["buried"])
    count(tx, job, "dead")
    settle.mark(tx, job["seq"], "bury", by=by)
    return done(tx, job_id)


def count(tx: Transaction, job: dict[str, Any], outcome: str) -> None:
    """Count a job that ends without a lease: no worker does (R67)."""
    history.add(tx, Rollup(outcome=outcome, count=1, queue=job["queue"], task=job["task"]))


def expire(tx: Transaction, job_id: str) -> None:
    job = job_of(tx, job_id)
    count(tx, job, "expired")
    if job["dropped"]:
        settle.finish(tx, job, State.CANCELLED, reason="expired")
    else:
        kill(tx, job, "expired", FAILURE_TEXTS["expired"])


def kill(tx: Transaction, job: dict[str, Any], reason: str, text: str) -> None:
    """An unstarted job dies: the job ends and its dead letter is written in one step."""
    failure = Failure(at=tx.now, reason=reason, text=text, attempt=job["attempts"], fence=job["fence"])
    job["errors"] = with_failure(job["errors"], failure)
    settle.finish(tx, job, State.DEAD, reason=reason)
    settle.bury(tx, job, reason, failure)


def run_now(tx: Transaction, job_id: str, by: str = "") -> JobRecord:
    tx.refuse_sealed()
    job = job_of(tx, job_id)
    if job["state"] != State.SCHEDULED:
        raise state_conflict(job_id, "run_now", job["state"])
    due_now(tx, job)
    settle.mark(tx, job["seq"], "run_now", by=by)
    return done(tx, job_id)


def rejoin(tx: Transaction, job_id: str, by: str = "") -> JobRecord:
    """Let a finished job's parents decide about it again (R89)."""
    from .dependencies import follow_parents

    tx.refuse_sealed()
    job = job_of(tx, job_id)
    if not follow_parents(tx, job):
        raise state_conflict(job_id, "rejoin", job["state"])
    settle.mark(tx, job["seq"], "retry", by=by)
    return done(tx, job_id)


def due_now(tx: Transaction, job: dict[str, Any]) -> None:
    """Bring a scheduled job into play at once, as promote does."""
    tx.cursor.execute(SQL["revive.due_now"], (tx.now, job["seq"]))
    bring_into_play(tx, job["seq"], job["queue"], job["task"], job["grp"], job["priority"])


def retry(tx: Transaction, job_id: str, by: str = "") -> JobRecord:
    tx.refuse_sealed()
    job = job_of(tx, job_id)
    if job["state"] == State.DEAD:
        return revive(tx, job_id, by, "retry")
    if job["state"] not in (State.SUCCEEDED, State.CANCELLED):
        raise state_conflict(job_id, "retry", job["state"])
    _refuse_if_key_is_held(tx, job, "retry")
    if job["state"] == State.SUCCEEDED:
        tx.cursor.execute(SQL["steps.forget"], (job_id,))
    _start_afresh(tx, job)
    settle.mark(tx, job["seq"], "retry", by=by)
    return done(tx, job_id)


def revive(tx: Transaction, job_id: str, by: str = "", verb: str = "revive") -> JobRecord:
    tx.refuse_sealed()
    job = job_of(tx, job_id)
    letter = tx.cursor.execute(SQL["revive.letter_of"], (job_id,)).fetchone()
    if job["state"] != State.DEAD:
        if letter is not None and state_of(job["state"]).live:
            return done(tx, job_id)  # the second click: already revived
        raise state_conflict(job_id, "revive", job["state"])
    _refuse_if_key_is_held(tx, job, verb)
    if letter is None:
        _refuse_if_superseded(tx, job, verb)
    _start_afresh(tx, job)
    settle.mark(tx, job["seq"], "revive", by=by)
    if letter is not None:
        tx.cursor.execute(SQL["revive.mark"], (tx.now, 0, letter[0]))
    return done(tx, job_id)


def revive_row(tx: Transaction, job_id: str, *, automatic: bool) -> bool:
    """Automatic revival of a letter that is due for it; False if its key is held or its job is not dead."""
    try:
        job = job_of(tx, job_id)
        if job["state"] != State.DEAD:
            raise state_conflict(job_id, "revive", job["state"])
        _refuse_if_key_is_held(tx, job, "revive")
    except (JobNotFound, StateConflict):
        tx.cursor.execute(SQL["revive.unset"], (job_id,))
        return False
    _start_afresh(tx, job)
    settle.mark(tx, job["seq"], "revive", text=AUTOMATIC)
    logical = logical_name(job_id, job["queue"], job["task"], job["key"])
    tx.cursor.execute(SQL["revive.mark"], (tx.now, int(automatic), logical))
    return True


def revive_waiting(tx: Transaction, job_id: str, due_at: float) -> None:
    """Bring back a job that ended because of a parent: it waits again, with fresh budgets, its key and this time."""
    job = job_of(tx, job_id)
    _refuse_if_key_is_held(tx, job, "revive")
    _reset(tx, job, due_at)
    settle.mark(tx, job["seq"], "revive", text="parent")
    logical = logical_name(job_id, job["queue"], job["task"], job["key"])
    if job["state"] == State.DEAD:
        tx.cursor.execute(SQL["revive.mark"], (tx.now, 0, logical))


def _start_afresh(tx: Transaction, job: dict[str, Any]) -> None:
    """Bring a finished job into play with fresh budgets and its key."""
    _reset(tx, job, tx.now)
    due_now(tx, job)


def _reset(tx: Transaction, job: dict[str, Any], due_at: float) -> None:
    """Make a finished job scheduled again, with fresh budgets and its key."""
    holder = _other_holder(tx, job)
    if holder is not None:
        free_key(tx, holder)
    tx.cursor.execute(SQL["revive.scheduled"], (due_at, job["seq"]))
    tx.ended([job["seq"]])


def _refuse_if_superseded(tx: Transaction, job: dict[str, Any], verb: str) -> None:
    logical = logical_name(job["id"], job["queue"], job["task"], job["key"])
    row = tx.cursor.execute(SQL["revive.letter_by_logical"], (logical,)).fetchone()
    if row is not None:
        raise state_conflict(job["id"], verb, job["state"], heir_id=row[0])


def _refuse_if_key_is_held(tx: Transaction, job: dict[str, Any], verb: str) -> None:
    holder = _other_holder(tx, job)
    if holder is not None and not holder.window_passed(tx.now):
        raise state_conflict(job["id"], verb, job["state"], live_id=holder.id)


def _other_holder(tx: Transaction, job: dict[str, Any]) -> enqueue.Holder | None:
    """The other job that holds this one's key, even if only by a window that has passed."""
    if job["key"] is None or job["holds_key"]:
        return None
    return enqueue.holder_of(tx.cursor.execute, job["key_queue"], job["task"], job["key"])


def annotate(tx: Transaction, job_id: str, text: str, by: str = "") -> JobRecord:
    tx.refuse_sealed()
    settle.mark(tx, job_of(tx, job_id)["seq"], "note", by=by, text=text)
    return done(tx, job_id)


def free_key_of(tx: Transaction, job_id: str, by: str = "") -> JobRecord:
    tx.refuse_sealed()
    job = job_of(tx, job_id)
    if job["holds_key"]:
        tx.cursor.execute(SQL["enqueue.free_key"], (job["seq"],))
        settle.mark(tx, job["seq"], "free_key", by=by)
    return done(tx, job_id)


def discard(tx: Transaction, job_id: str, by: str = "") -> DeadLetter:
    tx.refuse_sealed()
    letter = read.letter(tx.cursor, job_id)
    if letter is None:
        raise JobNotFound(job_id, "dead letter")
    row = tx.cursor.execute(SQL["cancel.job"], (job_id,)).fetchone()
    job = None if row is None else dict(zip(JOB_FIELDS, row, strict=True))
    if job is not None and job["state"] != State.DEAD:
        raise state_conflict(job_id, "discard", job["state"])
    tx.cursor.execute(SQL["discard.letter"], (job_id,))
    settle.let_go(tx, job_id, "discarded")
    if job is not None:
        settle.mark(tx, job["seq"], "discard", by=by)
    tx.close()
    return letter
