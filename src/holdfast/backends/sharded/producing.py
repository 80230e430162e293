"""Enqueue over many shards: a batch is divided by shard, and its answers come back in the batch's order.

Called by backend.py. A batch for one shard is one step. A batch that spans shards is one step per shard; see backend.py
for what that means.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import BackendUnavailable, DuplicateJob, HoldfastError, OutcomeUnknown, StoreSealed
from ...records import Enqueued, JobQuery, NewJob
from ..contract import Backend
from .asking import at_once
from .leasing import Stores
from .registry import Registry
from .sharding import place_of_job, shard_name

PAGE = 50


async def enqueue(registry: Registry, stores: Stores, jobs: Sequence[NewJob], now: float | None) -> list[Enqueued]:
    """Store the jobs, each in its shard."""
    places: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        name = shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards))
        places.setdefault(name, []).append(place)
    if len(places) == 1:
        return await (await stores(next(iter(places)))).enqueue(jobs, now)
    parts = {name: [jobs[place] for place in found] for name, found in places.items()}
    choosy = [name for name, part in parts.items() if any(job.on_conflict == "raise" for job in part)]
    for name in choosy:
        await _refuse_duplicates(await stores(name), parts[name], now)

    stored: dict[str, list[Enqueued]] = {}
    failed: list[HoldfastError] = []

    async def store(name: str) -> None:
        try:
            stored[name] = await (await stores(name)).enqueue(parts[name], now)
        except StoreSealed as error:  # a seal on its way: some shards have it, some took their part before
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


async def _refuse_duplicates(store: Backend, jobs: Sequence[NewJob], now: float | None) -> None:
    """Raise for the first job that may not share its key, as its shard would, before any shard stores anything."""
    ids: set[str] = set()
    keys: dict[tuple[str, ...], str] = {}
    for job in jobs:
        if job.key is None or job.id in ids or await store.get(job.id) is not None:
            continue
        logical = (job.key_scope, job.queue, job.task, job.key)
        taken = await _holder(store, job, now) or keys.get(logical)
        if taken is None:
            ids.add(job.id)
            keys[logical] = job.id
        elif job.on_conflict == "raise":
            raise DuplicateJob(job.key, taken)


async def _holder(store: Backend, job: NewJob, now: float | None) -> str | None:
    """Who holds the job's key in this shard; a window that has passed counts for nothing."""
    query = JobQuery(queue=job.queue, task=job.task, key=job.key, limit=PAGE)
    while found := await store.find(query):
        for one in found:
            if one.holds_key and one.key_scope == job.key_scope:
                at = await store.clock() if now is None else now
                return one.id if one.key_window is None or at < one.created_at + one.key_window else None
        query = replace(query, before=found[-1].seq)
    return None
