"""Runners that die, block or overrun: noticed at once, charged to the job to blame, free for the others."""

from __future__ import annotations

import os
import signal
import time

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene, alive
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos


def test_a_killed_runners_jobs_run_again_long_before_their_lease_ends(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", "30s", "--runners", "2")
        family.runners(2)
        until(lambda: stage.lines("start"), what="it runs")
        until(lambda: len(stage.lines("import")) == 2, what="both runners are there")
        (first,) = stage.lines("start")
        killed_at = time.monotonic()
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: len(stage.lines("start")) == 2, what="it runs again")
        again = stage.lines("start")[1]
        print(f"\nrunning again {again['at'] - killed_at:.2f} s after its runner was killed")
        assert again["at"] - killed_at < 10  # a third of the lease: it did not wait for that
        assert again["fence"] > first["fence"]
        last_tick = max(line["at"] for line in stage.lines("tick", fence=first["fence"]))
        assert last_tick < again["at"]
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert (job.attempts, job.failures) == (2, 0)
        assert job.errors[0].reason == "crash"
        assert "SIGKILL" in job.errors[0].text


@pytest.mark.parametrize("how", ["exit", "segfault", "kill"])
def test_a_job_that_kills_its_runner_is_found_and_its_neighbours_do_not_pay(stage: ProcessScene, how: str) -> None:
    with stage.app() as app:
        neighbour = app.named("waits").enqueue()
        family = stage.start()
        until(lambda: stage.lines("start"), what="the neighbour runs")
        poison = app.named("dies", max_stalls=1).enqueue(how=how)
        until(lambda: poison.refresh().state is State.DEAD, what="the poison is found")
        assert poison.reason == "crash"
        # Once among others, then alone: max_stalls is 1, so the second time alone is one too many.
        assert len(stage.lines("start", job=poison.id)) == 3
        assert [one.reason for one in poison.errors] == ["crash"] * 3
        if how == "segfault":
            assert "Segmentation fault" in poison.errors[-1].traceback
            assert "scene_app.py" in poison.errors[-1].traceback
        assert poison.failures == 0
        stage.open_gate()
        until(lambda: neighbour.refresh().state is State.SUCCEEDED, what="the neighbour ends")
        assert neighbour.failures == 0
        assert len(stage.lines("start", job=neighbour.id)) == 2  # it ran alone once its first runner had died
        assert app.audit().violations == []
        assert family.stop() == 0


def test_sys_exit_in_a_handler_is_a_failure_of_the_job_alone(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("dies").enqueue(how="system_exit")
        family = stage.start()
        (runner,) = family.runners()
        until(lambda: job.refresh().state is State.DEAD, what="it failed")
        assert (job.reason, job.failures) == ("failed", 1)
        assert alive(runner)


def test_a_blocked_loop_keeps_its_lease_and_does_not_delay_others(stage: ProcessScene) -> None:
    """The cause of a job running twice elsewhere: a coroutine that blocks its loop for three leases.

    It blocks until the test lets it go on: on a busy machine everything else may take any time.
    """
    with stage.app() as app:
        job = app.named("ticks_on_the_loop").enqueue()
        family = stage.start("--runners", "2", "--slots", "8", "--lease", "5s")
        until(lambda: stage.lines("start"), what="it runs")

        def renewed_at() -> float:
            return next((one.renewed_at for one in app.workers() if one.pid == family.keeper.pid), 0.0)

        first = renewed_at()
        stage.start("--lease", "5s")  # a rival that would take it
        short = [app.named("quick").enqueue(n=n) for n in range(10)]
        until(lambda: all(one.refresh().state is State.SUCCEEDED for one in short), what="the short ones")
        until(lambda: renewed_at() - first > 15.0, what="it was renewed for three leases")
        assert job.refresh().state is State.RUNNING
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert (job.attempts, job.stalls, job.failures) == (1, 0, 0)
        assert len(stage.lines("start", job=job.id)) == 1
        assert any("in ticks_on_the_loop" in line.text for line in app.logs(job.id))
        text = family.text()
        assert "has not responded" in text
        assert "in ticks_on_the_loop" in text  # where it was


def test_what_a_blocked_runner_has_not_begun_goes_back_free(stage: ProcessScene) -> None:
    with stage.app() as app:
        app.enqueue_many([app.named("blocks").bind(seconds=12.0), *(app.named("quick").bind(n=n) for n in range(5))])
        stage.start("--slots", "8")
        until(lambda: stage.lines("start"), what="it blocks")
        stage.start("--slots", "8")
        until(lambda: len(stage.lines("start")) == 6, 11.5, what="the others run elsewhere")
        until(lambda: app.counts()["default"][State.SUCCEEDED] == 6, what="all end")
        assert all(job.attempts == 1 for job in app.jobs())


def test_a_call_that_holds_the_interpreter_for_three_leases_runs_once(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("holds_the_gil").enqueue(seconds=9)
        stage.start()
        until(lambda: stage.lines("start"), what="it runs")
        stage.start()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert (job.attempts, job.stalls) == (1, 0)
        assert len(stage.lines("start")) == 1


@pytest.mark.parametrize("name", ["overruns", "overruns_on_the_loop"])
def test_a_timeout_that_is_not_obeyed_costs_the_runner_not_the_neighbours(stage: ProcessScene, name: str) -> None:
    with stage.app() as app:
        neighbour = app.named("ticks").enqueue()
        family = stage.start("--grace", "1s")
        (runner,) = family.runners()
        until(lambda: stage.lines("start"), what="the neighbour runs")
        guilty = app.named(name).enqueue()
        until(lambda: guilty.refresh().state is State.DEAD, what="the guilty one is charged")
        tries = 2 if name == "overruns" else 1
        assert (guilty.reason, guilty.failures, guilty.stalls) == ("timeout", tries, 0)
        assert [one.reason for one in guilty.errors] == ["timeout"] * tries
        assert f"in {name}" in guilty.errors[0].traceback
        assert not alive(runner)
        until(lambda: len(stage.lines("start", job=neighbour.id)) >= 2, what="the neighbour runs again")
        stage.open_gate()
        until(lambda: neighbour.refresh().state is State.SUCCEEDED, what="and ends")
        assert (neighbour.attempts, neighbour.failures, neighbour.stalls) == (1, 0, 0)


def test_grandchildren_of_a_killed_runner_die_with_it(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("has_children", max_stalls=0).enqueue()
        family = stage.start()
        (runner,) = family.runners()
        until(lambda: len(stage.lines("child")) == 2, what="grandchildren")
        os.kill(runner, signal.SIGKILL)
        until(lambda: not alive(*(line["child"] for line in stage.lines("child"))), what="they are dead")
        until(lambda: job.refresh().state is State.DEAD, what="it is not run again")
        assert job.reason == "crash"
        assert len(stage.lines("start")) == 1


def test_a_catastrophic_regex_neither_loses_its_lease_nor_outlives_a_stop(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("regex").enqueue(letters=60)
        family = stage.start("--lease", "2s", "--grace", "200ms")
        until(lambda: stage.lines("start"), what="it backtracks")
        (runner,) = family.runners()
        rival = stage.start("--lease", "2s")
        until(lambda: "started" in rival.text(), what="the rival is there")
        time.sleep(6)  # three leases
        assert len(stage.lines("start")) == 1
        assert rival.stop() == 0
        assert family.stop() == 0
        assert not alive(runner)
        assert (job.refresh().state, job.attempts, job.stalls) == (State.READY, 0, 0)
