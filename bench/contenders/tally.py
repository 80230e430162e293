"""What every Python contender reports to the bench: handler calls, delays, starts and ends; and its verbs.

Imported by the scripts beside it, inside the environments of the peers, so it uses only the standard library. The tally
costs the no-op handler about 0.3 µs; it is an mmap'd file named after the process. tally.js writes the same bytes.

BENCH_HANDLER says what else the handler does: `cpu-5` computes for 5 ms in Python, `block-20` blocks for 20 ms,
`wait-50` awaits 50 ms, `fail-5` raises in 5 of 100 calls. BENCH_PAYLOAD: bytes of a second argument. BENCH_QUEUES: jobs
are spread over this many queues, all served by one worker. BENCH_PROCESSES, BENCH_THREADS and BENCH_SLOTS: how many
processes, threads or concurrent jobs a worker has, for contenders that support it. BENCH_DEFAULTS: the contender uses
none of these settings, but runs as its own documentation first starts it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import mmap
import os
import random
import string
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
URL = os.environ.get("BENCH_URL", "")
SLOTS = int(os.environ.get("BENCH_SLOTS", "100"))
SLEEPY_SECONDS = 30.0
TIMED_SECONDS = int(os.environ.get("BENCH_TIMED_MS", "0")) / 1000  # how long a timed job takes after it began
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "1"))
THREADS = int(os.environ.get("BENCH_THREADS", "8"))
DEFAULTS = bool(os.environ.get("BENCH_DEFAULTS"))
QUEUES = int(os.environ.get("BENCH_QUEUES", "0"))
LETTERS = string.ascii_letters + string.digits  # random, so that no store can compress them
PAYLOAD = int(os.environ.get("BENCH_PAYLOAD", "0"))
BULK = 100 if PAYLOAD else 1000
MORE = ("".join(random.Random(1).choices(LETTERS, k=PAYLOAD)),) if PAYLOAD else ()  # arguments after the number
ARGUMENTS = json.dumps({"number": 1, **({"data": MORE[0]} if MORE else {})})  # for contenders that take bytes
HANDLER = os.environ.get("BENCH_HANDLER", "")
_KIND, _, _AMOUNT = HANDLER.partition("-")
_SECONDS = int(_AMOUNT or 0) / 1000
FAILS = _KIND == "fail"  # jobs are retried at once until they succeed
BLOCKS = _KIND == "block"  # its handler must not be on an event loop


class Tally:
    """How often the no-op handler was called in this process, and when first and last."""

    def __init__(self) -> None:
        self._pid = 0
        self._guard = threading.Lock()

    def _open(self) -> None:
        self._pid = os.getpid()
        path = FOLDER / f"{self._pid}.tally"
        path.write_bytes(bytes(64))
        with path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 64))
        self._count, self._times = memory[:8].cast("q"), memory[8:24].cast("d")

    def add(self) -> None:
        with self._guard:
            if self._pid != os.getpid():
                self._open()
            now = time.monotonic()
            if not self._count[0]:
                self._times[0] = now
            self._times[1] = now
            self._count[0] += 1


called = Tally().add


class Unlucky(Exception):
    """Raised by a handler that is meant to fail."""


def _handled() -> None:
    if _KIND == "cpu":
        _compute()
    elif _KIND in ("block", "wait"):
        time.sleep(_SECONDS)
    _tally()


handled = _handled if HANDLER else called  # what a sync handler does; calls that fail are not tallied


async def ahandled() -> None:
    """What an async handler does: it awaits where a sync one blocks, and runs blocking work in a thread."""
    if BLOCKS:
        await asyncio.get_running_loop().run_in_executor(threads(), handled)
        return
    if _KIND == "cpu":
        _compute()
    elif _KIND == "wait":
        await asyncio.sleep(_SECONDS)
    _tally()


@functools.cache
def threads() -> ThreadPoolExecutor | None:
    """The pool for blocking work, if a peer leaves this to the app; None is asyncio's own."""
    return None if DEFAULTS else ThreadPoolExecutor(THREADS)


def _compute() -> None:
    until = time.thread_time() + _SECONDS
    while time.thread_time() < until:
        for _ in range(500):
            pass


def _tally() -> None:
    if FAILS and random.random() < int(_AMOUNT) / 100:
        raise Unlucky
    called()


def _append(name: str, line: str) -> None:
    handle = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def delayed(sent: float) -> None:
    """The handler of a timed job began; `sent` is when its enqueue was called."""
    _append("delays", f"{time.monotonic() - sent:.9f}\n")


def stepped(job: str, what: str, at: float | None = None) -> None:
    """A job has reached this step: enqueue was `called`, enqueue `returned`, its handler `started`."""
    _append("steps", f"{job} {what} {time.monotonic() if at is None else at:.9f}\n")


def happened(what: str) -> None:
    """The sleepy handler began or ended."""
    _append("events", f"{what} {time.monotonic():.6f} {os.getpid()}\n")


def tell(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def timed(jobs: int, enqueue: Callable[[], object]) -> None:
    began = time.perf_counter()
    enqueue()
    tell(per_second=jobs / (time.perf_counter() - began))


async def atimed(jobs: int, enqueue: Coroutine[Any, Any, object]) -> None:
    began = time.perf_counter()
    await enqueue
    tell(per_second=jobs / (time.perf_counter() - began))


def chunks(jobs: int, size: int = BULK) -> list[range]:
    return [range(start, min(jobs, start + size)) for start in range(0, jobs, size)]


def queue_of(number: int) -> str:
    return f"q{number % QUEUES}"


def queues() -> list[str]:
    return [queue_of(number) for number in range(QUEUES)]


def by_queue(jobs: int) -> list[tuple[str, range]]:
    """Every queue with the numbers of its jobs, for contenders whose bulk call fills one queue."""
    return [(queue_of(first), range(first, jobs, QUEUES)) for first in range(min(QUEUES, jobs))]


def pace(enqueue: Callable[[float], object], jobs: int, gap_ms: int) -> None:
    """One enqueue every `gap_ms` milliseconds; each job carries the time at which it was called."""
    began = time.monotonic()
    for number in range(jobs):
        wait = began + number * gap_ms / 1000 - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        enqueue(time.monotonic())


async def apace(enqueue: Callable[[float], Awaitable[object]], jobs: int, gap_ms: int) -> None:
    began = time.monotonic()
    for number in range(jobs):
        wait = began + number * gap_ms / 1000 - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        await enqueue(time.monotonic())


def group_of(shape: str, number: int, jobs: int) -> str | None:
    """`none`; `round-100`: in turn; `adjacent-100`: each group's jobs side by side; `hot`: one group."""
    kind, _, count = shape.partition("-")
    if kind == "none":
        return None
    if kind == "hot":
        return "hot"
    groups = int(count)
    return f"g{number * groups // jobs}" if kind == "adjacent" else f"g{number % groups}"


def main(**verbs: Callable[..., object]) -> None:
    """VERB [WORDS]: prepare (peers), one JOBS, bulk JOBS SHAPE, work, pace JOBS GAP_MS, crash."""
    verb, *words = sys.argv[1:]
    verbs[verb](*(int(word) if word.isdigit() else word for word in words))
