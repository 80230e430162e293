"""The PostgreSQL store: each verb of the contract is one statement, hence one transaction and one round trip.

Called by the app and the keeper, each with its own backend on its own loop. Contains no queueing rules: those live in
the functions of statements/*.sql, which run in the server next to the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from ... import logs
from ...clock import Clock
from ...dependencies import Relatives
from ...errors import BackendUnavailable, ConfigurationError, HoldfastError, SchemaMismatch
from ...lifecycle import Settlement, State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...rates import Rate
from ...records import (
    LOGS_KEPT_MAX,
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
    with_conflicts_kept,
)
from ...rollups import EventPage, Recording, Rollup, RollupQuery
from ...steps import NewStep, Steps
from ...worker_status import bounded
from ..contract import Backend
from ..seals import check_limit, check_rules, check_weight
from . import codec, move, read, scan
from .blocking import BlockingCalls
from .caller_transaction import (
    ENQUEUE_RIGHTS,
    SETTLE_RIGHTS,
    Joined,
    aenqueue_on,
    asettle_on,
    enqueue_on,
    settle_on,
    shares_database,
)
from .codec import LeasedGroups, Outcomes, as_job, as_letter, by_column, by_field, encoded, is_single, outcomes
from .connection import CONNECTIONS_MAX, SCHEMA_VERSION, Connections, is_held
from .flaws import flaws
from .prepared_calls import PreparedBodies, PreparedCall
from .read import named, scope
from .schema import for_schema, schema_version, set_up, store_id
from .snapshots import Floors, SnapshotWatch, has_many_dead, oldest_snapshot
from .wakeups import EVERY_QUEUE, Wakeups, work_at_hand

T = TypeVar("T")
NO_OUTCOMES = Outcomes(None, "[]", None)
ASKED_OFTEN = ("exchange.call", "renew.call", "enqueue.call", "single.call")
READ_OFTEN = ("get", "ended", "wait_for_work")  # always index lookups; every other read is planned on each call
CAREFUL_SECONDS = 5.0  # after hitting a foreign row lock, exchanges probe for locked rows for this long


def _verb(part: str) -> str:
    """The verb a statement implements, as errors name it."""
    file, _, name = part.partition(".")
    return "enqueue" if file in ("single", "linked") else file if name == "call" else name


def _storable(text: str) -> str:
    """Text without the one character that PostgreSQL refuses."""
    return text.replace("\0", "\ufffd")


class PostgresBackend(Backend):
    """A store in one schema of a PostgreSQL database, shared by any number of hosts."""

    scheme = "postgresql"
    durable = True
    scan_rows_max = 200_000

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "holdfast",
        call_timeout: float = 5.0,
        connections: int = CONNECTIONS_MAX,
        pooled: bool | None = None,  # None: detected on the first connection
        clock: Clock | None = None,  # unused, the server's clock decides; every store's constructor takes one
    ) -> None:
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        if connections < 1:
            raise ConfigurationError(f"connections is a whole number above 0, not {connections!r}.")
        self._sql = for_schema(schema)
        self.schema = schema
        self._connections = Connections(
            conninfo, call_timeout=call_timeout, most=connections, pooled=pooled, schema=schema
        )
        self._asked = {part: PreparedCall(part, self._sql[part]) for part in ASKED_OFTEN}
        self._bodies = PreparedBodies("exchange.bodies", self._sql["exchange.bodies"])
        self._direct = BlockingCalls(self._connections, self._sql["single.direct"])
        self._is_set_up = False
        self._store: str | None = None  # the store's own id, once opened
        self._wakeups: Wakeups | None = None
        self._refill_after = ("", "")
        self._snapshots = SnapshotWatch()
        self._floors = Floors()
        self._groups = LeasedGroups()
        self._careful_until = 0.0  # on the loop's clock; set when another session was seen to lock a job

    # ------------------------------------------------------------------ open and close

    async def open(self) -> None:
        if self._is_set_up:
            return
        found = await self._connections.call("open", lambda cursor: schema_version(cursor, self.schema), writes=False)
        if found is None:
            await self._connections.call("open", lambda cursor: set_up(cursor, self.schema), writes=False)
        elif found != SCHEMA_VERSION:
            raise SchemaMismatch(found, SCHEMA_VERSION)
        self._store = await self._connections.call("open", lambda cursor: store_id(cursor, self.schema), writes=False)
        self._is_set_up = True

    async def close(self) -> None:
        wakeups, self._wakeups = self._wakeups, None
        if wakeups is not None and wakeups.loop is asyncio.get_running_loop():
            await wakeups.close()
        await self._connections.close()
        self._direct.close()
        self._is_set_up = False

    async def migrate(self) -> tuple[int, int]:
        versions: tuple[int, int] = await self._connections.call(
            "migrate", lambda cursor: set_up(cursor, self.schema), writes=True
        )
        self._is_set_up = True
        return versions

    async def clock(self) -> float:
        text = "SELECT extract(epoch FROM clock_timestamp())::float8"
        found: list[tuple[float]] = await self._call("clock", lambda cursor: read.rows(cursor, text))
        return found[0][0]

    # ------------------------------------------------------------------ calls

    async def _call(self, verb: str, work: Callable[[Any], Awaitable[T]], *, writes: bool = False, **ways: bool) -> T:
        if not self._is_set_up:
            raise BackendUnavailable("the store is not open. Call open() first.")
        answer: T = await self._connections.call(verb, work, writes=writes, **ways)
        return answer

    async def _read(self, verb: str, read: Callable[..., Awaitable[T]], *values: Any) -> T:
        return await self._call(verb, lambda cursor: read(cursor, self._sql, *values), planned=verb in READ_OFTEN)

    async def _write(self, part: str, *, urgent: bool = False, patient: bool = False, **values: Any) -> Any:
        """Execute one statement that writes; return the single value it returns."""
        text, asked = self._sql[part], self._asked.get(part)

        async def work(cursor: Any) -> Any:
            if asked is not None:
                return await asked.ask(cursor, values)
            await cursor.execute(text, values)
            row = await cursor.fetchone()
            return row[0]

        return await self._call(_verb(part), work, writes=True, urgent=urgent, patient=patient)

    async def _exchange(self, places: Sequence[int] | None, **values: Any) -> codec.Told:
        """Make the exchange, then read large arguments on the same connection. If that fails, the exchange counts as
        having no reply and is repeated."""

        async def work(cursor: Any) -> codec.Told:
            answer, bodies = await self._asked["exchange.call"].ask_both(cursor, values)
            answered = codec.read_exchanged(answer)
            seqs = codec.seqs_without_bodies(answered, bodies)
            found = await self._bodies.ask(cursor, seqs) if seqs else bodies
            return codec.as_exchanged(answered, found, places)

        return await self._call("exchange", work, writes=True)

    async def _change(self, part: str, **values: Any) -> int:
        """Execute one statement that returns no rows; return how many it changed."""
        text = self._sql[part]

        async def work(cursor: Any) -> int:
            await cursor.execute(text, values)
            return int(cursor.rowcount)

        return await self._call(_verb(part), work, writes=True)

    def _watching(self) -> Wakeups:
        if self._wakeups is None or self._wakeups.loop is not asyncio.get_running_loop():
            self._wakeups = Wakeups(self._connections, self.schema)
        return self._wakeups

    # ------------------------------------------------------------------ enqueue

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        check_rules(rules, tasks)
        if rules or tasks:
            await self._write(
                "declare.call", rules=encoded(rules), tasks=encoded(tasks), step=self.rule_step_max, now=now
            )
            self._watching().tell([EVERY_QUEUE] if tasks else [rule.name for rule in rules])

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        if is_single(jobs):
            created = await self._write("single.call", patient=True, **by_field(jobs[0]), now=now)
            enqueued = [Enqueued(jobs[0].id, created == "true")]
        elif any(job.after or job.before for job in jobs):
            stored, links = codec.links_of(jobs)
            answer = await self._write("linked.call", patient=True, jobs=by_column(stored), links=links, now=now)
            enqueued = codec.as_enqueued(answer, jobs)
        else:
            answer = await self._write("enqueue.call", patient=True, jobs=by_column(jobs), now=now)
            enqueued = codec.as_enqueued(answer, jobs)
        self._watching().tell({job.queue for job in jobs})
        return enqueued

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        if not self._is_set_up:
            raise BackendUnavailable("the store is not open. Call open() first.")
        return self._direct.enqueue(jobs[0], self._wakeups) if is_single(jobs) else None

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return enqueue_on(connection, self._joined(), jobs) if jobs else []

    async def wake(self, queues: Iterable[str]) -> None:
        self._watching().tell(queues)

    def shares_database(self, connection: Any) -> bool:
        return shares_database(connection, self._joined())

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await aenqueue_on(connection, self._joined(), jobs) if jobs else []

    def settle_on(self, connection: Any, settlement: Settlement) -> Answer:
        return settle_on(connection, self._joined("settle_on.call"), settlement)

    async def asettle_on(self, connection: Any, settlement: Settlement) -> Answer:
        return await asettle_on(connection, self._joined("settle_on.call"), settlement)

    def _joined(self, statement: str = "enqueue_on.call") -> Joined:
        seconds = self._connections.call_timeout
        rights = ENQUEUE_RIGHTS if statement == "enqueue_on.call" else SETTLE_RIGHTS
        text, schema, store = self._sql[statement], self.schema, self._store
        return Joined(text=text, schema=schema, store=store, wait_seconds=seconds, rights=rights)

    # ------------------------------------------------------------------ leases

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        values = {
            name: getattr(worker, name)
            for name in ("id", "host", "pid", "boot_id", "pid_namespace", "slots", "isolates")
        }
        queues, seconds = encoded(worker.queues), worker.lease_seconds
        await self._change("register.call", **values, queues=queues, lease_seconds=seconds, now=now)

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        return codec.as_answers(await self._write("begin.call", held=encoded(held)))

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        named, shown = encoded(held), bounded(portrait)
        answer = await self._write(
            "renew.call", urgent=True, worker=worker, held=named, seen=seen_call, portrait=shown, now=now
        )
        return codec.as_renewal(answer)

    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        asked = encoded(replace(command, by=_storable(command.by)))
        return codec.as_command(await self._write("command.call", worker=worker, command=asked, now=now))

    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        answer = encoded({"result": _storable(result), "refused": refused})
        return bool(await self._write("command.answer", worker=worker, id=command_id, told=answer, now=now))

    async def commands(self, worker: str) -> list[Command]:
        return await self._read("commands", read.commands, worker)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        kept = [replace(one, lines=one.lines[-LOGS_KEPT_MAX:]) for one in reports]
        return codec.as_answers(await self._write("report.call", reports=encoded(kept), now=now))

    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        told = encoded(steps)
        return Answer(await self._write("checkpoint.call", id=held.id, token=held.token, steps=told, now=now))

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        told = outcomes(settlements, self._groups) if settlements else NO_OUTCOMES
        values: dict[str, Any] = {
            "successes": told.successes,
            "settlements": told.others,
            "releases": encoded(releases) if releases else "[]",
            "request": None if request is None else encoded(request),
            "nonce": os.urandom(8).hex(),
            "now": now,
        }
        clock = asyncio.get_running_loop().time
        began = clock()
        floors = None if request is None else self._floors.asked(began, full=bool(releases))
        if floors is not None:
            values["request"] = encoded({**to_builtins(request), "floors": floors})
        answer = None
        if clock() >= self._careful_until:
            try:
                answer = await self._exchange(told.places, careful=False, **values)
            except BackendUnavailable as error:
                if not is_held(error):
                    raise
                self._careful_until = clock() + CAREFUL_SECONDS
        if answer is None:
            answer = await self._exchange(told.places, careful=True, **values)
        exchanged, stirred, found = answer
        self._groups.note(exchanged.leases)
        if stirred:
            self._watching().tell(stirred)
        if floors is not None:
            self._floors.answered(floors, found, began, clock())
        return exchanged

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        if not jobs:
            return (await self.settle([settlement], now))[0]
        told = outcomes([settlement])
        stored, links = codec.links_of([with_conflicts_kept(job) for job in jobs])
        values: dict[str, Any] = {
            "successes": told.successes,
            "settlements": told.others,
            "jobs": by_column(stored),
            "links": links,
        }
        try:
            answer = codec.as_settled_with(await self._write("settle_with.call", **values, now=now))
        except BackendUnavailable as error:
            if is_held(error):
                return Answer.BUSY
            raise
        self._watching().tell({*(job.queue for job in jobs), *answer.stirred})
        return answer.answer

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        exchanged = await self.exchange((), releases, None, now)
        self._watching().tell([EVERY_QUEUE])
        return list(exchanged.answers)

    async def retire(self, worker: str, now: float | None = None) -> int:
        number = int(await self._write("retire.call", worker=worker, now=now))
        if number:
            self._watching().tell([EVERY_QUEUE])
        return number

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        recovered = codec.as_recovered(await self._write("recover.call", dead=list(dead), limit=limit, now=now))
        if recovered:  # a freed place may belong to a task's limit, and thus to any queue
            self._watching().tell([EVERY_QUEUE])
        return recovered

    # ------------------------------------------------------------------ sweeps

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        return codec.as_promoted(await self._write("promote.call", limit=limit, now=now))

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        queue, group = self._refill_after
        made_ready, *after = codec.as_refilled(
            await self._write("refill.call", queue=queue, grp=group, limit=limit, now=now)
        )
        self._refill_after = (after[0], after[1])
        return made_ready

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        pruned = int(await self._write("prune.call", limit=limit, older_than=older_than, now=now))
        await self._look_for_snapshots()
        return pruned

    async def _look_for_snapshots(self) -> None:
        """Check periodically whether an old snapshot keeps dead rows from being removed, or many wait for a vacuum. If
        so, claims use floors to skip those rows. A snapshot that is old enough is logged. A failure here is ignored."""
        clock = asyncio.get_running_loop().time
        if not self._snapshots.wants(clock()):
            return
        with contextlib.suppress(HoldfastError):
            found = await self._call("look", lambda cursor: oldest_snapshot(cursor, self.schema, young=True))
            self._floors.use(
                found is not None or await self._call("look", lambda cursor: has_many_dead(cursor, self.schema))
            )
            if found is not None and found.is_old and self._snapshots.tells(clock()):
                logs.old_snapshot(found.text, found.advice)

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        more = await self._write("rearrange.call", limit=limit, now=now)
        if more is not None:  # jobs that could not be claimed before may be claimable now
            self._watching().tell([EVERY_QUEUE])
        return bool(more)

    async def record(self, recording: Recording, now: float | None = None) -> bool:
        seen = [(event.name, event.body.decode()) for event in recording.events]
        return bool(
            await self._write(
                "record.call",
                worker=recording.worker,
                number=recording.number,
                rollups=encoded(recording.rollups),
                events=encoded(seen),
                keep_minutes=recording.keep_minutes,
                keep_hours=recording.keep_hours,
                now=now,
            )
        )

    # ------------------------------------------------------------------ operators

    async def _operate(self, part: str, now: float | None, **values: Any) -> JobRecord:
        record = as_job(await self._write(part, patient=True, now=now, **values))
        self._watching().tell([record.queue])
        return record

    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        return await self._operate("cancel.call", now, id=job_id, by=_storable(by), reason=_storable(reason))

    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        record = await self._operate("bury.call", now, id=job_id, reason=_storable(reason), by=_storable(by))
        self._watching().tell([EVERY_QUEUE])  # a copy may be in another one, as may jobs that waited for it
        return record

    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("revive.run_now", now, id=job_id, by=_storable(by))

    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        return await self._operate("signal.call", now, id=job_id, name=name, value=value, by=_storable(by))

    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("revive.call", now, id=job_id, by=_storable(by))

    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("revive.retry", now, id=job_id, by=_storable(by))

    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("annotate.call", now, id=job_id, text=_storable(text), by=_storable(by))

    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("free_key.call", now, id=job_id, by=_storable(by))

    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("revive.rejoin", now, id=job_id, by=_storable(by))

    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        return as_letter(await self._write("discard.call", id=job_id, by=_storable(by), now=now))

    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        changes = codec.edit_document(edit)
        args = edit.args if isinstance(edit.args, bytes) else None
        return await self._operate(
            "edit.call", now, id=job_id, changes=changes, args=args, text=edit.text, by=_storable(by)
        )

    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("delete.call", now, id=job_id)

    async def remove_settled(self, job_ids: Sequence[str]) -> None:
        await self._write("settle.remove", ids=list(job_ids))

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        reason, by = _storable(pause.reason), _storable(pause.by)
        await self._write(
            "pause.call", **scope(pause, "a pause"), reason=reason, by=by, step=self.rule_step_max, now=now
        )

    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        values = {**scope(pause, "a pause"), "skip_dead": skip_dead, "step": self.rule_step_max}
        found = bool(await self._write("pause.resume", **values, now=now))
        self._watching().tell([EVERY_QUEUE])
        return found

    async def limit(self, override: Override, now: float | None = None) -> None:
        place = scope(override, "a limit")
        check_limit(override.limit, f"the limit of {named(place)}")
        says = {f"says_{name}": getattr(override, name) is not UNSET for name in ("limit", "rate", "apart", "weight")}
        check_weight(override)
        weight = override.weight if isinstance(override.weight, int) else None
        limit = override.limit if isinstance(override.limit, int) else None
        apart = override.apart if isinstance(override.apart, bool) else None
        rate = encoded(override.rate) if isinstance(override.rate, Rate) else None
        values: dict[str, Any] = {
            "limit": limit,
            "rate": rate,
            "apart": apart,
            "weight": weight,
            "step": self.rule_step_max,
        }
        await self._write("limit.call", **place, **says, **values, now=now)
        self._watching().tell([place["queue"] or EVERY_QUEUE])

    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        return float(await self._write("slow_down.call", queue=queue, seconds=seconds, now=now))

    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        jobs = [with_conflicts_kept(job) for job in tick.jobs]
        wanted, columns = encoded(replace(tick, jobs=())), by_column(jobs) if jobs else None
        answer = await self._write("tick.call", patient=True, tick=wanted, jobs=columns, now=now)
        self._watching().tell({job.queue for job in jobs})
        return codec.as_ticked(answer, jobs)

    # ------------------------------------------------------------------ reads

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._read("get", read.get, job_id)

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        return await self._read("ended", read.ended, list(job_ids))

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        return await self._read("scan", scan.scan, query, look)

    async def tally(
        self, query: JobQuery, by: Grouping | None = None, now: float | None = None, *, rows_max: int | None = None
    ) -> Tally:
        counted = await self._read("tally", scan.tally, query, by, Look(rows_max=rows_max or self.scan_rows_max))
        return await super().tally(query, by, now, rows_max=rows_max) if counted is None else counted

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return await self._read("count", read.count, queue)

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._read("logs", read.logs, job_id)

    async def marks(self, job_id: str) -> list[Mark]:
        return await self._read("marks", read.marks, job_id)

    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        return await self._read("relatives", read.relatives, job_id, limit, values, beyond)

    async def steps(self, job_id: str) -> Steps:
        return await self._read("steps", read.steps, job_id)

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        return await self._read("rollups", read.rollups, query)

    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        return await self._read("events", read.events, after, limit)

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._read("letter", read.letter, job_id)

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        return await self._read("letters", read.letters, query)

    async def queues(self) -> list[QueueRecord]:
        return await self._read("queues", read.queues)

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        return await self._read("groups", read.groups, queue, limit)

    async def waking(self, queues: Sequence[str]) -> bool:
        return await self._read("waking", read.waking, queues)

    async def group(self, queue: str, name: str) -> GroupRecord:
        return (await self._read("group", read.groups, queue, 1, name))[0]

    async def tasks(self) -> list[TaskRecord]:
        return await self._read("tasks", read.tasks)

    async def entries(self) -> list[CronEntry]:
        return await self._read("entries", read.entries)

    async def pauses(self) -> list[Pause]:
        return await self._read("pauses", read.pauses)

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        return await self._read("workers", read.workers, now)

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        return await self._call("flaws", lambda cursor: flaws(cursor, self._sql, limit), lengthy=True)

    async def dump(self) -> Dump:
        return await self._call("dump", lambda cursor: read.dump(cursor, self._sql), lengthy=True)

    # ------------------------------------------------------------------ move to another store

    async def sealed(self) -> Seal | None:
        return await self._read("sealed", move.sealed)

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._call("seal", lambda cursor: move.seal(cursor, self._sql, seal, instead_of), writes=True)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._read("export", move.export, part, after, limit)

    async def carry(self, move_id: str, shipment: Shipment) -> None:
        await self._call("carry", lambda cursor: move.carry(cursor, self._sql, move_id, shipment), writes=True)

    # ------------------------------------------------------------------ wait for work

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        watch, clock = self._watching(), asyncio.get_running_loop().time
        ends = clock() + timeout
        with watch.hearing(queues) as hint:
            await watch.listening()  # before the look, so that no hint in between is missed
            held_back, looks = True, 0
            while held_back:  # then a hint may concern jobs that are held back, too: look again
                hint.clear()
                floors = None if self._floors.current is None else encoded(self._floors.current)
                seconds, held_back = await self._read("wait_for_work", work_at_hand, list(queues), floors)
                looks += 1
                if seconds == 0.0:
                    return looks == 1
                left = ends - clock()
                try:
                    async with asyncio.timeout(max(0.0, left if seconds is None else min(left, seconds))):
                        await hint.wait()
                except TimeoutError:
                    break
        return False
