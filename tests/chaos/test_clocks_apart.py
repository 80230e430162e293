"""Workers and producers on hosts whose clocks are off by an hour: the store's clock decides, and no other."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.lifecycle import State
from tests.chaos.scene import Scene, overlaps, until
from tests.servers import postgres, valkey

pytestmark = pytest.mark.chaos

HOUR = 3600.0
LEASE = 2.0
_numbers = itertools.count(1)


def _postgres() -> str:
    return postgres.shared_server().url(f"clocks_{next(_numbers)}")


def _redis() -> str:
    return valkey.shared_server().url(f"clocks_{next(_numbers)}")


# Stores that many hosts share, with a clock of their own. SQLite and memory have one host, whose clock is theirs.
SHARED_STORES: dict[str, Callable[[], str]] = {"postgres": _postgres, "redis": _redis}


@pytest.fixture(params=sorted(SHARED_STORES))
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(tmp_path, SHARED_STORES[request.param]())
    yield scene
    scene.close()


@pytest.fixture
def hosts(scene: Scene) -> dict[float, Any]:
    """A worker that is an hour behind, one that is right, one that is an hour ahead."""
    return {off: scene.start_worker(clock_off=off, lease=LEASE) for off in (-HOUR, 0.0, HOUR)}


def test_nothing_starts_early_and_nothing_late(scene: Scene, hosts: dict[float, Any]) -> None:
    app = scene.app()
    until(lambda: len(_workers(app)) == 3, what="three workers are registered")
    now = time.monotonic()
    delayed = [app.named("step").using(delay=1.5).enqueue(group="-", number=n) for n in range(10)]
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    at_a_time = [app.named("step").using(at=due).enqueue(group="-", number=n) for n in range(10)]
    failing = [app.named("fails_once").enqueue(number=n) for n in range(10)]
    jobs = delayed + at_a_time + failing
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="all jobs succeed")
    for job in delayed + at_a_time:
        [start] = scene.starts(job=job.id)
        assert start["at"] >= now + 1.4  # the due time was read off this clock a moment later
    for job in failing:
        first, second = scene.starts(job=job.id)
        assert second["at"] >= first["at"] + 1.0 * 0.75  # the back-off of 1 s, less its jitter
        assert (job.failures, job.stalls) == (1, 0)
    # Nothing was pruned early by the host that is ahead: what finished is still there.
    assert sum(app.counts()["default"].values()) == len(jobs)
    app.close()


def test_a_worker_whose_clock_is_off_renews_and_is_not_taken_for_dead(scene: Scene, hosts: dict[float, Any]) -> None:
    app = scene.app()
    until(lambda: len(_workers(app)) == 3, what="three workers are registered")
    jobs = [app.named("stuck").using(group=f"g{n}").enqueue(group=f"g{n}", number=n) for n in range(12)]
    until(lambda: len(scene.starts()) == 12, what="twelve handlers run")
    assert len({line["pid"] for line in scene.starts()}) == 3  # four slots each
    deadline = time.monotonic() + 2.5 * LEASE
    until(lambda: time.monotonic() > deadline, what="two leases and a half pass")
    assert len(scene.starts()) == 12
    scene.open_gate()
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="all jobs succeed")
    assert {job.stalls for job in jobs} == {0}
    assert not overlaps(scene.journal(), "job")
    assert not app.audit().violations
    app.close()


def test_a_killed_worker_is_recovered_after_its_lease_whatever_its_clock_said(
    scene: Scene, hosts: dict[float, Any]
) -> None:
    app = scene.app()
    until(lambda: len(_workers(app)) == 3, what="three workers are registered")
    jobs = [app.named("stuck").using(group=f"g{n}").enqueue(group=f"g{n}", number=n) for n in range(12)]
    until(lambda: len(scene.starts()) == 12, what="twelve handlers run")
    for off in (-HOUR, HOUR):
        os.kill(hosts[off].pid, signal.SIGKILL)
    gone = {hosts[off].pid for off in (-HOUR, HOUR)}
    lost = {line["job"] for line in scene.starts() if line["pid"] in gone}
    assert lost
    scene.open_gate()
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="all jobs succeed")
    assert {job.id for job in jobs if job.stalls == 1} == lost
    assert not overlaps(scene.journal(), "job")
    app.close()


def test_a_producer_whose_clock_is_off_enqueues_for_now(
    scene: Scene, hosts: dict[float, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = scene.app()
    wall = time.time
    jobs = []
    for off in (-HOUR, HOUR):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda off=off: wall() + off)
            jobs += [app.named("step").using(group=group).enqueue(group="-", number=0) for group in ("g", None)]
            jobs.append(app.named("step").using(expires=60).enqueue(group="-", number=0))
    until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="all jobs succeed")
    app.close()


def _workers(app: Any) -> list[Any]:
    return list(app._dump().tables["workers"])
