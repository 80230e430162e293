"""The floor on Redis: a list of ids, a hash of arguments, a sorted set of deadlines, no framework. One pipeline
acknowledges the last batch and claims the next, BARE_BATCH at a time; each job's arguments are decoded.

BENCH_URL may name the nodes of a cluster, with commas: they are served in turn, each with keys of its own slots.
"""

from __future__ import annotations

import itertools
import os
import time

import apart
import redis
import tally
from redis.crc import key_slot

BATCH = int(os.environ.get("BARE_BATCH", "100"))
ARGUMENTS = tally.ARGUMENTS
SLOTS = 16384
CLAIM = """
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return false end
local deadlines = {}
for i = 1, #ids do deadlines[2 * i - 1], deadlines[2 * i] = ARGV[2], ids[i] end
redis.call('ZADD', KEYS[2], unpack(deadlines))
return { ids, redis.call('HMGET', KEYS[3], unpack(ids)) }
"""
SETTLE = """
redis.call('ZREM', KEYS[1], unpack(ARGV))
redis.call('HDEL', KEYS[2], unpack(ARGV))
return #ARGV
"""


class Node:
    """One server and the keys on it."""

    def __init__(self, url: str, place: int, nodes: int) -> None:
        self.client = redis.Redis.from_url(url)
        tags = (f"bare{number}" for number in itertools.count())
        tag = next(tag for tag in tags if nodes == 1 or key_slot(tag.encode()) * nodes // SLOTS == place)
        self.ready, self.running, self.bodies = (f"{{{tag}}}:{name}" for name in ("ready", "running", "bodies"))
        self.claim, self.settle = (self.client.script_load(script) for script in (CLAIM, SETTLE))
        self.held: list[bytes] = []

    def enqueue(self, numbers: range) -> int:
        ids = [f"{number:032x}" for number in numbers]
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hset(self.bodies, mapping=dict.fromkeys(ids, ARGUMENTS))
        pipeline.rpush(self.ready, *ids)
        pipeline.execute()
        return len(ids)

    def exchange(self) -> list[bytes]:
        pipeline = self.client.pipeline(transaction=False)
        if self.held:
            pipeline.evalsha(self.settle, 2, self.running, self.bodies, *self.held)
        deadline = str(int(time.time() * 1000) + 30_000)
        pipeline.evalsha(self.claim, 3, self.ready, self.running, self.bodies, str(BATCH), deadline)
        self.held, bodies = pipeline.execute()[-1] or ([], [])
        return bodies


def opened() -> list[Node]:
    urls = tally.URL.split(",")
    return [Node(url, place, len(urls)) for place, url in enumerate(urls)]


def prepare() -> None:
    for node in opened():
        node.client.flushdb()


def one(jobs: int) -> None:
    nodes = opened()
    tally.timed(jobs, lambda: [nodes[n % len(nodes)].enqueue(range(n, n + 1)) for n in range(jobs)])


def bulk(jobs: int, shape: str = "none") -> None:
    nodes = opened()
    pairs = list(zip(tally.chunks(jobs), itertools.cycle(nodes), strict=False))
    tally.timed(jobs, lambda: [node.enqueue(chunk) for chunk, node in pairs])


def work() -> None:
    nodes, handle = opened(), apart.Handler()
    while nodes:
        for node in nodes:
            for body in node.exchange():
                handle(body)
        nodes = [node for node in nodes if node.held]
    handle.close()


if __name__ == "__main__":
    tally.main(prepare=prepare, one=one, bulk=bulk, work=work)
