"""How the free slots of one call are divided among the shards of a queue, round by round.

Called by leasing.py. Plain reckoning: it calls nobody. What the shards are given together is never more than what is
left: in all, of the queue, of every task with a cap of its own, and in bytes of arguments. A shard always leases one
job, whatever its size; what comes beyond the bytes that way is released (`within`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...records import CLAIM_BYTES_MAX, ClaimRequest, Lease, Release
from .sharding import shares


class Portion(NamedTuple):
    """What one shard may lease in one round."""

    most: int
    by_task: Mapping[str, int]
    bytes_max: int


NOTHING = Portion(0, {}, CLAIM_BYTES_MAX)


class QueueRoom:
    """What a call may still take of one queue, and which of its shards are worth asking for it."""

    def __init__(self, request: ClaimRequest, leases: Sequence[Lease], queue: str, shards: Sequence[str]) -> None:
        late = sum(lease.queue == queue for lease in leases)
        self._most = min(request.most - len(leases), request.most_by_queue.get(queue, request.most) - late)
        taken = Counter(lease.task for lease in leases)
        self._by_task = {task: given - taken[task] for task, given in request.most_by_task.items()}
        self._bytes = request.bytes_max - sum(len(lease.args) for lease in leases)
        self._open = list(shards)  # not asked yet, or used up what they were given
        self._capped: list[str] = []  # did not, but may have jobs of a task of which they were given too little
        self._without: set[tuple[str, str]] = set()  # (shard, task): did not use up what it was given of that task
        self._given: dict[str, Portion] = {}

    def next_round(self, may_ask: Callable[[str], bool]) -> dict[str, Portion]:
        """Whom to ask now for what; nobody: the queue is done."""
        candidates = [shard for shard in (*self._open, *self._capped) if may_ask(shard)]
        if self._most <= 0 or self._bytes <= 0 or not candidates:
            return {}
        caps: dict[str, dict[str, int]] = {shard: {} for shard in candidates}
        for task, left in self._by_task.items():
            takers = [shard for shard in candidates if (shard, task) not in self._without]
            parts = shares(max(left, 0), takers) if takers else {}
            for shard in candidates:
                caps[shard][task] = parts.get(shard, 0)
        asked = [shard for shard in candidates if shard in self._open or any(caps[shard].values())]
        if not asked:
            return {}
        given = shares(self._most, asked)
        each = max(1, self._bytes // len(given))
        self._given = {shard: Portion(most, caps[shard], each) for shard, most in given.items()}
        return self._given

    def heard(self, answers: Mapping[str, Sequence[Lease]]) -> None:
        """What the shards of this round leased; who did not answer is not asked again."""
        unasked = [shard for shard in self._open if shard not in self._given]
        more: list[str] = []
        capped = [shard for shard in self._capped if shard not in self._given]
        for shard, leases in answers.items():
            given, taken = self._given[shard], Counter(lease.task for lease in leases)
            self._most -= len(leases)
            sizes = [len(lease.args) for lease in leases]
            self._bytes -= sum(sizes)
            for task, cap in given.by_task.items():
                self._by_task[task] -= taken[task]
                if taken[task] < cap and len(leases) < given.most:
                    self._without.add((shard, task))
            cut_short = bool(leases) and sum(sizes) + max(sizes) > given.bytes_max
            if len(leases) >= given.most or (cut_short and max(sizes) <= self._bytes):
                more.append(shard)
            elif any(taken[task] >= cap and (shard, task) not in self._without for task, cap in given.by_task.items()):
                capped.append(shard)
        self._open, self._capped = [*unasked, *more], capped


def within(
    request: ClaimRequest, leases: Sequence[Lease], by_task: Mapping[str, int]
) -> tuple[list[Lease], list[Release]]:
    """The leases there is room for: slots in all, of their queue and their task, and bytes; and the others, to be given
    back. The first one fits, whatever its size."""
    kept: list[Lease] = []
    surplus: list[Release] = []
    size, full = 0, False
    by_queue, by_task = dict(request.most_by_queue), dict(by_task)
    for lease in leases:
        room = min(by_queue.get(lease.queue, request.most), by_task.get(lease.task, request.most))
        full = full or (bool(kept) and size + len(lease.args) > request.bytes_max)
        if len(kept) < request.most and room > 0 and not full:
            kept.append(lease)
            size += len(lease.args)
            by_queue[lease.queue] = by_queue.get(lease.queue, request.most) - 1
            by_task[lease.task] = by_task.get(lease.task, request.most) - 1
        else:
            surplus.append(Release(id=lease.id, token=lease.token))
    return kept, surplus


def turned(names: list[str], call: int) -> list[str]:
    """Another shard goes first in every call."""
    first = call % len(names) if names else 0
    return names[first:] + names[:first]
