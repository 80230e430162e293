"""A call runs as many commands with many jobs as with few: the server counts them.

bench/run --store redis --scenario growth measures the processor time of the same calls up to a million jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.records import ClaimRequest, NewJob, Override, Pause, QueueRule, WorkerRecord

from ...servers.valkey import Server

NOW = 2_000_000_000.0
SIZES = (200, 2000)
STEP, PER_GROUP, BULK = 10, 10, 500
UNCOUNTED = ("info", "config|resetstat", "evalsha", "eval", "script|load", "time")

Call = Callable[[RedisBackend], Awaitable[object]]


def _rule(group_limit: int) -> QueueRule:
    return QueueRule(name="grouped", group_order="relaxed", group_limit=group_limit)


def _claim(call: int) -> Call:
    request = ClaimRequest(worker="w", call=call, queues=("ready",), most=STEP, sweep_max=STEP)
    return lambda backend: backend.claim(request, now=NOW)


CALLS: dict[str, Call] = {
    "claim": _claim(1),
    "refill": lambda backend: backend.refill(limit=STEP, now=NOW),
    "groups": lambda backend: backend.groups("grouped", limit=STEP),
    "group": lambda backend: backend.group("same", "g0"),
    "waking": lambda backend: backend.waking(("grouped", "same")),
    "cancel": lambda backend: backend.cancel("ready-150", now=NOW),
    "promote": lambda backend: backend.promote(limit=STEP, now=NOW + 200.0),
    "declare": lambda backend: backend.declare([_rule(2)], now=NOW),
    "declare back": lambda backend: backend.declare([_rule(1)], now=NOW),
    "pause": lambda backend: backend.pause(Pause(task="t"), now=NOW),
    "claim while it is carried out": _claim(2),
    "rearrange": lambda backend: backend.rearrange(limit=STEP, now=NOW),
    "resume": lambda backend: backend.resume(Pause(task="t"), now=NOW),
    "limit": lambda backend: backend.limit(Override(task="t", limit=5), now=NOW),
    "lift": lambda backend: backend.limit(Override(task="t", limit=None), now=NOW),
    "wait for work": lambda backend: backend.wait_for_work(["ready"], 0.0),
    "recover": lambda backend: backend.recover(limit=STEP, now=NOW),
}
AFTER_THE_LAST_CHANGE = ("declare back", "pause", "resume", "limit", "lift")  # nothing is left of the one before


async def _filled(backend: RedisBackend, size: int) -> None:
    backend.rule_step_max = STEP
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=NOW)
    await backend.declare([_rule(1)], now=NOW)
    for queue, groups, delay in (("ready", 0, None), ("grouped", size // PER_GROUP, None), ("same", 1, None),
                                 ("due", size // PER_GROUP, 100.0)):  # fmt: skip
        jobs = [
            NewJob(id=f"{queue}-{n}", task="t", queue=queue, group=f"g{n % groups}" if groups else None, delay=delay)
            for n in range(size)
        ]
        for start in range(0, size, BULK):
            await backend.enqueue(jobs[start : start + BULK], now=NOW)


def _commands(client: redis.Redis) -> int:
    told = client.info("commandstats")
    return sum(one["calls"] for name, one in told.items() if name.removeprefix("cmdstat_") not in UNCOUNTED)


def test_a_call_carries_out_as_many_commands_behind_ten_times_the_jobs(mortal: Server) -> None:
    async def counted(size: int) -> dict[str, int]:
        backend = RedisBackend(mortal.plain_url, prefix=f"flat{size}", call_timeout=60.0)
        await _filled(backend, size)
        numbers: dict[str, int] = {}
        for name, call in CALLS.items():
            while name in AFTER_THE_LAST_CHANGE and await backend.rearrange(limit=size, now=NOW):
                pass
            client.config_resetstat()
            await call(backend)
            numbers[name] = _commands(client)
        await backend.close()
        return numbers

    with mortal.client() as client:
        few, many = (asyncio.run(counted(size)) for size in SIZES)
    assert min(few.values()) > 0
    assert {name: number for name, number in many.items() if number > 1.1 * few[name]} == {}
