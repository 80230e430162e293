"""The memory of a worker, keeper and runner together, through a long run: after every portion of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..driving import ours, turn
from ..processes import memory_bytes
from ..scenario import Case, Scenario, Setting

PORTIONS = 6


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    contender = ours("holdfast work, 1 runner")

    def measure() -> dict[str, float]:
        figures = {}
        with setting.place.area() as area, turn(contender, area) as one:
            worker = one.start()
            for portion in range(1, PORTIONS + 1):
                one.call("bulk", setting.jobs, "none")
                one.wait(portion * setting.jobs, 120.0)
                figures[f"after_{portion * setting.jobs}_mb"] = memory_bytes(worker.pid) / 2**20
        found = list(figures.values())
        return {"growth": found[-1] / found[0], "most_mb": max(found), **figures}

    yield [Case(contender.name, "ours", measure)]


SCENARIO = Scenario(
    "memory", "Memory of a worker, last portion to first", "growth", "×", cases, ("sqlite", "postgres", "redis"),
    factor=0.2, more_is_better=False, columns=("most_mb",), weight=12.0,
)  # fmt: skip
