"""No-op jobs on Holdfast with its defaults, one embedded worker: URL JOBS async|sync, prints jobs per second as JSON.

Rate = jobs / (last handler call - first handler call), for every contender alike.
"""

from __future__ import annotations

import json
import sys
import time

from holdfast import Holdfast

SLOTS = {"async": 400, "sync": 50}


def main(url: str, jobs: int, kind: str) -> None:
    first = last = 0.0

    def note() -> None:
        nonlocal first, last
        last = time.perf_counter()
        first = first or last

    with Holdfast(url) as app:
        if kind == "async":

            @app.task(name="nothing")
            async def nothing(number: int) -> None:
                note()

        else:

            @app.task(name="nothing")
            def nothing(number: int) -> None:
                note()

        app.open()  # as for every contender: making the tables is not enqueueing
        began = time.perf_counter()
        app.enqueue_many(nothing.bind(number) for number in range(jobs))
        enqueued = time.perf_counter()
        done = app.work(drain=True, slots=SLOTS[kind])
        assert done.succeeded == jobs, done
        print(json.dumps({"jobs_per_second": jobs / (last - first), "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
