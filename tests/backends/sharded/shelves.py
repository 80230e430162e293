"""Stores for the router's tests: shards in memory, a registry in memory, and shards that can be made silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.backends.formulas import Numbering
from holdfast.backends.shard import Shard
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.registry import Registry
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.records import NewJob, QueueRule, TaskRule

from ...reference.backend import ReferenceBackend

NOW = 2_000_000_000.0
QUEUES = ("default", "other", "a", "b", "c", "declared", "mail", "x", "y", "z")  # of the conformance cases


class Page:
    """The registry's document in memory."""

    def __init__(self) -> None:
        self.text: bytes | None = None

    async def read(self) -> bytes | None:
        return self.text

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        if self.text != before:
            return False
        self.text = after
        return True


class Moody:
    """A memory shard that can be cut off: refusing all calls, or carrying them out and losing the answer."""

    def __init__(self, numbering: Numbering) -> None:
        self.store = ReferenceBackend(numbering=numbering)
        self.mood = "well"  # or "down", or "mute"
        self.calls: list[str] = []

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None: ...  # a test puts a verb of its own in place

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self.store, verb)
        if not asyncio.iscoroutinefunction(real) or verb == "close":
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(verb)
            if self.mood == "down":
                raise BackendUnavailable(f"{verb}: cut off by the test. Nothing to do.")
            answer = await real(*args, **kwargs)
            if self.mood == "mute":
                raise OutcomeUnknown(verb)
            return answer

        return call


class Shelf:
    """A router over moody shards, which the test can reach by name."""

    def __init__(self) -> None:
        self.shards: dict[str, Moody] = {}
        self.page = Page()

    def router(self) -> ShardedBackend:
        return ShardedBackend(self.page, self._shard)  # type: ignore[arg-type]

    def _shard(self, name: str, numbering: Numbering) -> Moody:
        return self.shards.setdefault(name, Moody(numbering))

    def holder(self, job_id: str) -> Moody:
        """The shard a job is in."""
        [shard] = [shard for shard in self.shards.values() if job_id in shard.store._store.jobs]
        return shard


class ManyShards(ShardedBackend):
    """A router whose queues all have several shards, declared or not."""

    shards = 3

    def __init__(self, page: Page) -> None:
        registry = Registry()
        for queue in QUEUES:
            registry = registry.with_queue(queue, self.shards)
        page.text = page.text or msgspec.json.encode(registry)
        super().__init__(page, memory_shard)

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        await super().declare([replace(rule, shards=self.shards) for rule in rules], tasks, now)


def memory_shard(name: str, numbering: Numbering) -> Shard:
    return ReferenceBackend(numbering=numbering)


def memory_stores(shards: int = 1) -> Callable[[str], Backend]:
    """How to make routers over memory shards: the same name, the same store."""
    stores: dict[str, Backend] = {}
    if shards == 1:
        return lambda store: stores.setdefault(store, ShardedBackend(Page(), memory_shard))
    return lambda store: stores.setdefault(store, ManyShards(Page()))


async def split_store(shards: int, *batches: list[NewJob]) -> tuple[Shelf, ShardedBackend]:
    """A store whose queue `mail` has this many shards, with these jobs in it."""
    shelf = Shelf()
    router = shelf.router()
    await router.open()
    await router.declare([QueueRule(name="mail", shards=shards)], now=NOW)
    for batch in batches:
        await router.enqueue(batch, now=NOW)
    return shelf, router
