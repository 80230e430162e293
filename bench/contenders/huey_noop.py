"""No-op jobs on Huey, SQLite, four threads, results off: FILE JOBS, prints jobs per second as JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time

from huey import SqliteHuey


def main(path: str, jobs: int) -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)
    huey = SqliteHuey(filename=path, results=False)
    done = threading.Event()
    counted = 0
    first = 0.0
    guard = threading.Lock()

    @huey.task()
    def nothing(number: int) -> None:
        nonlocal counted, first
        with guard:
            if not counted:
                first = time.perf_counter()
            counted += 1
            if counted == jobs:
                done.set()

    began = time.perf_counter()
    for number in range(jobs):
        nothing(number)
    enqueued = time.perf_counter()
    consumer = huey.create_consumer(workers=4, periodic=False, initial_delay=0.005, backoff=1.0)
    consumer.start()
    assert done.wait(300)
    ended = time.perf_counter()
    consumer.stop(graceful=True)
    print(json.dumps({"jobs_per_second": jobs / (ended - first), "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
