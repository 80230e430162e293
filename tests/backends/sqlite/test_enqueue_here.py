"""Enqueueing from a thread that waits: the same answers as through the app's own loop, by the shorter way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.writer import StoreThread
from holdfast.errors import BackendUnavailable, DuplicateJob, OutcomeUnknown
from holdfast.lifecycle import State
from holdfast.records import NewJob


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=0.2)
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


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
