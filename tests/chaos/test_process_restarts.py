"""Runners replaced under load: new code, too many jobs, too much memory. No job is lost and no attempt is spent."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene, alive
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos


def test_sighup_brings_new_code_and_lets_old_jobs_end(stage: ProcessScene) -> None:
    with stage.app() as app:
        old = app.named("waits").enqueue()
        family = stage.start("--runners", "2")
        until(lambda: stage.lines("start"), what="it runs on the old code")
        until(lambda: len(stage.lines("import")) == 2, what="both runners have the old code")
        assert app.named("version").enqueue().result(timeout=90) == 1
        stage.change_code("VERSION = 1", "VERSION = 2")
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: "restart" in family.text(), what="it says so")

        def versions() -> set[int]:  # of so many jobs at once that the first new runner gets some
            return {job.result(timeout=90) for job in [app.named("version").enqueue() for _ in range(8)]}

        until(lambda: 2 in versions(), what="the new code runs")
        stage.open_gate()
        until(lambda: old.refresh().state is State.SUCCEEDED, what="the old job ends")
        assert (old.attempts, len(stage.lines("start"))) == (1, 1)
        until(lambda: len(stage.lines("import")) == 4, what="both were replaced")
        before = [line["pid"] for line in stage.lines("import")][:2]
        until(lambda: not alive(*before), what="the old runners are gone")
        assert [app.named("version").enqueue().result(timeout=90) for _ in range(4)] == [2] * 4
        assert family.stop() == 0


def test_code_that_cannot_be_imported_leaves_the_old_runners_at_work(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start()
        (runner,) = family.runners()
        assert app.named("version").enqueue().result(timeout=90) == 1
        stage.change_code("VERSION = 1", "VERSION = oops")
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: "the old ones continue" in family.text(), what="it says so")
        assert "NameError" in family.text()
        assert app.named("version").enqueue().result(timeout=90) == 1
        assert family.runners() == [runner]
        assert family.stop() == 0


def test_code_whose_import_hangs_leaves_the_old_runners_at_work_and_a_later_sighup_is_heeded(
    stage: ProcessScene,
) -> None:
    with stage.app() as app:
        family = stage.start("--start-timeout", "3s")
        (runner,) = family.runners()
        assert app.named("version").enqueue().result(timeout=90) == 1
        stage.change_code("VERSION = 1", "VERSION = 2; time.sleep(600)")
        family.keeper.send_signal(signal.SIGHUP)
        (new,) = set(family.runners(2)) - {runner}
        assert app.named("version").enqueue().result(timeout=90) == 1
        until(lambda: "the old ones continue" in family.text(), what="it is given up")
        assert "is not ready after 3 s" in family.text()
        assert 'scene_app.py", line' in family.text()  # where it hangs
        assert not alive(new)
        assert family.runners() == [runner]
        stage.change_code("; time.sleep(600)", "")
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: app.named("version").enqueue().result(timeout=90) == 2, what="the mended code runs")
        assert family.stop() == 0


def test_a_worker_whose_app_is_never_imported_ends_and_says_where_it_hangs(stage: ProcessScene) -> None:
    stage.change_code("VERSION = 1", "time.sleep(600)")
    family = stage.start("--start-timeout", "5s")
    (runner,) = family.runners()
    assert family.keeper.wait(90) == 7
    assert "was not ready within 5 s" in family.text()
    assert 'scene_app.py", line' in family.text()
    assert not alive(runner)


def test_a_runner_that_is_too_slow_to_say_where_it_hangs_is_not_ended_by_the_question(
    stage: ProcessScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter has not come to our code yet, which handles the keeper's signal."""
    hang = 'import sys, time\nif "holdfast.cli.runner_main" in sys.orig_argv:\n    time.sleep(600)\n'
    (stage.folder / "sitecustomize.py").write_text(hang)
    monkeypatch.setenv("PYTHONPATH", str(stage.folder))
    family = stage.start("--start-timeout", "1s")
    assert family.keeper.wait(90) == 7
    assert "was not ready within 1 s" in family.text()


def test_new_code_may_name_another_queue(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start()
        family.runners()
        job = app.named("version", queue="elsewhere").enqueue()
        stage.change_code('name="version"', 'name="version", queue="elsewhere"')
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: job.refresh().state is State.SUCCEEDED, what="the new queue is served")
        until(lambda: "elsewhere" in app.workers()[0].queues, what="the store knows")


def test_a_sighup_while_the_first_runner_starts_is_not_lost(stage: ProcessScene) -> None:
    slow = "time.sleep(2); VERSION = 1"  # its code is read by then, and nothing works yet
    stage.change_code("VERSION = 1", slow)
    with stage.app() as app:
        family = stage.start()
        family.runners()
        stage.change_code(slow, "VERSION = 2")
        family.keeper.send_signal(signal.SIGHUP)
        until(lambda: app.task_by_name("version").enqueue().result(timeout=90) == 2, what="the new code runs")
        assert "restart" in family.text()


def test_reload_notices_a_changed_file(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start("--reload")
        assert app.named("version").enqueue().result(timeout=90) == 1
        stage.change_code("VERSION = 1", "VERSION = 3")
        until(lambda: app.named("version").enqueue().result(timeout=90) == 3, what="the new code runs")
        assert "scene_app.py changed" in family.text()


def test_a_runner_is_replaced_after_its_share_of_jobs(stage: ProcessScene) -> None:
    """It goes on until its successor is ready, so how many more jobs it runs depends on how long that takes."""
    with stage.app() as app:
        family = stage.start("--max-jobs", "20", "--slots", "5")
        done = 0

        def three_have_worked() -> bool:
            nonlocal done
            app.enqueue_many(app.named("quick").bind(n=n) for n in range(20))
            done += 20
            until(lambda: app.counts()["default"].get(State.SUCCEEDED) == done, what="this round is done")
            return len({line["pid"] for line in stage.lines("start")}) >= 3

        until(three_have_worked, what="the first is replaced, and its successor, too")
        assert family.stop() == 0
        assert all(job.attempts == 1 for job in app.jobs(limit=done))
    assert len(stage.lines("start")) == done


def test_a_runner_that_has_grown_is_replaced(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start("--max-memory", "1M")
        until(lambda: len(stage.lines("import")) >= 3, what="it is replaced, and again")
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1
        assert "MiB of memory" in family.text()
        assert family.stop() == 0


def test_twenty_rolling_restarts_under_load_run_every_job_once(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start("--runners", "2", "--slots", "10")
        family.runners(2)
        app.named("quick").enqueue(n=-1).result(timeout=90)  # it is at work, so it heeds SIGHUP
        done = 1
        for turn in range(20):
            calls = [app.named(name).bind(n=turn) for _ in range(50) for name in ("quick", "quick_thread")]
            app.enqueue_many(calls)
            done += len(calls)
            imports = len(stage.lines("import"))
            family.keeper.send_signal(signal.SIGHUP)
            until(partial(lambda imports: len(stage.lines("import")) > imports, imports), what="a new runner")
        until(lambda: app.counts()["default"][State.SUCCEEDED] == done, what="all jobs")
        assert family.stop() == 0
        assert len(stage.lines("start")) == len({line["job"] for line in stage.lines("start")}) == done
        assert {(job.attempts, job.failures, job.stalls) for job in app.jobs(limit=done)} == {(1, 0, 0)}
        assert app.audit().violations == []


def test_restarting_costs_no_time_without_runners(stage: ProcessScene) -> None:
    """The new runner is ready before the old one leaves: a lone runner's work goes on."""
    with stage.app() as app:
        family = stage.start()
        first = app.named("quick").enqueue(n=0)
        first.result(timeout=90)
        family.keeper.send_signal(signal.SIGHUP)
        longest, last = 0.0, time.monotonic()
        while len(stage.lines("import")) < 2 or alive(stage.lines("import")[0]["pid"]):
            app.named("quick").enqueue(n=1).result(timeout=90)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert longest < 5
