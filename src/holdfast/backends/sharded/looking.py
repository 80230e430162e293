"""The reading half of the router: what many shards show, put together.

Part of backend.py's `ShardedBackend`. Changes nothing. Where a shard that may hold what is asked for is silent it
raises: half a picture is none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ...entries import CronEntry
from ...lifecycle import State
from ...records import (
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
    WorkerRecord,
)
from ...rules import TaskRecord
from ..contract import Backend
from ..looking import Looking
from . import reading
from .asking import Answers, at_once
from .leasing import HOME
from .registry import FRESH_SECONDS, Shards
from .sharding import place_of_job, shard_name

T = TypeVar("T")

PLACES_MAX = 10_000  # jobs whose shard is remembered
RUNNING_MAX = 10_000  # of one task in one shard that are counted one by one


class ShardedLooking(Looking):
    """How a store of shards is looked at."""

    _shards: Shards
    _places: dict[str, str]  # job → its shard, as last seen: a hint

    @abstractmethod
    async def _store(self, name: str) -> Backend:
        """The shard of that name (or home), opened on first use."""

    async def _at(self, name: str, verb: Callable[[Backend], Awaitable[T]]) -> T:
        return await verb(await self._store(name))

    async def _at_all(self, names: Sequence[str], verb: Callable[[Backend], Awaitable[T]]) -> Answers[T]:
        return await at_once({name: self._at(name, verb) for name in names})

    async def _everywhere(self, verb: Callable[[Backend], Awaitable[T]], queue: str | None = None) -> dict[str, T]:
        """What all shards, or those of one queue, answer; raises where one is silent."""
        await self._shards.refresh()
        names = self._shards.all() if queue is None else self._shards.of(queue)
        return (await self._at_all(names, verb)).of_all()

    async def _home(self) -> Backend:
        return await self._store(HOME)

    # ------------------------------------------------------------------ jobs

    async def _first(self, verb: Callable[[Backend], Awaitable[T | None]]) -> T | None:
        """The one shard that has something to show; a silent one might have it, so then nothing else is an answer."""
        answers: Answers[T | None] = Answers()
        for age in (FRESH_SECONDS, 0.0):  # what is in no shard we know may be in one that is new
            await self._shards.refresh(age)
            names = [name for name in self._shards.all() if name not in answers]
            more = await self._at_all(names, verb)
            for answer in more.values():
                if answer:
                    return answer
            more.of_all()
            answers.update(more)
        return None

    async def get(self, job_id: str) -> JobRecord | None:
        """The job. Who waits for a result asks again and again: so its shard is remembered, and asked first."""
        known = self._places.get(job_id)
        found = None if known is None else await self._at(known, lambda store: store.get(job_id))
        if found is None:
            found = await self._first(lambda store: store.get(job_id))
            entry = None if found is None else self._shards.registry.queues.get(found.queue)
            if found is not None and entry is not None:
                self._remember(job_id, shard_name(found.queue, place_of_job(found, entry.shards)))
        return found

    def _remember(self, job_id: str, shard: str) -> None:
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[job_id] = shard

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        """Each id is asked for where it was last seen; only those seen nowhere yet, or gone from there, everywhere."""
        found: dict[str, JobRecord | None] = {}
        asked: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(job_ids):
            if job_id in self._places:
                asked.setdefault(self._places[job_id], []).append(job_id)
        missing = set(job_ids) - await self._look(found, asked)
        looked: set[str] = set()
        for age in (FRESH_SECONDS, 0.0):  # what is in no shard we know may be in one that is new
            if missing:
                await self._shards.refresh(age)
                names = [name for name in self._shards.all() if name not in looked]
                missing -= await self._look(found, {name: sorted(missing) for name in names})
                looked.update(names)
        return {**found, **dict.fromkeys(missing)}

    async def _look(self, found: dict[str, JobRecord | None], asked: Mapping[str, list[str]]) -> set[str]:
        """Ask these shards for these ids; note what ended, remember what goes on. Answers the ids somebody knows."""

        async def ask(name: str) -> Mapping[str, JobRecord | None]:
            return await (await self._store(name)).ended(asked[name])

        known: set[str] = set()
        for name, ended in (await at_once({name: ask(name) for name in asked})).of_all().items():
            for job_id in asked[name]:
                job = ended.get(job_id)
                if job is not None:
                    found[job_id] = job
                elif job_id not in ended:
                    self._remember(job_id, name)
                if job is not None or job_id not in ended:
                    known.add(job_id)
        return known

    async def find(self, query: JobQuery) -> list[JobRecord]:
        found = await self._everywhere(lambda store: store.find(query), query.queue)
        return reading.newest_first(found.values(), query.limit)

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return reading.counts_of((await self._everywhere(lambda store: store.count(queue), queue)).values())

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._first(lambda store: store.logs(job_id)) or []

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._first(lambda store: store.letter(job_id))

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        found = await self._everywhere(lambda store: store.letters(query), query.queue)
        return reading.letters_of(found.values(), query.limit)

    # ------------------------------------------------------------------ queues, groups, tasks, workers, entries

    async def queues(self) -> list[QueueRecord]:
        home = await (await self._home()).queues()
        return reading.queues_of(home, (await self._everywhere(lambda store: store.queues())).values())

    async def waking(self, queues: Sequence[str]) -> bool:
        found = await self._everywhere(lambda store: store.waking(queues))
        return any(found.values())

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        home = await (await self._home()).groups(queue, limit=limit)
        found = await self._everywhere(lambda store: store.groups(queue, limit=limit), queue)
        return reading.groups_of(home, found.values(), limit)

    async def tasks(self) -> list[TaskRecord]:
        home = await (await self._home()).tasks()
        found = await self._everywhere(lambda store: store.tasks())
        shown = reading.tasks_of(home, found.values())
        hidden = [task.rule.name for task in shown]
        counts = {
            name: self._running(name, [task for task in hidden if task not in {one.rule.name for one in there}])
            for name, there in found.items()
        }
        more = [running for running in (await at_once(counts)).of_all().values() if running]
        return [replace(task, running=task.running + sum(one[task.rule.name] for one in more)) for task in shown]

    async def _running(self, shard: str, tasks: Sequence[str]) -> Counter[str]:
        """How many jobs of these tasks run in a shard that says nothing of them itself: it knows no rule of theirs."""
        running: Counter[str] = Counter()
        for task in tasks:
            if shard in self._shards.registry.shards_of_task(task):
                query = JobQuery(task=task, states=(State.RUNNING,), limit=RUNNING_MAX)
                running[task] = len(await (await self._store(shard)).find(query))
        return running

    async def group(self, queue: str, name: str) -> GroupRecord:
        await self._shards.refresh()
        shard = self._shards.of_group(queue, name)
        return await self._at(HOME if shard is None else shard, lambda store: store.group(queue, name))

    async def pauses(self) -> list[Pause]:
        return await (await self._home()).pauses()

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        home = await (await self._home()).workers(now)
        return reading.workers_of(home, (await self._everywhere(lambda store: store.workers(now))).values())

    async def entries(self) -> list[CronEntry]:
        return await (await self._home()).entries()

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        """Each says in which shard it is. Raises where a shard is silent: "nothing is wrong" would be a guess."""
        found = await (await self._home()).flaws(limit=limit)
        for name, listed in (await self._everywhere(lambda store: store.flaws(limit=limit))).items():
            found += [replace(flaw, text=f"{flaw.text} (shard {name})") for flaw in listed]
        return found[:limit]

    async def dump(self) -> Dump:
        home = await (await self._home()).dump()
        found = await self._everywhere(lambda store: store.dump())
        counts = {queue: entry.shards for queue, entry in self._shards.registry.queues.items()}
        return reading.dump_of(home, found, counts)
