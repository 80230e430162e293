"""Do the walks find faults, although they look at the whole store every few steps only? Each mutant is planted in the
reference, and one that survives fails its test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, Held, JobRecord, Release
from holdfast.steps import NewStep
from holdfast.testing.conformance import CASES, run_case
from holdfast.testing.conformance.walk import DependencyWalk

from ..reference.backend import ReferenceBackend
from ..simulation import test_mutants as mutants
from .test_stores_walk_alike import SEEDS, STEPS, WALKS, walk_both

UNSOUND = (mutants.AStartedJobKeepsItsKey, mutants.RecoveryForgetsToRefill)
TOO_RARE = (  # one walk in forty shows them at best; those of tests/simulation find them
    mutants.RecoveredJobLosesItsTurn,
    mutants.APushKnowsNoMaximum,
    mutants.RepeatedCallClaimsAnew,
)
UNLIKE = [mutant for mutant in (*mutants.STORES, *mutants.BACKENDS) if mutant not in TOO_RARE]


@pytest.mark.parametrize("mutant", UNSOUND, ids=lambda mutant: mutant.__name__)
def test_a_walk_of_the_suite_finds(mutant: mutants.Mutant) -> None:
    def walk_all() -> None:
        for name in CASES:
            if name.startswith("a_random_walk"):
                run_case(name, lambda _: mutants.make(mutant))

    with pytest.raises(AssertionError, match="the store is not sound"):
        walk_all()


@pytest.mark.parametrize("mutant", UNLIKE, ids=lambda mutant: mutant.__name__)
def test_a_walk_beside_the_reference_finds(mutant: mutants.Mutant) -> None:
    def walk_all() -> None:
        for seed in SEEDS:
            for kind in WALKS:
                asyncio.run(walk_both(seed, STEPS, lambda _: mutants.make(mutant), kind))

    with pytest.raises(AssertionError, match="seed "):
        walk_all()


# ----------------------------------------------------------------------------------------------------------------------
# What jobs remember and wait for. Only the walk with dependencies has signals and steps.


class ALaterSignalReplacesTheFirst(ReferenceBackend):
    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        row = self._store.jobs.get(job_id)
        if row is not None and not row.state.finished:
            self._store.steps.get(job_id, {}).pop(("signal", name), None)
        return await super().signal(job_id, name, value, now, by=by)


class ASignalWakesNobody(ReferenceBackend):
    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        row = self._store.jobs.get(job_id)
        state, due_at = (None, 0.0) if row is None else (row.state, row.due_at)
        answer = await super().signal(job_id, name, value, now, by=by)
        if row is not None and state is State.SCHEDULED and row.due_at != due_at:
            self._store.move(row, State.SCHEDULED, due_at=due_at)
        return answer


class ASignalEndsTheWaitOfAnEarlierAttempt(ReferenceBackend):
    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        row, kept = self._store.jobs.get(job_id), self._store.steps.get(job_id, {})
        if row is not None and ("wait", name) in kept:
            kept["wait", name] = replace(kept["wait", name], fence=row.fence)
        return await super().signal(job_id, name, value, now, by=by)


class ASnoozeSleepsAlthoughItsSignalIsThere(ReferenceBackend):
    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        return await super().settle(list(map(_without_signal, settlements)), now)

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        return await super().exchange(list(map(_without_signal, settlements)), releases, request, now)


def _without_signal(one: Settlement) -> Settlement:
    return replace(one, reason=None) if one.ending is Ending.SNOOZED else one


class AStepIsStoredWithoutALease(ReferenceBackend):
    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        row = self._store.jobs.get(held.id)
        token = row.token if row is not None and row.token else held.token
        return await super().checkpoint(Held(held.id, token), steps, now)


class TheFirstStepOfANameStays(ReferenceBackend):
    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        kept = self._store.steps.get(held.id, {})
        return await super().checkpoint(held, [one for one in steps if (one.kind, one.name) not in kept], now)


class ARejoinedJobIsDecidedByNobody(ReferenceBackend):
    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        row = self._store.jobs.get(job_id)
        reason = None if row is None else row.reason
        ended = row is not None and row.state.finished
        if row is not None and ended:
            self._store.parents_of, parents = {}, self._store.parents_of
            try:
                return await super().rejoin(job_id, now, by=by)
            finally:
                self._store.parents_of = parents
                row.reason = reason
        return await super().rejoin(job_id, now, by=by)


REMEMBERING = (
    ALaterSignalReplacesTheFirst,
    ASignalWakesNobody,
    ASnoozeSleepsAlthoughItsSignalIsThere,
    AStepIsStoredWithoutALease,
    TheFirstStepOfANameStays,
    ARejoinedJobIsDecidedByNobody,
)


@pytest.mark.parametrize("mutant", REMEMBERING, ids=lambda mutant: mutant.__name__)
def test_the_walk_with_dependencies_finds(mutant: type[ReferenceBackend]) -> None:
    def walk_all() -> None:
        for seed in SEEDS:
            asyncio.run(walk_both(seed, STEPS, lambda _: mutant(), DependencyWalk))

    with pytest.raises(AssertionError, match="seed "):
        walk_all()


@pytest.mark.parametrize("how", ["retry", "snooze of its own", "release"])
def test_a_case_finds_that_a_signal_ends_the_wait_of_an_earlier_attempt(how: str) -> None:
    """Which one walk in a hundred shows at best."""
    with pytest.raises(AssertionError):
        run_case(
            f"a_wait_of_an_earlier_lease_does_not_shorten[{how}]", lambda _: ASignalEndsTheWaitOfAnEarlierAttempt()
        )


def test_the_walk_with_dependencies_finds_nothing_in_the_reference() -> None:
    asyncio.run(walk_both(SEEDS[0], STEPS, lambda _: ReferenceBackend(), DependencyWalk))
