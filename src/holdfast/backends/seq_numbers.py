"""Which seqs a store gives to its jobs: one store counts 1, 2, 3; the shards of a larger one must not give the same.

Called by the stores that can be a shard, memory and Redis (whose script does the same arithmetic). Pure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

EPOCH = 1_577_836_800.0  # 2020; with 4096 shards the milliseconds since then fit into 53 bits until 2089


class Numbering(NamedTuple):
    """Every seq leaves `rest` when divided by `step`. A shard's seqs are never below the clock either, so that those of
    all shards are, by and large, in the order of time. seqs begin above `seq`, fences and turns above `tick`: what was
    carried into its neighbours, or into a shard that is gone, goes up to there."""

    step: int = 1
    rest: int = 0
    seq: int = 0
    tick: int = 0

    def after(self, last: int, wall: float) -> int:
        """The seq that follows the last one given."""
        least = last + 1
        if self.step > 1:
            least = max(least, math.floor((wall - EPOCH) * 1000) * self.step)
        return least + (self.rest - least) % self.step


ALONE = Numbering()  # of a store that is no shard
