"""How limits, rates and counts that span shards are divided among them, and what of all rules concerns one shard.

Called by ruling.py and moving.py. Pure. The parts of a limit add up to it, and so do those of a rate that allows at
least one start per shard; a rate below that is slowed down in every shard instead. What is said of a group is never
divided: a group is in one shard.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ...errors import ConfigurationError
from ...rates import UNLIMITED, Rate
from ...records import Shipment
from ...rules import Flow, Override, QueueRule, TaskRule
from .registry import Registry
from .sharding import place_of, shard_name

Scope = tuple[str | None, str | None, str | None]  # queue, group, task


def refuse_too_small(limit: object, shards: int, what: str) -> None:
    """Refuse a limit that would leave a shard without a place: its jobs would never run."""
    if isinstance(limit, int) and limit < shards:
        raise ConfigurationError(
            f"the limit of {what} is divided among {shards} shards, so it must be at least {shards}, not {limit}. "
            "Raise the limit, or lower shards=."
        )


def limit_share(limit: int | None, shards: int, place: int) -> int | None:
    """The part of one shard; the first ones get what is left over. Never below 1, which would stop it."""
    if limit is None or limit >= UNLIMITED:
        return limit
    return max(1, limit // shards + (place < limit % shards))


def count_share(count: int | None, shards: int) -> int | None:
    """How many of `count` jobs each shard keeps: rounded up, so together they may keep a few more."""
    return None if count is None else -(-count // shards)


def rate_share(rate: Rate | None, shards: int, place: int) -> Rate | None:
    """The part of one shard. With fewer starts than shards each gets one, in a window that is longer accordingly."""
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


def override_share(said: Override, shards: int, place: int) -> Override:
    """An operator's word as stored: None where nothing is said, which resets what a shard may still have."""
    limit = limit_share(said.limit, shards, place) if isinstance(said.limit, int) else None
    rate = rate_share(said.rate, shards, place) if isinstance(said.rate, Rate) else None
    return replace(said, limit=limit, rate=rate, apart=said.apart if isinstance(said.apart, bool) else None)


def concerning(rules: Shipment, registry: Registry, queue: str, place: int) -> Shipment:
    """What of all rules one shard of a queue must know of its queue and groups, divided. Tasks: `task_rules_for`."""
    entry = registry.queues[queue]
    shards = max(entry.shards, place + 1)  # one that is no longer used gets a part, too, and has no job to use it

    def is_here(said: Override | Flow) -> bool:
        return said.queue == queue and (said.group is None or place_of(said.group, entry.shards) == place)

    return Shipment(
        part="rules",
        queues=tuple(queue_share(rule, shards, place) for rule in rules.queues if rule.name == queue),
        overrides=tuple(
            override_share(said, shards, place) if said.group is None else said
            for said in rules.overrides
            if is_here(said)
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
    """What one shard of a queue must know of the tasks that have jobs in it, divided."""
    name = shard_name(queue, place)
    spread = {task: registry.shards_of_task(task) for task in registry.tasks}
    here = {task: (len(names), names.index(name)) for task, names in spread.items() if name in names}
    return Shipment(
        part="rules",
        tasks=tuple(task_share(rule, *here[rule.name]) for rule in rules.tasks if rule.name in here),
        overrides=tuple(
            override_share(said, *here[said.task])
            for said in rules.overrides
            if said.task is not None and said.task in here
        ),
        flows=tuple(flow for flow in rules.flows if flow.task is not None and flow.task in here),
    )


def said_of(overrides: Iterable[Override], scope: Scope) -> Override:
    """An operator's word of that scope; one that says nothing where there is none."""
    nothing = Override(queue=scope[0], group=scope[1], task=scope[2], limit=None, rate=None, apart=None)
    return next((said for said in overrides if (said.queue, said.group, said.task) == scope), nothing)


def refuse_undividable(
    registry: Registry, queues: Iterable[str], tasks: Iterable[str], overrides: Iterable[Override]
) -> None:
    """Refuse where a limit of these queues and tasks, declared or an operator's, has less than one for each shard."""
    for queue in queues:
        entry, word = registry.queues[queue], said_of(overrides, (queue, None, None))
        for limit in (word.limit, None if entry.rule is None else entry.rule.limit):
            refuse_too_small(limit, entry.shards, f"queue {queue!r}")
    for task in tasks:
        rule, word = registry.tasks[task].rule, said_of(overrides, (None, None, task))
        for limit in (word.limit, None if rule is None else rule.limit):
            refuse_too_small(limit, len(registry.shards_of_task(task)), f"task {task!r}")
