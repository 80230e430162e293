"""Who takes part in the rows of jobs that do something, and how each is set up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from bench.driving import Contender, limit, sampled, turn
from bench.peers import PEERS
from bench.places import Area, NoStatistics, Reading
from bench.scenario import Setting
from bench.scenarios import real
from bench.scenarios.real import ROWS, Row, at_best, at_defaults, jobs_for

from holdfast.options.workers import SLOTS_ASYNC, SLOTS_DEFAULT

ROW = {row.name: row for row in ROWS}


class FakeSetting:
    store = "redis"

    def peers(self) -> list[Contender]:
        return [Contender(name, "peer", ("python",), share=peer.share) for name, peer in PEERS.items()]


def found(make: object, row: Row) -> dict[str, Contender]:
    assert callable(make)
    return {one.name: one for one in make(cast(Setting, FakeSetting()), row)}


def test_every_row_names_peers_that_exist_and_has_us_first() -> None:
    for row in ROWS:
        contenders = found(at_best, row)
        assert next(iter(contenders)) == "holdfast"
        assert set(contenders) - {"holdfast", "limit"} == set(row.by)
        assert set(row.by) <= set(PEERS)


def test_who_computes_has_two_processes_or_two_workers() -> None:
    contenders = found(at_best, ROW["5 ms of Python, 2 at once"])
    workers = {name: one.workers for name, one in contenders.items()}
    assert workers["celery"] == workers["dramatiq"] == workers["taskiq"] == 1
    assert workers["rq"] == workers["arq"] == workers["saq"] == 2
    assert contenders["celery"].settings["BENCH_PROCESSES"] == contenders["limit"].settings["BENCH_PROCESSES"] == "2"
    assert "bullmq" not in contenders


def test_at_defaults_nobody_is_given_slots_threads_or_processes() -> None:
    for row in ROWS:
        for name, one in found(at_defaults, row).items():
            assert one.settings["BENCH_DEFAULTS"] == "1"
            if name not in ("holdfast", "limit"):
                assert not {"BENCH_SLOTS", "BENCH_THREADS", "BENCH_PROCESSES"} & set(one.settings)


def test_at_defaults_the_limit_is_the_handler_in_as_many_slots_as_our_worker_has() -> None:
    blocking = found(at_defaults, ROW["20 ms of blocking I/O, 100 at once"])["limit"].settings
    awaiting = found(at_defaults, ROW["50 ms of awaiting, 1,000 at once"])["limit"].settings
    assert blocking["BENCH_THREADS"] == str(SLOTS_DEFAULT)
    assert awaiting["BENCH_SLOTS"] == str(SLOTS_ASYNC)
    assert blocking["BENCH_PROCESSES"] == awaiting["BENCH_PROCESSES"] == str(os.cpu_count())
    assert "limit" not in found(at_defaults, ROW["no-op"])


def test_a_slow_peer_gets_fewer_jobs() -> None:
    row = ROW["no-op"]
    slow, fast = (found(at_best, row)[name] for name in ("rq", "holdfast"))
    assert jobs_for(row, slow, 3.0) == 1400
    assert jobs_for(row, fast, 3.0) == 70_000
    assert jobs_for(ROW["5 ms of Python, 2 at once"], fast, 3.0) == 1750


class NoArea(NoStatistics):
    """The handler alone needs no store."""

    ours = theirs = ""

    def read(self) -> Reading:
        return Reading()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the bench reads /proc")
def test_the_limit_is_the_handler_without_a_queue() -> None:
    contender = limit(BENCH_HANDLER="wait-20", BENCH_SLOTS="10")
    with turn(contender, cast(Area, NoArea())) as one:
        figures = sampled(one, real.NOOP_PER_SECOND, seconds=0.2, warm=0.05)
    assert 0 < figures["jobs_per_second"] <= 1000
    assert figures["server_us"] == 0
