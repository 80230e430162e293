"""seal, export and carry on Redis: a store on its way to another one.

Called by backend.py. Each change is one script that looks at the seal and writes in the same step; the judging of seals
is done before, on the seal that was read, and the script makes sure that it is still that one.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...errors import BackendUnavailable
from ...lifecycle import State
from ...records import GroupLimit, Part, Pause, Seal, Shipment, StoredJob
from .. import sealing
from . import rows
from .connection import Connections
from .keys import KEY_NAMES
from .lua import SCRIPTS
from .reading import Reader, in_order, rules_of

TRIES_MAX = 10


class Moving:
    """The verbs of moving house on one store."""

    def __init__(self, connections: Connections, reader: Reader) -> None:
        self._connections, self._reader = connections, reader
        self._meta = connections.keys[KEY_NAMES.index("meta")]

    async def _text(self) -> bytes | None:
        text: bytes | None = await self._connections.command("sealed", "HGET", self._meta, "seal")
        return text

    async def sealed(self) -> Seal | None:
        text = await self._text()
        return None if text is None else sealing.read(text.decode())

    async def seal(self, seal: Seal | None, instead_of: Seal | None) -> bool:
        texts = [b"" if one is None else sealing.written(one).encode() for one in (instead_of, seal)]
        closes = seal is not None and seal.closed
        must_be_empty = sealing.is_new_target(seal, instead_of)
        values = [None, instead_of is not None, seal is not None, closes, must_be_empty]
        answer, *held = await self._connections.run(SCRIPTS["seal"], values, texts)
        if held:
            sealing.refuse_unless_empty(*held)
        return bool(answer)

    # ------------------------------------------------------------------ going out

    async def export(self, part: Part, after: str, limit: int) -> Shipment:
        place = int(after or 0) if part == "jobs" else 0
        reply = await self._connections.run(SCRIPTS["export"], [None, part, place, limit], [after.encode()])
        if part == "rules":
            return _rules(*reply)
        if part == "letters":
            letters = tuple(map(rows.letter, reply))
            return Shipment(part=part, letters=letters, after=letters[-1].id if len(letters) == limit else None)
        # The pause of a task, and its end, take hold of ready jobs page by page; a seal may come before the last page.
        paused = {one.task for one in await self._reader.pauses()}
        jobs = tuple(_to_its_lane(job, paused) for job in rows.stored_jobs(*reply))
        return Shipment(part=part, jobs=jobs, after=str(jobs[-1].seq) if len(jobs) == limit else None)

    # ------------------------------------------------------------------ coming in

    async def carry(self, move: str, shipment: Shipment) -> None:
        for _ in range(TRIES_MAX):
            text = await self._text()
            before = sealing.check_carry(None if text is None else sealing.read(text.decode()), move, shipment)
            after = sealing.written(before.moved_on(shipment)).encode()
            pieces = [text or b"", after, *(piece for job in shipment.jobs for piece in rows.pieces(job))]
            [done] = await self._connections.run(SCRIPTS["carry"], _values(shipment), pieces)
            if done < 0:
                raise sealing.key_taken()
            if done:
                return
        raise BackendUnavailable("the seal of this store is being changed by others all the time. Try again.")


def pause_place(pause: Pause) -> tuple[str, str | None, str | None]:
    """(kind, queue, name): what a pause is about."""
    if pause.task is not None:
        return "t", None, pause.task
    return ("q", pause.queue, None) if pause.group is None else ("g", pause.queue, pause.group)


def _values(shipment: Shipment) -> list[Any]:
    return [
        None,
        [(one.name, one.group_limit, one.group_order) for one in shipment.queues],
        [(one.queue, one.name, one.limit) for one in shipment.groups],
        [(*pause_place(one), rows.named(one)) for one in shipment.pauses],
        [rows.record(job) for job in shipment.jobs],
        [(one.queue, one.task, one.key, rows.letter_line(one)) for one in shipment.letters],
        shipment.tick,
        shipment.seq,
    ]


def _rules(rules: list[bytes], overrides: list[bytes], pauses: list[bytes], tick: bytes) -> Shipment:
    limits = [
        GroupLimit(queue=queue, name=name, limit=int(limit))
        for place, limit in zip(overrides[::2], overrides[1::2], strict=True)
        for queue, name in [rows.names_in(place)]
    ]
    return Shipment(
        part="rules",
        queues=tuple(sorted(rules_of(rules), key=lambda one: one.name)),
        groups=tuple(sorted(limits, key=lambda one: (one.queue, one.name))),
        pauses=tuple(in_order(list(map(rows.pause, pauses)))),
        tick=int(tick),
    )


def _to_its_lane(job: StoredJob, paused: set[str | None]) -> StoredJob:
    if job.state is not State.READY:
        return job
    lane = 2 if job.task in paused else 0 if job.group is None else 1
    return job if job.lane == lane else replace(job, lane=lane)
