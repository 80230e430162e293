"""Every list, count and grouping of the bench has a cost, for real, on small stores."""

from __future__ import annotations

import sys

import pytest
from bench.places import opened
from bench.scenario import Setting
from bench.scenarios.lists import CALLS, cases, sizes


@pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_every_look_has_a_cost_on_small_stores(store: str) -> None:
    with opened(store) as place, cases(Setting(store, place, "none", 0, quick=True)) as found:
        costs = {one.name: one.measure()["cpu_ms"] for one in found}
    assert len(costs) == len(CALLS) * len(sizes(quick=True))
    assert [name for name, cost in costs.items() if cost <= 0] == []
