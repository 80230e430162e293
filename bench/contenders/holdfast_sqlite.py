"""No-op jobs on Holdfast, SQLite with synchronous=FULL, one embedded worker: prints jobs per second as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time

from holdfast import Holdfast


def main(jobs: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Holdfast(f"sqlite:///{folder}/jobs.db") as app:
        if kind == "async":

            @app.task(name="nothing")
            async def nothing(number: int) -> None:
                return None

        else:

            @app.task(name="nothing")
            def nothing(number: int) -> None:
                return None

        began = time.perf_counter()
        app.enqueue_many(nothing.bind(number) for number in range(jobs))
        enqueued = time.perf_counter()
        done = app.work(drain=True, slots=200 if kind == "async" else 50)
        ended = time.perf_counter()
        assert done.succeeded == jobs, done
        print(
            json.dumps({"jobs_per_second": jobs / (ended - enqueued), "enqueue_per_second": jobs / (enqueued - began)})
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "async")
