"""Workers stopped, orphaned or cut off: handlers are dead before their jobs can start elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import Family, ProcessScene, alive, below, send
from tests.chaos.scene import overlaps, until
from tests.halts import Halts

pytestmark = pytest.mark.chaos

LEASE = 2.0


def members(family: Family, part: str) -> list[int]:
    (runner,) = family.runners()
    return {
        "keeper": [family.keeper.pid],
        "guard": [family.guard()],
        "runner": [runner],
        "all": [family.keeper.pid, family.guard(), runner],
    }[part]


@pytest.mark.parametrize("leases", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("part", ["keeper", "guard", "runner", "all"])
def test_stopped_for_a_while_with_a_rival_waiting_nothing_overlaps(
    stage: ProcessScene, part: str, leases: float
) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", f"{LEASE}s")
        until(lambda: stage.lines("tick"), what="it runs")
        stopped = members(family, part)
        rival = stage.start("--lease", f"{LEASE}s")
        until(lambda: "started" in rival.text(), what="the rival is there")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(leases * LEASE)
        for pid in reversed(stopped):
            send(pid, signal.SIGCONT)
        if part != "runner" and leases > 1:
            until(lambda: len(stage.lines("start")) >= 2, what="it runs again somewhere")
        until(lambda: stage.lines("tick", fence=stage.lines("start")[-1]["fence"]), what="the last run ticks")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert not overlaps(stage.journal_of_runs(), "job")
        assert job.failures == 0
        assert job.attempts <= len(stage.lines("start"))
        assert app.audit().violations == []


def test_cut_off_from_the_store_handlers_are_dead_before_the_lease_ends(stage: ProcessScene) -> None:
    """Nobody can renew: a foreign write lock is held for two leases. No handler runs on after its fence."""
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", f"{LEASE}s")
        until(lambda: stage.lines("tick"), what="it runs")
        lock = sqlite3.connect(stage.folder / "jobs.db", isolation_level=None, timeout=5)
        lock.execute("BEGIN IMMEDIATE")
        locked_at = time.monotonic()
        time.sleep(2 * LEASE)
        ticks = [line["at"] for line in stage.lines("tick")]
        assert max(ticks) < locked_at + LEASE
        lock.execute("ROLLBACK")
        lock.close()
        until(lambda: len(stage.lines("start")) == 2, what="the same worker goes on")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert job.failures == 0
        assert "fence" in family.text() or "could not renew its leases in time" in family.text()


@pytest.mark.parametrize("who", ["keeper", "guard", "both"])
def test_kill_minus_nine_of_keeper_or_guard_leaves_no_runner(stage: ProcessScene, who: str) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", f"{LEASE}s")
        until(lambda: stage.lines("tick"), what="it runs")
        (runner,) = family.runners()
        guard = family.guard()
        stage.start("--lease", f"{LEASE}s")
        for pid in {"keeper": [family.keeper.pid], "guard": [guard], "both": [family.keeper.pid, guard]}[who]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(runner), what="the runner is dead")
        until(lambda: len(stage.lines("start")) == 2, what="the job runs again")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert not overlaps(stage.journal_of_runs(), "job")


def test_grandchildren_do_not_outlive_a_killed_guard(stage: ProcessScene) -> None:
    with stage.app() as app:
        app.named("has_children").enqueue()
        family = stage.start("--lease", "10s")
        until(lambda: len(stage.lines("child")) == 2, what="grandchildren")
        everybody = below(family.guard())
        os.kill(family.guard(), signal.SIGKILL)
        until(lambda: not alive(*everybody), what="they are dead")


def test_a_worker_whose_guard_was_killed_goes_on_with_another(stage: ProcessScene) -> None:
    with stage.app() as app:
        family = stage.start("--lease", "10s")
        family.runners()
        until(lambda: "started" in family.text(), what="it is registered")
        first = family.guard()
        os.kill(first, signal.SIGKILL)
        job = app.named("quick").enqueue(n=1)
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it works")
        until(lambda: family.guard() != first, what="another guard")  # a runner of the first may have done the job
        assert family.stop() == 0


def test_a_worker_killed_whole_is_recovered_by_another(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", f"{LEASE}s")
        until(lambda: stage.lines("tick"), what="it runs")
        everybody = family.tree()
        stage.start("--lease", f"{LEASE}s")
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):  # the guard may have been faster
                os.kill(pid, signal.SIGKILL)
        with Halts() as halts:
            killed_at = time.monotonic()
            until(lambda: len(stage.lines("start")) == 2, what="it runs again")
            took = stage.lines("start")[1]["at"] - killed_at
        print(f"\nrunning again {took:.2f} s after the whole worker was killed; the lease is {LEASE:g} s")
        assert took <= LEASE + 1 + halts.seconds
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert (job.attempts, job.stalls, job.shared_stalls, job.failures) == (2, 0, 1, 0)


def test_a_starting_worker_leaves_alone_what_a_dead_keepers_runner_still_does(stage: ProcessScene) -> None:
    """The keeper is dead, its guard stopped: the runner goes on until the kernel's timer. A new worker must wait."""
    with stage.app() as app:
        job = app.named("ticks_on_the_loop").enqueue()
        family = stage.start("--lease", "4s")
        until(lambda: stage.lines("tick"), what="it runs")
        (runner,) = family.runners()
        os.kill(family.guard(), signal.SIGSTOP)
        family.keeper.kill()
        family.keeper.wait()
        assert alive(runner)
        rival = stage.start("--lease", "4s")
        until(lambda: "started" in rival.text(), what="the new worker is there")
        until(lambda: len(stage.lines("start")) == 2, what="it runs again")
        # A killed process that waits for the disk is there for longer, but runs no code: its journal tells.
        until(lambda: not alive(runner), what="the first runner is gone")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert not overlaps(stage.journal_of_runs(), "job")
        assert (job.attempts, job.stalls, job.shared_stalls) == (2, 0, 1)
