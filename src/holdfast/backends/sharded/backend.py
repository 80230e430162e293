"""The router: the whole contract over many shards, each of them a complete store.

Called by the app, the worker and the command line through `ClusterBackend`. It knows nothing about Redis: how a shard
is made and where the registry is stored is passed in. A job is in exactly one shard, chosen by its group, else its key,
else its id; so what must be atomic for a job or a group is one step of one store. What spans shards is not atomic:

* a batch that spans shards is enqueued shard by shard. If one fails, `OutcomeUnknown` means that some jobs may be
  stored; repeating the call completes it. With on_conflict="raise" all shards are checked first, so that a taken key
  stores nothing; if another process takes the key between the check and the write, it is found too late for the shards
  already written.
* a batch whose jobs wait for each other is stored in one step; other shards follow (dependencies.py).
* ids and keys are unique within a shard: the same id or key with another group may be stored twice. A key over all
  queues (key_scope="global") is refused if there is more than one shard.
* the limit and rate of a queue are divided among its shards; those of a task, and its retention counts, among the
  shards of the queues it was ever enqueued in (divide.py). A limit with less than one for each is refused. They are
  shown as they were set.
* a tick is decided in one step at home; its jobs follow into their shards (cron.py).
* fences grow per shard, so per job and per group; two jobs in different shards may have the same. seqs are unique over
  all shards (formulas.py) and follow the clock, as far as the shards' clocks and loads agree.
* claim serves the queues in their order, and the shards of a queue at once by shares. Priority orders within a shard.
* a seal is in the registry and, as a copy that is enforced there, in every shard; see seals.py for seals halfway.
* find, dump and the like combine snapshots that were taken side by side, not at one instant.

If a shard is unreachable, claim, exchange, renew and the sweeps go on with the others and report what they could not
settle or renew (`unheard`); enqueue and operations on its jobs raise; so does whatever would return half a result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from ...errors import HoldfastError, JobNotFound, StoreSealed
from ...lifecycle import Settlement
from ...records import (
    Answer,
    ClaimRequest,
    Command,
    DeadLetter,
    Edit,
    Enqueued,
    Exchanged,
    Held,
    JobRecord,
    NewJob,
    Override,
    Part,
    Pause,
    Promoted,
    QueueRule,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    Shipment,
    TaskRule,
    Tick,
    Ticked,
    WorkerRecord,
)
from ...rollups import Recording
from ...steps import NewStep
from ..contract import Backend
from ..formulas import Numbering
from ..shard import Shard
from .cron import CronVerbs
from .dependencies import EdgeVerbs
from .enqueue import enqueue
from .fanout import SILENCE, at_once, spread
from .lease import HOME, LeaseVerbs
from .limits import LimitVerbs
from .move import MoveVerbs
from .places import parted, place_of_job, refuse_other_shard, shard_name
from .read import ShardedReader
from .registry import FRESH_SECONDS, Document, Shards
from .seals import SealVerbs

T = TypeVar("T")


class ShardedBackend(ShardedReader, Backend):
    """A store made of shards."""

    scheme: ClassVar[str] = "sharded"
    durable: ClassVar[bool] = True
    sharded: ClassVar[bool] = True

    def __init__(self, document: Document, make_shard: Callable[[str, Numbering], Shard]) -> None:
        self._make_shard = make_shard
        self._made: dict[str, Shard] = {}
        self._opened: set[str] = set()
        self._places = {}
        self._shards = Shards(document)
        self._leasing = LeaseVerbs(self._shards, self._store)
        self._ruling = LimitVerbs(self._shards, self._store)
        self._ticking = CronVerbs(self._home, self.enqueue, self.get, self.cancel)
        self._sealing = SealVerbs(self._shards, self._store, self._ticking)
        self._edges = EdgeVerbs(self._shards, self._store, self._leasing)
        self._moving = MoveVerbs(self._shards, self._store, self._edges)

    async def _store(self, name: str) -> Shard:
        """Return the shard of that name (or home), opened on first use."""
        store = self._made.get(name)
        if store is None:
            store = self._made[name] = self._make_shard(name, self._shards.numbering(name))
        if name not in self._opened:
            await store.open()
            self._opened.add(name)
        store.rule_step_max = self.rule_step_max
        return store

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        await self._home()
        if (await self._shards.refresh()).spreading:
            await self._sealing.finish()

    async def close(self) -> None:
        self._opened.clear()
        for store in self._made.values():
            await store.close()

    async def migrate(self) -> tuple[int, int]:
        await self._shards.refresh()
        found = await self._at_all([HOME, *self._shards.all()], lambda store: store.migrate())
        versions = list(found.of_all().values())
        return min(before for before, _ in versions), min(after for _, after in versions)

    async def clock(self) -> float:
        return await (await self._home()).clock()

    # ------------------------------------------------------------------ producing

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        await self._ruling.declare(rules, tasks, now)

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        try:
            return await self._enqueue(jobs, now)
        except StoreSealed:
            if not await self._sealing.finish_closing():
                raise
        return await self._enqueue(jobs, now)

    async def _enqueue(self, jobs: Sequence[NewJob], now: float | None) -> list[Enqueued]:
        registry = await self._ruling.ready_for(jobs, now)
        with suppress(JobNotFound):  # a parent, or what is to wait for a job, is not in its shard
            stored = await enqueue(registry, self._store, jobs, now)
            if stored is not None:
                return stored
        return await self._edges.enqueue(jobs, now)

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await self._ruling.known(set(worker.queues), now)
        await self._leasing.register(worker, now)

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        return await self._leasing.by_token(held, lambda store, part: store.begin(part, now))

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        return await self._leasing.renew(worker, held, seen_call, portrait, now)

    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        return await (await self._home()).command(worker, command, now)

    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        return await (await self._home()).answer(worker, command_id, result, refused=refused, now=now)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        return await self._leasing.by_token(reports, lambda store, part: store.report(part, now))

    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        async def ask(store: Backend, part: list[Held]) -> list[Answer]:
            return [await store.checkpoint(one, steps, now) for one in part]

        return (await self._leasing.by_token([held], ask))[0]

    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        answers = await self._leasing.by_token(settlements, lambda store, part: store.settle(part, now))
        await self._deliver_ends(settlements, now)
        return answers

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        if request is not None:
            await self._ruling.known(set(request.queues), now)
        answer = await self._leasing.exchange(settlements, releases, request, now)
        if answer.recovered:
            await self._deliver(now)
        elif settlements:
            await self._deliver_ends(settlements, now)
        if request is None or not answer.known or answer.leases:
            return answer
        registry = self._shards.registry  # a queue without a shard is claimed nowhere
        sealed = answer.sealed or (registry.seal if registry.closed else None)
        return replace(answer, sealed=None if sealed is not None and await self._sealing.finish_closing() else sealed)

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        registry = await self._ruling.ready_for(jobs, now)
        shard, _ = parted(settlement.token)

        async def settle(store: Backend, items: list[Settlement]) -> list[Answer]:
            return [await store.settle_with(items[0], jobs, now)]

        if all(shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards)) == shard for job in jobs):
            with suppress(JobNotFound):  # a parent, or what is to wait for a job, is not in its shard
                answer = (await self._leasing.by_token([settlement], settle))[0]
                await self._deliver(now, [shard])
                return answer
        return await self._edges.settle_with(settlement, jobs, now)

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        return await self._leasing.by_token(releases, lambda store, part: store.release(part, now))

    async def retire(self, worker: str, now: float | None = None) -> int:
        await self._shards.refresh(FRESH_SECONDS)
        return await self._leasing.retire(worker, now)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        found = await self._swept(
            limit, lambda store, part: store.recover(dead=dead, limit=part, now=now), len, also=[HOME]
        )
        if any(found):
            await self._deliver(now)
        return [end for ends in found for end in ends]

    # ------------------------------------------------------------------ sweeping

    async def _deliver(self, now: float | None, names: Iterable[str] | None = None) -> bool:
        """Deliver the notes of these shards, or of all. Costs nothing if no dependency has ever crossed shards."""
        if not self._edges.crossing:
            return False
        known = self._shards.all() if names is None else [one for one in names if self._shards.queue_of(one)]
        with suppress(HoldfastError):  # what was done is done; the next sweep tries again
            return await self._edges.deliver(now, known)
        return False

    async def _deliver_ends(self, settlements: Sequence[Settlement], now: float | None) -> None:
        if self._edges.crossing:
            await self._deliver(now, {parted(one.token)[0] for one in settlements})

    async def _swept(
        self,
        limit: int,
        verb: Callable[[Backend, int], Awaitable[T]],
        size: Callable[[T], int],
        also: Sequence[str] = (),
    ) -> list[T]:
        """Run a bounded pass over all shards, in random order so that none is always last."""
        await self._shards.refresh(FRESH_SECONDS)
        names = [*also, *self._shards.all()]
        random.shuffle(names)
        return await spread(limit, names, lambda name, part: self._at(name, lambda store: verb(store, part)), size)

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        with suppress(*SILENCE):
            await self._ticking.finish(now)
        found = await self._swept(
            limit,
            lambda store, part: store.promote(limit=part, now=now),
            lambda done: done.due + done.expired + done.revived,
        )
        due, expired, revived = (sum(getattr(d, name) for d in found) for name in ("due", "expired", "revived"))
        delivers = await self._deliver(now)
        # edges have a separate bound
        more = due + expired + revived >= limit or delivers or any(done.more for done in found)
        return Promoted(due=due, expired=expired, revived=revived, more=more)

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        return sum(await self._swept(limit, lambda store, part: store.refill(limit=part, now=now), int))

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        await self._ticking.finish(now)
        await self._ticking.forget(now)
        verb: Callable[[Backend, int], Awaitable[int]] = lambda store, part: store.prune(  # noqa: E731
            limit=part, older_than=older_than, now=now
        )
        return sum(await self._swept(limit, verb, int))

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        """Give every shard its part, at least one step each. A silent one is assumed to have more to do."""
        await self._shards.refresh(FRESH_SECONDS)
        names = [HOME, *self._shards.all()]
        part = max(1, limit // len(names))
        found = await self._at_all(names, lambda store: store.rearrange(limit=part, now=now))
        return any(found.of_some().values()) or bool(found.silent)

    async def record(self, recording: Recording, now: float | None = None) -> bool:
        """At home, whole: a recording is numbered, and positions of events grow in one place."""
        return await (await self._home()).record(recording, now)

    # ------------------------------------------------------------------ operating, one job at a time

    async def _where_it_is(self, now: float | None, verb: Callable[[Backend], Awaitable[T]]) -> T:
        """Run the verb on every shard at once: the one that has the job applies it, the others do not know the job."""
        missing: list[JobNotFound] = []

        async def ask(name: str) -> T | None:
            try:
                return await self._at(name, verb)
            except JobNotFound as error:
                missing.append(error)
                return None

        await self._shards.refresh()
        answers = await at_once({name: ask(name) for name in (*self._shards.all(), HOME)})
        for name, answer in answers.items():
            if answer is not None:
                await self._deliver(now, [name])
                return answer
        answers.of_all()
        raise max(missing, key=lambda error: len(str(error)))

    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.cancel(job_id, now, by=by, reason=reason))

    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.bury(job_id, reason, now, by=by))

    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.run_now(job_id, now, by=by))

    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        return await self._where_it_is(now, lambda store: store.signal(job_id, name, value, now, by=by))

    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.rejoin(job_id, now, by=by))

    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.revive(job_id, now, by=by))

    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.retry(job_id, now, by=by))

    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.annotate(job_id, text, now, by=by))

    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._where_it_is(now, lambda store: store.free_key(job_id, now, by=by))

    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        return await self._where_it_is(now, lambda store: store.discard(job_id, now, by=by))

    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        if edit.queue is not UNSET or edit.group is not UNSET:
            job = await self.get(job_id)
            if job is None:
                raise JobNotFound(job_id)
            refuse_other_shard(job, edit, self._shards.registry.queues[job.queue].shards)
        return await self._where_it_is(now, lambda store: store.edit(job_id, edit, now, by=by))

    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        shard = await self._shard_of(job_id) if self._edges.crossing else None
        if shard is not None:
            await self._edges.release(shard, job_id, now)
        self._places.pop(job_id, None)
        return await self._where_it_is(now, lambda store: store.delete(job_id, now, by=by))

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        await self._ruling.pause(pause, now)

    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        return await self._ruling.resume(pause, now, skip_dead=skip_dead)

    async def limit(self, override: Override, now: float | None = None) -> None:
        await self._ruling.limit(override, now)

    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        return await self._ruling.slow_down(queue, seconds, now)

    # ------------------------------------------------------------------ cron

    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        if tick.jobs:
            await self._ruling.ready_for(tick.jobs, now)
        return await self._ticking.tick(tick, now)

    # ------------------------------------------------------------------ moving to another store

    async def sealed(self) -> Seal | None:
        return await self._sealing.sealed()

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._sealing.seal(seal, instead_of)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._moving.export(part, after, limit)

    async def carry(self, move_id: str, shipment: Shipment) -> None:
        await self._sealing.sealed()  # a shipment is only carried when all shards are sealed
        await self._moving.carry(move_id, shipment)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        """The first shard with a wake-up ends the wait; one that cannot be listened to is left to polling."""
        await self._ruling.known(set(queues), None)
        names = [name for queue in queues for name in self._shards.of(queue)]

        async def listen(name: str) -> bool | None:
            try:
                return await self._at(name, lambda store: store.wait_for_work(queues, timeout))
            except SILENCE:
                return None

        waits = [asyncio.ensure_future(listen(name)) for name in names]
        pending = set(waits)
        try:
            async with asyncio.timeout(timeout):
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    heard = [wait.result() for wait in done if wait.result() is not None]
                    if heard:
                        return any(heard)
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return False
