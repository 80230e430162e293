"""Batch handlers under `holdfast work`: gathered in the keeper, run by one runner, recovered each on its own."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.lifecycle import State
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until
from tests.chaos.test_process_ahead import in_state

pytestmark = pytest.mark.chaos

TASK = """
@app.task(name="gathers", batch=10, batch_within=0.5, queue="batches", retry=0)
def gathers(calls):
    note(what="batch", jobs=[call.id for call in calls])
    if calls[0].args.get("kills") and not os.path.exists(f"{HERE}/died"):
        open(f"{HERE}/died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="dies","""


def test_a_killed_batch_is_recovered_job_by_job(stage: ProcessScene) -> None:
    stage.change_code('@app.task(name="dies",', TASK)
    with stage.app() as app:
        task = app.named("gathers", queue="batches")
        jobs = [task.enqueue(kills=n < 10, n=n) for n in range(25)]
        # One slot for each runner: a batch that runs beside the killed one in its process dies with it.
        stage.start("--runners", "2", "--slots", "2", "--lease", "30", "-q", "batches")
        for job in jobs:
            until(partial(in_state, app, job, State.SUCCEEDED), what="all have run")
        batches = [line["jobs"] for line in stage.lines("batch")]
        killed = batches[0]
        assert len(killed) == 10 and sorted(map(len, batches[1:]), reverse=True) == [10, 5, *[1] * 10]
        found = {job.id: app.job(job.id) for job in jobs}
        assert {job_id for job_id, job in found.items() if job.attempts == 2} == set(killed)
        assert {job.stalls for job in found.values()} == {0}  # none was alone: the death counts against nobody
        assert not app.audit().violations
