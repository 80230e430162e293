"""The Redis and Valkey store: each verb of the contract is one script, and so one step and one round trip.

Called by the app and the keeper, each with a backend of its own on a loop of its own. Knows nothing of rules: those are
in the Lua files, which run in the server beside the jobs.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ...clock import Clock
from ...errors import BackendUnavailable, ConfigurationError, SchemaMismatch, StoreSealed
from ...lifecycle import Settlement, State
from ...portrait import bounded
from ...records import (
    LOGS_KEPT_MAX,
    REMEMBER_SECONDS_MIN,
    Answer,
    ClaimRequest,
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
    Part,
    Pause,
    Promoted,
    QueueRecord,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    Shipment,
    WorkerRecord,
)
from ...rules import QueueRule
from .. import sealing
from ..contract import Backend
from ..numbering import ALONE, Numbering
from . import rows
from .connection import CONNECTIONS_MAX, Connections, keep_inherited
from .keys import KEY_TYPES, PREFIX_DEFAULT, SCHEMA_VERSION
from .lua import SCRIPTS
from .moving import Moving, pause_place
from .reading import Reader
from .server import check_server, look_at_server
from .watch import Watch

REFILL_PAGE = 500  # groups, or jobs of a paused task, in one step
PRUNE_PAGE = 1000


class RedisBackend(Backend):
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
        clock: Clock | None = None,  # the server's clock decides; accepted so that every store is made alike
        through: Connections | None = None,  # connections made elsewhere, with their own prefix: a shard of a cluster
        numbering: Numbering = ALONE,  # of a shard's jobs
    ) -> None:
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        if connections < 1:
            raise ConfigurationError(f"connections is a whole number above 0, not {connections!r}.")
        self.prefix = prefix
        self._connections = through or Connections(url, prefix=prefix, call_timeout=call_timeout, most=connections)
        self._allowed = {"allow_eviction": allow_eviction, "allow_no_aof": allow_no_aof}
        self._trust_restarts = trust_restarts
        self._reader = Reader(self._connections)
        self._mover = Moving(self._connections, self._reader)
        self._numbering = numbering
        self._is_set_up = False
        self._watch: tuple[asyncio.AbstractEventLoop, Watch] | None = None
        self._refill_after = ("", b"")

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        if not self._is_set_up:
            await self._set_up()

    async def migrate(self) -> tuple[int, int]:
        return await self._set_up(), SCHEMA_VERSION

    async def _set_up(self) -> int:
        """Look at the server, make the store where there is none; answers the version found."""
        check_server(await look_at_server(self._connections), **self._allowed)
        reply = await self._connections.run(SCRIPTS["open"], list(KEY_TYPES.values()))
        found = int(reply[0])
        if found not in (0, SCHEMA_VERSION):
            raise SchemaMismatch(found, SCHEMA_VERSION)
        self._is_set_up = True
        return found

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None and watch[0] is asyncio.get_running_loop():
            await watch[1].close()
        self._connections.abandon()
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
        self, verb: str, now: float | None, *values: Any, pieces: Sequence[bytes] = (), urgent: bool = False
    ) -> list[Any]:
        self._check_open()
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces, urgent=urgent)

    async def _answers(self, verb: str, now: float | None, named: list[Any]) -> list[Answer]:
        if not named:
            return []
        [letters] = await self._run(verb, now, named)
        return rows.answers(letters)

    # ------------------------------------------------------------------ producing

    async def declare(self, rules: Sequence[QueueRule], now: float | None = None) -> None:
        for rule in rules:
            if rule.group_limit < 1:
                raise ConfigurationError(
                    f"group_limit of queue {rule.name!r} must be at least 1, not {rule.group_limit}."
                )
        if rules:
            known = [
                (rule.name, 1 if rule.group_order == "strict" else rule.group_limit, rule.group_order) for rule in rules
            ]
            for queue in await self._run("declare", now, known):
                await self._bring_to_rule(queue.decode(), now)

    async def _bring_to_rule(self, queue: str, now: float | None) -> None:
        """Refill or withdraw the queue's groups, page by page. Who dies half-way, or meets a seal that came meanwhile,
        leaves the rest to the sweep."""
        after: bytes | None = b""
        with suppress(StoreSealed):
            while after is not None:
                _, last, _ = await self._run("refill", now, queue, after.decode(), REFILL_PAGE, False)
                after = last or None

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        letters, others = await self._run(
            "enqueue", now, list(map(rows.new_job, jobs)), *self._numbering, pieces=list(map(rows.body, jobs))
        )
        answered = [
            Enqueued(job.id, letter == 99, letter == 114) for job, letter in zip(jobs, letters, strict=True)
        ]  # c created, r replaced
        for place, live_id in zip(others[::2], others[1::2], strict=True):
            answered[place - 1] = Enqueued(live_id.decode(), False, answered[place - 1].replaced)
        return answered

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        await self._run("register", now, worker.id, worker.lease_seconds, pieces=[rows.worker_facts(worker)])

    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        return await self.exchange((), (), request, now)

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
        lost, cancelled, released = (tuple(rows.unpack(one)) for one in lists)
        return Renewal(known=bool(known), lost=lost, cancelled=cancelled, released=released)

    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        named = [(one.id, one.token, one.progress, one.text, one.lines[-LOGS_KEPT_MAX:]) for one in reports]
        return await self._answers("report", now, named)

    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        return list((await self.exchange(settlements, (), None, now)).answers)

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        values: list[bytes] = []
        known, letters, recovered, leases, *why = await self._run(
            "exchange",
            now,
            [rows.settlement(one, values) for one in settlements],
            [(one.id, one.token, one.delay) for one in releases],
            None
            if request is None
            else (request.worker, request.call, request.queues, request.most, request.most_by_queue),
            secrets.token_hex(10),
            self._trust_restarts,
            pieces=values,
        )
        return Exchanged(
            answers=tuple(rows.answers(letters)),
            leases=rows.leases(leases),
            known=bool(known),
            recovered=rows.recovered(recovered),
            sealed=sealing.read(why[0].decode()) if why and why[0] else None,
            quiet_seconds=float(why[1]) if why else 0.0,
        )

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        return list((await self.exchange((), releases, None, now)).answers)

    async def retire(self, worker: str, now: float | None = None) -> int:
        [number] = await self._run("retire", now, worker)
        return int(number)

    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        [packed] = await self._run("recover", now, list(dead), limit, self._trust_restarts)
        return list(rows.recovered(packed))

    # ------------------------------------------------------------------ sweeping

    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        due, expired, revived, more = await self._run("promote", now, limit)
        return Promoted(due=due, expired=expired, revived=revived, more=bool(more))

    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        place, member = self._refill_after
        made, last_place, last_member = await self._run("refill", now, None, place, limit, False, pieces=[member])
        self._refill_after = (last_place.decode(), last_member)
        return int(made)

    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        before = None
        if older_than is not None:
            before = (await self.clock() if now is None else now) - max(older_than, REMEMBER_SECONDS_MIN)
        removed = start = 0
        while removed < limit and start >= 0:
            page = min(PRUNE_PAGE, limit - removed)
            number, start = await self._run("prune", now, page, before, start)
            removed += number
            if before is None and number == page:
                start = 0
        return removed

    # ------------------------------------------------------------------ operating

    async def _operate(self, verb: str, now: float | None, *values: Any) -> JobRecord:
        return rows.jobs(await self._run(verb, now, *values))[0]

    async def cancel(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._operate("cancel", now, job_id)

    async def bury(self, job_id: str, reason: str, now: float | None = None) -> JobRecord:
        return await self._operate("bury", now, job_id, reason)

    async def run_now(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._operate("run_now", now, job_id)

    async def revive(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._operate("revive", now, job_id, "revive")

    async def retry(self, job_id: str, now: float | None = None) -> JobRecord:
        return await self._operate("revive", now, job_id, "retry")

    async def discard(self, job_id: str, now: float | None = None) -> DeadLetter:
        [packed] = await self._run("discard", now, job_id)
        return rows.letter(packed)

    async def pause(self, pause: Pause, now: float | None = None) -> None:
        place = _pause_place(pause)
        [changed] = await self._run("pause", now, *place, rows.named(pause))
        if changed and pause.task is not None:
            await self._move_lanes(now, all_lanes=True)

    async def resume(self, pause: Pause, now: float | None = None) -> bool:
        [changed] = await self._run("pause", now, *_pause_place(pause), None)
        if changed and pause.task is not None:
            await self._move_lanes(now, all_lanes=False)
        return bool(changed)

    async def _move_lanes(self, now: float | None, *, all_lanes: bool) -> None:
        """Let a task's pause, or its end, take hold of what is ready, page by page. Claims obey the pause meanwhile;
        where a seal comes before the last page, so does export."""
        after: bytes | None = b""
        with suppress(StoreSealed):
            while after is not None:
                _, _, last = await self._run("refill", now, None, None, REFILL_PAGE, all_lanes, pieces=[after])
                after = last or None

    async def limit_group(self, queue: str, group: str, limit: int | None, now: float | None = None) -> None:
        if limit is not None and limit < 1:
            raise ConfigurationError(
                f"the limit of group {group!r} must be at least 1, not {limit}. To stop it, pause it."
            )
        await self._run("limit_group", now, queue, group, limit)

    # ------------------------------------------------------------------ reading

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._reading().get(job_id)

    async def find(self, query: JobQuery) -> list[JobRecord]:
        return await self._reading().find(query)

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return await self._reading().count(queue)

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._reading().logs(job_id)

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._reading().letter(job_id)

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        return await self._reading().letters(query)

    async def queues(self) -> list[QueueRecord]:
        return await self._reading().queues()

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        return await self._reading().groups(queue, limit)

    async def group(self, queue: str, name: str) -> GroupRecord:
        return await self._reading().group(queue, name)

    async def pauses(self) -> list[Pause]:
        return await self._reading().pauses()

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        return await self._reading().workers(now)

    async def dump(self) -> Dump:
        return await self._reading().dump()

    # ------------------------------------------------------------------ moving to another store

    def _moving(self) -> Moving:
        self._check_open()
        return self._mover

    async def sealed(self) -> Seal | None:
        return await self._moving().sealed()

    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        return await self._moving().seal(seal, instead_of)

    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        return await self._moving().export(part, after, limit)

    async def carry(self, move: str, shipment: Shipment) -> None:
        await self._moving().carry(move, shipment)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        async def at_hand() -> tuple[float | None, str]:
            packed, last = await self._run("wait_for_work", None, list(queues))
            return msgspec.msgpack.decode(packed, type=float | None), last.decode()

        await self._watching().wait(queues, timeout, at_hand)

    def _watching(self) -> Watch:
        loop = asyncio.get_running_loop()
        if self._watch is None or self._watch[0] is not loop:
            if self._watch is not None and self._watch[1].process != os.getpid():
                keep_inherited(self._watch)
            self._watch = (loop, Watch(self._connections, self._connections.keys[-1]))
        return self._watch[1]


def _pause_place(pause: Pause) -> tuple[str, str | None, str | None]:
    """What a pause is about: exactly one of queue, queue + group, task."""
    if (pause.task is None) != (pause.queue is None) and (pause.queue is not None or pause.group is None):
        return pause_place(pause)
    raise ConfigurationError("a pause names a queue, a queue and a group, or a task.")
