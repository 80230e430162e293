"""Every conformance case on a real cluster of three nodes: each queue is a shard, on whichever node its tag falls."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import CASES

from ...servers.valkey_cluster import fresh_cluster_stores
from ..sharded.differing import BY_QUEUE, run_differing


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    run_differing(case, fresh_cluster_stores(), BY_QUEUE)
