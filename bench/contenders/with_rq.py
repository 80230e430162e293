"""RQ: SimpleWorker, which runs jobs in its own process instead of forking for each; results kept as by default. With
BENCH_DEFAULTS its Worker, which forks.
"""

from __future__ import annotations

import time

import tally
from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker
from rq.queue import EnqueueData

connection = Redis.from_url(tally.URL)
queue = Queue("bench", connection=connection)


def nothing(number: int, data: str = "") -> None:
    tally.handled()


def timed(sent: float) -> None:
    tally.delayed(sent)


def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int) -> None:
    tally.timed(jobs, lambda: [queue.enqueue(nothing, number) for number in range(jobs)])


def prepared(number: int) -> EnqueueData:
    retry = Retry(max=1000) if tally.FAILS else None
    return Queue.prepare_data(nothing, (number, *tally.MORE), retry=retry)


def bulk(jobs: int, shape: str = "none") -> None:
    def enqueue() -> None:
        for chunk in [] if tally.QUEUES else tally.chunks(jobs):
            queue.enqueue_many([prepared(number) for number in chunk])
        for name, numbers in tally.by_queue(jobs):
            Queue(name, connection=connection).enqueue_many([prepared(number) for number in numbers])

    tally.timed(jobs, enqueue)


def work() -> None:
    queues = [Queue(name, connection=connection) for name in tally.queues()] or [queue]
    kind = Worker if tally.DEFAULTS else SimpleWorker
    kind(queues, connection=connection).work(logging_level="CRITICAL")


if __name__ == "__main__":
    import with_rq as loaded

    tally.main(
        prepare=connection.flushdb, one=loaded.one, bulk=loaded.bulk, work=loaded.work,
        crash=lambda: loaded.queue.enqueue(loaded.sleepy, retry=Retry(max=3)),
        pace=lambda jobs, gap_ms: tally.pace(lambda sent: loaded.queue.enqueue(loaded.timed, sent), jobs, gap_ms),
    )  # fmt: skip
