"""Dramatiq on Redis: one process, eight threads, unless BENCH_PROCESSES and BENCH_THREADS say otherwise. It has no bulk
enqueue."""

from __future__ import annotations

import sys
import time

import dramatiq
import tally
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=tally.URL)
dramatiq.set_broker(broker)
for queue in tally.queues():
    broker.declare_queue(queue)


@dramatiq.actor(max_retries=1000, min_backoff=1, max_backoff=1)
def nothing(number: int, data: str = "") -> None:
    tally.handled()


@dramatiq.actor
def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        time.sleep(tally.TIMED_SECONDS)


@dramatiq.actor
def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int, shape: str = "none") -> None:
    def send(number: int) -> None:
        message = nothing.message(number, *tally.MORE)
        broker.enqueue(message.copy(queue_name=tally.queue_of(number)) if tally.QUEUES else message)

    tally.timed(jobs, lambda: [send(number) for number in range(jobs)])


def work() -> None:
    from dramatiq.cli import main, make_argument_parser

    words = ["with_dramatiq", "--skip-logging"]
    if not tally.DEFAULTS:
        words += ["--processes", str(tally.PROCESSES), "--threads", str(tally.THREADS)]
    sys.exit(main(make_argument_parser().parse_args(words)))


if __name__ == "__main__":
    import with_dramatiq as loaded

    tally.main(
        prepare=loaded.broker.client.flushdb, one=loaded.one, bulk=loaded.one, work=loaded.work,
        pace=lambda jobs, gap_ms: tally.pace(loaded.timed.send, jobs, gap_ms), crash=loaded.sleepy.send,
    )  # fmt: skip
