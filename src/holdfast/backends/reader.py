"""The reading half of the contract. Reading changes nothing and takes part in no race.

Implemented by every store as part of `contract.Backend`, whose rules apply here, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from ..lifecycle import State
from ..records import (
    CronEntry,
    DeadLetter,
    Dump,
    Flaw,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Pause,
    QueueRecord,
    TaskRecord,
    WorkerRecord,
)


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

    @abstractmethod
    async def find(self, query: JobQuery) -> list[JobRecord]: ...

    @abstractmethod
    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        """Jobs by queue and state; zero counts are left out."""

    @abstractmethod
    async def logs(self, job_id: str) -> list[LogLine]: ...

    @abstractmethod
    async def letter(self, job_id: str) -> DeadLetter | None: ...

    @abstractmethod
    async def letters(self, query: LetterQuery) -> list[DeadLetter]: ...

    @abstractmethod
    async def queues(self) -> list[QueueRecord]:
        """Every queue that is declared, overridden, slowed down, paused or has jobs, by name."""

    @abstractmethod
    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        """Groups with unfinished jobs, an override or a pause, by queue and name."""

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
    async def entries(self) -> list[CronEntry]:
        """All cron entries, by name."""

    @abstractmethod
    async def dump(self) -> Dump:
        """One consistent snapshot of everything: tables `jobs` (like `JobRecord` without `unreadable`, plus token,
        turn, rank, lane, claim_call, prune_at), `letters` (like `DeadLetter`), `workers` (like `WorkerRecord`, plus
        deadline, last_call), `queues` (like `QueueRule`), `tasks` (like `TaskRule`), `overrides` (like `Override`, None
        for values that are not set), `flows` (like `Flow`), `entries` (like `CronEntry`), `pauses` (like `Pause`),
        `logs` (job_id, at, text). States are text, structs are dicts, bytes stay bytes. rank is meaningful only for
        ready jobs, else 0."""

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        """What cannot be read, and where an index and its records contradict each other, in both directions.

        R64. Bounded; it may take several queries, so a job that moves in between must not be reported. A sound store
        returns none.
        """
        return []
