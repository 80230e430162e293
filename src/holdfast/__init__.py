"""Holdfast: background jobs that cannot run twice at once, vanish, wedge a group or burn retries nobody used.

The public names, sorted. This module computes nothing and imports each name on first use, so `holdfast --version`
and a producer that only needs an error class do not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import testing
    from .app import Holdfast
    from .clock import ManualClock, SystemClock
    from .context import Bury, Context, Resources, Retry, Snooze
    from .errors import (
        ArgumentsRejected,
        BackendError,
        BackendNotInstalled,
        BackendUnavailable,
        ConfigurationError,
        DuplicateJob,
        EntryNotFound,
        HoldfastError,
        JobCancelled,
        JobDied,
        JobNotFound,
        LeaseLost,
        MoveRefused,
        OutcomeUnknown,
        QueryRejected,
        QueueBusy,
        ResultGone,
        SchemaMismatch,
        StartupFailed,
        StateConflict,
        StoreReplaced,
        StoreSealed,
        TaskAlreadyRegistered,
        TaskNotRegistered,
        WaitTimedOut,
        WorkerSilent,
    )
    from .job import BoundCall, DeadLetter, Enqueued, Job
    from .lifecycle import Failure, State
    from .records import Revival
    from .retry import RetryPolicy
    from .task import Task, Tasks
    from .worker.embedded import Drained

__version__ = "0.1.0.dev0"

__all__ = [
    "ArgumentsRejected",
    "BackendError",
    "BackendNotInstalled",
    "BackendUnavailable",
    "BoundCall",
    "Bury",
    "ConfigurationError",
    "Context",
    "DeadLetter",
    "Drained",
    "DuplicateJob",
    "Enqueued",
    "EntryNotFound",
    "Failure",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobCancelled",
    "JobDied",
    "JobNotFound",
    "LeaseLost",
    "ManualClock",
    "MoveRefused",
    "OutcomeUnknown",
    "QueryRejected",
    "QueueBusy",
    "Resources",
    "ResultGone",
    "Retry",
    "RetryPolicy",
    "Revival",
    "SchemaMismatch",
    "Snooze",
    "StartupFailed",
    "State",
    "StateConflict",
    "StoreReplaced",
    "StoreSealed",
    "SystemClock",
    "Task",
    "TaskAlreadyRegistered",
    "TaskNotRegistered",
    "Tasks",
    "WaitTimedOut",
    "WorkerSilent",
    "testing",
]

_HOMES = {
    "ArgumentsRejected": ".errors",
    "BackendError": ".errors",
    "BackendNotInstalled": ".errors",
    "BackendUnavailable": ".errors",
    "BoundCall": ".job",
    "Bury": ".context",
    "ConfigurationError": ".errors",
    "Context": ".context",
    "DeadLetter": ".job",
    "Drained": ".worker.embedded",
    "DuplicateJob": ".errors",
    "Enqueued": ".job",
    "EntryNotFound": ".errors",
    "Failure": ".lifecycle",
    "Holdfast": ".app",
    "HoldfastError": ".errors",
    "Job": ".job",
    "JobCancelled": ".errors",
    "JobDied": ".errors",
    "JobNotFound": ".errors",
    "LeaseLost": ".errors",
    "ManualClock": ".clock",
    "MoveRefused": ".errors",
    "OutcomeUnknown": ".errors",
    "QueueBusy": ".errors",
    "QueryRejected": ".errors",
    "Resources": ".context",
    "ResultGone": ".errors",
    "Retry": ".context",
    "RetryPolicy": ".retry",
    "Revival": ".records",
    "SchemaMismatch": ".errors",
    "Snooze": ".context",
    "StartupFailed": ".errors",
    "State": ".lifecycle",
    "StateConflict": ".errors",
    "StoreReplaced": ".errors",
    "StoreSealed": ".errors",
    "SystemClock": ".clock",
    "Task": ".task",
    "TaskAlreadyRegistered": ".errors",
    "TaskNotRegistered": ".errors",
    "Tasks": ".task",
    "WaitTimedOut": ".errors",
    "WorkerSilent": ".errors",
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module(".testing", __name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value  # later lookups skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "testing"])
