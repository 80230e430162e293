"""A job with thousands of edges: no script looks at all of them, and none is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.connection import Connections
from holdfast.backends.redis.keys import KEY_NAMES
from holdfast.backends.redis.prune import PRUNE_PAGE
from holdfast.backends.redis.scripts import Script
from holdfast.dependencies import PARENTS_MAX, PROPAGATE_MAX, OnParentFailure
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, JobQuery, NewJob, WorkerRecord

from ...servers import valkey

NOW = 1_800_000_000.0
DAY = 86_400.0
CHILDREN = 2_300  # more than two pages of those that one pass of prune looks at

Make = Callable[[str], RedisBackend]


@pytest.fixture
def make() -> Make:
    return valkey.fresh_stores()


def job(id: str, after: Sequence[str] = (), policy: OnParentFailure = "cancel") -> NewJob:
    return NewJob(
        id=id, task="t", queue="q", args=b"{}", after=tuple(after), on_parent_failure=policy, priority=0, max_stalls=3
    )


async def stored(backend: RedisBackend, *, live: bool) -> list[str]:
    """A cancelled parent with children that were cancelled with it; the last one is alive if asked for."""
    await backend.open()
    children = [f"child-{number:05}" for number in range(CHILDREN)]
    await backend.enqueue([job("parent")], now=NOW)
    for start in range(0, CHILDREN, 1000):
        names = children[start : start + 1000]
        jobs = [job(id, ["parent"], "run" if live and id == children[-1] else "cancel") for id in names]
        await backend.enqueue(jobs, now=NOW)
    await backend.cancel("parent", now=NOW)
    passes = 1
    while (await backend.promote(now=NOW)).more:
        passes += 1
    assert passes >= CHILDREN // PROPAGATE_MAX
    return children


async def prune(backend: RedisBackend) -> tuple[int, int]:
    """How many were removed in how many passes, until none is for a while."""
    removed = passes = idle = 0
    while idle < 5:
        done = await backend.prune(limit=100, now=NOW + 40 * DAY)
        removed, passes, idle = removed + done, passes + 1, 0 if done else idle + 1
    return removed, passes


def test_a_parent_of_thousands_goes_when_they_have_finished(make: Make) -> None:
    async def walk() -> None:
        backend = make("one")
        await stored(backend, live=False)
        await prune(backend)
        assert await backend.get("parent") is None
        assert await backend.find(JobQuery()) == []
        assert await backend.flaws() == []
        await backend.close()

    asyncio.run(walk())


def test_a_child_that_is_alive_keeps_it_however_many_have_finished(make: Make) -> None:
    async def walk() -> None:
        backend = make("one")
        children = await stored(backend, live=True)
        await prune(backend)
        parent, last = await backend.get("parent"), await backend.get(children[-1])
        assert parent is not None and parent.state is State.CANCELLED
        assert last is not None and last.state is State.READY
        assert [one.id for one in (await backend.relatives(children[-1])).parents] == ["parent"]
        assert await backend.flaws() == []
        await backend.close()

    asyncio.run(walk())


@pytest.mark.parametrize("limit", [1, 499, 500, 501, 1_200, 5_000])
def test_relatives_come_page_by_page(make: Make, limit: int) -> None:
    async def walk() -> None:
        backend = make("one")
        children = await stored(backend, live=True)
        await backend.enqueue([job("last", children, "run")], now=NOW)
        below, above = await backend.relatives("parent", limit=limit), await backend.relatives("last", limit=limit)
        assert [one.id for one in below.children] == children[:limit]
        assert [one.id for one in above.parents] == children[:limit]
        assert (below.more, above.more) == (limit < CHILDREN,) * 2
        assert (above.pending, below.pending) == (1, 0)
        beyond = await backend.relatives("last", limit=limit, beyond=children[9])
        assert [one.id for one in beyond.parents] == children[10 : 10 + limit]
        await backend.close()

    asyncio.run(walk())


def test_a_child_of_thousands_takes_its_edges_along(make: Make) -> None:
    async def walk() -> None:
        backend = make("one")
        children = await stored(backend, live=True)
        for name, parents in (("waits", children), ("met", children[:-1])):
            await backend.enqueue([job(name, parents, "run")], now=NOW)
            await backend.delete(name, now=NOW)
            assert (await backend.relatives(children[0])).children == ()
            assert (await backend.relatives(name)).parents == ()
        assert await backend.flaws() == []
        await backend.close()

    asyncio.run(walk())


# ----------------------------------------------------------------------------------------------------------------------
# As many edges as a job may have: what a script costs the server, counted


PARENTS = [f"{number:032x}" for number in range(PARENTS_MAX)]
PER_COMMAND = 1_000  # edges that one command adds or removes
EDGES_LOOKED_MAX = 5_000  # of all jobs that one pass of prune may remove: prune.lua
SEVERAL = 50  # commands of a script besides those for edges


def commands() -> Counter[str]:
    """How often the server has run each command so far, those of scripts included."""
    said: Any = valkey.shared_server().cleaner.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): facts["calls"] for name, facts in said.items()})


async def with_parents(backend: RedisBackend) -> None:
    await backend.open()
    for start in range(0, PARENTS_MAX, 1000):
        await backend.enqueue([job(id) for id in PARENTS[start : start + 1000]], now=NOW)


async def succeed(backend: RedisBackend, least: int) -> None:
    """Lease and settle at least this many jobs."""
    await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=NOW)
    settled, done, call = list[Settlement](), 0, 0
    while settled or done < least:
        call += 1
        most = 500 if done < least else 0
        request = ClaimRequest(worker="w", call=call, queues=("q",), most=most)
        leases = (await backend.exchange(settled, [], request, now=NOW)).leases
        settled = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        done += len(leases)
    while (await backend.promote(now=NOW)).more:
        pass


def test_a_job_of_ten_thousand_edges_costs_few_commands(make: Make) -> None:
    """Storing and deleting one take a step each: their commands have a thousand edges, and none is asked in vain."""

    async def walk() -> None:
        backend = make("one")
        await with_parents(backend)
        for met in (0, PARENTS_MAX // 2, PARENTS_MAX):
            await succeed(backend, PARENTS_MAX // 2 if met else 0)
            before = commands()
            await backend.enqueue([job(f"child-{met}", PARENTS, "run")], now=NOW)
            stored = commands() - before
            assert (await backend.relatives(f"child-{met}")).pending == PARENTS_MAX - met
            assert stored["zadd"] <= 2 * PARENTS_MAX / PER_COMMAND + 5
            assert stored.total() <= 3 * PARENTS_MAX / PER_COMMAND + SEVERAL
            before = commands()
            await backend.delete(f"child-{met}", now=NOW)
            gone = commands() - before
            statuses = 2 if 0 < met < PARENTS_MAX else 1  # those that its edges have
            assert gone["zrem"] <= statuses * PARENTS_MAX / PER_COMMAND + 5
            assert gone.total() <= statuses * PARENTS_MAX / PER_COMMAND + SEVERAL
            assert await backend.flaws() == []
        await backend.close()

    asyncio.run(walk())


def test_no_pass_of_prune_removes_more_than_a_page(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[int] = []
    lost: list[int] = []
    run, server = Connections.run, valkey.shared_server().cleaner

    async def counted(connections: Connections, script: Script, *values: Any, **more: Any) -> list[Any]:
        edges = connections.keys[KEY_NAMES.index("edges")]
        before = server.zcard(edges)
        reply = await run(connections, script, *values, **more)
        if script.verb == "prune":
            removed.append(reply[0])
            lost.append(before - server.zcard(edges))
        return reply

    async def walk() -> None:
        backend = make("one")
        await stored(backend, live=False)
        monkeypatch.setattr(Connections, "run", counted)
        passes = 0
        while await backend.get("parent") is not None or await backend.find(JobQuery(limit=1)):
            await backend.prune(limit=100_000, now=NOW + 40 * DAY)
            passes += 1
            assert passes < CHILDREN
        await backend.close()

    asyncio.run(walk())
    assert sum(removed) == CHILDREN + 1
    assert max(removed) == PRUNE_PAGE
    assert max(lost) <= EDGES_LOOKED_MAX
