"""Celery on Redis: eight threads, 32 jobs fetched ahead for each, results ignored, no gossip. Bulk = a group.

BENCH_PROCESSES above 1: this many processes with one job each instead, and one fetched ahead.
"""

from __future__ import annotations

import os
import time

import redis
import tally
from celery import Celery, Signature, group

app = Celery("with_celery", broker=tally.URL)
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
if not tally.DEFAULTS:
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=32 if tally.PROCESSES == 1 else 1)


@app.task(autoretry_for=(tally.Unlucky,), max_retries=None, default_retry_delay=0)
def nothing(number: int, data: str = "") -> None:
    tally.handled()


@app.task
def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        time.sleep(tally.TIMED_SECONDS)


@app.task
def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int) -> None:
    tally.timed(jobs, lambda: [nothing.delay(number) for number in range(jobs)])


def signature(number: int) -> Signature:
    call = nothing.s(number, *tally.MORE)
    return call.set(queue=tally.queue_of(number)) if tally.QUEUES else call


def bulk(jobs: int, shape: str = "none") -> None:
    def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            group(signature(number) for number in chunk).apply_async()

    tally.timed(jobs, enqueue)


def work() -> None:
    words = ["--without-gossip", "--without-mingle"]
    words += ["-P", "threads", "-c", str(tally.THREADS)] if tally.PROCESSES == 1 else ["-c", str(tally.PROCESSES)]
    if tally.DEFAULTS:
        words = []
    if tally.QUEUES:
        words += ["-Q", ",".join(tally.queues())]
    app.worker_main(["worker", "-l", "ERROR", "-n", f"w{os.getpid()}@bench", *words])


if __name__ == "__main__":
    import with_celery as loaded

    tally.main(
        prepare=lambda: redis.Redis.from_url(tally.URL).flushdb(), one=loaded.one, bulk=loaded.bulk, work=loaded.work,
        pace=lambda jobs, gap_ms: tally.pace(loaded.timed.delay, jobs, gap_ms), crash=loaded.sleepy.delay,
    )  # fmt: skip
