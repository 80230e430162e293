"""Pages of jobs over many shards.

Called by backend.py. A job's seq names its shard and its place there, so `before` points at one job. Where a page goes
on after that job is known at once in its own shard; in each other shard it is the first job that was stored before it,
which is found by halving, because within a shard seq grows with time.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ...records import JobQuery, JobRecord
from ..contract import Backend
from .asking import at_once
from .leasing import Stores
from .reading import newest_first
from .registry import Shards
from .sharding import ticket_parts


async def find(shards: Shards, stores: Stores, query: JobQuery) -> list[JobRecord]:
    """The page of jobs a query asks for."""
    if query.limit <= 0:
        return []
    names = shards.all() if query.queue is None else shards.of(query.queue)
    numbers = {name: shards.numbers[name] for name in names}
    borders: Mapping[str, int | None] = dict.fromkeys(names)
    if query.before is not None:
        borders = await _borders(shards.numbers, numbers, stores, query.before)

    async def page(name: str) -> list[JobRecord]:
        return await (await stores(name)).find(replace(query, before=borders[name]))

    found = (await at_once({name: page(name) for name in names})).of_all()
    return newest_first({numbers[name]: jobs for name, jobs in found.items()}, query.limit)


async def _borders(
    every: Mapping[str, int], wanted: Mapping[str, int], stores: Stores, before: int
) -> dict[str, int | None]:
    """In each shard, the seq below which its part of the page begins."""
    seq, number = ticket_parts(before)
    own = next((name for name, known in every.items() if known == number), None)
    mark = await _newest(await stores(own), seq + 1) if own is not None else None
    if mark is None:  # what stood there and all before it is gone
        return dict.fromkeys(wanted, 0)
    created_at = mark.created_at

    async def border(name: str) -> int:
        if name == own:
            return seq
        store = await stores(name)
        newest = await _newest(store, None)
        low, high = 0, 0 if newest is None else newest.seq + 1  # the border is in low … high
        while low < high:
            middle = (low + high + 1) // 2
            job = await _newest(store, middle)
            if job is None or (job.created_at, wanted[name]) < (created_at, number):
                low = middle
            else:
                high = job.seq
        return low

    return dict((await at_once({name: border(name) for name in wanted})).of_all())


async def _newest(store: Backend, before: int | None) -> JobRecord | None:
    """The newest job below a seq."""
    found = await store.find(JobQuery(before=before, limit=1))
    return found[0] if found else None
