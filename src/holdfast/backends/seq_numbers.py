"""Which seqs a store gives its jobs: a single store counts 1, 2, 3; shards of one store must never issue the same.

Passed by the sharded router to its Redis shards, whose script does the arithmetic of `after`. Pure functions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

EPOCH = 1_577_836_800.0  # 2020; with 4096 shards the milliseconds since then fit into 53 bits until 2089


class Numbering(NamedTuple):
    """Every seq is congruent to `rest` modulo `step`. A shard's seqs are also never below the clock, so that the seqs
    of all shards are roughly in order of time. seqs start above `seq`, fences and turns above `tick`: the highest
    numbers that a move carried into other shards, or into a shard that no longer exists."""

    step: int = 1
    rest: int = 0
    seq: int = 0
    tick: int = 0

    def after(self, last: int, wall: float) -> int:
        """The seq after `last`."""
        least = last + 1
        if self.step > 1:
            least = max(least, math.floor((wall - EPOCH) * 1000) * self.step)
        return least + (self.rest - least) % self.step


ALONE = Numbering()  # for a store that is not a shard
