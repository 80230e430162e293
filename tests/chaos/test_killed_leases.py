"""A program that holds leases by `app.lease` is killed: others get its jobs, in order, and its outcomes are stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, State
from tests.moving.stage import fresh_url

pytestmark = pytest.mark.chaos

PROGRAM = """
import sys, time
from holdfast import Holdfast

with Holdfast(sys.argv[1]) as app, app.lease("mail", most=3, lease=3) as jobs:
    jobs[0].succeed("sent")
    print(*(job.fence for job in jobs), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis", "cluster"])
def test_what_it_settled_stays_and_the_rest_runs_elsewhere(store: str, tmp_path: Path) -> None:
    url = fresh_url(store, tmp_path)
    with Holdfast(url) as app:
        send = app.task_by_name("send", queue="mail")
        jobs = [send.options(group=f"g{number % 3}").enqueue(number=number) for number in range(6)]
        with subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            fences = [int(fence) for fence in program.stdout.readline().split()]
            program.kill()
        assert [job.refresh().state for job in jobs[:3]] == [State.SUCCEEDED, State.RUNNING, State.RUNNING]
        seen: list[int] = []
        while len(seen) < 5:
            with app.lease("mail", most=10, wait=60) as leased:
                for job in leased:
                    assert job.fence > max(fences), "a later lease has a later fence"
                    seen.append(job.args["number"])
                    job.succeed("sent")
        assert sorted(seen) == [1, 2, 3, 4, 5]
        assert seen.index(1) < seen.index(4) and seen.index(2) < seen.index(5), "groups keep their order"
        assert {job.refresh().state for job in jobs} == {State.SUCCEEDED}
        assert [(job.stalls + job.shared_stalls, job.attempts) for job in jobs] == [
            (0, 1),
            (1, 2),
            (1, 2),
            (0, 1),
            (0, 1),
            (0, 1),
        ]
        assert app.audit().violations == []
