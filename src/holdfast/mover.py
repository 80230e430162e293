"""The mover: seals two stores, waits for leases to end, copies piece by piece, compares, opens the target.

Called by `holdfast move`. It may be killed anywhere and restarted: all of its state is in the two seals. Every step is
a compare-and-set or idempotent, so even two concurrent movers lose and duplicate nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .backends.contract import Backend
from .errors import BackendUnavailable, MoveRefused, OutcomeUnknown, StoreSealed
from .inspection.audit import named
from .names import new_id
from .records import PARTS, JobQuery, LetterQuery, Part, Seal, Shipment, StoredJob, WorkerRecord
from .worker.keeper.store_client import REARRANGE_LIMIT, AdaptiveLimit

# ----------------------------------------------------------------------------------------------------------------------
# Compare two stores row by row, before the target is opened. Both are read side by side in pieces, so memory stays
# bounded. Read-only; both stores are sealed meanwhile.


PIECE_BYTES_GOAL = 2 * 1024 * 1024
PIECE_ROWS_FIRST = 50
PIECE_ROWS_MAX = 1000
DIFFERENCES_SHOWN_MAX = 10

_encode = msgspec.json.Encoder().encode
_NUL, _NUL_SHOWN = b"\\u0000", "�".encode()


class PieceSize:
    """How many rows to request at once: as many as make up a few megabytes."""

    def __init__(self) -> None:
        self.rows = PIECE_ROWS_FIRST

    def learn(self, shipment: Shipment) -> None:
        number, size = len(shipment.jobs) + len(shipment.letters), len(_encode(shipment))
        if number:
            fitting = PIECE_BYTES_GOAL * number // size
            self.rows = max(1, min(fitting, 4 * self.rows, PIECE_ROWS_MAX))

    def shrink(self) -> None:
        self.rows = max(1, self.rows // 2)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, the digest of each side, and the first rows that differ."""

    rows: dict[str, int]  # by part and kind, of the source
    source_digest: str
    target_digest: str
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences and self.source_digest == self.target_digest


class _Tally:
    """One side: a digest over all its rows, in order."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def add(self, rows: Sequence[bytes]) -> None:
        for row in rows:
            self.digest.update(len(row).to_bytes(8, "big"))
            self.digest.update(row)


async def compare(source: Backend, target: Backend, say: Callable[[int], None]) -> Comparison:
    """Compare everything that a move copies; `say` is called with the number of jobs compared so far."""
    here, there = _Tally(), _Tally()
    counted: dict[str, int] = {}
    differences: list[str] = await _counts_apart(source, target)
    for part in PARTS:
        after: str | None = ""
        size = PieceSize()
        while after is not None and not differences:
            one = await patiently(partial(source.export, part, after, limit=size.rows))
            two = await patiently(partial(target.export, part, after, limit=size.rows))
            differences += _rows_apart(part, _rows(one), _rows(two), here, there)
            if one.after != two.after and not differences:
                differences.append(f"{part}: one side has more after {after!r}")
            for name, number in _numbers(one).items():
                counted[name] = counted.get(name, 0) + number
            say(counted.get("jobs", 0))
            size.learn(one)
            after = one.after
    return Comparison(
        rows=counted,
        source_digest=here.digest.hexdigest(),
        target_digest=there.digest.hexdigest(),
        differences=tuple(differences[:DIFFERENCES_SHOWN_MAX]),
    )


async def _counts_apart(source: Backend, target: Backend) -> list[str]:
    one, two = await patiently(source.count), await patiently(target.count)
    differences: list[str] = []
    for queue in sorted({*one, *two}):
        states = {*one.get(queue, {}), *two.get(queue, {})}
        for state in sorted(states):
            here, there = one.get(queue, {}).get(state, 0), two.get(queue, {}).get(state, 0)
            if here != there:
                differences.append(f"queue {queue}: {here} {state} jobs in the source, {there} in the target")
    return differences


def _numbers(piece: Shipment) -> dict[str, int]:
    return {
        "queues": len(piece.queues),
        "tasks": len(piece.tasks),
        "overrides": len(piece.overrides),
        "entries": len(piece.entries),
        "pauses": len(piece.pauses),
        "jobs": len(piece.jobs),
        "log_lines": sum(len(job.logs) for job in piece.jobs),
        "letters": len(piece.letters),
    }


def _rows(piece: Shipment) -> list[tuple[str, Any]]:
    """Every row with a readable name. Pauses and overrides are sorted because each store has its own order, and the
    number of shards is up to each store. GCRA states are left out: they lose their meaning after a while."""
    return [
        *((f"rule of queue {one.name}", replace(one, shards=1)) for one in piece.queues),
        *((f"rule of task {one.name}", one) for one in piece.tasks),
        *((f"override of {one.task or one.group or one.queue}", one) for one in sorted(piece.overrides, key=repr)),
        *((f"cron entry {one.name}", one) for one in piece.entries),
        *((f"pause of {one.task or one.group or one.queue}", one) for one in sorted(piece.pauses, key=repr)),
        *((f"job {job.id}", _as_it_counts(job)) for job in piece.jobs),
        *((f"dead letter {letter.id}", letter) for letter in piece.letters),
    ]


def _as_it_counts(job: StoredJob) -> StoredJob:
    """Ignore its lane: it follows from rules and pauses, which are compared; a sharded store sets it when it opens."""
    return replace(job, lane=0) if job.lane else job


def _rows_apart(
    part: Part, one: list[tuple[str, Any]], two: list[tuple[str, Any]], here: _Tally, there: _Tally
) -> list[str]:
    mine, other = [_plain(row) for _, row in one], [_plain(row) for _, row in two]
    here.add(mine)
    there.add(other)
    if mine == other:
        return []
    apart = [f"{name} differs" for (name, _), a, b in zip(one, mine, other, strict=False) if a != b]
    if len(one) != len(two):
        apart.append(f"{part}: {len(one)} rows here, {len(two)} there")
    return apart


def _plain(row: Any) -> bytes:
    """A row as text. Not every store's text can hold NUL; those that cannot keep the replacement character instead."""
    return _encode(row).replace(_NUL, _NUL_SHOWN)


# ----------------------------------------------------------------------------------------------------------------------
# Decide what a move between two stores means, given their seals: start, continue, nothing left to do, or refuse. Pure;
# done before anything is changed. The order of a move: seal the target, seal the source, wait for leases to end, copy
# and compare everything, open the target, mark the source as moved. A mover may be killed between any two steps.


class Plan(Struct, frozen=True, kw_only=True):
    """Which move this is, and how far it has got."""

    move: str
    begins: Literal["anew", "where it stopped", "at its end"]


def refusal(side: Literal["source", "target"], seal: Seal) -> MoveRefused:
    """The refusal caused by the seal on that side."""
    return MoveRefused(f"the {side} is sealed: {StoreSealed(seal.role, seal.stage, seal.other).why}")


def decide(source: Seal | None, target: Seal | None, *, source_name: str, target_name: str) -> Plan:
    """The plan, or MoveRefused if there is none."""
    if source_name == target_name or (source is not None and source.closed and source == target):
        raise MoveRefused("the two URLs name the same store.")
    if source is not None and source.closed:
        return _go_on_from(source, target, target_name)
    if target is not None and target.closed:
        # Killed before the source was sealed, so nothing has been copied. A target that holds something belongs to a
        # source that was sealed; if that one is open now, it is not the same store any more (an old copy restored?).
        if is_begun_target(target) and target.other == source_name:
            return Plan(move=target.move, begins="where it stopped")
        raise refusal("target", target)
    return Plan(move=new_id(), begins="anew")


def _go_on_from(source: Seal, target: Seal | None, target_name: str) -> Plan:
    if source.role == "target":
        raise refusal("source", source)
    if target is not None and target.move == source.move and target.role == "target":
        if target.stage == "abandoned":
            raise refusal("target", target)
        done = (source.stage, target.stage) == ("moved", "moved")
        return Plan(move=source.move, begins="at its end" if done else "where it stopped")
    if source.stage == "moved" or source.other != target_name:
        raise refusal("source", source)
    if target is not None and target.closed:
        raise refusal("target", target)
    return Plan(move=source.move, begins="where it stopped")  # the target was discarded: fill it from the start


def is_begun_target(seal: Seal) -> bool:
    """Whether this target is sealed but nothing has been copied into it yet."""
    return (seal.role, seal.stage, seal.part, seal.after) == ("target", "moving", "rules", "")


# ----------------------------------------------------------------------------------------------------------------------
# Retrying store calls while the store is busy or unresponsive. Only for idempotent calls: reads, copying, exchanging a
# seal.


T = TypeVar("T")

RETRY_FIRST_SECONDS = 0.1
RETRY_MOST_SECONDS = 2.0
RETRY_FOR_SECONDS = 30.0  # a longer outage ends the mover; restarted, it continues


async def patiently(ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
    """Return the result, retrying for this long; then raise the store's own error."""
    deadline = time.monotonic() + (RETRY_FOR_SECONDS if seconds is None else seconds)
    pause = RETRY_FIRST_SECONDS
    while True:
        try:
            return await ask()
        except (BackendUnavailable, OutcomeUnknown):
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_MOST_SECONDS)


# ----------------------------------------------------------------------------------------------------------------------
# The move


StepName = Literal["seal", "wait", "carry", "compare", "open"]

LOOK_EVERY_SECONDS = 0.2
FLAWS_COUNTED_MAX = 100


@dataclass(frozen=True)
class Side:
    """An open store and its display name, which contains no password."""

    backend: Backend
    name: str


class Step(Struct, frozen=True, kw_only=True):
    """Progress of a move: jobs copied or compared, or leases still live."""

    step: StepName
    done: int = 0
    total: int = 0


class Moved(Struct, frozen=True, kw_only=True):
    """Result of a move. `comparison` None: it had already ended, and there was nothing left to do."""

    move: str
    begins: str
    comparison: Comparison | None = None

    @property
    def done(self) -> bool:
        return self.comparison is None or self.comparison.equal


class Survey(Struct, frozen=True, kw_only=True):
    """What a move would find."""

    plan: Plan
    jobs: dict[str, dict[str, int]]  # by queue and state
    leases: int


class Mover:
    """One move from a source to a target."""

    def __init__(self, source: Side, target: Side, *, wait: float, say: Callable[[Step], None]) -> None:
        self._source, self._target = source, target
        self._wait, self._say = wait, say

    async def run(self) -> Moved:
        """Start the move, or continue where it stopped."""
        plan, on_source, on_target = await _decided(self._source, self._target)
        if plan.begins == "at its end":
            return Moved(move=plan.move, begins=plan.begins)
        await _refuse_if_flawed(self._source.backend)
        if plan.begins == "anew":
            await _refuse_if_held(self._target.backend)
            if self._wait <= 0 and (held := await _leases(self._source.backend)):
                raise _leases_live(held)
        self._say(Step(step="seal"))
        target = await self._seal_target(plan.move, on_target)
        try:
            source = await self._seal_source(plan.move, on_source, target)
        except (BackendUnavailable, MoveRefused):  # callers' transactions, or another mover: leave nothing behind
            if target.closed and is_begun_target(target):
                await _put(self._target, on_target if on_target != target else None, target)
            raise
        if target.closed:
            await self._until_no_lease(source, target)
            target = await self._carry(plan.move, target)
            comparison = await self._compare()
            if not comparison.equal:
                return Moved(move=plan.move, begins=plan.begins, comparison=comparison)
            self._say(Step(step="open"))
            await _put(self._target, replace(target, stage="moved"), target)
        else:
            comparison = None  # killed after the target was opened: it may have changed since
        await _put(self._source, replace(source, stage="moved"), source)
        return Moved(move=plan.move, begins=plan.begins, comparison=comparison)

    # ------------------------------------------------------------------ sealing

    # Each replaces only the seal the plan was based on: another mover's seal is never replaced.

    async def _seal_target(self, move: str, before: Seal | None) -> Seal:
        if before is not None and before.move == move:
            return before
        since = await patiently(self._target.backend.clock)
        seal = Seal(move=move, role="target", other=self._source.name, since=since)
        await _put(self._target, seal, before)
        return seal

    async def _seal_source(self, move: str, before: Seal | None, target: Seal) -> Seal:
        if await patiently(self._source.backend.sealed) == target:  # two names for one store, and it is empty
            raise MoveRefused("the two URLs name the same store.")
        if before is not None and before.move == move:
            return before
        await self._rearrange()
        since = await patiently(self._source.backend.clock)
        seal = Seal(move=move, role="source", other=self._target.name, since=since)
        await _put(self._source, seal, before, max(self._wait, RETRY_FOR_SECONDS))
        return seal

    async def _rearrange(self) -> None:
        """Finish applying changed rules: a sealed store no longer rearranges."""
        limit = AdaptiveLimit(REARRANGE_LIMIT)

        async def piece() -> bool:
            try:
                return await self._source.backend.rearrange(limit=limit.value)
            except (BackendUnavailable, OutcomeUnknown):
                limit.timed_out()
                raise

        with suppress(StoreSealed):  # sealed by another mover meanwhile: setting our own seal will report it
            while await patiently(piece):
                pass

    async def _until_no_lease(self, source: Seal, target: Seal) -> None:
        """Let running jobs end. If they do not end in time, remove the seals again: nothing was copied."""
        deadline = time.monotonic() + self._wait
        first = 0
        while held := await _leases(self._source.backend):
            number = sum(worker.running for worker in held)
            first = max(first, number)
            self._say(Step(step="wait", done=first - number, total=first))
            await patiently(self._source.backend.recover)
            if time.monotonic() >= deadline:
                if is_begun_target(target):
                    await _put(self._target, None, target)
                    await _put(self._source, None, source)
                raise _leases_live(held)
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    # ------------------------------------------------------------------ copying

    async def _carry(self, move: str, target: Seal) -> Seal:
        total, done = await _jobs(self._source.backend), await _jobs(self._target.backend)
        size = PieceSize()
        seal = target
        while seal.part is not None:
            self._say(Step(step="carry", done=done, total=total))
            piece = await patiently(partial(self._carry_piece, move, seal.part, seal.after, size))
            seal = seal.moved_on(piece)
            size.learn(piece)
            done += len(piece.jobs)
        self._say(Step(step="carry", done=done, total=total))
        return seal

    async def _carry_piece(self, move: str, part: Part, after: str, size: PieceSize) -> Shipment:
        try:
            piece = await self._source.backend.export(part, after, limit=size.rows)
            await self._target.backend.carry(move, piece)
        except (BackendUnavailable, OutcomeUnknown):
            size.shrink()  # it may have been more than one of the stores can handle within its call timeout
            raise
        return piece

    async def _compare(self) -> Comparison:
        total = await _jobs(self._source.backend)
        return await compare(
            self._source.backend,
            self._target.backend,
            lambda done: self._say(Step(step="compare", done=done, total=total)),
        )


async def survey(source: Side, target: Side | None) -> Survey:
    """What a move would find and do; changes nothing. `target` is None if it does not exist yet."""
    if target is not None:
        plan, _, _ = await _decided(source, target)
        if plan.begins == "anew":
            await _refuse_if_held(target.backend)
    else:
        plan = decide(await source.backend.sealed(), None, source_name=source.name, target_name="")
    await _refuse_if_flawed(source.backend)
    counts = await source.backend.count()
    jobs = {queue: {state.value: number for state, number in by.items()} for queue, by in counts.items()}
    leases = sum(worker.running for worker in await _leases(source.backend))
    return Survey(plan=plan, jobs=jobs, leases=leases)


async def abandon(source: Side, target: Side) -> bool:
    """Abandon an unfinished move: the source works again. Returns whether the target keeps some of the jobs.

    The target is closed permanently first, so that a mover still running elsewhere can no longer open it.
    """
    here, there = await source.backend.sealed(), await target.backend.sealed()
    paired = here is not None and there is not None and here.move == there.move and there.role == "target"
    if paired and there is not None and there.stage == "moved":
        raise MoveRefused("all jobs are in the target already. Run `holdfast move` again to finish.")
    if here is not None and here.role == "source" and here.stage == "moving":
        if not paired and here.other != target.name:
            raise MoveRefused(f"the source is being moved to another store: {here.other}. Name that one.")
    elif there is not None and is_begun_target(there) and there.other == source.name:
        here, paired = None, True  # killed before the source was sealed
    else:
        raise MoveRefused("no move between these two stores is under way.")
    left = False
    if paired and there is not None:
        left = not is_begun_target(there)
        if there.stage == "moving":
            await _put(target, replace(there, stage="abandoned") if left else None, there)
    if here is not None:
        await _put(source, None, here)
    return left


# ---------------------------------------------------------------------- store calls


async def _refuse_if_flawed(source: Backend) -> None:
    """A row that cannot be read cannot be copied: move nothing, rather than everything but that row."""
    flaws = await patiently(partial(source.flaws, limit=FLAWS_COUNTED_MAX))
    if flaws:
        number = f"{len(flaws)} or more" if len(flaws) >= FLAWS_COUNTED_MAX else str(len(flaws))
        raise MoveRefused(
            f"the source has {number} rows that cannot be read, or that contradict an index ({named(flaws[0])}). "
            "`holdfast audit` lists them. Repair or remove them first: a move would lose them."
        )


async def _decided(source: Side, target: Side) -> tuple[Plan, Seal | None, Seal | None]:
    """The plan, and the seals it is based on."""
    here, there = await patiently(source.backend.sealed), await patiently(target.backend.sealed)
    return decide(here, there, source_name=source.name, target_name=target.name), here, there


async def _put(side: Side, seal: Seal | None, instead_of: Seal | None, seconds: float | None = None) -> None:
    """Replace a seal. After a lost reply, checks whether it took effect; waits while callers' transactions block it."""

    async def exchange() -> None:
        if not await side.backend.seal(seal, instead_of=instead_of) and await side.backend.sealed() != seal:
            raise MoveRefused(
                f"somebody else changed the seal of {side.name} meanwhile. Check it, and run the move again."
            )

    await patiently(exchange, seconds)


async def _leases(backend: Backend) -> list[WorkerRecord]:
    """Workers that hold leases: every running job belongs to one, and a worker's row stays while it holds a lease."""
    return [worker for worker in await patiently(backend.workers) if worker.running]


async def _jobs(backend: Backend) -> int:
    counts = await patiently(backend.count)
    return sum(sum(by_state.values()) for by_state in counts.values())


async def _refuse_if_held(target: Backend) -> None:
    """A store in use must not be sealed even briefly. Sealing checks this again, atomically."""
    if await target.find(JobQuery(limit=1)) or await target.letters(LetterQuery(limit=1)) or await target.pauses():
        raise MoveRefused("the target is not empty. Name a store that has never been used.")


def _leases_live(held: list[WorkerRecord]) -> MoveRefused:
    number = sum(worker.running for worker in held)
    who = ", ".join(f"{worker.id} ({worker.running} on {worker.host}, pid {worker.pid})" for worker in held[:5])
    jobs = "1 job is" if number == 1 else f"{number} jobs are"
    return MoveRefused(
        f"{jobs} still running: {who}. Stop these workers, or give a longer --wait; the store stays in use.",
        leases=number,
    )
