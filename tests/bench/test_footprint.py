"""The footprint of a worker and a producer is measured for real, once, on a small store."""

from __future__ import annotations

import sys

import pytest
from bench.places import opened
from bench.scenario import Setting
from bench.scenarios.footprint import cases


@pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")
def test_every_case_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.scenarios.footprint.SWEEP_SECONDS", 0.0)
    with opened("sqlite") as place, cases(Setting("sqlite", place, "none", 0, quick=True)) as found:
        figures = {one.name: one.measure() for one in found}
    assert len(figures) == 7
    assert [name for name, one in figures.items() if one["value"] <= 0] == []
    start = figures["start to first job done, ms"]
    assert figures["bare interpreter, ms"]["value"] < start["value"] < start["to_the_end_ms"]
