"""The reading half of the contract. Reading changes nothing and takes part in no race; the rules of contract.py apply.

Implemented by every store, and all that inspection needs. The numbers of the rules continue those of the verbs. Below
are the records of queues and tasks, which all stores put together in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..dependencies import Relatives
from ..lifecycle import State
from ..queries.pages import SCAN_ROWS_MAX, Grouping, JobPage, Look, Scanned, Tally
from ..records import (
    Command,
    CronEntry,
    DeadLetter,
    Dump,
    Flaw,
    Flow,
    GroupRecord,
    JobQuery,
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
)
from ..rollups import EventPage, Rollup, RollupQuery
from ..steps import Steps
from . import scan_pages

Scoped = TypeVar("Scoped", Override, Flow, Pause)


class Reader(ABC):
    """Read access to a store.

    R61. One unreadable row never hides the others: get, find, letters, workers and dump return it with defaults for the
    fields that cannot be read (a job lists those in `unreadable`); `flaws` lists the row.
    """

    @abstractmethod
    async def get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        """The finished jobs among these ids (at most 1,000), and None for ids the store does not know.

        R62. One cheap query, for callers that wait for many jobs.
        """

    scan_rows_max: int = SCAN_ROWS_MAX  # jobs that one page or tally looks at

    @abstractmethod
    async def clock(self) -> float:
        """The store's wall clock."""

    @abstractmethod
    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        """Jobs below `query.before` that may match the query, newest first: at most `query.limit` of them.

        R76. Bounded, whatever the store holds: it ends when `look` is used up, and says where. It walks the index that
        has the fewest candidates. It returns every job that matches down to that place; it may return others, too.
        R77. It makes progress: unless it has reached the end, `before` is below the query's.
        R80. Scheduled jobs by due time (`query.by_due_index`) come soonest first instead, after (`beyond`, `before`).
        """

    async def page(self, query: JobQuery, now: float | None = None) -> JobPage:
        """One page of jobs that match, in the order asked for; see JobPage for what it says about itself.

        R78. queries.matches decides. Sorts other than "created" are exact if `sorted_all`; else they are among the
        newest jobs that were looked at.
        """
        return await scan_pages.page(self, query, now)

    async def tally(
        self, query: JobQuery, by: Grouping | None = None, now: float | None = None, *, rows_max: int | None = None
    ) -> Tally:
        """How many jobs match, and how many of them by state, queue, task or latest error.

        R79. It looks at no more than `rows_max` (None: scan_rows_max) jobs; `complete`: these are all. What a store
        cannot count itself is read, and counted up to TALLY_MAX.
        """
        return await scan_pages.tally(self, query, by, now, rows_max)

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """All jobs that match, newest first, up to the query's limit: several scans, each of them bounded."""
        return await scan_pages.everything(self, query)

    @abstractmethod
    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        """Jobs by queue and state; zero counts are left out."""

    @abstractmethod
    async def logs(self, job_id: str) -> list[LogLine]: ...

    @abstractmethod
    async def marks(self, job_id: str) -> list[Mark]:
        """The stored part of a job's timeline, oldest first.

        R65. A mark is appended in the step that makes the transition, for what the job's row does not show: release and
        snooze (with worker, fence and started_at of the ended lease), cancel, bury, run_now, revive, retry, discard and
        other operator verbs (with `by`), automatic revival (kind revive, text "automatic"), a progress report, and a
        renewal that came later than half a lease after the one before or the lease's start (kind renewal, with its
        `gap`; a store may leave out a lease that is being written at the time). Of progress reports and late renewals
        in a row, a lease keeps the first and the newest, with how many it stands for. Nothing else writes one: enqueue,
        claim, success and failure are read off the row and its errors. A job keeps at most MARKS_KEPT_MAX: its first
        one and the newest. A verb that changes nothing leaves no mark; the second cancel of a running job is one
        that changes nothing. Marks are pruned with their job and move with it.
        """

    @abstractmethod
    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        """The parents and children of a job, by id, at most `limit` of each; empty for an unknown job.

        R88. With `values`, parents that succeeded bring their results. With `beyond`, only those with a higher id.
        """

    @abstractmethod
    async def steps(self, job_id: str) -> Steps:
        """What a job remembers between its attempts (R91), by kind and name; nothing for an unknown job."""

    @abstractmethod
    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        """Roll-ups, by time, queue, task, worker and outcome."""

    @abstractmethod
    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        """Events after this position, oldest first. None: no events, only the newest position."""

    @abstractmethod
    async def letter(self, job_id: str) -> DeadLetter | None: ...

    @abstractmethod
    async def letters(self, query: LetterQuery) -> list[DeadLetter]: ...

    @abstractmethod
    async def queues(self) -> list[QueueRecord]:
        """Every queue that is declared, overridden, slowed down, paused or has jobs, by name."""

    @abstractmethod
    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        """Groups with unfinished jobs, an override or a pause, and those a dead job stops, by queue and name."""

    @abstractmethod
    async def waking(self, queues: Sequence[str]) -> bool:
        """Whether a group of these queues has jobs that only its rate keeps waiting (wakes_at).

        R63. A drain polls this, so it costs nothing if there is no such group.
        """

    @abstractmethod
    async def tasks(self) -> list[TaskRecord]:
        """Tasks with a rule, an override or a bucket, by name."""

    @abstractmethod
    async def group(self, queue: str, name: str) -> GroupRecord: ...

    @abstractmethod
    async def pauses(self) -> list[Pause]: ...

    @abstractmethod
    async def workers(self, now: float | None = None) -> list[WorkerRecord]: ...

    @abstractmethod
    async def commands(self, worker: str) -> list[Command]:
        """The commands a worker was given, oldest first, answered or not."""

    @abstractmethod
    async def entries(self) -> list[CronEntry]:
        """All cron entries, by name."""

    @abstractmethod
    async def dump(self) -> Dump:
        """A snapshot of everything: tables `jobs` (like `JobRecord` without `unreadable`, plus token,
        turn, rank, lane, claim_call, prune_at), `letters` (like `DeadLetter`), `workers` (like `WorkerRecord`, plus
        deadline, last_call), `queues` (like `QueueRule`), `tasks` (like `TaskRule`), `overrides` (like `Override`, None
        for values that are not set), `flows` (like `Flow`), `entries` (like `CronEntry`), `pauses` (like `Pause`),
        `logs` (job_id, at, text), `marks` (job_id and the fields of `Mark`), `edges` (like `Edge`), `dependents`
        (child, pending, failed: how many of its edges are not met, and how many failed), `propagating` (parent),
        `steps` (like `Step`). States are text, structs are dicts, bytes stay bytes. rank is meaningful only for ready
        jobs, else 0.

        All of it is of one instant, but for the rows in `moving`: a store that cannot read everything at once lists
        there, in each version it saw, every row that changed while it read."""

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        """What cannot be read, and where an index and its records contradict each other, in both directions.

        R64. Bounded; it may take several queries, so a job that moves in between must not be reported. A sound store
        returns none.
        """
        return []


# ----------------------------------------------------------------------------------------------------------------------
# Records of queues and tasks, put together from what a store keeps about them. The same for every store.


def queue_records(
    rules: Iterable[QueueRule],
    overrides: Iterable[Override],
    flows: Iterable[Flow],
    pauses: Iterable[Pause],
    counts: Mapping[str, Mapping[State, int]],
    oldest_due_at: Callable[[str], float | None],
) -> list[QueueRecord]:
    """One record, by name, for each queue with a rule, an override, a rate's state, a pause or jobs."""
    declared = {rule.name: rule for rule in rules}
    overridden, flowing, paused = _of_queues(overrides), _of_queues(flows), _of_queues(pauses)
    records: list[QueueRecord] = []
    for name in sorted({*declared, *overridden, *flowing, *paused, *counts}):
        rule = declared.get(name) or QueueRule(name=name)
        records.append(
            QueueRecord(
                name=name,
                group_limit=rule.group_limit,
                group_order=rule.group_order,
                group_rate=rule.group_rate,
                aging=rule.aging,
                on_dead=rule.on_dead,
                order_window=rule.order_window,
                dead_queue=rule.dead_queue,
                declared=name in declared,
                limit=rule.limit,
                rate=rule.rate,
                override=overridden.get(name),
                flow=flowing.get(name),
                pause=paused.get(name),
                counts={state.value: number for state, number in counts.get(name, {}).items()},
                oldest_due_at=oldest_due_at(name),
            )
        )
    return records


def _of_queues(scoped: Iterable[Scoped]) -> dict[str, Scoped]:
    return {one.queue: one for one in scoped if one.queue is not None and one.group is None}


def task_records(
    rules: Iterable[TaskRule],
    overrides: Iterable[Override],
    flows: Iterable[Flow],
    running: Callable[[str], int],
) -> list[TaskRecord]:
    """One record, by name, for each task with a rule, an override or a rate's state."""
    declared = {rule.name: rule for rule in rules}
    overridden = {one.task: one for one in overrides if one.task is not None}
    flowing = {one.task: one for one in flows if one.task is not None}
    return [
        TaskRecord(
            rule=declared.get(name) or TaskRule(name=name),
            declared=name in declared,
            override=overridden.get(name),
            flow=flowing.get(name),
            running=running(name),
        )
        for name in sorted({*declared, *overridden, *flowing})
    ]
