"""isolation="process": a job alone in a process of its own, with limits, and everything it started gone with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene, alive, below, parents
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

USER = 54_321  # of nobody else
PROCESSES = 100
BOMB = """VERSION = 1
import resource


@app.task(name="forks_for_ever", retry=0, isolation="process", timeout=4)
def forks_for_ever(user: int, most: int) -> None:
    os.setuid(user)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    while True:
        try:
            os.fork()
        except BlockingIOError:
            time.sleep(0.05)
"""


def test_isolated_jobs_run_alone_in_warm_processes(stage: ProcessScene) -> None:
    with stage.app() as app:
        first = app.named("alone").enqueue()
        family = stage.start()
        pid = first.result(timeout=90)
        runners = family.runners(2)
        assert pid in runners
        shared = stage.lines("import")[0]["pid"]
        assert pid != shared
        assert app.named("alone").enqueue().result(timeout=90) == pid  # warm: the same process again
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1
        waiting = [app.named("alone").enqueue(does="waits") for _ in range(3)]
        until(lambda: len({line["pid"] for line in stage.lines("start")}) == 4, what="three at once, each alone")
        stage.open_gate()
        assert len({job.result(timeout=90) for job in waiting}) == 3


def test_everything_an_isolated_job_prints_is_in_its_log(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("alone").enqueue(does="prints")
        stage.start()
        job.result(timeout=90)
        lines = [line.text for line in app.logs(job.id)]
        assert sorted(lines) == ["from a child", "from below", "from python"]


def test_a_flood_of_output_hurts_nobody(stage: ProcessScene) -> None:
    with stage.app() as app:
        alone = app.named("alone").enqueue(does="floods")
        shared = app.named("prints").enqueue(text="x" * 1000, times=200_000)
        family = stage.start("--lease", "3s")
        until(lambda: stage.lines("start"), what="it floods")
        quick = [app.named("quick").enqueue(n=n) for n in range(20)]
        until(lambda: all(job.refresh().state is State.SUCCEEDED for job in quick), what="others go on")
        alone.result(timeout=60)
        shared.result(timeout=60)
        for job in (alone, shared):
            lines = app.logs(job.id)
            assert len(lines) <= 200
            assert "left out" in lines[-1].text
            assert (job.refresh().attempts, job.stalls) == (1, 0)
        assert family.log.stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("does", "reason"),
    [("hoards", "memory"), ("crumbs", "memory"), ("children hoard", "memory"), ("spins", "cpu"), ("writes", "file")],
)
def test_a_limit_that_is_hit_ends_that_job_only_and_is_named(stage: ProcessScene, does: str, reason: str) -> None:
    with stage.app() as app:
        neighbour = app.named("ticks").enqueue()
        bad = app.named("limited").enqueue(does=does)
        family = stage.start()
        until(lambda: bad.refresh().state is State.DEAD, what="the limit is hit")
        assert (bad.reason, bad.errors[-1].reason) == (reason, reason)
        assert (bad.failures, bad.stalls) == (1, 0)
        stage.open_gate()
        until(lambda: neighbour.refresh().state is State.SUCCEEDED, what="the neighbour ends")
        assert (neighbour.attempts, len(stage.lines("start", job=neighbour.id))) == (1, 1)
        assert app.named("limited").enqueue(does="").result(timeout=90)
        assert family.stop() == 0


def test_a_timeout_kills_an_isolated_job_that_holds_the_interpreter(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("overruns_alone").enqueue()
        stage.start()
        until(lambda: job.refresh().state is State.DEAD, what="it is killed")
        assert (job.reason, job.failures) == ("timeout", 1)
        assert "in overruns_alone" in job.errors[-1].traceback
        assert not alive(stage.lines("start")[0]["pid"])


@pytest.mark.parametrize("name", ["alone", "alone_on_a_loop"])
def test_a_cancel_kills_an_isolated_job(stage: ProcessScene, name: str) -> None:
    with stage.app() as app:
        job = app.named(name).enqueue(**({"does": "waits"} if name == "alone" else {}))
        stage.start()
        until(lambda: stage.lines("start"), what="it runs")
        app.cancel(job.id)
        until(lambda: job.refresh().state is State.CANCELLED, what="it is cancelled")
        assert not alive(stage.lines("start")[0]["pid"])


def test_what_an_isolated_job_leaves_running_is_ended(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("alone").enqueue(does="leaves")
        stage.start()
        job.result(timeout=90)
        (child,) = stage.lines("child")
        until(lambda: not alive(child["child"]), what="its child is gone")


def test_a_fork_bomb_is_cleared_away_whole(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("forks").enqueue(most=10)
        family = stage.start()
        until(lambda: stage.lines("start"), what="it forks")
        until(lambda: len(below(family.guard())) > 50, what="there are many")
        until(lambda: job.refresh().state is State.DEAD, what="its timeout passes")
        assert job.reason == "timeout"
        (bomb,) = stage.lines("start")
        until(lambda: len(below(family.guard())) <= 2, 5, what="all of them are gone")
        assert not alive(bomb["pid"])
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1


@pytest.mark.skipif(
    os.getuid() != 0,
    reason="only root can give the bomb a user of its own; a limit of processes would count the tester's, too",
)
def test_a_fork_bomb_that_does_not_end_is_cleared_away_while_its_user_has_no_process_left(stage: ProcessScene) -> None:
    """Every process of it forks for ever, against the limit of a user nobody else is."""
    stage.change_code("VERSION = 1", BOMB)
    with stage.app() as app:
        job = app.named("forks_for_ever").enqueue(user=USER, most=PROCESSES)
        family = stage.start()
        until(lambda: len(processes_of(USER)) > PROCESSES - 10, what="the limit is reached, threads counted")
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1
        until(lambda: job.refresh().state is State.DEAD, what="its timeout passes")
        assert (job.reason, job.failures, job.stalls) == ("timeout", 1, 0)
        until(lambda: not processes_of(USER), 10, what="all of them are gone")
        assert app.named("quick").enqueue(n=2).result(timeout=90) == 2
        assert family.stop() == 0


def processes_of(user: int) -> list[int]:
    """pids of a user's processes that are not only waiting to be reaped."""
    found = []
    for pid in parents():
        try:
            told = Path(f"/proc/{pid}/status").read_text()  # the folder's owner is root: what became another is hidden
        except OSError:
            continue
        if f"\nUid:\t{user}\t" in told:
            found.append(pid)
    return found


def test_isolated_jobs_wait_for_a_process_when_all_are_taken(stage: ProcessScene) -> None:
    with stage.app() as app:
        jobs = [app.named("alone").enqueue() for _ in range(6)]
        family = stage.start("--isolated", "2", "--drain")
        assert family.keeper.wait(60) == 0
        assert {job.refresh().state for job in jobs} == {State.SUCCEEDED}
        assert len({line["pid"] for line in stage.lines("start")}) <= 2
        assert [job.attempts for job in jobs] == [1] * 6


def test_isolated_jobs_beyond_the_processes_there_are_stay_unclaimed_and_hold_nobody_up(stage: ProcessScene) -> None:
    """Another worker may take what this one could not begin, and what needs no process of its own goes past it."""
    with stage.app() as app:
        taken = [app.named("alone").enqueue(does="waits") for _ in range(7)]
        stage.start("--isolated", "2", "--slots", "10")
        until(lambda: len(stage.lines("start")) == 2, what="two are at it")
        assert [app.named("quick").enqueue(n=n).result(timeout=90) for n in range(20)] == list(range(20))
        states = [job.refresh().state for job in taken]
        assert (states.count(State.RUNNING), states.count(State.READY)) == (2, 5)
        stage.start("--isolated", "3", "--slots", "10")
        until(lambda: len({line["pid"] for line in stage.lines("start") if "n" not in line}) == 5, what="five at it")
        assert sum(job.refresh().state is State.READY for job in taken) == 2
        stage.open_gate()
        pids = {job.result(timeout=90) for job in taken}
        assert len(pids) == 5
        assert [job.refresh().attempts for job in taken] == [1] * 7
