"""Does the walk find faults? Each mutant is the reference with one planted; one that survives fails its test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.backends.formulas import ALONE
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.records import (
    Answer,
    ClaimRequest,
    Exchanged,
    Held,
    JobRecord,
    NewJob,
    Recovered,
    Release,
    Renewal,
    Tick,
    Ticked,
)

from ..reference.backend import ReferenceBackend
from ..reference.rows import GroupName, Holder, KeyName, Row
from ..reference.store import Store
from .test_random_walk import SETTINGS
from .walk import Walk

# ends at the first failure and does not shrink it
HUNT = settings(SETTINGS, max_examples=500, phases=(Phase.generate,))


class GiveBackCountsAStall(Store):
    def give_back(self, row: Row, wall: float, delay: float = 0.0) -> None:
        into = State.SCHEDULED if delay > 0 else State.READY
        self.end_lease(row, wall, into, delay=delay, counted=True, stalled=True)


class DeathInsertsASecondLetter(Store):
    def bury(self, row: Row, wall: float, reason: str, error: Failure | None, **changes: Any) -> None:
        earlier = self.drop_letter(row.logical)
        super().bury(row, wall, reason, error, **changes)
        if earlier is not None:
            self.letters[(*row.logical, "earlier")] = earlier


class ClaimIgnoresTheLimit(Store):
    def group_limit(self, name: GroupName) -> int:
        return super().group_limit(name) + 1


class HeldHeadDoesNotBlock(Store):
    def move(self, row: Row, state: State, **changes: Any) -> None:
        super().move(row, state, **(changes | {"held": False}))


class LoweredLimitWithdrawsNothing(Store):
    def refill(self, name: GroupName) -> int:
        group = self.groups.get(name)
        return 0 if group is None or group.in_play > self.group_limit(name) else super().refill(name)


class RecoveredJobLosesItsTurn(Store):
    def place(self, row: Row, **changes: Any) -> None:
        super().place(row, **(changes | {"turn": None}))


class EveryStallCountsAsSufferedAlone(Store):
    def end_lease(self, row: Row, wall: float, into: State, **how: Any) -> None:
        super().end_lease(row, wall, into, **(how | {"alone": True}))


class OutcomesLeaveTheSuspect(Store):
    def end_lease(self, row: Row, wall: float, into: State, **how: Any) -> None:
        suspect = row.suspect
        super().end_lease(row, wall, into, **how)
        row.suspect = row.suspect or suspect


class GiveBackClearsTheSuspect(Store):
    def give_back(self, row: Row, wall: float, delay: float = 0.0) -> None:
        row.suspect = False
        super().give_back(row, wall, delay)


class AWindowNeverPasses(Store):
    def key_holder(self, name: KeyName, wall: float) -> Row | None:
        return super().key_holder(name, 0.0)


class AStartedJobKeepsItsKey(Store):
    def lease_to(self, row: Row, holder: Holder, call: int, wall: float) -> None:
        holds = row.holds_key
        super().lease_to(row, holder, call, wall)
        self.move(row, State.RUNNING, holds_key=holds)


class APushKnowsNoMaximum(Store):
    def replace_call(self, row: Row, job: NewJob, wall: float) -> None:
        super().replace_call(row, replace(job, on_conflict="replace"), wall)


class AJobToBeDroppedDies(Store):
    def expire(self, row: Row, wall: float) -> None:
        row.on_expire = "bury"
        super().expire(row, wall)


class ComingBackDoesNotTakeTheKey(Store):
    def again(self, row: Row, wall: float, *, waits: bool = False) -> None:
        holds = row.holds_key
        super().again(row, wall, waits=waits)
        self.move(row, row.state, holds_key=holds, rank=row.rank)


class StoredBy(ReferenceBackend):
    """The reference around a mutant of its store."""

    def __init__(self, store: type[Store]) -> None:
        super().__init__()
        self._store = store(ALONE)


class RecoveryForgetsToRefill(ReferenceBackend):
    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        recovered = await super().recover(dead=dead, limit=limit, now=now)
        for one in recovered:
            row = self._store.jobs[one.id]
            if row.group is not None and row.state is State.READY:
                self._store.move(row, State.WAITING)
        self._store.touched.clear()
        return recovered


class ACrashAtMostOnceRunsAgain(ReferenceBackend):
    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        stalled = [x for x in settlements if x.ending is Ending.STALLED]
        for row in (self._store.jobs.get(x.id) for x in stalled):
            if row is not None:
                row.max_stalls = max(row.max_stalls, 1)
        return await super().settle(settlements, now)


class SettleDoesNotCheckTheToken(ReferenceBackend):
    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        tokens = {row.id: row.token for row in self._store.jobs.values() if row.token is not None}
        return await super().settle([replace(x, token=tokens.get(x.id) or x.token) for x in settlements], now)


class RenewGoesByWorkerNameOnly(ReferenceBackend):
    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        holder = self._store.workers.get(worker)
        ours = () if holder is None else [Held(row.id, row.token or "") for row in holder.leases.values()]
        return await super().renew(worker, ours, seen_call=seen_call, portrait=portrait, now=now)


class ReviveTwiceMakesTwoLiveJobs(ReferenceBackend):
    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        row = self._store.jobs.get(job_id)
        if row is not None and row.state.live and job_id in self._store.letter_of:
            again = NewJob(id=f"{job_id}-again", task=row.task, queue=row.queue, group=row.group, args=row.args)
            await self.enqueue([again], now)
        return await super().revive(job_id, now, by=by)


class RepeatedCallClaimsAnew(ReferenceBackend):
    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        holder = self._store.workers.get(request.worker)
        if holder is not None:
            holder.last_call = 0
        return await super().claim(request, now)


class CancelFreesTheSlotOfARunningHandler(ReferenceBackend):
    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        record = await super().cancel(job_id, now, by=by, reason=reason)
        row = self._store.jobs[job_id]
        if row.state is State.RUNNING and row.token is not None:
            await self.release([Release(id=job_id, token=row.token)], now)
        return record


class ATickGoesByNameAlone(ReferenceBackend):
    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        there = self._store.entries.get(tick.name)
        return await super().tick(replace(tick, version=0 if there is None else there.version), now)


class ATickOverlaps(ReferenceBackend):
    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        return await super().tick(replace(tick, overlap="allow"), now)


STORES = (
    GiveBackCountsAStall,
    DeathInsertsASecondLetter,
    ClaimIgnoresTheLimit,
    HeldHeadDoesNotBlock,
    LoweredLimitWithdrawsNothing,
    RecoveredJobLosesItsTurn,
    EveryStallCountsAsSufferedAlone,
    OutcomesLeaveTheSuspect,
    GiveBackClearsTheSuspect,
    AWindowNeverPasses,
    AStartedJobKeepsItsKey,
    APushKnowsNoMaximum,
    AJobToBeDroppedDies,
    ComingBackDoesNotTakeTheKey,
)
BACKENDS = (
    RecoveryForgetsToRefill,
    ACrashAtMostOnceRunsAgain,
    SettleDoesNotCheckTheToken,
    RenewGoesByWorkerNameOnly,
    ReviveTwiceMakesTwoLiveJobs,
    RepeatedCallClaimsAnew,
    CancelFreesTheSlotOfARunningHandler,
    ATickGoesByNameAlone,
    ATickOverlaps,
)


Mutant = type[Store] | type[ReferenceBackend]


def make(mutant: Mutant) -> Backend:
    return mutant() if issubclass(mutant, ReferenceBackend) else StoredBy(mutant)


@pytest.mark.parametrize("mutant", [*STORES, *BACKENDS], ids=lambda mutant: mutant.__name__)
def test_the_walk_finds(mutant: Mutant) -> None:
    class OnMutant(Walk):
        makers = (lambda _: make(mutant),)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(OnMutant, settings=HUNT)


def test_the_store_without_a_fault_is_not_found_guilty() -> None:
    """The scaffold of the mutants is no fault itself."""

    class OnScaffold(Walk):
        makers = (lambda _: StoredBy(Store),)

    run_state_machine_as_test(OnScaffold, settings=settings(HUNT, max_examples=20))
