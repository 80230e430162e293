"""The verbs of producers and operators: enqueue, declare, cancel, bury, run_now, revive, retry, discard, prune, pause …

Called by backend.py inside its critical section. Whatever is refused is refused before anything changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.backends.seals import check_limit, check_rules, check_weight, strict_limit
from holdfast.backends.shard import Ties
from holdfast.dependencies import DUE_AFTER_PARENTS
from holdfast.errors import ConfigurationError, DuplicateJob, JobNotFound
from holdfast.lifecycle import FAILURE_TEXTS, UNSTARTED, State, state_conflict
from holdfast.records import (
    REMEMBER_SECONDS_MIN,
    DeadLetter,
    Enqueued,
    Flow,
    NewJob,
    Override,
    Pause,
    QueueRule,
    TaskRule,
)

from . import depending, elsewhere, retaining
from .flow import merged
from .rows import KeyName, Row, Scope, key_name
from .store import RETAIN_SECONDS, Store


def enqueue(store: Store, jobs: Sequence[NewJob], wall: float, ties: Ties = Ties()) -> list[Enqueued]:  # noqa: B008
    _refuse_duplicates(store, jobs, wall)
    depending.check(store, jobs, wall, ties.parents)
    joins = elsewhere.check(store, ties)
    answers = [_enqueue_one(store, depending.waiting(job), wall) for job in jobs]
    depending.link(store, jobs, answers, wall, ties.parents)
    elsewhere.tie(store, ties, joins)
    return answers


def _refuse_duplicates(store: Store, jobs: Sequence[NewJob], wall: float) -> None:
    """Raise for the first job that may not share its key, looking also at those before it in the batch."""
    ids: set[str] = set()
    keys: dict[KeyName, str] = {}
    for job in jobs:
        if store.knows(job.id, wall) or job.id in ids:
            continue
        if job.key is not None:
            name = key_name(job.key_scope, job.queue, job.task, job.key)
            holder = store.key_holder(name, wall)
            taken = keys.get(name) if holder is None else holder.id
            if taken is not None:
                if job.on_conflict == "raise":
                    raise DuplicateJob(job.key, taken)
                continue
            keys[name] = job.id
        ids.add(job.id)


def _enqueue_one(store: Store, job: NewJob, wall: float) -> Enqueued:
    if store.knows(job.id, wall):
        return Enqueued(job.id, created=False)
    name = key_name(job.key_scope, job.queue, job.task, job.key or "")
    row = None if job.key is None else store.key_holder(name, wall)
    if row is None:
        store.add(job, wall)
        return Enqueued(job.id, created=True)
    gives_way = row.state in UNSTARTED and row.due_at != DUE_AFTER_PARENTS and not store.steps.get(row.id)
    if job.on_conflict in ("replace", "debounce") and gives_way:
        store.replace_call(row, job, wall)
        return Enqueued(row.id, created=False, replaced=True)
    if job.on_conflict == "extend" and row.key_window is not None and job.key_window is not None:
        window = max(row.key_window, wall - row.created_at + job.key_window)
        prune_at = None if row.prune_at is None else max(row.prune_at, row.created_at + window)
        store.move(row, row.state, key_window=window, prune_at=prune_at, rank=row.rank)
    return Enqueued(row.id, created=False)


def declare(store: Store, rules: Sequence[QueueRule], tasks: Sequence[TaskRule]) -> None:
    check_rules(rules, tasks)
    for task in tasks:
        wanted = None if task == TaskRule(name=task.name) else task
        if store.task_rules.get(task.name) != wanted:
            store.refuse_sealed()
            if wanted is None:
                del store.task_rules[task.name]
            else:
                store.task_rules[task.name] = wanted
            store.change_lane(task.name)
            store.stirred.update(store.counts)
    for rule in rules:
        known = replace(rule, group_limit=1 if rule.group_order == "strict" else rule.group_limit, shards=1)
        if store.rules.get(rule.name) != known:
            store.refuse_sealed()
            store.rules[rule.name] = known
            store.touched.update((name, None) for name in store.groups if name[0] == rule.name)
            store.stirred.add(rule.name)


def limit(store: Store, said: Override) -> None:
    scope = _scope(said, "a limit")
    queue, group, task = scope
    check_limit(said.limit, f"the limit of {_named(scope)}")
    check_weight(said)
    if isinstance(said.limit, int) and said.limit > 1 and group is not None and store.strict(queue or "", group):
        raise strict_limit(queue or "", said.limit)
    now_said = merged(said, store.overrides.get(scope))
    if now_said is None:
        store.overrides.pop(scope, None)
    else:
        store.overrides[scope] = now_said
    if task is not None:
        store.change_lane(task)
        store.stirred.update(store.counts)
    elif group is not None:
        store.touched[queue or "", group] = None
    else:
        store.stirred.add(queue or "")


def slow_down(store: Store, queue: str, seconds: float, wall: float) -> float:
    flow = store.flow_of((queue, None, None))
    until = max(flow.shut_until, wall + seconds)
    store.keep_flow(replace(flow, shut_until=until))
    return until


def find(store: Store, job_id: str) -> Row:
    row = store.jobs.get(job_id)
    if row is None:
        raise JobNotFound(job_id)
    return row


def cancel(store: Store, job_id: str, wall: float, by: str = "", reason: str = "") -> Row:
    row = find(store, job_id)
    if row.state in UNSTARTED:
        store.refuse_sealed()
        store.finish(row, wall, State.CANCELLED, RETAIN_SECONDS)
        store.mark(row, "cancel", wall, by=by, text=reason)
        store.count_ended(row, "cancelled", wall)
    elif row.state is State.RUNNING:
        if not row.cancel_requested:
            store.mark(row, "cancel", wall, by=by, text=reason)
        row.cancel_requested = True
    elif row.state is not State.CANCELLED:
        raise state_conflict(job_id, "cancel", row.state)
    return row


def bury(store: Store, job_id: str, reason: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    if row.state not in UNSTARTED:
        raise state_conflict(job_id, "bury", row.state)
    store.bury_unstarted(row, wall, "bury", reason or FAILURE_TEXTS["buried"])
    store.mark(row, "bury", wall, by=by)
    store.count_ended(row, "dead", wall)
    return row


def run_now(store: Store, job_id: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    if row.state is not State.SCHEDULED:
        raise state_conflict(job_id, "run_now", row.state)
    store.place(row, due_at=wall)
    store.mark(row, "run_now", wall, by=by)
    return row


def rejoin(store: Store, job_id: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    if not depending.waits_in_vain(store, row):
        raise state_conflict(job_id, "rejoin", row.state)
    row.reason = "parent"
    store.mark(row, "retry", wall, by=by)
    depending.resolve(store, row, wall)
    return row


def revive(store: Store, job_id: str, wall: float, by: str = "", verb: str = "revive") -> Row:
    row = find(store, job_id)
    if row.state is State.DEAD:
        refuse_taken(store, row, verb, wall)
        store.revive(row, wall)
        store.mark(row, "revive", wall, by=by)
    elif not (row.state.live and job_id in store.letter_of):  # live with its letter: revived before, nothing to do
        raise state_conflict(job_id, "revive", row.state)
    return row


def retry(store: Store, job_id: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    if row.state is State.DEAD:
        return revive(store, job_id, wall, by, "retry")
    if row.state.live:
        raise state_conflict(job_id, "retry", row.state)
    refuse_taken(store, row, "retry", wall)
    if row.state is State.SUCCEEDED:
        store.steps.pop(job_id, None)
    store.again(row, wall)
    store.mark(row, "retry", wall, by=by)
    return row


def refuse_taken(store: Store, row: Row, verb: str, wall: float) -> None:
    """A finished job may come back only where no other job of its key is live, a dead one not without the letter."""
    holder = None if row.key is None else store.key_holder(row.key_name, wall)
    if holder is not None and holder.id != row.id:
        raise state_conflict(row.id, verb, row.state, live_id=holder.id)
    letter = store.letters.get(row.logical)
    if row.state is State.DEAD and letter is not None and letter.id != row.id:
        raise state_conflict(row.id, verb, row.state, heir_id=letter.id)


def annotate(store: Store, job_id: str, text: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    store.mark(row, "note", wall, by=by, text=text)
    return row


def free_key(store: Store, job_id: str, wall: float, by: str = "") -> Row:
    row = find(store, job_id)
    if row.holds_key:
        store.move(row, row.state, holds_key=False, rank=row.rank)
        store.mark(row, "free_key", wall, by=by)
    return row


def discard(store: Store, job_id: str, wall: float, by: str = "") -> DeadLetter:
    logical = store.letter_of.get(job_id)
    if logical is None:
        raise JobNotFound(job_id, "dead letter")
    row = find(store, job_id)
    if row.state.live:
        raise state_conflict(job_id, "discard", row.state)
    letter = store.letters[logical]
    store.drop_letter(logical)
    store.let_go(row, wall, "discarded")
    store.mark(row, "discard", wall, by=by)
    return letter


def prune(store: Store, limit: int, older_than: float | None, wall: float) -> int:
    """Remove what is past its retention, then what the tasks' rules let go, and buckets that say nothing any more."""
    for scope in [scope for scope, flow in store.flows.items() if _says_nothing(flow, wall)]:
        store.drop_flow(scope)
    gone = _prune_retained(store, limit, older_than, wall)
    return gone + retaining.prune(store, limit - gone, wall)


def _says_nothing(flow: Flow, wall: float) -> bool:
    return flow.wakes_at is None and max(flow.spent_until, flow.shut_until) <= wall


def _prune_retained(store: Store, limit: int, older_than: float | None, wall: float) -> int:
    """A job that holds its letter has no retention, so it is never seen here."""
    if older_than is None:
        past: list[Row] = []
        kept = 0
        while len(past) < limit and (first := store.prunable.first()) is not None and first[0][0] <= wall:
            past.append(store.jobs[first[1]])
            if not depending.may_go(store, past[-1], wall):
                kept += 1
                continue
            store.remove(past[-1])
        return len(past) - kept
    before = wall - max(older_than, REMEMBER_SECONDS_MIN)
    rows = (store.jobs[job_id] for job_id in store.prunable)
    past = sorted(
        (row for row in rows if (row.finished_at or 0.0) <= before and row.window_ends_at <= wall),
        key=lambda row: row.seq,
    )[:limit]
    past = [row for row in past if depending.may_go(store, row, wall)]
    for row in past:
        store.remove(row)
    return len(past)


def pause(store: Store, wanted: Pause, wall: float) -> None:
    key = _scope(wanted, "a pause")
    if key in store.pauses:
        return
    store.pauses[key] = replace(wanted, paused_at=wall)
    _after_pause(store, wanted)


def resume(store: Store, wanted: Pause, wall: float, *, skip_dead: bool) -> bool:
    scope = _scope(wanted, "a pause")
    slowed = wanted.queue is not None and wanted.group is None and store.shut(wanted.queue, wall)
    group = store.groups.get((wanted.queue or "", wanted.group or ""))
    passed = [] if group is None or not skip_dead else list(group.dead.values())
    for row in passed:
        store.move(row, State.DEAD, held=False)
    if store.pauses.pop(scope, None) is None and not slowed and not passed:
        return False
    if slowed:
        store.keep_flow(replace(store.flow_of(scope), shut_until=0.0))
    _after_pause(store, wanted)
    return True


def _after_pause(store: Store, wanted: Pause) -> None:
    """Let a pause, or its end, take hold of what is ready."""
    if wanted.task is not None:
        store.change_lane(wanted.task)
    elif wanted.group is not None:
        store.touched[wanted.queue or "", wanted.group] = None
    else:
        store.stirred.add(wanted.queue or "")


def _scope(wanted: Pause | Override, what: str) -> Scope:
    of_queue = wanted.queue is not None and wanted.task is None
    of_task = wanted.task is not None and wanted.queue is None and wanted.group is None
    if not (of_queue or of_task):
        raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")
    return (wanted.queue, wanted.group, wanted.task)


def _named(scope: Scope) -> str:
    queue, group, task = scope
    return f"task {task!r}" if task is not None else f"queue {queue!r}" if group is None else f"group {group!r}"
