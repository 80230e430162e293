"""Copies log records made by handlers into their jobs' logs, and adds the job's fields to the records.

Used by every worker, embedded or with processes, while it runs handlers. It wraps the record factory of the logging
module, so it sees every record that passes its logger's level, whatever handlers the program has. It adds none: a
program that has not set up logging keeps Python's default.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

from ...context import CURRENT, error_text

JOB_FIELDS = {
    "holdfast_job": "job_id",
    "holdfast_task": "task",
    "holdfast_queue": "queue",
    "holdfast_attempt": "attempt",
}  # a record's attribute → the field that formats show

Factory = Callable[..., logging.LogRecord]

_guard = Lock()
_users = 0
_before: Factory = logging.LogRecord


def message_of(record: logging.LogRecord) -> str:
    """The record's text. structlog hands over a dict: its event, then the rest as name=value."""
    if isinstance(record.msg, dict):
        rest = [f"{name}={value}" for name, value in record.msg.items() if not (name == "event" or name[0] == "_")]
        return " ".join([str(record.msg.get("event", "")), *rest])
    return record.getMessage()


class LogCapture:
    """Captures while entered; entering it again, from several workers, counts."""

    def __enter__(self) -> None:
        global _users, _before
        with _guard:
            _users += 1
            if _users == 1:
                _before = logging.getLogRecordFactory()
                logging.setLogRecordFactory(_ToJobs(_before))

    def __exit__(self, *_: object) -> None:
        global _users
        with _guard:
            _users -= 1
            if not _users and isinstance(logging.getLogRecordFactory(), _ToJobs):  # else somebody wrapped it again
                logging.setLogRecordFactory(_before)


class _ToJobs:
    """A record factory: the one before it, then the job's own log."""

    def __init__(self, before: Factory) -> None:
        self._before = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._before(*args, **kwargs)
        context = CURRENT.get()
        if context is None:
            record.holdfast_job = record.holdfast_task = record.holdfast_queue = ""
            record.holdfast_attempt = 0
            return record
        record.holdfast_job, record.holdfast_task = context.id, context.task
        record.holdfast_queue, record.holdfast_attempt = context.queue, context.attempt
        if not record.name.startswith("holdfast"):
            context.log(_line(record))
        return record


def _line(record: logging.LogRecord) -> str:
    """`WARNING shop.mail: text (ValueError: why)`."""
    try:
        text = message_of(record)
    except Exception:  # the format and its arguments do not fit: logging reports it
        text = str(record.msg)
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    why = f" ({type(error).__name__}: {error_text(error)})" if error is not None else ""
    return f"{record.levelname} {record.name}: {text}{why}"
