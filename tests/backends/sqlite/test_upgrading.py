"""A file of an older version is brought up to this one with everything in it: keys, overrides, places, order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import SCHEMA_VERSION
from holdfast.backends.sqlite.schema import migrations, statements_of
from holdfast.errors import DuplicateJob
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, NewJob, Override, WorkerRecord

BEFORE_FLOW = 4  # the last version without limits, rates and holders of keys
BEFORE_COUNTER = 11  # the last version whose counter had a table of its own
BEFORE_BODIES = 12  # the last version whose jobs had their arguments in their row, whatever their size
AT = 1_700_000_000.0
JOB = """
INSERT INTO holdfast_jobs (id, task, queue, state, priority, grp, key, lane, turn, max_stalls, created_at, due_at, args,
                           finished_at, prune_at, token, worker)
VALUES (?, 't', 'default', ?, ?, ?, ?, ?, ?, 3, ?, ?, x'7b7d', ?, ?, ?, ?)
"""


def file_of_version(path: Path, version: int, statements: Iterable[tuple[str, tuple[object, ...]]] = ()) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for number, text in migrations():
        if number <= version:
            for statement in statements_of(text):
                connection.execute(statement)
    connection.execute("INSERT INTO holdfast_schema (only, version) VALUES (1, ?)", (version,))
    for statement, values in statements:
        connection.execute(statement, values)
    connection.close()


def job(
    job_id: str, state: str, *, priority: int = 0, group: str | None = None, key: str | None = None, turn: int = 0
) -> tuple[str, tuple[object, ...]]:
    ended = AT if state in ("succeeded", "cancelled") else None
    lease = ("token", "w0") if state == "running" else (None, None)
    place = (int(group is not None), turn or None)
    return JOB, (job_id, state, priority, group, key, *place, AT, AT, ended, ended and ended + 86400.0, *lease)


def worker(worker_id: str) -> tuple[str, tuple[object, ...]]:
    statement = """
    INSERT INTO holdfast_workers (id, host, pid, boot_id, pid_namespace, lease_seconds, queues, slots, started_at,
                                  renewed_at, deadline, deadline_boot)
    VALUES (?, '', 0, '', '', 1e9, '[]', 0, 0, 0, ?, '')
    """
    return statement, (worker_id, AT + 1e9)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_every_older_version_is_brought_up_to_this_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    file_of_version(path, version)
    backend = SqliteBackend(str(path))
    assert asyncio.run(backend.migrate()) == (version, SCHEMA_VERSION)
    asyncio.run(backend.close())


def test_who_held_a_key_holds_it_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    states = ("scheduled", "ready", "running", "succeeded", "cancelled")
    rows = [job(f"is-{state}", state, key=state, turn=n) for n, state in enumerate(states, 1)]
    file_of_version(path, BEFORE_FLOW, [worker("w0"), *rows])

    async def run() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        for state in states:
            record = await backend.get(f"is-{state}")
            assert record is not None
            assert record.holds_key == State(state).live, state
            again = NewJob(id=f"new-{state}", task="t", key=state, on_conflict="raise")
            if State(state).live:
                with pytest.raises(DuplicateJob):
                    await backend.enqueue([again], now=AT + 1)
            else:
                assert (await backend.enqueue([again], now=AT + 1))[0].created
        await backend.close()

    asyncio.run(run())


def test_ready_jobs_keep_their_order_and_overrides_of_groups_hold_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    ready = [
        job(f"p{priority}", "ready", priority=priority, turn=turn) for turn, priority in enumerate((1, 3, -2, 0), 1)
    ]
    rules = [
        ("INSERT INTO holdfast_queues (name, group_limit, group_order) VALUES ('default', 2, 'relaxed')", ()),
        ("INSERT INTO holdfast_groups (queue, name, group_limit) VALUES ('default', 'g', 3)", ()),
    ]
    file_of_version(path, BEFORE_FLOW, [*ready, *rules])

    async def run() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        overrides = (await backend.dump()).tables["overrides"]
        assert [(said["queue"], said["group"], said["limit"]) for said in overrides] == [("default", "g", 3)]
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=AT)
        claim = ClaimRequest(worker="w", call=1, queues=("default",), most=9)
        leases = (await backend.claim(claim, now=AT)).leases
        assert [lease.id for lease in leases] == ["p3", "p1", "p0", "p-2"]
        await backend.enqueue([NewJob(id=f"g{n}", task="t", group="g") for n in range(5)], now=AT)
        assert (await backend.group("default", "g")).counts == {"ready": 3, "waiting": 2}
        await backend.limit(Override(queue="default", group="g", limit=None), now=AT)
        assert (await backend.group("default", "g")).limit == 2
        await backend.close()

    asyncio.run(run())


def test_what_ran_before_the_upgrade_is_counted_by_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    rows = [job("runs", "running", turn=1), job("one", "ready", turn=2), job("two", "ready", turn=3)]
    file_of_version(path, BEFORE_FLOW, [worker("w0"), *rows])

    async def run() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        await backend.limit(Override(queue="default", limit=2), now=AT)
        await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=AT)
        claim = ClaimRequest(worker="w", call=1, queues=("default",), most=9)
        assert [lease.id for lease in (await backend.claim(claim, now=AT)).leases] == ["one"]
        await backend.close()

    asyncio.run(run())


def test_the_counter_goes_on_above_what_was_issued(tmp_path: Path) -> None:
    path, ahead = tmp_path / "jobs.db", 9_000_000_000_000_000  # a clock that was once set too far ahead
    file_of_version(path, BEFORE_COUNTER, [("UPDATE holdfast_ticks SET tick = ?", (ahead,))])

    async def run() -> list[int]:
        backend = SqliteBackend(str(path))
        await backend.open()
        await backend.enqueue([NewJob(id="one", task="t"), NewJob(id="two", task="t")])
        connection = sqlite3.connect(path)
        connection.execute("VACUUM")
        connection.close()
        await backend.enqueue([NewJob(id="three", task="t")])
        await backend.register(WorkerRecord(id="w"))
        leases = (await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=9))).leases
        await backend.close()
        assert [lease.id for lease in leases] == ["one", "two", "three"]
        return [lease.fence for lease in leases]

    assert min(asyncio.run(run())) > ahead + 3
