"""The mover: seals two stores, waits for leases to end, copies piece by piece, compares, opens the target.

Called by `holdfast move`. It may be killed anywhere and restarted: all of its state is in the two seals. Every step is
a compare-and-set or idempotent, so even two concurrent movers lose and duplicate nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..backends.adaptive_limit import REARRANGE_LIMIT, AdaptiveLimit
from ..backends.contract import Backend
from ..errors import BackendUnavailable, MoveRefused, OutcomeUnknown, StoreSealed
from ..inspection.violations import named
from ..records import JobQuery, LetterQuery, Part, Seal, Shipment, WorkerRecord
from .compare import Comparison, PieceSize, compare
from .decide import Plan, decide, is_begun_target
from .repeat import RETRY_FOR_SECONDS, patiently

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

    The target is closed for good first, so that a mover still running elsewhere can no longer open it.
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
            raise MoveRefused(f"somebody else changed the seal of {side.name} meanwhile. Look, and run it again.")

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
        f"{jobs} still running: {who}. Stop these workers, or give a longer --wait; the store works on.", leases=number
    )
