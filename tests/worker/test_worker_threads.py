"""The threads of sync handlers: a call that blocks keeps no other waiting, none is forgotten, none is made in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.worker.threads import ThreadPool

WAIT_SECONDS = 20
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


def test_closing_lets_all_threads_go(pool: ThreadPool, request: pytest.FixtureRequest) -> None:
    together = threading.Barrier(MOST + 1)
    for _ in range(MOST):
        pool.submit(lambda: together.wait(WAIT_SECONDS))
    together.wait(WAIT_SECONDS)
    pool.close()
    until(lambda: named(request.node.name) == 0)
