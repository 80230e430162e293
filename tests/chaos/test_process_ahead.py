"""Jobs claimed ahead by `holdfast work`: none waits for long behind another, and a stop gives them back free."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos


def in_state(app: Any, job: Any, state: State) -> bool:
    return bool(app.job(job.id).state is state)


def test_jobs_behind_a_long_one_are_begun_by_another_runner(stage: ProcessScene) -> None:
    with stage.app() as app:
        stage.start("--runners", "2", "--slots", "2", "--lease", "30", "--prefetch", "20")
        quick = app.named("quick_thread")
        for round in range(5):  # whichever runner has the long job, some were claimed behind it
            long = app.named("ticks").enqueue(obeys=True)
            jobs = [quick.enqueue(n=n) for n in range(60)]
            for job in jobs:
                until(partial(in_state, app, job, State.SUCCEEDED), what=f"a quick one of round {round}")
            assert app.job(long.id).state is State.RUNNING
            app.cancel(long.id)
            until(partial(in_state, app, long, State.CANCELLED), what="the long one stops")
        begun = [line["job"] for line in stage.lines("start") if "n" in line]
        assert len(begun) == len(set(begun)) == 300  # none began twice
        assert not app.audit().violations


def test_a_stop_gives_back_what_has_not_begun(stage: ProcessScene) -> None:
    with stage.app() as app:
        long = app.named("ticks").enqueue()
        jobs = [app.named("quick").enqueue(n=n) for n in range(20)]
        second = app.named("ticks").enqueue()
        family = stage.start("--runners", "1", "--slots", "1", "--lease", "30", "--prefetch", "50", "--grace", "60s")
        until(lambda: stage.lines("tick"), what="the long one runs")
        family.keeper.terminate()
        until(lambda: "is stopping" in family.text(), what="it has heard")
        stage.open_gate()
        assert family.keeper.wait(90) == 0
        assert app.job(long.id).state is State.SUCCEEDED
        for job in (*jobs, second):
            found = app.job(job.id)
            assert (found.state, found.attempts, found.stalls) == (State.READY, 0, 0)
        assert not app.audit().violations
