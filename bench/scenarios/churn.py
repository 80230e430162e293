"""Does a claim cost more in a store that has worked for an hour? Runs only when named: it takes that hour.

Jobs arrive at a steady rate, run, are kept for two minutes and pruned; 1,000 wait all the time. Every few minutes one
exchange of 100 is measured there and in a new store, in turn, so that the state of the machine affects both. The result
is worn ÷ new. The server has its defaults: PostgreSQL vacuums as it does anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator

from ..places import Place
from ..scenario import Case, Scenario, Setting
from .backlog import BATCH, Behind

MINUTES = 60.0
RATE, WAITING = 300, 1000  # jobs a second, and jobs that wait all the time
KEPT_SECONDS = 120.0
LOOKS = 12  # measurements in all that time
TURNS = 5  # of worn and new, in one measurement


def _ungrouped(number: int) -> None:
    return None


async def _compared(worn: Behind, place: Place, name: str) -> tuple[float, float]:
    """Processor time of an exchange in microseconds: worn, new."""
    found: list[tuple[float, float]] = []
    with place.area(name) as area:
        new = Behind(area, place.pid, _ungrouped)
        await new.open()
        await new.add(WAITING)
        for _ in range(TURNS):
            found.append(((await worn.measure())["cpu_us"], (await new.measure())["cpu_us"]))
        await new.backend.close()
    return statistics.median(one for one, _ in found), statistics.median(one for _, one in found)


async def _churned(one: Behind, until: float) -> int:
    """Enqueue, run and prune jobs until then. Return how many."""
    jobs, due = 0, time.monotonic()
    while due < until:
        await one.add(RATE)
        for _ in range(RATE // BATCH):
            await one.exchange(BATCH, retain=KEPT_SECONDS)
        await one.backend.prune(limit=2 * RATE)
        jobs, due = jobs + RATE, due + 1.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    return jobs


async def _worn(place: Place, minutes: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    with place.area("worn") as area:
        one = Behind(area, place.pid, _ungrouped)
        await one.open()
        await one.add(WAITING)
        began, jobs = time.monotonic(), 0
        for look in range(1, LOOKS + 1):
            jobs += await _churned(one, began + minutes * 60 * look / LOOKS)
            worn, new = await _compared(one, place, f"new{look}")
            figures[f"after_{minutes * look / LOOKS:g}_minutes"] = worn / new
            print(f"    {jobs:,} jobs: {worn:.0f} µs worn, {new:.0f} new", file=sys.stderr, flush=True)
        await one.backend.close()
    return {"growth": statistics.median(list(figures.values())[-LOOKS // 4 :]), "jobs": float(jobs), **figures}


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    minutes = 1.0 if setting.quick else MINUTES

    def measure() -> dict[str, float]:
        return asyncio.run(_worn(setting.place, minutes))

    yield [Case(f"an exchange after {minutes:g} minutes of work", "ours", measure)]


SCENARIO = Scenario(
    "churn", "Cost of a claim in a worn store, last quarter, ÷ in a new one", "growth", "×", cases,
    ("sqlite", "postgres", "redis"), factor=0.2, more_is_better=False, columns=("jobs",), asked_only=True,
)  # fmt: skip
