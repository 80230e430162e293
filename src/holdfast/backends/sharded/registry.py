"""The registry: which queues there are, how many shards each has, which tasks go there, and which rules they were sent.

Called by the router. It is one small document, changed by compare-and-set, so that concurrent changes see each other.
It is read at most every few seconds; a shard is in it BEFORE its first job, so that a reader finds every job, and a
crash in between leaves an empty shard, which does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown
from ...records import SHARDS_MAX, QueueRule, Seal, TaskRule
from ..formulas import ALONE, Numbering
from ..seals import refusal
from .places import NUMBERS_MAX, place_of, shard_name

FRESH_SECONDS = 5.0  # a process sees another's change within this time
TRIES_MAX = 50

# new: its shards do not have the pauses and limits yet. changing: a rule is being sent to them. ready: they have it.
EntryState = Literal["new", "changing", "ready"]


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue. `reach` is the largest number of shards it ever had: those may hold jobs and are still read."""

    shards: int
    reach: int
    first: int  # number of its shard 0; the others follow
    state: EntryState = "new"
    rule: QueueRule | None = None  # as declared


class TaskEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task. `queues` are those it was ever enqueued in: its limit, rate and counts are divided among their shards.
    A queue is listed here before the task's first job in it is stored."""

    queues: dict[str, Literal["new", "ready"]] = {}  # new: the shards do not have the task's rules yet
    rule: TaskRule | None = None  # as declared
    said: bool = False  # home may have an operator's override
    state: Literal["changing", "ready"] = "ready"

    @property
    def propagated(self) -> TaskEntry:
        """This entry once all shards have the rules."""
        return replace(self, queues=dict.fromkeys(self.queues, "ready"), state="ready")


class Registry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document."""

    queues: dict[str, Entry] = {}
    tasks: dict[str, TaskEntry] = {}
    numbers: int = 0  # how many numbers were given to shards so far
    seal: Seal | None = None  # of the whole store; every shard has a copy …
    spreading: bool = False  # … or is about to get it …
    before: Seal | None = None  # … in place of this one
    seq: int = 0  # no seq carried into any shard is above it
    tick: int = 0  # no fence or turn that was carried, or given in the source store, is above it
    crossing: bool = False  # a job waits, or once waited, for one in another shard: outboxes are read

    @property
    def closed(self) -> bool:
        """Whether the store accepts no work."""
        return self.seal is not None and self.seal.closed

    def refuse_sealed(self) -> None:
        if self.seal is not None and self.seal.closed:
            raise refusal(self.seal)

    def with_queue(self, queue: str, shards: int) -> Registry:
        """Return a copy with that queue, or with that number of shards for it."""
        if not 1 <= shards <= SHARDS_MAX:
            raise ConfigurationError(f"shards of queue {queue!r} must be from 1 to {SHARDS_MAX}, not {shards}.")
        known = self.queues.get(queue)
        reach, first, numbers = max(shards, known.reach if known else 0), self.numbers, self.numbers
        if known is not None and reach == known.reach:
            first = known.first
        else:
            numbers += reach
        if numbers > NUMBERS_MAX:
            raise ConfigurationError(
                f"queue {queue!r} would bring this store to {numbers} shards; {NUMBERS_MAX} are allowed. "
                "Use groups instead of many queues."
            )
        entry = Entry(shards=shards, reach=reach, first=first, rule=known.rule if known else None)
        return replace(self, queues={**self.queues, queue: entry}, numbers=numbers)

    def with_entry(self, queue: str, entry: Entry) -> Registry:
        return replace(self, queues={**self.queues, queue: entry})

    def with_task(self, task: str, entry: TaskEntry) -> Registry:
        return replace(self, tasks={**self.tasks, task: entry})

    def with_task_in(self, task: str, queue: str) -> Registry:
        """Return a copy with that queue among those of the task, and those that get copies of its dead jobs (R120)."""
        entry = self.tasks.get(task, TaskEntry())
        missing = [name for name in self._with_dead_queues_of(queue) if name not in entry.queues]
        if not missing:
            return self
        state: Literal["new", "ready"] = "new" if entry.rule is not None or entry.said else "ready"
        return self.with_task(task, replace(entry, queues={**entry.queues, **dict.fromkeys(missing, state)}))

    def _with_dead_queues_of(self, queue: str) -> list[str]:
        """That queue, the one that its dead jobs are copied to, and so on."""
        found: list[str] = []
        following: str | None = queue
        while following is not None and following not in found:
            found.append(following)
            rule = self.queues[following].rule if following in self.queues else None
            following = None if rule is None else rule.dead_queue
        return found

    def with_dead_queues(self) -> Registry:
        """Return a copy with the queues that rules name for dead jobs, and with them among those of the tasks: a job
        that dies must be able to go there whatever happens. Outboxes are read from now on."""
        named = {entry.rule.dead_queue for entry in self.queues.values() if entry.rule is not None} - {None}
        if not named:
            return self
        found = replace(self, crossing=True)
        for name in sorted(one for one in named if one is not None):
            if name not in found.queues:
                found = found.with_queue(name, 1)
        for task, entry in self.tasks.items():
            for queue in entry.queues:
                found = found.with_task_in(task, queue)
        return found

    def shards_of_task(self, task: str) -> list[str]:
        """Return the shards among which a task's rules are divided, in this order."""
        queues = self.tasks[task].queues if task in self.tasks else {}
        return [shard_name(queue, place) for queue in queues for place in range(self.queues[queue].shards)]


class Document(Protocol):
    """Where the registry is stored: one text, with compare-and-set."""

    async def read(self) -> bytes | None: ...

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        """Store `after` if the text is still `before`."""


class Shards:
    """The registry as this process last saw it, and the shards it names."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._text: bytes | None = None
        self._read_at: float | None = None
        self.registry = Registry()
        self.numbers: Mapping[str, int] = {}  # by shard, in the order in which they were added
        self._queues: Mapping[str, str] = {}  # by shard
        self.listed_pairs: frozenset[tuple[str, str]] = frozenset()  # (task, queue): such jobs may be stored at once
        self.unsettled: tuple[str, ...] = ()  # tasks whose rules some shard may lack

    # ------------------------------------------------------------------ reading

    async def refresh(self, age: float = 0.0) -> Registry:
        """Read it again if the copy is older than `age`. If unreachable, the copy still holds, unless age is 0."""
        if self._read_at is not None and time.monotonic() - self._read_at <= age:
            return self.registry
        try:
            self._see(await self._document.read())
        except (BackendError, OutcomeUnknown):
            if self._read_at is None or age == 0.0:
                raise
        return self.registry

    def _see(self, text: bytes | None) -> None:
        self._read_at = time.monotonic()
        if text == self._text:
            return
        registry = Registry() if text is None else msgspec.json.decode(text, type=Registry)
        numbers: dict[str, int] = {}
        queues: dict[str, str] = {}
        for queue, entry in registry.queues.items():
            for place in range(entry.reach):
                name = shard_name(queue, place)
                numbers[name], queues[name] = entry.first + place, queue
        self._text, self.registry, self.numbers, self._queues = text, registry, numbers, queues
        self.listed_pairs = frozenset(
            (task, queue)
            for task, entry in registry.tasks.items()
            for queue, state in entry.queues.items()
            if state == "ready"
        )
        self.unsettled = tuple(task for task, entry in registry.tasks.items() if entry != entry.propagated)

    def of(self, queue: str) -> list[str]:
        """Return the shards that may hold jobs of a queue."""
        entry = self.registry.queues.get(queue)
        return [] if entry is None else [shard_name(queue, place) for place in range(entry.reach)]

    def of_group(self, queue: str, group: str) -> str | None:
        """Return the shard a group is in."""
        entry = self.registry.queues.get(queue)
        return None if entry is None else shard_name(queue, place_of(group, entry.shards))

    def numbering(self, shard: str) -> Numbering:
        """Return which seqs a shard gives. A number once given to a shard is never given to another."""
        number = self.numbers.get(shard)
        if number is None:
            return ALONE
        return Numbering(NUMBERS_MAX, number, self.registry.seq, self.registry.tick)

    def queue_of(self, shard: str) -> str | None:
        return self._queues.get(shard)

    def all(self) -> list[str]:
        return list(self.numbers)

    # ------------------------------------------------------------------ changing

    async def change(self, how: Callable[[Registry], Registry]) -> Registry:
        """Apply `how` to the newest document; retry if another process was faster."""
        for _ in range(TRIES_MAX):
            self._see(await self._document.read())
            wanted = how(self.registry)
            if wanted == self.registry:
                return wanted
            text = msgspec.json.encode(wanted)
            if await self._document.swap(self._text, text):
                self._see(text)
                return wanted
        raise BackendUnavailable("the registry of shards keeps changing. Try again.")

    async def swap(self, seen: Registry, wanted: Registry) -> None:
        """Replace exactly what was seen by `wanted`; another process's change stays."""
        await self.change(lambda found: wanted if found == seen else found)

    async def known(self, queues: Iterable[str]) -> Registry:
        """Return the registry with these queues; an undeclared one gets one shard, but not in a sealed store."""
        registry = await self.refresh(FRESH_SECONDS)
        missing = [queue for queue in queues if queue not in registry.queues]
        if not missing:
            return registry

        def added(found: Registry) -> Registry:
            for queue in missing:
                if queue not in found.queues and not found.closed:
                    found = found.with_queue(queue, 1)
            return found

        return await self.change(added)
