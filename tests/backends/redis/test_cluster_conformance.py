"""Every conformance case on a real cluster of three nodes: each queue is a shard, on whichever node its tag falls.

The whole run leaves out lines of tables that only repeat another line's code with other values. It has them of the
router, over shards in memory (test_router_conformance), and of the scripts, on one server (test_conformance).
"""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import CASES

from ...conformance.lines import ALIKE
from ...servers.valkey_cluster import fresh_cluster_stores
from ..sharded.differing import BY_QUEUE, run_differing


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.repeat if case in ALIKE else pytest.mark.turn) for case in CASES]
)
def test_case(case: str) -> None:
    run_differing(case, fresh_cluster_stores(), BY_QUEUE)
