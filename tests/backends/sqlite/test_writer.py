"""The writer thread: group commit, a neighbour's failure, fork, many processes on one file, a full disk."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import connection as writing
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import BackendError, DuplicateJob, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, NewJob, WorkerRecord


async def opened(path: Path, **options: Any) -> SqliteBackend:
    backend = SqliteBackend(str(path / "jobs.db"), **options)
    await backend.open()
    return backend


def test_requests_that_arrive_together_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = writing.StoreThread._apply

    def counting(self: Any, connection: Any, batch: list[Any]) -> Any:
        sizes.append(len(batch))
        return real(self, connection, batch)

    monkeypatch.setattr(writing.StoreThread, "_apply", counting)

    async def run() -> None:
        backend = await opened(tmp_path)
        await asyncio.gather(*(backend.enqueue([NewJob(id=f"j{n}", task="t")]) for n in range(50)))
        assert (await backend.count())["default"][State.READY] == 50
        await backend.close()

    asyncio.run(run())
    assert sum(sizes) == 50
    assert len(sizes) < 50


def test_a_sweep_that_changes_nothing_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[set[str]] = []
    monkeypatch.setattr(SqliteBackend, "_committed", lambda self, verbs: told.append(verbs))

    async def run() -> None:
        backend = await opened(tmp_path)
        await backend.enqueue([NewJob(id="a", task="t", delay=1.0)], now=1.0)
        for sweep in (backend.promote, backend.recover, backend.refill, backend.prune, backend.rearrange):
            await sweep(now=1.5)
        await backend.promote(now=3.0)
        await backend.close()

    asyncio.run(run())
    assert told == [{"enqueue"}, {"promote"}], "only the second of the two passes found the job due"


@pytest.mark.parametrize("verb", ["enqueue", "count"])
def test_a_first_call_waits_while_another_has_the_file_to_itself(tmp_path: Path, verb: str) -> None:
    """As one has who is the first after a crash, or the last to leave: it works through the log."""

    async def run() -> None:
        backend = await opened(tmp_path)
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, other.close)
        release.start()
        await (backend.enqueue([NewJob(id="j", task="t")]) if verb == "enqueue" else backend.count())
        release.join()
        await backend.close()

    asyncio.run(run())


def test_who_waits_for_the_write_lock_looks_again_after_a_tenth_of_a_millisecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself SQLite waits a whole one, then two, five and ten; most transactions are shorter."""
    pauses: list[float] = []

    async def run() -> None:
        backend = await opened(tmp_path)
        await backend.enqueue([NewJob(id="a", task="t")])
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 30:
                other.execute("ROLLBACK")

        monkeypatch.setattr("holdfast.backends.sqlite.connection.time.sleep", pause)
        monkeypatch.setattr("holdfast.backends.sqlite.connection.random.uniform", lambda least, most: most)
        await backend.enqueue([NewJob(id="b", task="t")])
        monkeypatch.undo()
        assert backend._writer is not None and backend._writer._post.connection is not None
        assert backend._writer._post.connection.execute("PRAGMA busy_timeout").fetchone() == (0,)
        other.close()
        await backend.close()

    asyncio.run(run())
    assert len(pauses) == 30
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (writing.LOCK_PAUSE_SECONDS_MIN, writing.LOCK_PAUSE_SECONDS_MAX)


def test_a_failing_request_leaves_the_others_of_its_transaction_alone(tmp_path: Path) -> None:
    async def run() -> None:
        backend = await opened(tmp_path)
        await backend.enqueue([NewJob(id="first", task="t", key="k")])
        refused = NewJob(id="second", task="t", key="k", on_conflict="raise")
        answers = await asyncio.gather(
            backend.enqueue([NewJob(id="before", task="t")]),
            backend.enqueue([NewJob(id="lost", task="t"), refused]),
            backend.enqueue([NewJob(id="after", task="t")]),
            return_exceptions=True,
        )
        assert isinstance(answers[1], DuplicateJob)
        ids = {row["id"] for row in (await backend.dump()).tables["jobs"]}
        assert ids == {"first", "before", "after"}
        await backend.close()

    asyncio.run(run())


def test_a_commit_that_fails_is_reported_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        """Passes everything on, and fails the one COMMIT it is told to."""

        def __init__(self, real: sqlite3.Connection) -> None:
            self.real, self.fail = real, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def execute(self, sql: str) -> Any:
            if sql == "COMMIT" and self.fail:
                self.fail = False
                raise sqlite3.OperationalError("disk I/O error")
            return self.real.execute(sql)

    async def run() -> None:
        backend = await opened(tmp_path)
        await backend.enqueue([NewJob(id="a", task="t")])
        thread = backend._writing()
        failing = Failing(thread._post.connection)  # type: ignore[arg-type]
        monkeypatch.setattr(thread._post, "connection", failing)
        failing.fail = True
        with pytest.raises(OutcomeUnknown):
            await backend.enqueue([NewJob(id="b", task="t")])
        assert (await backend.enqueue([NewJob(id="b", task="t")]))[0].created
        await backend.close()

    asyncio.run(run())


def test_after_a_fork_the_child_uses_connections_of_its_own(tmp_path: Path) -> None:
    backend = SqliteBackend(str(tmp_path / "jobs.db"))

    async def put(name: str) -> None:
        await backend.open()
        await backend.enqueue([NewJob(id=name, task="t")])

    asyncio.run(put("parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(put("child"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0

    async def check() -> None:
        await backend.enqueue([NewJob(id="parent again", task="t")])
        assert {row["id"] for row in (await backend.dump()).tables["jobs"]} == {"parent", "child", "parent again"}
        await backend.close()

    asyncio.run(check())


def _work_through(path: str, name: str, seen: Any) -> None:
    """Claim and settle until nothing is left, noting every job and the groups running at once."""

    async def run() -> None:
        backend = SqliteBackend(path, call_timeout=30.0)
        await backend.open()
        await backend.register(WorkerRecord(id=name, lease_seconds=60.0))
        call, settlements = 0, list[Settlement]()
        while True:
            call += 1
            request = ClaimRequest(worker=name, call=call, queues=("default",), most=7)
            got = await backend.exchange(settlements, (), request)
            assert all(answer == "ok" for answer in got.answers)
            if not got.leases and not (await backend.count())["default"].keys() & {State.READY, State.RUNNING}:
                break
            running: dict[str, int] = {}
            for row in (await backend.dump()).tables["jobs"]:
                if row["state"] == State.RUNNING:
                    running[row["group"]] = running.get(row["group"], 0) + 1
            seen.append((max(running.values(), default=0), [lease.id for lease in got.leases]))
            settlements = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED) for lease in got.leases]
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize(("order", "limit"), [("strict", 1), ("relaxed", 3)])
def test_eight_processes_on_one_file_never_exceed_a_groups_limit(tmp_path: Path, order: Any, limit: int) -> None:
    from holdfast.records import QueueRule

    path = tmp_path / "jobs.db"

    async def fill() -> None:
        backend = await opened(tmp_path)
        await backend.declare([QueueRule(name="default", group_limit=limit, group_order=order)])
        jobs = [NewJob(id=f"{n % 5}-{n:04d}", task="t", group=f"g{n % 5}") for n in range(300)]
        await backend.enqueue(jobs)
        await backend.close()

    asyncio.run(fill())
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        seen = manager.list()
        processes = [spawn.Process(target=_work_through, args=(str(path), f"w{n}", seen)) for n in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
            assert process.exitcode == 0
        assert max(most for most, _ in seen) <= limit
        taken = [job for _, jobs in seen for job in jobs]
    assert len(taken) == 300
    assert len(set(taken)) == 300


def test_a_file_that_may_not_grow_refuses_clearly_and_keeps_what_it_had(tmp_path: Path) -> None:
    program = """
import asyncio, resource, signal, sys
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import HoldfastError
from holdfast.records import NewJob

async def run():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    backend = SqliteBackend(sys.argv[1])
    await backend.open()
    await backend.enqueue([NewJob(id="kept", task="t")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    stored = 0
    try:
        for n in range(200):
            await backend.enqueue([NewJob(id=f"j{n}", task="t", args=b'"' + b"x" * 20_000 + b'"')])
            stored += 1
    except HoldfastError as error:
        print(stored, type(error).__name__)
    else:
        print("never refused")
asyncio.run(run())
"""
    path = tmp_path / "jobs.db"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    stored, error = done.stdout.split()
    assert error in {"BackendError", "BackendUnavailable", "OutcomeUnknown"}, done.stderr

    async def check() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        ids = {row["id"] for row in (await backend.dump()).tables["jobs"]}
        assert ids >= {"kept", *(f"j{n}" for n in range(int(stored)))}
        await backend.close()

    asyncio.run(check())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_calls_after_close_say_so(tmp_path: Path) -> None:
    async def run() -> None:
        backend = await opened(tmp_path)
        await backend.close()
        await backend.close()
        with pytest.raises(BackendError, match="open"):
            await backend.enqueue([NewJob(id="a", task="t")])
        await backend.open()
        assert (await backend.enqueue([NewJob(id="a", task="t")]))[0].created
        await backend.close()

    asyncio.run(run())
