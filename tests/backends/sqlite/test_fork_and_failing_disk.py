"""What a fork and a failing disk must not cause: a child that hangs, a writer that is gone forever."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.backends.sqlite import wakeups
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import BackendError, BackendUnavailable, DuplicateJob, HoldfastError
from holdfast.records import NewJob

CHILD_SECONDS_MAX = 60


def test_a_child_forked_while_the_parent_looks_for_work_can_still_write(tmp_path: Path) -> None:
    """The parent's watch holds its guard some of the time; a child inherits it held, and nobody there lets go."""
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=1.0)
    asyncio.run(backend.open())
    waiting, release = threading.Event(), threading.Event()

    async def wait_for_work() -> None:
        listening = asyncio.create_task(backend.wait_for_work(["default"], 30))
        await asyncio.sleep(0)
        waiting.set()
        await asyncio.to_thread(release.wait)
        listening.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(wait_for_work()))
    thread.start()
    assert waiting.wait(10)
    (own,) = [one for one in wakeups._watches[backend.path] if one._waiting]
    own._guard.acquire()  # where a fork finds it in about one case of twenty while a worker is idle
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(_enqueue(backend, "a"))
            asyncio.run(_enqueue(backend, "b"))  # the writer must have come back from telling of the first
            code = 0
        finally:
            os._exit(code)
    own._guard.release()
    _, state = os.waitpid(pid, 0)
    release.set()
    thread.join()
    asyncio.run(backend.close())
    assert os.waitstatus_to_exitcode(state) == 0


def test_a_forked_child_keeps_none_of_the_parents_waiters(tmp_path: Path) -> None:
    """Each commit of the child would put one more call on a loop that does not run there: memory without bound."""
    backend = SqliteBackend(str(tmp_path / "jobs.db"))
    waiter = wakeups.Wakeups(backend.path, backend._clock)
    loop = asyncio.new_event_loop()
    waiter._waiting[asyncio.Event()] = loop
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(backend.open())
            asyncio.run(_enqueue(backend, "a"))
            asyncio.run(backend.close())  # joins the writer, so all that is told has been told
            code = 0 if not len(loop._ready) else 2  # type: ignore[attr-defined]
        finally:
            os._exit(code)
    _, state = os.waitpid(pid, 0)
    loop.close()
    assert os.waitstatus_to_exitcode(state) == 0


def test_the_writer_outlives_a_rollback_of_sqlites_own_and_a_store_that_stays_busy(tmp_path: Path) -> None:
    """Disk full, input/output error: SQLite rolls back by itself. If the next BEGIN fails too, the thread must live."""
    path = str(tmp_path / "jobs.db")
    backend = SqliteBackend(path, call_timeout=0.2)
    rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def disk_full(cursor: sqlite3.Cursor) -> None:
        cursor.execute("ROLLBACK")
        rival.execute("BEGIN IMMEDIATE")  # a neighbour was waiting for exactly this
        raise sqlite3.OperationalError("database or disk is full")

    async def scene() -> None:
        await backend.open()
        failed = asyncio.wrap_future(backend._writing().submit("enqueue", disk_full))
        with pytest.raises(HoldfastError):
            await asyncio.wait_for(failed, 5)
        rival.execute("ROLLBACK")
        await _enqueue(backend, "after")
        assert (await backend.get("after")) is not None

    asyncio.run(asyncio.wait_for(scene(), 30))
    rival.close()
    asyncio.run(backend.close())


async def _enqueue(backend: SqliteBackend, job_id: str) -> None:
    answers = await asyncio.wait_for(backend.enqueue([NewJob(id=job_id, task="t")]), CHILD_SECONDS_MAX)
    if not answers[0].created:
        raise BackendError(f"{job_id} was there already. It should not be.")


def test_what_sqlite_rolled_back_is_refused_and_what_came_after_is_carried_out(tmp_path: Path) -> None:
    backend = SqliteBackend(str(tmp_path / "jobs.db"))

    def disk_full(cursor: sqlite3.Cursor) -> None:
        cursor.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    async def scene() -> None:
        await backend.open()
        await backend.enqueue([NewJob(id="first", task="t", key="k")])
        holding, gate = threading.Event(), threading.Event()

        def hold(cursor: sqlite3.Cursor) -> None:
            holding.set()
            gate.wait(10)

        held = asyncio.wrap_future(backend._writing().submit("hold", hold))
        assert await asyncio.to_thread(holding.wait, 10)
        refused = NewJob(id="refused", task="t", key="k", on_conflict="raise")

        async def fail() -> None:
            await asyncio.wrap_future(backend._writing().submit("enqueue", disk_full))

        together = asyncio.gather(
            backend.enqueue([NewJob(id="before", task="t")]),
            backend.enqueue([refused]),
            fail(),
            backend.enqueue([NewJob(id="after", task="t")]),
            return_exceptions=True,
        )
        await asyncio.sleep(0)  # all four are asked before the writer is let go
        gate.set()
        await held
        before, duplicate, full, after = await together
        assert isinstance(before, BackendError)
        assert isinstance(duplicate, DuplicateJob)
        assert isinstance(full, BackendError)
        assert isinstance(after, list)
        assert {row["id"] for row in (await backend.dump()).tables["jobs"]} == {"first", "after"}
        await backend.close()

    asyncio.run(asyncio.wait_for(scene(), 30))


@pytest.mark.parametrize("closer", ["parent", "another process"])
def test_what_a_forked_child_was_told_is_stored_survives_its_end(tmp_path: Path, closer: str) -> None:
    """SQLite keeps its locks per process in memory the child inherits: a connection made there takes no lock of its own
    while the inherited ones are open, and the last process that closes it removes the log under it."""
    path = str(tmp_path / "jobs.db")
    backend = SqliteBackend(path)
    asyncio.run(backend.open())
    asyncio.run(_enqueue(backend, "parent's"))
    to_child, from_parent = os.pipe()[::-1]
    to_parent, from_child = os.pipe()[::-1]
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_enqueue(backend, "first"))
            os.write(to_parent, b"1")
            os.read(from_parent, 1)
            for number in range(5):
                asyncio.run(_enqueue(backend, f"later-{number}"))
            os.write(to_parent, b"2")
            os.read(from_parent, 1)  # until it is killed
        finally:
            os._exit(1)
    assert os.read(from_child, 1) == b"1"
    asyncio.run(backend.close())
    if closer == "another process":
        program = f"import sqlite3; sqlite3.connect({path!r}).execute('SELECT 1 FROM holdfast_jobs')"
        subprocess.run([sys.executable, "-c", program], check=True)
    os.write(to_child, b"1")
    assert os.read(from_child, 1) == b"2"  # five more were acknowledged
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    async def stored() -> int:
        fresh = SqliteBackend(path)
        await fresh.open()
        try:
            return sum((await fresh.count("default"))["default"].values())
        finally:
            await fresh.close()

    assert asyncio.run(stored()) == 7


def test_a_child_forked_in_the_middle_of_a_write_is_not_locked_out_for_ever(tmp_path: Path) -> None:
    """The parent's write lock is noted in memory the child inherits, where nobody ever lets it go."""
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=1.0)
    asyncio.run(backend.open())
    inside, leave = threading.Event(), threading.Event()

    def slow(cursor: sqlite3.Cursor) -> None:
        cursor.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'holdfast_ticks'")
        inside.set()
        leave.wait(0.5)  # a fork may wait for a write to end, as long as it does end

    request = backend._writing().submit("slow", slow)
    assert inside.wait(10)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for turn in range(4):
                try:
                    asyncio.run(_enqueue(backend, "child's"))
                    code = 0
                    break
                except HoldfastError:
                    code = 10 + turn
        finally:
            os._exit(code)
    leave.set()
    request.result(10)
    _, state = os.waitpid(pid, 0)
    asyncio.run(backend.close())
    assert os.waitstatus_to_exitcode(state) == 0


def test_a_full_disk_is_named_and_has_changed_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(str(path))

    async def scene() -> None:
        await backend.open()
        await _enqueue(backend, "kept")
        connection = backend._writing()._post.connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way of having no room
        big = b'"' + b"x" * 50_000 + b'"'
        with pytest.raises(BackendUnavailable, match="full"):
            await backend.enqueue([NewJob(id="too much", task="t", args=big)])
        connection.execute("PRAGMA max_page_count = 1073741823")
        await _enqueue(backend, "after")
        assert {row["id"] for row in (await backend.dump()).tables["jobs"]} == {"kept", "after"}
        await backend.close()

    asyncio.run(asyncio.wait_for(scene(), 30))
