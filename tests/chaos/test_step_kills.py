"""Workers are killed before, in and after the steps of a handler: what is stored is never done again."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import State
from tests.chaos.stepping import POINTS, STEPS, work
from tests.moving.stage import fresh_url

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("HOLDFAST_STEP_KILLS", "6"))  # per store; docs/decisions/0047 has a longer run

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.chaos.stepping"])


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_stored_step_is_never_done_again(store: str, tmp_path: Path) -> None:
    url, journal, chance = fresh_url(store, tmp_path), tmp_path / "journal", random.Random(47)
    journal.touch()
    final: dict[str, int] = {}  # how often a step had been done when it was first seen stored
    killed = repeated = 0
    with Holdfast(url) as app:
        order = app.task_by_name("order").options(max_stalls=1000)
        jobs: list[str] = []
        while killed < KILLS or any(app.job(job).state.live for job in jobs):
            if not any(app.job(job).state.live for job in jobs):
                jobs.append(order.enqueue().id)
            child = _processes.Process(target=work, args=(url, str(journal), chance.randrange(POINTS)))
            child.start()
            child.join()
            assert child.exitcode in (0, -9)
            killed += child.exitcode == -9
            app.recover()
            done = Counter(journal.read_text().split("\n")[:-1])
            for job in jobs:
                for step in app.steps(job):
                    name = f"{job} {step.name}"
                    assert done[name] == final.setdefault(name, done[name]), f"{name} was stored and is done again"
        repeated = sum(number - 1 for number in done.values())
        assert {app.job(job).state for job in jobs} == {State.SUCCEEDED}
        assert [app.job(job).value for job in jobs] == [[f"{name} done" for name in STEPS]] * len(jobs)
        assert set(done) == {f"{job} {name}" for job in jobs for name in STEPS}
        assert repeated <= killed, "only a kill between an effect and its checkpoint repeats a step"
        assert app.audit().violations == []
