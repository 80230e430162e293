"""Jobs, letters, queues and workers as JSON: the documents of --json.

Called by the commands. Pure. Times are ISO 8601 in UTC; names are those of the Python API.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec
from msgspec import UNSET

from ..codec import decode_plain
from ..cron.api import Entry
from ..dependencies import Relative, Relatives
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
    value = None if step.value is None else decode_plain(step.value)
    return _document(step, "kind name number value until at fence", value=value, until=iso(step.until), at=iso(step.at))


def job_document(job: Job[Any]) -> dict[str, Any]:
    """A job in full."""
    return _document(
        job,
        "id task queue state priority group order key args headers attempts failures stalls shared_stalls suspect "
        "created_at due_at expires_at started_at finished_at progress progress_text value reason errors worker fence "
        "cancel_requested unreadable",
        args=plain(job.args),
        value=plain(job.value),
        errors=[error_document(error) for error in job.errors],
    )


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
    history = [_document(past, "job_id at reason error", at=iso(past.at)) for past in letter.history]
    return _document(
        letter,
        "id task queue tags key group args failure_count first_failed_at failed_at reason error history cycles "
        "revive_at revived_at",
        args=plain(letter.args),
        error=None if letter.error is None else error_document(letter.error),
        history=history,
    )


def error_document(error: Failure) -> dict[str, Any]:
    return _document(error, "at reason type text traceback attempt worker", at=iso(error.at))


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
        "dead_queue": queue.dead_queue,
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
    return _document(
        entry,
        "name task queue args cron every tz overlap catch_up window jitter chooser starts_at ends_at ticks offset skip "
        "ended next_at last_at last_job fired skipped created_at declared declared_at in_code paused_at paused_by "
        "pause_reason",
        args=plain(entry.args),
        in_code=in_code,
    )


def group_document(group: GroupRecord) -> dict[str, Any]:
    return _document(
        group,
        "queue name limit override rate rate_override weight wakes_at order pause counts capped head stopped_by",
        rate=rate_word(group.rate),
        rate_override=rate_word(group.rate_override),
        wakes_at=iso(None if group.flow is None else group.flow.wakes_at),
        pause=pause_document(group.pause),
        counts=dict(group.counts),
    )


def pause_document(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    document = _document(pause, "queue group task reason by paused_at", paused_at=iso(pause.paused_at))
    return {name: value for name, value in document.items() if value is not None}


def worker_document(worker: WorkerRecord) -> dict[str, Any]:
    status = read(worker.portrait) or WorkerStatus()
    return {
        **_document(
            worker,
            "id host pid queues slots isolates running lease_seconds started_at renewed_at expired",
            started_at=iso(worker.started_at),
            renewed_at=iso(worker.renewed_at),
        ),
        **_document(status, "slots_from paused batches catch_all priority name"),
        "runners": msgspec.to_builtins(status.runners),
        "runners_left_out": status.left_out,
    }


def plain(value: Any) -> Any:
    """Rebuilt arguments (dataclasses, datetimes, …) as JSON values again; anything JSON lacks becomes text."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def _document(source: object, names: str, **different: Any) -> dict[str, Any]:
    """The attributes of these names, in this order; what is `different` is not read from the source."""
    return {name: different[name] if name in different else _value(getattr(source, name)) for name in names.split()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value


def history_document(entry: HistoryEntry) -> dict[str, Any]:
    """One entry of a job's timeline."""
    return {**msgspec.to_builtins(entry), "at": iso(entry.at.timestamp())}
