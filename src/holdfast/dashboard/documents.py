"""The documents of the JSON API: one struct per kind, and how it is built from the store's records.

Called by api.py. The schemas in /api/openapi.json describe these structs. Arguments, results, errors' texts and
logs are None for a visitor without the role payload; secrets are hidden as on the pages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import Struct

from ..cron.api import Entry
from ..inspection.failures import FailureKind
from ..inspection.machine import Finding
from ..job import DeadLetter, Job
from ..lifecycle import Failure, State
from ..records import GroupRecord, QueueRecord, WorkerRecord
from ..worker_status import WorkerStatus, read
from .gates import Gate
from .visit import Visit

D = TypeVar("D", bound=Struct)


class ErrorDocument(Struct, frozen=True, kw_only=True):
    """One failure, stall or timeout of an attempt."""

    at: datetime
    reason: str
    type: str
    text: str | None
    traceback: str | None
    attempt: int
    fence: int
    worker: str | None


class JobDocument(Struct, frozen=True, kw_only=True):
    """A job."""

    id: str
    task: str
    queue: str
    state: State
    priority: int
    group: str | None
    key: str | None
    args: dict[str, Any] | None
    headers: dict[str, str] | None
    attempts: int
    failures: int
    stalls: int
    created_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    reason: str | None
    worker: str | None
    fence: int
    error: ErrorDocument | None  # the latest


class JobsDocument(Struct, frozen=True, kw_only=True):
    """A page of jobs. Continue with `after`; None: these were the last."""

    jobs: list[JobDocument]
    after: str | None
    scanned: int
    sorted_all: bool


class LogDocument(Struct, frozen=True, kw_only=True):
    """A line of a job's log."""

    at: datetime
    text: str | None


class GateDocument(Struct, frozen=True, kw_only=True):
    """One condition an unstarted job must meet."""

    name: str
    text: str
    open: bool | None
    at: datetime | None


class WholeJobDocument(Struct, frozen=True, kw_only=True):
    """A job with why it is where it is, its errors and its log."""

    job: JobDocument
    summary: str
    reasons: list[str] | None
    next: list[str]
    gates: list[GateDocument]
    errors: list[ErrorDocument]
    value: Any
    log: list[LogDocument]


class TallyDocument(Struct, frozen=True, kw_only=True):
    """How many jobs match a query; `complete` is false where a bound was reached."""

    total: int
    groups: dict[str, int]
    scanned: int
    complete: bool


class FindingDocument(Struct, frozen=True, kw_only=True):
    """A result of doctor's checks."""

    about: str
    verdict: str
    text: str
    next: str


class OverviewDocument(Struct, frozen=True, kw_only=True):
    """Jobs by state, workers, and what is wrong."""

    counts: dict[str, int]
    workers: int
    slots: int
    running: int
    findings: list[FindingDocument]


class KindDocument(Struct, frozen=True, kw_only=True):
    """Dead letters with the same cause."""

    task: str
    name: str
    place: str
    letters: int
    deaths: int
    first: datetime
    last: datetime
    trend: str
    hours: list[int]


class FailuresDocument(Struct, frozen=True, kw_only=True):
    """Every kind of failure, the most frequent first."""

    kinds: list[KindDocument]
    letters: int
    capped: bool


class LetterDocument(Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: str
    task: str
    queue: str
    key: str | None
    group: str | None
    args: dict[str, Any] | None
    failure_count: int
    first_failed_at: datetime
    failed_at: datetime
    reason: str
    error: ErrorDocument | None
    revive_at: datetime | None
    revived_at: datetime | None


class PauseDocument(Struct, frozen=True, kw_only=True):
    """A pause."""

    reason: str
    by: str
    at: datetime


class QueueDocument(Struct, frozen=True, kw_only=True):
    """A queue with its jobs by state."""

    name: str
    counts: dict[str, int]
    oldest_due_at: datetime | None
    limit: int | None
    rate: str | None
    declared: bool
    overridden: bool
    pause: PauseDocument | None
    workers: int


class GroupDocument(Struct, frozen=True, kw_only=True):
    """A group: its limit, its jobs in play, and whose turn it is. `capped` names states counted only in part."""

    queue: str
    name: str
    order: str
    limit: int
    counts: dict[str, int]
    capped: list[str]
    head: str | None
    stopped_by: str | None
    pause: PauseDocument | None


class TaskDocument(Struct, frozen=True, kw_only=True):
    """A task; its signature if the dashboard was given the app."""

    name: str
    signature: str | None
    queue: str | None
    running: int
    limit: int | None
    rate: str | None
    pause: PauseDocument | None


class EntryDocument(Struct, frozen=True, kw_only=True):
    """A cron entry."""

    name: str
    task: str
    queue: str
    cron: str | None
    every: float | None
    tz: str
    next_at: datetime | None
    ended: bool
    last_at: datetime | None
    last_job: str | None
    fired: int
    skipped: int
    paused_at: datetime | None
    paused_by: str


class WorkerDocument(Struct, frozen=True, kw_only=True):
    """A worker."""

    id: str
    host: str
    pid: int
    queues: list[str]
    slots: int
    running: int
    lost: bool
    started_at: datetime | None
    renewed_at: datetime | None
    name: str = ""


class SystemDocument(Struct, frozen=True, kw_only=True):
    """The store and the results of its checks."""

    version: str
    store: str
    schema: int | None  # its version; null in memory
    size_bytes: int | None  # of the file or the tables; of all that a Redis server holds
    now: datetime
    checks: list[FindingDocument]


# ----------------------------------------------------------------------------------------------------------------------


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _copied(kind: type[D], source: object, **different: Any) -> D:
    """A document with the attributes of its fields' names; what is `different` is not read from the source."""
    fields = kind.__struct_fields__
    return kind(**{name: different[name] if name in different else getattr(source, name) for name in fields})


def error_document(visit: Visit, error: Failure) -> ErrorDocument:
    hidden: dict[str, Any] = {} if visit.access.payload else {"text": None, "traceback": None}
    return _copied(ErrorDocument, error, at=moment(error.at), **hidden)


def job_document(visit: Visit, job: Job[Any]) -> JobDocument:
    return _copied(
        JobDocument,
        job,
        args=visit.args(job.task, job.args),
        headers=visit.args(job.task, job.headers),
        error=error_document(visit, job.errors[-1]) if job.errors else None,
    )


def gate_document(gate: Gate) -> GateDocument:
    return _copied(GateDocument, gate, at=at(gate.at))


def finding_document(finding: Finding) -> FindingDocument:
    return _copied(FindingDocument, finding)


def kind_document(kind: FailureKind) -> KindDocument:
    return _copied(KindDocument, kind, first=moment(kind.first), last=moment(kind.last))


def letter_document(visit: Visit, letter: DeadLetter) -> LetterDocument:
    error = None if letter.error is None else error_document(visit, letter.error)
    return _copied(LetterDocument, letter, args=visit.args(letter.task, letter.args), error=error)


def pause_document(pause: Any) -> PauseDocument | None:
    return None if pause is None else PauseDocument(reason=pause.reason, by=pause.by, at=moment(pause.paused_at))


def queue_document(queue: QueueRecord, limit: int | None, rate: Any, workers: int) -> QueueDocument:
    return _copied(
        QueueDocument,
        queue,
        counts=dict(queue.counts),
        oldest_due_at=at(queue.oldest_due_at),
        limit=limit,
        rate=None if rate is None else str(rate),
        overridden=queue.override is not None,
        pause=pause_document(queue.pause),
        workers=workers,
    )


def group_document(group: GroupRecord) -> GroupDocument:
    counts, capped = dict(group.counts), list(group.capped)
    return _copied(GroupDocument, group, counts=counts, capped=capped, pause=pause_document(group.pause))


def entry_document(entry: Entry) -> EntryDocument:
    return _copied(EntryDocument, entry)


def worker_document(worker: WorkerRecord) -> WorkerDocument:
    return _copied(
        WorkerDocument,
        worker,
        queues=list(worker.queues),
        lost=worker.expired,
        started_at=at(worker.started_at),
        renewed_at=at(worker.renewed_at),
        name=(read(worker.portrait) or WorkerStatus()).name,
    )
