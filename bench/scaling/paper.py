"""The part of the model that needs no simulation: ceilings, bytes, depth of an index, chance among nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .planning import Costs

PAGE_BYTES = 8192
PAGE_FILL = 0.7  # of an index page, as inserts and deletes in the middle leave it
SERIAL = 0.03  # of PostgreSQL's work, done by one core at a time: an assumption, no measurement
SAFE = 0.7  # of a ceiling that one plans with


def store_ceiling(costs: Costs, jobs_per_call: float, cores: int = 1) -> float:
    """Jobs per second that use up the store's processors, enqueueing and pruning included."""
    per_job = costs.exchange.at(jobs_per_call) / jobs_per_call + costs.chores
    return min(cores, costs.threads or cores) / per_job


def worker_ceiling(costs: Costs, jobs_per_call: float, runners: int) -> float:
    """Jobs per second that use up a worker's keeper or its runners, whichever is first."""
    keeper = costs.keeper.at(jobs_per_call) / jobs_per_call
    return min(1 / keeper, runners / costs.runner)


def one_by_one(costs: Costs, rtt: float) -> float:
    """Jobs per second of one strict group: each waits for the commit of the one before."""
    store = costs.grouped.at(1) + costs.sync
    return 1 / (rtt + store + costs.keeper.at(1) + costs.runner)


def effective_cores(cores: int, serial: float = SERIAL) -> int:
    """Amdahl's law: what so many cores are worth if a part of the work is done by one at a time."""
    return max(1, round(cores / (1 + serial * (cores - 1))))


def depth(rows: float, bytes_per_entry: float) -> int:
    """Levels of a B-tree, the root included."""
    fan_out = PAGE_BYTES * PAGE_FILL / bytes_per_entry
    return max(1, math.ceil(math.log(max(rows, 2)) / math.log(fan_out)))


def busiest_share(shards: int, nodes: int) -> float:
    """The share of the busiest node, on average, if every shard falls on a node by chance. 1/nodes would be even."""
    total = 0.0
    for counts in _splits(shards, nodes):
        ways = math.factorial(shards) // math.prod(math.factorial(count) for count in counts)
        total += ways * max(counts)
    return total / float(nodes) ** shards / shards


def _splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _splits(total - first, parts - 1):
            yield (first, *rest)


def hot_share(shards: int, hot: float) -> float:
    """The busiest shard's share if one group makes up `hot` of all jobs and the rest spreads evenly."""
    return hot + (1 - hot) / shards
