"""Every conformance case on a real cluster of three nodes: each queue is a shard, on whichever node its tag falls."""

from __future__ import annotations

import pytest

from holdfast.backends.redis import nodes
from holdfast.testing.conformance import CASES, run_case

from ...servers.valkey_cluster import fresh_cluster_stores


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was given up late on a busy machine does not make its node one that hangs."""
    monkeypatch.setattr(nodes, "HANG_SECONDS", 60.0)


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    run_case(case, fresh_cluster_stores())
