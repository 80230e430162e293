"""The reading half of the contract: what a store shows. Changes nothing, takes no part in any race.

Fulfilled by every store as part of `contract.Backend`, whose rules hold here, too.
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
    """How a store is looked at. One row that cannot be read never hides the others: get, find, letters, workers and
    dump show it, with defaults where a field cannot be read (a job says which, in `unreadable`); `flaws` lists it.
    """

    @abstractmethod
    async def get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        """Of these ids, at most 1,000, those that are finished, and None for those the store does not know. One cheap
        look: whoever waits for many jobs asks this way."""

    @abstractmethod
    async def find(self, query: JobQuery) -> list[JobRecord]: ...

    @abstractmethod
    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        """Jobs by queue and state; queues and states with none are left out."""

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
        """Whether a group of these queues has jobs that its rate alone keeps waiting (wakes_at). Asked again and again
        by a drain: it costs nothing where there is no such group."""

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
        """One consistent picture of everything: tables `jobs` (as in `JobRecord` without `unreadable`, plus token,
        turn, rank, lane, claim_call, prune_at), `letters` (as `DeadLetter`), `workers` (as `WorkerRecord`, plus
        deadline, last_call), `queues` (as `QueueRule`), `tasks` (as `TaskRule`), `overrides` (as `Override`, None where
        nothing is said), `flows` (as `Flow`), `entries` (as `CronEntry`), `pauses` (as `Pause`), `logs` (job_id, at,
        text). States are text, structs are dicts, bytes stay bytes. rank counts only while a job is ready; elsewhere it
        is 0."""

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        """What cannot be read, and where an index and its records contradict each other, in both directions. Bounded;
        may take several looks, so a job that moves meanwhile must not be reported. A sound store answers none."""
        return []
