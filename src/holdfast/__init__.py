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
    from .batches import Batch
    from .calls import Call, Failed
    from .clock import ManualClock, SystemClock
    from .context import Bury, Context, Resources, Retry, Snooze
    from .errors import (
        ArgumentsRejected as ArgumentsRejected,
    )
    from .errors import (
        BackendError,
        BackendNotInstalled,
        BackendUnavailable,
        ConfigurationError,
        CronEntryNotFound,
        DuplicateJob,
        HoldfastError,
        InvalidArguments,
        InvalidResult,
        JobCancelled,
        JobDied,
        JobNotFound,
        LeaseLost,
        MoveRefused,
        OutcomeUnknown,
        ParentNotFound,
        QueryRejected,
        QueueBusy,
        ResultGone,
        SchemaMismatch,
        SignalTimedOut,
        StartupFailed,
        StateConflict,
        StoreReplaced,
        StoreSealed,
        TaskAlreadyRegistered,
        TaskNotRegistered,
        WaitTimedOut,
        WorkerSilent,
    )
    from .flows import Flow, FlowGraph, FlowJob, FlowRun, chain, group_of
    from .job import BoundCall, DeadLetter, Enqueued, Job, result_of
    from .lifecycle import Failure, State
    from .options import RESET, UNLIMITED, Retention, Unique
    from .pull import LeasedJob
    from .records import Revival
    from .retry import RetryPolicy
    from .task import Task, TaskRouter
    from .worker.embedded import Drained

    EntryNotFound = CronEntryNotFound
    Tasks = TaskRouter

__version__ = "0.1.0.dev0"

__all__ = [
    "RESET",
    "UNLIMITED",
    "BackendError",
    "BackendNotInstalled",
    "BackendUnavailable",
    "Batch",
    "BoundCall",
    "Bury",
    "Call",
    "ConfigurationError",
    "Context",
    "CronEntryNotFound",
    "DeadLetter",
    "Drained",
    "DuplicateJob",
    "Enqueued",
    "Failed",
    "Failure",
    "Flow",
    "FlowGraph",
    "FlowJob",
    "FlowRun",
    "Holdfast",
    "HoldfastError",
    "InvalidArguments",
    "InvalidResult",
    "Job",
    "JobCancelled",
    "JobDied",
    "JobNotFound",
    "LeaseLost",
    "LeasedJob",
    "ManualClock",
    "MoveRefused",
    "OutcomeUnknown",
    "ParentNotFound",
    "QueryRejected",
    "QueueBusy",
    "Resources",
    "ResultGone",
    "Retention",
    "Retry",
    "RetryPolicy",
    "Revival",
    "SchemaMismatch",
    "SignalTimedOut",
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
    "TaskRouter",
    "Unique",
    "WaitTimedOut",
    "WorkerSilent",
    "chain",
    "group_of",
    "result_of",
    "testing",
]

_HOMES = {
    "BackendError": ".errors",
    "BackendNotInstalled": ".errors",
    "BackendUnavailable": ".errors",
    "BoundCall": ".job",
    "Bury": ".context",
    "Call": ".calls",
    "ConfigurationError": ".errors",
    "Context": ".context",
    "CronEntryNotFound": ".errors",
    "DeadLetter": ".job",
    "Drained": ".worker.embedded",
    "DuplicateJob": ".errors",
    "Enqueued": ".job",
    "Failed": ".calls",
    "Failure": ".lifecycle",
    "Batch": ".batches",
    "Flow": ".flows",
    "FlowGraph": ".flows",
    "FlowJob": ".flows",
    "FlowRun": ".flows",
    "Holdfast": ".app",
    "HoldfastError": ".errors",
    "InvalidArguments": ".errors",
    "InvalidResult": ".errors",
    "Job": ".job",
    "JobCancelled": ".errors",
    "JobDied": ".errors",
    "JobNotFound": ".errors",
    "LeaseLost": ".errors",
    "LeasedJob": ".pull",
    "ManualClock": ".clock",
    "MoveRefused": ".errors",
    "OutcomeUnknown": ".errors",
    "ParentNotFound": ".errors",
    "QueryRejected": ".errors",
    "QueueBusy": ".errors",
    "RESET": ".options.special",
    "Resources": ".context",
    "ResultGone": ".errors",
    "Retention": ".options.grouped",
    "Retry": ".context",
    "RetryPolicy": ".retry",
    "Revival": ".records",
    "SchemaMismatch": ".errors",
    "SignalTimedOut": ".errors",
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
    "TaskRouter": ".task",
    "UNLIMITED": ".options.special",
    "Unique": ".options.grouped",
    "WaitTimedOut": ".errors",
    "WorkerSilent": ".errors",
    "chain": ".flows",
    "group_of": ".flows",
    "result_of": ".job",
}


_FORMER = {  # kept for one release: old name → home, new name, and what to write
    "ArgumentsRejected": (".errors", "ArgumentsRejected", "InvalidArguments or InvalidResult"),
    "EntryNotFound": (".errors", "CronEntryNotFound", "CronEntryNotFound"),
    "Tasks": (".task", "TaskRouter", "TaskRouter"),
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module(".testing", __name__)
    if name in _FORMER:
        module, now, write = _FORMER[name]
        import_module(".names", __name__).renamed(f"holdfast.{name}", write)
        return getattr(import_module(module, __name__), now)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value  # later lookups skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "testing"])
