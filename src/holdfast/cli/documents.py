"""Jobs, letters, queues and workers as JSON: the documents of --json.

Called by the commands. Pure. Times are ISO 8601 in UTC; names are those of the Python API.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from ..codec import decode_plain
from ..cron.api import Entry
from ..edges import Relative, Relatives
from ..inspection.explain import limit_in_force, rate_in_force
from ..inspection.failures import Failures
from ..inspection.history import HistoryEntry
from ..job import DeadLetter, Job
from ..lifecycle import Failure
from ..rates import Rate
from ..records import Flow, GroupRecord, Override, Pause, QueueRecord, TaskRecord, WorkerRecord
from ..steps import Step
from ..worker_status import WorkerStatus, read
from .parse import iso
from .parse_limits import limit_word


def relatives_document(found: Relatives) -> dict[str, Any]:
    """The jobs that a job waits for, and those that wait for it."""
    return {
        "parents": [_relative(one) for one in found.parents],
        "children": [_relative(one) for one in found.children],
        "parents_pending": found.pending,
        "more_relatives": found.more,
    }


def _relative(one: Relative) -> dict[str, Any]:
    return {"id": one.id, "task": one.task, "state": one.state.value, "status": one.status}


def step_document(step: Step) -> dict[str, Any]:
    """What a job remembers, with its value."""
    return {
        "kind": step.kind,
        "name": step.name,
        "number": step.number,
        "value": None if step.value is None else decode_plain(step.value),
        "until": None if step.until is None else iso(step.until),
        "at": iso(step.at),
        "fence": step.fence,
    }


def job_document(job: Job[Any]) -> dict[str, Any]:
    """A job in full."""
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state.value,
        "priority": job.priority,
        "group": job.group,
        "order": job.order,
        "key": job.key,
        "args": plain(job.args),
        "headers": job.headers,
        "attempts": job.attempts,
        "failures": job.failures,
        "stalls": job.stalls,
        "shared_stalls": job.shared_stalls,
        "suspect": job.suspect,
        "created_at": _at(job.created_at),
        "due_at": _at(job.due_at),
        "expires_at": _at(job.expires_at),
        "started_at": _at(job.started_at),
        "finished_at": _at(job.finished_at),
        "progress": job.progress,
        "progress_text": job.progress_text,
        "value": plain(job.value),
        "reason": job.reason,
        "errors": [error_document(error) for error in job.errors],
        "worker": job.worker,
        "fence": job.fence,
        "cancel_requested": job.cancel_requested,
        "unreadable": list(job.unreadable),
    }


def failures_document(found: Failures) -> dict[str, Any]:
    """Dead letters grouped by cause."""
    return {
        "letters": found.letters,
        "capped": found.capped,
        "kinds": [
            {
                "task": kind.task,
                "error": kind.name,
                "where": kind.place,
                "letters": kind.letters,
                "deaths": kind.deaths,
                "first_failed_at": iso(kind.first),
                "failed_at": iso(kind.last),
                "trend": kind.trend,
                "letters_by_hour": kind.hours,
                "ids": kind.ids,
            }
            for kind in found.kinds
        ],
    }


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter in full."""
    return {
        "id": letter.id,
        "task": letter.task,
        "queue": letter.queue,
        "tags": list(letter.tags),
        "key": letter.key,
        "group": letter.group,
        "args": plain(letter.args),
        "failure_count": letter.failure_count,
        "first_failed_at": _at(letter.first_failed_at),
        "failed_at": _at(letter.failed_at),
        "reason": letter.reason,
        "error": None if letter.error is None else error_document(letter.error),
        "history": [
            {"job_id": past.job_id, "at": iso(past.at), "reason": past.reason, "error": past.error}
            for past in letter.history
        ],
        "cycles": letter.cycles,
        "revive_at": _at(letter.revive_at),
        "revived_at": _at(letter.revived_at),
    }


def error_document(error: Failure) -> dict[str, Any]:
    return {
        "at": iso(error.at),
        "reason": error.reason,
        "type": error.type,
        "text": error.text,
        "traceback": error.traceback,
        "attempt": error.attempt,
        "worker": error.worker,
    }


def queue_document(queue: QueueRecord) -> dict[str, Any]:
    return {
        "name": queue.name,
        "group_limit": queue.group_limit,
        "group_order": queue.group_order,
        "group_rate": rate_word(queue.group_rate),
        "aging": None if queue.order == "lifo" else queue.aging,
        "order": queue.order,
        "on_dead": queue.on_dead,
        "order_window": queue.order_window,
        "declared": queue.declared,
        **limits_document(queue.limit, queue.rate, queue.override, queue.flow),
        "pause": pause_document(queue.pause),
        "counts": dict(queue.counts),
        "oldest_due_at": iso(queue.oldest_due_at),
    }


def task_document(task: TaskRecord) -> dict[str, Any]:
    """A task as stored."""
    rule = task.rule
    return {
        "name": rule.name,
        "declared": task.declared,
        **limits_document(rule.limit, rule.rate, task.override, task.flow),
        "running": task.running,
        "apart": rule.apart,
        "retain_count": rule.retain_count,
        "retain_dead": rule.retain_dead,
        "retain_dead_count": rule.retain_dead_count,
    }


def limits_document(
    limit: int | None, rate: Rate | None, override: Override | None, flow: Flow | None
) -> dict[str, Any]:
    """What the code declares, what an operator set ("none": lifted), what is in force, and the end of a slow-down."""
    said = None
    if override is not None:
        said = {
            "limit": None if override.limit is UNSET else limit_word(override.limit) or None,
            "rate": None if override.rate is UNSET else rate_word(override.rate),
        }
    in_force = {"limit": limit_in_force(limit, override), "rate": rate_word(rate_in_force(rate, override))}
    slowed_until = iso(flow.shut_until if flow is not None and flow.shut_until else None)
    return {
        "limit": limit,
        "rate": rate_word(rate),
        "override": said,
        "in_force": in_force,
        "slowed_until": slowed_until,
    }


def rate_word(rate: Rate | None) -> str | None:
    """A rate as users write it."""
    return None if rate is None else str(rate)


def entry_document(entry: Entry, in_code: bool | None) -> dict[str, Any]:
    """A cron entry in full."""
    return {
        "name": entry.name,
        "task": entry.task,
        "queue": entry.queue,
        "args": plain(entry.args),
        "cron": entry.cron,
        "every": entry.every,
        "tz": entry.tz,
        "overlap": entry.overlap,
        "catch_up": entry.catch_up,
        "window": entry.window,
        "jitter": entry.jitter,
        "chooser": entry.chooser,
        "starts_at": _at(entry.starts_at),
        "ends_at": _at(entry.ends_at),
        "ticks": entry.ticks,
        "offset": entry.offset,
        "skip": list(entry.skip),
        "ended": entry.ended,
        "next_at": _at(entry.next_at),
        "last_at": _at(entry.last_at),
        "last_job": entry.last_job,
        "fired": entry.fired,
        "skipped": entry.skipped,
        "created_at": _at(entry.created_at),
        "declared": entry.declared,
        "declared_at": _at(entry.declared_at),
        "in_code": in_code,
        "paused_at": _at(entry.paused_at),
        "paused_by": entry.paused_by,
        "pause_reason": entry.pause_reason,
    }


def group_document(group: GroupRecord) -> dict[str, Any]:
    return {
        "queue": group.queue,
        "name": group.name,
        "limit": group.limit,
        "override": group.override,
        "rate": rate_word(group.rate),
        "rate_override": rate_word(group.rate_override),
        "weight": group.weight,
        "wakes_at": iso(None if group.flow is None else group.flow.wakes_at),
        "order": group.order,
        "pause": pause_document(group.pause),
        "counts": dict(group.counts),
        "capped": list(group.capped),
        "head": group.head,
        "stopped_by": group.stopped_by,
    }


def pause_document(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    document: Mapping[str, Any] = {
        "queue": pause.queue,
        "group": pause.group,
        "task": pause.task,
        "reason": pause.reason,
        "by": pause.by,
        "paused_at": iso(pause.paused_at),
    }
    return {name: value for name, value in document.items() if value is not None}


def worker_document(worker: WorkerRecord) -> dict[str, Any]:
    portrait = read(worker.portrait) or WorkerStatus()
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "slots": worker.slots,
        "slots_from": portrait.slots_from,
        "isolates": worker.isolates,
        "running": worker.running,
        "lease_seconds": worker.lease_seconds,
        "started_at": iso(worker.started_at),
        "renewed_at": iso(worker.renewed_at),
        "expired": worker.expired,
        "paused": portrait.paused,
        "batches": portrait.batches,
        "catch_all": portrait.catch_all,
        "priority": portrait.priority,
        "name": portrait.name,
        "runners": msgspec.to_builtins(portrait.runners),
        "runners_left_out": portrait.left_out,
    }


def plain(value: Any) -> Any:
    """Rebuilt arguments (dataclasses, datetimes, …) as JSON values again; anything JSON lacks becomes text."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def _at(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def history_document(entry: HistoryEntry) -> dict[str, Any]:
    """One entry of a job's timeline."""
    return {**msgspec.to_builtins(entry), "at": iso(entry.at.timestamp())}
