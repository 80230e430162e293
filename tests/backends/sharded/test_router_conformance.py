"""Every conformance case over memory shards.

Where a queue is one shard the router differs from a plain store only in what spans queues (BY_QUEUE). Where a queue is
three, it differs in what IN_THREE names, and in that it must.
"""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import CASES

from .differing import BY_QUEUE, IN_THREE, run_differing, unknown
from .shelves import memory_stores


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    run_differing(case, memory_stores(), BY_QUEUE)


@pytest.mark.parametrize("case", CASES)
def test_case_in_three_shards(case: str) -> None:
    run_differing(case, memory_stores(3), IN_THREE)


def test_every_difference_is_about_a_case() -> None:
    assert not unknown(BY_QUEUE) | unknown(IN_THREE)
