"""Do the walks find faults, although they look at the whole store every few steps only? Each mutant is planted in the
reference, and one that survives fails its test."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.testing.conformance import CASES, run_case

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
