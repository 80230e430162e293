"""The seal of a store of shards: the registry has the authoritative one, every shard and home a copy that it enforces.

Called by backend.py. A seal is first put into the registry, marked as spreading, then given to every shard, then the
mark is removed. So a shard created meanwhile is known to the process that spreads, and a process that finds the mark
can finish what another began before it died: `sealed` does so before it returns, and so does every process that opens
the store. What cannot be finished because a shard is silent or holds jobs is reverted the same way. Nothing here
decides what a seal means.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from ...errors import BackendUnavailable, ConfigurationError, HoldfastError, StoreSealed
from ...records import Seal
from .. import seals
from .cron import CronVerbs
from .divide import task_rules_for
from .fanout import SILENCE, at_once
from .lease import HOME, Stores
from .places import shard_name
from .registry import Registry, Shards

TRIES_MAX = 20


class SealVerbs:
    """The verbs sealed and seal."""

    def __init__(self, shards: Shards, stores: Stores, ticking: CronVerbs) -> None:
        self._shards, self._stores, self._ticking = shards, stores, ticking

    async def sealed(self) -> Seal | None:
        """Return the registry's seal, once every shard has it."""
        await self._spread()
        return self._shards.registry.seal

    async def seal(self, seal: Seal | None, instead_of: Seal | None) -> bool:
        if await self.sealed() != instead_of:
            return False
        if seals.is_new_target(seal, instead_of):
            await self._refuse_unless_empty()
        if seal is not None and seal.role == "target" and not seal.closed and not await self._shards_are_ready(seal):
            return False

        def put(found: Registry) -> Registry:
            if found.seal != instead_of or found.spreading:
                return found
            return replace(found, seal=seal, before=instead_of, spreading=True)

        if (await self._shards.change(put)).seal != seal:
            return False
        try:
            refused = await self._spread()
        except SILENCE:
            await self._take_back(seal, instead_of)
            raise
        if refused is not None:
            raise refused
        return True

    async def finish_closing(self) -> bool:
        """A shard reports that it is sealed. If the store is not, or no longer, fix the shard and return True."""
        if (await self._shards.refresh()).closed:
            return False
        await self._shards.change(lambda found: found if found.closed else replace(found, spreading=True))
        await self._spread()
        return not self._shards.registry.closed

    async def finish(self) -> None:
        """Finish what another process left halfway, as far as shards reply."""
        try:
            await self._spread()
        except SILENCE:
            return

    # ------------------------------------------------------------------ spreading

    async def _spread(self) -> HoldfastError | None:
        """Give every shard the registry's seal, if marked as spreading. Returns why it was reverted, if it was."""
        refused: HoldfastError | None = None
        for _ in range(TRIES_MAX):
            seen = await self._shards.refresh()
            if not seen.spreading:
                return refused
            then = _spread_out(seen)
            try:
                await self._give(HOME, seen)
                if seen.closed and (silent := await self._ticking.finish(None, age=-math.inf)) is not None:
                    raise silent  # a tick's job would stay behind; home no longer ticks, so no other follows
                (await at_once({name: self._give(name, seen) for name in self._shards.all()})).of_all()
            except ConfigurationError as error:
                refused, then = error, _taken_back(seen)
            await self._shards.swap(seen, then)
        raise BackendUnavailable("the seal of this store keeps changing. Try again.")

    async def _give(self, name: str, seen: Registry) -> None:
        """Bring a shard's copy in line, unless the registry has changed since: a latecomer changes nothing.

        A shard keeps no copy of a seal that leaves the store open.
        """
        store = await self._stores(name)
        copy = seen.seal if seen.closed else None
        for _ in range(TRIES_MAX):
            there = await store.sealed()
            if there == copy or await self._shards.refresh() != seen:
                return
            if await store.seal(copy, instead_of=there):
                return

    async def _take_back(self, seal: Seal | None, before: Seal | None) -> None:
        """A shard did not reply. A store that was open stays open; any other change is finished later."""
        if seal is None or not seal.closed or (before is not None and before.closed):
            return
        try:
            await self._shards.change(
                lambda found: _taken_back(found) if found.spreading and found.seal == seal else found
            )
            await self._spread()
        except SILENCE:
            return

    # ------------------------------------------------------------------ targets

    async def _refuse_unless_empty(self) -> None:
        """Check before anything is changed. Each shard checks again, in one step with its seal."""

        async def jobs_in(name: str) -> int:
            counts = await (await self._stores(name)).count()
            return sum(sum(by_state.values()) for by_state in counts.values())

        await self._shards.refresh()
        found = await at_once({name: jobs_in(name) for name in (HOME, *self._shards.all())})
        rules = await (await self._stores(HOME)).export("rules")
        made = sum(not entry.declared for entry in rules.entries)
        seals.refuse_unless_empty(sum(found.of_all().values()), 0, len(rules.overrides), len(rules.pauses), made)

    async def _shards_are_ready(self, seal: Seal) -> bool:
        """Raise the counters of all shards and give them their tasks' rules, before a target opens.

        No shard may give a seq that another already has; and only now, with all jobs in, it is known among how many
        shards the limit of a task is divided. False: the seal is another.
        """
        registry = self._shards.registry
        rules = await (await self._stores(HOME)).export("rules")

        async def lift(queue: str, place: int) -> None:
            of_tasks = task_rules_for(rules, registry, queue, place)
            part = replace(of_tasks, tick=registry.tick, seq=registry.seq)
            await (await self._stores(shard_name(queue, place))).carry(seal.move, part)

        places = [(queue, place) for queue, entry in registry.queues.items() for place in range(entry.reach)]
        try:
            (await at_once({shard_name(*where): lift(*where) for where in places})).of_all()
        except (ConfigurationError, StoreSealed):
            return False
        return True


def _spread_out(found: Registry) -> Registry:
    """Every shard has the seal. A new target has dropped its rules, but not how many shards its queues have."""
    queues, tasks = found.queues, found.tasks
    if seals.is_new_target(found.seal, found.before):
        queues = {name: replace(entry, rule=None) for name, entry in queues.items()}
        tasks = {name: replace(entry, rule=None, said=False).propagated for name, entry in tasks.items()}
    return replace(found, spreading=False, before=None, queues=queues, tasks=tasks)


def _taken_back(found: Registry) -> Registry:
    """Restore the previous seal, to be spread. Some shards may have dropped their rules: they get them again."""
    queues = {name: replace(entry, state="new") for name, entry in found.queues.items()}
    return replace(found, seal=found.before, before=found.before, queues=queues)
