"""Finds flaws in a store: unreadable records, indexes that disagree with them, entries that claims set aside.

Called by backend.py. Reads only, page by page: each page is one short script, which sees one instant, so a job that
moves meanwhile is not reported. What the server cannot check, such as rules and letters, is decoded here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...records import Flaw
from . import codec, limits
from .connection import Connections
from .keys import KEY_NAMES
from .scripts import SCRIPTS
from .shard import note

PAGE = 250
# Keys without a page of their own: a hint, known to the router alone, or fully checked by decoding (_HASHES); and the
# statistics, on which no job depends.
UNCHECKED = {"wake", "registry", "rules", "tasks", "overrides", "pauses", "entries"}
UNCHECKED |= {"rollups", "minutes", "hours", "recordings", "events"}
CHECKED = ("quarantine", "jobs", *(name for name in KEY_NAMES if name not in {"quarantine", "jobs", *UNCHECKED}))
_NOT_PRINTED = re.compile(r"[^\x20-\x7e]")


def _letter(_: bytes, packed: bytes) -> None:
    codec.letter(packed)


_HASHES: dict[str, Callable[[bytes, bytes], Any]] = {
    "rules": limits.queue_rule_of,
    "tasks": limits.task_rule_of,
    "overrides": limits.override_of,
    "flows": limits.flow_of,
    "group_flows": limits.flow_of,
    "pauses": limits.pause_of,
    "entries": limits.entry_of,
    "letters": _letter,
    "notes": note,
}


def _shown(name: bytes) -> str:
    """Make an id or name printable."""
    return _NOT_PRINTED.sub("?", name.decode(errors="replace"))


def _id_of(name: str, field: bytes) -> bytes:
    """Return the id to report: a letter without a key is stored under its job's id, behind a mark."""
    return field[1:] if name == "letters" and field.startswith(b"i") else field


class Flaws:
    """Finds flaws in one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._keys = dict(zip(KEY_NAMES, connections.keys, strict=True))

    async def flaws(self, limit: int) -> list[Flaw]:
        found: list[Flaw] = []
        async for flaw in self._all():
            if len(found) >= limit:
                break
            if flaw not in found:  # SCAN may return an entry twice
                found.append(flaw)
        return found

    async def _all(self) -> AsyncIterator[Flaw]:
        for what in CHECKED:
            async for flaw in self._pages(what):
                yield flaw
        for name, read in _HASHES.items():
            async for flaw in self._hash(name, read):
                yield flaw

    async def _pages(self, what: str) -> AsyncIterator[Flaw]:
        cursor = b"0"
        while True:
            cursor, lines = await self._connections.run(SCRIPTS["flaws"], [None, what, cursor.decode(), PAGE])
            for place, job_id, field, text in zip(lines[::4], lines[1::4], lines[2::4], lines[3::4], strict=True):
                if field == b"record":
                    field = b",".join(await self._bad_fields(job_id)) or field
                for one in field.split(b","):
                    yield Flaw(place=place.decode(), text=text.decode(), id=_shown(job_id), field=one.decode() or None)
            if cursor == b"0":
                return

    async def _bad_fields(self, job_id: bytes) -> list[bytes]:
        """Return the names of the fields that make a job's record unreadable."""
        packed = await self._connections.command("flaws", "HGET", self._keys["jobs"], job_id)
        _, bad = codec.fields(job_id.decode(errors="replace"), packed or b"")
        return [name.encode() for name in bad]

    async def _hash(self, name: str, read: Callable[[bytes, bytes], Any]) -> AsyncIterator[Flaw]:
        cursor = b"0"
        while True:
            cursor, flat = await self._connections.command("flaws", "HSCAN", self._keys[name], cursor, "COUNT", PAGE)
            for field, packed in zip(flat[::2], flat[1::2], strict=True):
                try:
                    read(field, packed)
                except codec.UNREADABLE:
                    yield Flaw(place=name, text="it cannot be read and is left out", id=_shown(_id_of(name, field)))
            if cursor == b"0":
                return
