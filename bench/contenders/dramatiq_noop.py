"""No-op jobs on Dramatiq with Redis, eight threads: URL JOBS, prints jobs per second as JSON.

It has no bulk enqueue.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker


def main(url: str, jobs: int) -> None:
    logging.disable(logging.WARNING)
    broker = RedisBroker(client=redis.Redis.from_url(url))
    broker.client.flushdb()
    dramatiq.set_broker(broker)
    done = threading.Event()
    guard = threading.Lock()
    first = last = 0.0
    counted = 0

    @dramatiq.actor
    def nothing(number: int) -> None:
        nonlocal first, last, counted
        with guard:
            last = time.perf_counter()
            first = first or last
            counted += 1
            if counted == jobs:
                done.set()

    began = time.perf_counter()
    for number in range(jobs):
        nothing.send(number)
    enqueued = time.perf_counter()
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    assert done.wait(300)
    worker.stop()
    print(json.dumps({"jobs_per_second": jobs / (last - first), "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
