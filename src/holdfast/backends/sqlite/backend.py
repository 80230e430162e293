"""The SQLite store: the verbs of the contract, each one piece of work for a transaction or for a read, and how a store
in a file runs them, as requests to its writer and reader threads.

Called by the app and the keeper, from any event loop or thread. Contains no rules: they are in the verb modules. After
a fork the child drops the inherited threads, its copies of the connections are closed (connection.py), and the next
call opens new ones. memory.py runs the same verbs without a file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import Clock, SystemClock, boot_id
from ...dependencies import Relatives
from ...errors import BackendUnavailable, ConfigurationError
from ...lazy import import_lazily
from ...lifecycle import Settlement, State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import (
    Answer,
    ClaimRequest,
    Command,
    CronEntry,
    DeadLetter,
    Dump,
    Edit,
    Enqueued,
    Exchanged,
    Flaw,
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
)
from ...rollups import EventPage, Recording, Rollup, RollupQuery
from ...steps import NewStep, Steps
from ...worker_status import bounded
from ..contract import Backend
from . import enqueue, groups
from .connection import (
    SYNCHRONOUS,
    Identity,
    Leased,
    ReaderThread,
    StoreThread,
    Transaction,
    answered,
    answered_here,
    check,
    errors_mapped,
    identity_of,
)
from .schema import set_up
from .wakeups import Wakeups, call_out, forget_inherited, nudge

if TYPE_CHECKING:
    import asyncio

    from . import (
        claim,
        cron,
        flaws,
        history,
        limits,
        move,
        operate,
        polls,
        promote,
        prune,
        read,
        recover,
        relatives,
        renew,
        scan,
        settle,
    )
    from . import edit as edits
    from . import steps as remembered
else:  # a producer may never need these
    import_lazily(globals(), "asyncio", ".claim", ".cron", ".flaws", ".history", ".limits", ".move", ".operate")
    import_lazily(globals(), ".promote", ".prune", ".read", ".recover", ".relatives", ".renew", ".scan", ".settle")
    import_lazily(globals(), ".polls", edits=".edit", remembered=".steps")

T = TypeVar("T")

# These create no work, so they wake no waiter.
BRING_NO_WORK = frozenset({"answer", "begin", "checkpoint", "command", "record", "register", "report"})


class SqliteVerbs(Backend):
    """Everything a job store does that does not depend on where its database is."""

    scan_rows_max = 200_000

    def __init__(self, clock: Clock | None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._boot = boot_id()
        self._refill_after = ("", "")
        self._leased: Leased = {}

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
            return Transaction(cursor, self._clock.wall(), self._clock.steady(), self._boot, self._leased)
        return Transaction(cursor, now, now, "", self._leased)

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
        await self._write("register", lambda tx: renew.register(tx, worker), now, urgent=True)

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        return await self._write("begin", lambda tx: renew.begin(tx, held), now)

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
        return await self._write("renew", lambda tx: renew.renew(tx, worker, held, seen_call, shown), now, urgent=True)

    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        return await self._write("command", lambda tx: renew.command(tx, worker, command), now)

    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        return await self._write("answer", lambda tx: renew.answer(tx, worker, command_id, result, refused), now)

    async def commands(self, worker: str) -> list[Command]:
        return await self._read("commands", lambda cursor: renew.commands(cursor, worker))

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        return await self._write("report", lambda tx: renew.report(tx, reports), now)

    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        return await self._write("checkpoint", lambda tx: remembered.checkpoint(tx, held, steps), now)

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        return await self._write("exchange", lambda tx: claim.exchange(tx, settlements, releases, request), now)

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        return await self._write("settle_with", lambda tx: settle.settle_with(tx, settlement, jobs), now)

    async def retire(self, worker: str, now: float | None = None) -> int:
        return await self._write("retire", lambda tx: recover.retire(tx, worker), now)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        def work(tx: Transaction) -> list[Recovered]:
            recovered, _ = recover.recover(tx, dead, limit)
            tx.close()
            return recovered

        return await self._write("recover", work, now)

    # ------------------------------------------------------------------ sweeping

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        def work(tx: Transaction) -> Promoted:
            tx.refuse_sealed()
            promoted = promote.promote(tx, limit)
            tx.close()
            return promoted

        return await self._write("promote", work, now)

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        after = self._refill_after
        made_ready, self._refill_after = await self._write(
            "refill", lambda tx: groups.refill_pass(tx, after, limit), now
        )
        return made_ready

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        return await self._write("prune", lambda tx: prune.prune(tx, limit, older_than), now)

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        return await self._write("rearrange", lambda tx: limits.rearrange(tx, limit), now)

    async def record(self, recording: Recording, now: float | None = None) -> bool:
        return await self._write("record", lambda tx: history.record(tx, recording), now)

    # ------------------------------------------------------------------ operating

    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        return await self._write("cancel", lambda tx: operate.cancel(tx, job_id, by, reason), now)

    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("bury", lambda tx: operate.bury(tx, job_id, reason, by), now)

    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("run_now", lambda tx: operate.run_now(tx, job_id, by), now)

    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        return await self._write("signal", lambda tx: remembered.signal(tx, job_id, name, value, by), now)

    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("revive", lambda tx: operate.revive(tx, job_id, by), now)

    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("retry", lambda tx: operate.retry(tx, job_id, by), now)

    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("annotate", lambda tx: operate.annotate(tx, job_id, text, by), now)

    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("free_key", lambda tx: operate.free_key_of(tx, job_id, by), now)

    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("rejoin", lambda tx: operate.rejoin(tx, job_id, by), now)

    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        return await self._write("discard", lambda tx: operate.discard(tx, job_id, by), now)

    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("edit", lambda tx: edits.edit(tx, job_id, edit, by), now)

    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._write("delete", lambda tx: edits.delete(tx, job_id), now)

    async def remove_settled(self, job_ids: Sequence[str]) -> None:
        await self._write("remove_settled", lambda tx: settle.remove_settled(tx, job_ids), None)

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        await self._write("pause", lambda tx: limits.pause(tx, pause, self.rule_step_max), now)

    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        step = self.rule_step_max
        return await self._write("resume", lambda tx: limits.resume(tx, pause, step, skip_dead=skip_dead), now)

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

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        return await self._read("scan", lambda cursor: scan.scan(cursor, query, look))

    async def tally(
        self, query: JobQuery, by: Grouping | None = None, now: float | None = None, *, rows_max: int | None = None
    ) -> Tally:
        look = Look(rows_max=rows_max or self.scan_rows_max)
        counted = await self._read("tally", lambda cursor: scan.tally(cursor, query, by, look))
        return await super().tally(query, by, now, rows_max=rows_max) if counted is None else counted

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return await self._read("count", lambda cursor: read.count(cursor, queue))

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._read("logs", lambda cursor: read.logs(cursor, job_id))

    async def marks(self, job_id: str) -> list[Mark]:
        return await self._read("marks", lambda cursor: read.marks(cursor, job_id))

    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        return await self._read("relatives", lambda cursor: relatives.relatives(cursor, job_id, limit, values, beyond))

    async def steps(self, job_id: str) -> Steps:
        found = await self._read("steps", lambda cursor: read.steps(cursor, job_id))
        return Steps(now=self._clock.wall(), steps=tuple(found))

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        return await self._read("rollups", lambda cursor: history.rollups(cursor, query))

    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        return await self._read("events", lambda cursor: history.events(cursor, after, limit))

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._read("letter", lambda cursor: read.letter(cursor, job_id))

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        return await self._read("letters", lambda cursor: read.letters(cursor, query))

    async def queues(self) -> list[QueueRecord]:
        return await self._read("queues", read.queues)

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        return await self._read("groups", lambda cursor: read.groups(cursor, queue, limit))

    async def group(self, queue: str, name: str) -> GroupRecord:
        return await self._read("group", lambda cursor: read.group(cursor, queue, name))

    async def pauses(self) -> list[Pause]:
        return await self._read("pauses", read.pauses)

    async def waking(self, queues: Sequence[str]) -> bool:
        return await self._read("waking", lambda cursor: read.waking(cursor, queues))

    async def tasks(self) -> list[TaskRecord]:
        return await self._read("tasks", read.tasks)

    async def entries(self) -> list[CronEntry]:
        return await self._read("entries", read.entries)

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        steady, boot = (self._clock.steady(), self._boot) if now is None else (now, "")
        return await self._read("workers", lambda cursor: read.workers(cursor, steady, boot))

    async def dump(self) -> Dump:
        return await self._read("dump", read.dump)

    # ------------------------------------------------------------------ moving to another store

    async def sealed(self) -> Seal | None:
        return await self._read("sealed", move.sealed)

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._write("seal", lambda tx: move.seal(tx, seal, instead_of), None)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._read("export", lambda cursor: move.export(cursor, part, after, limit))

    async def carry(self, move_id: str, shipment: Shipment) -> None:
        await self._write("carry", lambda tx: move.carry(tx, move_id, shipment), None)


# ----------------------------------------------------------------------------------------------------------------------
# The store in a file


# This worker's own claim has just looked and did not want what is left, so its own waiter need not wake. The other
# waiters of this process are nudged; other processes notice the write itself.
_TAKE_WORK = {*BRING_NO_WORK, "exchange", "renew"}

_opened: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()
_inherited: list[Any] = []  # in a forked child: kept forever, so that a copy that was in use is never closed or freed


def _forget_inherited() -> None:
    forget_inherited()
    for backend in list(_opened):
        backend.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


class SqliteBackend(SqliteVerbs):
    """A store in one SQLite file, shared by any number of processes on one machine."""

    scheme = "sqlite"
    durable = True
    any_loop = True  # the work is done on its own threads

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        share: bool = False,
        call_timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock)
        if synchronous.upper() not in SYNCHRONOUS:
            raise ConfigurationError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}.")
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        self.path = os.path.abspath(path) if path not in ("", ":memory:") else path
        self._synchronous, self._share = synchronous.upper(), share
        self._call_timeout = call_timeout
        self._guard = threading.Lock()
        self._identity: Identity | None = None
        self._reset()

    def _reset(self) -> None:
        self._is_set_up = False
        self._writer: StoreThread | None = None
        self._reader: ReaderThread | None = None
        self._wakeups: Wakeups | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        if not self._is_set_up:
            await asyncio.to_thread(self.open_here)

    def open_here(self) -> bool:
        if not self._is_set_up:
            self._set_up()
            self._is_set_up = True
            _opened.add(self)
        return True

    def _set_up(self) -> tuple[int, int]:
        versions = set_up(self.path, synchronous=self._synchronous, share=self._share, seconds=self._call_timeout)
        if self._writer is None and self._reader is None:
            self._identity = identity_of(self.path)
        return versions

    async def close(self) -> None:
        threads, watch = self._let_go()
        for thread in threads:
            await asyncio.to_thread(thread.stop)
        if watch is not None:
            watch.close()  # on the loop that it listens on

    def close_here(self) -> None:
        threads, _ = self._let_go()  # nobody waits for work without a loop
        for thread in threads:
            thread.stop()

    def _let_go(self) -> tuple[list[StoreThread], Wakeups | None]:
        with self._guard:
            threads, watch = [thread for thread in (self._writer, self._reader) if thread is not None], self._wakeups
            self._reset()
        return threads, watch

    def forget(self) -> None:
        """In a forked child: drop what was inherited and start without connections."""
        _inherited.append((self._writer, self._reader, self._wakeups, self._guard))
        self._guard = threading.Lock()
        was_set_up = self._is_set_up
        self._reset()
        self._is_set_up = was_set_up

    async def migrate(self) -> tuple[int, int]:
        versions = await asyncio.to_thread(self._set_up)
        self._is_set_up = True
        _opened.add(self)
        return versions

    # ------------------------------------------------------------------ requests

    def _writing(self) -> StoreThread:
        with self._guard:
            if self._writer is None:
                self._need_open()
                self._writer = StoreThread(
                    self.path,
                    identity=self._identity,
                    synchronous=self._synchronous,
                    call_timeout=self._call_timeout,
                    after_commit=self._committed,
                )
            return self._writer

    def _committed(self, verbs: set[str]) -> None:
        """Wake the callers that may be waiting for what was written."""
        if verbs <= BRING_NO_WORK:
            return
        if verbs <= _TAKE_WORK:
            nudge(self.path, claimed=self._wakeups)
            return
        nudge(self.path)
        call_out(self.path)

    def _reading(self) -> ReaderThread:
        with self._guard:
            if self._reader is None:
                self._need_open()
                self._reader = ReaderThread(
                    self.path,
                    identity=self._identity,
                    synchronous=self._synchronous,
                    call_timeout=self._call_timeout,
                    after_commit=_nothing,
                )
            return self._reader

    def _watching_locked(self) -> Wakeups:
        if self._wakeups is None:
            self._need_open()
            self._wakeups = Wakeups(self.path, self._clock)
        return self._wakeups

    def _need_open(self) -> None:
        if not self._is_set_up:
            raise BackendUnavailable("the store is not open. Call open() first.")

    async def _write(
        self, verb: str, work: Callable[[Transaction], T], now: float | None, *, urgent: bool = False
    ) -> T:
        def carry_out(cursor: sqlite3.Cursor) -> T:
            return work(self._transaction(cursor, now))

        future = self._writing().submit(verb, carry_out, urgent=urgent)
        return await answered(verb, future, 2 * self._call_timeout)

    async def _read(self, verb: str, work: Callable[[sqlite3.Cursor], T]) -> T:
        return await asyncio.wrap_future(self._reading().submit(verb, work))

    # ------------------------------------------------------------------ specific to a file

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """Run on the calling thread if nobody else is writing, else on the writer thread."""
        if not jobs:
            return []

        def carry_out(cursor: sqlite3.Cursor) -> list[Enqueued]:
            return enqueue.enqueue(self._transaction(cursor, None), jobs)

        writer = self._writing()
        done = writer.carry_out_here("enqueue", carry_out)
        if done is not None:
            return done[0]
        return answered_here("enqueue", writer.submit("enqueue", carry_out), 2 * self._call_timeout)

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check(self.path, self._identity)
        return enqueue.enqueue_on(connection, self.path, jobs, self._clock.wall())

    def shares_database(self, connection: Any) -> bool:
        return isinstance(connection, sqlite3.Connection) and enqueue.is_same_file(connection.execute, self.path)

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check(self.path, self._identity)
        return await enqueue.aenqueue_on(connection, self.path, jobs, self._clock.wall())

    def settle_on(self, connection: Any, settlement: Settlement) -> Answer:
        check(self.path, self._identity)
        with enqueue.in_transaction_of(connection, self.path) as execute:
            cursor: Any = settle.CallerCursor(execute)
            return settle.settle_in(self._transaction(cursor, None), settlement)

    async def asettle_on(self, connection: Any, settlement: Settlement) -> Answer:
        answer: Answer = await enqueue.run_sync(connection, self.settle_on, settlement)
        return answer

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        if request is None or self._wakeups is None:
            return await super().exchange(settlements, releases, request, now)
        with self._wakeups.claiming():
            return await super().exchange(settlements, releases, request, now)

    async def nothing_to_claim(self, worker: str, queues: Sequence[str], now: float | None = None) -> bool:
        check(self.path, self._identity)
        with self._guard:
            watch = self._watching_locked()
        return watch.snapshot(lambda cursor: polls.nothing_to_claim(self._transaction(cursor, now), worker, queues))

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        self._need_open()
        check(self.path, self._identity)
        with errors_mapped(self.path):
            return await asyncio.to_thread(flaws.flaws, self.path, limit, self._call_timeout)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        with self._guard:
            watch = self._watching_locked()
        return await watch.wait_for_work(queues, timeout)


def _nothing(_: set[str]) -> None:
    """A reader commits nothing, so it wakes nobody."""
