"""What the reference shows: its rows as the frozen records of the contract.

Called by backend.py inside its critical section. It never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.lifecycle import State
from holdfast.queries.pages import Look, Scanned
from holdfast.rates import Rate
from holdfast.records import (
    DeadLetter,
    Dump,
    GroupOrder,
    GroupRecord,
    JobQuery,
    JobRecord,
    Lease,
    LetterQuery,
    QueueRecord,
    QueueRule,
    TaskRecord,
    TaskRule,
    WorkerRecord,
    mark_row,
)

from . import depending, remembering
from .rows import GroupName, Holder, Instant, Row, Scope
from .store import Store

T = TypeVar("T")

_FIELDS = tuple(name for name in JobRecord.__struct_fields__ if name != "unreadable")
_BEYOND = ("token", "turn", "rank", "lane", "claim_call", "prune_at")


def job_record(row: Row) -> JobRecord:
    return JobRecord(**{name: getattr(row, name) for name in _FIELDS})


def lease(row: Row) -> Lease:
    return Lease(
        id=row.id,
        token=row.token or "",
        fence=row.fence,
        task=row.task,
        queue=row.queue,
        args=row.args,
        priority=row.priority,
        group=row.group,
        key=row.key,
        attempt=row.attempts + 1,
        failures=row.failures,
        stalls=row.stalls,
        max_stalls=row.max_stalls,
        created_at=row.created_at,
        started_at=row.started_at or 0.0,
        options=row.options,
        suspect=row.suspect,
        shared_stalls=row.shared_stalls,
        due_at=row.due_at,
    )


def scan_jobs(store: Store, query: JobQuery, look: Look) -> Scanned:
    """Every job in turn, whether it matches or not: the caller decides."""
    found: list[JobRecord] = []
    rows = size = 0
    place = None if query.before is None else query.order(query.before, query.beyond or 0.0)
    for row in sorted(store.jobs.values(), key=lambda row: query.order(row.seq, row.due_at)):
        if place is not None and query.order(row.seq, row.due_at) <= place:
            continue
        rows += 1
        job = job_record(row)
        found.append(msgspec.structs.replace(job, args=b"{}", value=None, errors=()) if look.light else job)
        size += len(row.args)
        if len(found) >= query.limit or rows >= look.rows_max or size >= look.bytes_max:
            return Scanned(jobs=tuple(found), before=row.seq, beyond=row.due_at, rows=rows)
    return Scanned(jobs=tuple(found), rows=rows)


def find_letters(store: Store, query: LetterQuery) -> list[DeadLetter]:
    letters = (
        letter
        for letter in store.letters.values()
        if (query.queue is None or letter.queue == query.queue)
        and (query.task is None or letter.task == query.task)
        and (query.reason is None or letter.reason == query.reason)
        and (query.id_prefix is None or letter.id.startswith(query.id_prefix))
    )
    found = sorted(letters, key=lambda letter: (-letter.failed_at, letter.id))[: query.limit]
    return [with_options(store, letter) for letter in found]


def with_options(store: Store, letter: DeadLetter) -> DeadLetter:
    return replace(letter, options=store.jobs[letter.id].options)


def counts(store: Store, queue: str | None) -> dict[str, dict[State, int]]:
    shown = {
        name: {state: number for state, number in by_state.items() if number}
        for name, by_state in sorted(store.counts.items())
        if queue is None or name == queue
    }
    return {name: by_state for name, by_state in shown.items() if by_state}


def queue_records(store: Store) -> list[QueueRecord]:
    by_queue = counts(store, None)
    said = {
        queue
        for queue, group, _ in (*store.pauses, *store.overrides, *store.flows)
        if queue is not None and group is None
    }
    return [_queue_record(store, name, by_queue.get(name, {})) for name in sorted({*by_queue, *store.rules, *said})]


def _queue_record(store: Store, name: str, by_state: Mapping[State, int]) -> QueueRecord:
    rule = store.rules.get(name) or QueueRule(name=name)
    ready = (job_id for lane, ids in store.lanes.items() if lane[0] == name for job_id in ids)
    return QueueRecord(
        name=name,
        group_limit=rule.group_limit,
        group_order=rule.group_order,
        group_rate=rule.group_rate,
        aging=rule.aging,
        on_dead=rule.on_dead,
        order_window=rule.order_window,
        dead_queue=rule.dead_queue,
        declared=name in store.rules,
        limit=rule.limit,
        rate=rule.rate,
        override=store.overrides.get((name, None, None)),
        flow=store.flows.get((name, None, None)),
        pause=store.pauses.get((name, None, None)),
        counts={state.value: number for state, number in by_state.items()},
        oldest_due_at=min((store.jobs[job_id].due_at for job_id in ready), default=None),
    )


def group_records(store: Store, queue: str | None, limit: int) -> list[GroupRecord]:
    said = {(scope[0], scope[1]) for scope in (*store.pauses, *store.overrides) if scope[1] is not None}
    names = sorted(
        (name[0] or "", name[1] or "") for name in {*store.groups, *said} if queue is None or name[0] == queue
    )
    return [group_record(store, name) for name in names[:limit]]


def group_record(store: Store, name: GroupName) -> GroupRecord:
    order: GroupOrder = "strict" if store.strict(*name) else "relaxed"
    scope = (*name, None)
    said = store.overrides.get(scope)
    by_state = {state.value: len(rows) for state, rows in _members(store, name) if rows}
    return GroupRecord(
        queue=name[0],
        name=name[1],
        limit=store.group_limit(name),
        override=said.limit if said is not None and isinstance(said.limit, int) else None,
        rate=store.group_rate(name),
        rate_override=said.rate if said is not None and isinstance(said.rate, Rate) else None,
        weight=store.weight(name),
        flow=store.flows.get(scope),
        order=order,
        pause=store.pauses.get((name[0], name[1], None)),
        counts=by_state,
        head=_head(store, name),
        stopped_by=_first(store.groups[name].dead) if name in store.groups else None,
    )


def _members(store: Store, name: GroupName) -> Iterator[tuple[State, list[str]]]:
    group = store.groups.get(name)
    if group is not None:
        yield State.SCHEDULED, [*group.held, *group.scheduled]
        yield State.WAITING, list(group.waiting)
        yield State.READY, list(group.ready)
        yield State.RUNNING, list(group.running)


def _head(store: Store, name: GroupName) -> str | None:
    """The job whose turn it is: what runs, else what is ready, else the head in its back-off, else the dead one that
    stops the group, else who comes next."""
    group = store.groups.get(name)
    if group is None:
        return None
    for rows in (group.running, group.ready, group.held, group.dead):
        if rows:
            return _first(rows)
    first = group.waiting.first()
    return _first(group.scheduled) if first is None else first[1]


def _first(rows: Mapping[str, Row]) -> str | None:
    return min(rows.values(), key=lambda row: row.place[1:]).id if rows else None


def task_records(store: Store) -> list[TaskRecord]:
    said = {task for _, _, task in (*store.overrides, *store.flows) if task is not None}
    return [
        TaskRecord(
            rule=store.task_rules.get(name) or TaskRule(name=name),
            declared=name in store.task_rules,
            override=store.overrides.get((None, None, name)),
            flow=store.flows.get((None, None, name)),
            running=store.running_tasks.get(name, 0),
        )
        for name in sorted({*store.task_rules, *said})
    ]


def ended(store: Store, job_ids: Iterable[str]) -> dict[str, JobRecord | None]:
    found: dict[str, JobRecord | None] = {}
    for job_id in job_ids:
        row = store.jobs.get(job_id)
        if row is None or row.state.finished:
            found[job_id] = None if row is None else job_record(row)
    return found


def worker_record(holder: Holder, at: Instant) -> WorkerRecord:
    return msgspec.structs.replace(holder.record, expired=holder.expired(at), running=len(holder.leases))


def dump(store: Store) -> Dump:
    """Everything, as plain values, in a stable order."""
    return Dump(
        tables={
            "jobs": tuple(_job(row) | _beyond(row) for row in store.jobs.values()),
            "letters": tuple(_plain(store.letters[logical]) for logical in sorted(store.letters)),
            "workers": tuple(
                _plain(holder.record) | {"deadline": holder.deadline, "last_call": holder.last_call}
                for _, holder in sorted(store.workers.items())
            ),
            "queues": tuple(_plain(rule) for _, rule in sorted(store.rules.items())),
            "tasks": tuple(_plain(rule) for _, rule in sorted(store.task_rules.items())),
            "overrides": tuple(_plain(said) for said in by_scope(store.overrides)),
            "flows": tuple(_plain(flow) for flow in by_scope(store.flows)),
            "entries": tuple(_plain(entry) for _, entry in sorted(store.entries.items())),
            "pauses": tuple(_plain(pause) for pause in by_scope(store.pauses)),
            "logs": tuple(
                {"job_id": row.id, "at": line.at, "text": line.text}
                for row in store.jobs.values()
                for line in store.logs.get(row.id, ())
            ),
            "marks": tuple(
                mark_row(row.id, mark) for row in store.jobs.values() for mark in store.marks.get(row.id, ())
            ),
            "edges": tuple(_plain(edge) for edge in depending.in_order(store)),
            "steps": tuple(_plain(step) for step in remembering.in_order(store)),
            "dependents": tuple(depending.dependents(store)),
            "propagating": tuple({"parent": parent} for parent in depending.out_of_line(store)),
        }
    )


def by_scope(said: Mapping[Scope, T]) -> list[T]:
    """Pauses, overrides or flows in a stable order."""
    return [said[scope] for scope in sorted(said, key=lambda scope: tuple(part or "" for part in scope))]


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


def _job(row: Row) -> dict[str, Any]:
    plain = _plain(job_record(row))
    del plain["unreadable"]
    return plain


def _beyond(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _BEYOND}
