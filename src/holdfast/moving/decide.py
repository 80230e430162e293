"""Decide what a move between two stores means, given their seals: start, continue, nothing left to do, or refuse.

Called by the mover before it changes anything. Pure. The order of a move: seal the target, seal the source, wait for
leases to end, copy and compare everything, open the target, mark the source as moved. A mover may be killed between
any two steps.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..errors import MoveRefused, StoreSealed
from ..ids import new_id
from ..records import Seal


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
    return Plan(move=source.move, begins="where it stopped")  # the target was thrown away: fill it from the start


def is_begun_target(seal: Seal) -> bool:
    """Whether this target is sealed but nothing has been copied into it yet."""
    return (seal.role, seal.stage, seal.part, seal.after) == ("target", "moving", "rules", "")
