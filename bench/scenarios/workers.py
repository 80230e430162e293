"""One to eight workers with one runner each on one store: on few cores this shows what they cost each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ..driving import ours
from ..places import STORES
from ..scenario import Case, Scenario, Setting
from .noop import measured


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    found = []
    for count, name in ((1, "1 worker"), (2, "2 workers"), (4, "4 workers"), (8, "8 workers")):
        contender = ours().like(name, workers=count)
        found.append(Case(name, "ours", partial(measured, setting, contender, setting.jobs), baseline=count == 1))
    yield found


SCENARIO = Scenario(
    "workers", "Workers on one store", "jobs_per_second", "jobs/s", cases, STORES,
    columns=("worker_us", "server_us", "calls"), weight=60.0,
)  # fmt: skip
