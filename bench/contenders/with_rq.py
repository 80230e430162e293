"""RQ: SimpleWorker, which runs jobs in its own process instead of forking for each; results kept as by default."""

from __future__ import annotations

import time

import tally
from redis import Redis
from rq import Queue, Retry, SimpleWorker

connection = Redis.from_url(tally.URL)
queue = Queue("bench", connection=connection)


def nothing(number: int) -> None:
    tally.called()


def timed(sent: float) -> None:
    tally.delayed(sent)


def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int) -> None:
    tally.timed(jobs, lambda: [queue.enqueue(nothing, number) for number in range(jobs)])


def bulk(jobs: int, shape: str = "none") -> None:
    def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            queue.enqueue_many([Queue.prepare_data(nothing, (number,)) for number in chunk])

    tally.timed(jobs, enqueue)


def work() -> None:
    SimpleWorker([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    import with_rq as loaded

    tally.main(
        prepare=connection.flushdb, one=loaded.one, bulk=loaded.bulk, work=loaded.work,
        crash=lambda: loaded.queue.enqueue(loaded.sleepy, retry=Retry(max=3)),
        pace=lambda jobs, gap_ms: tally.pace(lambda sent: loaded.queue.enqueue(loaded.timed, sent), jobs, gap_ms),
    )  # fmt: skip
