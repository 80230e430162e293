"""Celery on Redis: eight threads, 32 jobs fetched ahead for each, results ignored, no gossip. Bulk = a group."""

from __future__ import annotations

import os
import time

import redis
import tally
from celery import Celery, group

app = Celery("with_celery", broker=tally.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=32,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def nothing(number: int) -> None:
    tally.called()


@app.task
def timed(sent: float) -> None:
    tally.delayed(sent)


@app.task
def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int) -> None:
    tally.timed(jobs, lambda: [nothing.delay(number) for number in range(jobs)])


def bulk(jobs: int, shape: str = "none") -> None:
    def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            group(nothing.s(number) for number in chunk).apply_async()

    tally.timed(jobs, enqueue)


def work() -> None:
    quiet = ["-l", "ERROR", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", "-P", "threads", "-c", "8", "-n", f"w{os.getpid()}@bench", *quiet])


if __name__ == "__main__":
    import with_celery as loaded

    tally.main(
        prepare=lambda: redis.Redis.from_url(tally.URL).flushdb(), one=loaded.one, bulk=loaded.bulk, work=loaded.work,
        pace=lambda jobs, gap_ms: tally.pace(loaded.timed.delay, jobs, gap_ms), crash=loaded.sleepy.delay,
    )  # fmt: skip
