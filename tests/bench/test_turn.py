"""One turn for real: our worker and the bare store on SQLite, with few jobs."""

from __future__ import annotations

import sys

import pytest
from bench.driving import Contender, Failed, drained, floor, ours, turn
from bench.places import opened

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


@pytest.mark.parametrize("contender", [ours(BENCH_SLOTS="20"), floor("sqlite")], ids=lambda one: one.name)
def test_a_turn_counts_every_job_once_and_tells_a_rate(contender: Contender) -> None:
    with opened("sqlite") as place, place.area() as area, turn(contender, area) as one:
        figures = drained(one, 300)
        assert figures["jobs_per_second"] > 0
        assert figures["enqueued_per_second"] > 0
        assert one.tallied().calls == 300


def test_a_contender_that_fails_is_an_error_with_its_own_words() -> None:
    with (
        opened("sqlite") as place,
        place.area() as area,
        turn(ours(), area) as one,
        pytest.raises(Failed, match="KeyError: 'dance'"),
    ):
        one.call("dance")
