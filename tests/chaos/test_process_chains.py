"""Group prefetch in real processes that are killed: order and no overlap by what the handlers wrote down themselves."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

STEPS = """

app.queue("chained", group_prefetch=16)


@app.task(name="step", queue="chained", retry=RetryPolicy.fixed(0.05, limit=5), max_stalls=20)
async def step(ctx: Context, n: int) -> None:
    note(what="start", job=ctx.id, n=n, group=ctx.group, fence=ctx.fence)
    await asyncio.sleep(0.003)
    if n % 50 == 7 and not os.path.exists(f"{HERE}/failed-{n}"):
        open(f"{HERE}/failed-{n}", "w").close()
        note(what="end", job=ctx.id, n=n, group=ctx.group, fence=ctx.fence)
        raise ValueError(n)
    note(what="end", job=ctx.id, n=n, group=ctx.group, fence=ctx.fence)


@app.task(name="step_in_thread", queue="chained", max_stalls=20)
def step_in_thread(ctx: Context, n: int) -> None:
    note(what="start", job=ctx.id, n=n, group=ctx.group, fence=ctx.fence)
    time.sleep(0.003)
    note(what="end", job=ctx.id, n=n, group=ctx.group, fence=ctx.fence)
"""


@pytest.fixture
def chained(stage: ProcessScene) -> ProcessScene:
    path = stage.folder / "scene_app.py"
    path.write_text(path.read_text() + STEPS)
    return stage


def enqueue(app: Any, name: str, n: int, group: str) -> Any:
    return app.task_by_name(name).options(queue="chained", group=group).enqueue(n=n)


def finished(app: Any, job: Any) -> bool:
    return bool(app.job(job.id).state.finished)


def has_ended(stage: ProcessScene, number: int) -> bool:
    return len(stage.lines("end")) >= number


def check_journal(stage: ProcessScene, dead: set[int]) -> None:
    """No two jobs of a group ran at once, except where their process died meanwhile; and of what was begun for the
    first time, nothing before an earlier one of its group."""
    running: dict[str, dict[str, Any]] = {}
    begun: dict[str, list[int]] = defaultdict(list)
    for line in stage.lines_of_groups():
        group, before = line["group"], running.get(line["group"])
        if line["what"] == "end":
            running.pop(group, None)
            continue
        assert before is None or before["pid"] in dead, f"{line} began while {before} ran"
        running[group] = line
        if line["n"] not in begun[group]:
            begun[group].append(line["n"])
    assert len(begun) == 6
    for group, numbers in begun.items():
        assert numbers == sorted(numbers), f"{group} began out of order"


@pytest.mark.parametrize("victim", ["runner", "whole worker"])
def test_killed_processes_break_neither_order_nor_exclusion(chained: ProcessScene, victim: str) -> None:
    number, chance = 300, random.Random(4)
    with chained.app() as app:
        app.pause(queue="chained")  # one worker that is ready before the other would run them all
        jobs = [enqueue(app, name, n, f"{name}-{n % 3}") for n in range(number) for name in ("step", "step_in_thread")]
        dead: set[int] = set()
        families = [chained.start("--runners", "2", "--slots", "4") for _ in range(2)]
        until(lambda: len(chained.lines("event", name="worker_started")) == 2, what="both are ready")
        app.resume(queue="chained")
        for _ in range(3):
            seen = len(chained.lines("end"))
            until(partial(has_ended, chained, seen + 60), what="some are done")
            family = chance.choice(families)
            if victim == "runner":
                pid = chance.choice(family.runners())
                dead.add(pid)
                os.kill(pid, signal.SIGKILL)
            else:
                dead |= family.tree()
                family.keeper.kill()
                families.remove(family)
                families.append(chained.start("--runners", "2", "--slots", "4"))
        for job in jobs:
            until(partial(finished, app, job), what=f"{job.id} is done")
        states = {app.job(job.id).state for job in jobs}
        assert states == {State.SUCCEEDED}
        check_journal(chained, dead)
        assert not app.audit().violations


def test_a_stop_in_the_middle_of_a_chain_costs_nothing(chained: ProcessScene) -> None:
    with chained.app() as app:
        jobs = [enqueue(app, "step_in_thread", n, "g") for n in range(400)]
        family = chained.start("--runners", "1", "--slots", "2", "--lease", "30")
        until(partial(has_ended, chained, 20), what="some are done")
        assert family.stop() == 0
        found = [app.job(job.id) for job in jobs]
        done = [job.state is State.SUCCEEDED for job in found]
        assert any(done) and not all(done)
        assert done == sorted(done, reverse=True), "those that ran are the first ones"
        left = [job for job in found if job.state is not State.SUCCEEDED]
        assert {(job.attempts, job.stalls, job.shared_stalls) for job in left} == {(0, 0, 0)}
        assert {job.state for job in left} == {State.READY, State.WAITING}
        assert len(chained.lines("start")) == sum(done)
        assert not app.audit().violations
