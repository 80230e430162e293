"""The Redis and Valkey store: each verb of the contract is one script, and so one step and one round trip.

Called by the app and the keeper, each with its own backend on its own event loop. Contains no rules: those are in the
Lua files, which run in the server next to the jobs.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...clock import Clock
from ...dependencies import Relatives
from ...errors import BackendUnavailable, ConfigurationError, OutcomeUnknown, SchemaMismatch
from ...lifecycle import Settlement, State
from ...queries.pages import Grouping, Look, Scanned, Tally
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
from .. import seals
from ..formulas import ALONE, Numbering
from ..reconnect import Pace
from ..wakeup_claims import ClaimsOnWakeup, Woken
from . import codec, limits
from .blocking import BlockingCalls
from .connection import CONNECTIONS_MAX, Connections, accepted, is_refusal, keep_inherited, left_out
from .dump import Dumper
from .flaws import Flaws
from .keys import KEY_TYPES, OLDER, PREFIX_DEFAULT, SCHEMA_VERSION
from .limits import LimitVerbs
from .move import MoveVerbs
from .prune import PruneVerbs, is_full
from .read import Reader
from .scripts import SCRIPTS
from .server import inspect
from .shard import ShardVerbs
from .wakeups import Wakeups

# After MISSES_MAX exchanges in a row that missed the fast path, every TRIED_EVERY-th one tries it.
MISSES_MAX, TRIED_EVERY = 3, 16
FAST_PATH_TAKEN = 2  # the value of `known` in the reply of exchange's fast path
RELIEVED_MAX = 5  # how often one enqueue may remove finished jobs to free memory


class RedisBackend(ShardVerbs, ClaimsOnWakeup):
    """A store under one prefix of a Redis or Valkey server, shared by any number of hosts."""

    scheme = "redis"
    durable = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX_DEFAULT,
        call_timeout: float = 5.0,
        connections: int = CONNECTIONS_MAX,
        allow_eviction: bool = False,
        allow_no_aof: bool = False,
        trust_restarts: bool = False,
        clock: Clock | None = None,  # unused, the server's clock decides; every store takes it
        wait: int = 0,  # number of replicas to wait for before an enqueue or an outcome is acknowledged
        through: Connections | None = None,  # existing connections with their own prefix: a shard of a cluster
        numbering: Numbering = ALONE,  # of a shard's jobs
    ) -> None:
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        if connections < 1:
            raise ConfigurationError(f"connections is a whole number above 0, not {connections!r}.")
        self.prefix = prefix
        bounds: dict[str, Any] = {"call_timeout": call_timeout, "most": connections, "pace": Pace()}
        self._connections = through or Connections(url, prefix=prefix, wait=wait, **bounds)
        self._direct = BlockingCalls(url, **bounds) if through is None else None
        self._allowed = {"allow_eviction": allow_eviction, "allow_no_aof": allow_no_aof}
        self._trust_restarts = trust_restarts
        self._reader = Reader(self._connections)
        in_shard = numbering != ALONE
        self._mover = MoveVerbs(self._connections, self._reader, in_shard=in_shard)
        self._ruler = LimitVerbs(self._connections, in_shard=in_shard)
        self._retainer = PruneVerbs(self._connections)
        self._dumper, self._flaws = Dumper(self._connections), Flaws(self._connections)
        self._numbering = numbering
        self._misses = 0  # exchanges in a row that missed the fast path
        self._is_set_up = False
        self._wakeups: Wakeups | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        if not self._is_set_up:
            await self._set_up()

    async def migrate(self) -> tuple[int, int]:
        return await self._set_up(), SCHEMA_VERSION

    async def _set_up(self) -> int:
        """Check the server and create the store if it does not exist; return the schema version found."""
        if not self._connections.of_cluster:  # a cluster's nodes are inspected one by one: see cluster.py
            await inspect(self._connections, **self._allowed)
        reply = await self._connections.run(SCRIPTS["open"], list(KEY_TYPES.values()))
        found = int(reply[0])
        if found not in (0, SCHEMA_VERSION):
            raise SchemaMismatch(found, SCHEMA_VERSION, OLDER)
        self._is_set_up = True
        return found

    async def close(self) -> None:
        wakeups, self._wakeups = self._wakeups, None
        if wakeups is not None and wakeups.loop is asyncio.get_running_loop():
            await wakeups.close()
        self._connections.abandon()
        if self._direct is not None:
            self._direct.close()
        self._is_set_up = False

    async def clock(self) -> float:
        self._check_open()
        seconds, micros = await self._connections.command("clock", "TIME")
        return int(seconds) + int(micros) / 1_000_000

    # ------------------------------------------------------------------ calls

    def _check_open(self) -> None:
        if not self._is_set_up:
            raise BackendUnavailable("the store is not open. Call open() first.")

    def _reading(self) -> Reader:
        self._check_open()
        return self._reader

    async def _run(
        self,
        verb: str,
        now: float | None,
        *values: Any,
        pieces: Sequence[bytes] = (),
        **how: bool,
    ) -> list[Any]:
        self._check_open()
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces, **how)

    async def _answers(self, verb: str, now: float | None, named: list[Any]) -> list[Answer]:
        if not named:
            return []
        [letters] = await self._run(verb, now, named)
        return codec.answers(letters)

    # ------------------------------------------------------------------ producing

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        await self._ruling().declare(rules, tasks, self.rule_step_max, now)

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        self._check_open()
        direct = self._direct
        if direct is None or not direct.usable or any(job.after or job.before for job in jobs):
            return None
        if not jobs:
            return []
        values = [None, list(map(codec.new_job, jobs)), self._numbering]
        command, whole = self._connections.spelled(SCRIPTS["enqueue"], values, list(map(codec.body, jobs)))
        try:
            letters, others = accepted(direct.call("enqueue", command, whole, self._connections.confirmation))
        except BackendUnavailable as error:
            if is_full(error):
                return None  # nothing was carried out; `enqueue` removes finished jobs to free memory
            raise
        return codec.enqueued(jobs, letters, others)

    def _ruling(self) -> LimitVerbs:
        self._check_open()
        return self._ruler

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        if any(job.after or job.before for job in jobs):
            return await self._link(jobs, False, now)
        values = (list(map(codec.new_job, jobs)), self._numbering)
        letters, others = await self._fill("enqueue", now, *values, pieces=list(map(codec.body, jobs)))
        return codec.enqueued(jobs, letters, others)

    async def _fill(self, verb: str, now: float | None, *values: Any, pieces: list[bytes]) -> Any:
        """Run a verb that adds work; on a full server remove finished jobs first."""
        relieved = 0
        while True:
            try:
                return await self._run(verb, now, *values, pieces=pieces, confirm=True)
            except BackendUnavailable as error:  # a full server refuses before anything is carried out
                relieved += 1
                if not is_full(error) or relieved > RELIEVED_MAX:
                    raise
                if not await self._retainer.relieve(refused=True, now=now):
                    raise

    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        jobs = [with_conflicts_kept(job) for job in tick.jobs]
        entries = (tick.entry, tick.entry_if_skipped)
        texts = [b"" if entry is None else limits.entry_text(entry) for entry in entries]
        done, skipped, stored, letters, others = await self._run(
            "tick",
            now,
            tick.name,
            tick.version,
            tick.not_before,
            tick.overlap,
            tick.previous,
            *(None if entry is None else [entry.declared] for entry in entries),
            list(map(codec.new_job, jobs)),
            self._numbering,
            pieces=[*texts, *map(codec.body, jobs)],
            confirm=True,
        )
        return Ticked(
            done=bool(done),
            entry=limits.read_entry(stored) if stored else None,
            enqueued=tuple(codec.enqueued(jobs, letters, others)) if letters else (),
            skipped=bool(skipped),
        )

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await self._run("register", now, worker.id, worker.lease_seconds, pieces=[codec.worker_facts(worker)])

    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        return await self._answers("begin", now, [(one.id, one.token) for one in held])

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        named = [(one.id, one.token) for one in held]
        shown = [] if (fitting := bounded(portrait)) is None else [fitting]
        known, *lists = await self._run("renew", now, worker, named, seen_call, pieces=shown, urgent=True)
        lost, cancelled, released = (tuple(codec.unpack(one)) for one in lists[:-1])
        waiting = tuple(one for one in codec.commands(lists[-1]) if one.done_at is None)
        return Renewal(known=bool(known), lost=lost, cancelled=cancelled, released=released, commands=waiting)

    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        [packed] = await self._run("command", now, worker, command.id, pieces=[msgspec.json.encode(command)])
        return codec.command(codec.unpack(packed))

    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        answer = msgspec.json.encode({"result": result, "refused": refused})
        [found] = await self._run("answer", now, worker, command_id, pieces=[answer])
        return bool(found)

    async def commands(self, worker: str) -> list[Command]:
        return await self._reading().commands(worker)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        named = [(one.id, one.token, one.progress, one.text, one.lines[-LOGS_KEPT_MAX:]) for one in reports]
        return await self._answers("report", now, named)

    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        told, values = list(map(codec.new_step, steps)), [step.value or b"" for step in steps]
        [letter] = await self._run("checkpoint", now, held.id, held.token, told, pieces=values)
        return codec.answers(letter)[0]

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        values: list[bytes] = []
        reply = await self._run(
            "exchange",
            now,
            [codec.settlement(one, values) for one in settlements],
            [(one.id, one.token, one.delay) for one in releases],
            *self._claiming(request),
            pieces=values,
            confirm=bool(settlements),
            long_bodies=True,
        )
        return self._exchanged(reply, request)

    def _claiming(self, request: ClaimRequest | None) -> tuple[Any, ...]:
        """The arguments of an exchange that concern its claim."""
        skip_fast_path = self._misses >= MISSES_MAX and self._misses % TRIED_EVERY > 0
        asked = None if request is None else codec.request(request)
        return asked, secrets.token_hex(10), self._trust_restarts, skip_fast_path

    def _exchanged(self, reply: Sequence[Any], request: ClaimRequest | None) -> Exchanged:
        known, letters, recovered, leases, *why = reply
        if request is not None:
            self._misses = 0 if known == FAST_PATH_TAKEN else self._misses + 1
        seal, quiet, opens, chained = (*why, *(None,) * 4)[:4]
        return Exchanged(
            answers=tuple(codec.answers(letters)),
            leases=codec.leases(leases, chained or 0),
            known=bool(known),
            recovered=codec.recovered(recovered),
            sealed=seals.read(seal.decode()) if seal else None,
            quiet_seconds=float(quiet or 0),
            opens_in=float(opens) if opens else None,
        )

    async def retire(self, worker: str, now: float | None = None) -> int:
        [number] = await self._run("retire", now, worker)
        return int(number)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        [packed] = await self._run("recover", now, list(dead), limit, self._trust_restarts)
        return list(codec.recovered(packed))

    # ------------------------------------------------------------------ sweeping

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        due, expired, revived, more = await self._run("promote", now, limit)
        return Promoted(due=due, expired=expired, revived=revived, more=bool(more))

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        return await self._ruling().refill(limit, now)

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        return await self._ruling().rearrange(limit, now)

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        self._check_open()
        return await self._retainer.prune(limit, older_than, now)

    async def record(self, recording: Recording, now: float | None = None) -> bool:
        [done] = await self._run(
            "record",
            now,
            recording.worker,
            recording.number,
            [
                (one.queue, one.task, one.worker, one.outcome, one.count, one.waits, one.runs)
                for one in recording.rollups
            ],
            [(event.name, event.body.decode()) for event in recording.events],
            recording.keep_minutes,
            recording.keep_hours,
        )
        return bool(done)

    # ------------------------------------------------------------------ operating

    async def _operate(self, verb: str, now: float | None, *values: Any) -> JobRecord:
        return codec.jobs(await self._run(verb, now, *values))[0]

    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        return await self._operate("cancel", now, job_id, by, reason)

    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("bury", now, job_id, reason, by)

    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("run_now", now, job_id, by)

    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        return codec.jobs(await self._run("signal", now, job_id, name, by, pieces=[value]))[0]

    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("revive", now, job_id, "revive", by)

    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        try:
            return await self._operate("revive", now, job_id, "retry", by)
        except OutcomeUnknown as unknown:  # two verbs share this script
            raise OutcomeUnknown("retry") from unknown.__cause__

    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("annotate", now, job_id, text, by)

    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("free_key", now, job_id, by)

    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("rejoin", now, job_id, by)

    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        [packed] = await self._run("discard", now, job_id, by)
        return codec.letter(packed)

    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        pieces = [edit.args] if isinstance(edit.args, bytes) else []
        return codec.jobs(await self._run("edit", now, job_id, by, edit.text, *codec.changes(edit), pieces=pieces))[0]

    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        return await self._operate("delete", now, job_id)

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        await self._ruling().pause(pause, self.rule_step_max, now)

    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        return await self._ruling().resume(pause, self.rule_step_max, now, skip_dead=skip_dead)

    async def limit(self, override: Override, now: float | None = None) -> None:
        await self._ruling().limit(override, self.rule_step_max, now)

    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        return await self._ruling().slow_down(queue, seconds, now)

    # ------------------------------------------------------------------ reading

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._reading().get(job_id)

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        return await self._reading().ended(job_ids)

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        return await self._reading().scan(query, look)

    async def tally(
        self, query: JobQuery, by: Grouping | None = None, now: float | None = None, *, rows_max: int | None = None
    ) -> Tally:
        counted = await self._reading().tally(query, by, Look(rows_max=rows_max or self.scan_rows_max))
        return await super().tally(query, by, now, rows_max=rows_max) if counted is None else counted

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return await self._reading().count(queue)

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._reading().logs(job_id)

    async def marks(self, job_id: str) -> list[Mark]:
        return await self._reading().marks(job_id)

    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        return await self._reading().relatives(job_id, limit, values=values, beyond=beyond)

    async def steps(self, job_id: str) -> Steps:
        return await self._reading().steps(job_id)

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        return await self._reading().rollups(query)

    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        return await self._reading().events(after, limit)

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._reading().letter(job_id)

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        return await self._reading().letters(query)

    async def queues(self) -> list[QueueRecord]:
        return await self._reading().queues()

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        return await self._reading().groups(queue, limit)

    async def waking(self, queues: Sequence[str]) -> bool:
        return await self._reading().waking(queues)

    async def group(self, queue: str, name: str) -> GroupRecord:
        return await self._reading().group(queue, name)

    async def tasks(self) -> list[TaskRecord]:
        return await self._reading().tasks()

    async def entries(self) -> list[CronEntry]:
        return await self._reading().entries()

    async def pauses(self) -> list[Pause]:
        return await self._reading().pauses()

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        return await self._reading().workers(now)

    async def dump(self) -> Dump:
        self._check_open()
        return await self._dumper.dump()

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        self._check_open()
        return await self._flaws.flaws(limit)

    # ------------------------------------------------------------------ moving to another store

    def _moving(self) -> MoveVerbs:
        self._check_open()
        return self._mover

    async def sealed(self) -> Seal | None:
        return await self._moving().sealed()

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._moving().seal(seal, instead_of)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._moving().export(part, after, limit)

    async def carry(self, move_id: str, shipment: Shipment) -> None:
        await self._moving().carry(move_id, shipment)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        async def at_hand() -> tuple[float | None, str]:
            packed, last = await self._run("wait_for_work", None, list(queues))
            return msgspec.msgpack.decode(packed, type=float | None), last.decode()

        return await self._watching().wait(queues, timeout, at_hand)

    @property
    def awaits_wakeup(self) -> bool:
        return self._wakeups is not None and self._wakeups.at_rest

    async def claim_on_wakeup(self, request: ClaimRequest, give_up: asyncio.Event) -> Woken:
        values = [None, [], [], *self._claiming(request)]
        command, _ = self._connections.spelled(SCRIPTS["exchange"], values, ())
        reply, hinted = await self._watching().behind_hint(command, give_up)
        if not isinstance(reply, list) or is_refusal(reply) or left_out(reply):
            return Woken(None, hinted)  # an error, or long arguments are missing: a repeat deals with it
        return Woken(self._exchanged(reply, request), hinted)

    def _watching(self) -> Wakeups:
        if self._wakeups is None or self._wakeups.loop is not asyncio.get_running_loop():
            if self._wakeups is not None and self._wakeups.process != os.getpid():
                keep_inherited(self._wakeups)
            self._wakeups = Wakeups(self._connections, self._connections.keys[-1])
        return self._wakeups
