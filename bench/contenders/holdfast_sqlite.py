"""No-op jobs on Holdfast, SQLite with synchronous=FULL, one embedded worker: prints jobs per second as JSON.

Rate = jobs / (last handler call - first handler call), for every contender alike.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

from holdfast import Holdfast

SLOTS = {"async": 400, "sync": 50}


def main(jobs: int, kind: str) -> None:
    first = last = 0.0

    def note() -> None:
        nonlocal first, last
        last = time.perf_counter()
        first = first or last

    with tempfile.TemporaryDirectory() as folder, Holdfast(f"sqlite:///{folder}/jobs.db") as app:
        if kind == "async":

            @app.task(name="nothing")
            async def nothing(number: int) -> None:
                note()

        else:

            @app.task(name="nothing")
            def nothing(number: int) -> None:
                note()

        began = time.perf_counter()
        app.enqueue_many(nothing.bind(number) for number in range(jobs))
        enqueued = time.perf_counter()
        done = app.work(drain=True, slots=SLOTS[kind])
        assert done.succeeded == jobs, done
        print(json.dumps({"jobs_per_second": jobs / (last - first), "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "async")
