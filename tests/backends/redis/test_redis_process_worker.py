"""`holdfast work` on Redis: the same processes, the same promises."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import State
from holdfast.worker_status import WorkerStatus, read
from tests.chaos.process_scene import Family, ProcessScene, alive
from tests.chaos.scene import overlaps, until

from ...servers.valkey import Server

pytestmark = pytest.mark.chaos


class RedisScene(ProcessScene):
    """The same app on another store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def start(self, *words: str, before: list[str] | None = None) -> Family:
        return super().start("--url", self.url, *words, before=before)

    def app(self) -> Holdfast:
        return Holdfast(self.url)


@pytest.fixture
def stage(tmp_path: Path, server: Server, prefix: str) -> Iterator[RedisScene]:
    stage = RedisScene(tmp_path, server.url(prefix))
    yield stage
    stage.close()


def test_every_job_runs_once_on_all_runners(stage: RedisScene) -> None:
    with stage.app() as app:
        app.enqueue_many(app.named(name).bind(n=n) for n in range(100) for name in ("quick", "quick_thread"))
        family = stage.start("--runners", "2", "--slots", "8", "--drain")
        assert family.keeper.wait(60) == 0, family.text()
        assert app.counts()["default"][State.SUCCEEDED] == 200
        assert app.audit().violations == []
    assert len(stage.lines("start")) == len({line["job"] for line in stage.lines("start")}) == 200


def test_a_job_whose_runner_is_killed_is_back_runs_alone_and_ends_with_exact_counters(stage: RedisScene) -> None:
    with stage.app() as app:
        job, others = app.named("ticks").enqueue(), [app.named("quick").enqueue(n=n) for n in range(20)]
        family = stage.start("--lease", "3s", "--slots", "4")
        until(lambda: stage.lines("tick", job=job.id), what="it runs")
        until(lambda: all(one.refresh().state is State.SUCCEEDED for one in others), what="its neighbours have ended")
        killed = stage.lines("start", job=job.id)[0]["pid"]
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(stage.lines("start", job=job.id)) == 2, what="it runs again")
        again = stage.lines("start", job=job.id)[1]["pid"]
        assert not alive(killed)

        def shown() -> bool:
            [worker] = app.workers()
            runners = (read(worker.portrait) or WorkerStatus()).runners
            return any(one.pid == again and one.alone and one.jobs == (job.id,) for one in runners)

        until(shown, what="the store shows the runner of its own")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert (job.attempts, job.failures, job.stalls, job.shared_stalls) == (2, 0, 0, 1)
        assert {(one.attempts, one.failures, one.stalls, one.shared_stalls) for one in others} == {(1, 0, 0, 0)}
        assert not overlaps(stage.journal_of_runs(), "job")
        assert family.stop() == 0
        assert app.workers() == []
        assert app.audit().violations == []
