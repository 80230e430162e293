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
    from .batch_calls import Call, Failed
    from .batches import Batch
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
    from .leased_jobs import LeasedJob
    from .lifecycle import Failure, State
    from .options import RESET, UNLIMITED, Retention, Unique
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

_NAMES_OF = {  # module → public names
    ".app": "Holdfast",
    ".batch_calls": "Call Failed",
    ".batches": "Batch",
    ".clock": "ManualClock SystemClock",
    ".context": "Bury Context Resources Retry Snooze",
    ".errors": (
        "BackendError BackendNotInstalled BackendUnavailable ConfigurationError CronEntryNotFound DuplicateJob "
        "HoldfastError InvalidArguments InvalidResult JobCancelled JobDied JobNotFound LeaseLost MoveRefused "
        "OutcomeUnknown ParentNotFound QueryRejected QueueBusy ResultGone SchemaMismatch SignalTimedOut "
        "StartupFailed StateConflict StoreReplaced StoreSealed TaskAlreadyRegistered TaskNotRegistered "
        "WaitTimedOut WorkerSilent"
    ),
    ".flows": "Flow FlowGraph FlowJob FlowRun chain group_of",
    ".job": "BoundCall DeadLetter Enqueued Job result_of",
    ".leased_jobs": "LeasedJob",
    ".lifecycle": "Failure State",
    ".options.families": "Retention Unique",
    ".options.special": "RESET UNLIMITED",
    ".records": "Revival",
    ".retry": "RetryPolicy",
    ".task": "Task TaskRouter",
    ".worker.embedded": "Drained",
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


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
    with import_module(".lazy", __name__).uncollected():
        value = getattr(import_module(home, __name__), name)
    globals()[name] = value  # later lookups skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "testing"])
