"""Every conformance case on a real cluster of three nodes: each queue is a shard, on whichever node its tag falls."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import run_case

from ...servers.valkey_cluster import fresh_cluster_stores
from ..sharded.differing import BY_QUEUE, marked


@pytest.mark.parametrize("case", list(marked(BY_QUEUE)))
def test_case(case: str) -> None:
    run_case(case, fresh_cluster_stores())
