"""The part of the model that needs no simulation: ceilings, bytes, depth of an index, random placement. Pure."""

from __future__ import annotations

import math
from functools import cache

from .planning import Costs

PAGE_BYTES = 8192
PAGE_FILL = 0.7  # of an index page, after inserts and deletes in the middle
SERIAL = 0.03  # of PostgreSQL's work, done by one core at a time: an assumption, not a measurement
NEGLIGIBLE = 1e-9
SAFE = 0.7  # share of a ceiling to plan with


def store_ceiling(costs: Costs, jobs_per_call: float, cores: int = 1) -> float:
    """Jobs per second that use up the store's processors, enqueueing and pruning included."""
    per_job = costs.exchange.at(jobs_per_call) / jobs_per_call + costs.chores
    return min(cores, costs.threads or cores) / per_job


def worker_ceiling(costs: Costs, jobs_per_call: float, runners: int) -> float:
    """Jobs per second that use up a worker's keeper or its runners, whichever is first."""
    keeper = costs.keeper.at(jobs_per_call) / jobs_per_call
    return min(1 / keeper, runners / costs.runner)


def one_by_one(costs: Costs, rtt: float) -> float:
    """Jobs per second of one strict group: each waits for the previous one's commit."""
    store = costs.grouped.at(1) + costs.sync
    return 1 / (rtt + store + costs.keeper.at(1) + costs.runner)


def effective_cores(cores: int, serial: float = SERIAL) -> int:
    """Amdahl's law: how many cores these are worth if a part of the work is done by one at a time."""
    return max(1, round(cores / (1 + serial * (cores - 1))))


def depth(rows: float, bytes_per_entry: float) -> int:
    """Levels of a B-tree, the root included."""
    fan_out = PAGE_BYTES * PAGE_FILL / bytes_per_entry
    return max(1, math.ceil(math.log(max(rows, 2)) / math.log(fan_out)))


@cache
def busiest_share(shards: int, nodes: int) -> float:
    """The average share of the busiest node if every shard is placed on a random node. 1/nodes would be even."""
    all_ways = math.pow(nodes, shards)
    expected = 0.0
    for most in range(shards):  # a mean is the sum of the probabilities of being above 0, 1, 2 …
        above = 1 - _ways(shards, nodes, most) / all_ways
        expected += above
        if above < NEGLIGIBLE:
            break
    return expected / shards


def _ways(shards: int, nodes: int, most: int) -> int:
    """The number of ways to place shards on nodes with at most `most` on any of them."""
    ways = [1] + [0] * shards  # by number of shards, on no node yet
    for _ in range(nodes):
        ways = [
            sum(math.comb(number, here) * ways[number - here] for here in range(min(most, number) + 1))
            for number in range(shards + 1)
        ]
    return ways[shards]


def typical_placing(shards: int, nodes: int) -> tuple[int, ...]:
    """The node of each shard: the first node has as many as the busiest has on average, the others share the rest."""
    if nodes == 1:
        return (0,) * shards
    busiest = round(busiest_share(shards, nodes) * shards)
    return (0,) * busiest + tuple(1 + place % (nodes - 1) for place in range(shards - busiest))


def hot_share(shards: int, hot: float) -> float:
    """The busiest shard's share if one group makes up `hot` of all jobs and the rest spreads evenly."""
    return hot + (1 - hot) / shards
