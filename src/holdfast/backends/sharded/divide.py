"""Divides what spans shards: limits, rates and counts among a queue's or task's shards, and the room of one claim.

Called by limits.py, move.py, seals.py and lease.py. Pure. The parts of a limit add up to it, and so do those of a rate
that allows at least one start per shard; a lower rate is slowed down in every shard instead. Rules of a group are never
divided, because a group is in one shard. What a claim gives the shards together is never more than what is left: in
all, of the queue, of every task with a cap, and in bytes of arguments. A shard always leases one job, whatever its
size; leases beyond the bytes are released (`within`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...errors import ConfigurationError
from ...rates import UNLIMITED, Rate
from ...records import CLAIM_BYTES_MAX, ClaimRequest, Flow, Lease, Override, QueueRule, Release, Shipment, TaskRule
from .places import place_of, shard_name, shares
from .registry import Registry

Scope = tuple[str | None, str | None, str | None]  # queue, group, task


def refuse_too_small(limit: object, shards: int, what: str) -> None:
    """Refuse a limit that would leave a shard without a slot: its jobs would never run."""
    if isinstance(limit, int) and limit < shards:
        raise ConfigurationError(
            f"the limit of {what} is divided among {shards} shards, so it must be at least {shards}, not {limit}. "
            "Raise the limit, or lower shards=."
        )


def limit_share(limit: int | None, shards: int, place: int) -> int | None:
    """Return the part of one shard; the first ones get the remainder. Never below 1, which would stop it."""
    if limit is None or limit >= UNLIMITED:
        return limit
    return max(1, limit // shards + (place < limit % shards))


def count_share(count: int | None, shards: int) -> int | None:
    """Return how many of `count` jobs each shard keeps: rounded up, so together they may keep a few more."""
    return None if count is None else -(-count // shards)


def rate_share(rate: Rate | None, shards: int, place: int) -> Rate | None:
    """Return the part of one shard. With fewer starts than shards, each gets one in an accordingly longer window."""
    if rate is None or rate.none or shards == 1:
        return rate
    burst = None if rate.burst is None else max(1, rate.burst // shards + (place < rate.burst % shards))
    if rate.count < shards:
        return Rate(1, rate.seconds * shards / rate.count, burst)
    return Rate(rate.count // shards + (place < rate.count % shards), rate.seconds, burst)


def queue_share(rule: QueueRule, shards: int, place: int) -> QueueRule:
    return replace(
        rule, limit=limit_share(rule.limit, shards, place), rate=rate_share(rule.rate, shards, place), shards=1
    )


def task_share(rule: TaskRule, shards: int, place: int) -> TaskRule:
    return replace(
        rule,
        limit=limit_share(rule.limit, shards, place),
        rate=rate_share(rule.rate, shards, place),
        retain_count=count_share(rule.retain_count, shards),
        retain_dead_count=count_share(rule.retain_dead_count, shards),
    )


def override_share(override: Override, shards: int, place: int) -> Override:
    """Divide an operator's override as stored: None where nothing is set, which resets what a shard may still have."""
    limit = limit_share(override.limit, shards, place) if isinstance(override.limit, int) else None
    rate = rate_share(override.rate, shards, place) if isinstance(override.rate, Rate) else None
    apart = override.apart if isinstance(override.apart, bool) else None
    weight = override.weight if isinstance(override.weight, int) else None
    return replace(override, limit=limit, rate=rate, apart=apart, weight=weight)


def concerning(rules: Shipment, registry: Registry, queue: str, place: int) -> Shipment:
    """Return one shard's part of the rules of its queue and groups. For tasks, see `task_rules_for`."""
    entry = registry.queues[queue]
    shards = max(entry.shards, place + 1)  # a shard no longer in use also gets a part, and has no job to use it

    def is_here(override: Override | Flow) -> bool:
        return override.queue == queue and (override.group is None or place_of(override.group, entry.shards) == place)

    return Shipment(
        part="rules",
        queues=tuple(queue_share(rule, shards, place) for rule in rules.queues if rule.name == queue),
        overrides=tuple(
            override_share(override, shards, place) if override.group is None else override
            for override in rules.overrides
            if is_here(override)
        ),
        flows=tuple(flow for flow in rules.flows if is_here(flow)),
        pauses=tuple(
            one
            for one in rules.pauses
            if one.task is not None
            or (one.queue == queue and (one.group is None or place_of(one.group, entry.shards) == place))
        ),
    )


def task_rules_for(rules: Shipment, registry: Registry, queue: str, place: int) -> Shipment:
    """Return one shard's part of the rules of the tasks that have jobs in its queue."""
    name = shard_name(queue, place)
    spread = {task: registry.shards_of_task(task) for task in registry.tasks}
    here = {task: (len(names), names.index(name)) for task, names in spread.items() if name in names}
    return Shipment(
        part="rules",
        tasks=tuple(task_share(rule, *here[rule.name]) for rule in rules.tasks if rule.name in here),
        overrides=tuple(
            override_share(override, *here[override.task])
            for override in rules.overrides
            if override.task is not None and override.task in here
        ),
        flows=tuple(flow for flow in rules.flows if flow.task is not None and flow.task in here),
    )


def override_of(overrides: Iterable[Override], scope: Scope) -> Override:
    """Return the operator's override of that scope, or an empty one."""
    queue, group, task = scope
    nothing = Override(queue=queue, group=group, task=task, limit=None, rate=None, apart=None, weight=None)
    return next((one for one in overrides if (one.queue, one.group, one.task) == scope), nothing)


def refuse_undividable(
    registry: Registry, queues: Iterable[str], tasks: Iterable[str], overrides: Iterable[Override]
) -> None:
    """Refuse a limit of these queues and tasks, declared or overridden, that has less than one for each shard."""
    for queue in queues:
        entry, word = registry.queues[queue], override_of(overrides, (queue, None, None))
        for limit in (word.limit, None if entry.rule is None else entry.rule.limit):
            refuse_too_small(limit, entry.shards, f"queue {queue!r}")
    for task in tasks:
        rule, word = registry.tasks[task].rule, override_of(overrides, (None, None, task))
        for limit in (word.limit, None if rule is None else rule.limit):
            refuse_too_small(limit, len(registry.shards_of_task(task)), f"task {task!r}")


# The room of one claim, divided among the shards of a queue, round by round.


class Portion(NamedTuple):
    """How much one shard may lease in one round."""

    most: int
    by_task: Mapping[str, int]
    bytes_max: int
    chain: int = 1  # consecutive jobs of a strict group that may be leased together
    chained_max: int = 0  # of these, all but the first, over all groups


NOTHING = Portion(0, {}, CLAIM_BYTES_MAX)
FEW_ROUNDS = 3  # if a few shards do not have enough, a few others may; then all are asked


class QueueRoom:
    """How much a claim may still take from one queue, and which of its shards may have more."""

    def __init__(
        self,
        request: ClaimRequest,
        leases: Sequence[Lease],
        queue: str,
        shards: Sequence[str],
        few: Callable[[Sequence[str], int, Collection[str]], Sequence[str]] | None = None,
    ) -> None:
        first = [lease for lease in leases if not lease.chained]
        late = sum(lease.queue == queue for lease in first)
        self._most = min(request.most - len(first), request.most_by_queue.get(queue, request.most) - late)
        self._chain = request.chain_by_queue.get(queue, 1)
        self._chained = request.chained_max - (len(leases) - len(first)) if self._chain > 1 else 0
        taken = Counter(lease.task for lease in leases)
        self._by_task = {task: given - taken[task] for task, given in request.most_by_task.items()}
        self._bytes = request.bytes_max - sum(len(lease.args) for lease in leases)
        self._open = list(shards)  # not asked yet, or used up their portion
        self._few, self._rounds = few, 0  # which of these shards to ask for so many jobs, in the first rounds
        self._asked: set[str] = set()
        self._capped: list[str] = []  # did not, but may have jobs of a task whose portion was too small
        self._without: set[tuple[str, str]] = set()  # (shard, task): did not use up its portion of that task
        self._given: dict[str, Portion] = {}

    def next_round(self, may_ask: Callable[[str], bool]) -> dict[str, Portion]:
        """Return the portions of the next round; empty: the queue is done."""
        candidates = [shard for shard in (*self._open, *self._capped) if may_ask(shard)]
        if self._most <= 0 or self._bytes <= 0 or not candidates:
            return {}
        self._rounds += 1
        if self._few is not None and self._rounds <= FEW_ROUNDS:
            candidates = list(self._few(candidates, self._most, self._asked)) or candidates
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
        chained = max(0, self._chained // len(given))
        self._given = {shard: Portion(most, caps[shard], each, self._chain, chained) for shard, most in given.items()}
        self._asked |= set(given)
        return self._given

    @property
    def is_filled(self) -> bool:
        """Whether the shards had as many jobs as there was room for."""
        return self._most <= 0

    def heard(self, answers: Mapping[str, Sequence[Lease]]) -> None:
        """Record what the shards of this round leased; one that did not reply is not asked again."""
        unasked = [shard for shard in self._open if shard not in self._given]
        more: list[str] = []
        capped = [shard for shard in self._capped if shard not in self._given]
        for shard, leases in answers.items():
            given, taken = self._given[shard], Counter(lease.task for lease in leases)
            first = sum(not lease.chained for lease in leases)
            self._most -= first
            self._chained -= len(leases) - first
            sizes = [len(lease.args) for lease in leases]
            self._bytes -= sum(sizes)
            for task, cap in given.by_task.items():
                self._by_task[task] -= taken[task]
                if taken[task] < cap and first < given.most:
                    self._without.add((shard, task))
            cut_short = bool(leases) and sum(sizes) + max(sizes) > given.bytes_max
            if first >= given.most or (cut_short and max(sizes) <= self._bytes):
                more.append(shard)
            elif any(taken[task] >= cap and (shard, task) not in self._without for task, cap in given.by_task.items()):
                capped.append(shard)
        self._open, self._capped = [*unasked, *more], capped


def within(
    request: ClaimRequest, leases: Sequence[Lease], by_task: Mapping[str, int]
) -> tuple[list[Lease], list[Release]]:
    """Split leases into those with room (slots in all, of their queue and their task, and bytes) and those to release.
    The first one fits, whatever its size; none does behind one of its chain that does not."""
    kept: list[Lease] = []
    surplus: list[Release] = []
    size, full, most, chained = 0, False, request.most, request.chained_max
    cut: set[tuple[str, str | None]] = set()  # groups whose chains end
    by_queue, by_task = dict(request.most_by_queue), dict(by_task)
    for lease in leases:
        room = min(by_queue.get(lease.queue, request.most), by_task.get(lease.task, request.most))
        full = full or (bool(kept) and size + len(lease.args) > request.bytes_max)
        place = (lease.queue, lease.group)
        left = (0 if place in cut else chained) if lease.chained else min(most, room)
        if left <= 0 or full:
            surplus.append(Release(id=lease.id, token=lease.token))
            cut.add(place)
            continue
        kept.append(lease)
        size += len(lease.args)
        if lease.chained:
            chained -= 1
        else:
            most -= 1
            by_queue[lease.queue] = by_queue.get(lease.queue, request.most) - 1
            by_task[lease.task] = by_task.get(lease.task, request.most) - 1
    return kept, surplus


def turned(names: list[str], call: int) -> list[str]:
    """Rotate the shards, so that another one goes first in every call."""
    first = call % len(names) if names else 0
    return names[first:] + names[:first]
