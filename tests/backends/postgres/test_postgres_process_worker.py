"""`holdfast work` on PostgreSQL: the same processes, the same promises."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import State
from tests.chaos.process_scene import Family, ProcessScene, alive
from tests.chaos.scene import overlaps, until

from ...servers.postgres import Server

pytestmark = pytest.mark.chaos


class PostgresScene(ProcessScene):
    """The same app on another store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def start(self, *words: str, before: list[str] | None = None) -> Family:
        return super().start("--url", self.url, *words, before=before)

    def app(self) -> Holdfast:
        return Holdfast(self.url)


@pytest.fixture
def stage(tmp_path: Path, server: Server, schema: str) -> Iterator[PostgresScene]:
    stage = PostgresScene(tmp_path, server.url(schema))
    yield stage
    stage.close()


def test_every_job_runs_once_on_all_runners(stage: PostgresScene) -> None:
    with stage.app() as app:
        app.enqueue_many(app.named(name).bind(n=n) for n in range(100) for name in ("quick", "quick_thread"))
        family = stage.start("--runners", "2", "--slots", "8", "--drain")
        assert family.keeper.wait(60) == 0, family.text()
        assert app.counts()["default"][State.SUCCEEDED] == 200
        assert app.audit().violations == []
    assert len(stage.lines("start")) == len({line["job"] for line in stage.lines("start")}) == 200


def test_a_killed_runner_and_then_a_killed_worker_lose_and_overlap_nothing(stage: PostgresScene) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--lease", "3s")
        until(lambda: stage.lines("tick"), what="it runs")
        os.kill(stage.lines("start")[0]["pid"], signal.SIGKILL)
        until(lambda: len(stage.lines("start")) == 2, what="it runs again, alone")
        runner = stage.lines("start")[1]["pid"]
        family.keeper.kill()
        family.keeper.wait()
        until(lambda: not alive(runner), what="its runner is dead")
        stage.start("--lease", "3s")
        until(lambda: len(stage.lines("start")) == 3, what="another worker has it")
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        assert not overlaps(stage.journal_of_runs(), "job")
        assert (job.failures, job.attempts) == (0, 3)


def test_a_store_that_is_stopped_ends_handlers_before_their_lease_does(tmp_path: Path, mortal: Server) -> None:
    stage = PostgresScene(tmp_path, mortal.url())
    try:
        with stage.app() as app:
            job = app.named("ticks").enqueue()
            family = stage.start("--lease", "2s")
            until(lambda: stage.lines("tick"), what="it runs")
            mortal.end(signal.SIGQUIT)
            until(lambda: "could not renew its leases in time" in family.text(), what="the fence falls")
            runner = stage.lines("start")[0]["pid"]
            until(lambda: not alive(runner), what="the runner is dead")
            mortal.start()
            until(lambda: len(stage.lines("start")) == 2, what="the worker goes on")
            stage.open_gate()
            until(lambda: app.job(job.id).state is State.SUCCEEDED, what="it ends")
            assert not overlaps(stage.journal_of_runs(), "job")
    finally:
        stage.close()
