"""Where a job's time goes: the arithmetic, and one traced worker for real."""

from __future__ import annotations

import sys

import pytest
from bench.driving import Failed, drained, ours, turn
from bench.places import opened
from bench.scenarios.parts import Exchange, exchanges, split, steps


def test_time_is_split_into_that_of_exchanges_and_the_rest() -> None:
    noted = [
        Exchange(0.0, 1.0, 0, ["a", "b"]),
        Exchange(1.5, 2.0, 2, ["c", "d"]),  # what is counted begins with this answer
        Exchange(3.0, 3.5, 2, ["e", "f"]),
        Exchange(4.0, 4.5, 2, []),
    ]
    assert split(noted) == {"jobs_per_exchange": 2.0, "within_us": 250_000.0, "between_us": 375_000.0}


def test_too_few_jobs_to_be_split_are_no_figure() -> None:
    with pytest.raises(Failed, match="too few"):
        split([Exchange(0.0, 1.0, 0, ["a"]), Exchange(1.0, 2.0, 1, [])])


def test_the_steps_of_a_job_are_told_by_the_exchange_that_brought_it() -> None:
    noted = [Exchange(10.25, 10.75, 0, ["a"]), Exchange(20.5, 20.75, 1, ["b"]), Exchange(29.75, 30.25, 1, ["c"])]
    moments = {
        "a": {"called": 10.0, "returned": 10.5, "started": 11.0},
        "b": {"called": 20.0, "returned": 20.25, "started": 21.0},
        "c": {"called": 29.5, "returned": 30.0, "started": 30.5},
    }
    assert steps(noted, moments) == {
        "us": 1_000_000.0,
        "enqueue_us": 500_000.0,
        "heard_us": 250_000.0,
        "within_us": 500_000.0,
        "start_us": 250_000.0,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")
def test_a_traced_worker_notes_every_job_once() -> None:
    contender = ours(BENCH_SLOTS="20", BENCH_TRACE="1")
    with opened("sqlite") as place, place.area() as area, turn(contender, area) as one:
        drained(one, 300)
        noted = exchanges(one)
    leased = [job for exchange in noted for job in exchange.leased]
    assert len(leased) == len(set(leased)) == 300 == sum(exchange.settled for exchange in noted)
    assert all(exchange.sent <= exchange.answered for exchange in noted)
