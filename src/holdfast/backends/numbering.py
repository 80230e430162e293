"""Which seqs a store gives to its jobs. One store counts 1, 2, 3; the shards of a larger one must not give the same.

Called by the stores that can be a shard, memory and Redis. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class Numbering(NamedTuple):
    """Every seq leaves `rest` when divided by `step`. All counters of the store begin above `above`: what was carried
    into its neighbours may have any seq up to there."""

    step: int = 1
    rest: int = 0
    above: int = 0

    def after(self, last: int) -> int:
        """The seq that follows the last one given."""
        return last + 1 + (self.rest - last - 1) % self.step


ALONE = Numbering()  # of a store that is no shard
