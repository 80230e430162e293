"""export and carry over many shards: move the contents of a store of shards out, or those of another store in.

Called by backend.py. Jobs leave in the order of their seqs, which are unique over all shards, letters by id. Incoming
jobs are placed by this store's own rule, however many shards they come from; rules come first, so that the number of
shards is known. A shipment is stored in its shards and then recorded in the registry: after a crash in between it is
carried again, and changes nothing where it is already stored.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from ...dependencies import position_of
from ...records import DeadLetter, Part, Shipment, StoredJob
from ...steps import place_of_step
from .. import seals
from ..shard import Ties
from .dependencies import EdgeVerbs, places_of
from .divide import concerning, refuse_undividable
from .fanout import at_once
from .lease import HOME, Stores
from .places import place_of_job, shard_name
from .read import flows_of
from .registry import Registry, Shards, TaskEntry

Row = TypeVar("Row")


class _Line(Generic[Row]):
    """The rows of one shard, read ahead a page at a time."""

    def __init__(self, after: str, read: Callable[[str], Awaitable[tuple[Sequence[Row], str | None]]]) -> None:
        self._after: str | None = after
        self._read = read
        self.rows: deque[Row] = deque()

    async def fill(self) -> None:
        """Read the next page, if no row is left and there are more."""
        if not self.rows and self._after is not None:
            rows, self._after = await self._read(self._after)
            self.rows.extend(rows)


class MoveVerbs:
    """The verbs export and carry."""

    def __init__(self, shards: Shards, stores: Stores, edges: EdgeVerbs) -> None:
        self._shards, self._stores, self._edges = shards, stores, edges

    # ------------------------------------------------------------------ export

    async def export(self, part: Part, after: str, limit: int) -> Shipment:
        await self._shards.refresh()
        if part == "rules":
            return await self._export_rules()
        if part == "jobs":
            if self._edges.crossing and not after:
                await self._edges.finish(None)  # the store is sealed: what is noted now is all there will be
            jobs = await self._page(part, after, limit, lambda piece: piece.jobs, lambda job: job.seq)
            return Shipment(part=part, jobs=tuple(jobs), after=str(jobs[-1].seq) if len(jobs) >= limit else None)
        if part == "edges":
            edges = await self._page(part, after, limit, lambda piece: piece.edges, lambda one: (one.child, one.parent))
            place = position_of(edges[-1]) if len(edges) >= limit else None
            return Shipment(part=part, edges=tuple(edges), after=place)
        if part == "steps":
            steps = await self._page(
                part, after, limit, lambda piece: piece.steps, lambda one: (one.job_id, one.kind, one.name)
            )
            place = place_of_step(steps[-1]) if len(steps) >= limit else None
            return Shipment(part=part, steps=tuple(steps), after=place)
        letters = await self._page(part, after, limit, lambda piece: piece.letters, lambda letter: letter.id)
        return Shipment(part=part, letters=tuple(letters), after=letters[-1].id if len(letters) >= limit else None)

    async def _export_rules(self) -> Shipment:
        """Return rules, overrides, pauses and cron entries from home, rate states from the shards."""
        registry = self._shards.registry

        async def rules_of(name: str) -> Shipment:
            return await (await self._stores(name)).export("rules")

        found = (await at_once({name: rules_of(name) for name in (HOME, *self._shards.all())})).of_all()
        home = found[HOME]
        shards = {name: entry.shards for name, entry in registry.queues.items()}
        return replace(
            home,
            queues=tuple(replace(rule, shards=shards.get(rule.name, 1)) for rule in home.queues),
            flows=tuple(flows_of(home.flows, (piece.flows for name, piece in found.items() if name != HOME))),
            tick=max(registry.tick, *(piece.tick for piece in found.values())),
        )

    async def _page(
        self,
        part: Part,
        after: str,
        limit: int,
        rows_in: Callable[[Shipment], Sequence[Row]],
        order: Callable[[Row], Any],
    ) -> list[Row]:
        """Return the next rows of all shards, merged. Equals are in one page: two shards may hold the same id."""
        names = self._shards.all()
        portion = min(limit, 2 * limit // max(1, len(names)) + 1)

        async def line_of(name: str) -> _Line[Row]:
            store = await self._stores(name)

            async def read(place: str) -> tuple[Sequence[Row], str | None]:
                piece = await store.export(part, place, limit=portion)
                return rows_in(piece), piece.after

            line = _Line(after, read)
            await line.fill()
            return line

        lines = list((await at_once({name: line_of(name) for name in names})).of_all().values())
        heads = [(order(line.rows[0]), number) for number, line in enumerate(lines) if line.rows]
        heapq.heapify(heads)
        page: list[Row] = []
        while heads and (len(page) < limit or heads[0][0] == order(page[-1])):
            number = heapq.heappop(heads)[1]
            line = lines[number]
            page.append(line.rows.popleft())
            await line.fill()
            if line.rows:
                heapq.heappush(heads, (order(line.rows[0]), number))
        return page

    # ------------------------------------------------------------------ carry

    async def carry(self, move: str, shipment: Shipment) -> None:
        seals.check_carry((await self._shards.refresh()).seal, move, shipment)
        if shipment.part == "rules":
            await self._carry_rules(move, shipment)
        elif shipment.part == "jobs":
            await self._add_queues(move, shipment)
            await self._hand_out(move, shipment, [self._shard_of(job) for job in shipment.jobs])
        elif shipment.part == "edges":
            await self._carry_edges(move, shipment)
        elif shipment.part == "steps":
            places = await places_of(self._shards, self._stores, {step.job_id for step in shipment.steps})
            await self._hand_out(move, shipment, [places[step.job_id] for step in shipment.steps])
        else:
            found = await at_once({str(n): self._shard_with(one) for n, one in enumerate(shipment.letters)})
            await self._hand_out(move, shipment, list(found.of_all().values()))

        def reached(found: Registry) -> Registry:
            seal = seals.check_carry(found.seal, move, shipment)
            seqs = (job.seq for job in shipment.jobs)
            ticks = (max(job.turn or 0, job.fence) for job in shipment.jobs)
            return replace(
                found, seal=seal.moved_on(shipment), seq=max(found.seq, *seqs, 0), tick=max(found.tick, *ticks, 0)
            )

        await self._shards.change(reached)

    async def _carry_rules(self, move: str, shipment: Shipment) -> None:
        """A queue already known here keeps its number of shards: it was declared so before the move.

        Home keeps everything undivided. Task rules go to the shards when all jobs are in (seals.py).
        """
        words = {said.task for said in shipment.overrides if said.task is not None}
        named = {said.queue for said in shipment.overrides if said.queue is not None}
        named |= {flow.queue for flow in shipment.flows if flow.queue is not None}

        def ruled(found: Registry) -> Registry:
            seals.check_carry(found.seal, move, shipment)
            for rule in shipment.queues:
                if rule.name not in found.queues:
                    found = found.with_queue(rule.name, rule.shards)
                entry = found.queues[rule.name]
                found = found.with_entry(rule.name, replace(entry, rule=replace(rule, shards=entry.shards)))
            for name in sorted(named - set(found.queues)):
                found = found.with_queue(name, 1)
            found = found.with_dead_queues()
            rules = {rule.name: rule for rule in shipment.tasks}
            for task in sorted({*rules, *words}):
                known = found.tasks.get(task, TaskEntry())
                found = found.with_task(task, replace(known, rule=rules.get(task), said=task in words))
            queues = {name: replace(entry, state="new") for name, entry in found.queues.items()}
            refuse_undividable(found, queues, found.tasks, shipment.overrides)
            return replace(found, queues=queues, tick=max(found.tick, shipment.tick))

        await self._shards.change(ruled)
        await (await self._stores(HOME)).carry(move, shipment)
        await self._furnish(move, self._shards.registry.queues)

    async def _add_queues(self, move: str, shipment: Shipment) -> None:
        """Add undeclared queues with their first job, and record each task in the queues where it has one."""
        pairs = {(job.task, job.queue) for job in shipment.jobs}
        names = {queue for _, queue in pairs}
        overrides = (await (await self._stores(HOME)).export("rules")).overrides

        def added(found: Registry) -> Registry:
            seals.check_carry(found.seal, move, shipment)
            for name in sorted(names - set(found.queues)):
                found = found.with_queue(name, 1)
            for task, queue in sorted(pairs):
                found = found.with_task_in(task, queue)
            tasks = {task for task, _ in pairs}
            refuse_undividable(found, (), tasks, overrides)
            for task in tasks:
                # shards get their rules before the target opens
                found = found.with_task(task, found.tasks[task].propagated)
            return found

        await self._shards.change(added)
        await self._furnish(move, names)

    async def _furnish(self, move: str, queues: Iterable[str]) -> None:
        """Give the shards of new queues the seal, the rules and the counters, before their first job."""
        registry = self._shards.registry
        fresh = {name: registry.queues[name] for name in queues if registry.queues[name].state == "new"}
        if not fresh:
            return
        rules = await (await self._stores(HOME)).export("rules")
        places = {
            shard_name(queue, place): concerning(rules, registry, queue, place)
            for queue, entry in fresh.items()
            for place in range(entry.reach)
        }

        async def furnish(name: str) -> None:
            store = await self._stores(name)
            there = await store.sealed()
            if registry.seal is not None and (there is None or there.move != move):
                await store.seal(replace(registry.seal, part="rules", after=""), instead_of=there)
            await store.carry(move, replace(places[name], tick=registry.tick, seq=registry.seq))

        (await at_once({name: furnish(name) for name in places})).of_all()

        def all_propagated(found: Registry) -> Registry:
            done = {name: replace(entry, state="ready") for name, entry in fresh.items()}
            same = {name: entry for name, entry in done.items() if found.queues.get(name) == fresh[name]}
            return replace(found, queues={**found.queues, **same})

        await self._shards.change(all_propagated)

    async def _carry_edges(self, move: str, shipment: Shipment) -> None:
        """Store every edge with its child. A parent in another shard is asked about once the store is open."""
        places = await places_of(
            self._shards, self._stores, {name for edge in shipment.edges for name in (edge.parent, edge.child)}
        )
        await self._hand_out(move, shipment, [places[edge.child] for edge in shipment.edges])
        parents: dict[str, dict[str, str]] = {}
        for edge in shipment.edges:
            if edge.parent in places and places[edge.parent] != places[edge.child]:
                parents.setdefault(places[edge.child], {})[edge.parent] = places[edge.parent]
        if parents:
            await self._edges.begin_crossing()

        async def tie(name: str) -> None:
            await (await self._stores(name)).enqueue_tied((), Ties(parents=parents[name], noted=True))

        (await at_once({name: tie(name) for name in parents})).of_all()

    async def _hand_out(self, move: str, shipment: Shipment, shards: Sequence[str]) -> None:
        """Store every row in its shard."""

        async def hand(name: str) -> None:
            part = Shipment(
                part=shipment.part,
                jobs=tuple(job for job, shard in zip(shipment.jobs, shards, strict=False) if shard == name),
                edges=tuple(one for one, shard in zip(shipment.edges, shards, strict=False) if shard == name),
                steps=tuple(one for one, shard in zip(shipment.steps, shards, strict=False) if shard == name),
                letters=tuple(one for one, shard in zip(shipment.letters, shards, strict=False) if shard == name),
            )
            await (await self._stores(name)).carry(move, part)

        (await at_once({name: hand(name) for name in set(shards)})).of_all()

    def _shard_of(self, row: StoredJob | DeadLetter) -> str:
        return shard_name(row.queue, place_of_job(row, self._shards.registry.queues[row.queue].shards))

    async def _shard_with(self, letter: DeadLetter) -> str:
        """Return where the letter's job is. Revived and replaced, it may have another group than when it died."""
        own = self._shard_of(letter)
        for name in (own, *self._shards.of(letter.queue)):
            if await (await self._stores(name)).get(letter.id) is not None:
                return name
        return own
