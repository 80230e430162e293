"""One to eight workers with one runner each on one store: on few cores this shows what they cost each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from holdfast import Holdfast

from ..driving import Contender, costs, ours, turn
from ..places import STORES
from ..scenario import Case, Scenario, Setting
from .footprint import until_settled

QUEUE = "default"
JOBS_FACTOR = 5  # the first exchanges of each worker cost 20 to 30 ms more than later ones: with few jobs, that shows
WORK_SECONDS_MAX = 120.0


def measured(setting: Setting, contender: Contender) -> dict[str, float]:
    """The queue is paused until all workers have started: eight starts take longer than the jobs do."""
    jobs = setting.jobs * JOBS_FACTOR
    with setting.place.area() as area, turn(contender, area) as one, Holdfast(area.ours) as app:
        one.call("bulk", jobs, "none")
        app.pause(queue=QUEUE)
        for worker in [one.start() for _ in range(contender.workers)]:
            until_settled(worker)
        first, used, wrote = area.read(), one.seconds_used(), one.written()
        app.resume(queue=QUEUE)
        ended = one.wait(jobs, WORK_SECONDS_MAX)
        last, used_last, wrote_last = area.read(), one.seconds_used(), one.written()
        return {"jobs_per_second": jobs / (ended.last - ended.first)} | costs(
            first, last, used_last - used, wrote_last - wrote, jobs
        )


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    found = []
    for count, name in ((1, "1 worker"), (2, "2 workers"), (4, "4 workers"), (8, "8 workers")):
        contender = ours().like(name, workers=count)
        found.append(Case(name, "ours", partial(measured, setting, contender), baseline=count == 1))
    yield found


SCENARIO = Scenario(
    "workers", "Workers on one store", "jobs_per_second", "jobs/s", cases, STORES,
    columns=("worker_us", "server_us", "calls"), weight=60.0,
)  # fmt: skip
