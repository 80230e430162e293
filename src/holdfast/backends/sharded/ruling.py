"""Rules, pauses and limits over many shards: home has them all, the shards carry out what concerns their jobs.

Called by backend.py. Home is told first, so that a shard made a moment later is told as well; then the shards. Every
verb here may be repeated, and repeating it mends what a shard out of reach missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from ...errors import ConfigurationError
from ...records import Pause
from ...rules import QueueRule
from ..contract import Backend
from .asking import at_once
from .leasing import HOME, Stores
from .registry import Entry, Registry, Shards
from .sharding import place_of, shard_name

ALL = 1_000_000
TRIES_MAX = 10

T = TypeVar("T")


class Ruling:
    """The verbs that say what may run."""

    def __init__(self, shards: Shards, stores: Stores) -> None:
        self._shards, self._stores = shards, stores

    # ------------------------------------------------------------------ queues

    async def known(self, queues: set[str], now: float | None) -> Registry:
        """The registry with these queues in it, their shards told all they must know before their first job.

        In a sealed store those that are not in it stay out: they get no job.
        """
        registry = await self._shards.known(queues)
        for queue in queues:
            if queue in registry.queues and registry.queues[queue].state == "new" and not registry.closed:
                registry = await self._tell(queue, now)
        return registry

    async def declare(self, rules: Sequence[QueueRule], now: float | None) -> None:
        registry = await self._shards.refresh()
        for rule in rules:
            if rule.group_limit < 1:
                raise ConfigurationError(
                    f"group_limit of queue {rule.name!r} must be at least 1, not {rule.group_limit}."
                )
            registry.with_queue(rule.name, rule.shards)  # raises where that number cannot be
        for rule in rules:
            rule = replace(rule, group_limit=1) if rule.group_order == "strict" else rule
            entry = registry.queues.get(rule.name)
            if entry is None or entry.state != "ready" or entry.rule != rule:
                registry.refuse_sealed()
                await self._declare(rule, entry, now)

    async def _declare(self, rule: QueueRule, entry: Entry | None, now: float | None) -> None:
        if entry is not None and entry.shards != rule.shards:
            await self._refuse_unless_empty(rule, entry)

        def declared(found: Registry) -> Registry:
            found.refuse_sealed()
            known = found.queues.get(rule.name)
            if known is None or known.shards != rule.shards:
                found = found.with_queue(rule.name, rule.shards)
                state = found.queues[rule.name].state
            else:
                state = "new" if known.state == "new" else "changing"
            return found.with_entry(rule.name, replace(found.queues[rule.name], rule=rule, state=state))

        await self._shards.change(declared)
        await self._tell(rule.name, now)

    async def _refuse_unless_empty(self, rule: QueueRule, entry: Entry) -> None:
        """With another number of shards its groups and keys would be sought in other places than they are in."""
        names = [shard_name(rule.name, place) for place in range(entry.reach)]
        found = await at_once({name: self._at(name, lambda store: store.count(rule.name)) for name in names})
        jobs = sum(sum(states.values()) for counts in found.of_all().values() for states in counts.values())
        if jobs:
            raise ConfigurationError(
                f"queue {rule.name!r} has {entry.shards} shards and {jobs} jobs, finished ones and dead letters "
                f"included, so it cannot get {rule.shards}. Say shards={entry.shards}; or stop its producers, let it "
                "run dry, prune it and declare again; or carry it to another prefix with `holdfast move`."
            )

    async def _tell(self, queue: str, now: float | None) -> Registry:
        """Bring every shard of a queue in line with home, then mark it ready; again, where it was changed meanwhile."""
        for _ in range(TRIES_MAX):
            entry = self._shards.registry.queues[queue]
            await self._align(queue, entry, now)

            def settled(found: Registry, seen: Entry = entry) -> Registry:
                same = found.queues.get(queue) == seen
                return found.with_entry(queue, replace(seen, state="ready")) if same else found

            registry = await self._shards.change(settled)
            if registry.queues[queue].state == "ready":
                break
        return registry

    async def _align(self, queue: str, entry: Entry, now: float | None) -> None:
        home = await self._stores(HOME)
        if entry.rule is not None:
            await home.declare([entry.rule], now)
        pauses = [pause for pause in await home.pauses() if pause.queue == queue or pause.task is not None]
        limits = {record.name: record.override for record in await home.groups(queue, limit=ALL)}
        names = [shard_name(queue, place) for place in range(entry.reach)]

        async def align(place: int, name: str) -> None:
            store = await self._stores(name)
            if entry.rule is not None:
                await store.declare([entry.rule], now)
            mine = [pause for pause in pauses if pause.group is None or place_of(pause.group, entry.shards) == place]
            for pause in mine:
                await store.pause(pause, now)
            for stale in [pause for pause in await store.pauses() if not any(_same(pause, one) for one in mine)]:
                await store.resume(stale, now)
            for group, limit in limits.items():
                if limit is not None and place_of(group, entry.shards) == place:
                    with suppress(ConfigurationError):  # a limit from before the queue became strict
                        await store.limit_group(queue, group, limit, now)

        (await at_once({name: align(place, name) for place, name in enumerate(names)})).of_all()

    # ------------------------------------------------------------------ pauses and limits

    async def pause(self, pause: Pause, now: float | None) -> None:
        await (await self._stores(HOME)).pause(pause, now)
        names = await self._concerned(pause, now)
        (await at_once({name: self._at(name, lambda store: store.pause(pause, now)) for name in names})).of_all()

    async def resume(self, pause: Pause, now: float | None) -> bool:
        ended = await (await self._stores(HOME)).resume(pause, now)
        names = await self._concerned(pause, now)
        (await at_once({name: self._at(name, lambda store: store.resume(pause, now)) for name in names})).of_all()
        return ended

    async def _concerned(self, pause: Pause, now: float | None) -> list[str]:
        """The shards in the registry after home was told: whoever adds one later asks home."""
        await self._shards.refresh()
        if pause.queue is None:
            return self._shards.all()
        await self.known({pause.queue}, now)
        group = None if pause.group is None else self._shards.of_group(pause.queue, pause.group)
        return self._shards.of(pause.queue) if group is None else [group]

    async def limit_group(self, queue: str, group: str, limit: int | None, now: float | None) -> None:
        await (await self._stores(HOME)).limit_group(queue, group, limit, now)
        await self._shards.refresh()
        await self.known({queue}, now)
        shard = self._shards.of_group(queue, group)
        if shard is not None:
            await (await self._stores(shard)).limit_group(queue, group, limit, now)

    async def _at(self, name: str, verb: Callable[[Backend], Awaitable[T]]) -> T:
        return await verb(await self._stores(name))


def _same(one: Pause, other: Pause) -> bool:
    return (one.queue, one.group, one.task) == (other.queue, other.group, other.task)
