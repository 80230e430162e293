"""The plainest reading of the contract in Python: the reference that the stores are compared with.

Called by walks that go beside a store, by mutants, and as a shard of the router's tests. Shares no code with a store
but the pure functions that all of them use. Each verb is one critical section under one lock, held for no await, so
any loop and any thread may call it. Ships with nothing and never calls user code.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from holdfast.backends import seals
from holdfast.backends.formulas import ALONE, Numbering
from holdfast.backends.shard import News, Post, Shard, Ties, Unless
from holdfast.clock import Clock, SystemClock
from holdfast.dependencies import PROPAGATE_MAX, Relatives
from holdfast.lifecycle import Settlement, State
from holdfast.queries.pages import Look, Scanned
from holdfast.records import (
    Answer,
    ClaimRequest,
    Command,
    CronEntry,
    DeadLetter,
    Dump,
    Edit,
    Enqueued,
    Exchanged,
    GroupRecord,
    Held,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Mark,
    NewJob,
    Override,
    Part,
    Pause,
    Promoted,
    QueueRecord,
    QueueRule,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    Shipment,
    TaskRecord,
    TaskRule,
    Tick,
    Ticked,
    WorkerRecord,
    with_conflicts_kept,
)
from holdfast.rollups import EventPage, Recording, Rollup, RollupQuery
from holdfast.steps import NewStep, Steps
from holdfast.worker_status import bounded

from . import depending, editing, elsewhere, leasing, moving, operating, reading, remembering, stalling, ticking
from .rows import Instant, Row
from .store import Store
from .waiting import Wakeups

SCHEMA_VERSION = 1  # there is nothing to migrate


class ReferenceBackend(Shard):
    """A store of jobs in dictionaries."""

    scheme: ClassVar[str] = "reference"
    durable: ClassVar[bool] = False

    def __init__(self, clock: Clock | None = None, *, numbering: Numbering = ALONE) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._store = Store(numbering)
        self._sleepers = Wakeups()

    @contextlib.contextmanager
    def _step(self, now: float | None = None) -> Iterator[Instant]:
        """One critical section. It ends with every touched group refilled and every waiter woken."""
        with self._lock:
            store = self._store
            at = Instant(self._clock.wall(), self._clock.steady(), False) if now is None else Instant(now, now, True)
            store.wall = at.wall
            yield at
            depending.end_step(store, at.wall)
            store.refill_touched()
            if store.stirred:
                if len(self._sleepers):
                    self._sleepers.wake(store.stirred)
                store.stirred.clear()

    @contextlib.contextmanager
    def _open_step(self, now: float | None = None) -> Iterator[Instant]:
        """A step that a sealed store refuses."""
        with self._step(now) as at:
            self._store.refuse_sealed()
            yield at

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def migrate(self) -> tuple[int, int]:
        return SCHEMA_VERSION, SCHEMA_VERSION

    async def clock(self) -> float:
        return self._clock.wall()

    # ------------------------------------------------------------------ producing

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        with self._step(now):
            operating.declare(self._store, rules, tasks)

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        return await self.enqueue_tied(jobs, Ties(), now)

    async def enqueue_tied(self, jobs: Sequence[NewJob], ties: Ties, now: float | None = None) -> list[Enqueued]:
        with self._step(now) as at:
            if not ties.noted:
                self._store.refuse_sealed()
            answers = operating.enqueue(self._store, jobs, at.wall, ties)
        if len(jobs) == 1 and answers[0].created:  # its group has been refilled
            waits = self._store.jobs[jobs[0].id].state is State.WAITING
            return [Enqueued(answers[0].id, True, waits=waits)]
        return answers

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        with self._step(now) as at:
            leasing.register(self._store, worker, at)

    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        with self._step(now) as at:
            return leasing.exchange(self._store, (), (), request, at)

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        with self._step(now):
            return [leasing.begin(self._store, item) for item in held]

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        with self._step(now) as at:
            return leasing.renew(self._store, worker, held, seen_call, bounded(portrait), at)

    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        with self._step(now) as at:
            return leasing.command(self._store, worker, command, at)

    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        with self._step(now) as at:
            return leasing.answer(self._store, worker, command_id, result, refused, at)

    async def commands(self, worker: str) -> list[Command]:
        with self._lock:
            holder = self._store.workers.get(worker)
            return [] if holder is None else list(holder.commands)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        with self._step(now) as at:
            return [leasing.report(self._store, item, at) for item in reports]

    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        with self._step(now) as at:
            return remembering.checkpoint(self._store, held, steps, at.wall)

    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        with self._step(now) as at:
            return [leasing.settle(self._store, item, at) for item in settlements]

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        return await self.settle_tied(settlement, jobs, Ties(), now)

    async def settle_tied(
        self, settlement: Settlement, jobs: Sequence[NewJob], ties: Ties, now: float | None = None
    ) -> Answer:
        with self._step(now) as at:
            row = leasing.fenced(self._store, settlement.id, settlement.token)
            if row is not None and not row.cancel_requested:
                depending.check(self._store, jobs, at.wall, ties.parents)
                elsewhere.check(self._store, ties)
            answer = leasing.settle(self._store, settlement, at)
            if answer is Answer.OK:
                operating.enqueue(self._store, [with_conflicts_kept(job) for job in jobs], at.wall, ties)
            return answer

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        with self._step(now) as at:
            return leasing.exchange(self._store, settlements, releases, request, at)

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        with self._step(now) as at:
            return [leasing.release(self._store, item, at) for item in releases]

    async def retire(self, worker: str, now: float | None = None) -> int:
        with self._step(now) as at:
            return leasing.retire(self._store, worker, at)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        with self._step(now) as at:
            return stalling.recover(self._store, at, dead, limit)

    # ------------------------------------------------------------------ sweeping

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        with self._open_step(now) as at:
            return self._store.promote(at.wall, limit)

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        with self._open_step(now):
            made = 0
            for name in [name for name, group in self._store.groups.items() if len(group.waiting)]:
                if made < limit:
                    made += self._store.refill(name)
            return made

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        with self._open_step(now) as at:
            return operating.prune(self._store, limit, older_than, at.wall)

    async def record(self, recording: Recording, now: float | None = None) -> bool:
        with self._step(now) as at:
            return self._store.history.record(recording, at.wall)

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        with self._lock:
            return self._store.history.found(query)

    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        with self._lock:
            return self._store.history.events(after, limit)

    # ------------------------------------------------------------------ other shards

    async def watch(self, parents: Sequence[str], shard: str, now: float | None = None) -> list[News]:
        with self._step(now):
            return elsewhere.watch(self._store, parents, shard)

    async def unwatch(self, parent: str, shard: str) -> None:
        with self._lock:
            self._store.watchers.get(parent, {}).pop(shard, None)

    async def follow(self, news: Sequence[News], now: float | None = None) -> None:
        with self._step(now) as at:
            elsewhere.follow(self._store, news)
            depending.propagate(self._store, at.wall, PROPAGATE_MAX)

    async def let_go(self, parent: str, unless: Unless, now: float | None = None) -> str | None:
        with self._step(now):
            return elsewhere.let_go(self._store, parent, unless)

    async def outbox(self, limit: int, after: int = 0) -> list[Post]:
        with self._lock:
            return elsewhere.outbox(self._store, limit, after)

    async def delivered(self, posts: Sequence[Post]) -> None:
        with self._lock:
            elsewhere.delivered(self._store, posts)

    async def elsewhere(self, parents: Sequence[str]) -> Mapping[str, str]:
        with self._lock:
            known = self._store.elsewhere
            return {parent: known[parent].shard for parent in parents if parent in known}

    async def watchers(self, job_id: str) -> list[str]:
        with self._lock:
            return sorted(self._store.watchers.get(job_id, ()))

    # ------------------------------------------------------------------ operating

    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        with self._step(now) as at:
            return reading.job_record(operating.cancel(self._store, job_id, at.wall, by, reason))

    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        with self._open_step(now) as at:
            return reading.job_record(operating.bury(self._store, job_id, reason, at.wall, by))

    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._brought_into_play(operating.run_now, job_id, now, by)

    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        with self._open_step(now) as at:
            row = remembering.signal(self._store, job_id, name, value, at.wall, by)
            self._store.refill_touched()
            return reading.job_record(row)

    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._brought_into_play(operating.rejoin, job_id, now, by)

    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._brought_into_play(operating.revive, job_id, now, by)

    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._brought_into_play(operating.retry, job_id, now, by)

    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        with self._open_step(now) as at:
            return reading.job_record(operating.annotate(self._store, job_id, text, at.wall, by))

    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        with self._open_step(now) as at:
            return reading.job_record(operating.free_key(self._store, job_id, at.wall, by))

    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        with self._open_step(now) as at:
            return operating.discard(self._store, job_id, at.wall, by)

    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        with self._open_step(now) as at:
            row = editing.edit(self._store, job_id, edit, at.wall, by)
            self._store.refill_touched()
            return reading.job_record(row)

    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        with self._open_step(now) as at:
            return reading.job_record(editing.delete(self._store, job_id, at.wall))

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        with self._open_step(now) as at:
            operating.pause(self._store, pause, at.wall)

    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        with self._open_step(now) as at:
            return operating.resume(self._store, pause, at.wall, skip_dead=skip_dead)

    async def limit(self, override: Override, now: float | None = None) -> None:
        with self._open_step(now):
            operating.limit(self._store, override)

    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        with self._open_step(now) as at:
            return operating.slow_down(self._store, queue, seconds, at.wall)

    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        with self._open_step(now) as at:
            return ticking.tick(self._store, tick, at.wall)

    async def _brought_into_play(
        self, verb: Callable[[Store, str, float, str], Row], job_id: str, now: float | None, by: str
    ) -> JobRecord:
        with self._open_step(now) as at:
            row = verb(self._store, job_id, at.wall, by)
            self._store.refill_touched()  # what is shown is where the job stands after its group was refilled
            return reading.job_record(row)

    # ------------------------------------------------------------------ reading

    async def get(self, job_id: str) -> JobRecord | None:
        with self._lock:
            row = self._store.jobs.get(job_id)
            return None if row is None else reading.job_record(row)

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        with self._lock:
            return reading.ended(self._store, job_ids)

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        with self._lock:
            return reading.scan_jobs(self._store, query, look)

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        with self._lock:
            return reading.counts(self._store, queue)

    async def logs(self, job_id: str) -> list[LogLine]:
        with self._lock:
            return list(self._store.logs.get(job_id, ()))

    async def marks(self, job_id: str) -> list[Mark]:
        with self._lock:
            return list(self._store.marks.get(job_id, ()))

    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        with self._lock:
            return depending.relatives(self._store, job_id, limit, values=values, beyond=beyond)

    async def steps(self, job_id: str) -> Steps:
        with self._lock:
            return Steps(now=self._clock.wall(), steps=remembering.of_job(self._store, job_id))

    async def letter(self, job_id: str) -> DeadLetter | None:
        with self._lock:
            logical = self._store.letter_of.get(job_id)
            return None if logical is None else reading.with_options(self._store, self._store.letters[logical])

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        with self._lock:
            return reading.find_letters(self._store, query)

    async def queues(self) -> list[QueueRecord]:
        with self._lock:
            return reading.queue_records(self._store)

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        with self._lock:
            return reading.group_records(self._store, queue, limit)

    async def group(self, queue: str, name: str) -> GroupRecord:
        with self._lock:
            return reading.group_record(self._store, (queue, name))

    async def waking(self, queues: Sequence[str]) -> bool:
        with self._lock:
            return any(queue in queues for queue, _, _ in self._store.waking)

    async def tasks(self) -> list[TaskRecord]:
        with self._lock:
            return reading.task_records(self._store)

    async def entries(self) -> list[CronEntry]:
        with self._lock:
            return [entry for _, entry in sorted(self._store.entries.items())]

    async def pauses(self) -> list[Pause]:
        with self._lock:
            return reading.by_scope(self._store.pauses)

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        with self._step(now) as at:
            return [reading.worker_record(holder, at) for holder in self._store.workers.values()]

    async def dump(self) -> Dump:
        with self._lock:
            return reading.dump(self._store)

    # ------------------------------------------------------------------ moving to another store

    async def sealed(self) -> Seal | None:
        with self._lock:
            return self._store.seal

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        with self._lock:
            return moving.seal(self._store, seal, instead_of)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        with self._lock:
            return moving.export(self._store, part, after, limit)

    async def carry(self, move: str, shipment: Shipment) -> None:
        with self._lock:
            moving.carry(self._store, seals.check_carry(self._store.seal, move, shipment), shipment)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        with self._lock:
            wall = self._clock.wall()
            claimable = any(self._store.claimable(queue, wall) for queue in queues)
            seconds = 0.0 if claimable else min(timeout, self._until_due(queues, wall))
            bed = self._sleepers.add(queues)
        try:
            await asyncio.wait((bed,), timeout=max(seconds, 0.0))
        finally:
            with self._lock:
                self._sleepers.remove(bed)
        return claimable

    def _until_due(self, queues: Sequence[str], wall: float) -> float:
        """Seconds until something may become claimable by itself."""
        store = self._store
        due, waking, opens_at = store.due.first(), store.waking.first(), store.opens_at(queues, wall)
        times = [first[0] if first is waking else first[0][0] for first in (due, waking) if first is not None]
        return float(min([*times, *([] if opens_at is None else [opens_at])], default=float("inf"))) - wall
