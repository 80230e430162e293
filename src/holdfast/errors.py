"""Every error Holdfast raises, in one tree.

Raised everywhere; imports nothing of ours. These classes never log, and their messages never contain arguments,
results or URL passwords. A message states what happened, why, and what to do next; the facts are attributes.

    HoldfastError
    ├── ConfigurationError          a wrong option, URL, name or task definition        (also ValueError)
    │   ├── TaskNotRegistered
    │   ├── TaskAlreadyRegistered
    │   ├── QueryRejected           a query that cannot be parsed: names the column
    │   └── BackendNotInstalled     names the extra to install
    ├── StartupFailed               a function of app.on_startup raised
    ├── ArgumentsRejected           arguments or a result that cannot be stored         (also ValueError)
    │   ├── InvalidArguments        cannot be bound, encoded, or too large
    │   └── InvalidResult           a handler's result cannot be encoded, or is too large
    ├── JobNotFound                                                                     (also LookupError)
    │   └── ParentNotFound          the job to wait for is not in the store
    ├── CronEntryNotFound           no cron entry has that name                         (also LookupError)
    ├── StateConflict               the job's state forbids the verb
    ├── DuplicateJob                the key is taken by a live job
    ├── LeaseLost                   a write about a lease that is no longer ours
    ├── WaitTimedOut                a result did not come in time                       (also TimeoutError)
    ├── StepsChanged                a handler runs different steps than its earlier attempts
    ├── SignalTimedOut              a signal did not come in time                       (also TimeoutError)
    ├── ResultGone                  the job finished and was pruned
    ├── JobDied                     the awaited job is dead
    ├── JobCancelled                the awaited job was cancelled
    ├── OutcomeUnknown              the call may or may not have taken effect
    ├── MoveRefused                 two stores cannot be moved as asked
    └── BackendError                the store failed; the driver's error is the cause
        ├── BackendUnavailable      safe to try again
        ├── SchemaMismatch          the store's schema is older or newer than this version's
        └── StoreSealed             the store accepts no work: it is being moved, or was moved
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Base class of all Holdfast errors."""


class ConfigurationError(HoldfastError, ValueError):
    """An option, URL, name or task definition is wrong; nothing was done."""


class TaskNotRegistered(ConfigurationError):
    """No task of that name is registered with this app."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.name, self.known = name, known
        near = f" Registered: {', '.join(sorted(known)[:8])}." if known else " No task is registered."
        super().__init__(f"no task named {name!r} is registered.{near} Import the module that defines it.")


class TaskAlreadyRegistered(ConfigurationError):
    """Two tasks are registered under the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a task named {name!r} is already registered. Give one of them another name=.")


class QueryRejected(ConfigurationError):
    """A query cannot be parsed or answered; `column` counts from 1, `suggestion` is a likely correction."""

    def __init__(self, why: str, column: int | None = None, suggestion: str | None = None) -> None:
        self.why, self.column, self.suggestion = why, column, suggestion
        place = "" if column is None else f" (column {column})"
        super().__init__(f"{why}{place}{f' Did you mean {suggestion}?' if suggestion else ''}")


class BackendNotInstalled(ConfigurationError):
    """The URL names a backend whose driver is not installed, or that this version does not support."""

    def __init__(self, scheme: str, advice: str) -> None:
        self.scheme = scheme
        super().__init__(f"the backend for {scheme}:// is not available. {advice}")


class StartupFailed(HoldfastError):
    """A startup function raised, so this process takes no jobs."""

    def __init__(self, function: str, kind: str, text: str = "") -> None:
        self.function, self.kind, self.text = function, kind, text
        super().__init__(
            f"the startup function {function} failed: {f'{kind}: {text}' if text else kind}. This process takes no "
            "jobs. Fix the cause."
        )


class ArgumentsRejected(HoldfastError, ValueError):
    """Base class of InvalidArguments and InvalidResult, and their former name."""

    what = "arguments"

    def __init__(self, task: str, why: str) -> None:
        self.task, self.why = task, why
        super().__init__(f"{self.what} of {task!r} rejected: {why}")


class InvalidArguments(ArgumentsRejected):
    """The arguments cannot be bound, encoded or are too large; nothing was stored."""


class InvalidResult(ArgumentsRejected):
    """A handler returned a value that cannot be encoded or is too large; the attempt failed."""

    what = "result"


class JobNotFound(HoldfastError, LookupError):
    """No job has that id, or it was pruned."""

    def __init__(self, job_id: str, what: str = "job") -> None:
        self.job_id = job_id
        super().__init__(f"no {what} {job_id!r}. It may have been pruned; `holdfast jobs` lists the existing ones.")


class ParentNotFound(JobNotFound):
    """The store does not have the parent that a job should wait for; nothing was stored."""

    def __init__(self, parent_id: str, child_id: str) -> None:
        HoldfastError.__init__(
            self,
            f"job {child_id} should wait for job {parent_id!r}, which is not in the store: it was never stored, or it "
            "was pruned. Store the parent first, or in the same enqueue_many().",
        )
        self.job_id = self.parent_id = parent_id
        self.child_id = child_id


class CronEntryNotFound(HoldfastError, LookupError):
    """No cron entry has that name, or it was removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"no cron entry {name!r}. `holdfast cron ls` lists the existing ones; a worker stores those of its code "
            "when it starts."
        )


def command_of(verb: str) -> str:
    """A verb as people read it, in messages and on the command line: run-now, not run_now."""
    return verb.replace("_", "-")


class StateConflict(HoldfastError):
    """The job's state forbids the verb; nothing was changed."""

    def __init__(self, job_id: str, verb: str, state: str, advice: str = "", live_id: str | None = None) -> None:
        self.job_id, self.verb, self.state, self.live_id = job_id, verb, state, live_id
        text = f"cannot {command_of(verb)} job {job_id}: it is {state}."
        if live_id is not None:
            text = f"cannot {command_of(verb)} job {job_id}: its key is held by job {live_id}."
        super().__init__(f"{text} {advice}".rstrip())


class DuplicateJob(HoldfastError):
    """Another job holds this key and on_conflict is "raise"; nothing was stored."""

    def __init__(self, key: str, existing_id: str) -> None:
        self.key, self.existing_id = key, existing_id
        super().__init__(f"job {existing_id} holds the key {key!r}. Use on_conflict='keep' to accept it.")


class LeaseLost(HoldfastError):
    """The given lease is not the current one; nothing was changed."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"the lease on job {job_id} is no longer ours. Stop its handler; its outcome was not recorded."
        )


class WaitTimedOut(HoldfastError, TimeoutError):
    """The job did not finish within the timeout; it continues. `why` is set if no worker will run it."""

    def __init__(self, job_id: str, seconds: float, state: str, why: str = "") -> None:
        self.job_id, self.seconds, self.state, self.why = job_id, seconds, state, why
        more = why or f"See `holdfast explain {job_id}`."
        super().__init__(f"job {job_id} is still {state} after {seconds:g} s. {more}")


class StepsChanged(HoldfastError):
    """The handler runs different steps than in its earlier attempts: its code changed before the job finished."""

    def __init__(self, job_id: str, number: int, stored: str | None, called: str | None) -> None:
        self.job_id, self.number, self.stored, self.called = job_id, number, stored, called
        was = "nothing is stored there" if stored is None else f"an earlier attempt stored {stored}"
        now = "the handler returned without it" if called is None else f"the handler called {called}"
        super().__init__(
            f"job {job_id}, step number {number}: {was}, but {now}. Steps must come in the same order under the same "
            "names in every attempt; use ctx.version(…) where the code has changed, or deploy the old code."
        )


class SignalTimedOut(HoldfastError, TimeoutError):
    """The signal that a job waited for did not come in time."""

    def __init__(self, signal: str, seconds: float | None) -> None:
        self.signal, self.seconds = signal, seconds
        within = "in time" if seconds is None else f"within {seconds:g} s"
        super().__init__(f"signal {signal!r} did not come {within}. Catch this, or give wait_for(default=…).")


class ResultGone(HoldfastError, LookupError):
    """The job finished, but its record has been pruned."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} is gone: it was never enqueued here, was pruned, or was removed as it succeeded. "
            "Raise its task's retain=, or leave out remove=."
        )


class JobDied(HoldfastError):
    """The awaited job is dead."""

    def __init__(self, job_id: str, reason: str, error: str | None) -> None:
        self.job_id, self.reason, self.error = job_id, reason, error
        tail = f": {error}" if error else ""
        super().__init__(f"job {job_id} is dead ({reason}){tail}. See `holdfast dead show {job_id}`.")


class JobCancelled(HoldfastError):
    """The awaited job was cancelled."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} was cancelled.")


_REPEATED = {  # verbs that may have a further effect when repeated
    "retry": "Look at the job first: a repeated retry runs it once more if it has finished meanwhile.",
    "revive": "Look at the job first: a repeated revive runs it once more if it has died meanwhile.",
}


class OutcomeUnknown(HoldfastError):
    """The call was sent but no reply arrived: it may or may not have taken effect."""

    def __init__(self, verb: str, advice: str = "") -> None:
        self.verb = verb
        advice = advice or _REPEATED.get(verb, "Repeat the same call: it takes effect at most once.")
        super().__init__(f"no reply to {command_of(verb)}: it may or may not have taken effect. {advice}")


class WorkerSilent(HoldfastError, TimeoutError):
    """A worker did not reply to a command in time. It carries it out at its next renewal, unless it is gone."""

    def __init__(self, worker: str, ask: str, seconds: float) -> None:
        self.worker, self.ask, self.seconds = worker, ask, seconds
        super().__init__(
            f"worker {worker} has not answered {ask} within {seconds:g} s. It receives the command with its next "
            "renewal; `holdfast workers` shows when it last renewed."
        )


class QueueBusy(HoldfastError):
    """Jobs of the queue are running, and the operation must not run at the same time. Nothing was deleted."""

    def __init__(self, queue: str, running: int) -> None:
        self.queue, self.running = queue, running
        super().__init__(
            f"queue {queue!r} has {running} running jobs. Wait until they end, or pass a time to wait for them; cancel "
            "asks them to stop."
        )


class MoveRefused(HoldfastError):
    """The requested move is not possible now. `leases` is the number of jobs still running."""

    def __init__(self, why: str, leases: int = 0) -> None:
        self.why, self.leases = why, leases
        super().__init__(f"the move is refused: {why}")


class BackendError(HoldfastError):
    """The store failed."""


class BackendUnavailable(BackendError):
    """The store cannot be reached or is busy; nothing was changed; safe to retry."""


class StoreReplaced(BackendUnavailable):
    """A SQLite file was deleted, moved or replaced while this process had it open; nothing was changed."""

    def __init__(self, name: str, *, gone: bool) -> None:
        self.name, self.gone = name, gone
        what = "was deleted or moved" if gone else "was replaced by another file"
        advice = "Put the file back" if gone else "If the new file is the right one, stop every process that uses it"
        super().__init__(
            f"{name} {what} while it was in use: nothing more is written, because it would be lost. {advice}, then "
            "start again."
        )


class SchemaMismatch(BackendError):
    """The store's schema is not the one this version uses."""

    def __init__(self, found: int, expected: int, advice: str = "Run `holdfast migrate` with this version.") -> None:
        """`advice` is what to do when the store's schema is older."""
        self.found, self.expected = found, expected
        if found > expected:
            advice = "Upgrade holdfast on this machine."
        super().__init__(f"the store has schema {found}, this version needs {expected}. {advice}")


_SEALED = {
    ("source", "moving"): (
        "it is being moved to {other}. Wait until the move has ended, then use that store; or end the move with "
        "`holdfast move … --abandon`."
    ),
    ("source", "moved"): "its jobs were moved to {other}. Use that store: name it in HOLDFAST_URL or in the app.",
    ("target", "moving"): (
        "a move from {other} into it is unfinished. Run the same `holdfast move` again: it continues where it stopped."
    ),
    ("target", "abandoned"): "it holds a part of an abandoned move from {other}. Delete it, or use another store.",
}


class StoreSealed(BackendError):
    """The store accepts and starts no work because it is one side of a move. Nothing was changed."""

    def __init__(self, role: str, stage: str, other: str) -> None:
        self.role, self.stage, self.other = role, stage, other
        self.why = _SEALED[role, stage].format(other=other)
        super().__init__(f"the store is sealed and nothing was changed: {self.why}")


def __getattr__(name: str) -> Any:
    if name == "EntryNotFound":
        from .names import renamed

        renamed("EntryNotFound", "CronEntryNotFound")
        return CronEntryNotFound
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
