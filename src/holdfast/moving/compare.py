"""Compare two stores row by row. Both are read side by side in pieces, so memory stays bounded.

Called by the mover before the target is opened. Read-only; both stores are sealed meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ..backends.contract import Backend
from ..records import PARTS, Part, Shipment, StoredJob
from .repeat import patiently

PIECE_BYTES_GOAL = 2 * 1024 * 1024
PIECE_ROWS_FIRST = 50
PIECE_ROWS_MAX = 1000
DIFFERENCES_SHOWN_MAX = 10

_encode = msgspec.json.Encoder().encode
_NUL, _NUL_SHOWN = b"\\u0000", "�".encode()


class PieceSize:
    """How many rows to request at once: as many as make up a few megabytes."""

    def __init__(self) -> None:
        self.rows = PIECE_ROWS_FIRST

    def learn(self, shipment: Shipment) -> None:
        number, size = len(shipment.jobs) + len(shipment.letters), len(_encode(shipment))
        if number:
            fitting = PIECE_BYTES_GOAL * number // size
            self.rows = max(1, min(fitting, 4 * self.rows, PIECE_ROWS_MAX))

    def shrink(self) -> None:
        self.rows = max(1, self.rows // 2)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, the digest of each side, and the first rows that differ."""

    rows: dict[str, int]  # by part and kind, of the source
    source_digest: str
    target_digest: str
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences and self.source_digest == self.target_digest


class _Tally:
    """One side: a digest over all its rows, in order."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def add(self, rows: Sequence[bytes]) -> None:
        for row in rows:
            self.digest.update(len(row).to_bytes(8, "big"))
            self.digest.update(row)


async def compare(source: Backend, target: Backend, say: Callable[[int], None]) -> Comparison:
    """Compare everything that a move copies; `say` is called with the number of jobs compared so far."""
    here, there = _Tally(), _Tally()
    counted: dict[str, int] = {}
    differences: list[str] = await _counts_apart(source, target)
    for part in PARTS:
        after: str | None = ""
        size = PieceSize()
        while after is not None and not differences:
            one = await patiently(partial(source.export, part, after, limit=size.rows))
            two = await patiently(partial(target.export, part, after, limit=size.rows))
            differences += _rows_apart(part, _rows(one), _rows(two), here, there)
            if one.after != two.after and not differences:
                differences.append(f"{part}: one side has more after {after!r}")
            for name, number in _numbers(one).items():
                counted[name] = counted.get(name, 0) + number
            say(counted.get("jobs", 0))
            size.learn(one)
            after = one.after
    return Comparison(
        rows=counted,
        source_digest=here.digest.hexdigest(),
        target_digest=there.digest.hexdigest(),
        differences=tuple(differences[:DIFFERENCES_SHOWN_MAX]),
    )


async def _counts_apart(source: Backend, target: Backend) -> list[str]:
    one, two = await patiently(source.count), await patiently(target.count)
    apart: list[str] = []
    for queue in sorted({*one, *two}):
        states = {*one.get(queue, {}), *two.get(queue, {})}
        for state in sorted(states):
            numbers = one.get(queue, {}).get(state, 0), two.get(queue, {}).get(state, 0)
            if numbers[0] != numbers[1]:
                apart.append(f"queue {queue}: {numbers[0]} {state} jobs in the source, {numbers[1]} in the target")
    return apart


def _numbers(piece: Shipment) -> dict[str, int]:
    return {
        "queues": len(piece.queues),
        "tasks": len(piece.tasks),
        "overrides": len(piece.overrides),
        "entries": len(piece.entries),
        "pauses": len(piece.pauses),
        "jobs": len(piece.jobs),
        "log_lines": sum(len(job.logs) for job in piece.jobs),
        "letters": len(piece.letters),
    }


def _rows(piece: Shipment) -> list[tuple[str, Any]]:
    """Every row with a readable name. Pauses and overrides are sorted because each store has its own order, and the
    number of shards is up to each store. GCRA states are left out: they lose their meaning after a while."""
    return [
        *((f"rule of queue {one.name}", replace(one, shards=1)) for one in piece.queues),
        *((f"rule of task {one.name}", one) for one in piece.tasks),
        *((f"override of {one.task or one.group or one.queue}", one) for one in sorted(piece.overrides, key=repr)),
        *((f"cron entry {one.name}", one) for one in piece.entries),
        *((f"pause of {one.task or one.group or one.queue}", one) for one in sorted(piece.pauses, key=repr)),
        *((f"job {job.id}", _as_it_counts(job)) for job in piece.jobs),
        *((f"dead letter {letter.id}", letter) for letter in piece.letters),
    ]


def _as_it_counts(job: StoredJob) -> StoredJob:
    """Ignore its lane: it follows from rules and pauses, which are compared; a sharded store sets it when it opens."""
    return replace(job, lane=0) if job.lane else job


def _rows_apart(
    part: Part, one: list[tuple[str, Any]], two: list[tuple[str, Any]], here: _Tally, there: _Tally
) -> list[str]:
    mine, other = [_plain(row) for _, row in one], [_plain(row) for _, row in two]
    here.add(mine)
    there.add(other)
    if mine == other:
        return []
    apart = [f"{name} differs" for (name, _), a, b in zip(one, mine, other, strict=False) if a != b]
    if len(one) != len(two):
        apart.append(f"{part}: {len(one)} rows here, {len(two)} there")
    return apart


def _plain(row: Any) -> bytes:
    """A row as text. Not every store's text can hold NUL; those that cannot keep the replacement character instead."""
    return _encode(row).replace(_NUL, _NUL_SHOWN)
