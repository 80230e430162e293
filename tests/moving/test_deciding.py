"""Which pairs of seals a move begins from, goes on from, or refuses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import MoveRefused
from holdfast.mover import Plan, decide
from holdfast.records import Seal

HERE, THERE = "store://here", "store://there"
SOURCE = Seal(move="m", role="source", other=THERE)
TARGET = Seal(move="m", role="target", other=HERE)
MOVED = {"stage": "moved"}


def plan(source: Seal | None, target: Seal | None) -> Plan:
    return decide(source, target, source_name=HERE, target_name=THERE)


def test_two_stores_that_were_in_no_move_begin_a_new_one() -> None:
    first, second = plan(None, None), plan(None, None)
    assert first.begins == second.begins == "anew"
    assert first.move != second.move


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (replace(SOURCE, move="old", role="target", stage="moved"), None),  # it was a target once, and is open
        (None, replace(TARGET, move="old", stage="moved")),
    ],
)
def test_a_store_that_an_earlier_move_left_open_begins_anew(source: Seal | None, target: Seal | None) -> None:
    begun = plan(source, target)
    assert begun.begins == "anew"
    assert begun.move not in ("m", "old")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (None, TARGET),  # killed before the source was sealed
        (SOURCE, TARGET),
        (SOURCE, replace(TARGET, part="jobs", after="7")),
        (SOURCE, replace(TARGET, part=None)),
        (SOURCE, replace(TARGET, part=None, **MOVED)),  # killed before the source was marked
        (replace(SOURCE, **MOVED), TARGET),
        (SOURCE, None),  # the target was thrown away and made anew
        (SOURCE, replace(TARGET, move="old", stage="moved")),
    ],
)
def test_an_unfinished_move_goes_on(source: Seal | None, target: Seal | None) -> None:
    assert plan(source, target) == Plan(move="m", begins="where it stopped")


def test_a_finished_move_is_at_its_end() -> None:
    assert plan(replace(SOURCE, **MOVED), replace(TARGET, **MOVED)).begins == "at its end"


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (replace(SOURCE, other="store://else"), None, "store://else"),  # another target was named before
        (replace(SOURCE, **MOVED), None, "were moved to"),
        (replace(SOURCE, **MOVED), replace(TARGET, move="n", stage="moved"), "were moved to"),
        (SOURCE, replace(TARGET, stage="abandoned"), "abandoned"),
        (None, replace(TARGET, stage="abandoned"), "abandoned"),
        (None, replace(TARGET, other="store://else"), "store://else"),
        (None, replace(TARGET, part="jobs"), "unfinished"),  # an old copy of the source was put back
        (SOURCE, replace(TARGET, move="n"), "unfinished"),
        (TARGET, None, "unfinished"),  # the source is half filled itself
        (None, SOURCE, "being moved"),  # the target is a source
        (SOURCE, SOURCE, "same store"),
    ],
)
def test_anything_else_is_refused(source: Seal | None, target: Seal | None, why: str) -> None:
    with pytest.raises(MoveRefused, match=why):
        plan(source, target)


def test_a_store_is_not_moved_to_itself() -> None:
    names: dict[str, Any] = {"source_name": HERE, "target_name": HERE}
    with pytest.raises(MoveRefused, match="same store"):
        decide(None, None, **names)
