"""A set whose smallest member is always at hand: what keeps claims cheap however long the backlog is.

Called by the reference for lanes, groups' waiting jobs, due times, expiries, revivals and retention. It knows only
ranks and keys, never jobs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_ENTRIES_MIN = 64  # below this, stale entries are not worth a rebuild


class Ranked(Generic[K]):
    """Keys in the order of their ranks; add, remove and first cost O(log n)."""

    __slots__ = ("_entries", "_heap")

    def __init__(self) -> None:
        self._entries: dict[K, tuple[Any, K]] = {}
        self._heap: list[tuple[Any, K]] = []  # may hold entries that were removed since; `_entries` is the truth

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """The keys, in no order."""
        return iter(self._entries)

    def add(self, rank: Any, key: K) -> None:
        entry = (rank, key)
        self._entries[key] = entry
        heappush(self._heap, entry)

    def remove(self, key: K) -> None:
        entry = self._entries.pop(key)
        heap = self._heap
        if heap[0] is entry:
            heappop(heap)
        elif len(heap) > _STALE_ENTRIES_MIN + 2 * len(self._entries):
            heap[:] = self._entries.values()
            heapify(heap)

    def discard(self, key: K) -> None:
        if key in self._entries:
            self.remove(key)

    def first(self) -> tuple[Any, K] | None:
        """The smallest rank and its key; the key stays."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            # identity, not equality: a key that left and came back with the same rank has a new entry
            if entries.get(entry[1]) is entry:
                return entry
            heappop(heap)
        return None
