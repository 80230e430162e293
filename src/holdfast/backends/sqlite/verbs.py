"""The verbs of the contract on SQLite: each is one piece of work for a transaction or for a read.

Base class of the file store and the memory store, which run the pieces: on threads with their own connections, or
directly. Knows no connection, no thread and no rule: the rules are in the verb modules.
"""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ...clock import Clock, SystemClock, boot_id
from ...lifecycle import Settlement, State
from ...records import (
    Answer,
    ClaimRequest,
    CronEntry,
    DeadLetter,
    Dump,
    Enqueued,
    Exchanged,
    GroupRecord,
    Held,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
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
)
from ...worker_status import bounded
from ..contract import Backend
from . import cron, enqueue, lease, limits, move, operate, prune, read, read_rules, rearrange
from .transaction import Transaction

T = TypeVar("T")

BRING_NO_WORK = frozenset({"begin", "register", "report"})  # these need not wake anyone who waits for work


class SqliteVerbs(Backend):
    """Everything a job store does that does not depend on where its database is."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._boot = boot_id()
        self._refill_after = ("", "")

    @abstractmethod
    async def _write(
        self, verb: str, work: Callable[[Transaction], T], now: float | None, *, urgent: bool = False
    ) -> T:
        """Run the work completely or not at all. `urgent`: ahead of other queued requests."""

    @abstractmethod
    async def _read(self, verb: str, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Run a read on one consistent snapshot of the store."""

    def _transaction(self, cursor: sqlite3.Cursor, now: float | None) -> Transaction:
        if now is None:
            return Transaction(cursor, self._clock.wall(), self._clock.steady(), self._boot)
        return Transaction(cursor, now, now, "")

    async def clock(self) -> float:
        return self._clock.wall()

    # ------------------------------------------------------------------ producing

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        await self._write("declare", lambda tx: limits.declare(tx, rules, tasks, self.rule_step_max), now)

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        return await self._write("enqueue", lambda tx: enqueue.enqueue(tx, jobs), now)

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await self._write("register", lambda tx: lease.register(tx, worker), now, urgent=True)

    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        return await self.exchange((), (), request, now)

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        return await self._write("begin", lambda tx: lease.begin(tx, held), now)

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        shown = bounded(portrait)
        return await self._write("renew", lambda tx: lease.renew(tx, worker, held, seen_call, shown), now, urgent=True)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        return await self._write("report", lambda tx: lease.report(tx, reports), now)

    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        return list((await self.exchange(settlements, (), None, now)).answers)

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        return await self._write("exchange", lambda tx: lease.exchange(tx, settlements, releases, request), now)

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        return list((await self.exchange((), releases, None, now)).answers)

    async def retire(self, worker: str, now: float | None = None) -> int:
        return await self._write("retire", lambda tx: lease.retire(tx, worker), now)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        def work(tx: Transaction) -> list[Recovered]:
            recovered = lease.recover(tx, dead, limit)
            tx.close()
            return recovered

        return await self._write("recover", work, now)

    # ------------------------------------------------------------------ sweeping

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        def work(tx: Transaction) -> Promoted:
            tx.refuse_sealed()
            promoted = lease.promote(tx, limit)
            tx.close()
            return promoted

        return await self._write("promote", work, now)

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        after = self._refill_after
        made_ready, self._refill_after = await self._write("refill", lambda tx: operate.refill(tx, after, limit), now)
        return made_ready

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        return await self._write("prune", lambda tx: prune.prune(tx, limit, older_than), now)

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        return await self._write("rearrange", lambda tx: rearrange.rearrange(tx, limit), now)

    # ------------------------------------------------------------------ operating

    async def cancel(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._write("cancel", lambda tx: operate.cancel(tx, job_id), now)

    async def bury(self, job_id: str, reason: str, now: float | None = None) -> JobRecord:
        return await self._write("bury", lambda tx: operate.bury(tx, job_id, reason), now)

    async def run_now(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._write("run_now", lambda tx: operate.run_now(tx, job_id), now)

    async def revive(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._write("revive", lambda tx: operate.revive(tx, job_id), now)

    async def retry(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._write("retry", lambda tx: operate.retry(tx, job_id), now)

    async def discard(self, job_id: str, now: float | None = None) -> DeadLetter:
        return await self._write("discard", lambda tx: operate.discard(tx, job_id), now)

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        await self._write("pause", lambda tx: limits.pause(tx, pause, self.rule_step_max), now)

    async def resume(self, pause: Pause, now: float | None = None) -> bool:
        return await self._write("resume", lambda tx: limits.resume(tx, pause, self.rule_step_max), now)

    async def limit(self, override: Override, now: float | None = None) -> None:
        await self._write("limit", lambda tx: limits.limit(tx, override, self.rule_step_max), now)

    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        return await self._write("slow_down", lambda tx: limits.slow_down(tx, queue, seconds), now)

    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        return await self._write("tick", lambda tx: cron.tick(tx, tick), now)

    # ------------------------------------------------------------------ reading

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._read("get", lambda cursor: read.get(cursor, job_id))

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        return await self._read("ended", lambda cursor: read.ended(cursor, job_ids))

    async def find(self, query: JobQuery) -> list[JobRecord]:
        return await self._read("find", lambda cursor: read.find(cursor, query))

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return await self._read("count", lambda cursor: read.count(cursor, queue))

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._read("logs", lambda cursor: read.logs(cursor, job_id))

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._read("letter", lambda cursor: read.letter(cursor, job_id))

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        return await self._read("letters", lambda cursor: read.letters(cursor, query))

    async def queues(self) -> list[QueueRecord]:
        return await self._read("queues", read_rules.queues)

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        return await self._read("groups", lambda cursor: read_rules.groups(cursor, queue, limit))

    async def group(self, queue: str, name: str) -> GroupRecord:
        return await self._read("group", lambda cursor: read_rules.group(cursor, queue, name))

    async def pauses(self) -> list[Pause]:
        return await self._read("pauses", read_rules.pauses)

    async def waking(self, queues: Sequence[str]) -> bool:
        return await self._read("waking", lambda cursor: read_rules.waking(cursor, queues))

    async def tasks(self) -> list[TaskRecord]:
        return await self._read("tasks", read_rules.tasks)

    async def entries(self) -> list[CronEntry]:
        return await self._read("entries", cron.entries)

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        steady, boot = (self._clock.steady(), self._boot) if now is None else (now, "")
        return await self._read("workers", lambda cursor: read.workers(cursor, steady, boot))

    async def dump(self) -> Dump:
        return await self._read("dump", read_rules.dump)

    # ------------------------------------------------------------------ moving to another store

    async def sealed(self) -> Seal | None:
        return await self._read("sealed", move.sealed)

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._write("seal", lambda tx: move.seal(tx, seal, instead_of), None)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._read("export", lambda cursor: move.export(cursor, part, after, limit))

    async def carry(self, move_id: str, shipment: Shipment) -> None:
        await self._write("carry", lambda tx: move.carry(tx, move_id, shipment), None)
