"""Free processes divided among isolated tasks: never more than there are, no task starves, no claim too many."""

from __future__ import annotations

from collections import Counter, deque
from unittest.mock import Mock

import pytest

from holdfast.clock import SystemClock
from holdfast.records import Lease
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.processes.pool import IsolatedSlots, Pool
from holdfast.worker.processes.runner_process import Stage
from holdfast.worker.processes.spawner import Plan

TASKS = ("pdf", "video", "scan")


@pytest.mark.parametrize("free", [-1, 0, 1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 50])
def test_all_free_processes_are_dealt_out_and_not_one_more(free: int, number: int) -> None:
    tasks, dealing = [f"t{n}" for n in range(number)], IsolatedSlots()
    for _ in range(10):
        dealt = dealing.distribute(free, tasks)
        assert list(dealt) == tasks
        assert sum(dealt.values()) == (max(0, free) if tasks else 0)
        assert max(dealt.values(), default=0) - min(dealt.values(), default=0) <= 1


@pytest.mark.parametrize("free", [1, 2, 4, 5])
def test_the_odd_ones_go_round(free: int) -> None:
    dealing, total = IsolatedSlots(), Counter[str]()
    for _ in range(len(TASKS)):
        total.update(dealing.distribute(free, TASKS))
    assert set(total.values()) == {free}


def claims(dealing: IsolatedSlots, stored: dict[str, int], free: int) -> tuple[int, Counter[str]]:
    """Claim as a worker does whose jobs do not end: how often it asks, and what it gets."""
    asked, got = 0, Counter[str]()
    while True:
        asked += 1
        dealt = dealing.distribute(free - got.total(), TASKS)
        came = [task for task, most in dealt.items() for _ in range(min(most, stored.get(task, 0)))]
        for task in came:
            stored[task] -= 1
        got.update(came)
        assert asked < 50
        if not dealing.may_be_more(dealt, came):
            return asked, got


@pytest.mark.parametrize("free", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "stored", [{"pdf": 9}, {"video": 9}, {"scan": 1}, {"pdf": 1, "scan": 9}, {"pdf": 1, "video": 1}]
)
def test_one_task_may_have_them_all_where_the_others_have_no_jobs(free: int, stored: dict[str, int]) -> None:
    most = min(free, sum(stored.values()))
    _, got = claims(IsolatedSlots(), dict(stored), free)
    assert got.total() == most


@pytest.mark.parametrize(("free", "most"), [(0, 1), (1, 3), (2, 2), (3, 1), (9, 1)])
def test_with_nothing_to_do_every_task_is_asked_for_once(free: int, most: int) -> None:
    dealing = IsolatedSlots()
    assert claims(dealing, {}, free)[0] <= most
    assert claims(dealing, {}, free)[0] <= most  # and the same in the next round
    assert claims(dealing, {"video": 1}, free)[1].total() == min(1, free)


def test_tasks_that_are_not_isolated_have_no_cap_and_ask_for_no_claim() -> None:
    dealing = IsolatedSlots()
    assert dealing.distribute(4, ()) == {}
    assert not dealing.may_be_more({}, ["mail"] * 10)


def runner(*, dedicated: bool = True, jobs: int = 0, stage: Stage = Stage.READY) -> Mock:
    return Mock(dedicated=dedicated, jobs={f"t{n}": n for n in range(jobs)}, stage=stage)


@pytest.mark.parametrize(
    ("runners", "waiting", "free"),
    [
        ([], 0, 4),
        ([runner(), runner(stage=Stage.STARTING)], 0, 4),  # idle ones and those that start take a job
        ([runner(jobs=1), runner(stage=Stage.LEAVING)], 0, 2),
        ([runner(jobs=1)], 2, 1),
        ([runner(jobs=1)], 9, 0),
        ([runner(dedicated=False, jobs=5)], 0, 4),
    ],
)
async def test_a_pool_deals_out_what_could_begin_alone(runners: list[Mock], waiting: int, free: int) -> None:
    pool = Pool(Plan(app="shop:app", isolated=4), SystemClock(), Reports(), Signals())
    pool.spawner.runners = dict(enumerate(runners))
    assert pool.most_by_task() == {}
    pool._isolated_tasks = frozenset({"pdf"})
    pool._waiting = deque(Lease(f"j{n}", f"t{n}", n, "pdf", "heavy", b"") for n in range(waiting))
    most = pool.most_by_task()
    assert most == {"pdf": free}
    assert not pool.left_some(most, [])
    pool._isolated_tasks = frozenset({"pdf", "scan"})
    assert sum(pool.most_by_task().values()) == free
