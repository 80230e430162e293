"""The threads of sync handlers: a call that blocks delays no other, no call is lost, no thread is started in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast.context import Context
from holdfast.worker.runner import attempt
from holdfast.worker.runner.attempt import ThreadPool

WAIT_SECONDS = 60
MOST = 8


def named(prefix: str) -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


def until(reached: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    looked, deadline = threading.Event(), time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < deadline
        looked.wait(0.001)


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[ThreadPool]:
    pool = ThreadPool(MOST, request.node.name)
    yield pool
    pool.close()


def test_calls_that_block_all_begin(pool: ThreadPool) -> None:
    together = threading.Barrier(MOST + 1)
    for _ in range(50):
        for _ in range(MOST):
            pool.submit(lambda: together.wait(WAIT_SECONDS))
        together.wait(WAIT_SECONDS)


def test_no_more_threads_than_allowed_and_the_next_call_runs_when_one_is_free(
    pool: ThreadPool, request: pytest.FixtureRequest
) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        go.wait(WAIT_SECONDS)

    for _ in range(3 * MOST):
        pool.submit(block)
    for _ in range(MOST):
        assert begun.acquire(timeout=WAIT_SECONDS)
    assert named(request.node.name) == MOST
    assert not begun.acquire(blocking=False)
    go.set()
    for _ in range(2 * MOST):
        assert begun.acquire(timeout=WAIT_SECONDS)


def test_a_call_submitted_as_the_last_thread_goes_to_rest_is_not_forgotten() -> None:
    pool = ThreadPool(1, "resting")
    try:
        for _ in range(20_000):
            done = threading.Lock()
            done.acquire()
            pool.submit(done.release)
            assert done.acquire(timeout=WAIT_SECONDS)
    finally:
        pool.close()


def test_a_thread_that_rests_is_used_before_another_is_made(pool: ThreadPool, request: pytest.FixtureRequest) -> None:
    for _ in range(100):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(WAIT_SECONDS)
        until(lambda: pool._idle == pool._count)
    assert named(request.node.name) == 1


class Refusing:
    """The system has no more threads, for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int, refusals: int) -> None:
        self.allowed, self.refusals, self.refused = allowed, refusals, threading.Event()
        self._real = threading.Thread.start
        own = self

        def start(thread: threading.Thread) -> None:
            if "handler" in thread.name or "refused" in thread.name:
                own.allowed -= 1
                if own.allowed < 0 < own.refusals:
                    own.refusals -= 1
                    own.refused.set()
                    raise RuntimeError("can't start new thread")
            own._real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


def test_calls_that_got_no_thread_are_withdrawn_and_the_next_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, allowed=0, refusals=1)
    pool = ThreadPool(2, "refused")
    ran = threading.Event()
    call = ran.set
    pool.submit(call)
    assert pool.refused and pool.withdraw() == [call]
    assert not pool.refused
    pool.submit(call)
    assert ran.wait(WAIT_SECONDS)
    pool.close()


async def test_one_refused_thread_holds_no_job_of_the_embedded_worker(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app
    refusing = Refusing(monkeypatch, allowed=2, refusals=3)
    ran: list[int] = []

    @app.task(name="nap")
    def nap(n: int) -> None:
        ran.append(n)
        refusing.refused.wait(WAIT_SECONDS)  # the first two keep their threads until a third is asked for

    jobs = await app.put(*(nap.bind(n) for n in range(40)))
    drained = await app.drain(slots=10)
    assert (drained.succeeded, drained.left) == (40, 0)
    assert sorted(ran) == list(range(40))
    assert {(await app.job(job)).attempts for job in jobs} == {1}


async def test_what_cannot_be_started_for_another_reason_is_given_back_and_costs_its_neighbours_nothing(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app
    faults = [MemoryError(), RuntimeError("odd")]
    real = Context

    def make(*args: Any, **kwargs: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(attempt, "Context", make)

    @app.task(name="any")
    async def any_job() -> None: ...

    jobs = await app.put(*(any_job.bind() for _ in range(5)))
    assert (await app.drain()).succeeded == 5
    assert {(await app.job(job)).attempts for job in jobs} == {1}


def test_closing_lets_all_threads_go(pool: ThreadPool, request: pytest.FixtureRequest) -> None:
    together = threading.Barrier(MOST + 1)
    for _ in range(MOST):
        pool.submit(lambda: together.wait(WAIT_SECONDS))
    together.wait(WAIT_SECONDS)
    pool.close()
    until(lambda: named(request.node.name) == 0)
