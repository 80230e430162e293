"""Does a job cost more while nobody vacuums? One worker, 400,000 jobs, autovacuum off: the last portion to the first.

Finished jobs are kept, as in every scenario, so tables and indexes grow by them; dead rows come on top. Run only when
named: it takes minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..driving import Turn, ours, turn
from ..scenario import Case, Scenario, Setting

JOBS, PORTIONS = 400_000, 10
WARM_UP = 1000
SECONDS_MAX = 120.0


def _portion_us(one: Turn, jobs: int, done: int) -> float:
    """Processor time of worker and server per job; what the server spends on enqueueing it is in it."""
    server, worker = one.area.read().server_seconds, one.seconds_used()
    one.call("bulk", jobs, "none")
    one.wait(done + jobs, SECONDS_MAX)
    return (one.area.read().server_seconds - server + one.seconds_used() - worker) / jobs * 1e6


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    jobs = (setting.jobs if setting.quick else JOBS) // PORTIONS

    def measure() -> dict[str, float]:
        figures = {}
        with setting.place.area() as area, turn(ours(), area) as one:
            one.start()
            one.call("bulk", WARM_UP, "none")
            one.wait(WARM_UP, SECONDS_MAX)
            for portion in range(PORTIONS):
                figures[f"after_{(portion + 1) * jobs}_us"] = _portion_us(one, jobs, WARM_UP + portion * jobs)
        found = list(figures.values())
        return {"growth": found[-1] / found[0], **figures}

    yield [Case(f"{jobs * PORTIONS:,} jobs", "ours", measure)]


SCENARIO = Scenario(
    "vacuum", "Cost of a job without vacuum, last portion to first", "growth", "×", cases, ("postgres",),
    factor=0.2, more_is_better=False, fresh=True, asked_only=True,
)  # fmt: skip
