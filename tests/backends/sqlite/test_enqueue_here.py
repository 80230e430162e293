"""Enqueueing on the calling thread: the same results as through the app's own loop, by the fast path."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from holdfast.backends.sqlite import enqueue
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import StoreThread
from holdfast.errors import BackendUnavailable, DuplicateJob, OutcomeUnknown
from holdfast.lifecycle import State
from holdfast.records import Enqueued, NewJob

WAIT_SECONDS_MAX = 60


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=0.2)
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


def begun(backend: SqliteBackend) -> StoreThread:
    """The writer, with its connection and at rest: from now on a caller does its work itself. One job is stored."""
    backend.enqueue_here([NewJob(id="first", task="t", key="k")])
    writer, pause = backend._writing(), threading.Event()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while writer.carry_out_here("look", lambda _: None) is None:
        assert time.monotonic() < deadline
        pause.wait(0.001)
    return writer


def ready(backend: SqliteBackend) -> int:
    return asyncio.run(backend.count()).get("default", {}).get(State.READY, 0)


def test_it_answers_as_enqueue_does(backend: SqliteBackend) -> None:
    first = NewJob(id="a", task="t", key="k")
    made = backend.enqueue_here([first, NewJob(id="b", task="t")])
    assert made is not None
    assert [(one.id, one.created) for one in made] == [("a", True), ("b", True)]
    again = [first, NewJob(id="c", task="t", key="k")]
    assert backend.enqueue_here(again) == asyncio.run(backend.enqueue(again))
    assert backend.enqueue_here([]) == []
    with pytest.raises(DuplicateJob):
        backend.enqueue_here([NewJob(id="d", task="t", key="k", on_conflict="raise")])
    assert ready(backend) == 2


def test_a_store_that_is_not_open_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable):
        SqliteBackend(str(tmp_path / "jobs.db")).enqueue_here([NewJob(id="a", task="t")])
    assert not (tmp_path / "jobs.db").exists()


def test_a_file_that_others_keep_locked_is_given_up(backend: SqliteBackend) -> None:
    other = sqlite3.connect(backend.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailable):
        backend.enqueue_here([NewJob(id="a", task="t")])
    other.execute("ROLLBACK")
    assert ready(backend) == 0


@pytest.mark.parametrize(("begun", "error"), [(False, BackendUnavailable), (True, OutcomeUnknown)])
def test_a_writer_that_does_not_answer_is_given_up(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, begun: bool, error: type[Exception]
) -> None:
    silent: Future[object] = Future()
    if begun:
        silent.set_running_or_notify_cancel()
    monkeypatch.setattr(StoreThread, "submit", lambda *_, **__: silent)
    with pytest.raises(error):
        backend.enqueue_here([NewJob(id="a", task="t")])
    assert silent.cancelled() is not begun


def test_once_the_writer_has_its_connection_the_caller_does_it_itself(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(backend)
    with monkeypatch.context() as patch:
        patch.delattr(StoreThread, "submit")
        assert backend.enqueue_here([NewJob(id="a", task="t")]) == [Enqueued("a", True)]
    assert ready(backend) == 2


def test_who_waits_already_goes_first_and_shares_a_commit(backend: SqliteBackend) -> None:
    writer = begun(backend)
    holding, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Cursor) -> None:
        holding.set()
        go_on.wait(WAIT_SECONDS_MAX)

    held = writer.submit("hold", hold)
    assert holding.wait(WAIT_SECONDS_MAX)
    assert writer.carry_out_here("enqueue", lambda _: None) is None
    go_on.set()
    held.result(WAIT_SECONDS_MAX)
    assert backend.enqueue_here([NewJob(id="a", task="t")]) == [Enqueued("a", True)]


def test_many_threads_at_once_lose_nothing(tmp_path: Path) -> None:
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=WAIT_SECONDS_MAX)
    asyncio.run(backend.open())

    def put(thread: int) -> None:
        for number in range(40):
            assert backend.enqueue_here([NewJob(id=f"{thread}-{number}", task="t")])

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ready(backend) == 8 * 40
    asyncio.run(backend.close())


def test_an_interrupt_in_the_middle_leaves_nothing_behind(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(backend)
    real = enqueue.enqueue

    def interrupted(*given: object) -> object:
        real(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(enqueue, "enqueue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.enqueue_here([NewJob(id="a", task="t")])
    monkeypatch.undo()
    assert ready(backend) == 1
    assert backend.enqueue_here([NewJob(id="a", task="t")]) == [Enqueued("a", True)]
    assert backend.enqueue_here([NewJob(id="b", task="t")]) == [Enqueued("b", True)]


def test_a_call_in_the_middle_of_another_is_refused_at_once(backend: SqliteBackend) -> None:
    """As a signal handler makes it: the outer call has the connection and cannot go on before the inner one ends."""
    writer = begun(backend)

    def outer(_: sqlite3.Cursor) -> str:
        with pytest.raises(BackendUnavailable, match="signal handler"):
            backend.enqueue_here([NewJob(id="inner", task="t")])
        return "done"

    assert writer.carry_out_here("enqueue", outer) == ("done",)
    assert backend.enqueue_here([NewJob(id="a", task="t")]) == [Enqueued("a", True)]
    assert ready(backend) == 2


def test_a_refusal_of_one_who_does_it_itself_undoes_all_of_it(backend: SqliteBackend) -> None:
    begun(backend)
    with pytest.raises(DuplicateJob):
        backend.enqueue_here([NewJob(id="a", task="t"), NewJob(id="b", task="t", key="k", on_conflict="raise")])
    assert ready(backend) == 1


def test_a_child_forked_after_it_has_a_connection_of_its_own(backend: SqliteBackend) -> None:
    begun(backend)
    backend.enqueue_here([NewJob(id="second", task="t")])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            backend.enqueue_here([NewJob(id="child", task="t")])
            backend.enqueue_here([NewJob(id="child again", task="t")])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.enqueue_here([NewJob(id="parent", task="t")]) == [Enqueued("parent", True)]
    assert ready(backend) == 5


def test_nothing_is_written_behind_a_store_that_was_closed(backend: SqliteBackend) -> None:
    writer = begun(backend)
    asyncio.run(backend.close())
    with pytest.raises(BackendUnavailable, match="closed"):
        writer.carry_out_here("enqueue", lambda _: None)
    assert writer._post.connection is None


def test_an_enqueue_writes_five_pages(backend: SqliteBackend) -> None:
    """The jobs, three of their indexes, and the last seq with the counter beside it."""
    begun(backend)
    log, frame_bytes = Path(f"{backend.path}-wal"), 4096 + 24
    before = log.stat().st_size
    for number in range(10):  # few enough that no page is split
        backend.enqueue_here([NewJob(id=f"{number:036}", task="t")])
    assert log.stat().st_size - before <= 50 * frame_bytes
