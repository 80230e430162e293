"""Enqueue over many shards: divide a batch by shard, and return the results in the batch's order.

Called by backend.py. A batch for one shard is one step. A batch that spans shards is one step per shard; see backend.py
for what that means. If its jobs wait for each other, dependencies.py stores it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import BackendUnavailable, DuplicateJob, HoldfastError, OutcomeUnknown, StoreSealed
from ...records import Enqueued, NewJob
from ..contract import Backend
from .fanout import at_once
from .lease import Stores
from .places import place_of_job, shard_name
from .registry import Registry


async def enqueue(
    registry: Registry, stores: Stores, jobs: Sequence[NewJob], now: float | None
) -> list[Enqueued] | None:
    """Store the jobs, each in its shard. None: some wait for others, and they are not all in one shard."""
    places: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        name = shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards))
        places.setdefault(name, []).append(place)
    if len(places) == 1:
        return await (await stores(next(iter(places)))).enqueue(jobs, now)
    if any(job.after or job.before for job in jobs):
        return None
    parts = {name: [jobs[place] for place in found] for name, found in places.items()}
    choosy = [name for name, part in parts.items() if any(job.on_conflict == "raise" for job in part)]

    async def rehearse(name: str) -> None:
        await refuse_duplicates(await stores(name), parts[name], now)

    (await at_once({name: rehearse(name) for name in choosy})).of_all()

    stored: dict[str, list[Enqueued]] = {}
    failed: list[HoldfastError] = []

    async def store(name: str) -> None:
        try:
            stored[name] = await (await stores(name)).enqueue(parts[name], now)
        except StoreSealed as error:  # a seal is spreading: some shards have it, some took their part before
            failed.append(error)

    # A part that may still be refused goes alone and before the others, so that a late refusal stores little.
    for names in (*([name] for name in choosy), [name for name in parts if name not in choosy]):
        answers = await at_once({name: store(name) for name in names})
        failed += answers.silent.values()
        if failed:
            break
    if failed:
        unchanged = not stored and all(isinstance(error, BackendUnavailable | StoreSealed) for error in failed)
        raise failed[0] if unchanged else OutcomeUnknown("enqueue") from failed[0]
    answered: dict[int, Enqueued] = {}
    for name, found in places.items():
        answered.update(zip(found, stored[name], strict=True))
    return [answered[place] for place in range(len(jobs))]


async def refuse_duplicates(store: Backend, jobs: Sequence[NewJob], now: float | None) -> None:
    """Raise for the first job that may not share its key, as its shard would, before any shard stores anything.

    A dry run: the batch is sent with two more jobs at its end that share a new key. So the shard refuses the batch,
    stores nothing, and names the first duplicate: one call by the index of keys, however many jobs there are.
    """
    key = secrets.token_hex(16)
    ends = [replace(jobs[0], id=f"{key}-{n}", key=key, group=None, on_conflict="raise") for n in range(2)]
    try:
        await store.enqueue([replace(job, args=b"{}") for job in (*jobs, *ends)], now)
    except DuplicateJob as error:
        if error.key != key:
            raise
