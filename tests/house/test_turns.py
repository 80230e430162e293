"""No test is left out of a run, and three turns have all variants."""

from __future__ import annotations

import pytest

from tests.turns import TURNS, chosen, parse


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 270])
def test_every_variant_has_its_turn_and_every_turn_a_variant(count: int) -> None:
    variants = [("test", f"test[{number}]") for number in range(count)]
    turns = [chosen(variants, turn) for turn in range(TURNS)]
    assert all(turns)
    assert set().union(*turns) == {variant for _, variant in variants}
    assert max(map(len, turns)) <= -(-count // min(count, TURNS))


def test_the_commits_number_decides_unless_another_is_named() -> None:
    assert parse("all") is None
    assert parse("2") == 2
    assert parse("commit") in range(TURNS)
    with pytest.raises(pytest.UsageError, match="--turn is"):
        parse("3")
