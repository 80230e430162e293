"""Renewals are never more than half a lease apart, whatever handlers do, according to the store."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

LEASE = 15.0  # a call may take a third of it: shared machines stop for two to four seconds now and then
WATCHED_SECONDS = LEASE  # a gap of half a lease shows in it; handlers burn all cores meanwhile
BUSY = """VERSION = 1


@app.task(name="spins", retry=0)
def spins(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    while not gate_open():
        for n in range(100_000):
            n * n


@app.task(name="spins_alone", retry=0, isolation="process")
def spins_alone(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    while not gate_open():
        for n in range(100_000):
            n * n

"""


def renewal_times(stage: ProcessScene, seconds: float) -> list[float]:
    """When the store says that the worker renewed, as often as that is seen to change."""
    found: list[float] = []
    with stage.app() as app:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            (worker,) = app.workers()
            if not found or worker.renewed_at != found[-1]:
                found.append(worker.renewed_at)
            time.sleep(0.05)
        found.append(app.now().timestamp())  # the last one must not be too long ago, either
    return found


def longest(times: list[float]) -> float:
    return max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "loops blocked, the interpreter held by C calls",
            [
                ("holds_the_gil", {"seconds": 28}),
                ("blocks", {"seconds": 28.0}),
                ("blocks", {"seconds": 28.0}),
                ("regex", {"letters": 60}),
            ],
        ),
        (
            "all cores busy, a flood of output",
            [("spins", {}), ("spins", {}), ("spins_alone", {}), ("prints", {"text": "x" * 1000, "times": 10_000_000})],
        ),
    ],
)
def test_renewals_are_never_more_than_half_a_lease_apart(
    stage: ProcessScene, name: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    stage.change_code("VERSION = 1", BUSY)
    with stage.app() as app:
        jobs = [app.named(task).enqueue(**arguments) for task, arguments in calls]
        # The whole family yields to other chaos tests beside it: they must not pay for its busy handlers.
        family = stage.start("--lease", f"{LEASE}s", "--runners", "4", "--slots", "4", before=["nice", "-n", "5"])
        until(lambda: all(job.refresh().state is State.RUNNING for job in jobs), what="all are under way")
        times = renewal_times(stage, WATCHED_SECONDS)
        gap = longest(times)
        print(f"\n{name}: {len(times) - 1} renewals seen in {WATCHED_SECONDS:g} s, at most {gap:.2f} s apart")
        assert gap <= LEASE / 2
        assert "could not renew" not in family.text()
        assert all(job.refresh().attempts in (0, 1) and not job.stalls for job in jobs)


def test_the_measure_sees_a_worker_that_does_not_renew(stage: ProcessScene) -> None:
    with stage.app():
        family = stage.start("--lease", f"{LEASE}s")
        until(lambda: "started" in family.text(), what="it is registered")
        os.kill(family.keeper.pid, signal.SIGSTOP)
        assert longest(renewal_times(stage, LEASE / 2 + 1)) > LEASE / 2
        os.kill(family.keeper.pid, signal.SIGCONT)
