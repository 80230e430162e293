"""Real workers held still from outside: a foreign write lock, and SIGSTOP past the lease."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.lifecycle import State
from tests.chaos.scene import Scene, overlaps, until

pytestmark = pytest.mark.chaos


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_a_foreign_write_lock_held_past_the_lease_loses_and_overlaps_nothing(scene: Scene) -> None:
    """Nobody can renew, so the fence falls; nobody can claim either.

    Afterwards the holder's outcomes and another's claim race: a job is recorded as done, or it stalled and runs again.
    """
    app = scene.app()
    jobs = [app.named("stuck").using(group=group).enqueue(group=group, number=0) for group in "abc"]
    jobs += [
        app.named("step").using(group=group).enqueue(group=group, number=number)
        for group in "abc"
        for number in range(1, 6)
    ]
    scene.start_worker()
    until(lambda: len(scene.starts(number=0)) == 3, what="three handlers run")
    scene.start_worker()
    until(lambda: len(_workers(scene)) == 2, what="the second worker is registered")
    lock = sqlite3.connect(scene.folder / "jobs.db", isolation_level=None, timeout=5)
    lock.execute("BEGIN IMMEDIATE")
    time.sleep(3)  # a lease and a half
    scene.open_gate()  # the handlers end while their outcomes cannot be stored
    until(lambda: len([line for line in scene.journal() if line["what"] == "end"]) == 3, what="three handlers end")
    lock.execute("ROLLBACK")
    lock.close()
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="all jobs succeed")
    assert not overlaps(scene.journal(), "job") and not overlaps(scene.journal(), "group")
    for group in "abc":
        numbers = [line["number"] for line in scene.starts(group=group)]
        assert numbers in ([0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4, 5])
    for job in jobs:
        assert job.failures == 0 and job.stalls <= 1 and job.attempts == job.stalls + 1
    assert not app.audit().violations
    app.close()


def test_a_worker_frozen_past_its_lease_loses_it_and_goes_on_under_a_new_name(scene: Scene) -> None:
    app = scene.app()
    head = app.named("stuck").using(group="a").enqueue(group="a", number=0)
    rest = [app.named("step").using(group="a").enqueue(group="a", number=number) for number in range(1, 5)]
    frozen = scene.start_worker()
    until(lambda: len(scene.starts(number=0)) == 1, what="the head runs")
    scene.freeze(frozen)
    other = scene.start_worker()
    until(lambda: len(scene.starts(number=0)) == 2, what="another took it over")
    names = _workers(scene)
    frozen.send_signal(signal.SIGCONT)
    until(lambda: len(_workers(scene)) == 2 and _workers(scene) != names, what="the thawed worker has a new name")
    scene.open_gate()
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in (head, *rest)), what="the group drains")
    assert (head.attempts, head.failures, head.stalls) == (2, 0, 1)  # one outcome took effect, one was refused
    assert head.fence == max(line["fence"] for line in scene.starts(number=0))
    assert [line["number"] for line in scene.starts(group="a")] == [0, 0, 1, 2, 3, 4]
    other.send_signal(signal.SIGTERM)
    other.wait()
    last = app.named("step").using(group="b").enqueue(group="b", number=9)
    until(lambda: last.refresh().state is State.SUCCEEDED, what="the thawed worker still works")
    assert scene.starts(number=9)[0]["pid"] == frozen.pid
    assert not app.audit().violations
    app.close()


def _workers(scene: Scene) -> set[str]:
    with sqlite3.connect(scene.folder / "jobs.db") as connection:
        found = {row[0] for row in connection.execute("SELECT id FROM holdfast_workers")}
    connection.close()
    return found
