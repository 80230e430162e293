"""No test is left out of a run, and eight turns have all variants."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.turns import TURNS, chosen, leave_out, parse


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 10, 270])
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
        parse(str(TURNS))


@pytest.mark.parametrize(
    ("file", "marked", "left"),
    [
        ("tests/backends/sqlite/test_heads.py", 0, 2),  # a slow folder: all take turns
        ("tests/backends/sharded/test_router_conformance.py", 8, 9),  # only the marked ones
        ("tests/words/test_codec.py", 0, 16),
        ("tests/words/test_codec.py", 16, 2),
    ],
)
def test_which_variants_take_turns(file: str, marked: int, left: int) -> None:
    marks = [SimpleNamespace(name="turn")]
    calls = [SimpleNamespace(id=str(number), marks=marks if number < marked else []) for number in range(16)]
    test: Any = SimpleNamespace(nodeid=f"{file}::test", get_closest_marker=lambda _: None)
    made: Any = SimpleNamespace(_calls=calls, definition=test)
    leave_out(made, 3, repeats=True)
    assert len(calls) == left


def test_every_test_has_one_turn_where_all_take_turns() -> None:
    def collected(*options: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-v", "-p", "no:cacheprovider", *options]
        done = subprocess.run([*command, "tests/house/test_turns.py"], capture_output=True, text=True, check=True)
        return {line.strip() for line in done.stdout.splitlines() if "<Function" in line}

    one, another = (collected("--turn-every", "--turn", turn) for turn in ("0", "7"))
    assert one and another and not one & another
    assert len(one) + len(another) <= 2 * -(-len(collected()) // TURNS)
