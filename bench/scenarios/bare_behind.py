"""The backlog scenario with bare commands on Redis, without any rules: shows the effect of a larger memory alone.

Called by backlog.py. It does to the server what an exchange does: settled jobs are read, leave `running`, go into
`finished` and `prunable` and are written back; the next ones are read, leave `ready`, go into `running`, are written
back, longer, and returned with their bodies. Values are about as long as the store's.
"""

from __future__ import annotations

import statistics
import time
import uuid

import redis

from ..processes import processor_seconds

BULK = 1000
KEYS = ("jobs", "bodies", "ready", "running", "finished", "prunable")
BARE = """
local call, batch = redis.call, tonumber(ARGV[1])
local gone, finished, prunable, back = {}, {}, {}, {}
if #ARGV > 1 then
    local records = call('HMGET', KEYS[1], unpack(ARGV, 2))
    for i = 2, #ARGV do
        local at = 2 * (i - 1)
        gone[i - 1] = 'w' .. '0123456789abcdef' .. 'default' .. ARGV[i]
        finished[at - 1], finished[at] = '0', 'o' .. 'default' .. '01234567' .. ARGV[i]
        prunable[at - 1], prunable[at] = '1790000000.1234567', ARGV[i]
        back[at - 1], back[at] = ARGV[i], string.sub(records[i - 1], 1, 130)
    end
    call('ZREM', KEYS[4], unpack(gone))
    call('ZADD', KEYS[5], unpack(finished))
    call('ZADD', KEYS[6], unpack(prunable))
    call('HSET', KEYS[1], unpack(back))
end
local members, ids, running, longer = call('ZRANGEBYLEX', KEYS[3], '-', '+', 'LIMIT', 0, batch), {}, {}, {}
for i = 1, #members do ids[i] = string.sub(members[i], -32) end
local records = call('HMGET', KEYS[1], unpack(ids))
for i = 1, #ids do
    running[2 * i - 1], running[2 * i] = '0', 'w' .. '0123456789abcdef' .. 'default' .. ids[i]
    longer[2 * i - 1], longer[2 * i] = ids[i], records[i] .. string.rep('x', 70)
end
call('ZREMRANGEBYLEX', KEYS[3], '[' .. members[1], '[' .. members[#members])
call('ZADD', KEYS[4], unpack(running))
call('HSET', KEYS[1], unpack(longer))
return { ids, records, call('HMGET', KEYS[2], unpack(ids)) }
"""


class BareBehind:
    """A server with this many jobs on it."""

    def __init__(self, url: str, server: int) -> None:
        self._client = redis.Redis.from_url(url)
        self._script = self._client.register_script(BARE)
        self._server = server
        self._added = 0

    def fill(self, jobs: int, index: str = "ready") -> None:
        for start in range(0, jobs, BULK):
            self._add(min(BULK, jobs - start), index)

    def _add(self, jobs: int, index: str) -> None:
        ids = [uuid.uuid4().hex for _ in range(jobs)]
        first, self._added = self._added, self._added + jobs
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hset("jobs", mapping={one: f"{one:x<100}" for one in ids})
        pipeline.hset("bodies", mapping=dict.fromkeys(ids, "y" * 16))
        pipeline.zadd(index, {f"default{place:020d}01234567{one}": 0 for place, one in enumerate(ids, first)})
        pipeline.zadd("seqs", {one: place for place, one in enumerate(ids, first)})
        pipeline.execute()

    def measure(self, exchanges: int, warm_up: int, batch: int) -> dict[str, float]:
        self.fill((exchanges + warm_up) * batch)
        seen: list[bytes] = []
        done: list[bytes] = []
        took: list[float] = []
        for number in range(warm_up + exchanges):
            if number == warm_up:
                used = processor_seconds(self._server)
            began = time.perf_counter()
            done = self._script(keys=KEYS, args=[batch, *done])[0]
            took.append(time.perf_counter() - began)
            seen += done
        used = processor_seconds(self._server) - used
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hdel("jobs", *seen)
        pipeline.hdel("bodies", *seen)
        pipeline.zrem("seqs", *seen)
        pipeline.delete("running", "finished", "prunable")
        pipeline.execute()
        return {"cpu_us": used / exchanges * 1e6, "exchange_ms": statistics.median(took[warm_up:]) * 1000}

    def close(self) -> None:
        self._client.close()
