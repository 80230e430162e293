"""Huey on SQLite (a file) or Redis (a URL): threads, results off, a fixed short delay between looks on SQLite.

A job is gone from its store before it runs. HUEY_THREADS, HUEY_DELAY.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import huey as package
import tally

SETTINGS = {} if tally.DEFAULTS else {"results": False}
if tally.URL.startswith("redis"):
    huey = package.RedisHuey("bench", url=tally.URL, **SETTINGS)
else:
    huey = package.SqliteHuey("bench", filename=tally.URL, **SETTINGS)


@huey.task(retries=1000)
def nothing(number: int, data: str = "") -> None:
    tally.handled()


@huey.task()
def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        time.sleep(tally.TIMED_SECONDS)


@huey.task(retries=3)
def sleepy() -> None:
    tally.happened("start")
    time.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


def one(jobs: int, shape: str = "none") -> None:
    tally.timed(jobs, lambda: [nothing(number, *tally.MORE) for number in range(jobs)])


def work() -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)
    if tally.DEFAULTS:
        huey.create_consumer().run()
        return
    threads = int(os.environ.get("BENCH_THREADS", os.environ["HUEY_THREADS"]))
    settings: dict[str, Any] = {"workers": threads, "worker_type": "thread", "periodic": False}
    if tally.PROCESSES > 1:
        settings |= {"workers": tally.PROCESSES, "worker_type": "process"}
    if delay := os.environ.get("HUEY_DELAY"):
        settings |= {"initial_delay": float(delay), "max_delay": float(delay), "backoff": 1.0001}
    huey.create_consumer(**settings).run()


if __name__ == "__main__":
    import with_huey as loaded  # so that its tasks are not called __main__.…

    tally.main(
        prepare=loaded.huey.flush, one=loaded.one, bulk=loaded.one, work=loaded.work, crash=loaded.sleepy,
        pace=lambda jobs, gap_ms: tally.pace(loaded.timed, jobs, gap_ms),
    )  # fmt: skip
