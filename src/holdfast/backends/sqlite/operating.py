"""What operators and sweeps do to one job, letter, group or pause at a time.

Called by backend.py and leasing.py inside a write transaction. Raises JobNotFound, StateConflict or ConfigurationError
before the first write, so a refused verb changes nothing.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigurationError, JobNotFound, StateConflict
from ...lifecycle import UNSTARTED, Failure, State
from ...records import REMEMBER_SECONDS_MIN, DeadLetter, JobRecord, Pause
from . import endings, reading
from .transaction import LANE_PARKED, SQL, Transaction, logical_name, with_failure

JOB_FIELDS = ["seq", "id", "task", "queue", "state", "grp", "key", "args", "revival", "errors", "attempts", "fence"]


def _job(tx: Transaction, job_id: str) -> dict[str, Any]:
    row = tx.cursor.execute(SQL["cancel.job"], (job_id,)).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return dict(zip(JOB_FIELDS, row, strict=True))


def _done(tx: Transaction, job_id: str) -> JobRecord:
    tx.close()
    record = reading.get(tx.cursor, job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def cancel(tx: Transaction, job_id: str) -> JobRecord:
    job = _job(tx, job_id)
    state = State(job["state"])
    if state in (State.SUCCEEDED, State.DEAD):
        advice = "Discard its dead letter instead." if state is State.DEAD else "There is nothing left to cancel."
        raise StateConflict(job_id, "cancel", state, advice)
    if state is State.RUNNING:
        tx.cursor.execute(SQL["cancel.mark"], (job["seq"],))
    elif state in UNSTARTED:
        tx.refuse_sealed()
        endings.finish(tx, job, State.CANCELLED)
    return _done(tx, job_id)


def bury(tx: Transaction, job_id: str, reason: str) -> JobRecord:
    tx.refuse_sealed()
    job = _job(tx, job_id)
    if State(job["state"]) not in UNSTARTED:
        advice = "Cancel it first." if job["state"] == State.RUNNING else "It has finished."
        raise StateConflict(job_id, "bury", job["state"], advice)
    _kill(tx, job, "bury", reason or "buried by an operator")
    return _done(tx, job_id)


def expire(tx: Transaction, job_id: str) -> None:
    _kill(tx, _job(tx, job_id), "expired", "it was not started within its time")


def _kill(tx: Transaction, job: dict[str, Any], reason: str, text: str) -> None:
    """An unstarted job dies: dead letter and end in one step."""
    failure = Failure(at=tx.now, reason=reason, text=text, attempt=job["attempts"], fence=job["fence"])
    job["errors"] = with_failure(job["errors"], failure)
    endings.finish(tx, job, State.DEAD, reason=reason)
    tx.bury(job, reason, failure)


def run_now(tx: Transaction, job_id: str) -> JobRecord:
    tx.refuse_sealed()
    job = _job(tx, job_id)
    if job["state"] != State.SCHEDULED:
        raise StateConflict(job_id, "run_now", job["state"], "Only a scheduled job can be brought forward.")
    _due_now(tx, job)
    return _done(tx, job_id)


def _due_now(tx: Transaction, job: dict[str, Any]) -> None:
    """A scheduled job comes into play at once, by the same two steps as promote."""
    execute = tx.cursor.execute
    execute(SQL["revive.due_now"], (tx.now, job["seq"]))
    lane = tx.lane_of(job["task"], job["grp"])
    if job["grp"] is None:
        execute(SQL["promote.to_ready"], (lane, tx.ticks(1), job["seq"]))
    else:
        execute(SQL["promote.to_waiting"], (lane, job["seq"]))
        tx.touch(job["queue"], job["grp"])


def retry(tx: Transaction, job_id: str) -> JobRecord:
    tx.refuse_sealed()
    job = _job(tx, job_id)
    if job["state"] == State.DEAD:
        return revive(tx, job_id)
    if job["state"] not in (State.SUCCEEDED, State.CANCELLED):
        raise StateConflict(job_id, "retry", job["state"], "Only a finished job can be run again.")
    _refuse_if_key_is_live(tx, job, "retry")
    _start_afresh(tx, job)
    return _done(tx, job_id)


def revive(tx: Transaction, job_id: str) -> JobRecord:
    tx.refuse_sealed()
    job = _job(tx, job_id)
    letter = tx.cursor.execute(SQL["revive.letter_of"], (job_id,)).fetchone()
    if job["state"] != State.DEAD:
        if letter is not None and State(job["state"]).live:
            return _done(tx, job_id)  # the second click: already revived
        raise StateConflict(job_id, "revive", job["state"], "Only a dead job can be revived.")
    if letter is None:
        _refuse_if_superseded(tx, job)
    _refuse_if_key_is_live(tx, job, "revive")
    _start_afresh(tx, job)
    if letter is not None:
        tx.cursor.execute(SQL["revive.mark"], (tx.now, 0, letter[0]))
    return _done(tx, job_id)


def revive_row(tx: Transaction, job_id: str, *, automatic: bool) -> bool:
    """Automatic revival of a letter that is due for it; False where its key is live or its job gone."""
    try:
        job = _job(tx, job_id)
        if job["state"] != State.DEAD:
            raise StateConflict(job_id, "revive", job["state"])
        _refuse_if_key_is_live(tx, job, "revive")
    except (JobNotFound, StateConflict):
        tx.cursor.execute(SQL["revive.unset"], (job_id,))
        return False
    _start_afresh(tx, job)
    logical = logical_name(job_id, job["queue"], job["task"], job["key"])
    tx.cursor.execute(SQL["revive.mark"], (tx.now, int(automatic), logical))
    return True


def _start_afresh(tx: Transaction, job: dict[str, Any]) -> None:
    tx.cursor.execute(SQL["revive.scheduled"], (tx.now, job["seq"]))
    _due_now(tx, job)


def _refuse_if_superseded(tx: Transaction, job: dict[str, Any]) -> None:
    logical = logical_name(job["id"], job["queue"], job["task"], job["key"])
    row = tx.cursor.execute(SQL["revive.letter_by_logical"], (logical,)).fetchone()
    if row is not None:
        advice = f"Its dead letter now belongs to job {row[0]}; revive that one."
        raise StateConflict(job["id"], "revive", "dead and superseded", advice)


def _refuse_if_key_is_live(tx: Transaction, job: dict[str, Any], verb: str) -> None:
    if job["key"] is None:
        return
    row = tx.cursor.execute(SQL["enqueue.live_key"], (job["queue"], job["task"], job["key"])).fetchone()
    if row is not None:
        raise StateConflict(job["id"], verb, job["state"], "Wait for it to end.", live_id=row[0])


def discard(tx: Transaction, job_id: str) -> DeadLetter:
    tx.refuse_sealed()
    letter = reading.letter(tx.cursor, job_id)
    if letter is None:
        raise JobNotFound(job_id, "dead letter")
    job = tx.cursor.execute(SQL["cancel.job"], (job_id,)).fetchone()
    if job is not None and job[4] != State.DEAD:
        raise StateConflict(job_id, "discard", job[4], "It was revived; cancel it first.")
    tx.cursor.execute(SQL["discard.letter"], (job_id,))
    tx.cursor.execute(SQL["discard.job"], (tx.now + REMEMBER_SECONDS_MIN, job_id))
    return letter


def pause_place(pause: Pause) -> tuple[str, str, str]:
    """(kind, queue, name): what a pause is about. Exactly one of queue, queue + group, task."""
    if pause.task is not None and pause.queue is None and pause.group is None:
        return "task", "", pause.task
    if pause.task is None and pause.queue is not None:
        return ("queue", pause.queue, "") if pause.group is None else ("group", pause.queue, pause.group)
    raise ConfigurationError("a pause names a queue, a queue and a group, or a task.")


def pause(tx: Transaction, one: Pause) -> None:
    tx.refuse_sealed()
    kind, queue, name = pause_place(one)
    tx.cursor.execute(SQL["pause.store"], (kind, queue, name, one.reason, one.by, tx.now))
    tx.rules_changed()
    if kind == "group":
        tx.withdraw(queue, name)
    elif kind == "task":
        tx.cursor.execute(SQL["pause.park"], {"parked": LANE_PARKED, "task": name})
    tx.close()


def resume(tx: Transaction, one: Pause) -> bool:
    tx.refuse_sealed()
    kind, queue, name = pause_place(one)
    found = tx.cursor.execute(SQL["pause.remove"], (kind, queue, name)).rowcount > 0
    tx.rules_changed()
    if found and kind == "group":
        tx.touch(queue, name)
    elif found and kind == "task":
        tx.cursor.execute(SQL["pause.unpark"], {"task": name})
    tx.close()
    return found


def limit_group(tx: Transaction, queue: str, group: str, limit: int | None) -> None:
    tx.refuse_sealed()
    if limit is None:
        tx.cursor.execute(SQL["declare.forget_override"], (queue, group))
    elif limit < 1:
        raise ConfigurationError(f"a group's limit is at least 1, not {limit}. To stop a group, pause it.")
    elif limit > 1 and tx.rules.is_strict(queue):
        raise ConfigurationError(
            f"groups of queue {queue!r} are strict: one job at a time. Declare it with group_order='relaxed' first."
        )
    else:
        tx.cursor.execute(SQL["declare.override"], (queue, group, limit))
    tx.rules_changed()
    tx.withdraw(queue, group)
    tx.close()


def prune(tx: Transaction, limit: int, older_than: float | None) -> int:
    tx.refuse_sealed()
    if older_than is None:
        rows = tx.cursor.execute(SQL["prune.past"], (tx.now, limit)).fetchall()
    else:
        before = tx.now - max(older_than, REMEMBER_SECONDS_MIN)
        rows = tx.cursor.execute(SQL["prune.older"], (before, limit)).fetchall()
    tx.cursor.executemany(SQL["prune.logs"], rows)
    tx.cursor.executemany(SQL["prune.job"], rows)
    return len(rows)


def refill(tx: Transaction, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str]]:
    """One bounded pass over groups with waiting jobs, from where the last one stopped."""
    tx.refuse_sealed()
    rows = tx.cursor.execute(SQL["refill.groups_waiting"], (*after, limit)).fetchall()
    for queue, group in rows:
        tx.touch(queue, group)
    made_ready = tx.refill()
    tx.close()
    return made_ready, rows[-1] if len(rows) == limit else ("", "")
