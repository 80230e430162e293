"""What a move from one store to another means, given the seals that are on them: begin, go on, nothing left, or no.

Called by the mover before it changes anything. Pure. The order of a move is: target sealed, source sealed, leases
ended, all carried and compared, target opened, source marked as moved. A mover may have been killed between any two.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..errors import MoveRefused, StoreSealed
from ..ids import new_id
from ..records import Seal


class Plan(Struct, frozen=True, kw_only=True):
    """Which move it is, and how far it is."""

    move: str
    begins: Literal["anew", "where it stopped", "at its end"]


def refusal(side: Literal["source", "target"], seal: Seal) -> MoveRefused:
    """No, because of the seal that is on that side."""
    return MoveRefused(f"the {side} is sealed: {StoreSealed(seal.role, seal.stage, seal.other).why}")


def decide(source: Seal | None, target: Seal | None, *, source_name: str, target_name: str) -> Plan:
    """The plan, or MoveRefused where there can be none."""
    if source_name == target_name or (source is not None and source.closed and source == target):
        raise MoveRefused("the two URLs name the same store.")
    if source is not None and source.closed:
        return _go_on_from(source, target, target_name)
    if target is not None and target.closed:
        # Killed before the source was sealed: then nothing was carried yet. A target that holds something is of a
        # source that was sealed; if that one is open now, it is not the store it was (an old copy put back?).
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
    return Plan(move=source.move, begins="where it stopped")  # the target was thrown away: it is filled afresh


def is_begun_target(seal: Seal) -> bool:
    """Whether nothing was carried into this target yet."""
    return (seal.role, seal.stage, seal.part, seal.after) == ("target", "moving", "rules", "")
