"""The verbs of producers and operators: enqueue, declare, cancel, bury, run_now, revive, retry, discard, prune, pause …

Called by backend.py inside its critical section. Whatever is refused is refused before anything changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import ConfigurationError, DuplicateJob, JobNotFound, StateConflict
from ...lifecycle import UNSTARTED, State
from ...records import REMEMBER_SECONDS_MIN, DeadLetter, Enqueued, NewJob, Pause
from ...rules import QueueRule
from .rows import Row
from .store import RETAIN_SECONDS, Store


def enqueue(store: Store, jobs: Sequence[NewJob], wall: float) -> list[Enqueued]:
    _refuse_duplicates(store, jobs)
    return [_enqueue_one(store, job, wall) for job in jobs]


def _refuse_duplicates(store: Store, jobs: Sequence[NewJob]) -> None:
    """Raise for the first job that may not share its key, looking also at those before it in the batch."""
    ids: set[str] = set()
    keys: dict[tuple[str, str, str], str] = {}
    for job in jobs:
        if job.id in store.jobs or job.id in ids:
            continue
        if job.key is not None:
            logical = (job.queue, job.task, job.key)
            taken = store.live_keys.get(logical) or keys.get(logical)
            if taken is not None:
                if job.on_conflict == "raise":
                    raise DuplicateJob(job.key, taken)
                continue
            keys[logical] = job.id
        ids.add(job.id)


def _enqueue_one(store: Store, job: NewJob, wall: float) -> Enqueued:
    if job.id in store.jobs:
        return Enqueued(job.id, created=False)
    live = None if job.key is None else store.live_keys.get((job.queue, job.task, job.key))
    if live is None:
        store.add(job, wall)
        return Enqueued(job.id, created=True)
    row = store.jobs[live]
    if job.on_conflict == "replace" and row.state in UNSTARTED:
        store.replace_call(row, job, wall)
        return Enqueued(live, created=False, replaced=True)
    return Enqueued(live, created=False)


def declare(store: Store, rules: Sequence[QueueRule]) -> None:
    for rule in rules:
        if rule.group_limit < 1:
            raise ConfigurationError(f"group_limit of queue {rule.name!r} must be at least 1, not {rule.group_limit}.")
    for rule in rules:
        known = replace(rule, group_limit=1 if rule.group_order == "strict" else rule.group_limit, shards=1)
        if store.rules.get(rule.name) != known:
            store.refuse_sealed()
            store.rules[rule.name] = known
            store.touched.update((name, None) for name in store.groups if name[0] == rule.name)


def limit_group(store: Store, queue: str, group: str, limit: int | None) -> None:
    if limit is None:
        store.overrides.pop((queue, group), None)
    elif limit < 1:
        raise ConfigurationError(f"the limit of group {group!r} must be at least 1, not {limit}. To stop it, pause it.")
    elif limit > 1 and store.strict(queue):
        raise ConfigurationError(
            f"queue {queue!r} is strict: its groups run one job at a time, so {limit} cannot hold. "
            'Declare the queue with group_order="relaxed" first.'
        )
    else:
        store.overrides[queue, group] = limit
    store.touched[queue, group] = None


def find(store: Store, job_id: str) -> Row:
    row = store.jobs.get(job_id)
    if row is None:
        raise JobNotFound(job_id)
    return row


def cancel(store: Store, job_id: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state in UNSTARTED:
        store.refuse_sealed()
        store.finish(row, wall, State.CANCELLED, RETAIN_SECONDS)
    elif row.state is State.RUNNING:
        row.cancel_requested = True
    elif row.state is not State.CANCELLED:
        raise StateConflict(job_id, "cancel", row.state, "Only unfinished jobs can be cancelled.")
    return row


def bury(store: Store, job_id: str, reason: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state not in UNSTARTED:
        raise StateConflict(job_id, "bury", row.state, "Only jobs that have not started can be buried.")
    store.bury_unstarted(row, wall, "bury", reason)
    return row


def run_now(store: Store, job_id: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state is not State.SCHEDULED:
        raise StateConflict(job_id, "run_now", row.state, "Only scheduled jobs can be brought forward.")
    store.place(row, due_at=wall)
    return row


def revive(store: Store, job_id: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state is State.DEAD:
        _refuse_taken(store, row, "revive")
        store.revive(row, wall)
    elif not (row.state.live and job_id in store.letter_of):  # live with its letter: revived before, nothing to do
        raise StateConflict(job_id, "revive", row.state, "Only dead jobs can be revived; retry takes any finished one.")
    return row


def retry(store: Store, job_id: str, wall: float) -> Row:
    row = find(store, job_id)
    if row.state is State.DEAD:
        return revive(store, job_id, wall)
    if row.state.live:
        raise StateConflict(job_id, "retry", row.state, "It is still on its way; only finished jobs can be retried.")
    _refuse_taken(store, row, "retry")
    store.again(row, wall)
    return row


def _refuse_taken(store: Store, row: Row, verb: str) -> None:
    """A finished job may come back only where no other job of its key is live, a dead one not without the letter."""
    live = store.live_keys.get(row.logical)
    if live is not None:
        raise StateConflict(row.id, verb, row.state, "Wait for that one to end.", live_id=live)
    letter = store.letters.get(row.logical)
    if row.state is State.DEAD and letter is not None and letter.id != row.id:
        advice = f"Its dead letter now belongs to job {letter.id}: {verb} that one."
        raise StateConflict(row.id, verb, "dead and superseded", advice, live_id=None)


def discard(store: Store, job_id: str, wall: float) -> DeadLetter:
    row = find(store, job_id)
    logical = store.letter_of.get(job_id)
    if logical is None:
        raise JobNotFound(job_id, "dead letter")
    if row.state.live:
        raise StateConflict(job_id, "discard", row.state, "It was revived; its letter closes when it succeeds.")
    letter = store.letters[logical]
    store.drop_letter(logical)
    store.let_go(row, wall, "discarded")
    return letter


def prune(store: Store, limit: int, older_than: float | None, wall: float) -> int:
    """Remove what is past its retention. A job that holds its letter has no retention, so it is never seen here."""
    if older_than is None:
        past: list[Row] = []
        while len(past) < limit and (first := store.prunable.first()) is not None and first[0][0] <= wall:
            past.append(store.jobs[first[1]])
            store.remove(past[-1])
        return len(past)
    before = wall - max(older_than, REMEMBER_SECONDS_MIN)
    rows = (store.jobs[job_id] for job_id in store.prunable)
    past = sorted((row for row in rows if (row.finished_at or 0.0) <= before), key=lambda row: row.seq)[:limit]
    for row in past:
        store.remove(row)
    return len(past)


def pause(store: Store, wanted: Pause, wall: float) -> None:
    key = _pause_key(wanted)
    if key in store.pauses:
        return
    store.pauses[key] = replace(wanted, paused_at=wall)
    _after_pause(store, wanted)


def resume(store: Store, wanted: Pause) -> bool:
    if store.pauses.pop(_pause_key(wanted), None) is None:
        return False
    _after_pause(store, wanted)
    return True


def _after_pause(store: Store, wanted: Pause) -> None:
    """Let a pause, or its end, take hold of what is ready."""
    if wanted.task is not None:
        ready = [job_id for lane in list(store.lanes.values()) for job_id in lane]
        for row in map(store.jobs.__getitem__, ready):
            if row.task == wanted.task:
                store.make_ready(row)
    elif wanted.group is not None:
        store.touched[wanted.queue or "", wanted.group] = None
    else:
        store.stirred.add(wanted.queue or "")


def _pause_key(wanted: Pause) -> tuple[str | None, str | None, str | None]:
    of_queue = wanted.queue is not None and wanted.task is None
    of_task = wanted.task is not None and wanted.queue is None and wanted.group is None
    if not (of_queue or of_task):
        raise ConfigurationError("a pause is of a queue, of a group (queue and group) or of a task. Name one of them.")
    return (wanted.queue, wanted.group, wanted.task)
