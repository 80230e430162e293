"""The read side of the SQLite store: rows to records. Never writes.

Called by backend.py for reads, by move.py and flaws.py, and by operate.py inside its transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ...lifecycle import State
from ...records import (
    GROUP_COUNT_MAX,
    CronEntry,
    DeadLetter,
    Dump,
    Flow,
    GroupRecord,
    JobRecord,
    LetterQuery,
    LogLine,
    Mark,
    Override,
    Pause,
    QueueRecord,
    QueueRule,
    TaskRecord,
    TaskRule,
    WorkerRecord,
    mark_row,
)
from ...steps import Step
from ..reader import queue_records, task_records
from . import codec, relatives
from .codec import (
    EVERYWHERE,
    SQL,
    deaths_of,
    encoded,
    entry_of,
    failure_of,
    failures_of,
    rate_of,
    revival_of,
    scope_of,
)
from .groups import Rules

_JOB = SQL["read.job"]
_LETTER = SQL["read.letter"]
_LETTER_AND_OPTIONS = SQL["read.letter_and_options"]
_names = msgspec.json.Decoder(tuple[str, ...]).decode


_FIELDS = (
    *("seq", "id", "task", "queue", "state", "args", "priority", "group", "key", "attempts", "failures", "stalls"),
    *("max_stalls", "created_at", "due_at", "expires_at", "started_at", "finished_at", "fence", "worker", "begun"),
    *("held", "cancel_requested", "progress", "progress_text", "value", "reason", "errors", "revival", "options"),
    *("shared_stalls", "suspect", "holds_key", "key_scope", "key_until", "key_window", "due_max", "on_expire"),
    "order",
)
_ARGS = _FIELDS.index("args")


def _time(value: float) -> float:
    if not codec.is_time(value):
        raise ValueError("not a time of the calendar")
    return value


def _time_or_none(value: float | None) -> float | None:
    return None if value is None else _time(value)


def _args(value: bytes) -> bytes:
    if not value:
        raise ValueError("the arguments are gone")
    return value


_DECODERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "state": (State, State.DEAD),
    "args": (_args, b""),
    **dict.fromkeys(("created_at", "due_at"), (_time, 0.0)),
    **dict.fromkeys(("expires_at", "started_at", "finished_at"), (_time_or_none, None)),
    **dict.fromkeys(("begun", "held", "cancel_requested", "suspect", "holds_key"), (bool, False)),
    "errors": (failures_of, ()),
    "revival": (revival_of, None),
    "key_scope": (lambda place: "global" if place == EVERYWHERE else "queue", "queue"),
    "key_until": (lambda started: "started" if started else "finished", "finished"),
    "on_expire": (lambda dropped: "drop" if dropped else "bury", "bury"),
}


def record(row: Sequence[Any]) -> JobRecord:
    """A job. An unreadable field has its default and is listed in `unreadable`."""
    if type(row) is tuple and row[_ARGS]:
        with contextlib.suppress(*codec.UNREADABLE):
            return _record(row)
    return JobRecord(**codec.fields(_FIELDS, row, _DECODERS))


def _record(row: Sequence[Any]) -> JobRecord:
    (
        seq, id, task, queue, state, args, priority, group, key, attempts, failures, stalls, max_stalls, created_at,
        due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
        progress_text, value, reason, errors, revival, options, shared_stalls, suspect, holds_key, key_place,
        key_started, key_window, due_max, dropped, order,
    ) = row  # fmt: skip
    return JobRecord(
        seq=seq,
        id=id,
        task=task,
        queue=queue,
        state=State(state),
        args=args,
        priority=priority,
        group=group,
        key=key,
        attempts=attempts,
        failures=failures,
        stalls=stalls,
        max_stalls=max_stalls,
        created_at=_time(created_at),
        due_at=_time(due_at),
        expires_at=_time_or_none(expires_at),
        started_at=_time_or_none(started_at),
        finished_at=_time_or_none(finished_at),
        fence=fence,
        worker=worker,
        begun=bool(begun),
        held=bool(held),
        cancel_requested=bool(cancel_requested),
        progress=progress,
        progress_text=progress_text,
        value=value,
        reason=reason,
        errors=failures_of(errors),
        revival=revival_of(revival),
        options=options,
        shared_stalls=shared_stalls,
        suspect=bool(suspect),
        holds_key=bool(holds_key),
        key_scope="global" if key_place == EVERYWHERE else "queue",
        key_until="started" if key_started else "finished",
        key_window=key_window,
        due_max=due_max,
        on_expire="drop" if dropped else "bury",
        order=order,
    )


def get(cursor: sqlite3.Cursor, job_id: str) -> JobRecord | None:
    row = cursor.execute(f"{_JOB} WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else record(row)


def all_jobs(cursor: sqlite3.Cursor) -> list[JobRecord]:
    return [record(row) for row in cursor.execute(f"{_JOB} ORDER BY seq")]


def ended(cursor: sqlite3.Cursor, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
    """The finished ones of these jobs, and None for unknown ids."""
    asked = cursor.execute(SQL["read.ended"], (encoded(list(job_ids)).decode(),)).fetchall()
    return {
        job_id: get(cursor, job_id) if finished else None for job_id, known, finished in asked if finished or not known
    }


def _prefix_range(prefix: str) -> tuple[str, str]:
    return prefix, prefix + "\U0010ffff"


def queue_names(cursor: sqlite3.Cursor) -> Iterator[str]:
    """The queues that have jobs, from name to name without reading the jobs in between."""
    [queue] = cursor.execute(SQL["read.next_queue"], ("",)).fetchone()
    while queue is not None:
        yield queue
        [queue] = cursor.execute(SQL["read.next_queue"], (queue,)).fetchone()


def task_names(cursor: sqlite3.Cursor, queue: str | None, task: str | None) -> Iterator[tuple[str, str]]:
    """Pairs of queue and task that may have jobs, of this queue, this task or both."""
    if task is not None:
        yield from ((one, task) for one in ([queue] if queue is not None else queue_names(cursor)))
    elif queue is not None:
        [task] = cursor.execute(SQL["read.next_task"], (queue, "")).fetchone()
        while task is not None:
            yield queue, task
            [task] = cursor.execute(SQL["read.next_task"], (queue, task)).fetchone()


def count(cursor: sqlite3.Cursor, queue: str | None) -> Mapping[str, Mapping[State, int]]:
    running = dict(cursor.execute(SQL["read.count_running"]).fetchall())
    counts: dict[str, dict[State, int]] = {}
    for name in queue_names(cursor) if queue is None else [queue]:
        (_, rest), *found = cursor.execute(SQL["read.count"], {"queue": name}).fetchall()
        found.append(("running", running.get(name, 0)))
        found.append(("succeeded", rest - sum(number for _, number in found)))
        known = [(codec.read_or(None, State, state), number) for state, number in found if number]
        counted = {state: number for state, number in known if state is not None}  # flaws lists the invalid ones
        if counted:
            counts[name] = counted
    return counts


def logs(cursor: sqlite3.Cursor, job_id: str) -> list[LogLine]:
    return [LogLine(at, text) for at, text in cursor.execute(SQL["read.logs"], (job_id,))]


def marks(cursor: sqlite3.Cursor, job_id: str) -> list[Mark]:
    rows = cursor.execute(SQL["read.marks"], (job_id,)).fetchall()
    return [mark for (stored,) in rows for mark in codec.read_or((), codec.marks_of, stored)]


def _all_marks(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    rows = cursor.execute(SQL["read.all_marks"]).fetchall()
    return [mark_row(id, mark) for id, stored in rows for mark in codec.read_or((), codec.marks_of, stored)]


def _letter(row: Sequence[Any]) -> DeadLetter:
    (
        id, task, queue, key, group, args, failure_count, first_failed_at, failed_at, reason, error, history, cycles,
        revive_at, revived_at, *options,
    ) = row  # fmt: skip
    return DeadLetter(
        id=id,
        task=task,
        queue=queue,
        key=key,
        group=group,
        args=args,
        failure_count=failure_count,
        first_failed_at=first_failed_at,
        failed_at=failed_at,
        reason=reason,
        error=codec.read_or(None, failure_of, error),
        history=codec.read_or((), deaths_of, history),
        cycles=cycles,
        revive_at=revive_at,
        revived_at=revived_at,
        options=options[0] if options else None,
    )


def letter(cursor: sqlite3.Cursor, job_id: str) -> DeadLetter | None:
    row = cursor.execute(f"{_LETTER_AND_OPTIONS} WHERE job_id = ?", (job_id,)).fetchone()
    return None if row is None else _letter(row)


def letters(cursor: sqlite3.Cursor, query: LetterQuery) -> list[DeadLetter]:
    conditions: list[str] = []
    values: list[Any] = []
    for column, wanted in {"queue": query.queue, "task": query.task, "reason": query.reason}.items():
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    if query.id_prefix is not None:
        conditions.append("job_id >= ? AND job_id < ?")
        values += _prefix_range(query.id_prefix)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text = f"{_LETTER_AND_OPTIONS}{where} ORDER BY failed_at DESC, job_id LIMIT ?"
    return [_letter(row) for row in cursor.execute(text, (*values, query.limit))]


def all_letters(cursor: sqlite3.Cursor) -> list[DeadLetter]:
    return [_letter(row) for row in cursor.execute(f"{_LETTER} ORDER BY logical")]


def letters_after(cursor: sqlite3.Cursor, job_id: str, limit: int) -> list[DeadLetter]:
    """Letters by id, after that one."""
    rows = cursor.execute(f"{_LETTER} WHERE job_id > ? ORDER BY job_id LIMIT ?", (job_id, limit))
    return [_letter(row) for row in rows]


def workers(cursor: sqlite3.Cursor, steady: float, boot: str) -> list[WorkerRecord]:
    expired = {row[0] for row in cursor.execute(SQL["recover.expired"], {"steady": steady, "boot": boot})}
    return [
        WorkerRecord(
            id=id,
            host=host,
            pid=pid,
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            lease_seconds=lease_seconds,
            queues=codec.read_or((), _names, queues),
            slots=slots,
            started_at=started_at,
            renewed_at=renewed_at,
            expired=id in expired,
            isolates=bool(isolates),
            running=running,
            portrait=portrait,
        )
        for (
            id,
            host,
            pid,
            boot_id,
            pid_namespace,
            lease_seconds,
            queues,
            slots,
            started_at,
            renewed_at,
            isolates,
            running,
            portrait,
        ) in cursor.execute(SQL["read.workers"])
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Rules, overrides, buckets and pauses of queues, groups and tasks, and the dump of everything.


Said = TypeVar("Said", Pause, Override, Flow)

_PAUSE = ("reason", "by", "paused_at")  # columns of read.group_pause


def by_scope(rows: Iterable[Said]) -> list[Said]:
    """In a stable order."""
    return sorted(rows, key=lambda one: (one.queue or "", one.group or "", one.task or ""))


def pauses(cursor: sqlite3.Cursor) -> list[Pause]:
    return by_scope(
        Pause(**scope_of(kind, queue, name), reason=reason, by=by, paused_at=paused_at)
        for kind, queue, name, reason, by, paused_at in cursor.execute(SQL["pause.all"])
    )


def overrides(cursor: sqlite3.Cursor) -> list[Override]:
    return by_scope(
        Override(
            **scope_of(kind, queue, name), limit=limit, rate=rate_of(rate), apart=apart == 1 or None, weight=weight
        )
        for kind, queue, name, limit, rate, apart, weight in cursor.execute(SQL["limit.all"])
    )


def flows(cursor: sqlite3.Cursor) -> list[Flow]:
    return by_scope(
        Flow(**scope_of(kind, queue, name), spent_until=spent_until, shut_until=shut_until, wakes_at=wakes_at)
        for kind, queue, name, spent_until, shut_until, wakes_at in cursor.execute(SQL["slow_down.all"])
    )


def queue_rules(cursor: sqlite3.Cursor) -> list[QueueRule]:
    return [
        QueueRule(
            name=name,
            group_limit=max(1, group_limit),
            group_order="relaxed" if group_order == "relaxed" else "strict",  # flaws lists other values
            limit=limit,
            rate=rate_of(rate),
            group_rate=rate_of(group_rate),
            aging=aging,
            on_dead="stop" if on_dead == "stop" else "go_on",
            order_window=order_window,
            dead_queue=dead_queue,
        )
        for (
            name,
            group_limit,
            group_order,
            limit,
            rate,
            group_rate,
            aging,
            on_dead,
            order_window,
            dead_queue,
        ) in cursor.execute(SQL["read.queues"])
    ]


def task_rules(cursor: sqlite3.Cursor) -> list[TaskRule]:
    return [
        TaskRule(
            name=name,
            limit=limit,
            rate=rate_of(rate),
            apart=bool(apart),
            retain_count=retain_count,
            retain_dead=retain_dead,
            retain_dead_count=retain_dead_count,
        )
        for name, limit, rate, apart, retain_count, retain_dead, retain_dead_count in cursor.execute(SQL["read.tasks"])
    ]


def queues(cursor: sqlite3.Cursor) -> list[QueueRecord]:
    def oldest(queue: str) -> float | None:
        found: float | None = cursor.execute(SQL["read.oldest_ready"], (queue,)).fetchone()[0]
        return found

    rules, counts = queue_rules(cursor), count(cursor, None)
    return queue_records(rules, overrides(cursor), flows(cursor), pauses(cursor), counts, oldest)


def group(cursor: sqlite3.Cursor, queue: str, name: str) -> GroupRecord:
    return _group(cursor, Rules(cursor), queue, name)


def _group(cursor: sqlite3.Cursor, rules: Rules, queue: str, name: str) -> GroupRecord:
    """One state at a time: each has its own index by group, and is counted up to GROUP_COUNT_MAX."""
    paused = cursor.execute(SQL["read.group_pause"], (queue, name)).fetchone()
    counts = cursor.execute(SQL["read.group_counts"], (queue, name, GROUP_COUNT_MAX + 1)).fetchall()
    limit, rate, weight = rules.override_of(queue, name)
    bucket = rules.bucket(("group", queue, name))
    return GroupRecord(
        queue=queue,
        name=name,
        limit=rules.group_limit(queue, name),
        override=limit,
        rate=rules.group_rate(queue, name),
        rate_override=rate,
        weight=weight,
        flow=None if bucket is None else Flow(queue=queue, group=name, **bucket._asdict()),
        order=rules.order(queue, name),
        pause=None if paused is None else Pause(queue=queue, group=name, **dict(zip(_PAUSE, paused, strict=True))),
        counts={state: min(number, GROUP_COUNT_MAX) for state, number in counts if number},
        capped=tuple(state for state, number in counts if number > GROUP_COUNT_MAX),
        head=_head(cursor, queue, name),
        stopped_by=_in_play(cursor, queue, name, "dead"),
    )


def _head(cursor: sqlite3.Cursor, queue: str, name: str) -> str | None:
    """The job whose turn it is: running, else ready, else the head in its back-off, else the dead one that stops the
    group, else the next one."""
    for state in ("running", "ready", "scheduled", "dead"):
        found = _in_play(cursor, queue, name, state)
        if found is not None:
            return found
    for statement, more in (("read.group_waiting", ()), ("read.group_scheduled", (GROUP_COUNT_MAX,))):
        row = cursor.execute(SQL[statement], (queue, name, *more)).fetchone()
        if row is not None:
            return str(row[0])
    return None


def _in_play(cursor: sqlite3.Cursor, queue: str, name: str, state: str) -> str | None:
    """The first job of a group that is in play in this state."""
    row = cursor.execute(SQL["read.group_in_play"], (queue, name, state, GROUP_COUNT_MAX)).fetchone()
    return None if row is None else str(row[0])


def groups(cursor: sqlite3.Cursor, queue: str | None, limit: int) -> list[GroupRecord]:
    """From name to name, without reading the jobs in between."""
    rules = Rules(cursor)
    found: list[GroupRecord] = []
    name, of = "", queue or ""
    while len(found) < limit:
        [name] = cursor.execute(SQL["read.next_group"], (of, name)).fetchone()
        if name is not None:
            found.append(_group(cursor, rules, of, name))
            continue
        [of] = cursor.execute(SQL["read.next_group_queue"], (of,)).fetchone()
        if of is None or queue is not None:
            break
        name = ""
    return found


def waking(cursor: sqlite3.Cursor, queues: Sequence[str]) -> bool:
    return any(cursor.execute(SQL["read.waking"], (queue,)).fetchone() is not None for queue in queues)


def tasks(cursor: sqlite3.Cursor) -> list[TaskRecord]:
    running: dict[str, int] = dict(cursor.execute(SQL["read.running_tasks"]).fetchall())
    return task_records(task_rules(cursor), overrides(cursor), flows(cursor), lambda name: running.get(name, 0))


_BEYOND = ("token", "turn", "rank", "lane", "claim_call", "prune_at")


def dump(cursor: sqlite3.Cursor) -> Dump:
    """Everything, as plain values, in the shape of the records."""
    beyond = cursor.execute(SQL["read.job_beyond"]).fetchall()
    deadlines = {row[0]: row[1:] for row in cursor.execute(SQL["read.worker_beyond"])}
    # Whether a worker has expired depends on the time of the query; a dump must stay the same until something is
    # written.
    shown = [msgspec.structs.replace(one, running=0) for one in workers(cursor, float("-inf"), "")]
    tables: dict[str, list[dict[str, Any]]] = {
        "jobs": [
            _job(job) | dict(zip(_BEYOND, more, strict=True))
            for job, more in zip(all_jobs(cursor), beyond, strict=True)
        ],
        "letters": _all_plain(all_letters(cursor)),
        "workers": [
            _plain(one) | dict(zip(("deadline", "last_call"), deadlines[one.id], strict=True))
            for one in sorted(shown, key=lambda one: one.id)
        ],
        "queues": _all_plain(queue_rules(cursor)),
        "tasks": _all_plain(task_rules(cursor)),
        "overrides": _all_plain(overrides(cursor)),
        "flows": _all_plain(flows(cursor)),
        "entries": _all_plain(entries(cursor)),
        "pauses": _all_plain(pauses(cursor)),
        "logs": [
            {"job_id": job_id, "at": at, "text": text} for job_id, at, text in cursor.execute(SQL["read.all_logs"])
        ],
        "marks": _all_marks(cursor),
        "edges": _all_plain(relatives.edges(cursor)),
        "steps": _all_plain(steps_after(cursor)),
    }
    tables["dependents"], tables["propagating"] = relatives.tables(cursor)
    pending = cursor.execute(SQL["rearrange.pending"]).fetchone() is not None
    return Dump(tables={name: tuple(rows) for name, rows in tables.items()}, rearranging=pending)


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return plain


def _job(job: JobRecord) -> dict[str, Any]:
    plain = _plain(job)
    del plain["unreadable"]
    return plain


def steps(cursor: sqlite3.Cursor, job_id: str) -> list[Step]:
    return [_step(row) for row in cursor.execute(SQL["steps.of_job"], (job_id,))]


def steps_after(cursor: sqlite3.Cursor, place: tuple[str, str, str] = ("", "", ""), limit: int = -1) -> list[Step]:
    """By job, kind and name."""
    return [_step(row) for row in cursor.execute(SQL["steps.after"], (*place, limit))]


def _step(row: tuple[Any, ...]) -> Step:
    return Step(**dict(zip(Step.__struct_fields__, row, strict=True)))


def _all_plain(records: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [_plain(record) for record in records]


def entries(cursor: sqlite3.Cursor) -> list[CronEntry]:
    """The readable entries; flaws lists the others."""
    found = [codec.read_or(None, entry_of, row[0]) for row in cursor.execute(SQL["tick.all"])]
    return [entry for entry in found if entry is not None]
