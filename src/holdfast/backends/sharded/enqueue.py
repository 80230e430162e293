"""Enqueue over many shards: divide a batch by shard, and return the results in the batch's order.

Called by backend.py. A batch for one shard is one step. A batch that spans shards is one step per shard; see backend.py
for what that means.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import BackendUnavailable, ConfigurationError, DuplicateJob, HoldfastError, OutcomeUnknown, StoreSealed
from ...lifecycle import Settlement
from ...records import Answer, Enqueued, NewJob
from ..contract import Backend, JobsApart
from .fanout import at_once
from .lease import LeaseVerbs, Stores
from .places import parted, place_of_job, shard_name
from .registry import Registry


async def enqueue(registry: Registry, stores: Stores, jobs: Sequence[NewJob], now: float | None) -> list[Enqueued]:
    """Store the jobs, each in its shard."""
    places: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        name = shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards))
        places.setdefault(name, []).append(place)
    if len(places) == 1:
        return await (await stores(next(iter(places)))).enqueue(jobs, now)
    if any(job.after or job.before for job in jobs):
        raise apart(next(job for job in jobs if job.after or job.before).id)
    parts = {name: [jobs[place] for place in found] for name, found in places.items()}
    choosy = [name for name, part in parts.items() if any(job.on_conflict == "raise" for job in part)]

    async def rehearse(name: str) -> None:
        await _refuse_duplicates(await stores(name), parts[name], now)

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


async def settle_with(
    registry: Registry, leasing: LeaseVerbs, settlement: Settlement, jobs: Sequence[NewJob], now: float | None
) -> Answer:
    """End a lease and store jobs in its shard; refuses jobs in another one."""
    shard, _ = parted(settlement.token)
    for job in jobs:
        if shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards)) != shard:
            raise JobsApart(
                f"job {job.id} cannot be stored together with the end of job {settlement.id}: they are in different "
                "shards. On a cluster ctx.enqueue() takes jobs of the same shard: of the same queue, if it is declared "
                "with shards=1, or of the same group. Use task.enqueue() for others; a repeated attempt repeats that."
            )

    async def settle(store: Backend, items: list[Settlement]) -> list[Answer]:
        return [await store.settle_with(items[0], jobs, now)]

    return (await leasing.by_token([settlement], settle))[0]


def apart(child: str, parent: str | None = None) -> ConfigurationError:
    """The refusal of a job that waits for one in another shard: ending that one and telling this is not one step."""
    whom = "others of its enqueue_many()" if parent is None else f"job {parent}"
    return JobsApart(
        f"job {child} cannot wait for {whom} in another shard. On a cluster a job and its parents must be in one "
        "shard: in one queue declared with shards=1, or in one group. Enqueue it in the handler of the last parent."
    )


async def _refuse_duplicates(store: Backend, jobs: Sequence[NewJob], now: float | None) -> None:
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
