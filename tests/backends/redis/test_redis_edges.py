"""A job with thousands of edges: no script looks at all of them, and none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from holdfast.backends.redis.backend import RedisBackend
from holdfast.dependencies import PROPAGATE_MAX, OnParentFailure
from holdfast.lifecycle import State
from holdfast.records import JobQuery, NewJob

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
