"""What one claim hands out and does on Redis is bounded: it reads no body that it does not hand out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
import redis

from holdfast.backends.redis import codec
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.shard import OUTBOX_BYTES, Noted, Ties
from holdfast.backends.sharded.dependencies import _is_full
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, Override, QueueRule, TaskRule, WorkerRecord
from tests.servers.valkey import raw

BIG = b"x" * 100_000
NUMBER = 40


def _request(call: int, bytes_max: int, *, most: int = NUMBER, grouped: bool = False) -> ClaimRequest:
    held = NUMBER if grouped else None  # what a claim heeds only on the general path
    return ClaimRequest(worker="w", call=call, queues=("default",), most=most, bytes_max=bytes_max, most_by_group=held)


def _bodies_read(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(name, {}).get("calls", 0) for name in ("cmdstat_hget", "cmdstat_hmget"))


async def _filled(backend: RedisBackend) -> None:
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
    for number in range(NUMBER):
        await backend.enqueue([NewJob(id=f"j{number}", task="t", args=BIG)])


@pytest.mark.parametrize("is_old", [False, True], ids=["new store", "store made before"])
@pytest.mark.parametrize("general", [False, True], ids=["fast path", "general path"])
def test_a_claim_reads_only_the_bodies_it_hands_out(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str, general: bool, is_old: bool
) -> None:
    async def scenario() -> None:
        backend = make()
        await _filled(backend)
        if is_old:
            client.hdel(f"{{{prefix}}}:meta", "body_max")
        before = _bodies_read(client)
        got = await backend.claim(_request(1, 5 * len(BIG), grouped=general))
        assert [lease.id for lease in got.leases] == [f"j{number}" for number in range(5)]
        assert _bodies_read(client) - before < 30
        again = await backend.claim(_request(1, 2 * len(BIG), grouped=general))
        assert [lease.id for lease in again.leases] == ["j0", "j1"]
        rest = await backend.claim(_request(2, 10**9, most=2, grouped=general))
        assert [lease.id for lease in rest.leases] == ["j2", "j3"]
        await backend.close()

    asyncio.run(scenario())


def test_options_do_not_count_as_arguments(make: Callable[..., RedisBackend]) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
        options = b'{"timeout": 5}'
        jobs = [NewJob(id=f"j{number}", task="t", args=b"y" * 5000, options=options) for number in range(4)]
        await backend.enqueue(jobs)
        assert len((await backend.claim(_request(1, 15_000))).leases) == 3
        await backend.close()

    asyncio.run(scenario())


def test_a_big_group_is_counted_off_the_indexes(make: Callable[..., RedisBackend], client: redis.Redis) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
        await backend.declare([QueueRule(name="default", group_order="relaxed", group_limit=1000)])
        jobs = [NewJob(id=f"j{number}", task="t", group="g") for number in range(600)]
        await backend.enqueue(jobs)
        assert len((await backend.claim(_request(1, 10**9, most=150))).leases) == 150
        before = client.info("commandstats")["cmdstat_hmget"]["calls"]
        [group] = await backend.groups()
        assert client.info("commandstats")["cmdstat_hmget"]["calls"] - before < 10
        assert group.counts == {State.RUNNING: 150, State.READY: 256, State.WAITING: 194}
        await backend.close()

    asyncio.run(scenario())


def test_a_group_limit_as_high_as_it_goes_makes_no_more_ready_than_a_step_may(
    make: Callable[..., RedisBackend],
) -> None:
    """Thirty groups of 300 waiting jobs: each may have 256 ready. No script moves them all."""

    async def scenario() -> None:
        backend = make(call_timeout=60.0)
        await backend.open()
        for group in range(30):
            await backend.enqueue([NewJob(id=f"{group}-{n}", task="t", group=f"g{group}") for n in range(300)])
        await backend.declare([QueueRule(name="default", group_order="relaxed", group_limit=100_000)])
        ready = [(await backend.count())["default"][State.READY]]
        for _ in range(1000):
            more = await backend.rearrange()
            ready.append((await backend.count())["default"][State.READY])
            if not more:
                break
        assert ready[-1] == 30 * 256
        assert max(two - one for one, two in pairwise(ready)) < 1500
        assert ready[0] < 1500
        await backend.close()

    asyncio.run(scenario())


def test_a_changed_rule_costs_nothing_once_it_is_carried_out(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([NewJob(id=f"j{number}", task="t") for number in range(20)])
        backend.rule_step_max = 3
        await backend.declare([], [TaskRule(name="t", limit=5)])
        assert b"r" in raw(client.hget(f"{{{prefix}}}:meta", "used"))
        while await backend.rearrange(limit=3):
            pass
        assert b"r" not in raw(client.hget(f"{{{prefix}}}:meta", "used"))
        assert not client.exists(f"{{{prefix}}}:changes")
        await backend.close()

    asyncio.run(scenario())


def test_an_override_stored_before_it_could_say_apart_is_read(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.limit(Override(task="t", limit=3))
        client.hset(f"{{{prefix}}}:overrides", "tt", codec.pack([4, False]))
        [task] = await backend.tasks()
        assert task.override == Override(task="t", limit=4, rate=None, apart=None, weight=None)
        await backend.limit(Override(task="t", apart=True))
        [task] = await backend.tasks()
        assert task.override == Override(task="t", limit=4, rate=None, apart=True, weight=None)
        await backend.close()

    asyncio.run(scenario())


def test_a_look_at_the_outbox_brings_large_notes_a_few_at_a_time(make: Callable[..., RedisBackend]) -> None:
    """All of them in one reply would not come in time, and the next try would begin with the same."""

    async def scenario() -> None:
        backend = make()
        await backend.open()
        for number in range(NUMBER):
            note = Noted(id=f"j{number}", task="t", queue="elsewhere", args=BIG)
            await backend.enqueue_tied([], Ties(notes=(note,)))
        seen: list[str] = []
        after = 0
        while posts := await backend.outbox(500, after):
            sizes = [len(post.job.args) for post in posts if post.job is not None]
            assert sum(sizes[:-1]) < OUTBOX_BYTES
            assert _is_full(posts) or len(seen) + len(posts) == NUMBER
            seen += [post.name for post in posts]
            after = posts[-1].tick
        assert seen == [f"j{number}" for number in range(NUMBER)]
        await backend.close()

    asyncio.run(scenario())
