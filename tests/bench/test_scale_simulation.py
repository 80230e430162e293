"""The simulation of docs/scale.md obeys the laws every queue obeys, and says the same thing twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from bench.scaling.fits import Line
from bench.scaling.planning import Costs, Plan
from bench.scaling.simulation import simulate
from bench.scaling.stations import Cores, Disk, Process, StoreHandle, Timeline

MICRO = 1e-6
REDIS = Costs(
    exchange=Line(150 * MICRO, 20 * MICRO), grouped=Line(150 * MICRO, 27 * MICRO),
    keeper=Line(100 * MICRO, 5 * MICRO), runner=10 * MICRO, chores=15 * MICRO, enqueue=100 * MICRO, threads=1,
)  # fmt: skip
POSTGRES = replace(REDIS, exchange=Line(800 * MICRO, 27 * MICRO), sync=0.002, threads=None, group_locks=True)
SQLITE = replace(REDIS, sync=0.002, one_writer=True)


def test_the_same_seed_says_the_same_and_another_one_something_else() -> None:
    plan = Plan(POSTGRES, workers=3, offered=500.0, handler=0.01)
    assert simulate(plan) == simulate(plan)
    assert simulate(plan) != simulate(replace(plan, seed=2))


@pytest.mark.parametrize("costs", [REDIS, POSTGRES, SQLITE])
@pytest.mark.parametrize("handler", [0.0, 0.05])
def test_littles_law_holds(costs: Costs, handler: float) -> None:
    outcome = simulate(Plan(costs, workers=4, slots=100, handler=handler, seconds=5.0, warm_up=2.0))
    assert outcome.held_mean == pytest.approx(outcome.jobs_per_second * outcome.held_seconds, rel=0.03)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_utilisation_law_holds(workers: int) -> None:
    """Share of the store in use = jobs per second * what each costs it."""
    outcome = simulate(Plan(REDIS, workers=workers, cores=1, seconds=4.0))
    per_job = REDIS.exchange.at(outcome.jobs_per_call) / outcome.jobs_per_call + REDIS.chores
    assert outcome.used["store"] == pytest.approx(outcome.jobs_per_second * per_job, rel=0.03)
    runner = outcome.jobs_per_second * REDIS.runner / workers
    assert outcome.used["runner"] == pytest.approx(runner, rel=0.1)


def test_more_workers_never_exceed_what_the_store_can_do() -> None:
    rates = [simulate(Plan(REDIS, workers=workers, cores=1)).jobs_per_second for workers in (1, 2, 4, 16)]
    ceiling = 1 / (REDIS.exchange.job + REDIS.chores)
    assert rates[0] < rates[1]
    assert max(rates) <= 1.01 * ceiling
    assert simulate(Plan(REDIS, workers=16, cores=1)).saturated == "store"


def test_a_database_with_more_cores_carries_more_and_redis_does_not() -> None:
    def rate(costs: Costs, cores: int) -> float:
        return simulate(Plan(costs, workers=16, cores=cores)).jobs_per_second

    assert rate(POSTGRES, 4) > 1.8 * rate(POSTGRES, 2)
    assert rate(REDIS, 4) == rate(REDIS, 2)


def test_one_file_has_one_writer_and_its_commits_do_not_share_the_disk() -> None:
    outcome = simulate(Plan(SQLITE, workers=4, rtt=0.0, sustained=False, seconds=4.0))
    per_call = SQLITE.exchange.at(outcome.jobs_per_call) + SQLITE.sync
    assert outcome.jobs_per_second == pytest.approx(outcome.jobs_per_call / per_call, rel=0.03)
    assert outcome.saturated == "turns"


def test_one_strict_group_goes_one_by_one() -> None:
    plan = Plan(POSTGRES, workers=1, groups=1, sustained=False, seconds=5.0)
    cycle = plan.rtt + POSTGRES.grouped.at(1) + POSTGRES.sync + POSTGRES.keeper.at(1) + POSTGRES.runner
    assert simulate(plan).jobs_per_second == pytest.approx(1 / cycle, rel=0.05)


def test_a_limit_makes_claims_take_turns() -> None:
    plan = Plan(POSTGRES, workers=8, cores=16)
    free, limited = simulate(plan), simulate(replace(plan, limited=True))
    assert limited.jobs_per_second < free.jobs_per_second / 3
    assert limited.saturated == "turns"


def test_jobs_that_wait_need_slots_and_nothing_else() -> None:
    outcome = simulate(Plan(REDIS, workers=2, slots=50, handler=1.0, seconds=20.0, warm_up=3.0))
    assert outcome.jobs_per_second == pytest.approx(100.0, rel=0.05)
    assert outcome.saturated == "nothing"


def test_jobs_that_end_alone_are_told_alone_until_there_are_many() -> None:
    """A frame per job while the runner has time for it; when it has not, frames hold more and the rate holds."""
    costs = replace(REDIS, runner_frame=200 * MICRO, keeper_frame=50 * MICRO)
    calm, busy = (simulate(Plan(costs, slots=slots, handler=0.1, seconds=5.0)) for slots in (50, 2000))
    alone = calm.jobs_per_second * (costs.runner + costs.runner_frame)
    assert calm.used["runner"] == pytest.approx(alone, rel=0.1)
    assert busy.jobs_per_second > 1.5 / (costs.runner + costs.runner_frame)


def test_what_comes_in_goes_out_and_waits_longer_when_there_is_more_of_it() -> None:
    plan = Plan(REDIS, workers=2, cores=1, seconds=4.0)
    calm, busy = (simulate(replace(plan, offered=rate)) for rate in (200.0, 3000.0))
    assert calm.jobs_per_second == pytest.approx(200.0, rel=0.15)
    assert busy.jobs_per_second == pytest.approx(3000.0, rel=0.05)
    assert plan.rtt / 2 < calm.latency_p50 < busy.latency_p99
    assert calm.latency_p50 <= calm.latency_p99


def test_shards_use_all_nodes() -> None:
    one = simulate(Plan(REDIS, workers=12, cores=1))
    three = simulate(Plan(REDIS, workers=12, cores=1, nodes=3, shards=6))
    assert three.jobs_per_second > 2 * one.jobs_per_second


def test_a_shared_machine_gives_no_more_than_it_has() -> None:
    plan = Plan(REDIS, workers=4, machine=2, sustained=False, rtt=0.0)
    outcome = simulate(plan)
    per_job = REDIS.exchange.job + REDIS.keeper.job + REDIS.runner
    assert outcome.jobs_per_second <= 1.01 * 2 / per_job
    slower = simulate(replace(plan, speed=0.5))
    assert slower.jobs_per_second == pytest.approx(outcome.jobs_per_second / 2, rel=0.05)


# ---------------------------------------------------------------------- what jobs queue for


def test_events_of_one_moment_keep_their_order() -> None:
    time, seen = Timeline(), list[str]()
    for name in "abc":
        time.after(1.0, partial(seen.append, name))
    time.after(0.5, lambda: seen.append("first"))
    time.run(1.0)
    assert seen == ["first", "a", "b", "c"]


def test_a_process_uses_one_core_even_where_there_are_more() -> None:
    time, ends = Timeline(), list[float]()
    process = Process(time, Cores(time, 4))
    for _ in range(3):
        process.work(1.0, lambda: ends.append(time.now))
    time.run(10.0)
    assert ends == [1.0, 2.0, 3.0]
    assert process.usage.mean == pytest.approx(0.3)


def test_the_disk_takes_all_who_wait_at_once() -> None:
    time, ends = Timeline(), list[float]()
    disk = Disk(time, lambda: 1.0)
    for start in (0.0, 0.1, 0.2, 0.9):
        time.after(start, lambda: disk.sync(lambda: ends.append(time.now)))
    time.run(5.0)
    assert ends == [1.0, 2.0, 2.0, 2.0]


def test_nobody_overtakes_at_a_gate_who_waits_for_the_same_name() -> None:
    time, seen = Timeline(), list[str]()
    gate = StoreHandle(time)
    gate.enter({"a"}, lambda: seen.append("one"))
    gate.enter({"a", "b"}, lambda: seen.append("two"))
    gate.enter({"b"}, lambda: seen.append("three"))
    gate.enter({"c"}, lambda: seen.append("four"))
    assert seen == ["one", "four"]
    gate.leave({"a"})
    assert seen == ["one", "four", "two"]
    gate.leave({"a", "b"})
    assert seen == ["one", "four", "two", "three"]
