"""seal, export and carry on Redis: moving a store's contents to another store.

Called by backend.py. Each change is one script that checks the seal and writes in the same step; seals are judged
before, on the seal that was read, and the script makes sure that it has not changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...dependencies import edge_position, position_of
from ...errors import BackendUnavailable
from ...lifecycle import State
from ...rates import UNLIMITED, Rate
from ...records import Part, Seal, Shipment, StoredJob, TaskRecord
from ...steps import place_of_step, step_place
from .. import seals
from . import codec, limits
from .connection import Connections
from .keys import KEY_NAMES
from .read import Reader
from .scripts import SCRIPTS

TRIES_MAX = 10


class MoveVerbs:
    """The move verbs of one store."""

    def __init__(self, connections: Connections, reader: Reader, *, in_shard: bool) -> None:
        self._connections, self._reader, self._in_shard = connections, reader, in_shard
        self._meta = connections.keys[KEY_NAMES.index("meta")]

    async def _text(self) -> bytes | None:
        text: bytes | None = await self._connections.command("sealed", "HGET", self._meta, "seal")
        return text

    async def sealed(self) -> Seal | None:
        text = await self._text()
        return None if text is None else seals.read(text.decode())

    async def seal(self, seal: Seal | None, instead_of: Seal | None) -> bool:
        texts = [b"" if one is None else seals.written(one).encode() for one in (instead_of, seal)]
        closes = seal is not None and seal.closed
        must_be_empty = seals.is_new_target(seal, instead_of)
        values = [None, instead_of is not None, seal is not None, closes, must_be_empty]
        answer, *held = await self._connections.run(SCRIPTS["seal"], values, texts)
        if held:
            seals.refuse_unless_empty(*held)
        return bool(answer)

    # ------------------------------------------------------------------ going out

    async def export(self, part: Part, after: str, limit: int) -> Shipment:
        place = int(after or 0) if part == "jobs" else 0
        texts: tuple[str, ...] = (after, "", "")
        if part == "edges":
            texts = (*edge_position(after), "")
        elif part == "steps":
            texts = step_place(after)
        pieces = [text.encode() for text in texts]
        reply = await self._connections.run(SCRIPTS["export"], [None, part, place, limit], pieces)
        if part == "rules":
            return _rules(*reply)
        if part == "letters":
            letters = tuple(map(codec.letter, reply))
            return Shipment(part=part, letters=letters, after=letters[-1].id if len(letters) == limit else None)
        if part == "edges":
            edges = tuple(codec.edge(*one) for one in reply)
            return Shipment(part=part, edges=edges, after=position_of(edges[-1]) if len(edges) == limit else None)
        if part == "steps":
            steps = tuple(codec.steps(reply))
            return Shipment(part=part, steps=steps, after=place_of_step(steps[-1]) if len(steps) == limit else None)
        # A change of a task's lane is applied to ready jobs page by page; a seal may come before the last page.
        lanes = await self._lanes()
        jobs = tuple(_to_its_lane(job, lanes) for job in codec.stored_jobs(*reply))
        return Shipment(part=part, jobs=jobs, after=str(jobs[-1].seq) if len(jobs) == limit else None)

    async def _lanes(self) -> dict[str, int]:
        """Return the lanes of tasks that have a dedicated one, or are parked."""
        apart = {one.rule.name: 3 for one in await self._reader.tasks() if _is_apart(one)}
        return apart | {one.task: 2 for one in await self._reader.pauses() if one.task is not None}

    # ------------------------------------------------------------------ coming in

    async def carry(self, move: str, shipment: Shipment) -> None:
        for _ in range(TRIES_MAX):
            text = await self._text()
            before = seals.check_carry(None if text is None else seals.read(text.decode()), move, shipment)
            after = seals.written(before.moved_on(shipment)).encode()
            pieces = [text or b"", after, *map(limits.entry_text, shipment.entries)]
            pieces += [piece for job in shipment.jobs for piece in codec.pieces(job)]
            pieces += [step.value or b"" for step in shipment.steps]
            [done] = await self._connections.run(SCRIPTS["carry"], _values(shipment, self._in_shard), pieces)
            if done < 0:
                raise seals.key_taken()
            if done:
                return
        raise BackendUnavailable("the seal of this store keeps changing. Try again.")


def _values(shipment: Shipment, in_shard: bool) -> list[Any]:
    return [
        None,
        [(one.name, limits.queue_rule(one, in_shard=in_shard)) for one in shipment.queues],
        [(one.name, limits.task_rule(one)) for one in shipment.tasks],
        [(*limits.place(one), limits.override_row(one)) for one in shipment.overrides],
        [(*limits.place(one), limits.flow(one)) for one in shipment.flows],
        [(one.name, one.version, one.declared) for one in shipment.entries],
        [(*limits.place(one), codec.named(one)) for one in shipment.pauses],
        [codec.record(job) for job in shipment.jobs],
        [(one.queue, one.task, one.key, codec.letter_line(one)) for one in shipment.letters],
        shipment.tick,
        shipment.seq,
        [codec.edge_line(edge) for edge in shipment.edges],
        [codec.step_line(step) for step in shipment.steps],
    ]


def _rules(tick: bytes, *stored: list[bytes]) -> Shipment:
    queues, tasks, overrides, flows, group_flows, entries, pauses = stored
    return Shipment(
        part="rules",
        queues=tuple(limits.queue_rules(queues)),
        tasks=tuple(limits.task_rules(tasks)),
        overrides=tuple(limits.overrides(overrides)),
        flows=tuple(limits.flows(flows, group_flows)),
        entries=tuple(limits.entries(entries)),
        pauses=tuple(limits.pauses(pauses)),
        tick=int(tick),
    )


def _is_apart(task: TaskRecord) -> bool:
    said = task.override
    limit = said.limit if said is not None and isinstance(said.limit, int) else task.rule.limit
    rate = said.rate if said is not None and isinstance(said.rate, Rate) else task.rule.rate
    says = said is not None and said.apart is True
    return task.rule.apart or says or (limit or UNLIMITED) < UNLIMITED or (rate is not None and not rate.none)


def _to_its_lane(job: StoredJob, lanes: Mapping[str, int]) -> StoredJob:
    if job.state is not State.READY:
        return job
    lane = lanes.get(job.task, 0 if job.group is None else 1)
    return job if job.lane == lane else replace(job, lane=lane)
